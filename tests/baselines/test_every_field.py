"""Every field of every ``Config`` and ``Hypers`` changes the metrics of a small training.

The default run checks that no field is missing here; ``pytest -m thorough`` runs the trainings.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.algorithm import Algorithm
from shoal.baselines.maddpg.mad4pg_ff_mpe import MAD4PG
from shoal.baselines.maddpg.maddpg_ff_mpe import MADDPG
from shoal.baselines.masac.masac_ff_vmas import MASAC
from shoal.baselines.qmix.pqn_rnn_smax import PQN
from shoal.baselines.qmix.qmix_rnn_mpe import QMIX
from shoal.nn.models import Model
from tests.baselines.toy import ALGORITHMS, RECURRENT, toy

FILES: dict[str, type[Algorithm]] = ALGORITHMS | {
    "qmix": QMIX,
    "pqn": PQN,
    "maddpg": MADDPG,
    "mad4pg": MAD4PG,
    "masac": MASAC,
}
SIZES = {"total_steps": 192, "num_envs": 4, "rollout_length": 12, "epochs": 2, "minibatches": 2}
SIZES |= {"gradient_steps": 2, "batch_size": 6, "buffer_size": 480, "learning_starts": 0}
CONTINUOUS = {"env": "continuous"}
# A changed value, and what must hold beside it for the field to matter.
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "total_steps": (960, {}),
    "num_envs": (8, {}),
    "rollout_length": (24, {}),
    "epochs": (1, {}),
    "minibatches": (4, {}),
    "chunk_length": (6, {}),
    "sharing": ("independent", {}),
    "agent_id": (None, {}),  # the other of two
    "actor": (Model(widths=(4,)), {}),
    "critic": (Model(widths=(4,)), {}),
    "q": (Model(widths=(4,)), {}),
    "critic_input": ("agent_state", {}),
    "normalise_advantages": (None, {}),
    "normalise_obs": (None, {}),
    "normalise_values": ("popart", {}),
    "clip_value": (None, {"clip_eps": 0.01}),
    "death": ("ends_return", {}),
    "elastic_batches": (None, {"batch_share": 0.5}),
    "gradient_steps": (4, {}),
    "batch_size": (12, {}),
    "buffer_size": (96, {}),
    "learning_starts": (120, {}),
    "replay": ("prioritised", {}),
    "twin": (None, {}),
    "policy_delay": (2, {}),
    "atoms": (21, {}),
    "n_step": (2, {}),
    "mixer": (None, {}),
    "mixer_width": (8, {"mixer": "qmix"}),
    "hyper_width": (8, {"mixer": "qmix"}),
    "double": (None, {}),
    "target_interval": (3, {}),
    "auto_alpha": (None, {}),
}
ELASTIC = {"elastic_batches": True}
HYPERS: dict[str, tuple[float, dict[str, Any]]] = {
    "lr": (0.01, {}),
    "lr_end": (0.4, {}),
    "critic_lr": (0.01, {}),
    "alpha_lr": (0.01, {}),
    "gamma": (0.5, {}),
    "gae_lambda": (0.5, {}),
    "clip_eps": (0.01, {}),
    "ent_coef": (0.5, {}),
    "ent_coef_end": (0.1, {}),
    "vf_coef": (0.1, {}),
    "max_grad_norm": (0.01, {}),
    "batch_share": (0.5, ELASTIC),
    "epoch_share": (0.5, ELASTIC),
    "learn_share": (0.5, ELASTIC),
    "tau": (0.7, {}),
    "td_lambda": (0.4, {}),
    "eps_start": (0.9, {}),
    "eps_end": (0.6, {}),
    "eps_fraction": (0.7, {}),
    "priority_beta": (0.9, {"replay": "prioritised"}),
    "noise_start": (0.6, {}),
    "noise_end": (0.6, {}),
    "noise_fraction": (0.7, {}),
    "target_noise": (0.4, {}),
    "target_noise_clip": (0.05, {"target_noise": 0.4}),
    "temperature": (0.5, {}),
    "action_reg": (0.5, {}),
    "v_min": (-5.0, {}),
    "v_max": (5.0, {}),
    "alpha": (0.5, {}),
    "target_entropy": (0.2, {}),
}


def names_of(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_no_field_is_missing():
    for algorithm in FILES.values():
        assert names_of(algorithm.Config) <= {*OPTIONS}
        assert names_of(algorithm.Hypers) <= {*HYPERS}
    assert {*OPTIONS} == set().union(*(names_of(algorithm.Config) for algorithm in FILES.values()))
    assert {*HYPERS} == set().union(*(names_of(algorithm.Hypers) for algorithm in FILES.values()))


def other(name: str, option: str) -> Any:
    """The changed value of an option."""
    value = OPTIONS[option][0]
    now = config_of(name, {}, {})
    if option == "critic" and name in ("maddpg", "masac"):
        return "local"
    if value is None:
        value = getattr(now, option)
        choices = next(f for f in dataclasses.fields(FILES[name].Config) if f.name == option).metadata["choices"]
        return not value if isinstance(value, bool) else next(choice for choice in choices if choice != value)
    return value


def config_of(name: str, beside: dict[str, Any], changes: dict[str, Any]) -> Any:
    memory = name in (*RECURRENT, "qmix", "pqn")
    model = Model("gru" if memory else "mlp", widths=(8,), hidden=6)
    if isinstance(changes.get("q", changes.get("actor", changes.get("critic"))), Model) and memory:
        changes = {key: Model("gru", widths=(4,), hidden=6) for key in changes}
    networks = {"actor": model, "critic": model} if name in ALGORITHMS else {"actor": model, "q": model}
    given = SIZES | networks | beside | changes
    config = FILES[name].Config
    return config(**{key: value for key, value in given.items() if key in names_of(config)})


@cache
def metrics(name: str, beside: tuple, changes: tuple, hypers: tuple) -> dict[str, np.ndarray]:
    """The metrics ``[H, updates]`` of trainings that differ in their ``hypers``, each ``(name, value)``."""
    given, hypers_of = dict(beside), FILES[name].Hypers
    env = envs.make("mpe/simple_spread", continuous=True, horizon=5) if given.get("env") else toy()
    algorithm = FILES[name](config_of(name, given, dict(changes)), env)
    base = {"lr": 0.02, "critic_lr": 0.02, "alpha_lr": 0.02, "tau": 0.3} | given
    base = hypers_of(**{key: value for key, value in base.items() if key in names_of(hypers_of)})
    every = [base, *(base.replace(**{key: value}) for key, value in hypers)]
    stacked = jax.tree.map(lambda *leaves: jnp.array(leaves, jnp.float32), *every)

    @jax.jit
    @jax.vmap
    def run(hypers):
        state = algorithm.init(jax.random.PRNGKey(0), hypers)
        return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=4)[1]

    return {key: np.asarray(value) for key, value in run(stacked).items()}


def differ(one: dict[str, np.ndarray], two: dict[str, np.ndarray], at: int = 0) -> bool:
    """Whether the first training of ``one`` has other metrics than the training ``at`` of ``two``."""
    if one.keys() != two.keys():
        return True
    return any(not np.allclose(one[key][0], two[key][at], rtol=1e-5, atol=1e-7, equal_nan=True) for key in one)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "option"), [(name, field) for name in FILES for field in OPTIONS if field in names_of(FILES[name].Config)]
)
def test_every_option_changes_the_metrics(name, option):
    beside = tuple(OPTIONS[option][1].items())
    change = ((option, other(name, option)),)
    assert differ(metrics(name, beside, (), ()), metrics(name, beside, change, ()))


def groups_of(name: str) -> dict[tuple, list[tuple[str, float]]]:
    """The hyperparameters of a file by what must hold beside them."""
    groups: dict[tuple, list[tuple[str, float]]] = {}
    for key, (value, beside) in HYPERS.items():
        if key in names_of(FILES[name].Hypers):
            beside = beside | ({"auto_alpha": False} if key == "alpha" else {})
            groups.setdefault(tuple(beside.items()), []).append((key, value))
    return groups


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILES)
def test_every_hyperparameter_changes_the_metrics(name):
    for beside, changes in groups_of(name).items():
        found = metrics(name, beside, (), tuple(changes))
        for number, (key, _) in enumerate(changes, 1):
            assert differ(found, found, number), key
