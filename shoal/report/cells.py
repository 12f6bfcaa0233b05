"""Runs of the same algorithm on the same task, put together and made whole."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.folder.layout import RETURN, objective_of
from shoal.folder.marl_eval import Run
from shoal.report.table import OBJECTIVE, Cell, Training, label_of

# Two trainings that differ in these only are the same thing, trained with other seeds or in other pieces.
SAME = (
    "seeds",
    "seed",
    "run",
    "resume",
    "logger",
    "checkpoint",
    "updates_per_chunk",
    "rounds_per_chunk",
    "runs_per_batch",
    "chunks",
    "sweep",
)


def tell_apart(trainings: Sequence[Training]) -> None:
    """Trainings of one algorithm on one task that differ in a setting get it into their label."""
    leaves = {id(training): dict(_leaves(training.config)) for training in trainings}
    varied: dict[str, dict[str, None]] = {}
    by_cell: dict[tuple[str, str, str], list[Training]] = {}
    for training in trainings:
        by_cell.setdefault((training.name, training.environment, training.task), []).append(training)
    for (name, *_), group in by_cell.items():
        keys = dict.fromkeys(key for training in group for key in leaves[id(training)])
        for key in keys:
            if len({repr(leaves[id(training)].get(key)) for training in group}) > 1:
                varied.setdefault(name, {})[key] = None
    for training in trainings:
        keys = varied.get(training.name, {})
        if "total_steps" in keys:
            keys.pop("algo.total_steps", None)
        training.own = {_short(key): leaves[id(training)].get(key) for key in keys}


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if not prefix and (name in SAME or value == {"scheme": "none"}):  # no evolution, as before there was any
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _short(key: str) -> str:
    return key.removeprefix("hypers.").removeprefix("algo.").removeprefix("env.")


def cells_of(
    trainings: Sequence[tuple[Training, dict[int, Run]]],
    plain: Sequence[tuple[str, str, str, str, Run]],
    objectives: Mapping[tuple[str, str], str],
    notes: list[str],
) -> tuple[list[Cell], dict[tuple[str, str], int]]:
    """Runs of the same algorithm on the same task, put together and made whole; and where none of them is left."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    about: dict[tuple[str, str, str], tuple[str, dict[str, Any], Training | None]] = {}
    for training, runs in trainings:
        for index, run in runs.items():
            point = training.point(index)
            key = (training.environment, training.task, label_of(training.name, point))
            about.setdefault(key, (training.name, point, training))
            groups.setdefault(key, []).append(run)
    ours = set(groups)
    for found, environment, task, algorithm, run in plain:
        key = (environment, task, algorithm)
        if key in ours:
            key = (environment, task, f"{algorithm} ({found})")
        about.setdefault(key, (key[2], {}, None))
        groups.setdefault(key, []).append(run)
    cells, dead = [], {}
    for (environment, task, algorithm), every in groups.items():
        where = f"{algorithm} on {environment}/{task}"
        objective = objectives[environment, task]
        distinct = _distinct(every, where, notes)
        whole = _whole(distinct)
        living = [run for run in whole if not run.diverged]
        finite = [run for run in living if _is_finite(run, objective)]
        if late := len(distinct) - len(whole):
            notes.append(f"{where}: {late} of {len(distinct)} runs have not come as far as the others; left out")
        if lost := len(whole) - len(living):
            notes.append(f"{where}: {lost} of {len(whole)} runs diverged; left out")
        if broken := len(living) - len(finite):
            notes.append(f"{where}: {broken} of {len(whole)} runs have returns that are no numbers; left out")
        if finite:
            if len(set(objectives.values())) > 1:
                finite = [_with_objective(run, objective) for run in finite]
            more = about[environment, task, algorithm]
            cells.append(Cell(algorithm, environment, task, finite, *more, diverged=lost + broken))
            if finite[0].absolute and RETURN not in cells[-1].absolute:
                notes.append(f"{where}: its absolute metric is one number (BenchMARL's is its best episode); not used")
        else:
            dead[algorithm, f"{environment}/{task}"] = lost + broken
    return cells, dead


def _is_finite(run: Run, objective: str) -> bool:
    """Whether the return and the objective of every episode are numbers, those of the absolute metric too."""
    figures = [figure for name in (RETURN, objective) for figure in (*run.values[name], *run.absolute.get(name, ()))]
    return bool(np.isfinite(figures).all())


def objectives_of(
    trainings: Sequence[tuple[Training, dict[int, Run]]],
    plain: Sequence[tuple[str, str, str, str, Run]],
    notes: list[str],
) -> dict[tuple[str, str], str]:
    """The metric that ranks on each task: that of its trainings if they agree and all runs have it, else the return."""
    asked: dict[tuple[str, str], dict[str, None]] = {}
    known: dict[tuple[str, str], list[Run]] = {}
    for training, runs in trainings:
        place = (training.environment, training.task)
        asked.setdefault(place, {})[objective_of(training.config)] = None
        known.setdefault(place, []).extend(runs.values())
    for _, environment, task, _, run in plain:
        known.setdefault((environment, task), []).append(run)
    chosen = {}
    for place, every in known.items():
        names = list(asked.get(place, {RETURN: None}))
        chosen[place] = names[0] if len(names) == 1 and all(names[0] in run.values for run in every) else RETURN
        if [chosen[place]] != names:
            notes.append(f"{'/'.join(place)}: not all of it has the objective {' or '.join(names)}; ranked by {RETURN}")
    if len(set(chosen.values())) > 1:
        listed = ", ".join(f"{name} on {'/'.join(place)}" for place, name in chosen.items())
        notes.append(f"{OBJECTIVE} is each task's own: {listed}")
    return chosen


def _with_objective(run: Run, name: str) -> Run:
    """A run that has the metric ``name`` as OBJECTIVE too."""

    def also(table: Mapping[str, Any]) -> dict[str, Any]:
        return {**table, OBJECTIVE: table[name]} if name in table else dict(table)

    return dataclasses.replace(
        run,
        values=also(run.values),
        episodes=[also(one) for one in run.episodes],
        absolute=also(run.absolute),
        extremes=also(run.extremes),
    )


def _distinct(runs: Sequence[Run], where: str, notes: list[str]) -> list[Run]:
    """Every run once, under a seed of its own."""
    kept: dict[int, Run] = {}
    twice = 0
    for run in runs:
        seed = run.seed
        if seed in kept and (kept[seed].steps, kept[seed].values) == (run.steps, run.values):
            twice += 1
            continue
        if seed in kept:
            seed = max(kept) + 1
        kept[seed] = dataclasses.replace(run, seed=seed)
    if twice:
        notes.append(f"{where}: {twice} runs were found twice; used once")
    return list(kept.values())


def _whole(runs: Sequence[Run]) -> list[Run]:
    """The runs that came as far as the farthest, at the steps that they share."""
    last = max(run.steps[-1] for run in runs)
    far = [run for run in runs if run.steps[-1] == last]
    grid = Counter(step for run in far for step in set(run.steps))
    shared = sorted(step for step, count in grid.items() if count == len(far))
    return [run if run.steps == shared else _at(run, shared) for run in far]


def _at(run: Run, steps: Sequence[int]) -> Run:
    index = [run.steps.index(step) for step in steps]
    return dataclasses.replace(
        run,
        steps=list(steps),
        values={name: [values[i] for i in index] for name, values in run.values.items()},
        episodes=[run.episodes[i] for i in index],
        elapsed=[run.elapsed[i] for i in index] if run.elapsed else [],
    )
