"""What a training ends with: ``curves.png`` and the closing table, over the seeds of each sweep point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.folder.layout import RETURN
from shoal.folder.tables import Entry, means_of
from shoal.report.curves import FIGURES, Line, curves, draw_lines, figures_of, other_returns, words
from shoal.report.statistics import rank

if TYPE_CHECKING:
    from shoal.run.sweep import Runs


SHOWN = 12  # sweep points in the picture and the table


def draw(
    path: Path, entries: Sequence[Entry], runs: Runs, diverged: np.ndarray, title: str, objective: str = RETURN
) -> None:
    """``curves.png``: a line per sweep point (the :data:`SHOWN` best), IQM and 95 % band over its seeds that live."""
    from matplotlib import colormaps

    steps, means = curves(entries, objective, len(runs))
    if not len(steps):
        return
    order = _ranking(means, runs, diverged)
    colours = colormaps["viridis"](np.linspace(0, 0.85, min(len(order), SHOWN)))
    lines = []
    for colour, point in zip(colours, order, strict=False):
        mask = runs.point == point
        values = _living(means, mask, diverged)
        if not len(values) and not diverged[mask].any():
            continue
        lost = f" ({diverged[mask].sum()} of {mask.sum()} diverged)" if diverged[mask].any() else ""
        lines.append(Line((runs.label(point) or f"{mask.sum()} seeds") + lost, values, colour))
    hidden = f" (the best {SHOWN} of {len(order)})" if len(order) > SHOWN else ""
    note = "IQM, 95 % bootstrap interval" + (", without runs that diverged" if diverged.any() else "")
    texts = {"xlabel": "environment steps", "ylabel": f"{words(objective)} (greedy evaluation)"}
    draw_lines(path, steps, lines, note, title=title + hidden, **texts)


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
    entries: Sequence[Entry], runs: Runs, diverged: np.ndarray, objective: str = RETURN
) -> list[list[str]]:
    """Rows of ``point, seeds, first, last (95 % interval), best run, absolute``; best first, under a header.

    All figures are of the objective, over the runs that live. Where there are several teams, the last evaluation's
    other returns stand in columns of their own.
    """
    _, means = curves(entries, objective, len(runs))
    others = {title: curves(entries, name, len(runs))[1] for name, title in other_returns(entries, objective).items()}
    absolute = np.full(len(runs), np.nan)
    for entry in entries:
        if "absolute" in entry:
            absolute[entry["runs"]] = means_of(entry, objective)
    rows = [["sweep point" if runs.swept else "", "seeds", *FIGURES, *others]]
    for point in _ranking(means, runs, diverged)[:SHOWN]:
        mask = runs.point == point
        lost = f" ({diverged[mask].sum()} diverged)" if diverged[mask].any() else ""
        scores = absolute[mask & ~diverged & np.isfinite(absolute)]
        last = [_living(table, mask, diverged)[:, -1] for table in others.values()]
        figures = figures_of(_living(means, mask, diverged), scores, last)
        rows.append([runs.label(point) or "all", f"{mask.sum()}{lost}", *figures])
    return rows
