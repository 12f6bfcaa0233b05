"""Batch sizes and learning steps by masks: equal to the smaller ones, and what is hidden has no effect."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.baselines.maddpg.mad4pg_ff_mpe import MAD4PG
from shoal.baselines.maddpg.maddpg_ff_mpe import MADDPG
from shoal.baselines.masac.masac_ff_vmas import MASAC
from shoal.baselines.qmix.qmix_rnn_mpe import QMIX
from shoal.nn.models import Model
from shoal.rl import minibatches, replay, shares
from tests.baselines.toy import differ, finite, prepare, toy, with_config

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
same = partial(jax.tree.map, np.testing.assert_array_equal)
CONFIG = SimpleNamespace(elastic_batches=True, epochs=4, minibatches=3, batch_size=8)


def hypers_of(**values):
    return SimpleNamespace(**{"batch_share": 1.0, "epoch_share": 1.0, "learn_share": 1.0} | values)


def test_shares_of_epochs_and_rows():
    for share, rows, epochs in ((1.0, 10, 4), (0.5, 5, 2), (0.25, 2, 1), (0.01, 1, 1), (0.74, 7, 3)):
        part = shares.on_policy(CONFIG, hypers_of(batch_share=share, epoch_share=share), rows=10)
        np.testing.assert_array_equal(part.rows, np.arange(10) < rows)
        np.testing.assert_array_equal(part.steps, np.arange(12) < 3 * epochs)


@pytest.mark.parametrize(("share", "steps"), [(1.0, 2), (0.5, 1), (0.3, 2), (0.0, 2), (0.25, 1)])
def test_shares_of_gradient_steps_over_updates(share, steps):
    """They come to the share in the long run, as evenly as may be."""
    part = jax.vmap(lambda n: shares.off_policy(CONFIG, hypers_of(learn_share=share), n, steps))(jnp.arange(1000))
    taken = np.asarray(part.steps).sum(axis=1)
    assert taken.sum() == round(share * steps * 1000) and np.ptp(taken) <= 1
    assert np.abs(np.cumsum(taken) - share * steps * np.arange(1, 1001)).max() < 1.0


def test_a_part_of_a_scan():
    """Steps that do not count change nothing, nor do they show in the means; without shares it is a plain scan."""
    step = lambda total, x: (total + x, {"x": x})  # noqa: E731
    xs = jnp.array([1.0, 2.0, 4.0])
    part = shares.Part(None, jnp.array([True, True, False]))
    total, out = part.scan(step, 0.0, xs)
    assert total == 3.0 and part.mean(out)["x"] == 1.5 and part.ready(jnp.bool_(True))
    nothing = shares.Part(None, jnp.zeros(3, bool))
    assert nothing.scan(step, 7.0, xs)[0] == 7.0 and nothing.mean(out)["x"] == 0.0
    assert not nothing.ready(jnp.bool_(True))
    whole = lambda xs: shares.Part().scan(step, 0.0, xs)  # noqa: E731
    assert str(jax.make_jaxpr(whole)(xs)) == str(jax.make_jaxpr(lambda xs: jax.lax.scan(step, 0.0, xs))(xs))


def test_weights_and_priorities_of_what_counts():
    part = shares.Part(jnp.array([True, True, False]), jnp.array([True, False]))
    np.testing.assert_allclose(part.weight(jnp.array([0.5, 0.25, 1.0]))[:2], [1.0, 0.5])
    index = jnp.array([[3, 5, 9], [4, 6, 8]])
    np.testing.assert_array_equal(part.learnt(index), [3, 5, 3, 3, 5, 3])
    np.testing.assert_array_equal(shares.Part().learnt(index), [3, 5, 9, 4, 6, 8])


@pytest.mark.parametrize("name", ["ippo_ff", "mappo_rnn"])
def test_on_policy_shares_equal_smaller_sizes(name, monkeypatch):
    """Half of the epochs is a training of half as many; half of the rows a loss of these, whatever the others hold."""
    ready = prepare(name)
    first = ready.after
    order = np.random.default_rng(0).permuted(np.tile(np.arange(48 if name == "ippo_ff" else 4), (4, 1)), axis=1)
    monkeypatch.setattr(minibatches, "permutations", lambda key, count, size: jnp.asarray(order[:count]))

    def learner(**changes):
        algorithm = with_config(ready.algorithm, **changes)
        return jax.jit(lambda batch, hypers: algorithm.learn(first.learnt, batch, first.slot.key, hypers))

    whole, half = learner(epochs=4), learner(epochs=2)
    masked = learner(epochs=4, elastic_batches=True)
    hypers = ready.algorithm.Hypers(lr=0.02)
    for plain, epoch_share in ((whole, 1.0), (half, 0.5)):
        expected, got = plain(ready.batch, hypers), masked(ready.batch, hypers.replace(epoch_share=epoch_share))
        jax.tree.map(close, got[0].params, expected[0].params)
        jax.tree.map(close, got[1], expected[1])

    # One step on all rows, of which the second half is hidden.
    one = learner(epochs=1, minibatches=1, elastic_batches=True)
    axis, rows = (0, 48) if name == "ippo_ff" else (1, 4)
    shown, hidden = order[0][: rows // 2], order[0][rows // 2 :]
    at = (slice(None),) * axis

    def poison(x):
        return jnp.asarray(x).at[(*at, hidden)].set(3.0) if jnp.issubdtype(x.dtype, jnp.floating) else x

    poisoned = jax.tree.map(poison, ready.batch)
    assert differ(poisoned.advantage, ready.batch.advantage)
    got = one(ready.batch, hypers.replace(batch_share=0.5))
    same(one(poisoned, hypers.replace(batch_share=0.5)), got)
    monkeypatch.setattr(minibatches, "permutations", lambda key, count, size: jnp.asarray(shown)[None])
    expected = learner(epochs=1, minibatches=1)(ready.batch, hypers)
    jax.tree.map(close, got[0].params, expected[0].params)
    jax.tree.map(close, got[1], expected[1])


SMALL = {"total_steps": 192, "num_envs": 4, "rollout_length": 5, "gradient_steps": 2, "learning_starts": 0}
OFF_POLICY = {
    "maddpg": (MADDPG, {"actor": Model(widths=(8,)), "q": Model(widths=(8,)), "buffer_size": 96}),
    "mad4pg": (MAD4PG, {"actor": Model(widths=(8,)), "q": Model(widths=(8,)), "buffer_size": 96}),
    "masac": (MASAC, {"actor": Model(widths=(8,)), "q": Model(widths=(8,)), "buffer_size": 96}),
    "qmix": (QMIX, {"q": Model("gru", widths=(8,), hidden=6), "mixer": "vdn", "buffer_size": 96}),
}


@dataclasses.dataclass(frozen=True)
class Rows(replay.Replay):
    """A replay that gives the same rows in every step, or copies of the first of them for those beyond ``shown``."""

    shown: int = 0

    def sample(self, state, key, beta=1.0):
        index = np.where(np.arange(self.batch_size) < self.shown, np.arange(self.batch_size), 0)
        items = jax.tree.map(lambda x: x[0, index], state.experience)
        return replay.Sample(items, jnp.asarray(index), jnp.ones(self.batch_size))


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_shares(name):
    """Hidden rows have no effect; a share of one is all; no steps is no change."""
    kind, small = OFF_POLICY[name]
    config = kind.Config(**SMALL | small, batch_size=4)
    algorithm = kind(dataclasses.replace(config, elastic_batches=True), toy())
    first = jax.jit(lambda: algorithm.update(algorithm.init(jax.random.PRNGKey(0), kind.Hypers()), kind.Hypers()))()[0]
    before, buffer, key = first.learnt, first.slot.buffer, first.slot.key

    def learner(shown: int, algorithm):
        rows = algorithm.replay
        algorithm.replay = Rows(rows.kind, rows.capacity, rows.batch_size, shown)
        return jax.jit(lambda hypers: algorithm.learn(before, buffer, key, hypers)[::2])  # what is learnt, metrics

    learn, plain = learner(4, copy.copy(algorithm)), learner(4, kind(config, toy()))
    hypers = kind.Hypers(lr=0.02)
    whole, half = plain(hypers), learn(hypers.replace(batch_share=0.5))
    jax.tree.map(close, (learn(hypers)[0].params, learn(hypers)[1]), (whole[0].params, whole[1]))
    assert differ(half[0].params, whole[0].params) and finite(half[0].params)
    others = learner(2, copy.copy(algorithm))
    same_half = others(hypers.replace(batch_share=0.5))
    jax.tree.map(close, (same_half[0].params, same_half[1]), (half[0].params, half[1]))
    assert differ(others(hypers)[0].params, whole[0].params)
    still = learn(hypers.replace(learn_share=0.0))
    same((still[0].params, still[0].opt_state, still[0].target), (before.params, before.opt_state, before.target))
