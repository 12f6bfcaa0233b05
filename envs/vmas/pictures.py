"""How VMAS's worlds look: see ``shoal.envs.drawing``."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from shoal.envs.drawing import GROUPS, Body, Scene
from shoal.envs.vmas.entities import Agent, Box, Entity, Sphere
from shoal.envs.vmas.sensors import Lidar


def scene(env, states) -> Scene:
    """The states ``[T, ...]`` of a scenario as something to draw."""
    states, world = jax.device_get(states), env.world
    groups = list(dict.fromkeys(agent.group for agent in world.agents if not agent.scripted))
    found = [value if isinstance(value, list) else [value] for value in vars(env).values()]
    lidars = [sensor for values in found for sensor in values if isinstance(sensor, Lidar)]
    rays = [_rays(lidar, states) for lidar in lidars]
    steps = states.pos.shape[0]
    walls = (world.x_semidim, world.y_semidim)
    return Scene(
        bodies=[_body(entity, groups) for entity in world.entities],
        pos=np.asarray(states.pos),
        rot=np.asarray(states.rot),
        shown=np.asarray(jax.vmap(env.shown)(states)),
        rays=np.concatenate(rays, axis=1) if rays else np.zeros((steps, 0, 2, 2)),
        bounds=None if None in walls else walls,  # type: ignore[arg-type]
        title=env.name,
        field=env.field(states),
    )


def _body(entity: Entity, groups: list[str]) -> Body:
    shape, agent = entity.shape, isinstance(entity, Agent)
    colour = entity.colour
    if agent and not colour:
        colour = GROUPS[groups.index(entity.group) % len(GROUPS)] if entity.group in groups else "black"  # type: ignore[attr-defined]
    facts: dict[str, Any] = {"colour": colour, "agent": agent, "solid": entity.collide or agent or entity.movable}
    facts["halo"] = entity.halo
    if isinstance(shape, Sphere):
        turns = agent and entity.dynamics.size not in (0, 2)  # type: ignore[attr-defined]
        return Body(radius=shape.radius, looks=turns, **facts)
    if isinstance(shape, Box):
        return Body(length=shape.length, width=shape.width, **{**facts, "solid": facts["solid"] and not shape.hollow})
    return Body(length=shape.length, **facts)


def _rays(lidar: Lidar, states) -> np.ndarray:
    """``[T, n K, 2, 2]``: from each sensor to where its rays end."""
    far = np.asarray(jax.jit(jax.vmap(lidar))(states))  # [T, n, K]
    start = states.pos[:, lidar.sensors][:, :, None]
    angle = states.rot[:, lidar.sensors][:, :, None] + lidar.angles
    stop = start + far[..., None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    both = np.stack([np.broadcast_to(start, stop.shape), stop], axis=-2)
    return both.reshape(both.shape[0], -1, 2, 2)
