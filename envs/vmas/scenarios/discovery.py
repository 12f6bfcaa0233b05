"""Discovery: agents find targets by lidar and cover each with several of them at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count, positive
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.placement import apart, uniform
from shoal.envs.vmas.sensors import Lidar
from shoal.envs.vmas.world import World

RADIUS, MIN_COLLISION_DISTANCE = 0.05, 0.005
TRIES = 16  # places proposed for a target that was covered


class Discovery(Scenario):
    """An agent earns ``covering_rew_coeff`` for each target that it helps to cover (half of all agents' sum if
    ``shared_reward``), ``agent_collision_penalty`` for each other agent that it touches, and ``time_penalty``.

    A covered target goes elsewhere, or out of the world if not ``targets_respawn``.
    Hidden: ``all_time_covered_targets [n_targets]``, those that left the world.
    """

    def __init__(
        self,
        n_agents: int = 5,
        n_targets: int = 7,
        x_semidim: float = 1.0,
        y_semidim: float = 1.0,
        min_dist_between_entities: float = 0.2,
        lidar_range: float = 0.35,
        covering_range: float = 0.25,
        use_agent_lidar: bool = False,
        n_lidar_rays_entities: int = 15,
        n_lidar_rays_agents: int = 12,
        agents_per_target: int = 2,
        targets_respawn: bool = True,
        shared_reward: bool = True,
        agent_collision_penalty: float = 0.0,
        covering_rew_coeff: float = 1.0,
        time_penalty: float = 0.0,
    ):
        count("n_agents", n_agents)
        count("n_targets", n_targets)
        count("agents_per_target", agents_per_target, 1, n_agents)
        count("n_lidar_rays_entities", n_lidar_rays_entities)
        count("n_lidar_rays_agents", n_lidar_rays_agents)
        at_least("min_dist_between_entities", min_dist_between_entities)
        sizes = {"x_semidim": x_semidim, "y_semidim": y_semidim, "lidar_range": lidar_range}
        for name, value in {**sizes, "covering_range": covering_range}.items():
            positive(name, value)
        self.n_targets, self.agents_per_target, self.targets_respawn = n_targets, agents_per_target, targets_respawn
        self.semidims, self.covering_range = (x_semidim, y_semidim), covering_range
        self.room = min_dist_between_entities
        self.shared_reward, self.collision_penalty = shared_reward, agent_collision_penalty
        self.coefficient, self.time_penalty = covering_rew_coeff, time_penalty
        targets = [
            Landmark(name=f"target_{i}", shape=Sphere(RADIUS), colour="green", halo=covering_range)
            for i in range(n_targets)
        ]
        agents = [Agent(name=f"agent_{i}", shape=Sphere(RADIUS)) for i in range(n_agents)]
        world = World(targets, agents, x_semidim=x_semidim, y_semidim=y_semidim, collision_force=500.0, substeps=2)
        each = np.arange(n_agents)
        self.others = each != each[:, None]
        seen = np.tile(np.arange(n_targets), (n_agents, 1))
        self.lidars = [Lidar(world, each + n_targets, seen, n_lidar_rays_entities, lidar_range)]
        if use_agent_lidar:
            others = np.array([np.delete(each, i) for i in each]) + n_targets
            self.lidars.append(Lidar(world, each + n_targets, others, n_lidar_rays_agents, lidar_range, start=0.05))
        self.terminates = not targets_respawn
        super().__init__(world)

    def spawn(self, key):
        low = (-self.semidims[0], -self.semidims[1])
        return {"pos": apart(key, self.world.size, self.room, low, self.semidims)}

    def remember(self, state, given):
        return {"all_time_covered_targets": jnp.zeros(self.n_targets, bool)}

    def reward(self, key, state):
        pos = self.pos(state)
        near = distance(pos[:, None], state.pos[: self.n_targets]) < self.covering_range  # [A, n_targets]
        covered = near.sum(axis=0) >= self.agents_per_target
        covering = self.coefficient * (near & covered).sum(axis=1)
        covering = self.shared(covering.sum() / 2) if self.shared_reward else covering
        touching = self.others & (distance(pos[:, None], pos) - 2 * RADIUS < MIN_COLLISION_DISTANCE)
        crashed = self.collision_penalty * touching.sum(axis=1)
        info = {
            "covering_reward": covering,
            "collision_rew": crashed,
            "targets_covered": self.shared(covered.sum(dtype=jnp.float32)),
        }
        return self.moved(key, state, covered), crashed + covering + self.time_penalty, info

    def moved(self, key, state, covered):
        """With the covered targets elsewhere."""
        if not self.targets_respawn:
            away = jax.random.uniform(key, (2 * self.n_targets,), minval=-1000.0, maxval=-10.0).reshape(-1, 2)
            targets = jnp.where(covered[:, None], away * self.semidims[0], state.pos[: self.n_targets])
            state = state.replace(pos=jnp.concatenate([targets, state.pos[self.n_targets :]]))
            return state.remember(all_time_covered_targets=state["all_time_covered_targets"] | covered)
        low = (-self.semidims[0], -self.semidims[1])
        options = uniform(key, self.n_targets * TRIES, low, self.semidims).reshape(self.n_targets, TRIES, 2)

        def move(pos, turn):
            own, is_covered, places = turn
            room = jnp.where(own, jnp.inf, distance(places[:, None], pos)).min(axis=1)  # [TRIES]
            place = places[jnp.argmax(jnp.where(room >= self.room, jnp.inf, room))]  # the first that fits, if one does
            return jnp.where((own & is_covered)[:, None], place, pos), None

        rows = np.eye(self.n_targets, self.world.size, dtype=bool)
        return state.replace(pos=jax.lax.scan(move, state.pos, (rows, covered, options))[0])

    def observe(self, key, state):
        return self.beside(self.pos(state), self.vel(state), *[lidar(state) for lidar in self.lidars])

    def done(self, state):
        return state["all_time_covered_targets"].all()
