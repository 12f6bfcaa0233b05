"""Exploration of the off-policy algorithms: schedules and epsilon-greedy choice."""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp


def anneal(start: chex.Numeric, end: chex.Numeric, fraction: chex.Numeric, progress: chex.Numeric) -> chex.Array:
    """From ``start`` to ``end``, linearly over the first ``fraction`` of a training that is at ``progress``."""
    return start + (end - start) * jnp.minimum(progress / jnp.maximum(fraction, 1e-8), 1.0)


def choice_noise(key: chex.PRNGKey, shape: tuple[int, ...], actions: int) -> chex.Array:
    """What :func:`epsilon_greedy` needs: uniform, ``shape + [N + 1]``, drawn flat."""
    shape = (*shape, actions + 1)
    return jax.random.uniform(key, (math.prod(shape),)).reshape(shape)


def epsilon_greedy(values: chex.Array, mask: chex.Array, epsilon: chex.Numeric, noise: chex.Array) -> chex.Array:
    """The best legal action of ``values [..., N]``; with probability ``epsilon`` any legal one, each as likely."""
    explore = noise[..., -1:] < epsilon
    return best(jnp.where(explore, noise[..., :-1], values), mask)


def best(values: chex.Array, mask: chex.Array) -> chex.Array:
    """The best legal action of ``values [..., N]``."""
    return jnp.argmax(jnp.where(mask, values, -jnp.inf), axis=-1).astype(jnp.int32)


def taken(values: chex.Array, action: chex.Array) -> chex.Array:
    """``values [..., N]`` of the ``action [...]``; a comparison fuses on a CPU where a gather does not."""
    chosen = action[..., None] == jnp.arange(values.shape[-1])
    return jnp.where(chosen, values, 0.0).sum(-1)
