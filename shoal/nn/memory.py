"""Recurrent layers over time: GRU and LSTM.

Each takes the memory before the first step ``[..., H]``, the inputs ``x [T, ..., I]`` and ``is_first [T, ..., 1]``, and
gives the memory *after* every step and the outputs ``[T, ..., H]``. Memory is zeroed before a step whose ``is_first``
is set, so that none crosses an episode. The inputs of all steps are projected in one matrix product; only the product
with the memory itself stays in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from shoal.nn.networks import Dense, add_bias, matmul, orthogonal

Gates = tuple[chex.Array, chex.Array, chex.Array]  # of reset, update and new memory


def gates(count: int):
    """An initialiser ``[I, count * H]``: an orthogonal block for every gate."""

    def init(key: chex.PRNGKey, shape: tuple[int, int], dtype: Any = jnp.float32) -> chex.Array:
        block = partial(orthogonal(), shape=(shape[0], shape[1] // count), dtype=dtype)
        return jnp.concatenate([block(k) for k in jax.random.split(key, count)], axis=1)

    return init


@jax.custom_vjp
def gru_scan(kernels: Gates, bias: chex.Array, x: Gates, is_first: chex.Array, h: chex.Array) -> chex.Array:
    r"""The GRU's loop (Cho et al. 2014): projected ``x [T, B, H]`` per gate, ``is_first [T, B, 1]``, ``h [B, H]``.

    .. math::
        r = \sigma(x_r + h U_r), \quad z = \sigma(x_z + h U_z), \quad
        n = \tanh(x_n + r (h U_n + b)), \quad h' = (1 - z)\,n + z\,h

    Its own gradient: the loop backwards finds what each step's gates get, and the kernels' gradients are one product
    each over all steps afterwards, instead of a small one added up in every step. Gates are arrays of their own: slices
    of a wide one make slow loops of XLA's CPU backend.
    """
    return _gru_forward(kernels, bias, x, is_first, h)[0]


def _gru_forward(kernels, bias, x, is_first, h):
    def step(h, inputs):
        (x_r, x_z, x_n), first_t = inputs
        h = jnp.where(first_t, 0.0, h)
        u_r, u_z, u_n = (h @ kernel for kernel in kernels)
        r, z, m = jax.nn.sigmoid(x_r + u_r), jax.nn.sigmoid(x_z + u_z), u_n + bias
        n = jnp.tanh(x_n + r * m)
        after = n + z * (h - n)
        return after, (after, (h, r, z, m, n))

    _, (after, kept) = jax.lax.scan(step, h, (x, is_first))
    return after, (kernels, is_first, kept)


def _gru_backward(residuals, grad):
    kernels, is_first, kept = residuals
    transposed = jax.lax.optimization_barrier([kernel.T for kernel in kernels])

    def step(d_after, inputs):
        grad_t, first_t, (h, r, z, m, n) = inputs
        d_after = d_after + grad_t
        d_n = d_after * (1.0 - z) * (1.0 - n * n)
        d_r = d_n * m * r * (1.0 - r)
        d_z = d_after * (h - n) * z * (1.0 - z)
        d_gates = (d_r, d_z, d_n * r)
        d_h = d_after * z + sum(d @ kernel for d, kernel in zip(d_gates, transposed, strict=True))
        return jnp.where(first_t, 0.0, d_h), (d_gates, d_n)

    d_h, (d_gates, d_n) = jax.lax.scan(step, jnp.zeros_like(grad[0]), (grad, is_first, kept), reverse=True)
    width = grad.shape[-1]
    before = kept[0].reshape(-1, width)
    d_kernels = [jax.vjp(matmul, before, k)[1](d.reshape(-1, width))[1] for k, d in zip(kernels, d_gates, strict=True)]
    d_r, d_z, d_u = d_gates
    return tuple(d_kernels), d_u.sum(axis=(0, 1)), (d_r, d_z, d_n), None, d_h


gru_scan.defvjp(_gru_forward, _gru_backward)


class GRU(nn.Module):
    """A gated recurrent unit; its memory is ``[..., H]``."""

    width: int

    @nn.compact
    def __call__(self, memory: chex.Array, x: chex.Array, is_first: chex.Array) -> tuple[chex.Array, chex.Array]:
        kernels = tuple(self.param(f"kernel_{gate}", orthogonal(), (self.width, self.width)) for gate in "rzn")
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        inputs = [Dense(self.width, scale=1.0, name=f"input_{gate}") for gate in "rzn"]
        steps, rows = x.shape[0], memory.size // self.width  # T, B
        first, h = is_first.reshape(steps, rows, 1), memory.reshape(rows, -1)
        if steps == 1:
            memories = gru_step(kernels, bias, [layer.weights(x.shape[-1]) for layer in inputs], x, first, h)
        else:
            flat = tuple(layer(x).reshape(steps, rows, -1) for layer in inputs)
            memories = gru_scan(kernels, bias, flat, first, h)
        memories = memories.reshape(*x.shape[:-1], self.width)
        return memories, memories


def gru_step(
    kernels: Gates, bias: chex.Array, inputs: Sequence[tuple], x: chex.Array, is_first: chex.Array, h: chex.Array
) -> chex.Array:
    """A single step: of few rows, for which two wide products cost less than six small ones."""
    h = jnp.where(is_first[0], 0.0, h)
    kernel, biases = (jnp.concatenate(parts, axis=-1) for parts in zip(*inputs, strict=True))
    x_r, x_z, x_n = jnp.split(add_bias(matmul(x.reshape(-1, x.shape[-1]), kernel), biases), 3, axis=-1)
    u_r, u_z, u_n = jnp.split(matmul(h, jnp.concatenate(kernels, axis=-1)), 3, axis=-1)
    r, z = jax.nn.sigmoid(x_r + u_r), jax.nn.sigmoid(x_z + u_z)
    n = jnp.tanh(x_n + r * add_bias(u_n, bias))
    return n + z * (h - n)


class LSTM(nn.Module):
    """A long short-term memory (Hochreiter and Schmidhuber 1997); its memory is the pair of cell and output."""

    width: int

    @nn.compact
    def __call__(self, memory: tuple, x: chex.Array, is_first: chex.Array) -> tuple[tuple, chex.Array]:
        kernel = self.param("kernel", gates(4), (self.width, 4 * self.width))
        x = Dense(4 * self.width, kernel_init=gates(4), name="input")(x)

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


MEMORIES = {"gru": GRU, "lstm": LSTM}


def initial(network: str, width: int, shape: tuple[int, ...]) -> Any:
    """A memory of nothing, for rows of this ``shape``."""
    zeros = jnp.zeros((*shape, width))
    return {"gru": zeros, "lstm": (zeros, zeros)}.get(network, ())


def output_of(network: str, memory: Any) -> chex.Array:
    """What a layer gave in a step, from its memory after it."""
    return memory[1] if network == "lstm" else memory


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
