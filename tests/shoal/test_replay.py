"""Replay: a ring that forgets the oldest, samples what it holds, and follows priorities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.base import UserError
from shoal import replay


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


def test_room_for_a_batch():
    assert replay.make("uniform", 1000, 10, batch_size=32, added=8).capacity == 100
    with pytest.raises(UserError, match=r"algo.buffer_size=100: .* at least 320 steps"):
        replay.make("uniform", 100, 10, batch_size=32, added=8)
