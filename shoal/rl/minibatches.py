"""Gradient steps on shuffled minibatches of one rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax

from shoal.rl import shares
from shoal.rl.metrics import Metrics, Table
from shoal.rl.shuffle import permutations


def over_minibatches(
    gradient_step: Callable[[Any, Any], tuple[Any, Metrics]],
    carry: Any,
    batch: Any,
    key: chex.PRNGKey,
    config: Any,
    hypers: Any,
    *,
    masks: Mapping[str, bool],
    axis: int = 0,
) -> tuple[Any, Metrics]:
    """``epochs`` passes over a ``batch``, cut in ``minibatches`` at random along ``axis``.

    ``gradient_step(carry, minibatch) -> carry, metrics`` is called for each; gives the last carry and mean metrics.
    ``masks`` names the fields of a batch that say which agents count in a row, and whether they can ever be False.
    With ``algo.elastic_batches`` only some rows and some steps count (``shoal.rl.shares``): nobody counts in others.
    """
    size = jax.tree.leaves(batch)[0].shape[axis]
    part = shares.on_policy(config, hypers, rows=size // config.minibatches)

    def step(carry: Any, index: chex.Array) -> tuple[Any, Table]:
        minibatch = jax.tree.map(lambda x: x[(slice(None),) * axis + (index,)], batch)
        counting = {name: part.alive(getattr(minibatch, name), varies) for name, varies in masks.items()}
        carry, metrics = gradient_step(carry, minibatch.replace(**counting))
        return carry, Table.of(metrics)

    order = permutations(key, config.epochs, size).reshape(config.epochs * config.minibatches, -1)
    carry, metrics = part.scan(step, carry, order)
    return carry, part.mean(metrics)
