"""Lidar: how far each of an agent's rays goes before it hits something."""

from __future__ import annotations

import chex
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas import geometry
from shoal.envs.vmas.entities import Box, Line, Sphere
from shoal.envs.vmas.geometry import Vec
from shoal.envs.vmas.world import World


class Lidar:
    """``rays`` rays around each of some entities, all of them cast at once.

    ``seen [n, M]`` are the places of the entities that each of the ``sensors [n]`` can hit.
    """

    def __init__(
        self, world: World, sensors: np.ndarray, seen: np.ndarray, rays: int, reach: float, start: float = 0.0
    ):
        self.world, self.sensors, self.seen, self.reach = world, np.asarray(sensors), np.asarray(seen), reach
        self.angles = np.linspace(start, start + 2 * np.pi, rays + 1, dtype=np.float32)[:-1]  # [K]

    def __call__(self, state) -> chex.Array:
        """``[n, K]``: the distances, ``reach`` where nothing is hit."""
        world, shapes = self.world, [type(entity.shape) for entity in self.world.entities]
        pos, direction = Vec.of(state.pos), Vec.at_angle(state.rot)
        angle = state.rot[self.sensors][:, None] + self.angles  # [n, K]
        along = Vec.at_angle(angle)[:, :, None]
        origin = pos[self.sensors][:, None, None]
        shortest = jnp.full(angle.shape, self.reach)
        for kind in (Sphere, Line, Box):
            columns = [m for m in range(self.seen.shape[1]) if shapes[self.seen[0, m]] is kind]
            if not columns:
                continue
            index = self.seen[:, columns]  # [n, m]
            centre = pos[index][:, None]
            if kind is Sphere:
                hits = geometry.ray_to_sphere(origin, along, centre, world.radius[index][:, None])
            elif kind is Line:
                line = geometry.Line(centre, direction[index][:, None], world.half[index][:, None])
                hits = geometry.ray_to_line(origin, along, line)
            else:
                half, width = world.half[index][:, None], world.half_width[index][:, None]
                hits = geometry.ray_to_box(origin, along, geometry.Box(centre, direction[index][:, None], half, width))
            for m in range(len(columns)):
                shortest = jnp.minimum(shortest, hits[:, :, m])
        return shortest
