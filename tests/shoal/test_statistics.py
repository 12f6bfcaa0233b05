"""Statistics against rliable's and marl-eval's own figures (tools/record_statistics.py), and plain loops."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal.report import statistics
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads((ROOT / "tests" / "data" / "statistics.json").read_text())


def close(ours: statistics.Estimate, theirs: dict) -> None:
    """The same figure, and the same interval up to the noise of two bootstraps (a few hundredths of its width)."""
    low, high = np.array(theirs["interval"])
    width = np.maximum(high - low, 0.02)
    np.testing.assert_allclose(np.atleast_1d(ours.value), theirs["value"], atol=1e-12)
    assert (np.abs(ours.low - low) < 0.06 * width).all()
    assert (np.abs(ours.high - high) < 0.06 * width).all()


@pytest.mark.parametrize("name", ["alpha", "beta", "gamma"])
def test_rliables_figures(recorded, name):
    scores = np.array(recorded["scores"][name])
    every = statistics.aggregates(scores, draws=20_000)
    assert list(every) == ["IQM", "median", "mean", "optimality gap"]
    for position, ours in enumerate(every.values()):
        theirs = recorded["aggregates"][name]
        interval = np.array(theirs["interval"])[:, position]
        close(ours, {"value": theirs["value"][position], "interval": interval})
    close(statistics.curve(np.array(recorded["curves"][name]), draws=20_000), recorded["efficiency"][name])
    # A profile moves in steps of one run: a quantile may fall on either side of a step.
    taus, theirs = np.array(recorded["taus"]), recorded["profiles"][name]
    ours = statistics.profile(scores, taus, draws=20_000)
    np.testing.assert_allclose(ours.value, theirs["value"], atol=1e-12)
    step = 1 / scores.size + 1e-9
    assert (np.abs(np.array([ours.low, ours.high]) - theirs["interval"]) < step).all()


def test_rliables_probability_of_improvement(recorded):
    assert len(recorded["improvement"]) == 6
    for pair, theirs in recorded["improvement"].items():
        x, y = (np.array(recorded["scores"][name]) for name in pair.split())
        close(statistics.improvement(x, y, draws=20_000), theirs)


def test_improvement_counts_pairs_and_halves_ties():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (7, 3)).astype(float), rng.integers(0, 4, (5, 3)).astype(float)
    wins = [np.mean([(a > b) + 0.5 * (a == b) for a in x[:, t] for b in y[:, t]]) for t in range(3)]
    ours = statistics.improvement(x, y)
    assert ours.value == pytest.approx(np.mean(wins))
    assert ours.low <= ours.value <= ours.high
    assert statistics.improvement(y, x).value == pytest.approx(1 - ours.value)
    assert statistics.improvement(x, x).value == 0.5


def test_the_bootstrap_keeps_tasks_apart():
    # Runs of a task are equal, tasks are far apart: drawing runs inside tasks can change nothing.
    scores = np.tile([0.0, 10.0, 20.0], (8, 1))
    for name, estimate in statistics.aggregates(scores).items():
        assert estimate.low == estimate.value == estimate.high, name
    curve = statistics.curve(np.repeat(scores[:, :, None], 4, axis=2))
    assert curve.value.shape == (4,)
    np.testing.assert_array_equal(curve.low, curve.high)


def test_one_run_has_no_interval_and_many_do_not_run_out_of_memory():
    one = statistics.aggregates(np.array([[0.25]]))
    assert one["IQM"] == (0.25, 0.25, 0.25)
    many = np.random.default_rng(0).uniform(size=(1000, 3, 20))
    curve = statistics.curve(many, draws=50)
    assert ((curve.low <= curve.value) & (curve.value <= curve.high)).mean() > 0.9


@pytest.mark.parametrize("count", range(1, 14))
def test_the_iqm_cuts_a_quarter_at_each_end_whatever_the_count(count):
    from scipy import stats

    values = np.random.default_rng(count).normal(size=(count, 2))
    np.testing.assert_allclose(statistics.iqm(values), stats.trim_mean(values, 0.25, axis=0))
    np.testing.assert_allclose(statistics.pooled_iqm(values), stats.trim_mean(values.ravel(), 0.25))


def test_a_profile_counts_what_is_above_and_not_what_is_equal():
    scores, taus = np.full((6, 2), 0.5), np.array([0.4, 0.5, 0.6])
    for figures in statistics.profile(scores, taus):
        np.testing.assert_array_equal(figures, [1, 0, 0])
