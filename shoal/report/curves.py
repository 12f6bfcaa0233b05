"""Learning curves of one training: their values, ``curves.png``, and the figures of the closing table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.folder.layout import DIVERGED, RETURN
from shoal.folder.tables import Entry, means_of
from shoal.report import canvas
from shoal.report.statistics import bootstrap, iqm

FIGURES = ("first", "last", "95 %", "best run", "absolute")  # columns of a closing table


class Line(NamedTuple):
    """One line of ``curves.png``."""

    label: str
    values: np.ndarray  # [S, C]: the curves that it sums up
    colour: Any
    each: bool = False  # whether these are drawn too, thin


def curves(entries: Sequence[Entry], metric: str = RETURN, runs: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[C]`` and means ``[R, C]`` of a metric over episodes: NaN where a run was not evaluated, or diverged.

    R is the number of ``runs``, or of those up to the last one that was evaluated.
    """
    entries = [entry for entry in entries if "absolute" not in entry]
    steps = sorted({entry["env_steps"] for entry in entries})
    count = 1 + max((max(entry["runs"]) for entry in entries), default=-1) if runs is None else runs
    means = np.full((count, len(steps)), np.nan)
    for entry in entries:
        column = steps.index(entry["env_steps"])
        means[entry["runs"], column] = means_of(entry, metric)
        means[entry.get(DIVERGED, []), column] = np.nan
    means[~np.isfinite(means)] = np.nan
    return np.array(steps), means


def draw_lines(path: Path, steps: np.ndarray, lines: Sequence[Line], note: str, **texts: str) -> None:
    """Draw the IQM of each line with its 95 % band; ``texts`` are ``title``, ``xlabel`` and ``ylabel``."""
    figure, axes = canvas.subplots(figsize=(8, 4.8), dpi=150)
    for line in lines:
        if line.each:
            axes.plot(steps, line.values.T, color=line.colour, linewidth=0.6, alpha=0.5)
        middle = iqm(line.values) if len(line.values) else np.full(len(steps), np.nan)
        axes.plot(steps, middle, color=line.colour, linewidth=2, label=line.label)
        if len(line.values) > 1:
            axes.fill_between(steps, *bootstrap(line.values), color=line.colour, alpha=0.2, linewidth=0)
    axes.set(**texts)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    if lines:
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.text(0.01, 0.99, note, transform=axes.transAxes, fontsize=7, va="top", alpha=0.6)
    figure.tight_layout()
    canvas.save(figure, path)


def figures_of(values: np.ndarray, absolute: np.ndarray, others: Sequence[np.ndarray]) -> list[str]:
    """The :data:`FIGURES` of the curves ``[S, C]``, and those of the other metrics ``[S]``; ``-`` where there is none.

    ``absolute`` has the absolute metrics of these curves.
    """
    if not len(values):
        return ["-"] * (len(FIGURES) + len(others))
    low, high = bootstrap(values[:, -1])
    middles = [figure(values[:, 0]), figure(values[:, -1])]
    return [*middles, f"{low:.2f} .. {high:.2f}", f"{values[:, -1].max():.2f}", figure(absolute), *map(figure, others)]


def figure(values: np.ndarray) -> str:
    """The IQM of some numbers as text; ``-`` if there are none."""
    return f"{iqm(values):.2f}" if len(values) else "-"


def words(metric: str) -> str:
    """The name of a metric to read: ``episode return: adversary``."""
    return metric.replace("/", ": ").replace("_", " ")


def other_returns(entries: Sequence[Entry], objective: str) -> dict[str, str]:
    """The returns beside the objective, ``{metric: title}``: every team's, and the mean over all agents."""
    names = entries[0]["metrics"] if entries else ()
    returns = [name for name in names if name.split("/")[0] == RETURN and name != objective]
    return {name: name.partition("/")[2] or "return" for name in returns}
