"""Means and sums over the learners that train one run together (``shoal.run.learners``).

``axis_name`` is their axis in the program that is traced; None where a run has one learner.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.flatten_util


def mean(tree: Any, axis_name: str | None) -> Any:
    """The mean of a tree over the learners of a run, in one exchange; the ``tree`` itself where there is one."""
    if axis_name is None:
        return tree
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, axis_name))


def total(x: chex.Array, axis_name: str | None) -> chex.Array:
    """The sum over the learners of a run."""
    return x if axis_name is None else jax.lax.psum(x, axis_name)
