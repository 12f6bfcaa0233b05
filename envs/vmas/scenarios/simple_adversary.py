"""Simple adversary: good agents cover the goal and other landmarks, so that adversaries cannot tell which it is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.world import pick, relative
from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.world import World


class SimpleAdversary(Scenario):
    """An adversary loses its distance to the goal; the good agents earn those less that of the nearest of them to it.

    Hidden: ``goal [A]``, the landmark, the same for all; 0 unless given.
    """

    position = None

    def __init__(self, n_agents: int = 3, n_adversaries: int = 1):
        count("n_agents", n_agents, 2)
        count("n_adversaries", n_adversaries, 1, n_agents - 1)
        self.n_adversaries, self.n_landmarks = n_adversaries, n_agents - 1
        shape = Sphere(0.15)
        adversaries = [
            Agent(name=f"adversary_{i}", shape=shape, collide=False, group="adversary", colour="red")
            for i in range(n_adversaries)
        ]
        good = [
            Agent(name=f"agent_{i}", shape=shape, collide=False, group="agent") for i in range(n_agents - n_adversaries)
        ]
        landmarks = [
            Landmark(name=f"landmark {i}", shape=Sphere(0.08), collide=False, colour="black")
            for i in range(self.n_landmarks)
        ]
        super().__init__(World(landmarks, adversaries + good))

    def spawn(self, key):
        n = 2 * self.world.size
        draw = jax.random.uniform(key, (n + 1,))
        goal = (draw[n] * self.n_landmarks).astype(jnp.int32)
        return {"pos": 2 * draw[:n].reshape(-1, 2) - 1, "goal": self.shared(goal)}

    def remember(self, state, given):
        return {"goal": np.zeros(self.num_agents, int)}

    def reward(self, key, state):
        goal = pick(state.pos[: self.n_landmarks], state["goal"][0])
        far = distance(self.pos(state), goal)  # [A]
        adversaries, good = far[: self.n_adversaries], far[self.n_adversaries :]
        earned = adversaries.sum() - good.min()
        return state, jnp.concatenate([-adversaries, jnp.full_like(good, earned)]), {}

    def observe(self, key, state):
        landmarks, pos = state.pos[: self.n_landmarks], self.pos(state)
        seen = relative(pos, landmarks)
        good = slice(self.n_adversaries, None)
        to_goal = pick(landmarks, state["goal"][0]) - pos[good]
        return [*seen[: self.n_adversaries], *jnp.concatenate([to_goal, seen[good]], axis=-1)]
