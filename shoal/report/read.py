"""Reads folders of trainings, and marl-eval's JSON by whichever program, into one table of scores.

Whatever cannot be read, or is left out, is said in one line (``Results.notes``), and the rest is used.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from shoal.folder import reading, seals
from shoal.folder.layout import (
    CONFIG,
    EVALUATIONS,
    MARL_EVAL,
    PROVENANCE,
    RETURN,
    algorithm_name,
    members_of,
    objective_of,
    swept_names,
)
from shoal.folder.lineage import best_of_populations, lost_populations
from shoal.folder.marl_eval import Run, read_json
from shoal.folder.provenance import read_provenance
from shoal.folder.tables import (
    Entry,
    as_figures,
    diverged_runs,
    read_evaluations,
    recorded_objective,
    swept_of_runs,
)
from shoal.report.cells import cells_of, objectives_of, tell_apart
from shoal.report.table import OBJECTIVE, Results, Training

MARK = '<meta name="generator" content="shoal report">'  # in a page of ours: the JSON beside it is its copy of the data
SKIPPED = ("checkpoints", "wandb", "tensorboard", "figures", "__pycache__")  # folders with nothing to read
OTHERS = (PROVENANCE, "status.json")  # JSON of ours with no evaluations in it


def read(paths: Iterable[str | Path]) -> Results:
    """All trainings and evaluations under some folders or files."""
    notes: list[str] = []
    unusable: list[str] = []
    trainings: list[tuple[Training, dict[int, Run]]] = []
    plain: list[tuple[str, str, str, str, Run]] = []  # where it was found, environment, task, algorithm
    sources: set[Path] = set()
    for path in map(Path, paths):
        said, usable = len(notes), 0
        for place in find(path):
            try:
                if place.resolve() in sources:
                    pass
                elif place.name == EVALUATIONS:
                    trainings.append(read_training(place.parent, notes))
                else:
                    found = path.stem if path.is_file() else path.resolve().name
                    plain += [(found, *entry) for entry in read_json(place)]
                usable += 1
                sources.add(place.resolve())
            except reading.Foreign as error:
                if place == path:
                    notes.append(f"{place}: {error}")
            except reading.Unreadable as error:
                notes.append(f"{place.parent if place.name == EVALUATIONS else place}: {error}")
        if not usable:
            unusable.append(str(path))
            if said == len(notes):
                what = (
                    "nothing that a training or marl-eval left behind"
                    if os.path.exists(path)
                    else "no such file or folder"
                )
                notes.append(f"{path}: {what}")
    tell_apart([training for training, _ in trainings])
    objectives = objectives_of(trainings, plain, notes)
    cells, dead = cells_of(trainings, plain, objectives, notes)
    every = set(objectives.values())
    objective = every.pop() if len(every) == 1 else OBJECTIVE
    return Results(cells, [training for training, _ in trainings], notes, unusable, sources, objective, dead)


def find(path: Path) -> list[Path]:
    """The ``evaluations.jsonl`` of trainings under a path (whether it exists or not), and other programs' JSON."""
    if path.is_file():
        return [path]
    found = []
    for root, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        folder = Path(root)
        if EVALUATIONS in files or _begun(folder, files):
            folders.clear()
            found.append(folder / EVALUATIONS)
        elif folder == path or not _ours(folder):
            found += [folder / name for name in sorted(files) if name.endswith(".json") and name not in OTHERS]
    if len(found) > 1 and _ours(path):  # the merged data beside the page of an earlier report
        found = [place for place in found if place != path / MARL_EVAL]
    return found


def _begun(folder: Path, files: Sequence[str]) -> bool:
    """Whether a training was begun here that has evaluated nothing yet."""
    if CONFIG not in files:
        return False
    try:
        tree = reading.yaml_file(folder / CONFIG)
    except ValueError:
        return False
    return isinstance(tree, dict) and {"algo", "hypers", "env"} <= set(tree)


def _ours(folder: Path) -> bool:
    try:
        with reading.opened(folder / "report.html", reading.RECORDS) as file:
            return MARK in file.read(1000).decode(errors="replace")
    except ValueError:
        return False


def read_training(folder: Path, notes: list[str]) -> tuple[Training, dict[int, Run]]:
    """A folder of ours, and its runs."""
    try:
        config = reading.settings(folder / CONFIG)
        text = reading.text(folder / CONFIG, reading.SETTINGS)
    except ValueError as error:
        raise reading.Unreadable(f"no config.yaml that can be read ({reading.reason(error, folder)})") from error
    environment, task = config["env"]["name"].split("/", 1)
    objective = objective_of(config)
    config["evaluation"] = {**config.get("evaluation", {}), "objective": objective}  # of a folder without it
    name, seeds, first = algorithm_name(config), config["seeds"], config["seed"]
    swept = swept_of_runs(folder, swept_names(config))
    training = Training(folder, name, environment, task, config, text, read_provenance(folder), swept)
    runs: dict[int, Run] = {}
    entries, members, lost = _entries(folder, notes), members_of(config), diverged_runs(folder)
    notes += [f"{folder}: {record}: {seals.CHANGED}" for record in seals.changed(folder, config)]
    if recorded_objective(objective, entries) != objective:
        notes.append(f"{folder}: evaluation.objective={objective} is no metric of its evaluations; {RETURN} instead")
        config["evaluation"]["objective"] = objective = RETURN
    if members > 1:  # a population is a seed
        counts = Counter(run // members for run in lost)
        lost = {population for population, count in counts.items() if count == members}
        lost |= lost_populations(entries, members, objective)
        entries = best_of_populations(entries, members, objective)
    first_metrics = entries[0]["metrics"] if entries else {}
    shared = [metric for metric in first_metrics if all(metric in entry["metrics"] for entry in entries)]
    for entry in entries:
        tables = {metric: as_figures(entry["metrics"][metric]) for metric in shared}
        with np.errstate(invalid="ignore"):  # infinities of both signs
            means, lows, highs = (
                {metric: reduce(table, axis=-1).tolist() for metric, table in tables.items()}
                for reduce in (np.mean, np.min, np.max)
            )
        for position, run in enumerate(entry["runs"]):
            record = runs.setdefault(run, Run(first + run % seeds, [], {}, [], {}, [], {}, run in lost))
            for metric in tables:
                low, high = record.extremes.get(metric, (np.inf, -np.inf))
                if np.isfinite(means[metric][position]):
                    record.extremes[metric] = min(low, lows[metric][position]), max(high, highs[metric][position])
            episodes = {metric: entry["metrics"][metric][position] for metric in shared}
            if "absolute" in entry:
                record.absolute = episodes
                continue
            record.steps.append(entry["env_steps"])
            record.episodes.append(episodes)
            for metric, values in means.items():
                record.values.setdefault(metric, []).append(values[position])
    if not any(run.steps for run in runs.values()):
        raise reading.Unreadable("a training that has not been evaluated yet")
    return training, {index: run for index, run in runs.items() if run.steps}


def _entries(folder: Path, notes: list[str]) -> list[Entry]:
    """The evaluations of a training; lines that cannot be read are left out, and named in ``notes``."""
    try:
        entries, faults, _ = read_evaluations(folder)
    except ValueError as error:
        raise reading.Unreadable(reading.reason(error, folder)) from error
    broken = list(faults)
    if broken and not entries:
        raise reading.Unreadable(f"{EVALUATIONS} has no line that can be read")
    if broken == [len(entries) + 1]:
        notes.append(f"{folder}: the last line of {EVALUATIONS} is cut off; used without it")
    elif broken:
        notes.append(f"{folder}: line {', '.join(map(str, broken[:5]))} of {EVALUATIONS} cannot be read; used without")
    return entries
