"""Dropout: it is enough that one agent goes to the goal, and moving costs energy."""

from __future__ import annotations

import math

import jax.numpy as jnp

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import Vec, distance
from shoal.envs.vmas.placement import apart
from shoal.envs.vmas.world import World

AGENT_RADIUS, GOAL_RADIUS = 0.05, 0.03


class Dropout(Scenario):
    """All earn 1 when the first of them reaches the goal, less ``energy_coeff`` times the sum of their efforts, each at
    most 1.

    Hidden: ``eaten``, whether the goal was reached; ``u [A, 2]``, the last actions, 0 unless given.
    """

    terminates = True

    def __init__(self, n_agents: int = 4, energy_coeff: float = 0.02, start_same_point: bool = False):
        count("n_agents", n_agents)
        at_least("energy_coeff", energy_coeff)
        self.energy_coeff, self.start_same_point = energy_coeff, start_same_point
        goal = Landmark(name="goal", shape=Sphere(GOAL_RADIUS), collide=False, colour="green")
        agents = [Agent(name=f"agent_{i}", shape=Sphere(AGENT_RADIUS), collide=False) for i in range(n_agents)]
        super().__init__(World([goal], agents))

    def spawn(self, key):
        room, low, high = AGENT_RADIUS + GOAL_RADIUS + 0.01, (-1.0, -1.0), (1.0, 1.0)
        if self.start_same_point:
            goal = apart(key, 1, room, low, high, jnp.zeros((1, 2)))
            return {"pos": jnp.concatenate([goal, jnp.zeros((self.num_agents, 2))])}
        return {"pos": jnp.roll(apart(key, self.num_agents + 1, room, low, high), 1, axis=0)}  # the goal is drawn last

    def remember(self, state, given):
        return {"eaten": jnp.bool_(False), "u": jnp.zeros((self.num_agents, 2))}

    def control(self, key, state, u):
        return state.remember(u=u), u

    def hit(self, state):
        """Whether an agent is at the goal."""
        return (distance(self.pos(state), state.pos[0]) < AGENT_RADIUS + GOAL_RADIUS).any()

    def reward(self, key, state):
        hit = self.hit(state)
        first = jnp.where(hit & ~state["eaten"], 1.0, 0.0)
        effort = Vec.of(state["u"]).norm.sum() / math.sqrt(2)
        energy = -self.energy_coeff * effort
        info = {"pos_rew": self.shared(first), "energy_rew": self.shared(energy)}
        return state.remember(eaten=state["eaten"] | hit), self.shared(first + energy), info

    def observe(self, key, state):
        pos = self.pos(state)
        return self.beside(pos, self.vel(state), state.pos[0] - pos, state["eaten"])

    def shown(self, state):
        return jnp.concatenate([~state["eaten"][None], jnp.ones(self.num_agents, bool)])

    def done(self, state):
        return self.hit(state)
