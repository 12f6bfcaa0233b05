"""The sort-free shuffle is a permutation, and looks random."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shoal.rl.shuffle import permutations


@settings(deadline=None, max_examples=8)
@given(st.integers(1, 600), st.integers(0, 1000))
def test_every_index_once(size, seed):
    order = np.asarray(permutations(jax.random.PRNGKey(seed), 3, size))
    np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(size), (3, 1)))


@pytest.mark.parametrize("size", [512, 2048, 1021, 2000])
def test_looks_random(size):
    orders = np.asarray(permutations(jax.random.PRNGKey(0), 400, size))
    # Each index is equally likely at each place: mean and spread of a uniform draw.
    assert abs(orders[:, 0].mean() / (size - 1) - 0.5) < 0.06
    assert abs(orders[:, size // 2].std() / size - 12**-0.5) < 0.03
    # A contiguous minibatch is spread over the whole range, and neighbours part.
    assert np.abs(orders[:, : size // 4].mean(axis=1) / size - 0.5).max() < 0.12
    assert np.mean(np.abs(np.diff(orders, axis=1)) == 1) < 0.02
    assert abs(np.corrcoef(orders[:, 0], orders[:, 1])[0, 1]) < 0.2


def test_epochs_and_keys_differ():
    first = np.asarray(permutations(jax.random.PRNGKey(0), 2, 256))
    other = np.asarray(permutations(jax.random.PRNGKey(1), 2, 256))
    assert (first[0] != first[1]).mean() > 0.9
    assert (first[0] != other[0]).mean() > 0.9


@pytest.mark.parametrize("size", range(2, 9))
def test_every_order_of_a_few_is_equally_likely(size):
    """Chi-squared over all orders, twelve of each; the orders of two epochs of a key go in side by side."""
    count = 12 * math.factorial(size)
    keys = jax.random.split(jax.random.PRNGKey(size), count // 2)
    orders = np.asarray(jax.jit(jax.vmap(lambda key: permutations(key, 2, size)))(keys))
    rank = (orders.reshape(count, size) * size ** np.arange(size)).sum(axis=1)
    _, seen = np.unique(rank, return_counts=True)
    seen = np.concatenate([seen, np.zeros(math.factorial(size) - len(seen))])
    assert stats.chisquare(seen).pvalue > 0.001
