"""Simple push: an adversary that does not know which landmark is the goal keeps a good agent away from it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.world import pick, relative
from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.entities import Agent, Landmark
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.world import World

LANDMARKS = 2
COLOURS = np.array([[0.1, 0.9, 0.1], [0.1, 0.1, 0.9]], np.float32)
GOOD_COLOURS = np.array([[0.25, 0.75, 0.25], [0.25, 0.25, 0.75]], np.float32)  # by goal


class SimplePush(Scenario):
    """The good agent loses its distance to the goal, which the adversary earns less its own distance to it.

    Hidden: ``goal [A]``, the landmark, the same for both; 0 unless given.
    """

    position = None

    def __init__(self):
        agents = [
            Agent(name="adversary_0", group="adversary", colour="red"),
            Agent(name="agent_0", group="agent", colour="green"),
        ]
        landmarks = [
            Landmark(name=f"landmark {i}", collide=False, colour=colour) for i, colour in enumerate(("green", "blue"))
        ]
        super().__init__(World(landmarks, agents))

    def spawn(self, key):
        n = 2 * self.world.size
        draw = jax.random.uniform(key, (n + 1,))
        goal = (draw[n] * LANDMARKS).astype(jnp.int32)
        return {"pos": 2 * draw[:n].reshape(-1, 2) - 1, "goal": jnp.stack([goal, goal])}

    def remember(self, state, given):
        return {"goal": np.zeros(2, int)}

    def reward(self, key, state):
        adversary, good = distance(self.pos(state), pick(state.pos[:LANDMARKS], state["goal"]))
        return state, jnp.stack([good - adversary, -good]), {}

    def observe(self, key, state):
        landmarks, (goal, pos, vel) = state.pos[:LANDMARKS], (state["goal"][1], self.pos(state), self.vel(state))
        seen = relative(pos, landmarks)  # [A, 2 (landmarks + 1)]
        to_landmarks, to_other = seen[1, : 2 * LANDMARKS], seen[1, 2 * LANDMARKS :]
        known = [pick(landmarks, goal) - pos[1], pick(GOOD_COLOURS, goal)]
        good = jnp.concatenate([vel[1], *known, to_landmarks, COLOURS.reshape(-1), to_other])
        return [jnp.concatenate([vel[0], seen[0]]), good]
