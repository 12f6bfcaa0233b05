"""Each of the four files trains on every family of the registry: two updates, and nothing is NaN.

Small everything: compiling is what takes time, most of all for mabrax, jaxnav and overcooked_v2.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

import envs
from shoal.models import Model
from tests.baselines.toy import MODULES, RECURRENT, finite

# The task that compiles fastest, and what reads its observations.
TASKS = {
    "smax/3m": "deepsets",
    "jaxmarl_smax/3m": "mlp",
    "overcooked/cramped_room": "cnn",
    "overcooked_v2/cramped_room": "cnn",
    "hanabi/two_players": "mlp",
    "mabrax/hopper_3x1": "mlp",
    "jaxnav/blank_test": "mlp",
    "coin_game/coin_game": "cnn",
    "switch_riddle/switch_riddle": "mlp",
    "storm/2p": "mlp",
    "mpe/simple_tag": "gnn",
    "jaxmarl_mpe/simple_crypto": "mlp",
    "matrix/hidden": "mlp",
}
WITH_WINS = ("smax", "jaxmarl_smax", "jaxnav", "switch_riddle")


def test_no_family_is_forgotten():
    assert {name.split("/")[0] for name in envs.list()} - {"test"} == {name.split("/")[0] for name in TASKS}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", MODULES)
def test_two_updates_are_finite(name, task):
    module, reads = MODULES[name], TASKS[task]
    sizes = {"widths": (8,), "channels": (4,), "hidden": 8}
    model = Model("gru", torso=reads, **sizes) if name in RECURRENT else Model(reads, **sizes)
    config = {"num_envs": 2, "rollout_length": 4, "epochs": 1, "minibatches": 2, "sharing": "group"}
    if name.startswith("mappo") and reads != "mlp":
        config["critic_input"] = "observations"  # a state is no image and no set
    env = envs.make(task, horizon=3)
    algorithm = module.make(module.Config(**config, actor=model, critic=model), env)

    @jax.jit
    def train(key):
        hypers = module.Hypers()
        return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), algorithm.init(key, hypers), length=2)

    state, metrics = train(jax.random.PRNGKey(0))
    assert finite((state.params, state.opt_state, metrics))
    assert (metrics["episodes"] > 0).all()
    assert ("win_rate" in metrics) == (task.split("/")[0] in WITH_WINS)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state))
