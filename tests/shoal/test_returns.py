"""GAE, TD(lambda) and n-step returns against plain loops; masked means against the rows that they leave."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.rl.groups import Groups
from shoal.rl.returns import gae, lambda_returns, masked_mean, n_step_returns


def plain_gae(reward, value, next_value, terminated, ended, gamma, lam):
    advantages = np.zeros_like(reward)
    for index in np.ndindex(reward.shape[1:]):
        running = 0.0
        for t in reversed(range(len(reward))):
            at = (t, *index)
            bootstrap = 0.0 if terminated[at] else next_value[at]
            delta = reward[at] + gamma * bootstrap - value[at]
            running = delta + (0.0 if ended[at] else gamma * lam * running)
            advantages[at] = running
    return advantages


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_a_plain_loop(seed, gamma, lam):
    rng = np.random.default_rng(seed)
    shape = (12, 3, 2)
    reward, value, next_value = rng.normal(size=(3, *shape)).astype(np.float32)
    terminated = rng.random(shape) < 0.15
    ended = terminated | (rng.random(shape) < 0.15)  # some only truncated
    expected = plain_gae(reward, value, next_value, terminated, ended, gamma, lam)
    np.testing.assert_allclose(
        gae(reward, value, next_value, terminated, ended, gamma, lam), expected, rtol=1e-4, atol=1e-4
    )


def test_truncation_bootstraps_and_termination_does_not():
    zeros = np.zeros((2, 1), np.float32)
    next_value = np.full((2, 1), 10.0, np.float32)
    ended = np.array([[True], [True]])
    terminated = np.array([[True], [False]])
    advantage = gae(zeros, zeros, next_value, terminated, ended, 0.9, 0.95)
    np.testing.assert_allclose(advantage[:, 0], [0.0, 9.0])


def test_masked_mean_never_sees_what_is_hidden():
    x = np.array([1.0, 2.0, np.nan, np.inf], np.float32)
    assert masked_mean(x, np.array([True, True, False, False])) == 1.5
    assert masked_mean(x, np.zeros(4, bool)) == 0.0


IDS = np.array([0, 0, 1, 2])  # the last group is never there


def some_hidden():
    """``[5, 4]``: entries of which some are NaN, the mask that hides them, and each group's other entries."""
    rng = np.random.default_rng(0)
    where = np.array([True, True, True, False]) & (rng.random((5, 4)) < 0.7)
    x = np.where(where, rng.normal(3.0, [1.0, 2.0, 50.0, 1.0], (5, 4)), np.nan).astype(np.float32)
    return x, where, [x[:, group == IDS][where[:, group == IDS]] for group in range(3)]


def test_a_mean_is_of_each_groups_entries():
    x, where, entries = some_hidden()
    expected = [entries[0].mean(), entries[1].mean(), 0.0]
    np.testing.assert_allclose(Groups(IDS).mean(x, where), expected, rtol=1e-5)
    alone = np.zeros(4, int)
    np.testing.assert_allclose(Groups(alone).mean(x, where), [np.concatenate(entries).mean()], rtol=1e-5)


def test_normalise_is_inside_each_group_and_over_living_entries_only():
    x, where, entries = some_hidden()
    ours = np.asarray(Groups(IDS).normalise(x, where))
    for group in range(2):
        mine = ours[:, group == IDS][where[:, group == IDS]]
        np.testing.assert_allclose(mine, (entries[group] - entries[group].mean()) / entries[group].std(), rtol=1e-4)
    louder = np.asarray(Groups(IDS).normalise(x * np.array([1e3, 1e3, 1, 1], np.float32), where))
    np.testing.assert_array_equal(louder[:, 2], ours[:, 2])
    np.testing.assert_allclose(louder[:, :2], ours[:, :2], rtol=1e-4)


def plain_target(reward, next_value, terminated, ended, gamma, t, steps):
    """``steps`` rewards from ``t``, then the bootstrap, of one episode's or sequence's rest."""
    future = 0.0 if terminated[t] else next_value[t]
    if steps > 1 and not ended[t] and t + 1 < len(reward):
        future = plain_target(reward, next_value, terminated, ended, gamma, t + 1, steps - 1)
    return reward[t] + gamma * future


def plain_lambda(reward, next_value, terminated, ended, gamma, lam, t):
    """The geometric mixture of all n-step targets (Sutton and Barto 12.2)."""
    left = next((k for k in range(t, len(reward)) if ended[k]), len(reward) - 1) - t + 1  # steps to the end
    targets = [plain_target(reward, next_value, terminated, ended, gamma, t, n) for n in range(1, left + 1)]
    mixture = sum((1 - lam) * lam**n * target for n, target in enumerate(targets[:-1]))
    return mixture + lam ** (left - 1) * targets[-1]


def episodes(seed, shape=(9, 3)):
    """Rewards, successors' values, terminations and ends, some of them truncations."""
    rng = np.random.default_rng(seed)
    reward, next_value = rng.normal(size=(2, *shape)).astype(np.float32)
    terminated = rng.random(shape) < 0.15
    return reward, next_value, terminated, terminated | (rng.random(shape) < 0.15)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(1, 12))
def test_n_step_returns_equal_a_plain_loop(seed, gamma, steps):
    data = episodes(seed)
    columns = [[x[:, i] for x in data] for i in range(3)]
    expected = [[plain_target(*column, gamma, t, steps) for column in columns] for t in range(9)]
    np.testing.assert_allclose(n_step_returns(*data, gamma, steps), expected, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_lambda_returns_equal_the_mixture_of_n_step_returns(seed, gamma, lam):
    data = episodes(seed)
    columns = [[x[:, i] for x in data] for i in range(3)]
    expected = [[plain_lambda(*column, gamma, lam, t) for column in columns] for t in range(9)]
    np.testing.assert_allclose(lambda_returns(*data, gamma, lam), expected, rtol=1e-4, atol=1e-5)
