"""All runs of a report in one file in marl-eval's layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.folder.marl_eval import run_record
from shoal.report.table import OBJECTIVE, Cell, common


def merge(cells: Sequence[Cell], notes: list[str]) -> dict[str, Any]:
    """All runs in marl-eval's layout, made even where its loader demands it: per environment the same algorithms on
    every task, as many runs and evaluations in each, the same metrics.
    """
    merged: dict[str, Any] = {}
    for environment in dict.fromkeys(cell.environment for cell in cells):
        own = [cell for cell in cells if cell.environment == environment]
        algorithms, tasks = common(own)
        even = [cell for cell in own if cell.algorithm in algorithms and cell.place in tasks]
        if len(even) < len(own):
            out = sorted({f"{c.algorithm} on {c.place}" for c in own if c not in even})
            notes.append(f"evaluations.json: left out, as marl-eval wants all pairs: {_some(out)}")
        runs = min(len(cell.runs) for cell in even)
        points = min(len(cell.steps) for cell in even)
        if any(len(cell.runs) > runs for cell in even):
            notes.append(
                f"evaluations.json: {environment}: the first {runs} runs of each, as marl-eval wants equal counts"
            )
        if any(len(cell.steps) > points for cell in even):
            notes.append(
                f"evaluations.json: {environment}: {points} evaluations of each, as marl-eval wants equal counts"
            )
        seeds = [[run.seed for run in cell.runs] for cell in even]
        named = all(one == seeds[0] for one in seeds)
        shared = [name for name in even[0].metrics if all(name in cell.metrics for cell in even)]
        names = [name for name in shared if name != OBJECTIVE]
        last = all(all(name in cell.absolute for name in names) for cell in even)
        for cell in even:
            chosen = np.linspace(0, len(cell.steps) - 1, points).round().astype(int)
            for number, run in enumerate(cell.runs[:runs]):
                played = [(run.steps[i], {name: run.episodes[i][name] for name in names}) for i in chosen]
                record = run_record(played, {name: run.absolute[name] for name in names} if last else None)
                place = merged.setdefault(environment, {}).setdefault(cell.task, {})
                place.setdefault(cell.algorithm.replace(",", ";"), {})[f"seed_{run.seed if named else number}"] = record
        if not last:
            notes.append(
                f"evaluations.json: {environment}: no absolute metrics in every run; marl-eval's scores need them"
            )
    return merged


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
