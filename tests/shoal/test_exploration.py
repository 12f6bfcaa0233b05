"""Epsilon-greedy choice and schedules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.rl.exploration import anneal, best, choice_noise, epsilon_greedy, taken


def test_anneal_falls_over_its_fraction_and_stays():
    progress = np.array([0.0, 0.05, 0.1, 0.5, 1.0])
    np.testing.assert_allclose(anneal(1.0, 0.2, 0.1, progress), [1.0, 0.6, 0.2, 0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(anneal(1.0, 0.2, 0.0, np.array([0.1])), [0.2], rtol=1e-6)  # a fall over nothing


def test_epsilon_is_the_share_of_random_legal_actions():
    shape, mask = (20_000,), jnp.array([True, False, True, True])
    values = jnp.array([0.0, 1e30, 5.0, -3.0])
    noise = choice_noise(jax.random.PRNGKey(0), shape, 4)
    for epsilon in (0.0, 0.3, 1.0):
        action = epsilon_greedy(jnp.tile(values, (*shape, 1)), mask, epsilon, noise)
        share = np.bincount(action, minlength=4) / len(action)
        expected = np.array([1, 0, 1, 1]) / 3 * epsilon + np.array([0, 0, 1, 0]) * (1 - epsilon)
        np.testing.assert_allclose(share, expected, atol=0.012)
        assert share[1] == 0


def test_best_and_taken():
    values = jnp.array([[1.0, 9.0, 3.0], [-5.0, -9.0, -jnp.inf]])
    mask = jnp.array([[True, False, True], [True, True, False]])
    np.testing.assert_array_equal(best(values, mask), [2, 0])
    np.testing.assert_array_equal(taken(values, jnp.array([1, 0])), [9.0, -5.0])
