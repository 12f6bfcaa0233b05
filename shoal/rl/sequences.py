"""Rollouts ``[T, E, ...]`` cut to sequences ``[L, B, ...]``, with the true successor of every step.

The successor of a step is the next row. After a truncation it is the episode's last observation, and after a sequence's
last step what comes next, and no row holds these. A sequence therefore has ``K`` *finals*: the views that it breaks off
with, and the steps ``at`` which it does (``L`` for those that are not needed); its last step is always one of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from shoal.envs.base import Env
from shoal.nn.memory import in_sequences


def most_finals(length: int, env: Env) -> int:
    """``K``: a time limit of ``H`` steps strikes at most ``ceil((L - 1) / H)`` times before the last step.

    Where all episodes are of ``H`` steps and sequences of whole episodes, the last step is one of the ``L / H``.
    """
    if env.host:
        return length
    if not env.terminates and length % env.horizon == 0:
        return length // env.horizon
    return -(-(length - 1) // env.horizon) + 1


def finals(truncated: chex.Array, last: Any, length: int, count: int) -> tuple[chex.Array, Any]:
    """Where sequences break off, ``at [K, B]``, and the ``last`` views ``[T, E, ...]`` there, ``[K, B, ...]``."""
    truncated, last = in_sequences((truncated, last), length)
    find = partial(jnp.nonzero, size=count - 1, fill_value=length)
    inside = jax.vmap(find, in_axes=1, out_axes=1)(truncated[:-1])[0]  # one that cuts the last step is there anyway
    at = jnp.concatenate([inside, jnp.full_like(inside, length - 1, shape=(1, truncated.shape[1]))])
    return at, at_finals(last, at)


def successors(x: Any, at: chex.Array, final: Any) -> Any:
    """What follows each step: of ``x [L, B, ...]`` the next row, or ``final [K, B, ...]`` where it breaks off."""
    column = jnp.arange(at.shape[1])
    return jax.tree.map(lambda row, end: jnp.roll(row, -1, axis=0).at[at, column].set(end, mode="drop"), x, final)


def at_finals(x: Any, at: chex.Array) -> Any:
    """``x [L, B, ...]`` where sequences break off, ``[K, B, ...]``; anything where that is not needed."""
    return jax.tree.map(lambda row: row.at[at, jnp.arange(at.shape[1])].get(mode="clip"), x)


def swap(tree: Any) -> Any:
    """Sequences first ``[B, L, ...]``, as replay keeps them, or time first ``[L, B, ...]``, as networks read them."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)
