"""Operations on arrays of many environments, which stand on the last axis.

Shapes: A allies, M enemies, U = A + M units, E environments.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from itertools import accumulate

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap


def batched_last(function: Callable) -> Callable:
    """A function of arrays ``[..., E]``, as one of arrays without the last axis; ``vmap`` puts its axis there."""

    @custom_vmap
    def one(*arguments):
        return jax.tree.map(lambda x: x[..., 0], function(*jax.tree.map(lambda x: x[..., None], arguments)))

    @one.def_vmap
    def many(size, in_batched, *arguments):
        def last(x, is_batched):
            return jnp.moveaxis(x, 0, -1) if is_batched else jnp.broadcast_to(x[..., None], (*x.shape, size))

        results = function(*jax.tree.map(last, arguments, tuple(in_batched)))
        results = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), results)
        return results, jax.tree.map(lambda _: True, results)

    return one


def apart(x: chex.Array, axis: int) -> list[chex.Array]:
    """The slices along an axis."""
    return [jax.lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def fold(x: chex.Array, axis: int, function: Callable = operator.add) -> chex.Array:
    """The sum (or another fold) over a short axis, written out: XLA's own reductions are slow there on a CPU."""
    return reduce(function, apart(x, axis))


def pick(mask: chex.Array, uniform: chex.Array) -> chex.Array:
    """One of those in the mask ``[M, A, E]`` for each of ``M``, all alike, by ``uniform [M, E]``; as a mask."""
    rank = jnp.stack(list(accumulate(apart(mask.astype(jnp.float32), 1))), axis=1)
    wanted = ((1.0 - uniform) * rank[:, -1])[:, None]
    return mask & (rank >= wanted) & (rank - 1.0 < wanted)


def heading(action: chex.Array) -> chex.Array:
    """The direction of a move, ``[2, U, E]``."""
    plus, minus = np.array([1, 0])[:, None, None], np.array([3, 2])[:, None, None]  # east and north, west and south
    return (action == plus).astype(jnp.float32) - (action == minus)


def distance(a: chex.Array, b: chex.Array) -> chex.Array:
    """From each of ``a [2, n, E]`` to each of ``b [2, m, E]``: ``[n, m, E]``."""
    way = a[:, :, None] - b[:, None]
    return jnp.sqrt(way[0] ** 2 + way[1] ** 2)


def push(pos: chex.Array, alive: chex.Array, radius: chex.Array) -> chex.Array:
    """Living units that overlap move apart, by half of the overlap each; ``pos [2, U, E]``."""
    way = pos[:, :, None] - pos[:, None]  # [2, U, U, E]
    far = jnp.sqrt(way[0] ** 2 + way[1] ** 2) + np.eye(pos.shape[1], dtype=np.float32)[..., None] + 1e-6
    overlap = jax.nn.relu((radius[:, None] + radius) / far - 1.0)
    overlap = jnp.where(alive[:, None] & alive, overlap, 0.0)
    return pos + fold(way * overlap, 2) / 2
