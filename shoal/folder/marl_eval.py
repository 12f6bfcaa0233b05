"""marl-eval's JSON: environment, task, algorithm, seed, step. Read from whichever program, and written."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.folder import reading, writing
from shoal.folder.layout import RETURN
from shoal.folder.tables import Entry, as_figures

if TYPE_CHECKING:
    from shoal.run.sweep import Runs


NOT_METRICS = ("step_count", "elapsed_time", "steps_per_second", "timestep")


@dataclasses.dataclass
class Run:
    """One seed: means over episodes at each evaluation, and the episodes themselves."""

    seed: int
    steps: list[int]
    values: dict[str, list[float]]  # by metric, at each step
    episodes: list[dict[str, list[float]]]  # at each step, by metric
    absolute: dict[str, list[float]]  # the episodes of the absolute metric
    elapsed: list[float]  # seconds at each step, where the program tells
    extremes: dict[str, tuple[float, float]]  # the smallest and the largest value of any episode
    diverged: bool = False


def read_json(path: Path) -> list[tuple[str, str, str, Run]]:
    """Every run of a file in marl-eval's layout: environment, task, algorithm, run."""
    try:
        tree = reading.json_file(path, reading.RECORDS)
    except ValueError as error:
        raise reading.Unreadable(reading.reason(error, path.parent).removeprefix(f"{path.name}: ")) from error
    try:
        cells = [
            (environment, task, algorithm, runs)
            for environment, tasks in tree.items()
            for task, algorithms in tasks.items()
            for algorithm, runs in algorithms.items()
        ]
        read = [(str(env), str(task), str(name), run) for env, task, name, runs in cells for run in _runs(runs)]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise reading.Foreign("not in marl-eval's layout (environment, task, algorithm, seed, step)") from error
    found = [entry for entry in read if entry[-1].steps]
    if not found:
        raise reading.Foreign("no evaluation in it")
    return found


def _runs(runs: Mapping[str, Any]) -> list[Run]:
    """The runs of one algorithm on one task; a name that ends in a number has its seed."""
    digits = [name.rpartition("_")[2] for name in runs]
    seeds = [int(last) if last.isdecimal() else place for place, last in enumerate(digits)]
    return [_run(seed, record) for seed, record in zip(seeds, runs.values(), strict=True)]


def _run(seed: int, record: Mapping[str, Any]) -> Run:
    """A run of marl-eval's layout, its metrics under our names."""
    steps = [fields for name, fields in record.items() if "absolute" not in name]
    steps = sorted((fields for fields in steps if "step_count" in fields), key=lambda fields: fields["step_count"])
    episodes = [_episodes(fields) for fields in steps]
    names = [name for name in (episodes[0] if episodes else {}) if all(name in one for one in episodes)]
    values = {name: [float(np.mean(one[name])) for one in episodes] for name in names}
    if steps and RETURN not in names:
        raise ValueError(f"no {RETURN}")
    absolute: dict[str, list[float]] = {}
    for name, fields in record.items():
        if "absolute" in name:
            absolute = _episodes(fields)
    elapsed = [float(fields["elapsed_time"]) for fields in steps if "elapsed_time" in fields]
    timed = elapsed if len(elapsed) == len(steps) else []
    extremes = {}
    for name in names:
        every = [value for one in (*episodes, absolute) for value in one.get(name, ()) if math.isfinite(value)]
        extremes[name] = min(every, default=math.inf), max(every, default=-math.inf)
    counts = [int(fields["step_count"]) for fields in steps]
    if any(not 0 <= count < 2**53 for count in counts):
        raise ValueError("step_count")
    return Run(seed, counts, values, episodes, absolute, timed, extremes)


def _episodes(fields: Mapping[str, Any]) -> dict[str, list[float]]:
    found = {}
    for name, values in fields.items():
        listed = values if isinstance(values, list) else [values]
        if name not in NOT_METRICS and listed:
            found[our_name(name)] = as_figures([float(value) for value in listed]).tolist()
    return found


def our_name(metric: str) -> str:
    """``mean_episode_return`` (Mava), ``return`` and ``<group>_return`` (BenchMARL) as we call them."""
    metric = metric.removeprefix("mean_") if metric.startswith("mean_episode") else metric
    if metric == "return":
        return RETURN
    group = metric.removesuffix("_return")
    return f"{RETURN}/{group}" if group not in (metric, "episode") else metric


def their_name(metric: str) -> str:
    """A metric of ours in marl-eval's file."""
    return f"mean_{metric}" if metric.startswith("episode") else metric


def run_record(
    evaluations: Sequence[tuple[int, Mapping[str, Any]]], absolute: Mapping[str, Any] | None
) -> dict[str, Any]:
    """One run as marl-eval has it, from environment steps and metrics of each evaluation, and the absolute metrics."""
    record: dict[str, Any] = {
        f"step_{number}": {"step_count": env_steps, **_theirs(metrics)}
        for number, (env_steps, metrics) in enumerate(evaluations, 1)
    }
    return record | ({} if absolute is None else {"absolute_metrics": _theirs(absolute)})


def _theirs(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {their_name(name): values for name, values in metrics.items()}


def write_evaluations(
    path: Path, entries: Sequence[Entry], runs: Runs, env: str, algorithm: str, lost: np.ndarray
) -> None:
    """Write the evaluations of a training; each point of a sweep is an algorithm.

    The layout has no place for a mark, so that runs which are ``lost [R]`` are left out.
    """
    evaluations: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    absolute: dict[int, dict[str, Any]] = {}
    for entry in entries:
        for position, run in enumerate(entry["runs"]):
            if lost[run]:
                continue
            metrics = {name: values[position] for name, values in entry["metrics"].items()}
            known = evaluations.setdefault(run, [])
            if "absolute" in entry:
                absolute[run] = metrics
            else:
                known.append((entry["env_steps"], metrics))
    by_algorithm: dict[str, dict[str, Any]] = {}
    for run, known in evaluations.items():
        name = f"{algorithm} {runs.label(runs.point[run])}".rstrip()
        by_algorithm.setdefault(name, {})[f"seed_{runs.seed[run]}"] = run_record(known, absolute.get(run))
    family, task = env.split("/", 1)
    writing.write(path, json.dumps({family: {task: by_algorithm}}))
