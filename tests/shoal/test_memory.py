"""Recurrent layers against plain loops, their gradients against autodiff, and sequences against slices."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nn import memory

STEPS, ROWS, WIDTH, INPUT = 7, (2, 3), 5, 4  # a memory wider than its input


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def gru_step(params, h, x):
    """Cho et al. 2014, as flax and PyTorch have it: the reset gate behind the product."""
    x_r, x_z, x_n = (x @ params[f"input_{gate}"]["kernel"] + params[f"input_{gate}"]["bias"] for gate in "rzn")
    u_r, u_z, u_n = (h @ params[f"kernel_{gate}"] for gate in "rzn")
    r, z = sigmoid(x_r + u_r), sigmoid(x_z + u_z)
    h = (1 - z) * np.tanh(x_n + r * (u_n + params["bias"])) + z * h
    return h, h


def lstm_step(params, memory, x):
    cell, h = memory
    i, f, g, o = np.split(x @ params["input"]["kernel"] + params["input"]["bias"] + h @ params["kernel"], 4, axis=-1)
    cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(cell)
    return (cell, h), h


def inputs(network):
    """A memory from before, inputs, and resets in the middle: one row at step 3, another at 0 and 5."""
    key_x, key_h, key_c = jax.random.split(jax.random.PRNGKey(0), 3)
    x = jax.random.normal(key_x, (STEPS, *ROWS, INPUT))
    is_first = jnp.zeros((STEPS, *ROWS, 1), bool).at[3, 0, 1].set(True).at[jnp.array([0, 5]), 1, 2].set(True)
    h, cell = (jax.random.normal(key, (*ROWS, WIDTH)) for key in (key_h, key_c))
    return (h if network == "gru" else (cell, h)), x, is_first


def noisy(params):
    """Parameters of which no bias is zero."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.PRNGKey(9), len(leaves))
    return tree.unflatten([x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)])


@pytest.mark.parametrize(("network", "step"), [("gru", gru_step), ("lstm", lstm_step)])
def test_a_layer_over_time_equals_stepping_with_resets_in_the_middle(network, step):
    module = memory.MEMORIES[network](WIDTH)
    before, x, is_first = inputs(network)
    params = noisy(module.init(jax.random.PRNGKey(2), before, x, is_first)["params"])
    memories, outputs = module.apply({"params": params}, before, x, is_first)
    np.testing.assert_array_equal(memory.output_of(network, memories), outputs)
    params, before = jax.tree.map(np.asarray, (params, before))
    for row in np.ndindex(ROWS):
        state = jax.tree.map(lambda m, row=row: m[row], before)
        for t in range(STEPS):
            state = jax.tree.map(np.zeros_like, state) if is_first[t][row] else state
            state, output = step(params, state, np.asarray(x[t][row]))
            np.testing.assert_allclose(outputs[t][row], output, rtol=1e-4, atol=1e-5)
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), at(memories, t, row), state)


def at(tree, t, row):
    return jax.tree.map(lambda m: m[t][row], tree)


@pytest.mark.parametrize("network", memory.MEMORIES)
def test_no_memory_crosses_a_reset_and_no_future_is_seen(network):
    module = memory.MEMORIES[network](WIDTH)
    before, x, is_first = inputs(network)
    params = module.init(jax.random.PRNGKey(2), before, x, is_first)

    def output(before, x, t):
        return module.apply(params, before, x, is_first)[1][t, 0, 1].sum()  # reset at step 3

    for t, first in ((2, 0), (6, 3)):
        of_before, of_x = jax.grad(output, (0, 1))(before, x, t)
        seen = np.flatnonzero(np.abs(of_x[:, 0, 1]).sum(-1))
        np.testing.assert_array_equal(seen, np.arange(first, t + 1))
        remembers = any(np.abs(part[0, 1]).sum() > 0 for part in jax.tree.leaves(of_before))
        assert remembers == (first == 0)
        of_others = np.delete(np.asarray(of_x).reshape(STEPS, 6, INPUT), 1, axis=1)
        np.testing.assert_array_equal(of_others, 0.0)


def plain_gru(kernels, bias, x, is_first, h):
    """The loop of ``gru_scan`` without a gradient of its own."""
    outputs = []
    for t in range(STEPS):
        h = jnp.where(is_first[t], 0.0, h)
        r, z = (jax.nn.sigmoid(x[gate][t] + h @ kernels[gate]) for gate in (0, 1))
        h = (1 - z) * jnp.tanh(x[2][t] + r * (h @ kernels[2] + bias)) + z * h
        outputs.append(h)
    return jnp.stack(outputs)


def test_the_grus_own_gradient_is_that_of_autodiff():
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    shapes = ((3, WIDTH, WIDTH), (WIDTH,), (3, STEPS, 4, WIDTH), (4, WIDTH))
    kernels, bias, x, h = (jax.random.normal(k, (2, *s)) for k, s in zip(keys[:4], shapes, strict=True))  # twice
    is_first = jnp.zeros((2, STEPS, 4, 1), bool).at[0, 3, 1].set(True).at[1, 0, 2].set(True).at[1, 6].set(True)
    weights = jax.random.normal(keys[4], (STEPS, 4, WIDTH))

    def gradients(scan, *arguments):
        def loss(kernels, bias, x, is_first, h):
            return jnp.sum(weights * jnp.sin(scan(tuple(kernels), bias, tuple(x), is_first, h)))

        return jax.grad(loss, (0, 1, 2, 3, 4), allow_int=True)(*arguments)

    arguments = (kernels, bias, x, is_first, h)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    ours = jax.vmap(partial(gradients, memory.gru_scan))(*arguments)
    alone = gradients(memory.gru_scan, *(a[0] for a in arguments))
    plain = jax.vmap(partial(gradients, plain_gru))(*arguments)
    for position in (0, 1, 2, 4):
        close(ours[position], plain[position])
        close(alone[position], plain[position][0])
        assert np.abs(plain[position]).max() > 0.01
    assert alone[3].dtype == jax.dtypes.float0  # nothing is learnt about a flag


def test_every_gate_starts_orthogonal():
    count = 4
    matrix = np.asarray(memory.gates(count)(jax.random.PRNGKey(0), (6, count * 6)))
    blocks = np.split(matrix, count, axis=1)
    for block in blocks:
        np.testing.assert_allclose(block.T @ block, np.eye(6), atol=2e-3)
    assert not np.allclose(blocks[0], blocks[1])


@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_sequences_are_slices_with_the_memory_before_them(length):
    steps, envs = 6, 2
    x = jnp.arange(steps * envs * 3).reshape(steps, envs, 3)
    first, after = -1.0 - jnp.arange(envs), jnp.arange(steps * envs, dtype=jnp.float32).reshape(steps, envs)
    sequences = memory.in_sequences({"x": x}, length)["x"]
    starts = memory.in_sequences(memory.before_chunks((first,), (after,), length), 1)[0]
    assert sequences.shape == (length, steps // length * envs, 3) and starts.shape == (1, steps // length * envs)
    number = 0
    for start in range(0, steps, length):
        for env in range(envs):
            np.testing.assert_array_equal(sequences[:, number], x[start : start + length, env])
            assert starts[0, number] == (after[start - 1, env] if start else first[env])
            number += 1


@pytest.mark.parametrize("network", memory.MEMORIES)
def test_one_step_is_the_first_of_many_and_nothing_is_remembered_at_the_start(network):
    module = memory.MEMORIES[network](WIDTH)
    _, x, is_first = inputs(network)
    before = memory.initial(network, WIDTH, ROWS)
    assert all(part.shape == (*ROWS, WIDTH) and not part.any() for part in jax.tree.leaves(before))
    params = module.init(jax.random.PRNGKey(2), before, x, is_first)
    memories, outputs = module.apply(params, before, x, is_first)
    after, output = memory.one_step(lambda m, inputs: module.apply(params, m, *inputs), before, (x[0], is_first[0]))
    np.testing.assert_allclose(output, outputs[0], rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-5, atol=1e-6), after, memories)
    assert memory.initial("mlp", WIDTH, ROWS) == ()
