"""Running statistics against numpy over everything seen, and PopArt's promise that no value changes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import struct

from shoal.rl import normalisation
from shoal.rl.groups import Groups

POLICY_OF = np.array([0, 0, 1])
POLICIES = Groups(POLICY_OF)


def batches(poison: float, count: int = 3):
    """``count`` batches ``[4, 3]`` of three agents, some dead, and rows ``[4, 3, 5]`` of another scale each."""
    rng = np.random.default_rng(0)
    for i in range(count):
        alive = rng.random((4, 3)) < 0.7
        rows = rng.normal(size=(4, 3, 5)) * [1, 10, 100, 0.01, 0] + 3 * i
        yield np.where(alive[..., None], rows, poison).astype(np.float32), alive


@pytest.mark.parametrize("poison", [0.0, 1e6, np.nan])
def test_statistics_are_those_of_all_living_agents_so_far(poison):
    stats, seen = normalisation.init(5), []
    for obs, alive in batches(poison):
        stats = normalisation.update(stats, obs, alive)
        seen.append(obs[alive])
    seen = np.concatenate(seen)
    np.testing.assert_allclose(stats.mean, seen.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(stats.variance, seen.var(axis=0), rtol=1e-3)
    assert stats.count == len(seen)
    scaled = np.asarray(normalisation.apply(stats, seen))
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, atol=1e-2)


def test_nothing_seen_changes_nothing():
    obs = np.full((2, 3, 5), 7.0, np.float32)
    stats = normalisation.update(normalisation.init(5), obs, np.zeros((2, 3), bool))
    np.testing.assert_array_equal(normalisation.apply(stats, obs), obs)
    np.testing.assert_array_equal(normalisation.apply(stats, np.float32([20.0, -20.0, 0, 1, 2]))[:2], [10.0, -10.0])


def value_batches(poison: float, count: int):
    for obs, alive in batches(poison, count):
        yield obs[..., 1] * np.where(alive, [1, 1, 50], 1).astype(np.float32), alive


@pytest.mark.parametrize("poison", [0.0, 1e6, np.nan])
def test_returns_have_unit_scale_under_the_statistics_of_their_policy(poison):
    stats, seen = normalisation.init_values(2), ([], [])
    for target, alive in value_batches(poison, 4):
        stats = normalisation.update_values(stats, target, alive, POLICIES)
        for policy in range(2):
            seen[policy].append(target[:, policy == POLICY_OF][alive[:, policy == POLICY_OF]])
    for policy in range(2):  # every batch weighs alike at first
        means = [part.mean() for part in seen[policy]]
        np.testing.assert_allclose(stats.mean[policy], np.mean(means), rtol=1e-4)
        expected = np.mean([part.var() for part in seen[policy]]) + np.var(means)
        np.testing.assert_allclose(stats.variance[policy], expected, rtol=1e-4)


def test_one_batch_is_scaled_to_mean_zero_and_variance_one_and_back():
    target, alive = next(iter(value_batches(0.0, 1)))
    stats = normalisation.update_values(normalisation.init_values(2), target, alive, POLICIES)
    scaled = np.asarray(normalisation.from_reward_units(stats, target, POLICY_OF))
    for policy in range(2):
        mine = scaled[:, policy == POLICY_OF][alive[:, policy == POLICY_OF]]
        np.testing.assert_allclose([mine.mean(), mine.std()], [0.0, 1.0], atol=1e-4)
    back = normalisation.to_reward_units(stats, scaled, POLICY_OF)
    np.testing.assert_allclose(back, target, rtol=1e-4, atol=1e-4)
    first = normalisation.init_values(2)
    np.testing.assert_array_equal(normalisation.from_reward_units(first, target, POLICY_OF), target)


def test_old_returns_are_forgotten():
    stats = normalisation.init_values(1)
    alive, policy_of = np.ones((8, 1), bool), np.zeros(1, int)
    for mean in (0.0, 100.0):
        for _ in range(5 * normalisation.BATCHES_KEPT):
            target = mean + np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
            stats = normalisation.update_values(stats, target, alive, Groups(policy_of))
    assert abs(stats.mean[0] - 100.0) < 2.0


def test_a_policy_whose_agents_are_all_dead_keeps_its_statistics():
    target, alive = next(iter(value_batches(0.0, 1)))
    stats = normalisation.update_values(normalisation.init_values(2), target, alive, POLICIES)
    after = normalisation.update_values(stats, 9 * target, alive & np.array([True, True, False]), POLICIES)
    for old, new in zip(jax.tree.leaves(stats), jax.tree.leaves(after), strict=True):
        assert old[0] != new[0]
        assert old[1] == new[1]


class Rows(struct.PyTreeNode):
    """What ``follow_returns`` reads of a batch."""

    value: np.ndarray
    target: np.ndarray
    earning: np.ndarray


def test_popart_changes_statistics_and_no_value():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(20, 6)).astype(np.float32)
    head = {"kernel": rng.normal(size=(2, 6, 3)), "bias": rng.normal(size=(2, 3))}  # two policies, three values
    target, alive = next(iter(value_batches(0.0, 1)))
    old = normalisation.update_values(normalisation.init_values(2), target, alive, POLICIES)

    def values(stats, head):
        outputs = np.einsum("bf,pfv->bpv", features, head["kernel"]) + head["bias"]  # [20, P, 3]
        return np.asarray(normalisation.to_reward_units(stats, np.moveaxis(outputs, 1, 2), np.arange(2)))

    for kind in normalisation.VALUE_NORMS:
        batch = Rows(value=target, target=5 + 30 * target, earning=alive)
        stats, critic, _ = normalisation.follow_returns(kind, old, {"head": head}, batch, POLICIES)
        assert (stats is old) == (kind == "none")
        assert (critic["head"] is head) == (kind != "popart")
        kept = np.allclose(values(old, head), values(stats, critic["head"]), rtol=1e-4, atol=1e-3)
        assert kept == (kind != "running")
