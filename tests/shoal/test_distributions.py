"""Action distributions: masks, log-probabilities, bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from envs.base import Continuous, Discrete
from shoal import distributions


def test_illegal_actions_are_never_sampled_even_with_extreme_logits():
    space = Discrete((4, 4))
    mask = jnp.array([[True, False, True, False], [False, False, False, True]])
    logits = jnp.array([[0.0, 1e4, -1e4, 1e8], [50.0, 1e8, 0.0, -1e8]])
    pi = distributions.policy(space, jnp.broadcast_to(logits, (500, 2, 4)), mask)
    actions = np.asarray(pi.sample_from(distributions.noise(jax.random.PRNGKey(0), space, (500,))))
    assert set(actions[:, 0]) <= {0, 2}
    assert set(actions[:, 1]) == {3}
    assert np.asarray(mask)[np.arange(2), np.asarray(pi.mode())].all()
    assert np.isfinite(pi.entropy()).all()


def test_categorical_agrees_with_probabilities():
    logits = jax.random.normal(jax.random.PRNGKey(0), (3, 5))
    mask = jnp.ones((3, 5), bool).at[:, 4].set(False)
    pi = distributions.policy(Discrete((5, 5, 5)), logits, mask)
    probs = np.where(mask, np.exp(logits), 0)
    probs /= probs.sum(-1, keepdims=True)
    for action in range(4):
        np.testing.assert_allclose(pi.log_prob(jnp.full(3, action)), np.log(probs[:, action]), rtol=1e-5)
    np.testing.assert_allclose(pi.entropy(), [stats.entropy(p) for p in probs], rtol=1e-5)
    noise = distributions.noise(jax.random.PRNGKey(1), Discrete((5, 5, 5)), (20_000,))
    actions = np.asarray(pi.sample_from(noise))
    frequencies = np.stack([(actions == a).mean(axis=0) for a in range(5)], axis=-1)
    np.testing.assert_allclose(frequencies, probs, atol=0.015)


@pytest.mark.parametrize("kind", distributions.KINDS)
def test_continuous_actions_stay_inside_their_bounds(kind):
    space = Continuous.box((2, 1), -3.0, 1.0)
    mask = jnp.array([[True, True], [True, False]])
    pi = distributions.policy(space, jax.random.normal(jax.random.PRNGKey(0), (2, 4)) * 3, mask, kind)
    raw = pi.sample_from(distributions.noise(jax.random.PRNGKey(1), space, (1000,)))
    action = distributions.to_env(space, raw, kind)
    assert action.min() >= -3.0
    assert action.max() <= 1.0
    expected = stats.norm.logpdf(raw, pi.loc, pi.scale)
    np.testing.assert_allclose(pi.log_prob(raw)[:, 0], expected[:, 0].sum(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pi.log_prob(raw)[:, 1], expected[:, 1, 0], rtol=1e-4, atol=1e-4)  # padding left out


def test_squashing_lowers_the_entropy():
    outputs = jnp.array([[2.0, 0.0]])
    mask = jnp.ones((1, 1), bool)
    space = Continuous.box((1,), -1.0, 1.0)
    squashed = distributions.policy(space, outputs, mask, "tanh_normal").entropy()
    clipped = distributions.policy(space, outputs, mask, "clipped_normal").entropy()
    assert squashed < clipped
