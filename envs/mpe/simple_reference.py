"""simple_reference: two agents that each know where the *other* must go, and tell each other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv, numbered
from shoal.envs.mpe.world import World, distance, pick
from shoal.envs.options import check_ratio

AGENTS, LANDMARKS, WORDS = 2, 3, 10


class SimpleReference(ParticleEnv):
    """``goal[i]`` is the landmark that agent ``i`` must reach; its partner sees the landmark's colour.

    The local reward of an agent is minus the distance of its *partner* to the partner's goal; the shared one is the
    mean of both, and ``local_ratio`` weighs them.
    """

    name = "mpe/simple_reference"
    speakers, words = AGENTS, WORDS
    goals, goal_count = (AGENTS,), LANDMARKS

    def __init__(self, local_ratio: float = 0.5, continuous: bool = False, multi_discrete: bool = False):
        self.local_ratio = check_ratio("local_ratio", local_ratio)
        super().__init__(
            World(AGENTS, radius=np.full(AGENTS + LANDMARKS, 0.05)),
            agents=numbered("agent", AGENTS),
            groups=["team"] * AGENTS,
            obs_sizes=[2 + 2 * LANDMARKS + 3 + WORDS] * AGENTS,
            continuous=continuous,
            multi_discrete=multi_discrete,
        )

    def observe(self, state):
        to_landmarks = (state.landmarks - state.pos[:, None]).reshape(AGENTS, -1)
        partner_colour = jnp.where(state.goal[::-1, None] == np.arange(LANDMARKS), 0.75, 0.25)
        return jnp.concatenate([state.vel, to_landmarks, partner_colour, state.comm[::-1]], axis=1)

    def reward(self, state):
        to_goal = distance(state.pos, pick(state.landmarks, state.goal))  # [A]
        shared = (to_goal[0] + to_goal[1]) / 2
        return -self.local_ratio * to_goal[::-1] - (1 - self.local_ratio) * shared
