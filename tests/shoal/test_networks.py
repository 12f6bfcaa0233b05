"""Initialisers, layers, and which agent uses which parameters."""

from __future__ import annotations

import re
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nn import memory, models, networks


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


class Torso(nn.Module):
    """An MLP and a head behind it, as the algorithm files have them."""

    @nn.compact
    def __call__(self, x):
        return networks.Dense(3, name="head")(networks.MLP((6, 5))(x))


@pytest.mark.parametrize("policies", [1, 3])
def test_large_batches_with_their_features_first_give_the_same(monkeypatch, policies):
    x, alike = jax.random.normal(jax.random.PRNGKey(0), (4, 3, 7)), np.arange(3) % policies
    params = networks.init_policies(Torso(), jax.random.PRNGKey(1), policies, x)

    def loss(params, x):
        out = networks.apply_policies(Torso(), params, alike, x)
        return jnp.sin(out).sum(), out

    def found(large: int):
        monkeypatch.setattr(networks, "LARGE", large)
        program = jax.jit(jax.grad(loss, (0, 1), has_aux=True)).lower(params, x)
        return program.as_text(), program.compile()(params, x)

    plain_text, plain = found(networks.LARGE)
    text, ours = found(0)
    assert text != plain_text
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, plain)


class Modelled(nn.Module):
    """A network that says its model, as those of the algorithm files do; ``x`` is ``[T, B, A, O]``."""

    model: models.Model

    @nn.compact
    def __call__(self, before, x, is_first, alive):
        features = models.torso(self.model, models.Inputs(), x, alive)
        memories, features = models.remember(self.model, before, features, is_first)
        return memories, networks.Dense(3, name="head")(features)


@pytest.mark.parametrize(("network", "count"), [("mlp", 3), ("deepsets", 3), ("gru", 1)])
def test_large_batches_in_blocks_give_the_same(monkeypatch, network, count):
    module = Modelled(models.Model(network, (6, 5), hidden=4))
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    x = jax.random.normal(keys[0], (7, 2, 3, 4))
    is_first, alive = jax.random.bernoulli(keys[1], 0.3, (2, *x.shape[:-1], 1))
    inputs = (models.initial_memory(module.model, (2, 3)), x, is_first, alive)
    params = networks.init_policies(module, keys[2], 1, *inputs)
    calls = []
    plain_apply = networks.apply
    monkeypatch.setattr(networks, "apply", lambda *given: calls.append(1) or plain_apply(*given))

    def loss(params, x):
        out = networks.apply_policies(module, params, np.zeros(3, int), inputs[0], x, *inputs[2:])
        return jnp.sin(out[1]).sum(), out

    def found(large: int):
        calls.clear()
        monkeypatch.setattr(networks, "LARGE", large)
        result = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, x)
        return len(calls), result

    plain, ours = found(networks.LARGE), found(7 * 2 * 3 * 6 // 3)
    assert (plain[0], ours[0]) == (1, count)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours[1], plain[1])


def test_cnn_reads_the_image_and_what_stands_behind_it():
    module = networks.CNN(shape=(4, 4, 2), channels=(3,), widths=(6,))
    x = jax.random.normal(jax.random.PRNGKey(0), (5, 2, 4 * 4 * 2 + 3))
    params = module.init(jax.random.PRNGKey(1), x)
    out = module.apply(params, x)
    assert out.shape == (5, 2, 6)
    for position in (0, 33):  # a pixel, an id
        assert not np.allclose(out, module.apply(params, x.at[..., position].add(1.0)))


SHARED = [("shared", [0, 0, 0]), ("group", [0, 0, 1]), ("independent", [0, 1, 2])]


class Mean(nn.Module):
    """A layer on each agent's row and on the mean of all: agents see each other."""

    mixes = True

    @nn.compact
    def __call__(self, x):
        return networks.Dense(4)(x) + networks.Dense(4)(x.mean(axis=-2, keepdims=True))


@pytest.mark.parametrize(("sharing", "expected"), SHARED)
@pytest.mark.parametrize("module", [networks.MLP((4,)), Mean()], ids=["alone", "mixing"])
def test_each_agent_learns_its_own_parameters_only(sharing, expected, module):
    policy_of = networks.policy_of_agent(sharing, np.array([0, 0, 1]))
    np.testing.assert_array_equal(policy_of, expected)
    x = jax.random.normal(jax.random.PRNGKey(0), (6, 3, 2))
    params = networks.init_policies(module, jax.random.PRNGKey(1), max(expected) + 1, x[0])
    outputs = networks.apply_policies(module, params, policy_of, x)
    grads = jax.jacrev(lambda p: networks.apply_policies(module, p, policy_of, x).sum(axis=(0, 2)))(
        params
    )  # [A, P, ...]
    for agent in range(3):
        mine = jax.tree.map(lambda p, agent=agent: p[expected[agent]], params)
        np.testing.assert_allclose(module.apply({"params": mine}, x)[:, agent], outputs[:, agent], rtol=1e-5, atol=1e-6)
        touched = np.abs(grads["Dense_0"]["kernel"][agent]).sum(axis=(1, 2)) > 0
        np.testing.assert_array_equal(np.flatnonzero(touched), [expected[agent]])


@pytest.mark.parametrize(("sharing", "expected"), SHARED)
def test_agents_see_each_other_only_in_a_module_that_mixes(sharing, expected):
    x = jax.random.normal(jax.random.PRNGKey(0), (1, 3, 2))
    for module, sees in ((networks.MLP((4,)), np.eye(3)), (Mean(), np.ones((3, 3)))):
        params = networks.init_policies(module, jax.random.PRNGKey(1), max(expected) + 1, x[0])

        def outputs(x, module=module, params=params):
            return networks.apply_policies(module, params, np.array(expected), x).sum(axis=(0, 2))

        influence = np.abs(jax.jacobian(outputs)(x)).sum(axis=(1, 3))  # [A, A]
        np.testing.assert_array_equal(influence > 1e-7, sees)


def test_a_flag_is_every_rows():
    rows = networks.per_row(jnp.array([True, False]), jnp.zeros((2, 3, 5)))
    np.testing.assert_array_equal(rows, np.array([[[True]] * 3, [[False]] * 3]))


@pytest.fixture
def in_bfloat16():
    networks.compute_in("bfloat16")
    yield
    networks.compute_in("float32")


@pytest.mark.parametrize("network", ["mlp", "gru", "lstm"])
def test_bfloat16_is_what_networks_compute_in_and_no_more(network, in_bfloat16):
    x, first = jax.random.normal(jax.random.PRNGKey(0), (5, 4, 3)), jnp.zeros((5, 4, 1), bool)
    module = networks.MLP((16, 16)) if network == "mlp" else memory.MEMORIES[network](16)
    inputs = (x,) if network == "mlp" else (memory.initial(network, 16, (4,)), x, first)
    params = networks.init_policies(module, jax.random.PRNGKey(1), 1, *inputs)

    def measured():
        """Outputs, gradients and the trace, of a function of its own: JAX remembers traces."""

        def total(params):
            outputs = networks.apply_policies(module, params, np.zeros(4, int), *inputs)
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(outputs)), outputs

        (_, outputs), gradients = jax.value_and_grad(total, has_aux=True)(params)
        return (outputs, gradients), str(jax.make_jaxpr(total)(params))

    rough, text = measured()
    assert re.search(r"bf16\[.*\] = dot_general", text)
    networks.compute_in("float32")
    exact, text = measured()
    assert "bf16" not in text
    for low, high in zip(jax.tree.leaves(rough), jax.tree.leaves(exact), strict=True):
        assert low.dtype == high.dtype == jnp.float32
        assert 0.0 < np.abs(low - high).max() < 0.05 * np.abs(high).max()


ROWS = 2**16
BIASED = {
    "dense": (networks.Dense(8), (ROWS, 4)),  # features lead
    "few features": (networks.Dense(1), (ROWS, 4)),
    "living norm": (networks.LivingNorm(), (ROWS, 4), np.array([True, True, True, False])),
    "cnn": (networks.CNN((4, 4, 1), (4,), (8,)), (ROWS // 16, 16)),
    "layer norm": (networks.MLP((8,), layer_norm=True), (ROWS, 4)),
}
STEPS = {"gru, a step": ("gru", 1), "gru, steps": ("gru", 8), "lstm, a step": ("lstm", 1), "lstm, steps": ("lstm", 8)}


@pytest.mark.parametrize("name", [*BIASED, *STEPS])
def test_bfloat16_sums_the_gradients_of_biases_in_float32(name, in_bfloat16):
    """In bfloat16 a sum of ones stops at 256: of 65,536 rows a quarter of the gradient would be left."""
    if name in STEPS:
        network, steps = STEPS[name]
        before = jax.tree.map(jnp.ones_like, memory.initial(network, 8, (ROWS // steps,)))
        module, x = memory.MEMORIES[network](8), jnp.ones((steps, ROWS // steps, 4))
        inputs = (before, x, jnp.zeros((*x.shape[:-1], 1), bool))
    else:
        module, shape, *rest = BIASED[name]
        inputs = (jax.random.uniform(jax.random.PRNGKey(0), shape), *rest)
    params = jax.jit(module.init)(jax.random.PRNGKey(1), *inputs)["params"]

    def total(params, inputs):
        return jax.tree.leaves(networks.apply(module, params, *inputs))[0].sum()

    rough = jax.jit(jax.grad(total))(params, inputs)
    networks.compute_in("float32")
    exact = jax.jit(jax.grad(lambda *arguments: total(*arguments)))(params, inputs)
    for (path, low), high in zip(jax.tree_util.tree_leaves_with_path(rough), jax.tree.leaves(exact), strict=True):
        if path[-1].key in ("bias", "scale"):
            assert np.abs(low - high).max() <= 0.02 * np.abs(high).max(), path
