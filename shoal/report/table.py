"""What trainings left behind, as one table of scores: runs of algorithms on tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.folder.layout import RETURN, swept_names
from shoal.folder.marl_eval import Run
from shoal.folder.tables import as_figures

OBJECTIVE = "objective"  # stands for each task's own metric where tasks are ranked by different ones


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
        return label_of(self.name, self.own)

    @property
    def speed(self) -> float | None:
        """Environment steps per second of all runs together."""
        return self.provenance.get("session", {}).get("steps_per_second")

    def point(self, run: int) -> dict[str, Any]:
        """What sets a run apart from others of the same algorithm, but for its seed."""
        unknown = {"point": run // int(self.config["seeds"])} if swept_names(self.config) else {}
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
            if all(has_absolute(run, name) for run in self.runs):
                with np.errstate(invalid="ignore"):  # infinities of both signs
                    scores = np.array([as_figures(run.absolute[name]).mean() for run in self.runs])
                if np.isfinite(scores).all():
                    self.absolute[name] = scores
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
    dead: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    # how many runs of an algorithm on a place (environment/task) were lost, where none is left

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


def label_of(name: str, point: Mapping[str, Any]) -> str:
    """``ippo lr=0.001 num_envs=16``, without commas."""
    words = [f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in point.items()]
    return " ".join([name, *words]).replace(", ", ";").replace(",", ";")


def has_absolute(run: Run, metric: str) -> bool:
    """Whether a run has an absolute metric: one number beside evaluations of many episodes is none."""
    values = run.absolute.get(metric, [])
    return len(values) > 1 or (len(values) == 1 and len(run.episodes[-1][metric]) == 1)


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
