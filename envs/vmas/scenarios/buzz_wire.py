"""Buzz wire: two agents, each tied by a rod to a ball in a corridor, bring it to a goal past the walls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import positive
from shoal.envs.vmas.entities import Agent, Landmark, Line, Sphere, rod
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.world import World

RADIUS, ROD_LENGTH = 0.03, 0.25
HALF_CORRIDOR = 0.125
AT_GOAL = 0.01


class BuzzWire(Scenario):
    """All earn what the ball came closer to the goal, and ``collision_reward`` for each wall that an agent or the ball
    overlaps, which also ends the episode.

    Hidden: ``pos_shaping``, the ball's distance to the goal, times its factor.
    """

    terminates = True

    def __init__(
        self,
        random_start_angle: bool = True,
        pos_shaping_factor: float = 1.0,
        collision_reward: float = -10.0,
        max_speed_1: float | None = None,
    ):
        positive("max_speed_1", max_speed_1)
        self.random_start_angle, self.factor, self.penalty = random_start_angle, pos_shaping_factor, collision_reward
        shape = Sphere(RADIUS)
        agents = [Agent(name=f"agent_{i}", shape=shape, max_speed=(None, max_speed_1)[i]) for i in range(2)]
        rods, ties = zip(*(rod(agent.name, "ball", ROD_LENGTH) for agent in agents), strict=True)
        landmarks = [
            Landmark(name="goal", shape=shape, collide=False, colour="light_green"),
            Landmark(name="ball", shape=shape, movable=True, colour="black"),
            *rods,
            *(Landmark(name=f"wall {i}", shape=Line(2.0), colour="black") for i in range(2)),
            *(Landmark(name=f"floor {i}", shape=Line(2 * HALF_CORRIDOR), colour="black") for i in range(2)),
        ]
        self.goal, self.ball = range(2)
        self.walls, self.moving = np.arange(4, 8), np.array([[8], [9], [self.ball]])
        settings: dict[str, Any] = {"substeps": 15, "joint_force": 900.0, "collision_force": 1500.0}
        super().__init__(World(landmarks, agents, joints=[*ties[0], *ties[1]], **settings))

    def spawn(self, key):
        draw = jax.random.uniform(key, (5,))
        angle = jnp.pi / 6 * (2 * draw[0] - 1) if self.random_start_angle else jnp.float32(0.0)
        reach = ROD_LENGTH * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        low, span = -1 + 2 * RADIUS, 1 - 3 * RADIUS
        ball = jnp.stack([RADIUS * (2 * draw[1] - 1), low + span * draw[2]])
        goal = jnp.stack([RADIUS * (2 * draw[3] - 1), -RADIUS + (span + 2 * RADIUS) * draw[4]])
        walls = np.array([[-HALF_CORRIDOR, 0], [HALF_CORRIDOR, 0], [0, -1], [0, 1]], np.float32)
        rods, agents = jnp.stack([ball - reach / 2, ball + reach / 2]), jnp.stack([ball - reach, ball + reach])
        turned = jnp.stack([0.0, 0.0, angle, angle + jnp.pi, jnp.pi / 2, jnp.pi / 2])
        return {
            "pos": jnp.concatenate([jnp.stack([goal, ball]), rods, walls, agents]),
            "rot": jnp.pad(turned, (0, 4)),
        }

    def remember(self, state, given):
        return {"pos_shaping": self.factor * distance(state.pos[self.ball], state.pos[self.goal])}

    def reward(self, key, state):
        now = self.remember(state, {})
        closer = state["pos_shaping"] - now["pos_shaping"]
        crashed = self.penalty * self.touching(state).sum()
        info = {"pos_rew": self.shared(closer), "collision_rew": self.shared(crashed)}
        return state.remember(**now), self.shared(closer + crashed), info

    def touching(self, state):
        """``[3, 4]``: whether each agent and the ball overlap each wall."""
        return self.world.overlap(state, self.moving, self.walls)

    def observe(self, key, state):
        pos = self.pos(state)
        return self.beside(pos, self.vel(state), pos - state.pos[self.goal])

    def done(self, state):
        arrived = distance(state.pos[self.ball], state.pos[self.goal]) <= AT_GOAL
        return arrived | self.touching(state).any()
