"""From results to the figures of a report: plain lists and numbers, from which page and pictures are drawn alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.report import statistics
from shoal.report.statistics import DRAWS, Estimate
from shoal.report.table import Cell, Results, common

SHOWN = 12  # algorithms in the figures; tables have all
SEEDS = 20  # single runs drawn of a cell
POINTS = 100  # of a curve
WORK = 3e7  # numbers that a bootstrap sorts: more runs, fewer draws
AS_IT_IS = ("win_rate",)  # between 0 and 1 already

Json = dict[str, Any]


def summarise(results: Results, title: str) -> Json:
    """Everything that a report shows."""
    notes = list(results.notes)
    ranked = ranking(results)
    shown = ranked[:SHOWN]
    if len(ranked) > SHOWN:
        notes.append(f"figures show the best {SHOWN} of {len(ranked)} algorithms and variants, tables all of them")
    cells = {(cell.algorithm, cell.place): cell for cell in results.cells}
    metrics = []
    for name in results.metrics:
        metrics.append(block(name, results, ranked, shown, notes if name == results.objective else []))
    most = max(len(cell.runs) for cell in results.cells)
    if most > SEEDS:
        notes.append(f"single runs: the first {SEEDS} of each algorithm and task are drawn (there are up to {most})")
    return {
        "title": title,
        "notes": notes,
        "algorithms": shown,
        "ranked": ranked,
        "tasks": results.tasks,
        "runs": sum(len(cell.runs) for cell in results.cells),
        "diverged": [lost_of(name, results) for name in shown],
        "steps": int(max(cell.steps[-1] for cell in results.cells)),
        "evaluations": int(sum(len(cell.runs) * len(cell.steps) for cell in results.cells)),
        "timed": any(cell.seconds is not None for cell in cells.values()),
        "metrics": metrics,
        "speed": speeds(results),
    }


def lost_of(algorithm: str, results: Results) -> int:
    """How many runs of an algorithm are in no figure."""
    dead = sum(count for (name, _), count in results.dead.items() if name == algorithm)
    return dead + sum(cell.diverged for cell in results.cells if cell.algorithm == algorithm)


def ranking(results: Results) -> list[str]:
    """Algorithms: first those of which the most runs live, then the best mean normalised objective of these.

    A task counts alike whatever its number of runs; one on which no run of an algorithm lives has none that does.
    """
    ranges = extremes(results.cells, results.objective)
    scores: dict[str, list[tuple[float, float]]] = {}
    for cell in results.cells:
        values = normalised(cell.metrics[results.objective][:, -1], *ranges[cell.place])
        scores.setdefault(cell.algorithm, []).append(statistics.rank(values, cell.diverged))

    def standing(name: str) -> tuple[float, float]:
        dead = sum(algorithm == name for algorithm, _ in results.dead)
        fractions, values = np.transpose(scores[name])
        return float(fractions.sum() / (len(fractions) + dead)), float(values.mean())

    return sorted(scores, key=standing, reverse=True)


def extremes(cells: Sequence[Cell], metric: str) -> dict[str, tuple[float, float]]:
    """Per task, over all episodes of all algorithms, as marl-eval normalises."""
    found: dict[str, tuple[float, float]] = {}
    for cell in cells:
        if metric in cell.metrics:
            low, high = found.get(cell.place, (np.inf, -np.inf))
            own = cell.extremes(metric)
            found[cell.place] = min(low, own[0]), max(high, own[1])
    return found


def normalised(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Between 0 and 1, with marl-eval's guard against a range of nothing."""
    return (values - low) / (high - low + 1e-6)


def block(metric: str, results: Results, ranked: list[str], shown: list[str], notes: list[str]) -> Json:
    """All that is said about one metric."""
    cells = [cell for cell in results.cells if metric in cell.metrics]
    absolute = all(metric in cell.absolute for cell in cells)
    if not absolute and any(metric in cell.absolute for cell in cells):
        notes.append("not every run has an absolute metric: scores are those of the last evaluation")
    ranges = {cell.place: (0.0, 1.0 - 1e-6) for cell in cells}
    if metric not in AS_IT_IS:
        ranges = extremes(cells, metric)
    out: Json = {
        "name": metric,
        "normalised": metric not in AS_IT_IS,
        "score": "absolute metric" if absolute else "last evaluation",
        "ranges": {place: _numbers(values) for place, values in ranges.items()},
        "tasks": [task_block(place, metric, cells, ranked, shown, absolute) for place in results.tasks],
        "sensitivity": sensitivity(metric, cells, absolute),
        "together": together(metric, [c for c in cells if c.algorithm in shown], shown, ranges, absolute, notes),
    }
    out["tasks"] = [task for task in out["tasks"] if task["rows"]]
    return out


def scores_of(cell: Cell, metric: str, absolute: bool) -> np.ndarray:
    """``[R]``: the absolute metric, or the last evaluation."""
    return cell.absolute[metric] if absolute else cell.metrics[metric][:, -1]


def draws_for(values: np.ndarray) -> int:
    """As many draws as are affordable, at least 200."""
    return int(np.clip(WORK / max(1, values.size), 200, DRAWS))


def task_block(place: str, metric: str, cells: list[Cell], ranked: list[str], shown: list[str], absolute: bool) -> Json:
    """One task: a curve and single runs of each algorithm that is shown, a table row of every one."""
    own = {cell.algorithm: cell for cell in cells if cell.place == place}
    curves, rows = [], []
    for name in ranked:
        if name not in own:
            continue
        cell = own[name]
        scores = scores_of(cell, metric, absolute)
        iqm = statistics.aggregates(scores[:, None], draws_for(scores))["IQM"]
        rows.append(
            {
                "algorithm": name,
                "runs": len(scores),
                "diverged": cell.diverged,
                "iqm": _estimate(iqm),
                "mean": _number(scores.mean()),
                "std": _number(scores.std(ddof=1)) if len(scores) > 1 else None,
                "best": _number(scores.max()),
                "first": _number(statistics.iqm(cell.metrics[metric][:, 0])),
                "last": _number(statistics.iqm(cell.metrics[metric][:, -1])),
                "steps": int(cell.steps[-1]),
            }
        )
        if name in shown:
            curves.append(curve_of(cell, metric, shown.index(name)))
    return {"task": place, "curves": curves, "rows": rows}


def curve_of(cell: Cell, metric: str, number: int) -> Json:
    """IQM and interval over the runs of a cell, and some of the runs."""
    index = _thinned(len(cell.steps))
    values = cell.metrics[metric][:, index]
    iqm = statistics.curve(values[:, None, :], draws_for(values))
    return {
        "algorithm": number,
        "x": cell.steps[index].tolist(),
        "t": _numbers(cell.seconds[index]) if cell.seconds is not None else None,
        "y": _numbers(iqm.value),
        "low": _numbers(iqm.low),
        "high": _numbers(iqm.high),
        "runs": len(values),
        "diverged": cell.diverged,
        "seeds": [{"seed": run.seed, "y": _numbers(row)} for run, row in zip(cell.runs[:SEEDS], values, strict=False)],
    }


def together(
    metric: str,
    cells: list[Cell],
    shown: list[str],
    ranges: dict[str, tuple[float, float]],
    absolute: bool,
    notes: list[str],
) -> Json | None:
    """All tasks together: sample efficiency, aggregate scores, performance profiles, probability of improvement."""
    if not cells:
        return None
    rows = complete_rows(cells, shown, notes)
    grid = _grid([cell.steps for row in rows.values() for cell in row], notes)
    matrices, efficiency = {}, []
    for name, row in rows.items():
        count = min(len(cell.runs) for cell in row)
        if any(len(cell.runs) > count for cell in row):
            notes.append(
                f"{name}: not as many runs on every task; figures over all tasks use the first {count} of each"
            )
        columns = [normalised(scores_of(c, metric, absolute)[:count], *ranges[c.place]) for c in row]
        matrices[name] = np.stack(columns, axis=1)  # [R, T]
        if grid is not None:
            layers = [normalised(_on(grid, c.steps, c.metrics[metric][:count]), *ranges[c.place]) for c in row]
            curve = efficiency_curve(np.stack(layers, axis=1), grid, row)
            efficiency.append({"algorithm": shown.index(name), **curve})
    return {
        "tasks": [cell.place for cell in next(iter(rows.values()))],
        "runs": [len(matrix) for matrix in matrices.values()],
        "efficiency": efficiency,
        **comparisons({shown.index(name): matrix for name, matrix in matrices.items()}),
    }


def complete_rows(cells: list[Cell], shown: list[str], notes: list[str]) -> dict[str, list[Cell]]:
    """The cells of each algorithm, one for each task, of those algorithms and tasks of which every pair is there."""
    algorithms, tasks = common(cells)
    algorithms = [name for name in shown if name in algorithms]
    for what, every, kept in (
        ("tasks", list(dict.fromkeys(cell.place for cell in cells)), tasks),
        ("algorithms", list(dict.fromkeys(cell.algorithm for cell in cells)), algorithms),
    ):
        if gone := [name for name in every if name not in kept]:
            notes.append(
                f"figures over all tasks do without the {what} {', '.join(gone)}: some pairs are missing there"
            )
    table = {(cell.algorithm, cell.place): cell for cell in cells}
    return {name: [table[name, task] for task in tasks] for name in algorithms}


def efficiency_curve(values: np.ndarray, grid: np.ndarray, row: list[Cell]) -> Json:
    """The curve over all tasks of one algorithm, from normalised scores ``[R, T, C]`` at the steps of ``grid``."""
    iqm = statistics.curve(values, draws_for(values))
    clocks = [_seconds(grid, cell) for cell in row]
    known = [clock for clock in clocks if clock is not None]
    return {
        "x": [round(float(step)) for step in grid],
        "t": _numbers(np.mean(known, axis=0)) if len(known) == len(clocks) else None,
        "y": _numbers(iqm.value),
        "low": _numbers(iqm.low),
        "high": _numbers(iqm.high),
    }


def comparisons(matrices: dict[int, np.ndarray]) -> Json:
    """Aggregate scores, profiles and probabilities of improvement, from the scores ``[R, T]`` of each algorithm."""
    aggregates, profiles, improvement = [], [], []
    taus = _numbers(statistics.TAUS)
    for number, matrix in matrices.items():
        estimates = statistics.aggregates(matrix, draws_for(matrix))
        aggregates.append({"algorithm": number, "values": {key: _estimate(e) for key, e in estimates.items()}})
        profile = statistics.profile(matrix, draws=draws_for(matrix))
        bands = {"y": _numbers(profile.value), "low": _numbers(profile.low), "high": _numbers(profile.high)}
        profiles.append({"algorithm": number, "x": taus, **bands})
    for x, y in itertools.combinations(matrices, 2):
        better = statistics.improvement(matrices[x], matrices[y], draws_for(matrices[x]))
        improvement.append({"x": x, "y": y, "p": _estimate(better)})
    return {"aggregates": aggregates, "taus": taus, "profiles": profiles, "improvement": improvement}


def _grid(steps: list[np.ndarray], notes: list[str]) -> np.ndarray | None:
    """The steps at which all cells are compared: their own, or as many even ones inside what all have covered."""
    first = steps[0]
    if all(len(one) == len(first) and (one == first).all() for one in steps):
        return first[_thinned(len(first))]
    low, high = max(one[0] for one in steps), min(one[-1] for one in steps)
    if low >= high:
        notes.append("evaluated at steps that do not overlap: no sample-efficiency curve over all tasks")
        return None
    if high < 0.9 * max(one[-1] for one in steps):
        notes.append(f"not all were trained equally long: the curve over all tasks ends at {high} steps")
    else:
        notes.append("evaluated at different steps: the curve over all tasks interpolates between evaluations")
    return np.linspace(low, high, min(POINTS, max(len(one) for one in steps)))


def _on(grid: np.ndarray, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Curves ``[R, C]`` at the steps of a grid, linearly between evaluations."""
    return np.stack([np.interp(grid, steps, row) for row in values])


def _seconds(grid: np.ndarray, cell: Cell) -> np.ndarray | None:
    return None if cell.seconds is None else np.interp(grid, cell.steps, cell.seconds)


def _thinned(count: int) -> np.ndarray:
    """At most :data:`POINTS` of ``count`` indices, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))


def sensitivity(metric: str, cells: list[Cell], absolute: bool) -> list[Json]:
    """Per algorithm and task: what its hyperparameters make of the score, where they vary."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.base, cell.place), []).append(cell)
    found = []
    for (base, place), own in groups.items():
        names = list(dict.fromkeys(name for cell in own for name in cell.point))
        varied = [name for name in names if len({repr(cell.point.get(name)) for cell in own}) > 1]
        if not varied:
            continue
        points = []
        for cell in own:
            scores = scores_of(cell, metric, absolute)
            iqm = statistics.aggregates(scores[:, None], 500)["IQM"]
            values = [_value(cell.point.get(name)) for name in varied]
            points.append({"values": values, "score": _estimate(iqm), "runs": len(scores), "diverged": cell.diverged})
        found.append({"algorithm": base, "task": place, "names": varied, "points": points})
    return found


def _value(value: Any) -> float | str:
    number = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    return _number(value) if number else str(value)


def speeds(results: Results) -> list[Json]:
    """How fast and how long each training ran, in its last session."""
    rows = []
    for training in results.trainings:
        session = training.provenance.get("session", {})
        if session:
            rows.append(
                {
                    "algorithm": training.label,
                    "task": f"{training.environment}/{training.task}",
                    "runs": training.provenance.get("runs"),
                    "steps": training.provenance.get("env_steps_per_run"),
                    "rate": session.get("steps_per_second"),
                    "seconds": session.get("seconds"),
                    "compile": session.get("compile_seconds"),
                    "memory": session.get("memory_bytes"),
                    "device": ", ".join(training.provenance.get("devices", [])[:1]),
                }
            )
    return rows


def _number(value: Any) -> float:
    return float(f"{float(value):.5g}")


def _numbers(values: Any) -> list[float]:
    return [_number(value) for value in np.asarray(values, float).ravel()]


def _estimate(estimate: Estimate) -> list[float]:
    return [_number(value) for value in estimate]
