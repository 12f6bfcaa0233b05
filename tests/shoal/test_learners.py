"""One run as several learners: what they share stays one, and averaging is exact."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from shoal import envs
from shoal.algorithm import TrainState, algorithm_in
from shoal.baselines.ippo import ippo_ff_mpe, ippo_rnn_smax
from shoal.baselines.maddpg import maddpg_ff_mpe
from shoal.baselines.mappo import mappo_ff_vmas, mappo_rnn_smax
from shoal.baselines.masac import masac_ff_vmas
from shoal.baselines.qmix import pqn_rnn_smax, qmix_rnn_mpe
from shoal.errors import UserError
from shoal.rl import learners as averages
from shoal.rl import normalisation
from shoal.rl.groups import Groups
from shoal.rl.optimiser import Optimiser
from shoal.run import learners
from tests.conftest import SMALL

PPO = {"normalise_obs": True, "normalise_values": "popart", "minibatches": 2, "epochs": 1}
REPLAY = {"batch_size": 8, "buffer_size": 512, "learning_starts": 0}
SIZES = {
    ippo_ff_mpe: PPO,
    ippo_rnn_smax: PPO,
    mappo_ff_vmas: PPO,
    mappo_rnn_smax: PPO,
    maddpg_ff_mpe: {**REPLAY, "normalise_obs": True},
    masac_ff_vmas: REPLAY,
    qmix_rnn_mpe: {**REPLAY, "batch_size": 4, "replay": "prioritised"},
    pqn_rnn_smax: {"minibatches": 2, "epochs": 1},
}
IDS = np.array([0, 0, 1])  # two policies of three agents
ALONE, TOGETHER = Groups(IDS), Groups(IDS, learners.AXIS)


def config_of(module):
    networks = [field.name for field in dataclasses.fields(module.Config) if field.type == "Model"]
    small = {name: dataclasses.replace(getattr(module.Config(), name), widths=(8,), hidden=8) for name in networks}
    return module.Config(num_envs=4, rollout_length=8, total_steps=64.0, **small, **SIZES[module])


@pytest.mark.parametrize("module", SIZES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_what_learners_share_stays_the_same_and_the_rest_is_their_own(module):
    env, hypers, kind = envs.make("matrix/climbing"), module.Hypers(), algorithm_in(module)
    one = kind(learners.parts(config_of(module), 2), env, learners.AXIS)
    both = learners.made(kind, config_of(module), env, 2)
    learners.check_averages(both, hypers)
    assert both.steps_per_update == 2 * one.steps_per_update == 32
    assert both.num_updates == 2

    first = jax.jit(both.init)(jax.random.PRNGKey(0), hypers)
    halves = TrainState(learnt=None, slot=0)
    update = jax.vmap(lambda state: one.update(state, hypers), in_axes=(halves,), axis_name=learners.AXIS)
    state, _ = jax.jit(update)(first)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.learnt):
        np.testing.assert_array_equal(leaf[0], leaf[1], err_msg=jax.tree_util.keystr(path))
    assert (state.slot.key[0] != state.slot.key[1]).any()
    assert state.slot.envs.timestep.obs.shape[:2] == (2, 2)  # learners, environments of each
    changed = jax.tree.map(lambda a, b: (a[0] != b).any(), state.learnt.params, first.learnt.params)
    assert any(map(bool, jax.tree.leaves(changed)))


def both_halves(function, *arrays):
    """``function`` of two learners with a half of the rows each."""
    cut = [x.reshape(2, -1, *x.shape[1:]) for x in arrays]
    return jax.vmap(function, axis_name=learners.AXIS)(*cut)


@pytest.fixture
def rows():
    """``x [B, A]`` and who lives, uneven between the halves; what is hidden is poison."""
    draw = np.random.default_rng(0)
    alive = draw.random((12, 3)) < np.where(np.arange(12) < 6, 0.9, 0.3)[:, None]
    return jnp.float32(np.where(alive, draw.normal(2.0, 3.0, (12, 3)), np.nan)), jnp.asarray(alive)


def test_a_mean_is_that_of_all_rows(rows):
    whole = ALONE.mean(*rows)
    parts = both_halves(TOGETHER.mean, *rows)
    np.testing.assert_allclose(parts.mean(axis=0), whole, rtol=1e-6)
    separate = jnp.stack([ALONE.mean(*(part[half] for part in rows)) for half in (slice(6), slice(6, 12))])
    assert not np.allclose(separate.mean(axis=0), whole, rtol=1e-3)  # what the exchange is for
    np.testing.assert_array_equal(both_halves(lambda x, alive: TOGETHER.mean(x, alive & False), *rows), 0.0)


def test_statistics_are_those_of_all_rows(rows):
    values, alive = rows
    whole = ALONE.normalise(values, alive)
    parts = both_halves(TOGETHER.normalise, *rows)
    np.testing.assert_allclose(parts.reshape(whole.shape)[alive], whole[alive], rtol=1e-4, atol=1e-5)

    known = normalisation.init_values(2)
    obs = jnp.stack([values, 2.0 * values], axis=-1)  # [B, A, O]
    for function, arrays in (
        (lambda axis, x, alive: normalisation.update_values(known, x, alive, Groups(IDS, axis)), rows),
        (lambda axis, x, alive: normalisation.update(normalisation.init(2), x, alive, axis), (obs, alive)),
    ):
        whole, parts = function(None, *arrays), both_halves(partial(function, learners.AXIS), *arrays)
        for one, each in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
            np.testing.assert_allclose(each[0], one, rtol=1e-5)
            np.testing.assert_array_equal(each[0], each[1])


def test_a_gradient_is_that_of_all_rows():
    config = config_of(ippo_ff_mpe)
    env, hypers = envs.make("matrix/climbing"), ippo_ff_mpe.Hypers()
    algorithm = ippo_ff_mpe.IPPO(config, env)
    state = algorithm.init(jax.random.PRNGKey(1), hypers)
    learnt = state.learnt.replace(obs_stats=None)
    keys = jax.random.split(jax.random.PRNGKey(2), 3)
    envs_after, transitions = algorithm.rollout(learnt, state.slot.envs, keys)
    batch = algorithm.targets(learnt, envs_after, transitions, hypers)
    batch = batch.replace(alive=batch.alive & (jax.random.uniform(jax.random.PRNGKey(3), batch.alive.shape) < 0.7))

    def gradient(batch, axis_name=None):
        one = ippo_ff_mpe.IPPO(config, env, axis_name)
        grads, _ = jax.grad(one.loss, has_aux=True)(learnt.params, batch, learnt, hypers)
        return averages.mean(grads, axis_name)

    whole = gradient(batch)
    halves = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
    parts = jax.vmap(partial(gradient, axis_name=learners.AXIS), axis_name=learners.AXIS)(halves)
    for one, each in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(each[0], one, rtol=1e-4, atol=1e-6)


def metrics(folder):
    return pd.read_csv(folder / "metrics.csv").to_numpy(float)


WORDS = [*SMALL, "env=matrix/climbing", "learners=2"]


@pytest.mark.skipif(jax.local_device_count() < 2, reason="one core")
@pytest.mark.parametrize("seeds", [1, 3])
def test_learners_on_devices_of_their_own_are_as_on_one(train, seeds):
    apart = train(*WORDS, f"seeds={seeds}", small=False)
    together = train(*WORDS, f"seeds={seeds}", "devices=1", small=False)
    np.testing.assert_allclose(metrics(apart), metrics(together), rtol=1e-4, atol=1e-5)


def test_a_resumed_training_with_learners_is_as_an_uninterrupted_one(train, tmp_path):
    constant = ["hypers.lr_end=1.0", "hypers.ent_coef_end=1.0"]
    whole = train(*WORDS, *constant, small=False)
    part = train(*WORDS, *constant, "total_steps=128", "chunks=2", small=False, folder=tmp_path / "part")
    train(f"resume={part}", "total_steps=256", small=False)
    assert (part / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["learners=3"], "learners=3: must divide algo.num_envs=4"),
        (["learners=4", "algo.minibatches=64", "algo.rollout_length=32"], "each of learners=4 has a part of it"),
        (["learners=2", "evolve=pbt", "population=4"], "learners=2: not with evolution"),
    ],
)
def test_mistakes_are_said_in_one_line(train, capsys, words, said):
    with pytest.raises(SystemExit):
        train(*SMALL, "env=matrix/climbing", *words, small=False)
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_a_file_that_does_not_average_gradients_is_refused():
    class Forgetful(ippo_ff_mpe.IPPO):
        def setup(self):
            super().setup()
            self.optimiser = Optimiser()  # without the learners' axis

    algorithm = learners.made(Forgetful, config_of(ippo_ff_mpe), envs.make("matrix/climbing"), 2)
    with pytest.raises(UserError, match=r"learners: what this algorithm file learns differs between learners"):
        learners.check_averages(algorithm, ippo_ff_mpe.Hypers())


def test_environments_on_the_host_have_one_learner():
    env = envs.make("matrix/climbing")
    host = type("Host", (), {"host": True})()
    assert not env.host
    with pytest.raises(UserError, match="learners=2: environments on the host"):
        learners.made(ippo_ff_mpe.IPPO, ippo_ff_mpe.Config(), host, 2)


@pytest.mark.parametrize("module", [qmix_rnn_mpe, mappo_ff_vmas], ids=["qmix", "mappo"])
def test_who_cannot_die_is_not_counted(module, monkeypatch):
    """Where an environment says that nobody dies, learners have less to exchange, and learn the same."""
    exchanged = []
    mean = averages.mean
    monkeypatch.setattr(averages, "mean", lambda tree, axis: exchanged.append(tree) or mean(tree, axis))

    def learnt(mortal):
        env = envs.make("matrix/climbing")
        assert not env.mortal
        env.mortal = mortal
        config = dataclasses.replace(config_of(module), death="ends_return")  # otherwise no death ends a return
        algorithm, hypers = learners.made(algorithm_in(module), config, env, 2), module.Hypers()

        @jax.jit
        def run(key):
            state = algorithm.init(key, hypers)
            after, _ = jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=3)
            return state.learnt.params, after.learnt.params

        exchanged.clear()
        return *run(jax.random.PRNGKey(0)), len(exchanged)

    (first, counted, more), (_, uncounted, fewer) = learnt(mortal=True), learnt(mortal=False)
    assert fewer < more
    assert module is not qmix_rnn_mpe or fewer == 1  # the gradients alone
    first, counted, uncounted = map(jax.tree.leaves, (first, counted, uncounted))
    for a, b in zip(counted, uncounted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert not all(np.allclose(start, a) for start, a in zip(first, counted, strict=True))
