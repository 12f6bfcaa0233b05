"""Sequences cut from rollouts: every step's true successor, against a plain loop."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nn.memory import in_sequences
from shoal.rl import sequences

STEPS, ENVS, HORIZON = 12, 5, 3


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 12])
def test_every_step_has_its_true_successor(length, host):
    """Wherever the time limit strikes: inside, at the edges, or nowhere; on the host at any step."""
    keys = jax.random.split(jax.random.PRNGKey(length), 3)
    rows, last = (jax.random.normal(key, (STEPS, ENVS, 2)) for key in keys[:2])
    truncated = (jnp.arange(STEPS)[:, None] + jnp.arange(ENVS)) % HORIZON == 0
    truncated = truncated.at[:, -1].set(False)
    if host:
        truncated = jax.random.bernoulli(keys[2], 0.5, truncated.shape)
    env = SimpleNamespace(host=host, horizon=HORIZON, terminates=True)
    count = sequences.most_finals(length, env)
    at, finals = sequences.finals(truncated, last, length, count)
    found = sequences.successors(in_sequences(rows, length), at, finals)
    assert at.shape == (count, STEPS // length * ENVS)
    check(found, truncated, rows, last, length)


@pytest.mark.parametrize("length", [3, 6, 12])
def test_whole_episodes_need_no_place_more(length):
    """Nothing ends early and sequences are whole episodes: as many finals as episodes."""
    rows, last = (jax.random.normal(key, (STEPS, ENVS, 2)) for key in jax.random.split(jax.random.PRNGKey(0)))
    truncated = jnp.broadcast_to(jnp.arange(STEPS)[:, None] % HORIZON == HORIZON - 1, (STEPS, ENVS))
    count = sequences.most_finals(length, SimpleNamespace(host=False, horizon=HORIZON, terminates=False))
    assert count == length // HORIZON
    at, finals = sequences.finals(truncated, last, length, count)
    check(sequences.successors(in_sequences(rows, length), at, finals), truncated, rows, last, length)


def check(found, truncated, rows, last, length):
    """``found [L, B, ...]`` against a loop over steps."""
    for piece in range(STEPS // length):
        for e in range(ENVS):
            for i in range(length):
                t = piece * length + i
                broken_off = truncated[t, e] or i == length - 1
                expected = last[t, e] if broken_off else rows[t + 1, e]
                np.testing.assert_array_equal(found[i, piece * ENVS + e], expected)
