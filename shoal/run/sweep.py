"""Seeds times hyperparameters: the run axis."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import chex
import jax
import numpy as np

from shoal.config.fields import FLOAT32, validate
from shoal.config.settings import SWEEP_MODES
from shoal.errors import UserError
from shoal.folder.layout import swept_values

MOST_RUNS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Runs:
    """``R`` runs: run ``r`` trains point ``r // seeds`` of the sweep with seed ``first + r % seeds``."""

    seed: np.ndarray  # [R] int
    point: np.ndarray  # [R] int, the index into `points`
    points: list[dict[str, float]]  # the swept hyperparameters of each point; [{}] without a sweep
    hypers: Any  # a Hypers of numpy arrays, [R]
    member: np.ndarray | None = None  # [R] int, of the population that `seed` names; None without evolution
    paired: bool = True  # the same seed has the same key at every point

    def __len__(self) -> int:
        return len(self.seed)

    @property
    def swept(self) -> list[str]:
        """The names of the swept hyperparameters."""
        return list(self.points[0])

    def label(self, point: int) -> str:
        """``lr=0.001 ent_coef=0`` (no commas: marl-eval forbids them in names)."""
        return " ".join(f"{name}={value:.4g}" for name, value in self.points[point].items())

    def select(self, index: np.ndarray) -> tuple[chex.Array, Any]:
        """The words ``[R, 2]`` of some runs' keys (``shoal.hashing.key_of``), and their hyperparameters.

        ``jax.random.PRNGKey(seed)`` is ``[0, seed]``; made by hand, as the first thing JAX does, it need not compile.
        The members of a population are told apart by the first word, so that the first of them is the run of that seed;
        and so are the points of a sweep that is not paired.
        """
        number = self.member if self.member is not None else self.point * (not self.paired)
        words = np.stack([number[index], self.seed[index]], axis=-1).astype(np.uint32)
        return words, jax.tree.map(lambda x: x[index], self.hypers)


def expand(hypers: Any, sweep: Mapping[str, Any], seeds: int, first_seed: int = 0) -> Runs:
    """All runs of ``sweep`` (its fields, and values by name) around the base ``hypers``."""
    points = sweep_points(type(hypers), sweep)
    limit_runs(len(points) * seeds, f"seeds={seeds}")
    seed = np.tile(np.arange(first_seed, first_seed + seeds), len(points))
    point = np.repeat(np.arange(len(points)), seeds)
    names = [field.name for field in dataclasses.fields(hypers)]
    columns = {
        name: np.array([points[p].get(name, getattr(hypers, name)) for p in point], np.float32) for name in names
    }
    return Runs(seed, point, points, type(hypers)(**columns), paired=bool(sweep.get("paired", True)))


def limit_runs(count: int, word: str) -> None:
    """Refuse more runs than a training can have."""
    if count > MOST_RUNS:
        raise UserError(f"{word}: makes {count} runs; a training has {MOST_RUNS} at most")


def sweep_points(hypers_type: type, sweep: Mapping[str, Any]) -> list[dict[str, float]]:
    """The points of a sweep: a grid of lists, lists side by side (``zip``), or random draws from ranges."""
    fields = {field.name: field for field in dataclasses.fields(hypers_type)}
    values = swept_values(sweep)
    for name in values:
        if name not in fields:
            raise UserError(f"sweep.{name}: not a hyperparameter; these are: {', '.join(fields)}")
    mode, num = sweep.get("mode", "grid"), int(sweep.get("num", 10))
    if mode not in SWEEP_MODES:
        raise UserError(f"sweep.mode={mode}: must be one of {', '.join(SWEEP_MODES)}")
    if not values:
        return [{}]
    if mode == "random":
        limit_runs(num, f"sweep.num={num}")
        rng = np.random.default_rng(int(sweep.get("seed", 0)))
        columns = {name: _draw(name, value, num, rng) for name, value in values.items()}
        points = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    else:
        columns = {name: _numbers(name, value) for name, value in values.items()}
        if mode == "zip" and len({len(column) for column in columns.values()}) > 1:
            lengths = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
            raise UserError(f"sweep.mode=zip: the lists must be equally long; {lengths}")
        if mode == "grid":
            limit_runs(math.prod(map(len, columns.values())), f"sweep.{'|'.join(columns)}")
        rows = zip(*columns.values(), strict=True) if mode == "zip" else itertools.product(*columns.values())
        points = [dict(zip(columns, row, strict=True)) for row in rows]
    for point in points:
        for name, value in point.items():
            validate("sweep.", value, fields[name])
    return points


def _numbers(name: str, value: Any) -> list[float]:
    """A list of numbers, or one number."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise UserError(f"sweep.{name}={value}: must be a list of numbers; ranges need sweep.mode=random")
    if any(abs(v) > FLOAT32 for v in values):
        raise UserError(f"sweep.{name}={value}: must be numbers in [{-FLOAT32:g}, {FLOAT32:g}]")
    return [float(v) for v in values]


def _draw(name: str, value: Any, count: int, rng: np.random.Generator) -> list[float]:
    """``count`` draws from ``{min, max, log}``, or from a list of numbers."""
    if not isinstance(value, Mapping):
        return [float(v) for v in rng.choice(_numbers(name, value), count)]
    unknown = set(value) - {"min", "max", "log"}
    if unknown or not {"min", "max"} <= set(value):
        raise UserError(f"sweep.{name}={dict(value)}: a range is {{min: a, max: b}} or {{min: a, max: b, log: true}}")
    try:
        low, high, log = float(value["min"]), float(value["max"]), bool(value.get("log", False))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"sweep.{name}={dict(value)}: a range is of numbers, {{min: a, max: b}}") from error
    if not -FLOAT32 <= low <= high <= FLOAT32 or (log and low <= 0):
        what = f"needs {-FLOAT32:g} <= min <= max <= {FLOAT32:g}{', min > 0 with log' if log else ''}"
        raise UserError(f"sweep.{name}={dict(value)}: {what}")
    if log:
        return [float(v) for v in np.exp(rng.uniform(np.log(low), np.log(high), count))]
    return [float(v) for v in rng.uniform(low, high, count)]
