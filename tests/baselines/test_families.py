"""IPPO fits every family of the registry: one update is traced, from its first state to a state of the same shape."""

from __future__ import annotations

import jax
import pytest

import envs
from baselines.ippo import ippo_ff_mpe as ippo

TASKS = {
    "smax/3m": "mlp",
    "overcooked/cramped_room": "cnn",
    "overcooked_v2/cramped_room": "cnn",
    "hanabi/two_players": "mlp",
    "mabrax/hopper_3x1": "mlp",
    "jaxnav/grid": "mlp",
    "coin_game/coin_game": "cnn",
    "switch_riddle/switch_riddle": "mlp",
    "storm/np": "mlp",
    "mpe/simple_world_comm": "mlp",
    "jaxmarl_mpe/simple_crypto": "mlp",
    "matrix/hidden": "mlp",
}


def test_no_family_is_forgotten():
    assert {name.split("/")[0] for name in envs.list()} - {"test"} == {name.split("/")[0] for name in TASKS}


@pytest.mark.parametrize("name", TASKS)
def test_an_update_fits(name):
    config = ippo.Config(num_envs=2, rollout_length=4, minibatches=2, widths=(8,), network=TASKS[name], sharing="group")
    algorithm = ippo.make(config, envs.make(name))
    state = jax.eval_shape(algorithm.init, jax.random.PRNGKey(0), ippo.Hypers())
    after, metrics = jax.eval_shape(algorithm.update, state, ippo.Hypers())
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert {"episode_return", "loss"} <= set(metrics)
    assert ("win_rate" in metrics) == (name.split("/")[0] in ("smax", "jaxnav", "switch_riddle"))
