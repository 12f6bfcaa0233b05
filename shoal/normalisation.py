"""Running mean and variance of observations."""

from __future__ import annotations

import chex
import jax.numpy as jnp
from flax import struct


class Stats(struct.PyTreeNode):
    mean: chex.Array  # [O]
    variance: chex.Array  # [O]
    count: chex.Array  # [] float32


def init(size: int) -> Stats:
    """Statistics of nothing yet: :func:`apply` leaves observations as they are."""
    return Stats(jnp.zeros(size), jnp.ones(size), jnp.float32(0.0))


def update(stats: Stats, obs: chex.Array, alive: chex.Array) -> Stats:
    """Merge a batch ``obs [..., A, O]``, counting agents that are ``alive [..., A]`` (Chan et al. 1979)."""
    weight = alive.reshape(-1, 1).astype(jnp.float32)
    rows = obs.reshape(weight.shape[0], -1)
    batch_count = weight.sum()
    safe_count = jnp.maximum(batch_count, 1.0)
    mean = jnp.where(weight > 0, rows, 0.0).sum(axis=0) / safe_count
    variance = jnp.where(weight > 0, jnp.square(rows - mean), 0.0).sum(axis=0) / safe_count
    count = stats.count + batch_count
    safe_total = jnp.maximum(count, 1.0)
    delta = mean - stats.mean
    new_mean = stats.mean + delta * batch_count / safe_total
    spread = stats.variance * stats.count + variance * batch_count
    spread += jnp.square(delta) * stats.count * batch_count / safe_total
    new_variance = jnp.where(count > 0, spread / safe_total, stats.variance)
    return Stats(new_mean, new_variance, count)


def apply(stats: Stats, obs: chex.Array, limit: float = 10.0) -> chex.Array:
    """Observations with mean zero and variance one, clipped to ``limit``."""
    return jnp.clip((obs - stats.mean) / jnp.sqrt(stats.variance + 1e-8), -limit, limit)
