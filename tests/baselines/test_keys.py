"""Every algorithm file trains from every kind of key, on environments that use the keys of their steps."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal import envs, hashing
from shoal.algorithm import algorithm_in
from shoal.baselines.ippo import ippo_ff_mpe, ippo_rnn_smax
from shoal.baselines.maddpg import mad4pg_ff_mpe, maddpg_ff_mpe
from shoal.baselines.mappo import mappo_ff_vmas, mappo_rnn_smax
from shoal.baselines.masac import masac_ff_vmas
from shoal.baselines.qmix import pqn_rnn_smax, qmix_rnn_mpe
from shoal.nn.models import Model
from shoal.rl import shuffle
from tests.baselines.toy import finite

FILES = (
    ippo_ff_mpe,
    ippo_rnn_smax,
    mappo_ff_vmas,
    mappo_rnn_smax,
    qmix_rnn_mpe,
    pqn_rnn_smax,
    maddpg_ff_mpe,
    mad4pg_ff_mpe,
    masac_ff_vmas,
)
TASKS = ("smax/3m", "vmas/navigation")
KEYS = {
    "PRNGKey": jax.random.PRNGKey,
    "key": jax.random.key,
    "rbg": partial(jax.random.key, impl="rbg"),
    "unsafe_rbg": partial(jax.random.key, impl="unsafe_rbg"),
}
FOUR_WORDS = ("rbg", "unsafe_rbg")  # as jax_default_prng_impl: keys of four words without a type
SMALL = {
    "total_steps": 16,
    "num_envs": 2,
    "rollout_length": 4,
    "epochs": 1,
    "minibatches": 2,
    "batch_size": 2,
    "buffer_size": 64,
    "gradient_steps": 2,
    "learning_starts": 0,
}


def training(module, task: str):
    """Two updates as a function of the key."""
    names = {field.name for field in dataclasses.fields(module.Config)}
    settings = {name: value for name, value in SMALL.items() if name in names}
    models = {name: getattr(module.Config(), name) for name in ("actor", "critic", "q") if name in names}
    models = {name: model for name, model in models.items() if isinstance(model, Model)}  # a critic may be a word
    settings |= {name: dataclasses.replace(model, widths=(4,), hidden=4) for name, model in models.items()}
    discrete = {"continuous": False} if task.startswith("vmas") and module in (qmix_rnn_mpe, pqn_rnn_smax) else {}
    algorithm = algorithm_in(module)(module.Config(**settings), envs.make(task, horizon=3, **discrete))
    return lambda key: algorithm.train(key, module.Hypers())


@pytest.fixture
def no_hash(monkeypatch):
    """From now on whatever is hashed is an error."""

    def refuse(*_):
        raise AssertionError("a hash")

    def forbid():
        monkeypatch.setattr(hashing, "mix", refuse)
        monkeypatch.setattr(shuffle, "mix", refuse)

    return forbid


def test_a_typed_key_uses_no_hash(no_hash):
    train = training(ippo_ff_mpe, "vmas/navigation")
    no_hash()
    state, _ = jax.eval_shape(train, jax.random.key(0))
    assert state.slot.key.dtype == jax.random.key(0).dtype
    with pytest.raises(AssertionError, match="a hash"):
        jax.eval_shape(train, jax.random.PRNGKey(0))


@pytest.mark.thorough
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("module", FILES, ids=lambda module: module.__name__.split(".")[-1])
def test_every_file_trains_from_every_kind_of_key(module, task, no_hash):
    """One key, then two at once; ``test_families`` traces the files with typed keys in the default suite."""
    train = training(module, task)
    for kind, make_key in KEYS.items():
        if kind != "PRNGKey":
            no_hash()
        state, metrics = jax.jit(train)(make_key(0))
        assert finite((state.learnt.params, metrics)), kind
        assert state.slot.key.dtype == make_key(0).dtype
        keys = jnp.stack([make_key(0), make_key(1)])
        states, several = jax.jit(jax.vmap(train))(keys)
        assert finite((states.learnt.params, several)), kind
        first, second = np.asarray(several["loss"])
        assert (first != second).any(), kind
    for name in FOUR_WORDS:
        with jax.default_prng_impl(name):
            state, metrics = jax.jit(train)(jax.random.PRNGKey(0))
            assert finite((state.learnt.params, metrics)), name


@pytest.mark.parametrize("name", FOUR_WORDS)
def test_the_default_generator_of_a_process(name, no_hash):
    """Every file by its trace, which refuses a hash; one of them trains."""
    no_hash()
    with jax.default_prng_impl(name):
        key = jax.random.PRNGKey(0)
        assert key.shape == (4,)
        for module in FILES:
            state, _ = jax.eval_shape(training(module, "smax/3m"), key)
            assert state.slot.key.shape == (4,)
        state, metrics = jax.jit(training(ippo_ff_mpe, "smax/3m"))(key)
        assert finite((state.learnt.params, metrics))


def test_an_evolution_by_threefry_uses_no_hash(train, no_hash):
    no_hash()
    words = ("evolve=tournament", "population=4", "seeds=1", "evolve.rounds=4", "algo.minibatches=1")
    folder = train("prng=threefry", "env=matrix/climbing", "chunks=1", *words)
    rows = shoal.load(folder).lineage
    assert set(rows.mutation) - {"start", "elite"} and not shoal.load(folder).metrics.loss.isna().any()
