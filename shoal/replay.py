"""Replay inside the compiled program: flashbax's item buffers, behind the few functions that an algorithm needs.

An item is any tree: one transition, or a whole sequence with the memory that it starts from. A buffer is a ring; what
is sampled is uniform over what it holds, or in proportion to ``priority ** PRIORITY_EXPONENT`` (Schaul et al. 2016),
with the weights that correct for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import chex
import flashbax
import jax
import jax.numpy as jnp
from flax import struct

from envs.base import UserError

KINDS = ("uniform", "prioritised")
PRIORITY_EXPONENT = 0.6
SMALLEST_PRIORITY = 1e-6  # what has been learnt perfectly may still be seen again


class Sample(struct.PyTreeNode):
    """``B`` items, with what :meth:`Replay.reprioritise` needs to find them again."""

    items: Any  # [B, ...]
    index: chex.Array  # [B] where they lie
    weight: chex.Array  # [B] importance weights, at most 1; all 1 if uniform


@dataclass(frozen=True)
class Replay:
    """A ring of ``capacity`` items that gives batches of ``batch_size``."""

    kind: str
    capacity: int
    batch_size: int

    @property
    def _buffer(self):
        sizes = {"max_length": self.capacity, "min_length": 1, "sample_batch_size": self.batch_size}
        if self.kind == "uniform":
            return flashbax.make_item_buffer(**sizes, add_batches=True)
        device = jax.default_backend()
        return flashbax.make_prioritised_item_buffer(
            **sizes, add_batches=True, priority_exponent=PRIORITY_EXPONENT, device=device
        )

    def init(self, items: Any) -> Any:
        """An empty buffer for items like ``items [B, ...]`` (arrays or their shapes)."""
        return self._buffer.init(jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), items))

    def add(self, state: Any, items: Any) -> Any:
        """Append ``items [B, ...]``; the oldest go where there is no room."""
        return self._buffer.add(state, items)

    def count(self, state: Any) -> chex.Array:
        """How many items there are."""
        return jnp.where(state.is_full, self.capacity, state.current_index)

    def sample(self, state: Any, key: chex.PRNGKey, beta: chex.Numeric = 1.0) -> Sample:
        """A batch; ``beta`` is how much of the bias of prioritised sampling the weights take back."""
        drawn = self._buffer.sample(state, key)
        if self.kind == "uniform":
            return Sample(drawn.experience, jnp.zeros(self.batch_size, jnp.int32), jnp.ones(self.batch_size))
        weight = jnp.power(drawn.probabilities * self.count(state), -beta)
        return Sample(drawn.experience, drawn.indices, weight / weight.max())

    def reprioritise(self, state: Any, index: chex.Array, priority: chex.Array, when: chex.Array) -> Any:
        """Set the priorities of the items at ``index [B]``, ``when`` a flag holds; nothing if uniform."""
        if self.kind == "uniform":
            return state
        keep = state.sum_tree_state
        priority = jnp.maximum(priority, SMALLEST_PRIORITY)
        tree = jax.lax.cond(
            when, lambda: self._buffer.set_priorities(state, index, priority).sum_tree_state, lambda: keep
        )
        return state.replace(sum_tree_state=tree)


def make(kind: str, buffer_size: int, steps_per_item: int, batch_size: int, added: int) -> Replay:
    """Room for ``buffer_size`` environment steps, ``steps_per_item`` of them an item and ``added`` items at a time."""
    capacity = int(buffer_size) // steps_per_item
    if capacity < max(batch_size, added):
        least = max(batch_size, added) * steps_per_item
        raise UserError(
            f"algo.buffer_size={buffer_size}: must hold a batch and an update's experience, at least {least} steps here"
        )
    return Replay(kind, capacity, batch_size)
