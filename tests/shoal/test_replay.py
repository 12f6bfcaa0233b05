"""Replay: a ring that forgets the oldest, samples what it holds, and follows priorities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shoal import envs
from shoal.baselines.maddpg.mad4pg_ff_mpe import MAD4PG
from shoal.baselines.maddpg.maddpg_ff_mpe import MADDPG
from shoal.baselines.masac.masac_ff_vmas import MASAC
from shoal.baselines.qmix.qmix_rnn_mpe import QMIX
from shoal.errors import UserError
from shoal.rl import replay


def filled(kind: str, capacity: int, adds: int, size: int = 4, batch: int = 4):
    """A buffer into which ``adds`` batches of ``size`` numbered items went."""
    buffer = replay.Replay(kind, capacity, batch)
    state = buffer.init({"number": jnp.zeros((size,), jnp.int32), "row": jnp.zeros((size, 3))})
    for i in range(adds):
        number = jnp.arange(i * size, (i + 1) * size, dtype=jnp.int32)
        state = buffer.add(state, {"number": number, "row": jnp.tile(number[:, None], 3).astype(jnp.float32)})
    return buffer, state


def drawn(buffer, state, times: int = 400, beta: float = 1.0):
    keys = jax.random.split(jax.random.PRNGKey(0), times)
    return jax.vmap(lambda key: buffer.sample(state, key, beta))(keys)


@pytest.mark.parametrize("kind", replay.KINDS)
@pytest.mark.parametrize(("adds", "expected"), [(2, range(8)), (3, range(2, 12)), (6, range(14, 24))])
def test_the_ring_keeps_the_newest(kind, adds, expected):
    """A capacity that is no multiple of what is added: the ring wraps in the middle of a batch."""
    buffer, state = filled(kind, capacity=10, adds=adds)
    assert buffer.count(state) == len(expected)
    sample = drawn(buffer, state)
    assert set(np.unique(sample.items["number"])) == set(expected)
    np.testing.assert_array_equal(sample.items["row"][..., 0], sample.items["number"])
    np.testing.assert_allclose(sample.weight, 1.0, rtol=1e-5)  # all are as likely as each other


def test_priorities_decide_what_is_seen_and_weights_correct_for_it():
    buffer, state = filled("prioritised", capacity=8, adds=2)
    high = jnp.array([3])
    state = buffer.reprioritise(state, jnp.arange(8), jnp.ones(8), jnp.bool_(True))
    kept = buffer.reprioritise(state, high, jnp.array([100.0]), jnp.bool_(False))
    state = buffer.reprioritise(state, high, jnp.array([100.0]), jnp.bool_(True))
    share = {name: (drawn(buffer, s).items["number"] == 3).mean() for name, s in (("before", kept), ("after", state))}
    expected = 100**replay.PRIORITY_EXPONENT / (7 + 100**replay.PRIORITY_EXPONENT)
    np.testing.assert_allclose(share["before"], 1 / 8, atol=0.03)
    np.testing.assert_allclose(share["after"], expected, atol=0.03)
    for beta in (0.0, 0.5, 1.0):
        sample = drawn(buffer, state, beta=beta)
        weight = np.where(sample.items["number"] == 3, sample.weight, 1.0).min()  # beside one of the others
        np.testing.assert_allclose(weight, 100 ** (-replay.PRIORITY_EXPONENT * beta), rtol=0.02)


def test_what_is_learnt_perfectly_can_still_be_drawn():
    buffer, state = filled("prioritised", capacity=4, adds=1)
    state = buffer.reprioritise(state, jnp.arange(4), jnp.zeros(4), jnp.bool_(True))
    assert set(np.unique(drawn(buffer, state).items["number"])) == set(range(4))


def play(buffer: replay.Replay, added: int, rounds: int, learns: int):
    """Rounds of one addition and ``learns`` draws, each re-prioritised over six orders of magnitude.

    Beside them a plain array of priorities says how often each item should come.
    """
    slots = jnp.arange(buffer.capacity)

    def learn(carry, key):
        state, priority, highest, count, seen, expected, faults = carry
        sample_key, priority_key = jax.random.split(key)
        sample = buffer.sample(state, sample_key, beta=1.0)
        share = jnp.where(slots < count, priority, 0.0) ** replay.PRIORITY_EXPONENT
        weight = share[sample.index].min() / share[sample.index]
        faults = {
            "beyond what is stored": faults["beyond what is stored"] + (sample.index >= count).sum(),
            "of probability 0": faults["of probability 0"] + (share[sample.index] == 0).sum(),
            "another item": faults["another item"] + (sample.items != sample.index).sum(),
            "weights": faults["weights"] + (~jnp.isclose(sample.weight, weight, rtol=1e-4)).sum(),
        }
        seen = seen.at[sample.index].add(1.0)
        expected = expected + buffer.batch_size * share / share.sum()
        new = (10.0 ** jax.random.uniform(priority_key, slots.shape, minval=-3, maxval=3))[sample.index]
        state = buffer.reprioritise(state, sample.index, new, jnp.bool_(True))
        priority, highest = priority.at[sample.index].set(new), jnp.maximum(highest, new.max())
        return (state, priority, highest, count, seen, expected, faults), None

    def round_(carry, inputs):
        state, priority, highest, number, *record = carry
        key, i = inputs
        index = (i * added + jnp.arange(added)) % buffer.capacity
        state = buffer.add(state, index)
        count = jnp.minimum(number + added, buffer.capacity)
        carry = (state, priority.at[index].set(highest), highest, count, *record)
        return jax.lax.scan(learn, carry, jax.random.split(key, learns))[0], None

    none = jnp.zeros(buffer.capacity)
    faults = dict.fromkeys(("beyond what is stored", "of probability 0", "another item", "weights"), jnp.int32(0))
    carry = (buffer.init(jnp.zeros(added, jnp.int32)), none, jnp.float32(1.0), jnp.int32(0), none, none, faults)
    keys = jax.random.split(jax.random.PRNGKey(0), rounds)
    carry, _ = jax.lax.scan(round_, carry, (keys, jnp.arange(rounds)))
    return *carry[4:], *carry[:2]


@pytest.mark.parametrize(
    ("capacity", "added", "batch", "rounds", "learns"),
    [(1003, 40, 256, 100, 40), (64, 64, 64, 40, 20), (33, 32, 7, 100, 20)],
    ids=["a million draws, odd", "the smallest", "wraps by one"],
)
def test_prioritised_draws_are_those_of_a_plain_array(capacity, added, batch, rounds, learns):
    buffer = replay.make("prioritised", capacity, 1, batch, added)
    seen, expected, faults, state, priority = jax.jit(play, static_argnums=(0, 1, 2, 3))(buffer, added, rounds, learns)
    assert {name: int(count) for name, count in faults.items()} == dict.fromkeys(faults, 0)
    assert seen.sum() == rounds * learns * batch
    often = np.asarray(expected) >= 5
    expected = np.asarray(expected)[often] * (seen[often].sum() / expected[often].sum())
    assert stats.chisquare(np.asarray(seen)[often], expected, sum_check=False).pvalue > 1e-3
    np.testing.assert_allclose(state.priority[:capacity], priority**replay.PRIORITY_EXPONENT, rtol=1e-5)
    assert not state.priority[capacity:].any()


def test_frequencies_agree_with_priorities_of_six_orders():
    """A million draws from priorities that stay: a large buffer, not full, and the last row is not either."""
    buffer, count = replay.Replay("prioritised", 20_000, 256), 12_345
    state = buffer.add(buffer.init(jnp.zeros(count)), jnp.arange(count, dtype=jnp.float32))
    priority = 10.0 ** np.random.default_rng(0).uniform(-3, 3, count)
    state = buffer.reprioritise(state, jnp.arange(count), jnp.asarray(priority, jnp.float32), jnp.bool_(True))
    draw = jax.jit(lambda keys: jax.lax.map(lambda key: buffer.sample(state, key).index, keys))
    seen = np.bincount(np.ravel(draw(jax.random.split(jax.random.PRNGKey(1), 4000))), minlength=count)
    assert len(seen) == count
    share = priority**replay.PRIORITY_EXPONENT
    expected = seen.sum() * share / share.sum()
    rare = expected < 5
    observed, expected = (np.append(x[~rare], x[rare].sum()) for x in (seen, expected))
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_a_new_item_has_exactly_the_highest_priority_so_far():
    buffer, state = filled("prioritised", capacity=10, adds=1)
    for highest in (1.9, 0.3, 2.7):
        state = buffer.reprioritise(state, jnp.arange(4), jnp.array([0.5, highest, 0.1, 0.2]), jnp.bool_(True))
        state = buffer.add(state, {"number": jnp.arange(4, 8, dtype=jnp.int32), "row": jnp.zeros((4, 3))})
    state = buffer.reprioritise(state, jnp.arange(10), jnp.ones(10), jnp.bool_(True))
    state = buffer.reprioritise(state, jnp.array([0]), jnp.array([2.7]), jnp.bool_(True))
    state = buffer.add(state, {"number": jnp.arange(4), "row": jnp.zeros((4, 3))})  # at 6 .. 9
    sample = drawn(buffer, state)
    lowest = sample.weight.min(axis=1, keepdims=True)
    high = (sample.weight == lowest) & (lowest < 1)  # equal to the bit, and there are others in the batch
    assert set(np.unique(sample.index[high])) == {0, 6, 7, 8, 9}


def test_what_is_no_number_makes_no_weight_that_is_none():
    buffer, state = filled("prioritised", capacity=8, adds=2)
    bad = jnp.array([jnp.nan, jnp.inf, -jnp.inf, -1.0, 0.0, 1e38])
    state = buffer.reprioritise(state, jnp.arange(6), bad, jnp.bool_(True))
    sample = drawn(buffer, state)
    assert np.isfinite(sample.weight).all() and (sample.index < 8).all()
    state = buffer.reprioritise(state, jnp.arange(8), jnp.ones(8), jnp.bool_(True))
    assert set(np.unique(drawn(buffer, state).index)) == set(range(8))  # and nothing is left of it


def test_of_several_priorities_for_an_item_the_highest_counts():
    buffer, state = filled("prioritised", capacity=8, adds=2)
    state = buffer.reprioritise(state, jnp.arange(8), jnp.ones(8), jnp.bool_(True))
    priorities = jnp.array([1.0, 3.0, 2.0]) / 10
    states = [
        buffer.reprioritise(state, jnp.array([5, 5, 5]), priorities[jnp.array(order)], jnp.bool_(True))
        for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1])
    ]
    for other in states:
        np.testing.assert_allclose(other.priority[5], 0.3**replay.PRIORITY_EXPONENT, rtol=1e-6)


class Asked(Exception):
    """The beta that a sample was asked for."""


class Asks(replay.Replay):
    def sample(self, state, key, beta=1.0):
        raise Asked(float(beta))


@pytest.mark.parametrize("kind", [MADDPG, MAD4PG, MASAC, QMIX])
def test_beta_rises_to_one_over_the_training(kind):
    config = kind.Config(total_steps=3200, num_envs=4, rollout_length=8, replay="prioritised")
    algorithm = kind(config, envs.make("mpe/simple"))
    algorithm.replay = Asks("prioritised", 1000, config.batch_size)
    hypers, asked = kind.Hypers(priority_beta=0.4), []
    like = jax.eval_shape(algorithm.init, jax.random.PRNGKey(0), hypers)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like.learnt)
    for updates in (0, 50, 100, 200):
        learnt = nothing.replace(updates=jnp.int32(updates))
        with pytest.raises(Asked) as error:
            algorithm.learn(learnt, None, jax.random.PRNGKey(0), hypers)
        asked.append(error.value.args[0])
    np.testing.assert_allclose(asked, [0.4, 0.7, 1.0, 1.0], rtol=1e-6)


def test_room_for_a_batch():
    assert replay.make("uniform", 1000, 10, batch_size=32, added=8).capacity == 100
    with pytest.raises(UserError, match=r"algo.buffer_size=100: .* at least 320 steps"):
        replay.make("uniform", 100, 10, batch_size=32, added=8)
