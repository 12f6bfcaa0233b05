"""Running mean and variance: of observations, and of returns for the critic."""

from __future__ import annotations

from typing import Any

import chex
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.rl import learners
from shoal.rl.groups import Groups

VALUE_NORMS = ("none", "running", "popart")
LIMIT, EPSILON = 10.0, 1e-8  # of normalised observations, and what is added to their variance
BATCHES_KEPT = 100  # so many batches weigh in the statistics of returns, which move as the policy learns


class Stats(struct.PyTreeNode):
    mean: chex.Array  # [O]
    variance: chex.Array  # [O]
    count: chex.Array  # [] float32


def init(size: int, used: bool = True) -> Stats | None:
    """Statistics of nothing yet; None if they will never be ``used``. :func:`apply` leaves observations as they are."""
    return Stats(jnp.zeros(size), jnp.ones(size), jnp.float32(0.0)) if used else None


def update(stats: Stats | None, obs: chex.Array, alive: chex.Array, axis_name: str | None = None) -> Stats | None:
    """Merge a batch ``obs [..., A, O]``, counting agents that are ``alive [..., A]`` (Chan et al. 1979).

    ``axis_name`` is that of the learners of a run, if there are several.
    """
    if stats is None:
        return None
    weight = alive.reshape(-1, 1).astype(jnp.float32)
    rows = obs.reshape(weight.shape[0], -1)
    batch_count = learners.total(weight.sum(), axis_name)
    safe_count = jnp.maximum(batch_count, 1.0)
    mean = learners.total(jnp.where(weight > 0, rows, 0.0).sum(axis=0), axis_name) / safe_count
    variance = learners.total(jnp.where(weight > 0, jnp.square(rows - mean), 0.0).sum(axis=0), axis_name) / safe_count
    count = stats.count + batch_count
    safe_total = jnp.maximum(count, 1.0)
    delta = mean - stats.mean
    new_mean = stats.mean + delta * batch_count / safe_total
    spread = stats.variance * stats.count + variance * batch_count
    spread += jnp.square(delta) * stats.count * batch_count / safe_total
    new_variance = jnp.where(count > 0, spread / safe_total, stats.variance)
    return Stats(new_mean, new_variance, count)


def apply(stats: Stats | None, obs: chex.Array, limit: float = LIMIT) -> chex.Array:
    """Observations with mean zero and variance one, clipped to ``limit``; without statistics as they are."""
    if stats is None:
        return obs
    return jnp.clip((obs - stats.mean) / jnp.sqrt(stats.variance + EPSILON), -limit, limit)


def init_values(policies: int, kind: str = "running") -> Stats | None:
    """Statistics of the returns of each policy's agents, ``[P]``: values in units of the reward, unless updated.

    None for the ``kind`` that keeps none: :func:`to_reward_units` and its inverse then leave values as they are.
    """
    if kind == "none":
        return None
    return Stats(jnp.zeros(policies), jnp.ones(policies), jnp.zeros(policies))


def update_values(stats: Stats, target: chex.Array, alive: chex.Array, policies: Groups) -> Stats:
    """Mix the ``target [..., A]`` of a batch in; the newest batch weighs at least ``1 / BATCHES_KEPT``.

    A policy whose agents are all dead in it keeps what it has.
    """
    mean = policies.mean_of_all(target, alive)  # [P]
    square = policies.mean_of_all(jnp.square(target - mean[policies.ids]), alive)
    living = policies.mean_of_all(jnp.ones_like(target), alive)  # [P]: one, or zero if there are none
    count = jnp.minimum(stats.count + living, BATCHES_KEPT)
    share = living / jnp.maximum(count, 1.0)
    delta = mean - stats.mean
    variance = (1.0 - share) * (stats.variance + share * jnp.square(delta)) + share * square
    return Stats(stats.mean + share * delta, jnp.maximum(variance, 1e-4), count)


def to_reward_units(stats: Stats | None, value: chex.Array, policy_of: np.ndarray) -> chex.Array:
    """What a critic's output ``[..., A]`` means."""
    return value if stats is None else value * jnp.sqrt(stats.variance)[policy_of] + stats.mean[policy_of]


def from_reward_units(stats: Stats | None, value: chex.Array, policy_of: np.ndarray) -> chex.Array:
    """What a critic should say for ``value [..., A]``."""
    return value if stats is None else (value - stats.mean[policy_of]) / jnp.sqrt(stats.variance)[policy_of]


def keep_outputs(head: dict[str, Any], old: Stats, new: Stats) -> dict[str, Any]:
    """PopArt (van Hasselt et al. 2016): a critic's last layer ``[P, ...]`` such that new statistics change no value."""
    ratio = jnp.sqrt(old.variance / new.variance)[:, None]
    shift = ((old.mean - new.mean) / jnp.sqrt(new.variance))[:, None]
    return {"kernel": head["kernel"] * ratio[..., None], "bias": head["bias"] * ratio + shift}


def follow_returns(
    kind: str,
    stats: Stats | None,
    critic: dict[str, Any],
    batch: Any,
    policies: Groups,
) -> tuple[Stats | None, dict[str, Any], Any]:
    """Let the critic's units follow the returns of a ``batch``.

    ``batch.value`` and ``batch.target`` are in units of the reward, ``batch.earning`` says which of them count. Gives
    the statistics, the critic's parameters (which ``popart`` adapts) and the batch in the critic's units. Its ``value``
    is what the critic outputs before learning, so that clipping is centred on that.
    """
    if kind == "none" or stats is None:
        return stats, critic, batch
    new = update_values(stats, batch.target, batch.earning, policies)
    if kind == "popart":
        critic = critic | {"head": keep_outputs(critic["head"], stats, new)}
    value = from_reward_units(new if kind == "popart" else stats, batch.value, policies.ids)
    return new, critic, batch.replace(value=value, target=from_reward_units(new, batch.target, policies.ids))
