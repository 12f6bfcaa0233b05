"""Reverse transport: agents inside a hollow package push it to a goal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count, positive
from shoal.envs.vmas.entities import Agent, Box, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.world import World
from shoal.errors import UserError

AGENT_RADIUS, GOAL_RADIUS = 0.03, 0.09
SHAPING = 100.0


class ReverseTransport(Scenario):
    """All earn 100 times what the package came closer to the goal, nothing while it overlaps it.

    Hidden: ``global_shaping``, 100 times the package's distance to the goal; ``on_goal``, false at a reset.
    """

    terminates = True

    def __init__(
        self,
        n_agents: int = 4,
        package_width: float = 0.6,
        package_length: float = 0.6,
        package_mass: float = 50.0,
    ):
        count("n_agents", n_agents)
        positive("package_mass", package_mass)
        for name, value in (("package_width", package_width), ("package_length", package_length)):
            if value <= 2 * AGENT_RADIUS:
                raise UserError(f"env.kwargs.{name}={value:g}: must be above {2 * AGENT_RADIUS:g}, an agent's diameter")
        self.goal, self.package = range(2)
        self.inside = np.array([package_length / 2 - AGENT_RADIUS, package_width / 2 - AGENT_RADIUS], np.float32)
        box = Box(package_length, package_width, hollow=True)
        landmarks = [
            Landmark(name="goal", shape=Sphere(GOAL_RADIUS), collide=False, colour="light_green"),
            Landmark(name=f"package {n_agents - 1}", shape=box, movable=True, mass=package_mass, colour="red"),
        ]  # VMAS counts the agents in the package's name
        agents = [Agent(name=f"agent_{i}", shape=Sphere(AGENT_RADIUS), u_multiplier=0.5) for i in range(n_agents)]
        super().__init__(World(landmarks, agents, contact_margin=6e-3, substeps=5, collision_force=500.0))

    def spawn(self, key):
        draw = jax.random.uniform(key, (2 * (2 + self.num_agents),), minval=-1.0).reshape(-1, 2)
        agents = draw[self.package] + draw[2:] * self.inside
        return {"pos": jnp.concatenate([draw[:2], agents])}

    def shaping(self, state):
        """100 times the package's distance to the goal."""
        return SHAPING * distance(state.pos[self.package], state.pos[self.goal])

    def remember(self, state, given):
        return {"global_shaping": self.shaping(state), "on_goal": jnp.bool_(False)}

    def reward(self, key, state):
        closer = state["global_shaping"] - (now := self.shaping(state))
        on_goal = self.world.overlap(state, self.package, self.goal)
        return state.remember(global_shaping=now, on_goal=on_goal), self.shared(jnp.where(on_goal, 0.0, closer)), {}

    def observe(self, key, state):
        pos, package = self.pos(state), state.pos[self.package]
        to_goal = package - state.pos[self.goal]
        return self.beside(pos, self.vel(state), state.vel[self.package], package - pos, to_goal)

    def done(self, state):
        return state["on_goal"]
