"""From an agent's action to the force and torque on its body: the models of VMAS, vectorised over the agents of a kind.

Each model has ``size`` action dimensions and ``__call__(u [n, size], body) -> (force Vec [n], torque [n])``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import chex
import jax.numpy as jnp

from shoal.envs.vmas.geometry import Vec


class Body(NamedTuple):
    """The agents of one kind before the step, all ``[n]``."""

    vel: Vec
    rot: chex.Array
    ang_vel: chex.Array
    mass: chex.Array
    inertia: chex.Array
    dt: float


@dataclass(frozen=True)
class Dynamics:
    """How an action moves a body."""

    size: ClassVar[int] = 0

    def __call__(self, u: chex.Array, body: Body) -> tuple[Vec, chex.Array]:
        raise NotImplementedError(f"{type(self).__name__}.__call__")


@dataclass(frozen=True)
class Static(Dynamics):
    """Does nothing."""

    def __call__(self, u, body):
        zeros = jnp.zeros_like(body.rot)
        return Vec(zeros, zeros), zeros


@dataclass(frozen=True)
class Holonomic(Dynamics):
    """The action is the force."""

    size: ClassVar[int] = 2

    def __call__(self, u, body):
        return Vec.of(u), jnp.zeros_like(body.rot)


@dataclass(frozen=True)
class HolonomicWithRotation(Dynamics):
    """The action is the force and the torque."""

    size: ClassVar[int] = 3

    def __call__(self, u, body):
        return Vec(u[:, 0], u[:, 1]), u[:, 2]


@dataclass(frozen=True)
class Forward(Dynamics):
    """The action is a force along where the body looks."""

    size: ClassVar[int] = 1

    def __call__(self, u, body):
        return Vec.at_angle(body.rot) * u[:, 0], jnp.zeros_like(body.rot)


@dataclass(frozen=True)
class Rotation(Dynamics):
    """The action is a torque."""

    size: ClassVar[int] = 1

    def __call__(self, u, body):
        zeros = jnp.zeros_like(body.rot)
        return Vec(zeros, zeros), u[:, 0]


@dataclass(frozen=True)
class _Driven(Dynamics):
    """A vehicle whose velocity is commanded: the force and torque that would move it so in one step, without drag."""

    size: ClassVar[int] = 2
    integration: str = "rk4"  # or euler

    def rates(self, u: chex.Array, rot: chex.Array) -> tuple[chex.Array, chex.Array, chex.Array]:
        """The derivatives of x, y and the rotation."""
        raise NotImplementedError(f"{type(self).__name__}.rates")

    def __call__(self, u, body):
        dt = body.dt
        k1 = self.rates(u, body.rot)
        if self.integration == "euler":
            dx, dy, turn = (dt * k for k in k1)
        else:
            k2 = self.rates(u, body.rot + dt * k1[2] / 2)
            k3 = self.rates(u, body.rot + dt * k2[2] / 2)
            k4 = self.rates(u, body.rot + dt * k3[2])
            dx, dy, turn = (dt / 6 * (a + 2 * b + 2 * c + d) for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
        force = (Vec(dx, dy) - body.vel * dt) / dt**2 * body.mass
        return force, body.inertia * (turn - body.ang_vel * dt) / dt**2


@dataclass(frozen=True)
class DiffDrive(_Driven):
    """The action is a speed forward and a rate of turning."""

    def rates(self, u, rot):
        return u[:, 0] * jnp.cos(rot), u[:, 0] * jnp.sin(rot), u[:, 1]


@dataclass(frozen=True)
class KinematicBicycle(_Driven):
    """The action is a speed and a steering angle."""

    l_f: float = 0.05  # from the centre to the front axle
    l_r: float = 0.05
    max_steering_angle: float = 0.5

    def rates(self, u, rot):
        speed, steering = u[:, 0], jnp.clip(u[:, 1], -self.max_steering_angle, self.max_steering_angle)
        wheelbase = self.l_f + self.l_r
        slip = jnp.arctan(jnp.tan(steering) * self.l_r / wheelbase)
        turn = speed / wheelbase * jnp.cos(slip) * jnp.tan(steering)
        return speed * jnp.cos(rot + slip), speed * jnp.sin(rot + slip), turn
