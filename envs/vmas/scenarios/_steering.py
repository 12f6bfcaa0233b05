"""How the agents of the two give-way tasks follow the velocity that is wanted of them."""

from __future__ import annotations

from dataclasses import dataclass

import chex
import jax.numpy as jnp

from shoal.envs.vmas.controllers import VelocityController, forget_at_rest
from shoal.envs.vmas.geometry import Vec, distance, limited

RADIUS, BOX_LENGTH, BOX_WIDTH = 0.16, 0.32, 0.24
GOAL_RADIUS = RADIUS / 2
MIN_COLLISION_DISTANCE = 0.005


@dataclass(frozen=True)
class Steering:
    """A controller whose wish has a limited length, and is none if it is shorter than ``least``."""

    controller: VelocityController
    limit: float
    least: float

    def __call__(
        self, wanted: chex.Array, vel: chex.Array, accum: chex.Array, prev: chex.Array
    ) -> tuple[chex.Array, chex.Array, chex.Array]:
        """The force ``[A, 2]``, and the controller's two memories."""
        wanted = limited(Vec.of(wanted), self.limit).array
        too_short = distance(wanted, jnp.zeros_like(wanted)) < self.least
        wanted = jnp.where(too_short[:, None], 0.0, wanted)
        return self.controller(wanted, vel, forget_at_rest(wanted, accum), forget_at_rest(wanted, prev))


def steering(u_range: float, f_range: float, min_input_norm: float, dt: float) -> Steering:
    """That of both tasks."""
    controller = VelocityController(gain=2.0, integral_time=6.0, derivative_time=0.002, max_force=f_range, dt=dt)
    return Steering(controller, u_range, min_input_norm)
