"""Simple crypto: Alice sends Bob a secret, encrypted with a key that both know and Eve, who listens, does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count
from shoal.envs.vmas.entities import Agent
from shoal.envs.vmas.world import World

EVE, BOB, ALICE = range(3)


class SimpleCrypto(Scenario):
    """Eve loses the squared error of what she says about the secret; Bob and Alice earn Eve's error less Bob's.

    Who says nothing makes no error. Hidden: ``secret`` and ``key``, ``[dim_c]`` zeros and ones; zeros unless given.
    """

    position = None

    def __init__(self, dim_c: int = 4):
        count("dim_c", dim_c)
        agents = [
            Agent(name=name, movable=False, collide=False, silent=False, group=group, colour=colour)
            for name, group, colour in (
                ("eve_0", "adversary", "red"),
                ("bob_0", "agent", "blue"),
                ("alice_0", "agent", "green"),
            )
        ]
        super().__init__(World([], agents, dim_c=dim_c))

    def spawn(self, key):
        words = self.world.dim_c
        draw = jax.random.uniform(key, (6 + 2 * words,))
        secret, code = (draw[6:].reshape(2, words) < 0.5).astype(jnp.float32)
        return {"pos": 2 * draw[:6].reshape(3, 2) - 1, "secret": secret, "key": code}

    def remember(self, state, given):
        zeros = np.zeros(self.world.dim_c, np.float32)
        return {"secret": zeros, "key": zeros}

    def reward(self, key, state):
        said = state.comm[:ALICE]  # by Eve and Bob
        eve, bob = jnp.where((said != 0).any(axis=-1), jnp.sum((said - state["secret"]) ** 2, axis=-1), 0.0)
        return state, jnp.stack([-eve, eve - bob, eve - bob]), {}

    def observe(self, key, state):
        heard, secret, code = state.comm[ALICE], state["secret"], state["key"]
        return [heard, jnp.concatenate([code, heard]), jnp.concatenate([secret, code])]
