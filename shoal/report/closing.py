"""What is drawn and told at the end: IQM with a bootstrap band, ``curves.png``, the closing table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.folder.layout import RETURN
from shoal.folder.tables import means_of
from shoal.report import canvas
from shoal.report.statistics import bootstrap, iqm, rank

if TYPE_CHECKING:
    from shoal.run.sweep import Runs


SHOWN = 12  # sweep points in the picture and the table


def curves(evaluations: Sequence[dict[str, Any]], runs: Runs, metric: str = RETURN) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[C]`` and means ``[R, C]`` of a metric over episodes (NaN where a run was not evaluated)."""
    entries = [e for e in evaluations if "absolute" not in e]
    steps = sorted({e["env_steps"] for e in entries})
    means = np.full((len(runs), len(steps)), np.nan)
    for entry in entries:
        means[entry["runs"], steps.index(entry["env_steps"])] = means_of(entry, metric)
    return np.array(steps), means


def draw(
    path: Path,
    evaluations: Sequence[dict[str, Any]],
    runs: Runs,
    diverged: np.ndarray,
    title: str,
    objective: str = RETURN,
) -> None:
    """``curves.png``: a line per sweep point (the :data:`SHOWN` best), IQM and 95 % band over its seeds that live."""
    from matplotlib import colormaps

    steps, means = curves(evaluations, runs, objective)
    if not len(steps):
        return
    order = _ranking(means, runs, diverged)
    figure, axes = canvas.subplots(figsize=(8, 4.8), dpi=150)
    colours = colormaps["viridis"](np.linspace(0, 0.85, min(len(order), SHOWN)))
    for colour, point in zip(colours, order, strict=False):
        mask = runs.point == point
        values = _living(means, mask, diverged)
        if not len(values) and not diverged[mask].any():
            continue
        lost = f" ({diverged[mask].sum()} of {mask.sum()} diverged)" if diverged[mask].any() else ""
        label = (runs.label(point) or f"{mask.sum()} seeds") + lost
        line = (
            iqm(values) if len(values) else np.full(len(steps), np.nan)
        )  # a point that has died is named all the same
        axes.plot(steps, line, color=colour, linewidth=2, label=label)
        if len(values) > 1:
            low, high = bootstrap(values)
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    hidden = f" (the best {SHOWN} of {len(order)})" if len(order) > SHOWN else ""
    axes.set(xlabel="environment steps", ylabel=f"{words(objective)} (greedy evaluation)", title=title + hidden)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    note = "IQM, 95 % bootstrap interval" + (", without runs that diverged" if diverged.any() else "")
    axes.text(0.01, 0.99, note, transform=axes.transAxes, fontsize=7, va="top", alpha=0.6)
    figure.tight_layout()
    canvas.save(figure, path)


def words(metric: str) -> str:
    """A metric's name to read: ``episode return: adversary``."""
    return metric.replace("/", ": ").replace("_", " ")


def others(evaluations: Sequence[dict[str, Any]], objective: str) -> dict[str, str]:
    """The returns beside the objective, ``{metric: title}``: every team's, and the mean over all agents."""
    names = evaluations[0]["metrics"] if evaluations else ()
    returns = [name for name in names if name.split("/")[0] == RETURN and name != objective]
    return {name: name.partition("/")[2] or "return" for name in returns}


def _living(means: np.ndarray, mask: np.ndarray, diverged: np.ndarray) -> np.ndarray:
    """The rows ``[S, C]`` of the runs in ``mask`` that live and have been evaluated at every step."""
    return means[mask & ~diverged & np.isfinite(means).all(axis=1)]


def _ranking(means: np.ndarray, runs: Runs, diverged: np.ndarray) -> list[int]:
    """Sweep points, best final IQM first, diverged runs counting as the worst; points without a whole run last."""

    def score(point: int) -> tuple[float, float]:
        mask = runs.point == point
        return rank(_living(means, mask, diverged)[:, -1], int(diverged[mask].sum()))

    return sorted(range(len(runs.points)), key=score, reverse=True)


def closing_table(
    evaluations: Sequence[dict[str, Any]],
    runs: Runs,
    diverged: np.ndarray,
    objective: str = RETURN,
) -> list[list[str]]:
    """Rows of ``point, seeds, first, last (95 % interval), best run, absolute``; best first, under a header.

    All figures are of the objective, over the runs that live. Where there are several teams, the last evaluation's
    other returns stand in columns of their own.
    """
    _, means = curves(evaluations, runs, objective)
    more = {title: curves(evaluations, runs, metric)[1] for metric, title in others(evaluations, objective).items()}
    absolute = np.full(len(runs), np.nan)
    for entry in evaluations:
        if "absolute" in entry:
            absolute[entry["runs"]] = means_of(entry, objective)
    titles = ("sweep point" if runs.swept else "", "seeds", "first", "last", "95 %", "best run", "absolute", *more)
    rows = [list(titles)]
    for point in _ranking(means, runs, diverged)[:SHOWN]:
        mask = runs.point == point
        values = _living(means, mask, diverged)
        lost = f" ({diverged[mask].sum()} diverged)" if diverged[mask].any() else ""
        row = [runs.label(point) or "all", f"{mask.sum()}{lost}"]
        if not len(values):
            rows.append(row + ["-"] * (len(titles) - len(row)))
            continue
        low, high = bootstrap(values[:, -1])
        scores = absolute[mask & ~diverged & np.isfinite(absolute)]
        rows.append(
            [
                *row,
                f"{iqm(values[:, 0]):.2f}",
                f"{iqm(values[:, -1]):.2f}",
                f"{low:.2f} .. {high:.2f}",
                f"{values[:, -1].max():.2f}",
                _figure(scores),
                *(_figure(_living(table, mask, diverged)[:, -1]) for table in more.values()),
            ]
        )
    return rows


def _figure(values: np.ndarray) -> str:
    return f"{iqm(values):.2f}" if len(values) else "-"
