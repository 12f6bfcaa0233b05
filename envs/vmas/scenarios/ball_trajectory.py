"""Ball trajectory: two agents, each tied to a ball by a rod, swing it round a circle."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.entities import Agent, Landmark, Sphere, rod
from shoal.envs.vmas.geometry import distance, safe_sqrt
from shoal.envs.vmas.world import World

ROD_LENGTH, CIRCLE_RADIUS, DESIRED_SPEED = 0.2, 0.5, 1.0


class BallTrajectory(Scenario):
    """Agent 0 earns what three things fell by: the root of the ball's distance to the circle, how far its speed is
    from 1, and the agents' distances to it, each times its factor. Agent 1 earns nothing, and the information is always
    zero: VMAS renews its memory at each agent's reward.

    Hidden: ``pos_shaping``, ``speed_shaping``, ``dist_shaping``, the three things.
    """

    def __init__(
        self,
        pos_shaping_factor: float = 0.0,
        speed_shaping_factor: float = 1.0,
        dist_shaping_factor: float = 0.0,
        joints: bool = True,
    ):
        self.factors = (pos_shaping_factor, speed_shaping_factor, dist_shaping_factor)
        self.ball, self.rods = 0, joints
        agents = [Agent(name=f"agent_{i}", shape=Sphere(0.03), drag=0.25) for i in range(2)]
        ball = Landmark(name="ball", shape=Sphere(0.06), movable=True, linear_friction=0.04, colour="green")
        bodies, ties = zip(*(rod(agent.name, "ball", ROD_LENGTH) for agent in agents), strict=True)
        settings: dict[str, Any] = {"substeps": 5, "joint_force": 130.0, "collision_force": 400.0}
        if joints:
            settings = {"substeps": 15, "joint_force": 900.0, "collision_force": 1500.0, "joints": [*ties[0], *ties[1]]}
        super().__init__(World([ball, *(bodies if joints else ())], agents, drag=0.0, **settings))

    def spawn(self, key):
        draw = jax.random.uniform(key, (3,))
        ball = draw[:2] - 0.5
        side = jnp.where(draw[2] < 0.5, 1.0, -1.0) * np.array([-1, 1], np.float32)  # [A]: left or right of the ball
        agents = ball + side[:, None] * np.array([ROD_LENGTH, 0], np.float32)
        rods = [(agents + ball) / 2] if self.rods else []
        turned = [jnp.where(side > 0, jnp.pi, 0.0)] if self.rods else []
        return {
            "pos": jnp.concatenate([ball[None], *rods, agents]),
            "rot": jnp.concatenate([jnp.zeros(1), *turned, jnp.zeros(2)]),
        }

    def remember(self, state, given):
        ball, centre = state.pos[self.ball], jnp.zeros(2)
        far = distance(ball, centre)
        on_circle = ball / jnp.where(far > 0, far, 1.0) * CIRCLE_RADIUS
        pos, speed, dist = self.factors
        return {
            "pos_shaping": pos * safe_sqrt(distance(ball, on_circle)),
            "speed_shaping": speed * jnp.abs(DESIRED_SPEED - distance(state.vel[self.ball], centre)),
            "dist_shaping": dist * distance(self.pos(state), ball).sum(),
        }

    def reward(self, key, state):
        now = self.remember(state, {})
        better = sum(state[name] - value for name, value in now.items())
        info = {name: jnp.zeros(2) for name in ("pos_rew", "speed_rew", "dist_rew")}
        return state.remember(**now), jnp.stack([better, jnp.zeros_like(better)]), info

    def observe(self, key, state):
        pos = self.pos(state)
        return self.beside(pos, self.vel(state), pos - state.pos[self.ball], pos)
