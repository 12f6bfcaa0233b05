"""Batch sizes, epochs and learning frequency as traced numbers: shares of the largest ones, which are fixed.

A compiled program has one batch size and one number of gradient steps. With ``algo.elastic_batches=true`` only the
first rows of a batch count, and only the first steps of an update: ``hypers.batch_share`` of the rows; on policy
``hypers.epoch_share`` of the epochs, off policy ``hypers.learn_share`` of the gradient steps. What is left out is
computed all the same, so that small shares save no time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs.base import select
from shoal.rl.metrics import Metrics, Table


class Part(struct.PyTreeNode):
    """The rows and steps of an update that count; all of them, at no cost, where they are None."""

    rows: chex.Array | None = None  # [B] bool, the first ones
    steps: chex.Array | None = None  # [S] bool, the first ones

    def alive(self, alive: chex.Array, mortal: bool) -> chex.Array:
        """``[..., B, A]``: nobody lives in a row that does not count.

        Where nobody is ``mortal`` that is known before anything runs: masks vanish, and learners need not count.
        """
        alive = alive if mortal else np.ones(alive.shape, bool)
        return alive if self.rows is None else alive & self.rows[:, None]

    def weight(self, weight: chex.Array) -> chex.Array:
        """Importance weights ``[..., B]``, of which the largest that counts is 1."""
        if self.rows is None:
            return weight
        return weight / jnp.where(self.rows, weight, 0.0).max(axis=-1, keepdims=True)

    def scan(self, step: Callable, carry: Any, xs: Any) -> tuple[Any, Any]:
        """``lax.scan``, where a step that does not count leaves the carry as it is."""
        if self.steps is None:
            return jax.lax.scan(step, carry, xs)

        def body(carry, inputs):
            counts, x = inputs
            new, out = step(carry, x)
            return select(counts, new, carry), out

        return jax.lax.scan(body, carry, (self.steps, xs))

    def mean(self, metrics: Table | Metrics) -> Metrics:
        """The means of ``[S, ...]`` over the steps that count; zero if there are none."""
        if isinstance(metrics, Table):
            if self.steps is None:
                return metrics.mean().columns()
            metrics = metrics.columns()
        if self.steps is None:
            return jax.tree.map(jnp.mean, metrics)
        count = jnp.maximum(self.steps.sum(), 1)
        return jax.tree.map(lambda x: (self.steps * x.reshape(len(x), -1).mean(axis=1)).sum() / count, metrics)

    def ready(self, ready: chex.Array) -> chex.Array:
        """Whether any step of those that are ``ready`` counts."""
        return ready if self.steps is None else ready & self.steps.any()

    def learnt(self, x: chex.Array) -> chex.Array:
        """``[S, ..., B]`` flat, with copies of the first for what does not count: its priority stays."""
        if self.rows is None or self.steps is None:
            return x.reshape(-1)
        x = jnp.where(self.rows, x, x[..., :1])
        return select(self.steps, x, jnp.broadcast_to(x[:1], x.shape)).reshape(-1)


def on_policy(config: Any, hypers: Any, rows: int) -> Part:
    """Of ``epochs`` times ``minibatches`` steps on ``rows`` each."""
    if not config.elastic_batches:
        return Part()
    steps = config.minibatches * _count(hypers.epoch_share, config.epochs)
    return Part(_first(_count(hypers.batch_share, rows), rows), _first(steps, config.epochs * config.minibatches))


def off_policy(config: Any, hypers: Any, updates: chex.Array, steps: int) -> Part:
    """Of ``steps`` gradient steps on ``batch_size`` rows, after so many ``updates``.

    Some updates take a step more than others, so that over all of them they come to the share.
    """
    if not config.elastic_batches:
        return Part()
    before, after = (jnp.floor(hypers.learn_share * steps * n + 1e-3) for n in (updates, updates + 1))
    rows = _first(_count(hypers.batch_share, config.batch_size), config.batch_size)
    return Part(rows, _first(after - before, steps))


def _count(share: chex.Numeric, whole: int) -> chex.Array:
    """How many of the ``whole``, at least one."""
    return jnp.clip(jnp.round(share * whole), 1, whole)


def _first(count: chex.Array, whole: int) -> chex.Array:
    return jnp.arange(whole) < count
