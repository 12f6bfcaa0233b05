"""Action distributions: masks, log-probabilities, bounds."""

from __future__ import annotations

import itertools

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shoal.envs.base import Continuous, Discrete, MultiDiscrete, size_mask
from shoal.rl import distributions

EXTREME = (-np.inf, -3e38, -2e30, -1e30, -1e9, -50.0, 0.0, 50.0, 1e9, 1e30, 3e38, np.inf)
MULTI = MultiDiscrete(((5, 3), (5, 1), (1, 3), (2, 2)))
SOME_LEGAL = np.array([[True, False, True, False], [False, False, False, True], [True, True, True, True]])


def legal_choices(space, mask: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Whether each choice of the actions ``[..., A]`` or ``[..., A, D]`` is legal."""
    if isinstance(space, Discrete):
        return mask[np.arange(len(mask)), action]
    starts = np.cumsum((0, *space.parts[:-1]))
    return mask[np.arange(len(mask))[:, None], action + starts]


@pytest.mark.parametrize("space, mask", [(Discrete((4, 4, 4)), SOME_LEGAL), (MULTI, size_mask(MULTI.sizes))])
def test_illegal_actions_are_never_taken_even_with_extreme_logits(space, mask):
    legal, illegal = (x.reshape(-1, 1, 1) for x in np.meshgrid(EXTREME, EXTREME))
    alike = np.where(mask, legal, illegal)
    one_high = np.where(mask & (np.cumsum(mask, axis=-1) > 1), -1e30, alike)
    logits = np.concatenate([alike, one_high]).astype(np.float32)  # [cases, A, N]
    noise = distributions.noise(jax.random.PRNGKey(0), space, (100, len(logits)))

    def terms(logits):
        pi = distributions.policy(space, logits, mask)
        action = pi.sample_from(noise)
        log_prob, entropy = pi.log_prob(action), pi.entropy()
        return log_prob.mean() + entropy.mean(), (action, pi.mode(), log_prob, entropy)

    grads, (action, mode, log_prob, entropy) = jax.device_get(jax.grad(terms, has_aux=True)(logits))
    assert legal_choices(space, mask, action).all()
    assert legal_choices(space, mask, mode).all()
    assert all(np.isfinite(x).all() for x in (grads, log_prob, entropy))


def test_the_mode_is_the_best_legal_action_at_any_scale():
    mask = jnp.array([True, True, False])
    for low, high in ((-2e29, -1e29), (-3.0, -1.0), (1e29, 2e29), (-1e29, 1e29)):
        assert distributions.Categorical(jnp.array([low, high, 1e30]), mask).mode() == 1
        assert distributions.Categorical(jnp.array([high, low, 1e30]), mask).mode() == 0


def test_an_agent_without_legal_actions_gets_finite_numbers():
    pi = distributions.policy(Discrete((3,)), jnp.array([[1.0, -2.0, 5.0]]), jnp.zeros((1, 3), bool))
    np.testing.assert_allclose(pi.log_prob(jnp.array([1])), -np.log(3), rtol=1e-5)
    np.testing.assert_allclose(pi.entropy(), np.log(3), rtol=1e-5)


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


def test_multi_discrete_agrees_with_a_loop_over_agents_and_sub_actions():
    rng = np.random.default_rng(0)
    space, mask = MULTI, size_mask(MULTI.sizes)
    mask[0, 2] = False  # a legal size, an illegal move
    assert space.parts == (5, 3) and distributions.head_size(space) == space.size == 8 and len(space.sizes) == 4
    logits = rng.normal(size=(6, 4, 8)).astype(np.float32)
    pi = distributions.policy(space, logits, mask)
    action = pi.sample_from(distributions.noise(jax.random.PRNGKey(0), space, (6,)))
    assert action.shape == pi.mode().shape == (6, 4, 2) and action.dtype == jnp.int32
    assert distributions.to_env(space, action) is action

    log_prob, entropy, mode = np.zeros((6, 4)), np.zeros((6, 4)), np.zeros((6, 4, 2), int)
    for e, i, (d, start, stop) in itertools.product(range(6), range(4), [(0, 0, 5), (1, 5, 8)]):
        probs = np.exp(logits[e, i, start:stop]) * mask[i, start:stop]
        probs /= probs.sum()
        log_prob[e, i] += np.log(probs[action[e, i, d]])
        entropy[e, i] += stats.entropy(probs)
        mode[e, i, d] = probs.argmax()
    np.testing.assert_allclose(pi.log_prob(action), log_prob, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pi.entropy(), entropy, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(pi.mode(), mode)

    poisoned = distributions.policy(space, np.where(mask, logits, 1e6), mask)
    np.testing.assert_array_equal(poisoned.log_prob(action), pi.log_prob(action))
    np.testing.assert_array_equal(poisoned.entropy(), pi.entropy())


def test_multi_discrete_sub_actions_are_drawn_independently_at_their_frequencies():
    space, mask = MULTI, size_mask(MULTI.sizes)
    logits = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    probs = np.exp(logits) * mask
    moves, words = (part / part.sum(-1, keepdims=True) for part in np.split(probs, [5], axis=-1))
    noise = distributions.noise(jax.random.PRNGKey(1), space, (20_000,))
    action = np.asarray(distributions.policy(space, logits, mask).sample_from(noise))
    for i in range(4):
        counts = np.zeros((5, 3))
        np.add.at(counts, tuple(action[:, i].T), 1)
        np.testing.assert_allclose(counts / 20_000, np.outer(moves[i], words[i]), atol=0.015)


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
    spread = np.where(mask, stats.norm.entropy(pi.loc, pi.scale), 0.0)
    slope = np.where(mask, np.log(1 - np.tanh(pi.loc) ** 2), 0.0) if kind == "tanh_normal" else 0.0
    np.testing.assert_allclose(pi.entropy(), (spread + slope).sum(-1), rtol=1e-3)


def test_squashing_lowers_the_entropy():
    outputs = jnp.array([[2.0, 0.0]])
    mask = jnp.ones((1, 1), bool)
    space = Continuous.box((1,), -1.0, 1.0)
    squashed = distributions.policy(space, outputs, mask, "tanh_normal").entropy()
    clipped = distributions.policy(space, outputs, mask, "clipped_normal").entropy()
    assert squashed < clipped


def test_the_density_of_a_squashed_sample_is_that_of_distrax_and_sums_to_one():
    space, mask = Continuous.box((2, 1), -3.0, 1.0), jnp.array([[True, True], [True, False]])
    outputs = 0.8 * jax.random.normal(jax.random.PRNGKey(0), (2, 4))
    noise = distributions.noise(jax.random.PRNGKey(1), space, (200,))
    pi = distributions.policy(space, outputs, mask)
    raw, log_prob = pi.sample_and_log_prob(noise)
    np.testing.assert_allclose(raw, pi.sample_from(noise))
    squashed = distrax.Transformed(distrax.Normal(pi.loc, pi.scale), distrax.Tanh())
    expected = np.where(mask, squashed.log_prob(jnp.tanh(raw)), 0.0).sum(-1)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-3, atol=1e-3)

    actions = np.linspace(-1.0, 1.0, 200_001)[1:-1]
    fine = (np.arctanh(actions)[:, None] - pi.loc[1, :1]) / pi.scale[1, :1]  # the agent of one dimension
    one = distributions.Normal(pi.loc[1, :1], pi.log_std[1, :1], jnp.array([True]), squash=True)
    density = np.exp(one.sample_and_log_prob(fine)[1])
    np.testing.assert_allclose(np.trapezoid(density, actions), 1.0, atol=1e-3)


def test_the_density_of_a_squashed_sample_is_finite_far_out_and_has_the_gradient_of_its_parameters():
    mask, noise = jnp.array([True]), jnp.array([0.7])

    def log_prob(mean, log_std):
        return distributions.Normal(mean[None], log_std[None], mask, squash=True).sample_and_log_prob(noise)[1]

    for mean, log_std in ((0.3, -0.5), (60.0, 0.0), (-60.0, 2.0), (0.0, -5.0)):
        value, grads = jax.value_and_grad(log_prob, argnums=(0, 1))(mean * jnp.ones(()), log_std * jnp.ones(()))
        raw = mean + np.exp(log_std) * 0.7
        slope = -2.0 * np.log(np.cosh(raw))
        np.testing.assert_allclose(value, stats.norm.logpdf(0.7) - log_std - slope, rtol=1e-4)
        to_mean = 2.0 * np.tanh(raw)
        np.testing.assert_allclose(grads, (to_mean, -1.0 + to_mean * np.exp(log_std) * 0.7), rtol=1e-4, atol=1e-5)
