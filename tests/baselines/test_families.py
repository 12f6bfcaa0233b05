"""The four PPO files train on every family of the registry: two updates, and nothing is NaN.

Compiling is what takes time, so the sizes are small and the first parameters are not drawn (``toy.wavy``). A family is
trained on by two of the four files in turn, an IPPO and a MAPPO, one of them with memory, and traced by the others;
``pytest -m thorough`` trains those pairs too.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from shoal import envs
from shoal.algorithm import algorithm_in
from shoal.baselines.maddpg import mad4pg_ff_mpe, maddpg_ff_mpe
from shoal.baselines.masac import masac_ff_vmas
from shoal.baselines.qmix import pqn_rnn_smax, qmix_rnn_mpe
from shoal.errors import UserError
from shoal.nn.models import Model
from tests.baselines.toy import ALGORITHMS, CENTRAL, RECURRENT, finite, train, unmoved

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
    "vmas/navigation": "gnn",
}
WITH_WINS = ("smax", "jaxmarl_smax", "jaxnav", "switch_riddle")


def test_no_family_is_forgotten():
    assert {name.split("/")[0] for name in envs.list()} - {"test", "example"} == {name.split("/")[0] for name in TASKS}


def program(name: str, task: str):
    """Two updates of a small configuration, to be compiled or traced."""
    reads, sizes = TASKS[task], {"widths": (8,), "channels": (4,), "hidden": 8}
    model = Model("gru", torso=reads, **sizes) if name in RECURRENT else Model(reads, **sizes)
    config = {"num_envs": 2, "rollout_length": 4, "epochs": 1, "minibatches": 2, "sharing": "group"}
    if name in CENTRAL and reads != "mlp":
        config["critic_input"] = "observations"  # a state is no image and no set
    config = ALGORITHMS[name].Config(**config, actor=model, critic=model)
    return partial(train, name, config, envs.make(task, horizon=3))


def is_trained(name: str, task: str) -> bool:
    even = list(TASKS).index(task) % 2 == 0
    return name in (("ippo_ff", "mappo_rnn") if even else ("ippo_rnn", "mappo_ff"))


PAIRS = [(name, task) for task in TASKS for name in ALGORITHMS]
MARKED = [pair if is_trained(*pair) else pytest.param(*pair, marks=pytest.mark.thorough) for pair in PAIRS]


@pytest.mark.parametrize(("name", "task"), MARKED)
def test_two_updates_are_finite(name, task):
    state, metrics = jax.jit(program(name, task))()
    assert finite((state.learnt.params, state.learnt.opt_state, metrics))
    assert (metrics["episodes"] > 0).all()
    assert ("win_rate" in metrics) == (task.split("/")[0] in WITH_WINS)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(state.learnt.opt_state))
    assert unmoved(state.learnt.params) == []  # no layer is passed by


@pytest.mark.parametrize(("name", "task"), [pair for pair in PAIRS if not is_trained(*pair)])
def test_two_updates_fit(name, task):
    """A state of the same shape after the first one: otherwise no loop could hold both. From a typed key as well."""
    _, metrics = jax.eval_shape(program(name, task), key=jax.random.key(0, impl="rbg"))
    assert metrics["loss"].shape == (2,)


@pytest.mark.parametrize("task", ["adversary", "crypto", "push", "tag", "world_comm"])
def test_two_teams_learn_at_once_and_are_told_apart(task):
    env = envs.make(f"mpe/simple_{task}")
    config = ALGORITHMS["mappo_ff"].Config(num_envs=2, rollout_length=4, minibatches=2, sharing="group")
    state, metrics = jax.eval_shape(partial(train, "mappo_ff", config, env))
    assert {x.shape[0] for x in jax.tree.leaves(state.learnt.params)} == {2}
    for name in ("episode_return", "policy_loss", "entropy"):
        assert {f"{name}/{group}" for group in env.group_names} <= set(metrics)


OFF_POLICY = (qmix_rnn_mpe, pqn_rnn_smax, maddpg_ff_mpe, masac_ff_vmas, mad4pg_ff_mpe)
SINGLE_ROWS = OFF_POLICY[2:]  # of critics that read no images and no sets
SIZES = {
    "total_steps": 16,
    "num_envs": 2,
    "rollout_length": 4,
    "batch_size": 2,
    "buffer_size": 64,
    "minibatches": 2,
    "gradient_steps": 2,
}


@pytest.mark.parametrize("task", TASKS)
def test_two_off_policy_updates_fit(task):
    """A file per family in turn; tools/support.py trains all pairs."""
    module = OFF_POLICY[list(TASKS).index(task) % len(OFF_POLICY)]
    if task == "mabrax/hopper_3x1":
        with pytest.raises(UserError, match="continuous"):
            qmix_rnn_mpe.QMIX(qmix_rnn_mpe.Config(), envs.make(task))
        module = masac_ff_vmas
    reads = TASKS[task] if module not in SINGLE_ROWS else "mlp"
    model = Model(reads, widths=(8,), channels=(4,))
    names = {field.name for field in dataclasses.fields(module.Config)}
    models = {name: model for name in ("actor", "q") if name in names}
    config = module.Config(**{k: v for k, v in SIZES.items() if k in names}, sharing="group", **models)
    kind = {"continuous": False} if task.startswith("vmas/") and module in (qmix_rnn_mpe, pqn_rnn_smax) else {}
    algorithm = algorithm_in(module)(config, envs.make(task, horizon=3, **kind))
    _, metrics = jax.eval_shape(lambda key: algorithm.train(key, module.Hypers()), jax.random.key(0, impl="rbg"))
    assert metrics["loss"].shape == (2,)
    assert ("win_rate" in metrics) == (task.split("/")[0] in WITH_WINS)
