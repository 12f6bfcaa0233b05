"""Adam with clipped gradients, for every policy by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import chex
import jax
import optax

from shoal.rl import learners


@dataclass(frozen=True)
class Optimiser:
    """Adam for parameters ``[P, ...]``: each policy has moments of its own, and its gradients are clipped alone.

    Its step size and the limit of the gradients are traced numbers, given at every step.
    """

    eps: float = 1e-5
    axis_name: str | None = None  # of the learners, whose gradients are averaged (shoal.rl.learners)
    axes: int = 1  # leading axes of the parameters; 2 for several critics of each policy, ``[C, P, ...]``

    def _made(self, lr: chex.Numeric, max_grad_norm: chex.Numeric) -> optax.GradientTransformation:
        # One vector for all parameters of a policy: fewer, larger operations.
        return optax.flatten(optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(lr, eps=self.eps)))

    def _each(self, function: Callable) -> Callable:
        """``function`` of one policy's parameters, over the leading axes."""
        for _ in range(self.axes):
            function = jax.vmap(function)
        return function

    def init(self, params: Any) -> optax.OptState:
        """The moments before the first step, ``[P, ...]``."""
        return self._each(self._made(0.0, 0.0).init)(params)

    def step(
        self, grads: Any, opt_state: optax.OptState, params: Any, lr: chex.Numeric, max_grad_norm: chex.Numeric
    ) -> tuple[Any, optax.OptState]:
        """Parameters and moments after one step along ``grads``."""
        optimiser = self._made(lr, max_grad_norm)
        updates, opt_state = self._each(optimiser.update)(learners.mean(grads, self.axis_name), opt_state)
        return optax.apply_updates(params, updates), opt_state


def linear(start: chex.Numeric, end_factor: chex.Numeric, progress: chex.Numeric) -> chex.Array:
    """``start`` at progress 0 and ``start * end_factor`` at progress 1, on a straight line; constant after it."""
    return start * (1.0 + jax.numpy.minimum(progress, 1.0) * (end_factor - 1.0))
