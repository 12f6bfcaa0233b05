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
from shoal.folder.layout import CONFIG, DIVERGED, ENV_STEPS, EVALUATION, RETURN, objective_of, short_name
from shoal.folder.tables import diverged_runs, left_out, means_of, nan_runs, newest_rows, recorded_objective
from shoal.report.statistics import bootstrap, iqm
from shoal.run.progress import human
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
    objective: str  # the metric that is shown
    value: float  # its mean over the runs that live, in the newest evaluation; NaN if none does
    diverged: int  # runs left out
    nan: int  # runs left out as well: their evaluation is no number

    @property
    def text(self) -> str:
        score = f"{short_name(self.objective)} {self.value:.2f}" if np.isfinite(self.value) else "no score"
        return ", ".join(filter(None, (f"{human(self.steps)} steps", score, left_out(self.diverged, self.nan))))


def look(folder: Path, objective: str) -> Tick | None:
    """What the newest rows of a training's ``metrics.csv`` say of the objective; None before the first."""
    rows = newest_rows(folder)
    try:
        name = objective if EVALUATION + objective in rows[0] else RETURN
        living = np.array([float(row[EVALUATION + name] or "nan") for row in rows if row[DIVERGED] != "1"])
        finite = living[np.isfinite(living)]
        mean = float(finite.mean()) if len(finite) else np.nan
        return Tick(int(rows[0][ENV_STEPS]), name, mean, len(rows) - len(living), len(living) - len(finite))
    except (IndexError, KeyError, ValueError):
        return None


def train_cell(one: Planned, watch: Callable[[Tick], None] | None = None, stop: Any = None) -> Outcome:
    """Train a cell to its end, from wherever its folder stands, in a process of its own."""
    folder = writing.make_folder(one.cell.folder)
    begin = time.perf_counter()
    with os.fdopen(writing.opened(folder / LOCK, os.O_RDWR), "r+") as lock:
        _wait_for(lock, one.cell)
        with os.fdopen(writing.opened(folder / LOG, os.O_WRONLY | os.O_APPEND), "a") as log:
            # The lock goes along: whoever comes next waits until the training has ended, not only this process.
            process = subprocess.Popen(
                _command(one.cell),
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
                tick = look(folder, one.objective)
                if tick is not None and watch is not None:
                    watch(tick)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
    seconds = time.perf_counter() - begin
    if process.returncode not in (0, GO_ON):
        return Outcome("failed", seconds, _why(process.returncode, folder / LOG))
    return Outcome("finished" if ended(folder, one.steps, one.batches) else "stopped", seconds)


def _command(cell: Cell) -> list[str]:
    """What trains a cell, or goes on with it."""
    begun = (cell.folder / CONFIG).exists()
    # A training that was killed before its first checkpoint starts again from the beginning of the same folder.
    place = [f"resume={cell.folder}"] if begun else [f"run.dir={cell.folder}"]
    again = ("total_steps", "logger", "callbacks", "imports", "env")  # code is named again (docs/guide.md)
    free = [w for w in cell.words if w.split("=")[0] in again] if begun else list(cell.words)
    target = [cell.algorithm] if cell.algorithm.endswith(".py") else ["-m", "shoal", cell.algorithm]
    return [sys.executable, *target, *free, *place]


def _wait_for(lock: Any, cell: Cell) -> None:
    with writing.faults(cell.folder / LOCK, "locked"):
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
    nan: int  # runs left out as well: an evaluation of theirs is no number

    @property
    def text(self) -> str:
        figures = (
            f"{short_name(self.objective)} {self.iqm:.2f} ({self.low:.2f} .. {self.high:.2f})"
            if np.isfinite(self.iqm)
            else "no score"
        )
        return ", ".join(filter(None, (figures, left_out(self.diverged, self.nan))))


def reached(folder: Path) -> Reached | None:
    """What a training has come to, by its objective or else the return; None if it has not been evaluated."""
    entries = evaluations(folder)
    if all("absolute" in entry for entry in entries):
        return None
    objective = recorded_objective(objective_of(reading.settings(folder / CONFIG)), entries)
    last: dict[int, float] = {}
    for entry in entries:
        if "absolute" not in entry:
            last |= dict(zip(entry["runs"], means_of(entry, objective), strict=True))
    diverged = diverged_runs(folder)
    broken = nan_runs(entries, objective) - diverged
    values = np.array([value for run, value in last.items() if run not in diverged | broken])
    middle, low, high = (iqm(values), *bootstrap(values)) if len(values) else (np.nan,) * 3
    return Reached(objective, float(middle), float(low), float(high), len(diverged), len(broken))


def note(folder: Path, cell: Cell, outcome: Outcome) -> None:
    """Add what became of a cell to ``status.json``."""
    place = folder / f"{STATUS}{LOCK}"
    with os.fdopen(writing.opened(place, os.O_RDWR), "r+") as lock:  # launchers write side by side
        with writing.faults(place, "locked"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        known = {label: past._asdict() for label, past in status(folder).items()}
        writing.write(folder / STATUS, json.dumps(known | {cell.label: outcome._asdict()}, indent=2) + "\n")


def status(folder: Path) -> dict[str, Outcome]:
    """What became of the cells that have been trained."""
    try:
        return {label: Outcome(**fields) for label, fields in reading.json_file(folder / STATUS).items()}
    except (ValueError, TypeError, AttributeError):
        return {}
