"""Simple: one agent goes to the one landmark."""

from __future__ import annotations

import jax.numpy as jnp

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.entities import Agent, Landmark
from shoal.envs.vmas.placement import uniform
from shoal.envs.vmas.world import World


class Simple(Scenario):
    """The agent loses the square of its distance to the landmark. Hidden: nothing."""

    position = None

    def __init__(self):
        landmark = Landmark(name="landmark 0", collide=False, colour="red")
        super().__init__(World([landmark], [Agent(name="agent_0", collide=False, colour="grey")]))

    def spawn(self, key):
        return {"pos": uniform(key, self.world.size, (-1.0, -1.0), (1.0, 1.0))}

    def reward(self, key, state):
        return state, -jnp.sum((state.pos[:1] - state.pos[1:]) ** 2, axis=-1), {}

    def observe(self, key, state):
        return self.beside(self.vel(state), state.pos[:1] - self.pos(state))
