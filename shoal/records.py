"""The files that a training appends to while it runs, and cuts back to a checkpoint when it resumes.

``metrics.csv`` has a row per run and chunk, ``evaluations.jsonl`` a line per batch and chunk (the episodes behind
``evaluations.json``), ``lineage.csv`` of an evolution a row per run and round. They hold only what the training
determines, no times: the same command writes the same bytes.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal import reading

METRICS, EVALUATIONS, LINEAGE = "metrics.csv", "evaluations.jsonl", "lineage.csv"
RETURN = "episode_return"  # of an agent, the mean over all agents
SWEEP_FIELDS = ("mode", "num", "seed", "paired")  # of `sweep` in config.yaml; all others are hyperparameters


def objective_of(config: Mapping[str, Any]) -> str:
    """The metric that a training is ranked by; a folder without this setting was ranked by the mean return."""
    return str((config.get("evaluation") or {}).get("objective", RETURN))


def short_name(objective: str) -> str:
    """What a line calls figures of the objective."""
    return "return" if objective == RETURN else objective


def diverged_runs(folder: Path) -> set[int]:
    """The runs whose newest row of ``metrics.csv`` has ``diverged``; rows that cannot be read count for nothing."""
    newest: dict[int, bool] = {}
    with contextlib.suppress(OSError, ValueError, csv.Error):
        rows = csv.reader(whole_lines(folder / METRICS))
        header = next(rows, [])
        run, diverged = header.index("run"), header.index("diverged")
        for row in rows:
            with contextlib.suppress(ValueError, IndexError):
                newest[int(row[run])] = row[diverged] == "1"
    return {run for run, diverged in newest.items() if diverged}


def figure(value: Any) -> str:
    """A number as text that reads back as the same float32; empty for NaN."""
    if isinstance(value, int | np.integer | np.bool_):
        return str(int(value))
    return "" if np.isnan(value) else f"{np.float32(value):.9g}" if isinstance(value, np.floating) else f"{value:.9g}"


class Records:
    """Appends to the records of one training folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def append(self, rows: list[dict[str, Any]], evaluation: dict[str, Any]) -> None:
        """The rows of one chunk, on the disk when this returns."""
        path = self.folder / METRICS
        new = not path.exists()
        names = list(rows[0])
        if not new:  # callbacks that came or went with a resume bring or take columns; the file keeps its own
            with path.open(newline="") as file:
                names = next(csv.reader(file))
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, names, lineterminator="\n", extrasaction="ignore")
            if new:
                writer.writeheader()
            writer.writerows({name: figure(value) for name, value in row.items()} for row in rows)
            file.flush()
            os.fsync(file.fileno())
        self.append_evaluation(evaluation)

    def append_lineage(self, rows: list[dict[str, str]]) -> None:
        """The rows of one round, on the disk when this returns."""
        path = self.folder / LINEAGE
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(rows)
            file.flush()
            os.fsync(file.fileno())

    def append_evaluation(self, evaluation: dict[str, Any]) -> None:
        """One entry of the evaluations, on the disk when this returns."""
        with (self.folder / EVALUATIONS).open("a") as file:
            file.write(json.dumps(evaluation) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def cut(self, batch: int, first_run: int, stop_run: int, env_steps: int) -> None:
        """Forget what was recorded after ``env_steps`` of the batch ``[first_run, stop_run)``, and all later batches.

        A killed process can leave half a line; no checkpoint vouches for that one, and it goes too.
        """

        def keep_row(line: str) -> bool:
            run, _, steps, *_ = line.split(",")
            return int(run) < first_run or (int(run) < stop_run and int(steps) <= env_steps)

        def keep_evaluation(line: str) -> bool:
            entry = json.loads(line)
            return entry["batch"] < batch or (entry["batch"] == batch and entry["env_steps"] <= env_steps)

        for name, header, keep in ((METRICS, 1, keep_row), (LINEAGE, 1, keep_row), (EVALUATIONS, 0, keep_evaluation)):
            path = self.folder / name
            if path.exists():
                lines = whole_lines(path)
                write_atomically(path, "".join(lines[:header] + [line for line in lines[header:] if keep(line)]))

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations so far."""
        return [json.loads(line) for line in whole_lines(self.folder / EVALUATIONS)]


def whole_lines(path: Path) -> list[str]:
    """The lines of a file; none if it is not there. A running or a killed training can leave half a line: not that."""
    lines = reading.text(path, reading.RECORDS).splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith("\n")]


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_suffix(path.suffix + ".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
