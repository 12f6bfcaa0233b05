"""Balance: agents below a line carry a package on it to a goal, against gravity."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count, positive
from shoal.envs.vmas.entities import Agent, Box, Landmark, Line, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.world import World

AGENT_RADIUS, PACKAGE_RADIUS, LINE_LENGTH = 0.03, 0.05, 0.8
SHAPING, GROUND_PENALTY = 100.0, -10.0


class Balance(Scenario):
    """All earn 100 times what the package came closer to the goal, and -10 if it or the line lies on the ground.

    Hidden: ``global_shaping``, 100 times the package's distance to the goal.
    """

    terminates = True

    def __init__(self, n_agents: int = 4, package_mass: float = 5.0, random_package_pos_on_line: bool = True):
        count("n_agents", n_agents, 2)
        positive("package_mass", package_mass)
        agents = [Agent(name=f"agent_{i}", shape=Sphere(AGENT_RADIUS), u_multiplier=0.7) for i in range(n_agents)]
        landmarks = [
            Landmark(name="goal", collide=False, colour="light_green"),
            Landmark(name="package", shape=Sphere(PACKAGE_RADIUS), movable=True, mass=package_mass, colour="red"),
            Landmark(name="line", shape=Line(LINE_LENGTH), movable=True, rotatable=True, mass=5.0, colour="black"),
            Landmark(name="floor", shape=Box(10.0, 1.0)),
        ]
        self.goal, self.package, self.line, self.floor = range(4)
        self.random_package = random_package_pos_on_line
        super().__init__(World(landmarks, agents, gravity=(0.0, -0.05), y_semidim=1.0))

    def spawn(self, key):
        draw = jax.random.uniform(key, (4,))
        goal = jnp.stack([2 * draw[0] - 1, draw[1]])
        line = jnp.stack([0.6 * (2 * draw[2] - 1), jnp.float32(AGENT_RADIUS * 2 - 1)])
        aside = (LINE_LENGTH - 2 * PACKAGE_RADIUS) / 2 * (2 * draw[3] - 1) if self.random_package else 0.0
        package = line + jnp.stack([jnp.float32(aside), jnp.float32(PACKAGE_RADIUS)])
        floor = jnp.array([0.0, -1.53])
        span = LINE_LENGTH - AGENT_RADIUS
        along = np.linspace(-span / 2, span / 2, self.num_agents, dtype=np.float32)
        agents = line + np.stack([along, np.full_like(along, -2 * AGENT_RADIUS)], axis=1)
        return {"pos": jnp.concatenate([jnp.stack([goal, package, line, floor]), agents])}

    def remember(self, state, given):
        return {"global_shaping": SHAPING * distance(state.pos[self.package], state.pos[self.goal])}

    def reward(self, key, state):
        closer = state["global_shaping"] - (now := self.remember(state, {}))["global_shaping"]
        ground = jnp.where(self.grounded(state), GROUND_PENALTY, 0.0)
        info = {"pos_rew": self.shared(closer), "ground_rew": self.shared(ground)}
        return state.remember(**now), self.shared(closer + ground), info

    def grounded(self, state):
        """Whether the line or the package lies on the floor."""
        return self.world.overlap(state, self.floor, self.line) | self.world.overlap(state, self.floor, self.package)

    def observe(self, key, state):
        pos = self.pos(state)
        package, line = state.pos[self.package], state.pos[self.line]
        return self.beside(
            pos,
            self.vel(state),
            pos - package,
            pos - line,
            package - state.pos[self.goal],
            state.vel[self.package],
            state.vel[self.line],
            state.ang_vel[self.line],
            state.rot[self.line] % jnp.pi,
        )

    def done(self, state):
        return self.grounded(state) | self.world.overlap(state, self.package, self.goal)
