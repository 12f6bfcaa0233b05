"""Transport: agents push heavy packages to a goal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count, positive
from shoal.envs.vmas.entities import Agent, Box, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.placement import apart
from shoal.envs.vmas.world import World

AGENT_RADIUS, GOAL_RADIUS = 0.03, 0.15
SHAPING = 100.0


class Transport(Scenario):
    """All earn 100 times what each package that is not at the goal came closer to it.

    Hidden: ``global_shaping [n_packages]``, 100 times the packages' distances to the goal; ``on_goal [n_packages]``.
    """

    terminates = True

    def __init__(
        self,
        n_agents: int = 4,
        n_packages: int = 1,
        package_width: float = 0.15,
        package_length: float = 0.15,
        package_mass: float = 50.0,
    ):
        count("n_agents", n_agents)
        count("n_packages", n_packages)
        sizes = {"package_width": package_width, "package_length": package_length, "package_mass": package_mass}
        for name, value in sizes.items():
            positive(name, value)
        box = Box(package_length, package_width)
        self.packages, self.places = np.arange(1, n_packages + 1), slice(1, n_packages + 1)
        self.room = box.reach + GOAL_RADIUS + 0.01  # around packages and the goal at the start
        goal = Landmark(name="goal", shape=Sphere(GOAL_RADIUS), collide=False, colour="light_green")
        packages = [
            Landmark(name=f"package {i}", shape=box, movable=True, mass=package_mass, colour="red")
            for i in range(n_packages)
        ]
        agents = [Agent(name=f"agent_{i}", shape=Sphere(AGENT_RADIUS), u_multiplier=0.6) for i in range(n_agents)]
        semidim = 1 + 2 * AGENT_RADIUS + max(package_length, package_width)
        super().__init__(World([goal, *packages], agents, x_semidim=semidim, y_semidim=semidim))

    def spawn(self, key):
        agent_key, package_key = jax.random.split(key)
        low, high = (-1.0, -1.0), (1.0, 1.0)
        agents = apart(agent_key, self.num_agents, 2 * AGENT_RADIUS, low, high)
        landmarks = apart(package_key, len(self.packages) + 1, self.room, low, high, agents)
        return {"pos": jnp.concatenate([landmarks, agents])}

    def remember(self, state, given):
        return {
            "global_shaping": SHAPING * distance(state.pos[self.places], state.pos[0]),
            "on_goal": self.world.overlap(state, self.packages, 0),
        }

    def reward(self, key, state):
        closer = state["global_shaping"] - (now := self.remember(state, {}))["global_shaping"]
        earned = jnp.where(now["on_goal"], 0.0, closer).sum()
        return state.remember(**now), self.shared(earned), {}

    def observe(self, key, state):
        pos, packages = self.pos(state), state.pos[self.places]
        blocks = (packages - state.pos[0], packages - pos[:, None], state.vel[self.places], state["on_goal"][:, None])
        rows = [jnp.broadcast_to(b, (self.num_agents, len(packages), b.shape[-1])) for b in blocks]
        seen = jnp.concatenate(rows, axis=-1)  # [A, n_packages, 7]
        return self.beside(pos, self.vel(state), seen.reshape(self.num_agents, -1))

    def done(self, state):
        return state["on_goal"].all()
