"""Dispersion: agents start at one point and eat the food around it, which one of them does once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count, positive
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.world import World

AGENT_RADIUS = 0.035
TIME_PENALTY = -0.01


class Dispersion(Scenario):
    """All earn 1 for each food that is reached; if not ``share_reward``, those who reach it first share that 1.
    Instead of nothing they earn -0.01 if ``penalise_by_time``.

    Hidden: ``eaten [n_food]``.
    """

    terminates = True

    def __init__(
        self,
        n_agents: int = 4,
        n_food: int = 4,
        share_reward: bool = True,
        food_radius: float = 0.02,
        penalise_by_time: bool = False,
        pos_range: float = 1.0,
    ):
        count("n_agents", n_agents)
        count("n_food", n_food)
        positive("food_radius", food_radius)
        positive("pos_range", pos_range)
        self.n_food, self.reach, self.pos_range = n_food, AGENT_RADIUS + food_radius, pos_range
        self.share_reward, self.penalise_by_time = share_reward, penalise_by_time
        food = [
            Landmark(name=f"food_{i}", shape=Sphere(food_radius), collide=False, colour="green") for i in range(n_food)
        ]
        agents = [Agent(name=f"agent_{i}", shape=Sphere(AGENT_RADIUS), collide=False) for i in range(n_agents)]
        super().__init__(World(food, agents, x_semidim=pos_range, y_semidim=pos_range))

    def spawn(self, key):
        food = self.pos_range * jax.random.uniform(key, (2 * self.n_food,), minval=-1.0).reshape(-1, 2)
        return {"pos": jnp.concatenate([food, jnp.zeros((self.num_agents, 2))])}

    def remember(self, state, given):
        return {"eaten": jnp.zeros(self.n_food, bool)}

    def reward(self, key, state):
        on = distance(self.pos(state)[:, None], state.pos[: self.n_food]) < self.reach  # [A, n_food]
        eaters = on.sum(axis=0)
        worth = jnp.where(state["eaten"] | (eaters == 0), 0.0, 1.0)  # [n_food]
        each = on * (worth / jnp.maximum(eaters, 1))  # [A, n_food]
        earned = self.shared(worth.sum()) if self.share_reward else each.sum(axis=1)
        if self.penalise_by_time:
            earned = jnp.where(earned == 0, TIME_PENALTY, earned)
        return state.remember(eaten=state["eaten"] | (eaters > 0)), earned, {}

    def observe(self, key, state):
        pos = self.pos(state)
        there = state.pos[: self.n_food] - pos[:, None]  # [A, n_food, 2]
        eaten = jnp.broadcast_to(state["eaten"][:, None], (self.num_agents, self.n_food, 1))
        food = jnp.concatenate([there, eaten], axis=-1)
        return self.beside(pos, self.vel(state), food.reshape(self.num_agents, -1))

    def shown(self, state):
        return jnp.concatenate([~state["eaten"], jnp.ones(self.num_agents, bool)])

    def done(self, state):
        return state["eaten"].all()
