"""Trains the cells of a benchmark, each in a process of its own, and keeps what became of each."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.benchmark.cells import Cell, last_line
from shoal.benchmark.plan import Planned, ended, evaluations
from shoal.folder import reading, writing
from shoal.folder.layout import CONFIG, ENV_STEPS, EVALUATION, RETURN, objective_of, short_name
from shoal.folder.tables import diverged_runs, last_row, means_of
from shoal.report.statistics import bootstrap, iqm
from shoal.run.signals import GO_ON, PARENT

LOG, STATUS, LOCK = "log.txt", "status.json", ".lock"


POLL = 0.5  # seconds between two looks at a training


class Outcome(NamedTuple):
    """What became of a cell."""

    state: str  # finished, stopped or failed
    seconds: float
    error: str = ""


class Tick(NamedTuple):
    """How far a training is: what its folder shows."""

    steps: int  # of a run
    episode_return: float  # the last one, of its newest run


def look(folder: Path) -> Tick | None:
    """The last whole row of a training's ``metrics.csv``; None before the first."""
    row = last_row(folder) or {}
    try:
        return Tick(int(row[ENV_STEPS]), float(row[EVALUATION + RETURN] or "nan"))
    except (KeyError, ValueError):
        return None


def train_cell(one: Planned, watch: Callable[[Tick], None] | None = None, stop: Any = None) -> Outcome:
    """Train a cell to its end, from wherever its folder stands, in a process of its own."""
    cell = one.cell
    cell.folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with (cell.folder / LOCK).open("w") as lock:
        _wait_for(lock, cell)
        begun = (cell.folder / CONFIG).exists()
        # A training that was killed before its first checkpoint starts again from the beginning of the same folder.
        place = [f"resume={cell.folder}"] if begun else [f"run.dir={cell.folder}"]
        again = ("total_steps", "logger", "callbacks", "imports", "env")  # code is named again (docs/guide.md)
        free = [w for w in cell.words if w.split("=")[0] in again] if begun else list(cell.words)
        target = [cell.algorithm] if cell.algorithm.endswith(".py") else ["-m", "shoal", cell.algorithm]
        command = [sys.executable, *target, *free, *place]
        with (cell.folder / LOG).open("a") as log:
            # The lock goes along: whoever comes next waits until the training has ended, not only this process.
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
                env={**os.environ, PARENT: str(os.getpid())},
            )
            told = False
            while process.poll() is None:
                if stop is not None and stop.asked and not told:
                    process.send_signal(signal.SIGTERM)
                    told = True
                tick = look(cell.folder)
                if tick is not None and watch is not None:
                    watch(tick)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
    seconds = time.perf_counter() - begin
    if process.returncode not in (0, GO_ON):
        return Outcome("failed", seconds, _why(process.returncode, cell.folder / LOG))
    return Outcome("finished" if ended(cell.folder, one.steps, one.batches) else "stopped", seconds)


def _wait_for(lock: Any, cell: Cell) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{cell.label}: another process is training it; waiting for that one to end", file=sys.stderr)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _why(code: int, log: Path) -> str:
    """One line on why a training failed."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; out of memory? runs_per_batch=<n> trains fewer at once" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    return f"{last_line(log.read_text(errors='replace'))} (all of it in {log})"


class Reached(NamedTuple):
    """The objective in the last evaluation of a cell: IQM and 95 % interval over the runs that live."""

    objective: str
    iqm: float
    low: float
    high: float
    diverged: int  # runs left out

    @property
    def text(self) -> str:
        figures = (
            f"{short_name(self.objective)} {self.iqm:.2f} ({self.low:.2f} .. {self.high:.2f})"
            if np.isfinite(self.iqm)
            else "no score"
        )
        return figures + (f", {self.diverged} diverged" if self.diverged else "")


def reached(folder: Path) -> Reached | None:
    """What a training has come to; None if it has not been evaluated."""
    objective, lost = objective_of(reading.settings(folder / CONFIG)), diverged_runs(folder)
    last: dict[int, float] = {}
    for entry in evaluations(folder):
        if "absolute" not in entry:
            last |= dict(zip(entry["runs"], means_of(entry, objective), strict=True))
    values = np.array([value for run, value in last.items() if np.isfinite(value) and run not in lost])
    if not last:
        return None
    middle, low, high = (iqm(values), *bootstrap(values)) if len(values) else (np.nan,) * 3
    return Reached(objective, float(middle), float(low), float(high), len(lost))


def note(folder: Path, cell: Cell, outcome: Outcome) -> None:
    """Add what became of a cell to ``status.json``."""
    path = folder / STATUS
    with (folder / f"{STATUS}{LOCK}").open("w") as lock:  # launchers write side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = {label: past._asdict() for label, past in status(folder).items()}
        writing.write(path, json.dumps(known | {cell.label: outcome._asdict()}, indent=2) + "\n")


def status(folder: Path) -> dict[str, Outcome]:
    """What became of the cells that have been trained."""
    try:
        return {label: Outcome(**fields) for label, fields in reading.json_file(folder / STATUS).items()}
    except (ValueError, TypeError, AttributeError):
        return {}
