"""Sampling: agents visit the cells of a grid, each of which holds what a mixture of Gaussians is worth there, once."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.drawing import Field
from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count, positive
from shoal.envs.vmas.entities import Agent, Sphere
from shoal.envs.vmas.geometry import Vec
from shoal.envs.vmas.sensors import Lidar
from shoal.envs.vmas.world import World
from shoal.errors import UserError

LIDAR_RAYS, LIDAR_START = 12, 0.05
AROUND = np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (-1, -1), (1, -1), (-1, 1), (1, 1)], np.float32)  # cells seen


class Sampling(Scenario):
    """An agent earns the density at its place if nobody was in that cell before; all earn the sum if ``shared_rew``.

    Hidden: ``locs [n_gaussians, 2]``, the centres of the Gaussians, 0 unless given; ``max_pdf``, the greatest density
    of the grid; ``sampled [2 xdim / grid_spacing, 2 ydim / grid_spacing]``, the cells visited. ``comms_range`` is for
    pictures only. Without ``collisions``, which VMAS fails to build, there is no lidar.
    """

    def __init__(
        self,
        n_agents: int = 3,
        shared_rew: bool = False,
        comms_range: float = 0.0,
        lidar_range: float = 0.2,
        agent_radius: float = 0.025,
        xdim: float = 1.0,
        ydim: float = 1.0,
        grid_spacing: float = 0.05,
        n_gaussians: int = 3,
        cov: float | tuple[float, ...] = 0.05,
        collisions: bool = True,
        spawn_same_pos: bool = False,
        norm: bool = True,
    ):
        count("n_agents", n_agents)
        count("n_gaussians", n_gaussians)
        at_least("comms_range", comms_range)
        for name, value in (
            ("lidar_range", lidar_range),
            ("agent_radius", agent_radius),
            ("grid_spacing", grid_spacing),
        ):
            positive(name, value)
        for name, value in (("xdim", xdim), ("ydim", ydim)):
            cells = 2 * value / grid_spacing
            if value <= agent_radius:
                raise UserError(f"env.kwargs.{name}={value:g}: must be above agent_radius={agent_radius:g}")
            if abs(cells - round(cells)) > 1e-6:
                raise UserError(f"env.kwargs.{name}={value:g}: twice of it must be a multiple of {grid_spacing=}")
        variances = cov if isinstance(cov, tuple) else (cov,) * n_gaussians
        if len(variances) != n_gaussians or min(variances) <= 0:
            raise UserError(f"env.kwargs.cov={cov}: must be above 0, one number or {n_gaussians} (n_gaussians)")
        if spawn_same_pos and collisions:
            raise UserError("env.kwargs.spawn_same_pos=True: needs collisions=false")
        self.n_gaussians, self.cov = n_gaussians, np.array(variances, np.float32)
        self.shared_rew, self.spawn_same_pos, self.norm, self.spacing = shared_rew, spawn_same_pos, norm, grid_spacing
        self.size = np.array([xdim, ydim], np.float32)  # half of the field's
        self.limit = np.array([xdim - agent_radius, ydim - agent_radius], np.float32)  # of the agents' centres
        self.cells = tuple(np.round(2 * self.size / grid_spacing).astype(int).tolist())
        self.grid = (
            np.moveaxis(np.indices(self.cells), 0, -1).astype(np.float32) * grid_spacing - self.size
        )  # [., ., 2]
        agents = [Agent(name=f"agent_{i}", shape=Sphere(agent_radius), collide=collisions) for i in range(n_agents)]
        world = World([], agents, x_semidim=xdim - agent_radius, y_semidim=ydim - agent_radius)
        each = np.arange(n_agents)
        others = np.array([np.delete(each, i) for i in each])
        self.lidar = Lidar(world, each, others, LIDAR_RAYS, lidar_range, LIDAR_START) if collisions else None
        super().__init__(world)

    def spawn(self, key):
        draw = jax.random.uniform(key, (2 * (self.n_gaussians + self.num_agents),), minval=-1.0)
        places = draw.reshape(-1, 2) * self.size
        agents = jnp.clip(places[self.n_gaussians :], -self.limit, self.limit)
        return {"pos": agents * (not self.spawn_same_pos), "locs": places[: self.n_gaussians]}

    def remember(self, state, given):
        locs = given.get("locs", jnp.zeros((self.n_gaussians, 2)))
        most = self.density(locs, self.grid).max()
        return {"locs": locs, "max_pdf": most, "sampled": jnp.zeros(self.cells, bool)}

    def density(self, locs, points):
        """``[...]``: the sum of the Gaussians at ``points [..., 2]``, or where the nearest agent could be."""
        off = Vec.of(jnp.clip(points, -self.limit, self.limit)[..., None, :] - locs)
        logs = -0.5 * (2 * math.log(2 * math.pi) + off.dot(off) / self.cov) - np.log(self.cov)
        return jnp.exp(logs).sum(axis=-1)

    def cell(self, points):
        """The two indices of the cells of ``points [..., 2]``."""
        places = jnp.clip(points, -self.limit, self.limit) / self.spacing + np.array(self.cells, np.float32) / 2
        index = places.astype(jnp.int32)
        return index[..., 0], index[..., 1]

    def sample(self, state, points, norm: bool):
        """``[...]``: what ``points [..., 2]`` hold, nothing if visited or outside."""
        density = self.density(state["locs"], points)
        outside = (jnp.abs(points) > self.size).any(axis=-1)
        value = density / state["max_pdf"] if norm else density
        return jnp.where(state["sampled"][self.cell(points)] | outside, 0.0, value)

    def reward(self, key, state):
        pos = self.pos(state)
        x, y = self.cell(pos)
        same = (x[:, None] == x) & (y[:, None] == y)
        late = jnp.tril(same, -1).any(axis=1)  # an agent before it is in that cell
        found = jnp.where(late, 0.0, self.sample(state, pos, self.norm))
        state = state.remember(sampled=state["sampled"].at[x, y].set(True))
        return state, self.shared(found.sum()) if self.shared_rew else found, {"agent_sample": found}

    def field(self, states):
        density = np.asarray(jax.vmap(self.density, (0, None))(states["locs"], self.grid + self.spacing / 2))
        values = density / np.maximum(density.max(axis=(1, 2), keepdims=True), 1e-30)  # [T, cells along x, along y]
        width, height = self.size.tolist()
        extent = (-width, width, -height, height)
        return Field(values.swapaxes(1, 2), np.asarray(states["sampled"]).swapaxes(1, 2), extent)

    def observe(self, key, state):
        pos = self.pos(state)
        around = self.sample(state, pos[:, None] + AROUND * self.spacing, norm=True)  # [A, 8]
        rays = [] if self.lidar is None else [self.lidar(state)]
        return self.beside(pos, self.vel(state), *rays, around)
