"""Rollouts ``[T, E, ...]`` cut to sequences ``[L, B, ...]``, with the true successor of every step.

The successor of a step is the next row, but after a truncation it is the episode's last observation, which no row
holds. A sequence of ``L`` steps therefore has ``L + 1`` rows and ``K`` *finals*: the last views of the episodes that
were truncated inside it, and the steps ``at`` which they were (``L`` where there was none). A time limit of ``H`` steps
cannot strike more than ``K = ceil(L / H)`` times.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.memory import in_sequences


def rows(steps: Any, after: Any, length: int) -> Any:
    """``steps [T, E, ...]`` and the row ``after [E, ...]`` them as ``[L + 1, B, ...]``: pieces share their edges."""

    def cut(x, last):
        every = jnp.concatenate([x, last[None]])
        index = np.arange(length + 1)[:, None] + np.arange(0, x.shape[0], length)  # [L + 1, T / L]
        return every[index].reshape(length + 1, -1, *x.shape[2:])

    return jax.tree.map(cut, steps, after)


def finals(truncated: chex.Array, last: Any, length: int, count: int) -> tuple[chex.Array, Any]:
    """When sequences were truncated, ``at [K, B]``, and the ``last`` views ``[T, E, ...]`` then, ``[K, B, ...]``."""
    truncated, last = in_sequences((truncated, last), length)
    at = jax.vmap(partial(jnp.nonzero, size=count, fill_value=length), in_axes=1, out_axes=1)(truncated)[0]
    column = jnp.arange(truncated.shape[1])
    return at, jax.tree.map(lambda x: x.at[at, column].get(mode="clip"), last)


def successors(x: Any, at: chex.Array, final: Any) -> Any:
    """What follows each step: of ``x [L + 1, B, ...]`` the next row, or ``final [K, B, ...]`` at a truncation."""
    column = jnp.arange(at.shape[1])
    return jax.tree.map(lambda row, end: row[1:].at[at, column].set(end, mode="drop"), x, final)


def at_finals(x: Any, at: chex.Array) -> Any:
    """``x [L + 1, B, ...]`` at the truncations, ``[K, B, ...]``; anything where there was none."""
    return jax.tree.map(lambda row: row[at, jnp.arange(at.shape[1])], x)


def swap(tree: Any) -> Any:
    """Sequences first ``[B, L, ...]``, as replay keeps them, or time first ``[L, B, ...]``, as networks read them."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)
