"""Wheel: agents turn a line around its centre at a given speed."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count, positive
from shoal.envs.vmas.entities import Agent, Landmark, Line, Sphere
from shoal.envs.vmas.world import World

AGENT_RADIUS = 0.03


class Wheel(Scenario):
    """All lose how far the speed at which the line turns is from ``desired_velocity``.

    Hidden: nothing.
    """

    def __init__(
        self, n_agents: int = 4, line_length: float = 1.0, line_mass: float = 30.0, desired_velocity: float = 0.05
    ):
        count("n_agents", n_agents)
        positive("line_length", line_length)
        positive("line_mass", line_mass)
        at_least("desired_velocity", desired_velocity)
        self.half, self.desired_velocity = line_length / 2, desired_velocity
        landmarks = [
            Landmark(name="line", shape=Line(line_length), rotatable=True, mass=line_mass, colour="black"),
            Landmark(name="center", shape=Sphere(0.02), collide=False, colour="black"),
        ]
        self.line = 0
        agents = [Agent(name=f"agent_{i}", shape=Sphere(AGENT_RADIUS), u_multiplier=0.6) for i in range(n_agents)]
        super().__init__(World(landmarks, agents))

    def spawn(self, key):
        draw = jax.random.uniform(key, (2 * self.num_agents + 1,), minval=-1.0)
        agents = draw[1:].reshape(-1, 2)
        rot = jnp.zeros(self.world.size).at[self.line].set(draw[0] * math.pi / 2)
        return {"pos": jnp.concatenate([jnp.zeros((2, 2)), agents]), "rot": rot}

    def off(self, state):
        """How far the speed is from the one desired."""
        return jnp.abs(jnp.abs(state.ang_vel[self.line]) - self.desired_velocity)

    def reward(self, key, state):
        return state, self.shared(-self.off(state)), {}

    def observe(self, key, state):
        pos, rot = self.pos(state), state.rot[self.line]
        end = self.half * jnp.stack([jnp.cos(rot), jnp.sin(rot)])
        return self.beside(
            pos,
            self.vel(state),
            state.pos[self.line] - pos,
            end - pos,
            -end - pos,
            rot % jnp.pi,
            jnp.abs(state.ang_vel[self.line]),
            self.off(state),
        )
