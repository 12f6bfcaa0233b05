"""Flocking: agents keep close to each other and to a target that circles among obstacles, seen by lidar."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.placement import apart
from shoal.envs.vmas.sensors import Lidar
from shoal.envs.vmas.world import World

AGENT_RADIUS, OBSTACLE_RADIUS, LIDAR_RANGE = 0.05, 0.1, 0.2
WANTED_DISTANCE, MIN_COLLISION_DISTANCE = 0.1, 0.005


class Flocking(Scenario):
    """An agent earns what the mean of its squared errors of distance to all others and the target became less, and
    ``collision_reward`` for each of them that it touches.

    Hidden: ``t``, the steps made, which steer the target; ``distance_shaping [A]``, the mean errors.
    """

    def __init__(
        self,
        n_agents: int = 4,
        n_obstacles: int = 5,
        min_dist_between_entities: float = 0.15,
        n_lidar_rays: int = 12,
        collision_reward: float = -0.1,
        dist_shaping_factor: float = 1.0,
    ):
        count("n_agents", n_agents)
        count("n_obstacles", n_obstacles, 0)
        count("n_lidar_rays", n_lidar_rays)
        at_least("min_dist_between_entities", min_dist_between_entities)
        self.room, self.collision_reward, self.factor = min_dist_between_entities, collision_reward, dist_shaping_factor
        obstacles = [
            Landmark(name=f"obstacle_{i}", shape=Sphere(OBSTACLE_RADIUS), colour="red") for i in range(n_obstacles)
        ]
        target = Agent(name="target", shape=Sphere(AGENT_RADIUS), scripted=True, colour="green")
        agents = [Agent(name=f"agent_{i}", shape=Sphere(AGENT_RADIUS)) for i in range(n_agents)]
        world = World(obstacles, [target, *agents], collision_force=400.0, substeps=5)
        self.target = n_obstacles
        self.others = ~np.eye(n_agents + 1, dtype=bool)[1:]  # [A, A + 1]
        seen = np.tile(np.arange(n_obstacles), (n_agents, 1))
        self.lidar = Lidar(world, np.arange(n_agents) + n_obstacles + 1, seen, n_lidar_rays, LIDAR_RANGE)
        super().__init__(world)

    def spawn(self, key):
        target = jnp.array([[0.0, -1.0]])
        places = apart(key, self.target + self.num_agents, self.room, (-1.0, -1.0), (1.0, 1.0), target)
        return {"pos": jnp.concatenate([places[: self.target], target, places[self.target :]])}

    def remember(self, state, given):
        return {"t": jnp.float32(0), "distance_shaping": self.errors(self.distances(state))}

    def control(self, key, state, u):
        phase = state["t"] / 30
        return state, u.at[0].set(jnp.stack([jnp.cos(phase), jnp.sin(phase)]))

    def distances(self, state):
        """``[A, A + 1]``: of the agents to the target and all agents."""
        return distance(self.pos(state)[:, None], state.pos[self.world.bodies])

    def errors(self, far):
        """``[A]``: the means over the others of the squared errors."""
        return self.factor * ((far - WANTED_DISTANCE) ** 2).mean(axis=1, where=self.others)

    def reward(self, key, state):
        far = self.distances(state)
        touching = self.others & (far - 2 * AGENT_RADIUS <= MIN_COLLISION_DISTANCE)
        crashed = self.collision_reward * touching.sum(axis=1)
        closer = state["distance_shaping"] - (now := self.errors(far))
        state = state.remember(t=state["t"] + 1, distance_shaping=now)
        return state, crashed + closer, {"agent_collision_rew": crashed, "agent_distance_rew": closer}

    def observe(self, key, state):
        pos = self.pos(state)
        return self.beside(pos, self.vel(state), pos - state.pos[self.target], self.lidar(state))
