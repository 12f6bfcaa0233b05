"""simple_crypto: Alice sends Bob a secret that both can read with a shared key, while Eve listens."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv
from shoal.envs.mpe.world import World, total
from shoal.envs.options import check_choice

LANDMARKS, WORDS = 2, 4
EVE = 0
ORDER = {"jaxmarl": ("eve", "alice", "bob"), "mpe2": ("eve", "bob", "alice")}
BRIGHTNESS = {"jaxmarl": 255.0, "mpe2": 1.0}  # of the colour that stands for a secret or a key


class SimpleCrypto(ParticleEnv):
    """``goal`` holds the secret and the key, both the index of a landmark, shown as its colour.

    Eve loses the squared difference of what she says to the secret. Alice and Bob gain it, and lose Bob's. Nobody
    moves. ``rules`` says whose order of agents, colours and treatment of silence hold (see ``shoal.envs.mpe``).
    """

    name = "mpe/simple_crypto"
    speakers, words = 3, WORDS
    goals, goal_count = (2,), LANDMARKS

    def __init__(self, rules: str = "jaxmarl", continuous: bool = False):
        self.rules = check_choice("rules", rules, ("jaxmarl", "mpe2"))
        names = ORDER[rules]
        self.alice, self.bob = names.index("alice"), names.index("bob")
        super().__init__(
            World(3, radius=np.full(3 + LANDMARKS, 0.05), movable=False),
            agents=[f"{name}_0" for name in names],
            groups=["adversary", "agent", "agent"],
            obs_sizes=[WORDS, 2 * WORDS, 2 * WORDS],
            continuous=continuous,
        )

    def _colours(self, state):
        """``[2, WORDS]``: of the secret and of the key."""
        return jnp.where(state.goal[:, None] == np.arange(WORDS), BRIGHTNESS[self.rules], 0.0)

    def observe(self, state):
        secret, key = self._colours(state)
        heard = state.comm[self.alice]
        rows = [jnp.concatenate([heard, jnp.zeros(WORDS)])] * 3
        rows[self.alice] = jnp.concatenate([secret, key])
        rows[self.bob] = jnp.concatenate([key, heard])
        return jnp.stack(rows)

    def reward(self, state):
        secret = self._colours(state)[0]
        error = total((state.comm - secret) ** 2)  # [A]
        spoke = total((state.comm != 0).astype(jnp.float32)) > 0  # [A]
        if self.rules == "jaxmarl":
            spoke = jnp.broadcast_to(total(spoke.astype(jnp.float32)) > 0, spoke.shape)
        error = jnp.where(spoke, error, 0)  # silence is neither right nor wrong
        shared = error[EVE] - error[self.bob]
        return jnp.stack([-error[EVE], shared, shared])
