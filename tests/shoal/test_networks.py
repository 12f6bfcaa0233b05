"""Initialisers, torsos, memory, and which agent uses which parameters."""

from __future__ import annotations

import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import networks


@pytest.mark.parametrize("shape", [(18, 64), (64, 64), (64, 5), (3, 3, 4, 32), (1, 8), (300, 256)])
def test_orthogonal(shape):
    matrix = np.asarray(networks.orthogonal(2.0)(jax.random.PRNGKey(1), shape)).reshape(-1, shape[-1])
    rows, columns = matrix.shape
    gram = matrix.T @ matrix if rows >= columns else matrix @ matrix.T
    np.testing.assert_allclose(gram, 4.0 * np.eye(min(rows, columns)), atol=2e-3)


def test_a_vmapped_start_of_200_runs_ends():
    """jax's own orthogonal initialiser (a batched QR) hangs here on two cores; this one must not."""
    code = (
        "import jax, envs; from baselines.ippo import ippo_ff_mpe as m;"
        "algorithm = m.make(m.Config(num_envs=2, rollout_length=4), envs.make('mpe/simple_spread'));"
        "keys = jax.random.split(jax.random.PRNGKey(0), 200);"
        "state = jax.jit(jax.vmap(algorithm.init, (0, None)))(keys, m.Hypers());"
        "jax.block_until_ready(state); print('ended')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.strip() == "ended", result.stderr


@pytest.mark.parametrize(("rows", "columns"), [(4, 9), (6, 6), (9, 4), (9, 1)])
def test_matmul_gradient_is_the_plain_one(rows, columns):
    x, kernel = jax.random.normal(jax.random.PRNGKey(0), (2, 7, 9))
    x, kernel = x[:, :rows], jnp.resize(kernel, (rows, columns))

    def loss(product):
        return lambda x, kernel: jnp.sin(product(x, kernel)).sum()

    ours = jax.grad(loss(networks.matmul), (0, 1))(x, kernel)
    plain = jax.grad(loss(jnp.matmul), (0, 1))(x, kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, plain)


def test_gru_equals_stepping_with_resets_in_the_middle():
    width, steps = 5, 7
    module = networks.GRU(width)
    x = jax.random.normal(jax.random.PRNGKey(0), (steps, 2, 3))
    is_first = jnp.zeros((steps, 2), bool).at[3, 0].set(True).at[5, 1].set(True)
    carry = jax.random.normal(jax.random.PRNGKey(1), (2, width))
    params = module.init(jax.random.PRNGKey(2), carry, x, is_first)
    _, outputs = module.apply(params, carry, x, is_first)

    cell = nn.GRUCell(width)
    cell_params = {"params": params["params"]["cell"]}
    for env in range(2):
        memory = carry[env]
        for t in range(steps):
            memory = jnp.zeros(width) if is_first[t, env] else memory
            memory, output = cell.apply(cell_params, memory, x[t, env])
            np.testing.assert_allclose(outputs[t, env], output, rtol=1e-5, atol=1e-6)


def test_cnn_reads_the_image_and_what_stands_behind_it():
    module = networks.CNN(shape=(4, 4, 2), channels=(3,), widths=(6,))
    x = jax.random.normal(jax.random.PRNGKey(0), (5, 2, 4 * 4 * 2 + 3))
    params = module.init(jax.random.PRNGKey(1), x)
    out = module.apply(params, x)
    assert out.shape == (5, 2, 6)
    for position in (0, 33):  # a pixel, an id
        assert not np.allclose(out, module.apply(params, x.at[..., position].add(1.0)))


@pytest.mark.parametrize(
    ("sharing", "expected"), [("shared", [0, 0, 0]), ("group", [0, 0, 1]), ("independent", [0, 1, 2])]
)
def test_each_agent_learns_its_own_parameters_only(sharing, expected):
    policy_of = networks.policy_of_agent(sharing, np.array([0, 0, 1]))
    np.testing.assert_array_equal(policy_of, expected)
    module = networks.MLP((4,))
    x = jax.random.normal(jax.random.PRNGKey(0), (6, 3, 2))
    params = networks.init_policies(module, jax.random.PRNGKey(1), max(expected) + 1, x[:1, 0])
    for agent in range(3):

        def output(p, agent=agent):
            return networks.apply_policies(module, p, policy_of, x)[:, agent].sum()

        grads = jax.grad(output)(params)["Dense_0"]["kernel"]
        touched = np.abs(grads).sum(axis=(1, 2)) > 0
        np.testing.assert_array_equal(np.flatnonzero(touched), [expected[agent]])
