"""What a training ends with: ``curves.png`` and the closing table, over the seeds of each sweep point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.folder.layout import RETURN
from shoal.folder.tables import Entry, left_out, means_of, nan_runs
from shoal.report.curves import FIGURES, Line, curves, draw_lines, figures_of, other_returns, words
from shoal.report.statistics import rank

if TYPE_CHECKING:
    from shoal.run.sweep import Runs


SHOWN = 12  # sweep points in the picture and the table


def draw(
    path: Path, entries: Sequence[Entry], runs: Runs, diverged: np.ndarray, title: str, objective: str = RETURN
) -> None:
    """``curves.png``: a line per sweep point (the :data:`SHOWN` best), IQM and 95 % band over its seeds that live.

    Runs that ``diverged [R]`` or have a NaN in an evaluation are in no line; the legend has their number.
    """
    from matplotlib import colormaps

    steps, means = curves(entries, objective, len(runs))
    if not len(steps):
        return
    lost = lost_runs(entries, diverged, objective)
    order = _ranking(means, runs, lost)
    colours = colormaps["viridis"](np.linspace(0, 0.85, min(len(order), SHOWN)))
    lines = []
    for colour, point in zip(colours, order, strict=False):
        mask = runs.point == point
        values = _living(means, mask, lost)
        if not len(values) and not lost[mask].any():
            continue
        label = (runs.label(point) or f"{mask.sum()} seeds") + _left_out(mask, lost, diverged, f" of {mask.sum()}")
        lines.append(Line(label, values, colour))
    hidden = f" (the best {SHOWN} of {len(order)})" if len(order) > SHOWN else ""
    note = "IQM, 95 % bootstrap interval" + (", without runs that diverged or have a NaN" if lost.any() else "")
    texts = {"xlabel": "environment steps", "ylabel": f"{words(objective)} (greedy evaluation)"}
    draw_lines(path, steps, lines, note, title=title + hidden, **texts)


def lost_runs(entries: Sequence[Entry], diverged: np.ndarray, objective: str) -> np.ndarray:
    """The runs that are in no mean, ``[R]``: those that ``diverged [R]``, and those with a NaN in an evaluation."""
    return diverged | np.isin(np.arange(len(diverged)), list(nan_runs(entries, objective)))


def _left_out(mask: np.ndarray, lost: np.ndarray, diverged: np.ndarray, of: str = "") -> str:
    """How many runs in ``mask`` are in no figure, in brackets; empty if there are none."""
    said = left_out(int(diverged[mask].sum()), int((lost & ~diverged)[mask].sum()), of)
    return f" ({said})" if said else ""


def _living(means: np.ndarray, mask: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """The rows ``[S, C]`` of the runs in ``mask`` that live and have been evaluated at every step."""
    return means[mask & ~lost & np.isfinite(means).all(axis=1)]


def _ranking(means: np.ndarray, runs: Runs, lost: np.ndarray) -> list[int]:
    """Sweep points: first those of which the largest fraction of runs lives, among these the best final IQM."""

    def score(point: int) -> tuple[float, float]:
        mask = runs.point == point
        return rank(_living(means, mask, lost)[:, -1], int(lost[mask].sum()))

    return sorted(range(len(runs.points)), key=score, reverse=True)


def closing_table(
    entries: Sequence[Entry], runs: Runs, diverged: np.ndarray, objective: str = RETURN
) -> list[list[str]]:
    """Rows of ``point, seeds, first, last (95 % interval), best run, absolute``; best first, under a header.

    All figures are of the objective, over the runs that live; ``seeds`` has the number of the others. Where there are
    several teams, the last evaluation's other returns stand in columns of their own.
    """
    _, means = curves(entries, objective, len(runs))
    others = {title: curves(entries, name, len(runs))[1] for name, title in other_returns(entries, objective).items()}
    absolute = np.full(len(runs), np.nan)
    for entry in entries:
        if "absolute" in entry:
            absolute[entry["runs"]] = means_of(entry, objective)
    rows = [["sweep point" if runs.swept else "", "seeds", *FIGURES, *others]]
    lost = lost_runs(entries, diverged, objective)
    for point in _ranking(means, runs, lost)[:SHOWN]:
        mask = runs.point == point
        scores = absolute[mask & ~lost & np.isfinite(absolute)]  # a stopped training has not played it yet
        last = [_living(table, mask, lost)[:, -1] for table in others.values()]
        figures = figures_of(_living(means, mask, lost), scores, last)
        rows.append([runs.label(point) or "all", f"{mask.sum()}{_left_out(mask, lost, diverged)}", *figures])
    return rows
