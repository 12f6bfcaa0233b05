"""docs/distrust.md names a test for each mistake that others made. The tests that fit nowhere else are here."""

from __future__ import annotations

import ast
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.algorithm import algorithm_in
from shoal.baselines.maddpg.maddpg_ff_mpe import MADDPG
from shoal.baselines.masac.masac_ff_vmas import MASAC
from shoal.baselines.qmix import pqn_rnn_smax, qmix_rnn_mpe
from shoal.nn.models import Model
from tests.baselines.toy import wavy
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "distrust.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
THREADS = (
    *(f"JaxMARL {number}" for number in (85, 119, 140, 167, 168, 169)),
    *("Mava 1006", "Stoix 142", "EPyMARL 43", "gymnax 108", "brax 641", "mujoco_playground 305"),
)


def test_every_test_that_the_page_names_exists():
    files = {path for path, _ in NAMED}
    functions = {
        path: {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")}
        for path in files
    }
    assert [f"{path}::{name}" for path, name in NAMED if name not in functions[path]] == []
    assert len(NAMED) > 30


def test_every_row_has_a_thread_and_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| mistake", "| ---"))]
    for row in rows:
        mistake, threads, tests = row.strip("| ").split(" | ")
        assert mistake and "](https://github.com/" in threads and "`tests/" in tests, row
    assert len(rows) > 15
    assert [thread for thread in THREADS if f"[{thread}](" not in PAGE] == []


@pytest.mark.parametrize(("kind", "name"), [(MADDPG, "critic"), (MASAC, "q")])
def test_twin_critics_start_apart(kind, name):
    """Two equal critics stay equal, and their minimum is one of them."""
    model = Model(widths=(8,))
    algorithm = kind(kind.Config(actor=model, q=model, num_envs=2, twin=True), envs.make("mpe/simple_spread"))
    critic = jax.jit(lambda key: algorithm.init(key, kind.Hypers()).learnt.params[name])(jax.random.PRNGKey(0))
    for leaf in jax.tree.leaves(critic):
        assert leaf.shape[0] == 2
        assert not np.any(leaf) or np.abs(leaf[0] - leaf[1]).max() > 1e-3  # biases start at zero


@pytest.mark.parametrize("module", [qmix_rnn_mpe, pqn_rnn_smax])
def test_a_greedy_evaluation_of_values_does_not_explore(module):
    """With epsilon 1 a greedy action does not depend on the key, and any other does."""
    config = module.Config(q=Model("gru", widths=(8,), hidden=8), num_envs=4)
    algorithm = algorithm_in(module)(config, envs.make("mpe/simple_spread"))
    keys = jax.random.split(jax.random.PRNGKey(0), 16)
    like = jax.eval_shape(lambda: algorithm.policy(algorithm.init(keys[0], module.Hypers()).learnt))
    policy = wavy(like) | {"epsilon": jnp.float32(1.0)}

    @partial(jax.jit, static_argnums=1)
    def act(key, greedy):
        timestep = jax.vmap(algorithm.env.reset)(keys)[1]
        return algorithm.act(policy, algorithm.initial_memory(16), timestep, key, greedy)[1]

    one, other = keys[:2]
    np.testing.assert_array_equal(act(one, True), act(other, True))
    assert (act(one, False) != act(other, False)).any()
