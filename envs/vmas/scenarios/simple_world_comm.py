"""Simple world comm: good agents look for food among hunters whose leader sees all and directs them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.placement import uniform
from shoal.envs.vmas.world import World

WORDS = 4
CATCH, FOOD, HUNGER = 5.0, 2.0, 0.05


class SimpleWorldComm(Scenario):
    """Adversaries earn 5 for each pair of an adversary and a good agent that touch.

    A good agent loses 5 for each adversary that it touches, earns 2 for each food, and loses a twentieth of the way
    to the nearest food. Forests are only seen: as in VMAS nobody is ever inside one, and only the leader sees others.
    Hidden: nothing.
    """

    position = (2, 4)

    def __init__(
        self,
        num_good_agents: int = 2,
        num_adversaries: int = 4,
        num_landmarks: int = 1,
        num_food: int = 2,
        num_forests: int = 2,
    ):
        count("num_good_agents", num_good_agents)
        count("num_adversaries", num_adversaries)
        count("num_landmarks", num_landmarks, 0)
        count("num_food", num_food)
        count("num_forests", num_forests)
        self.n_bad, self.n_forests = num_adversaries, num_forests
        hunter: dict[str, Any] = {"shape": Sphere(0.075), "u_multiplier": 3.0, "max_speed": 1.0, "group": "adversary"}
        prey: dict[str, Any] = {
            "shape": Sphere(0.045),
            "u_multiplier": 4.0,
            "max_speed": 1.3,
            "group": "agent",
            "colour": "light_green",
        }
        agents = [Agent(name="lead_adversary_0", silent=False, colour="red", **hunter)]
        agents += [Agent(name=f"adversary_{i}", colour="light_red", **hunter) for i in range(1, num_adversaries)]
        agents += [Agent(name=f"agent_{i}", **prey) for i in range(num_good_agents)]
        landmarks = [Landmark(name=f"landmark {i}", shape=Sphere(0.2)) for i in range(num_landmarks)]
        for number, name, radius, colour in ((num_food, "food", 0.03, "blue"), (num_forests, "forest", 0.3, "green")):
            kind: dict[str, Any] = {"shape": Sphere(radius), "collide": False, "colour": colour}
            landmarks += [Landmark(name=f"{name} {i}", **kind) for i in range(number)]
        world = World(landmarks, agents, x_semidim=1.0, y_semidim=1.0, dim_c=WORDS)
        self.food = np.arange(num_landmarks, num_landmarks + num_food)
        super().__init__(world)

    def spawn(self, key):
        pos, agents = uniform(key, self.world.size, (-1.0, -1.0), (1.0, 1.0)), self.world.bodies
        return {"pos": jnp.concatenate([pos[: agents.start] * 0.9, pos[agents]])}

    def reward(self, key, state):
        bad, good = self.bodies[: self.n_bad], self.bodies[self.n_bad :]
        caught = self.world.overlap(state, bad[:, None], good)  # [adversaries, good]
        eating = self.world.overlap(state, good[:, None], self.food)  # [good, food]
        to_food = distance(state.pos[good][:, None], state.pos[self.food])
        fed = FOOD * eating.sum(axis=1) - HUNGER * to_food.min(axis=1)
        return (
            state,
            jnp.concatenate([jnp.full(self.n_bad, CATCH * caught.sum()), fed - CATCH * caught.sum(axis=0)]),
            {},
        )

    def observe(self, key, state):
        pos, vel, n = self.pos(state), self.vel(state), self.num_agents
        landmarks = state.pos[: self.world.bodies.start]
        to_landmarks = (landmarks - pos[:, None]).reshape(n, -1)
        prey_vel = vel * (np.arange(n) >= self.n_bad)[:, None]
        of_others = jnp.concatenate([pos[1:] - pos[0], prey_vel[1:]])  # by the leader, said once for each forest
        leader = jnp.repeat(of_others, self.n_forests, axis=0).reshape(-1)
        surroundings = jnp.zeros((n, leader.size)).at[0].set(leader)
        outside = -np.ones(self.n_forests, np.float32)
        rows = self.beside(vel, pos, to_landmarks, surroundings, outside)
        return [*self.beside(rows, state.comm[0])[: self.n_bad], *rows[self.n_bad :]]
