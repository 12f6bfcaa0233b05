"""Where entities start: at random, but not on top of each other."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

TRIES = 32  # proposals for each place


def apart(
    key: chex.PRNGKey,
    count: int,
    least: float,
    low: tuple[float, float],
    high: tuple[float, float],
    occupied: chex.Array | None = None,
) -> chex.Array:
    """``[count, 2]`` uniform places, each at least ``least`` from those before it and from ``occupied [m, 2]``.

    The first of ``TRIES`` proposals that is far enough; where a place is so crowded that none is, the one with the most
    room, so that a reset always ends (VMAS draws on until one fits).
    """
    box = jnp.array([low, high])
    proposals = jax.random.uniform(key, (count * TRIES * 2,)).reshape(count, TRIES, 2) * (box[1] - box[0]) + box[0]
    far = jnp.full((count, 2), 1e6)
    taken = far if occupied is None else jnp.concatenate([occupied, far])  # [m + count, 2]
    start = taken.shape[0] - count

    def place(taken: chex.Array, turn: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, chex.Array]:
        index, options = turn
        away = taken[:, :, None] - options.T  # [m + count, 2, TRIES], proposals last so that the minimum is a fast one
        room = jnp.square(away).sum(axis=1).min(axis=0)  # [TRIES], squared
        enough = room >= least**2
        chosen = options[jnp.where(enough.any(), jnp.argmax(enough), jnp.argmax(room))]
        return jax.lax.dynamic_update_index_in_dim(taken, chosen, index, axis=0), chosen

    return jax.lax.scan(place, taken, (start + jnp.arange(count), proposals))[1]


def uniform(key: chex.PRNGKey, count: int, low: tuple[float, float], high: tuple[float, float]) -> chex.Array:
    """``[count, 2]`` places, one on top of another or not."""
    box = jnp.array([low, high])
    return jax.random.uniform(key, (count * 2,)).reshape(count, 2) * (box[1] - box[0]) + box[0]
