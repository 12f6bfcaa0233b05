"""What trainings left behind, as one table of scores: folders of Shoal's, and marl-eval's JSON by whichever program.

Whatever cannot be read, or is left out, is said in one line (``Results.notes``), and the rest is used.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.evolve.lineage import best_of_populations, members_of
from shoal.folder import reading
from shoal.folder.records import EVALUATIONS, METRICS, RETURN, SWEEP_FIELDS, diverged_runs, objective_of

OBJECTIVE = "objective"  # stands for each task's own metric where tasks are ranked by different ones
MARK = '<meta name="generator" content="shoal report">'  # in a page of ours: the JSON beside it is its copy of the data
SKIPPED = ("checkpoints", "wandb", "tensorboard", "figures", "__pycache__")  # folders with nothing to read
OTHERS = ("provenance.json", "status.json")  # JSON of ours with no evaluations in it
NOT_METRICS = ("step_count", "elapsed_time", "steps_per_second", "timestep")
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


@dataclasses.dataclass
class Training:
    """A folder of ours."""

    folder: Path
    name: str  # of the algorithm
    environment: str
    task: str
    config: dict[str, Any]
    text: str  # the configuration as it was saved
    provenance: dict[str, Any]
    swept: dict[int, dict[str, Any]]  # a run's swept hyperparameters
    own: dict[str, Any] = dataclasses.field(default_factory=dict)  # settings that set it apart from its siblings

    @property
    def label(self) -> str:
        return _label(self.name, self.own)

    @property
    def speed(self) -> float | None:
        """Environment steps per second of all runs together."""
        return self.provenance.get("session", {}).get("steps_per_second")

    def point(self, run: int) -> dict[str, Any]:
        """What sets a run apart from others of the same algorithm, but for its seed."""
        unknown = {"point": run // int(self.config["seeds"])} if _sweep(self.config) else {}
        return self.own | self.swept.get(run, unknown)


@dataclasses.dataclass
class Cell:
    """All runs of one algorithm on one task, evaluated at the same steps."""

    algorithm: str
    environment: str
    task: str
    runs: list[Run]
    base: str  # the algorithm without what sets its variants apart
    point: dict[str, Any]  # what does
    training: Training | None
    diverged: int = 0  # runs that are not among `runs`, as they diverged or have returns that are no numbers

    steps: np.ndarray = dataclasses.field(init=False)  # [C]
    metrics: dict[str, np.ndarray] = dataclasses.field(init=False)  # [R, C]
    absolute: dict[str, np.ndarray] = dataclasses.field(init=False)  # [R]
    seconds: np.ndarray | None = dataclasses.field(init=False)  # [C]

    def __post_init__(self) -> None:
        self.steps = np.array(self.runs[0].steps)
        names = [name for name in self.runs[0].values if all(name in run.values for run in self.runs)]
        table = {name: np.array([run.values[name] for run in self.runs]) for name in names}
        self.metrics = {name: values for name, values in table.items() if np.isfinite(values).all()}
        self.absolute = {}
        for name in self.metrics:
            if all(_absolute(run, name) for run in self.runs):
                self.absolute[name] = np.array([np.mean(run.absolute[name]) for run in self.runs])
        self.seconds = None
        if all(run.elapsed for run in self.runs):
            self.seconds = np.mean([run.elapsed for run in self.runs], axis=0)
        elif self.training is not None and self.training.speed:
            # All runs of a training advance together at an even pace.
            self.seconds = self.steps * self.training.provenance["runs"] / self.training.speed

    @property
    def place(self) -> str:
        return f"{self.environment}/{self.task}"

    def extremes(self, metric: str) -> tuple[float, float]:
        """The smallest and the largest value of any episode."""
        lows, highs = zip(*(run.extremes[metric] for run in self.runs), strict=True)
        return min(lows), max(highs)


@dataclasses.dataclass
class Results:
    """Everything that was found."""

    cells: list[Cell]
    trainings: list[Training]
    notes: list[str]  # what could not be used, a line each
    unusable: list[str]  # of what was asked for: nothing in there at all
    sources: set[Path]  # files that were read
    objective: str = RETURN  # the metric that ranks, or OBJECTIVE

    @property
    def algorithms(self) -> list[str]:
        return list(dict.fromkeys(cell.algorithm for cell in self.cells))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(cell.place for cell in self.cells))

    @property
    def metrics(self) -> list[str]:
        """Those that some cell has, the objective first."""
        names = dict.fromkeys(name for cell in self.cells for name in cell.metrics)
        return sorted(names, key=lambda name: (name != self.objective, list(names).index(name)))


class Unreadable(Exception):
    """Why a file is of no use, in one line."""


class Foreign(Unreadable):
    """It is a file for something else."""


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
            except Foreign as error:
                if place == path:
                    notes.append(f"{place}: {error}")
            except Unreadable as error:
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
    _tell_apart([training for training, _ in trainings])
    objectives = _objectives(trainings, plain, notes)
    cells = _cells(trainings, plain, objectives, notes)
    every = set(objectives.values())
    objective = every.pop() if len(every) == 1 else OBJECTIVE
    return Results(cells, [training for training, _ in trainings], notes, unusable, sources, objective)


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
        found = [place for place in found if place != path / "evaluations.json"]
    return found


def _begun(folder: Path, files: Sequence[str]) -> bool:
    """Whether a training was begun here that has evaluated nothing yet."""
    if "config.yaml" not in files:
        return False
    try:
        tree = reading.yaml_file(folder / "config.yaml")
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
        config = reading.settings(folder / "config.yaml")
        text = reading.text(folder / "config.yaml", reading.SETTINGS)
    except ValueError as error:
        raise Unreadable(f"no config.yaml that can be read ({_reason(error, folder)})") from error
    environment, task = config["env"]["name"].split("/", 1)
    named = Path(config["file"]).name == config["recipe"]
    objective = objective_of(config)
    config["evaluation"] = {**config.get("evaluation", {}), "objective": objective}  # of a folder without it
    name, seeds, first = config["algorithm" if named else "recipe"], config["seeds"], config["seed"]
    provenance = _provenance(folder)
    training = Training(folder, name, environment, task, config, text, provenance, _swept(folder, config))
    runs: dict[int, Run] = {}
    entries, members, lost = _entries(folder, notes), members_of(config), diverged_runs(folder)
    if not all(objective in entry["metrics"] for entry in entries):
        notes.append(f"{folder}: evaluation.objective={objective} is no metric of its evaluations; {RETURN} instead")
        config["evaluation"]["objective"] = objective = RETURN
    if members > 1:  # a population is a seed
        entries = best_of_populations(entries, members, objective)
        counts = Counter(run // members for run in lost)
        lost = {population for population, count in counts.items() if count == members}
    first_metrics = entries[0]["metrics"] if entries else {}
    shared = [metric for metric in first_metrics if all(metric in entry["metrics"] for entry in entries)]
    for entry in entries:
        tables = {metric: np.asarray(entry["metrics"][metric], float) for metric in shared}
        means, lows, highs = (
            {metric: reduce(table, axis=-1).tolist() for metric, table in tables.items()}
            for reduce in (np.mean, np.min, np.max)
        )
        for position, run in enumerate(entry["runs"]):
            record = runs.setdefault(run, Run(first + run % seeds, [], {}, [], {}, [], {}, run in lost))
            for metric in tables:
                low, high = record.extremes.get(metric, (np.inf, -np.inf))
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
        raise Unreadable("a training that has not been evaluated yet")
    return training, {index: run for index, run in runs.items() if run.steps}


def _reason(error: ValueError, folder: Path) -> str:
    """What a fault says, without the folder that it is said of anyway."""
    return str(error).replace(f"{folder}/", "")


def _provenance(folder: Path) -> dict[str, Any]:
    """``provenance.json``; {} if it is not what a training writes."""
    try:
        facts = reading.json_file(folder / "provenance.json")
        numbers = [facts["runs"], facts["env_steps_per_run"], *facts["session"].values()]
        sound = all(number is None or (type(number) in (int, float) and 0 <= number < 2**63) for number in numbers)
        inner = [
            x for value in facts.values() for x in (value.values() if isinstance(value, dict) else np.ravel(value))
        ]
        flat = not any(isinstance(x, dict | list) for x in inner)
        named = all(isinstance(device, str) for device in facts.get("devices", ()))
        return facts if sound and flat and named and isinstance(facts.get("packages", {}), dict) else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _entries(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The lines of ``evaluations.jsonl``; what a killed process left half is passed over."""
    path = folder / EVALUATIONS
    if not os.path.exists(path):
        raise Unreadable("a training that has not been evaluated yet")
    try:
        lines = reading.text(path, reading.RECORDS).splitlines()
    except ValueError as error:
        raise Unreadable(_reason(error, folder)) from error
    entries, broken = [], []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(reading.evaluation(line))
        except ValueError:
            broken.append(number)
    if broken and not entries:
        raise Unreadable(f"{EVALUATIONS} has no line that can be read")
    if broken == [len(lines)]:
        notes.append(f"{folder}: the last line of {EVALUATIONS} is cut off; used without it")
    elif broken:
        notes.append(f"{folder}: line {', '.join(map(str, broken[:5]))} of {EVALUATIONS} cannot be read; used without")
    return entries


def _sweep(config: Mapping[str, Any]) -> list[str]:
    """The names of the swept hyperparameters."""
    sweep = config.get("sweep") or {}
    return [name for name, value in sweep.items() if name not in SWEEP_FIELDS and value is not None]


def _swept(folder: Path, config: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The swept hyperparameters of each run, as ``metrics.csv`` has them; as far as it can be read."""
    names, points = _sweep(config), {}
    if names:
        with contextlib.suppress(KeyError, ValueError, TypeError, OverflowError, csv.Error):
            for row in csv.DictReader(reading.text(folder / METRICS, reading.RECORDS).splitlines()):
                if int(row["run"]) not in points:
                    points[int(row["run"])] = {name: float(f"{float(row[name]):.6g}") for name in names}
    return points


def read_json(path: Path) -> list[tuple[str, str, str, Run]]:
    """Every run of a file in marl-eval's layout: environment, task, algorithm, run."""
    try:
        tree = reading.json_file(path, reading.RECORDS)
    except ValueError as error:
        raise Unreadable(_reason(error, path.parent).removeprefix(f"{path.name}: ")) from error
    try:
        cells = [
            (environment, task, algorithm, runs)
            for environment, tasks in tree.items()
            for task, algorithms in tasks.items()
            for algorithm, runs in algorithms.items()
        ]
        read = [(str(env), str(task), str(name), run) for env, task, name, runs in cells for run in _runs(runs)]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise Foreign("not in marl-eval's layout (environment, task, algorithm, seed, step)") from error
    found = [entry for entry in read if entry[-1].steps]
    if not found:
        raise Foreign("no evaluation in it")
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
        every = [value for one in (*episodes, absolute) for value in one.get(name, ())]
        extremes[name] = min(every), max(every)
    counts = [int(fields["step_count"]) for fields in steps]
    if any(not 0 <= count < 2**53 for count in counts):
        raise ValueError("step_count")
    return Run(seed, counts, values, episodes, absolute, timed, extremes)


def _episodes(fields: Mapping[str, Any]) -> dict[str, list[float]]:
    found = {}
    for name, values in fields.items():
        listed = values if isinstance(values, list) else [values]
        if name not in NOT_METRICS and listed:
            found[our_name(name)] = [float(value) for value in listed]
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


def _tell_apart(trainings: Sequence[Training]) -> None:
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


def _label(name: str, point: Mapping[str, Any]) -> str:
    """``ippo lr=0.001 num_envs=16``, without commas."""
    words = [f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in point.items()]
    return " ".join([name, *words]).replace(", ", ";").replace(",", ";")


def _cells(
    trainings: Sequence[tuple[Training, dict[int, Run]]],
    plain: Sequence[tuple[str, str, str, str, Run]],
    objectives: Mapping[tuple[str, str], str],
    notes: list[str],
) -> list[Cell]:
    """Runs of the same algorithm on the same task, put together and made whole."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    about: dict[tuple[str, str, str], tuple[str, dict[str, Any], Training | None]] = {}
    for training, runs in trainings:
        for index, run in runs.items():
            point = training.point(index)
            key = (training.environment, training.task, _label(training.name, point))
            about.setdefault(key, (training.name, point, training))
            groups.setdefault(key, []).append(run)
    ours = set(groups)
    for found, environment, task, algorithm, run in plain:
        key = (environment, task, algorithm)
        if key in ours:
            key = (environment, task, f"{algorithm} ({found})")
        about.setdefault(key, (key[2], {}, None))
        groups.setdefault(key, []).append(run)
    cells = []
    for (environment, task, algorithm), every in groups.items():
        where = f"{algorithm} on {environment}/{task}"
        objective = objectives[environment, task]
        distinct = _distinct(every, where, notes)
        whole = _whole(distinct)
        living = [run for run in whole if not run.diverged]
        finite = [run for run in living if np.isfinite([run.values[RETURN], run.values[objective]]).all()]
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
    return cells


def _objectives(
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


def _absolute(run: Run, metric: str) -> bool:
    """Whether a run has an absolute metric: one number beside evaluations of many episodes is none."""
    values = run.absolute.get(metric, [])
    return len(values) > 1 or (len(values) == 1 and len(run.episodes[-1][metric]) == 1)


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


def common(cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    """Algorithms and tasks of which every pair is there: whatever misses most is left out first."""
    have = {(cell.algorithm, cell.place) for cell in cells}
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    tasks = list(dict.fromkeys(cell.place for cell in cells))
    while True:
        missing = [
            (sum((a, t) not in have for t in tasks) / len(tasks), 0, a) for a in algorithms if len(algorithms) > 1
        ] + [(sum((a, t) not in have for a in algorithms) / len(algorithms), 1, t) for t in tasks if len(tasks) > 1]
        worst = max(missing, key=lambda item: item[:2], default=(0.0, 0, ""))
        if not worst[0]:
            return algorithms, tasks
        (tasks if worst[1] else algorithms).remove(worst[2])


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
                record: dict[str, Any] = {}
                for position, index in enumerate(chosen, 1):
                    values = {their_name(name): run.episodes[index][name] for name in names}
                    record[f"step_{position}"] = {"step_count": int(run.steps[index]), **values}
                if last:
                    record["absolute_metrics"] = {their_name(name): run.absolute[name] for name in names}
                place = merged.setdefault(environment, {}).setdefault(cell.task, {})
                place.setdefault(cell.algorithm.replace(",", ";"), {})[f"seed_{run.seed if named else number}"] = record
        if not last:
            notes.append(
                f"evaluations.json: {environment}: no absolute metrics in every run; marl-eval's scores need them"
            )
    return merged


def _some(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
