"""What is drawn and told at the end: IQM with a bootstrap band, ``curves.png``, the closing table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.records import write_atomically
from shoal.statistics import bootstrap, iqm
from shoal.sweep import Runs


def curves(evaluations: Sequence[dict[str, Any]], runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[C]`` and mean evaluation returns ``[R, C]`` (NaN where a run was not evaluated)."""
    entries = [e for e in evaluations if "absolute" not in e]
    steps = sorted({e["env_steps"] for e in entries})
    returns = np.full((len(runs), len(steps)), np.nan)
    for entry in entries:
        values = np.asarray(entry["metrics"]["episode_return"], np.float64).mean(axis=-1)
        returns[entry["runs"], steps.index(entry["env_steps"])] = values
    return np.array(steps), returns


def draw(path: Path, evaluations: Sequence[dict[str, Any]], runs: Runs, title: str, most: int = 12) -> None:
    """``curves.png``: a line per sweep point (the ``most`` best), IQM and 95 % band over its seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps, returns = curves(evaluations, runs)
    if not len(steps):
        return
    order = _ranking(returns, runs)
    figure, axes = plt.subplots(figsize=(8, 4.8), dpi=150)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, min(len(order), most)))
    for colour, point in zip(colours, order, strict=False):
        values = _finite_runs(returns[runs.point == point])
        if not len(values):
            continue
        axes.plot(steps, iqm(values), color=colour, linewidth=2, label=runs.label(point) or f"{len(values)} seeds")
        if len(values) > 1:
            low, high = bootstrap(values)
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    hidden = f" (the best {most} of {len(order)})" if len(order) > most else ""
    axes.set(xlabel="environment steps", ylabel="episode return (greedy evaluation)", title=title + hidden)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.text(0.01, 0.99, "IQM, 95 % bootstrap interval", transform=axes.transAxes, fontsize=7, va="top", alpha=0.6)
    figure.tight_layout()
    partial = path.with_name(f".{path.name}")
    figure.savefig(partial, format="png")
    partial.replace(path)
    plt.close(figure)


def _finite_runs(returns: np.ndarray) -> np.ndarray:
    """The rows without NaN: runs that have been evaluated at every step."""
    return returns[np.isfinite(returns).all(axis=1)]


def _ranking(returns: np.ndarray, runs: Runs) -> list[int]:
    """Sweep points, best final IQM first; points without a whole run last."""

    def score(point: int) -> float:
        values = _finite_runs(returns[runs.point == point])
        return float(iqm(values[:, -1])) if len(values) else -np.inf

    return sorted(range(len(runs.points)), key=score, reverse=True)


def closing_table(
    evaluations: Sequence[dict[str, Any]], runs: Runs, diverged: np.ndarray, most: int = 12
) -> list[list[str]]:
    """Rows of ``point, seeds, first, last (95 % interval), best run, absolute``; best first, under a header."""
    _, returns = curves(evaluations, runs)
    absolute = np.full(len(runs), np.nan)
    for entry in evaluations:
        if "absolute" in entry:
            absolute[entry["runs"]] = np.asarray(entry["metrics"]["episode_return"]).mean(axis=-1)
    rows = [["sweep point" if runs.swept else "", "seeds", "first", "last", "95 %", "best run", "absolute"]]
    for point in _ranking(returns, runs)[:most]:
        mask = runs.point == point
        values = _finite_runs(returns[mask])
        if not len(values):
            rows.append([runs.label(point), f"{mask.sum()}", *["-"] * 5])
            continue
        low, high = bootstrap(values[:, -1])
        seeds = f"{mask.sum()}" + (f" ({diverged[mask].sum()} diverged)" if diverged[mask].any() else "")
        scores = absolute[mask][np.isfinite(absolute[mask])]
        rows.append(
            [
                runs.label(point) or "all",
                seeds,
                f"{iqm(values[:, 0]):.2f}",
                f"{iqm(values[:, -1]):.2f}",
                f"{low:.2f} .. {high:.2f}",
                f"{values[:, -1].max():.2f}",
                f"{iqm(scores):.2f}" if len(scores) else "-",
            ]
        )
    return rows


def write_evaluations(path: Path, evaluations: Sequence[dict[str, Any]], runs: Runs, env: str, algorithm: str) -> None:
    """``evaluations.json`` in marl-eval's layout: environment, task, algorithm, seed, step."""
    family, task = env.split("/", 1)
    by_algorithm: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in evaluations:
        for position, run in enumerate(entry["runs"]):
            label = runs.label(runs.point[run])
            name = f"{algorithm} {label}" if label else algorithm
            record = by_algorithm.setdefault(name, {}).setdefault(f"seed_{runs.seed[run]}", {})
            metrics = {key: values[position] for key, values in entry["metrics"].items()}
            metrics = {f"mean_{key}" if key.startswith("episode") else key: v for key, v in metrics.items()}
            if "absolute" in entry:
                record["absolute_metrics"] = metrics
            else:
                step = f"step_{sum(key.startswith('step_') for key in record) + 1}"
                record[step] = {"step_count": entry["env_steps"], **metrics}
    write_atomically(path, json.dumps({family: {task: by_algorithm}}))
