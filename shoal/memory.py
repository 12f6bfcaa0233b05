"""Recurrent layers over time: GRU and LSTM.

Each takes the memory before the first step ``[..., H]``, the inputs ``x [T, ..., I]`` and ``is_first [T, ..., 1]``, and
gives the memory *after* every step and the outputs ``[T, ..., H]``. Memory is zeroed before a step whose ``is_first``
is set, so that none crosses an episode. The inputs of all steps are projected in one matrix product; only the product
with the memory itself stays in the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from shoal.networks import Dense, matmul, orthogonal


def gates(count: int):
    """An initialiser ``[I, count * H]``: an orthogonal block for every gate."""

    def init(key: chex.PRNGKey, shape: tuple[int, int], dtype: Any = jnp.float32) -> chex.Array:
        block = partial(orthogonal(), shape=(shape[0], shape[1] // count), dtype=dtype)
        return jnp.concatenate([block(k) for k in jax.random.split(key, count)], axis=1)

    return init


@jax.custom_vjp
def gru_scan(kernel: chex.Array, bias: chex.Array, x: chex.Array, is_first: chex.Array, h: chex.Array) -> chex.Array:
    r"""The GRU's loop (Cho et al. 2014): projected ``x [T, B, 3H]``, ``is_first [T, B, 1]``, ``h [B, H]``.

    .. math::
        r = \sigma(x_r + h U_r), \quad z = \sigma(x_z + h U_z), \quad
        n = \tanh(x_n + r (h U_n + b)), \quad h' = (1 - z)\,n + z\,h

    Its own gradient: the loop backwards finds what each step's gates get, and the kernel's gradient is one product
    over all steps afterwards, instead of a small one added up in every step.
    """
    return _gru_forward(kernel, bias, x, is_first, h)[0]


def _gru_forward(kernel, bias, x, is_first, h):
    def step(h, inputs):
        x_t, first_t = inputs
        h = jnp.where(first_t, 0.0, h)
        x_r, x_z, x_n = jnp.split(x_t, 3, axis=-1)
        u_r, u_z, u_n = jnp.split(h @ kernel, 3, axis=-1)
        r, z, m = jax.nn.sigmoid(x_r + u_r), jax.nn.sigmoid(x_z + u_z), u_n + bias
        n = jnp.tanh(x_n + r * m)
        after = n + z * (h - n)
        return after, (after, (h, r, z, m, n))

    _, (after, kept) = jax.lax.scan(step, h, (x, is_first))
    return after, (kernel, is_first, kept)


def _gru_backward(residuals, grad):
    kernel, is_first, kept = residuals
    transposed = jax.lax.optimization_barrier(kernel.T)

    def step(d_after, inputs):
        grad_t, first_t, (h, r, z, m, n) = inputs
        d_after = d_after + grad_t
        d_n = d_after * (1.0 - z) * (1.0 - n * n)
        d_r = d_n * m * r * (1.0 - r)
        d_z = d_after * (h - n) * z * (1.0 - z)
        d_u = jnp.concatenate([d_r, d_z, d_n * r], axis=-1)
        d_h = jnp.where(first_t, 0.0, d_after * z + d_u @ transposed)
        return d_h, (d_u, d_n)

    d_h, (d_u, d_n) = jax.lax.scan(step, jnp.zeros_like(grad[0]), (grad, is_first, kept), reverse=True)
    width = kernel.shape[0]
    before = kept[0].reshape(-1, width)
    d_kernel = jax.vjp(matmul, before, kernel)[1](d_u.reshape(-1, 3 * width))[1]
    d_x = jnp.concatenate([d_u[..., : 2 * width], d_n], axis=-1)
    return d_kernel, d_u[..., 2 * width :].sum(axis=(0, 1)), d_x, None, d_h


gru_scan.defvjp(_gru_forward, _gru_backward)


class GRU(nn.Module):
    """A gated recurrent unit; its memory is ``[..., H]``."""

    width: int

    @nn.compact
    def __call__(self, memory: chex.Array, x: chex.Array, is_first: chex.Array) -> tuple[chex.Array, chex.Array]:
        kernel = self.param("kernel", gates(3), (self.width, 3 * self.width))
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        x = Dense(3 * self.width, init=gates(3), name="input")(x)
        steps, rows = x.shape[0], memory.size // self.width  # T, B
        flat = [x.reshape(steps, rows, -1), is_first.reshape(steps, rows, 1), memory.reshape(rows, -1)]
        memories = gru_scan(kernel, bias, *flat).reshape(*x.shape[:-1], self.width)
        return memories, memories


class LSTM(nn.Module):
    """A long short-term memory (Hochreiter and Schmidhuber 1997); its memory is the pair of cell and output."""

    width: int

    @nn.compact
    def __call__(self, memory: tuple, x: chex.Array, is_first: chex.Array) -> tuple[tuple, chex.Array]:
        kernel = self.param("kernel", gates(4), (self.width, 4 * self.width))
        x = Dense(4 * self.width, init=gates(4), name="input")(x)

        def step(memory, inputs):
            x_t, first_t = inputs
            cell, h = (jnp.where(first_t, 0.0, part) for part in memory)
            i, f, g, o = jnp.split(x_t + h @ kernel, 4, axis=-1)
            # A forget gate that starts open (Jozefowicz et al. 2015).
            cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            memory = (cell, jax.nn.sigmoid(o) * jnp.tanh(cell))
            return memory, memory

        _, memories = jax.lax.scan(step, memory, (x, is_first))
        return memories, memories[1]


class NoMemory(nn.Module):
    """A network that forgets everything, where one with a memory could stand."""

    width: int

    @nn.compact
    def __call__(self, memory: tuple, x: chex.Array, is_first: chex.Array) -> tuple[tuple, chex.Array]:
        return memory, x


MEMORIES = {"gru": GRU, "lstm": LSTM}


def initial(network: str, width: int, shape: tuple[int, ...]) -> Any:
    """A memory of nothing, for rows of this ``shape``."""
    zeros = jnp.zeros((*shape, width))
    return {"gru": zeros, "lstm": (zeros, zeros)}.get(network, ())


def one_step(apply: Callable[[Any, Any], tuple[Any, chex.Array]], memory: Any, x: Any) -> tuple[Any, chex.Array]:
    """``apply(memory, x [T, ...])`` for a single step ``x [...]``."""
    return jax.tree.map(lambda y: y[0], apply(memory, jax.tree.map(lambda y: y[None], x)))


def before_chunks(first: Any, after: Any, length: int) -> Any:
    """``[T / length, E, ...]``: the memory before each piece, from the ``first`` and those ``after`` every step."""
    return jax.tree.map(lambda m, ms: jnp.concatenate([m[None], ms[length - 1 : -1 : length]]), first, after)


def in_sequences(tree: Any, length: int) -> Any:
    """``[T, E, ...]`` cut to sequences ``[length, T / length * E, ...]``."""

    def cut(x):
        pieces = x.reshape(-1, length, *x.shape[1:])
        return jnp.moveaxis(pieces, 1, 0).reshape(length, -1, *x.shape[2:])

    return jax.tree.map(cut, tree)
