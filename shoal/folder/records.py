"""The files that a training appends to while it runs, and mends when it resumes.

``metrics.csv`` has a row per run and chunk, ``evaluations.jsonl`` a line per batch and chunk (the episodes behind
``evaluations.json``), ``lineage.csv`` of an evolution a row per run and round. They hold only what the training
determines, no times: the same command writes the same bytes.

Each checkpoint says how many lines of its batch there were, and their SHA-256. What came after it is cut off when the
training goes on, half a line too. Lines that are missing or were changed before it are said in one line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.folder import reading, writing
from shoal.folder.layout import (
    BEST_RETURN,
    DIVERGED,
    ENV_STEPS,
    EVALUATION,
    EVALUATIONS,
    HYPERS,
    LINEAGE,
    METRICS,
    RETURN,
    RUN,
    SEED,
)
from shoal.folder.tables import ENDING, evaluation, read_evaluations

if TYPE_CHECKING:
    from shoal.algorithm import Metrics

ABSOLUTE = '{"absolute"'  # begins an entry that follows the last checkpoint; played again if it is missing


def figure(value: Any) -> str:
    """A number as text that reads back as the same float32; empty for NaN."""
    if isinstance(value, int | np.integer | np.bool_):
        return str(int(value))
    return "" if np.isnan(value) else f"{np.float32(value):.9g}" if isinstance(value, np.floating) else f"{value:.9g}"


class Begun(NamedTuple):
    """What a batch of runs has behind it."""

    first_run: int
    stop_run: int
    env_steps: int  # of one run, at its checkpoint
    records: dict[str, Any]  # what that checkpoint says of the records


class Tally:
    """How many lines of a file there are of one batch, and their digest."""

    def __init__(self) -> None:
        self.lines, self.digest = 0, hashlib.sha256()

    def add(self, line: str) -> None:
        self.lines += 1
        self.digest.update(line.encode())


class Records:
    """Appends to the records of one training folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tallies: dict[tuple[str, int], Tally] = {}  # by file and batch
        self.headers: dict[str, list[str]] = {}  # the columns of each table, once it has been begun

    def append(self, rows: list[dict[str, Any]], evaluation: dict[str, Any]) -> None:
        """The rows of one chunk, on the disk when this returns."""
        figures = [{name: figure(value) for name, value in row.items()} for row in rows]
        self._append_rows(METRICS, figures, evaluation["batch"])
        self.append_evaluation(evaluation)

    def append_lineage(self, rows: list[dict[str, str]], batch: int) -> None:
        """The rows of one round, on the disk when this returns."""
        self._append_rows(LINEAGE, rows, batch)

    def append_evaluation(self, evaluation: dict[str, Any]) -> None:
        """One entry of the evaluations, on the disk when this returns."""
        line = json.dumps(evaluation) + ENDING
        writing.append(self.folder / EVALUATIONS, line)
        if not line.startswith(ABSOLUTE):
            self._tally(EVALUATIONS, evaluation["batch"]).add(line)

    def _append_rows(self, name: str, rows: list[dict[str, str]], batch: int) -> None:
        # Callbacks that came or went with a resume bring or take columns; the file keeps those of its header.
        text, columns = io.StringIO(), self.headers.get(name) or list(rows[0])
        writer = csv.DictWriter(text, columns, lineterminator=ENDING, extrasaction="ignore")
        if name not in self.headers:
            writer.writeheader()
        start = text.tell()
        writer.writerows(rows)
        writing.append(self.folder / name, text.getvalue())
        self.headers[name] = columns
        for line in text.getvalue()[start:].splitlines(keepends=True):
            self._tally(name, batch).add(line)

    def _tally(self, name: str, batch: int) -> Tally:
        return self.tallies.setdefault((name, batch), Tally())

    def seal(self, batch: int) -> dict[str, Any]:
        """``{file: [lines, SHA-256]}`` of a batch so far, for its checkpoint."""
        return {
            name: [tally.lines, tally.digest.hexdigest()] for (name, of), tally in self.tallies.items() if of == batch
        }

    def mend(self, batches: Sequence[Begun]) -> None:
        """Cut every file back to what the checkpoints of its batches have seen, and say where lines are missing.

        Batches beyond ``batches`` have not begun.
        """
        for name in (METRICS, LINEAGE, EVALUATIONS):
            path = self.folder / name
            lines, kept = _torn_lines(path), []
            header = lines[:1] if name != EVALUATIONS and lines and lines[0].startswith(f"{RUN},") else []
            if header:
                self.headers[name] = header[0].rstrip(ENDING).split(",")
            for line in lines[len(header) :]:
                batch, env_steps = place_of(name, line, self.headers.get(name), batches)
                if batch is None or env_steps > batches[batch].env_steps:
                    continue
                kept.append(line)
                if not line.startswith(ABSOLUTE):
                    self._tally(name, batch).add(line)
            if not self._whole(name, batches) and lines:
                writing.write(path.with_name(f"{name}.damaged"), "".join(lines))
            text = "".join(header + kept)
            with writing.faults(path):
                if not text:
                    path.unlink(missing_ok=True)
                elif path.is_symlink() or text.encode() != path.read_bytes():
                    writing.write(path, text)

    def _whole(self, name: str, batches: Sequence[Begun]) -> bool:
        """Whether a file has all lines that the checkpoints have seen; one line on standard error if not."""
        pairs = [
            (begun.records[name], self.seal(batch).get(name, [0, ""]))
            for batch, begun in enumerate(batches)
            if name in begun.records
        ]
        broken = [(seal, now) for seal, now in pairs if seal != now]
        if not broken:
            return True
        expected, found = sum(seal[0] for seal, _ in broken), sum(now[0] for _, now in broken)
        lost = f"{found} of {expected} lines are left" if found != expected else "lines have changed"
        print(
            f"warning: {self.folder / name}: {lost} of what the checkpoint has seen; its figures have a hole",
            file=sys.stderr,
        )
        return False

    def reach(self, batches: Sequence[Begun]) -> list[int]:
        """The last environment step of each batch that any record shows; 0 if there is none."""
        last = [0] * len(batches)
        for name in (METRICS, LINEAGE, EVALUATIONS):
            for line in _torn_lines(self.folder / name):
                batch, env_steps = place_of(name, line, None, batches)
                if batch is not None:
                    last[batch] = max(last[batch], env_steps)
        return last

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations so far."""
        return read_evaluations(self.folder).entries


def place_of(name: str, line: str, header: list[str] | None, batches: Sequence[Begun]) -> tuple[int | None, int]:
    """The batch and the environment steps of a line; None if it is of no batch, or no such line."""
    try:
        if name == EVALUATIONS:
            entry = evaluation(line)
            batch, env_steps = entry["batch"], entry["env_steps"]
            begun = batches[batch]
            if not begun.first_run <= min(entry["runs"]) <= max(entry["runs"]) < begun.stop_run:
                return None, 0
        else:
            run, _, env_steps = map(int, line.split(",", 3)[:3])
            batch = next(i for i, begun in enumerate(batches) if begun.first_run <= run < begun.stop_run)
        fits = 0 <= batch < len(batches) and (header is None or line.count(",") + 1 == len(header))
        return (batch if fits else None), env_steps
    except (ValueError, IndexError, StopIteration):
        return None, 0


def _torn_lines(path: Path) -> list[str]:
    """Like :func:`whole_lines`, of a file that may hold anything."""
    if not os.path.lexists(path):
        return []
    with reading.opened(path, reading.RECORDS) as file:
        lines = file.read().decode(errors="replace").split(ENDING)
    return [line + ENDING for line in lines[:-1]]


class Row(NamedTuple):
    """One run after one chunk, as ``metrics.csv`` has it."""

    run: int
    seed: int
    env_steps: int
    swept: Mapping[str, float]
    metrics: Mapping[str, Any]  # of training, the return among them
    means: Mapping[str, Any]  # of the evaluation, over its episodes
    best_return: Any
    diverged: Any
    hypers: Mapping[str, Any] = {}  # those that change while training

    def columns(self) -> dict[str, Any]:
        """The values by column, in the order of the columns (see ``layout``)."""
        row = {RUN: self.run, SEED: self.seed, ENV_STEPS: self.env_steps, RETURN: self.metrics[RETURN]}
        row |= {name: np.float32(value) for name, value in self.swept.items()}
        row |= {name: value for name, value in self.metrics.items() if name != RETURN}
        row |= {EVALUATION + name: value for name, value in self.means.items()}
        row |= {BEST_RETURN: self.best_return, DIVERGED: self.diverged}
        return row | {HYPERS + name: value for name, value in self.hypers.items()}


def evaluation_entry(batch: int, runs: np.ndarray, env_steps: int, episodes: Metrics) -> dict[str, Any]:
    """The episodes of one evaluation as plain numbers, ``[runs][episodes]`` per metric."""
    values = {
        name: np.asarray(value)[: len(runs)].astype(np.float64).round(5).tolist() for name, value in episodes.items()
    }
    return {"batch": batch, "env_steps": env_steps, "runs": runs.tolist(), "metrics": values}
