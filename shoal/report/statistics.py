"""What is said about scores: point estimates and 95 % intervals, as rliable defines them, vectorised over the draws.

Scores are ``[R, T]``: runs of tasks, normalised per task where tasks are put together. The bootstrap is stratified:
runs are drawn with replacement inside each task, tasks are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DRAWS = 2000
LEVEL = 0.95
AT_ONCE = 2_000_000  # numbers that are resampled together: bounds memory
TAUS = np.linspace(0.0, 1.0, 101)


class Estimate(NamedTuple):
    """A statistic and its interval."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The interquartile mean: the mean of what is left when a quarter is cut off at each end (as scipy's trim_mean)."""
    values = np.sort(np.asarray(values, np.float64), axis=axis)
    count = values.shape[axis]
    cut = int(0.25 * count)
    return np.take(values, np.arange(cut, count - cut), axis=axis).mean(axis=axis)


def rank(living: np.ndarray, lost: int) -> tuple[float, float]:
    """What to sort by, the highest first: the fraction of runs that live, then the IQM of these, ``living [S]``."""
    if not len(living):
        return 0.0, -np.inf
    return len(living) / (len(living) + lost), float(iqm(living))


def bootstrap(
    values: np.ndarray, draws: int = 1000, level: float = LEVEL, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A percentile-bootstrap confidence interval of the IQM over the first axis (seeds) of ``values [S, ...]``."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, len(values), (draws, len(values)))
    return _interval(iqm(values[index], axis=1), level)


def _interval(statistics: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    tail = (1 - level) / 2
    low, high = np.quantile(statistics, [tail, 1 - tail], axis=0)
    return low, high


def resampled(
    scores: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """A statistic of ``[..., R, T]`` (leading axes are draws) and its stratified bootstrap interval.

    ``scores [R, T]``, or ``[R, T, C]`` with ``C`` points of a curve: then a run is drawn with its whole curve, and the
    statistic is taken at each point.
    """
    scores = np.asarray(scores, np.float64)
    curve = scores.ndim == 3
    layers = np.moveaxis(scores, -1, 0) if curve else scores[None]  # [C, R, T]
    runs, tasks = layers.shape[1:]
    rng = np.random.default_rng(seed)
    parts = []
    chunk = max(1, AT_ONCE // max(1, layers.size))
    for first in range(0, draws, chunk):
        index = rng.integers(0, runs, (min(chunk, draws - first), runs, tasks))
        drawn = layers[:, index, np.arange(tasks)]  # [C, D, R, T]
        parts.append(np.moveaxis(statistic(drawn), 0, 1))  # [D, C, ...]
    value = statistic(layers)
    low, high = _interval(np.concatenate(parts))
    return Estimate(value, low, high) if curve else Estimate(value[0], low[0], high[0])


def pooled_iqm(scores: np.ndarray) -> np.ndarray:
    """The IQM over runs and tasks together, ``[..., R, T] -> [...]``."""
    flat = scores.reshape(*scores.shape[:-2], -1)
    count = flat.shape[-1]
    cut = int(0.25 * count)
    return np.sort(flat, axis=-1)[..., cut : count - cut].mean(axis=-1)


def median_of_means(scores: np.ndarray) -> np.ndarray:
    """The median over tasks of the mean over runs, ``[..., R, T] -> [...]``."""
    return np.median(scores.mean(axis=-2), axis=-1)


def mean(scores: np.ndarray) -> np.ndarray:
    """The mean over runs and tasks, ``[..., R, T] -> [...]``."""
    return scores.mean(axis=(-2, -1))


def optimality_gap(scores: np.ndarray, best: float = 1.0) -> np.ndarray:
    """By how much runs stay below ``best`` on average, ``[..., R, T] -> [...]``; less is better."""
    return best - np.minimum(scores, best).mean(axis=(-2, -1))


AGGREGATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "IQM": pooled_iqm,
    "median": median_of_means,
    "mean": mean,
    "optimality gap": optimality_gap,
}


def aggregates(scores: np.ndarray, draws: int = DRAWS, seed: int = 0) -> dict[str, Estimate]:
    """All of :data:`AGGREGATES` on ``scores [R, T]``."""

    def every(drawn: np.ndarray) -> np.ndarray:
        return np.stack([statistic(drawn) for statistic in AGGREGATES.values()], axis=-1)

    value, low, high = resampled(scores, every, draws, seed)
    return {name: Estimate(value[i], low[i], high[i]) for i, name in enumerate(AGGREGATES)}


def curve(scores: np.ndarray, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """The IQM at each of ``C`` points of ``scores [R, T, C]``: sample efficiency."""
    return resampled(scores, pooled_iqm, draws, seed)


def _counts(rng: np.random.Generator, draws: int, runs: int) -> np.ndarray:
    """How often each of ``runs`` runs is drawn, ``[draws, runs]``."""
    index = rng.integers(0, runs, (draws, runs)) + runs * np.arange(draws)[:, None]
    return np.bincount(index.ravel(), minlength=draws * runs).reshape(draws, runs)


def _cumulated(counts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """How many draws fell on the ``k`` smallest runs, ``[draws, R + 1]``."""
    return np.concatenate([np.zeros((len(counts), 1), int), counts[:, order].cumsum(axis=1)], axis=1)


def profile(scores: np.ndarray, taus: np.ndarray = TAUS, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """The share of runs and tasks that score above each tau: a performance profile, ``[R, T] -> [taus]``."""
    scores = np.asarray(scores, np.float64)
    runs, tasks = scores.shape
    rng = np.random.default_rng(seed)
    total = np.zeros((draws, len(taus)))
    for task in range(tasks):
        order = np.argsort(scores[:, task])
        position = np.searchsorted(scores[order, task], taus, side="right")
        total += (runs - _cumulated(_counts(rng, draws, runs), order)[:, position]) / (runs * tasks)
    value = (scores[:, :, None] > taus).mean(axis=(0, 1))
    return Estimate(value, *_interval(total))


def improvement(x: np.ndarray, y: np.ndarray, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """The probability that a run of ``x [R, T]`` beats one of ``y [S, T]`` on a task, over all tasks; ties are half."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    rng = np.random.default_rng(seed)
    total = np.zeros(draws + 1)
    for task in range(x.shape[1]):
        order = np.argsort(x[:, task])
        ranked = x[order, task]
        left, right = (np.searchsorted(ranked, y[:, task], side=side) for side in ("left", "right"))
        # The first row draws every run once: the point estimate.
        drawn_x = np.concatenate([np.ones((1, len(x)), int), _counts(rng, draws, len(x))])
        drawn_y = np.concatenate([np.ones((1, len(y)), int), _counts(rng, draws, len(y))])
        below = _cumulated(drawn_x, order)
        beaten = len(x) - 0.5 * (below[:, left] + below[:, right])  # [1 + draws, S]
        total += (beaten * drawn_y).sum(axis=1) / (len(x) * len(y) * x.shape[1])
    return Estimate(total[0], *_interval(total[1:]))
