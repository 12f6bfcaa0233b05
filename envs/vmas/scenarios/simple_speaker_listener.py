"""Simple speaker listener: one agent knows which landmark is the goal and can only speak, the other goes there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.world import pick
from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.world import World

LANDMARKS, WORDS = 3, 3
COLOURS = np.full((LANDMARKS, 3), 0.15, np.float32) + 0.5 * np.eye(3, dtype=np.float32)


class SimpleSpeakerListener(Scenario):
    """Both lose twice the listener's distance to the goal.

    Hidden: ``goal_b [W]``, the goal's landmark by the agent that knows it, -1 for the listener; 0 unless given.
    """

    position = None

    def __init__(self):
        shape = Sphere(0.075)
        speaker = Agent(name="speaker_0", shape=shape, movable=False, collide=False, silent=False, colour="grey")
        listener = Agent(name="listener_0", shape=shape, collide=False, colour="light_blue")
        landmarks = [
            Landmark(name=f"landmark {i}", shape=Sphere(0.04), collide=False, colour=colour)
            for i, colour in enumerate(("red", "green", "blue"))
        ]
        super().__init__(World(landmarks, [speaker, listener], dim_c=WORDS))

    def spawn(self, key):
        n = self.world.size
        draw = jax.random.uniform(key, (2 * n + 1,))
        goal = (draw[-1] * LANDMARKS).astype(jnp.int32)
        return {"pos": 2 * draw[:-1].reshape(n, 2) - 1, "goal_b": jnp.stack([goal, -1])}

    def remember(self, state, given):
        return {"goal_b": np.array([0, -1])}

    def reward(self, key, state):
        goal = pick(state.pos[:LANDMARKS], state["goal_b"][0])
        return state, self.shared(-2 * distance(self.pos(state)[1], goal)), {}

    def observe(self, key, state):
        to_landmarks = state.pos[:LANDMARKS] - self.pos(state)[1]
        listener = jnp.concatenate([self.vel(state)[1], to_landmarks.reshape(-1), state.comm[0]])
        return [pick(COLOURS, state["goal_b"][0]), listener]
