"""Simple reference: each of two agents knows where the other one has to go, and tells it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.world import pick, relative
from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.entities import Agent, Landmark
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.world import World

LANDMARKS, WORDS = 3, 10
COLOURS = np.full((LANDMARKS, 3), 0.25, np.float32) + 0.5 * np.eye(3, dtype=np.float32)


class SimpleReference(Scenario):
    """Both lose the distances of both agents to their goals.

    Hidden: ``goal_b [A]``, the landmark that an agent knows to be the other's goal; 0 unless given.
    """

    position = None

    def __init__(self):
        agents = [Agent(name=f"agent_{i}", collide=False, silent=False) for i in range(2)]
        landmarks = [
            Landmark(name=f"landmark {i}", collide=False, colour=colour)
            for i, colour in enumerate(("red", "green", "blue"))
        ]
        super().__init__(World(landmarks, agents, dim_c=WORDS))

    def spawn(self, key):
        n = 2 * self.world.size
        draw = jax.random.uniform(key, (n + 2,))
        return {"pos": 2 * draw[:n].reshape(-1, 2) - 1, "goal_b": (draw[n:] * LANDMARKS).astype(jnp.int32)}

    def remember(self, state, given):
        return {"goal_b": np.zeros(2, int)}

    def reward(self, key, state):
        goals = pick(state.pos[:LANDMARKS], state["goal_b"])  # [A, 2], each of the other agent
        return state, self.shared(-distance(self.pos(state)[::-1], goals).sum()), {}

    def observe(self, key, state):
        to_landmarks = relative(self.pos(state), state.pos[:LANDMARKS])[:, : 2 * LANDMARKS]
        return self.beside(self.vel(state), to_landmarks, pick(COLOURS, state["goal_b"]), state.comm[::-1])
