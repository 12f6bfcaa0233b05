"""The PID controller that turns a wanted velocity into a force."""

from __future__ import annotations

from dataclasses import dataclass

import chex
import jax.numpy as jnp

from shoal.envs.vmas.geometry import distance


@dataclass(frozen=True)
class VelocityController:
    r"""For each agent, with :math:`e = u - v` the error of its velocity and :math:`I` its clipped sum:

    .. math:: f = m K \left(e + \frac{I}{T_i} + T_d \frac{e - e'}{dt}\right)

    Its memory is ``accum_errs`` and ``prev_err``, both ``[A, 2]``.
    """

    gain: float
    integral_time: float
    derivative_time: float
    max_force: float  # the smaller of the agent's limits
    dt: float
    mass: chex.Numeric = 1.0

    @property
    def most(self) -> float:
        """What the sum of errors is clipped to: half of the force that there is."""
        return 0.5 * self.max_force * self.integral_time / (self.dt * self.gain)

    def __call__(
        self, wanted: chex.Array, vel: chex.Array, accum: chex.Array, prev: chex.Array
    ) -> tuple[chex.Array, chex.Array, chex.Array]:
        """The force ``[A, 2]``, and the two memories."""
        error = wanted - vel
        accum = jnp.clip(accum + self.dt * error, -self.most, self.most)
        rate = (error - prev) / self.dt
        force = self.gain * (error + accum / self.integral_time + self.derivative_time * rate) * self.mass
        return force, accum, error


def forget_at_rest(wanted: chex.Array, memory: chex.Array) -> chex.Array:
    """Zero where nothing is wanted of an agent: ``[A, 2]`` both."""
    still = distance(wanted, jnp.zeros_like(wanted)) < 1e-3
    return jnp.where(still[:, None], 0.0, memory)
