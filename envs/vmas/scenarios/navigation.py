"""Navigation: each agent goes to its own goal and must not run into the others, which it sees by lidar."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count, positive
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.placement import apart
from shoal.envs.vmas.sensors import Lidar
from shoal.envs.vmas.world import World
from shoal.errors import UserError

GOAL_RADIUS = 0.05
MIN_COLLISION_DISTANCE = 0.005


class Navigation(Scenario):
    """An agent earns what it came closer to its goal (all of them together if ``shared_rew``), ``final_reward`` while
    all are there, and ``agent_collision_penalty`` for each other agent that it touches.

    Hidden: ``pos_shaping [A]``, the distances to the goals.
    """

    terminates = True

    def __init__(
        self,
        n_agents: int = 3,
        collisions: bool = True,
        world_spawning_x: float = 1.0,
        world_spawning_y: float = 1.0,
        enforce_bounds: bool = False,
        agents_with_same_goal: int = 1,
        split_goals: bool = False,
        observe_all_goals: bool = False,
        lidar_range: float = 0.35,
        agent_radius: float = 0.1,
        n_lidar_rays: int = 12,
        shared_rew: bool = False,
        pos_shaping_factor: float = 1.0,
        final_reward: float = 0.01,
        agent_collision_penalty: float = -1.0,
        comms_range: float = 0.0,
    ):
        count("n_agents", n_agents)
        count("agents_with_same_goal", agents_with_same_goal, 1, n_agents)
        count("n_lidar_rays", n_lidar_rays)
        positive("lidar_range", lidar_range)
        positive("agent_radius", agent_radius)
        positive("world_spawning_x", world_spawning_x)
        positive("world_spawning_y", world_spawning_y)
        at_least("comms_range", comms_range)
        if agents_with_same_goal > 1 and collisions:
            raise UserError(f"env.kwargs.agents_with_same_goal={agents_with_same_goal}: needs collisions=false")
        if split_goals and 2 * agents_with_same_goal != n_agents:
            raise UserError(f"env.kwargs.split_goals=True: needs agents_with_same_goal={n_agents / 2:g}, half of them")
        self.bounds = (world_spawning_x, world_spawning_y)
        self.collisions, self.observe_all_goals, self.shared_rew = collisions, observe_all_goals, shared_rew
        self.radius, self.factor, self.final_reward = agent_radius, pos_shaping_factor, final_reward
        self.collision_penalty = agent_collision_penalty
        each = np.arange(n_agents)  # agent i has the landmark i, which may lie where another one does
        self.goal_of = each // agents_with_same_goal if split_goals else np.where(each < agents_with_same_goal, 0, each)
        agents = [Agent(name=f"agent_{i}", shape=Sphere(agent_radius), collide=collisions) for i in each]
        goals = [Landmark(name=f"goal {i}", collide=False, colour="light_green") for i in each]
        limits = self.bounds if enforce_bounds else (None, None)
        world = World(goals, agents, substeps=2, x_semidim=limits[0], y_semidim=limits[1])
        others = np.array([np.delete(each, i) for i in each]) + n_agents
        self.first, self.second = np.triu_indices(n_agents, 1)  # [P] pairs of agents
        self.lidar = Lidar(world, each + n_agents, others, n_lidar_rays, lidar_range) if collisions else None
        super().__init__(world)

    def spawn(self, key):
        low = (-self.bounds[0], -self.bounds[1])
        places = apart(key, 2 * self.num_agents, 2 * self.radius + 0.05, low, self.bounds)
        goals, agents = places[self.num_agents :], places[: self.num_agents]
        return {"pos": jnp.concatenate([goals[self.goal_of], agents])}

    def distances(self, state):
        """``[A]``: to the own goals."""
        return distance(self.pos(state), state.pos[: self.num_agents])

    def remember(self, state, given):
        return {"pos_shaping": self.factor * self.distances(state)}

    def reward(self, key, state):
        now = self.factor * (far := self.distances(state))
        closer = state["pos_shaping"] - now
        arrived = self.shared(jnp.where((far < GOAL_RADIUS).all(), self.final_reward, 0.0))
        crashed = self.collision_penalty * self.collisions_of_each(state)
        earned = self.shared(closer.sum()) if self.shared_rew else closer
        info = {"pos_rew": earned, "final_rew": arrived, "agent_collisions": crashed}
        return state.remember(pos_shaping=now), earned + arrived + crashed, info

    def collisions_of_each(self, state):
        """``[A]``: how many others each agent touches."""
        if not self.collisions:
            return jnp.zeros(self.num_agents)
        a, b = self.bodies[self.first], self.bodies[self.second]
        touching = self.world.near(state, a, b) & (self.world.distance(state, a, b) <= MIN_COLLISION_DISTANCE)
        touching = touching.astype(jnp.float32)
        return self.world.per_agent(touching, a) + self.world.per_agent(touching, b)

    def observe(self, key, state):
        pos = self.pos(state)
        targets = state.pos[: self.num_agents]
        to_goals = pos - targets
        if self.observe_all_goals:
            to_goals = (pos[:, None] - targets).reshape(self.num_agents, -1)
        rays = [] if self.lidar is None else [self.lidar.reach - self.lidar(state)]
        return self.beside(pos, self.vel(state), to_goals, *rays)

    def done(self, state):
        return (self.distances(state) < self.radius).all()
