"""What JAX carries of an environment that lives in a process of the host, and how a program calls out to it.

The state only says which environment it belongs to and what was last seen of it:

- It cannot be copied, replayed or saved. One that is stepped from anywhere but where it stands (a resumed training, a
  copy of another run) counts as truncated there, and begins a new episode.
- It cannot be drawn from a pool of first states. An episode that ends is followed by the next one in the same call,
  seeded by the step's key; ``AutoReset`` learns what that shows from ``env.reset(begun(state))``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback


class Seen(struct.PyTreeNode):
    """What an environment shows, as far as it differs from step to step."""

    obs: chex.Array  # [A, O]
    alive: chex.Array  # [A]
    mask: chex.Array | None  # [A, N], if the environment has masks
    state: chex.Array | None  # [S], if it has a state of its own


class HostState(struct.PyTreeNode):
    """Where an environment is to be found, and what it has shown."""

    bank: chex.Array  # [] int32: negative if it stands still after its episode
    number: chex.Array  # [] int32, in the bank
    clock: chex.Array  # [] int32: resets and steps so far; from step to step, which keeps these in order
    now: Seen
    first: Seen  # of the next episode, where this one ended


class Lasting(struct.PyTreeNode):
    """A key for environments that begin their next episode by themselves."""

    key: chex.PRNGKey


class Step(struct.PyTreeNode):
    """What a call of the host answers."""

    bank: chex.Array  # [], number and clock: where the environment stands now, which matters if it was lost
    number: chex.Array  # []
    clock: chex.Array  # []
    reward: chex.Array  # [A]
    terminated: chex.Array  # []
    truncated: chex.Array  # []
    lost: chex.Array  # []: it was not where the state said
    last: Seen
    first: Seen


def begun(state: Any) -> HostState:
    """For ``reset``: the next episode of an environment that has ended, in whatever wrappers its state is."""
    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, HostState))
    return next(part for part in parts if isinstance(part, HostState))


def one_call(host: Callable, blank: Callable[[], Any]) -> Callable:
    """``host`` as a JAX function of one environment that is called once for all that are vmapped, in order.

    Its first argument is a scalar of each environment, whose shape is therefore that of the batch. ``host`` answers
    with arrays ``[B, ...]``, a row for each environment, of a tree like ``blank()``.
    """

    def answer(*arguments):
        arguments = [np.asarray(argument) for argument in arguments]
        batch = arguments[0].shape
        return jax.tree.map(lambda x: np.asarray(x).reshape(batch + x.shape[1:]), host(*arguments))

    @custom_vmap
    def call(*arguments):
        batch = arguments[0].shape
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(batch + np.shape(x), x.dtype), blank())
        return io_callback(answer, shapes, *arguments, ordered=True)

    @call.def_vmap
    def batched(size, is_batched, *arguments):
        rows = [
            x if axis else jnp.broadcast_to(x, (size, *x.shape)) for x, axis in zip(arguments, is_batched, strict=True)
        ]
        result = call(*rows)
        return result, jax.tree.map(lambda _: True, result)

    return call
