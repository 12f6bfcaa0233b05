"""What a training has recorded, read back: ``metrics.csv`` and ``evaluations.jsonl``.

A training may still be writing, or may have been killed: the last line can be half a line. Nothing here needs JAX.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.errors import UserError
from shoal.folder import reading
from shoal.folder.layout import DIVERGED, ENV_STEPS, EVALUATIONS, METRICS, RETURN, RUN, SEED

if TYPE_CHECKING:
    import pandas as pd

ENDING = "\n"
TAIL = 2**20  # bytes at the end of a table in which its newest rows are looked for

# A line of evaluations.jsonl: "batch", "env_steps", "runs" [R], "metrics" {name: [R][episodes]}; "diverged", the runs
# of an evolution that had diverged then; "absolute" if it is the last evaluation, with the best parameters.
Entry = dict[str, Any]


class Evaluations(NamedTuple):
    """The lines of ``evaluations.jsonl``."""

    entries: list[Entry]
    faults: dict[int, str]  # why a line cannot be read, by its number; the first line is 1
    half: int | None  # the number of the last line, if it cannot be read and has no end: it is still being written


def read_evaluations(folder: Path) -> Evaluations:
    """Everything that a training has evaluated so far; nothing if the file is not there."""
    path = folder / EVALUATIONS
    lines = reading.text(path, reading.RECORDS).split(ENDING) if os.path.exists(path) else [""]
    unfinished = lines.pop()
    entries, faults = [], {}
    for number, line in enumerate([*lines, unfinished] if unfinished else lines, 1):
        try:
            entries.append(evaluation(line))
        except ValueError as error:
            faults[number] = reading.first_line(error)
    last = len(lines) + 1
    return Evaluations(entries, faults, last if last in faults else None)


def evaluation(line: str) -> Entry:
    """One line of ``evaluations.jsonl``; a ``ValueError`` if it is none."""
    try:
        entry = json.loads(line)
        runs, metrics = entry["runs"], entry["metrics"]
        counts: list[Any] = [entry["batch"], entry["env_steps"], *runs]
        whole = all(type(number) is int and 0 <= number < 2**53 for number in counts)
        known = whole and runs and len(set(runs)) == len(runs) and max(runs) < reading.MOST_RUNS
        if not known or not set(entry.get("diverged", ())) <= set(runs) or RETURN not in metrics:
            raise ValueError("no evaluation")
        for name, values in metrics.items():
            table = np.asarray(values)
            if table.ndim != 2 or len(table) != len(runs) or not table.size or table.dtype.kind not in "iuf":
                raise ValueError(f"{name}: no list of episodes for each run")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("no evaluation") from error
    return entry


def as_figures(values: Any) -> np.ndarray:
    """Numbers as an array; those beyond float32, which no training computes, are infinite."""
    array = np.asarray(values, np.float64)
    return np.where(np.abs(array) > np.finfo(np.float32).max, np.copysign(np.inf, array), array)


def means_of(entry: Entry, metric: str) -> np.ndarray:
    """``[R]``: the means of a metric over the episodes of one evaluation."""
    return np.asarray(entry["metrics"][metric], np.float64).mean(axis=-1)


def recorded_objective(objective: str, entries: Sequence[Entry]) -> str:
    """``objective`` if all evaluations have it, else the mean return, which none lacks."""
    return objective if all(objective in entry["metrics"] for entry in entries) else RETURN


def nan_runs(entries: Sequence[Entry], objective: str) -> set[int]:
    """The runs with an episode whose return or ``objective`` is no finite number, in any evaluation."""
    found: set[int] = set()
    for entry in entries:
        for name in {objective, RETURN}:
            finite = np.isfinite(np.asarray(entry["metrics"][name], float)).all(axis=-1)
            found |= {run for run, whole in zip(entry["runs"], finite, strict=True) if not whole}
    return found


def left_out(diverged: int, nan: int, of: str = "") -> str:
    """How many runs are in no mean, in words: ``1 diverged, 2 NaN``; empty if there are none."""
    return ", ".join(f"{count}{of} {word}" for count, word in ((diverged, "diverged"), (nan, "NaN")) if count)


def metric_rows(folder: Path) -> Iterator[dict[str, str]]:
    """The rows of ``metrics.csv`` as text, as far as they can be read."""
    with contextlib.suppress(OSError, ValueError, csv.Error):
        for row in csv.DictReader(whole_lines(folder / METRICS)):
            if None not in row.values():
                yield row


def diverged_runs(folder: Path) -> set[int]:
    """The runs whose newest row of ``metrics.csv`` has ``diverged``; rows that cannot be read count for nothing."""
    newest: dict[int, bool] = {}
    for row in metric_rows(folder):
        with contextlib.suppress(ValueError, KeyError):
            newest[int(row[RUN])] = row[DIVERGED] == "1"
    return {run for run, diverged in newest.items() if diverged}


def swept_of_runs(folder: Path, names: Sequence[str]) -> dict[int, dict[str, float]]:
    """The swept hyperparameters ``names`` of each run, as ``metrics.csv`` has them; as far as it can be read."""
    points: dict[int, dict[str, float]] = {}
    with contextlib.suppress(KeyError, ValueError, OverflowError):
        for row in metric_rows(folder) if names else ():
            if int(row[RUN]) not in points:
                points[int(row[RUN])] = {name: float(f"{float(row[name]):.6g}") for name in names}
    return points


def newest_rows(folder: Path) -> list[dict[str, str]]:
    """The last rows of ``metrics.csv``, of one environment step, as text; found without reading the whole file.

    Half a line at the end is passed over. Of more runs than :data:`TAIL` has room for there are the last ones.
    """
    rows: list[dict[str, str]] = []
    with contextlib.suppress(OSError, KeyError, ValueError):
        with reading.opened(folder / METRICS, reading.RECORDS) as file:
            header = file.readline().decode().rstrip(ENDING).split(",")
            start = file.tell()
            file.seek(max(start, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode().rpartition(ENDING)[0].splitlines()
        for line in reversed(lines):
            row = dict(zip(header, line.split(","), strict=True))
            if rows and row[ENV_STEPS] != rows[0][ENV_STEPS]:
                break
            rows.append(row)
    return rows


def metrics_table(folder: Path, swept: Sequence[str]) -> pd.DataFrame:
    """``metrics.csv`` as a table, with the ``swept`` hyperparameters as they were asked for; empty if it is not there.

    A line that cannot be read is an error.
    """
    import pandas as pd

    lines = whole_lines(folder / METRICS)
    if not lines:
        return pd.DataFrame({RUN: [], SEED: [], ENV_STEPS: []}, dtype=int)
    kinds = {RUN: int, SEED: int, ENV_STEPS: int, DIVERGED: float} | dict.fromkeys(swept, float)
    table = csv_table(folder / METRICS, lines, defaultdict(lambda: float, kinds))
    for name in swept:  # 0.001, not 0.00100000005
        table[name] = [float(str(value)) for value in table[name].to_numpy(np.float32)]
    return table.astype({DIVERGED: bool})


def csv_table(path: Path, lines: Sequence[str], kinds: Mapping[str, type], **options: Any) -> pd.DataFrame:
    """The ``lines`` of the CSV file ``path`` as a table; ``kinds`` are those of the columns that must be there."""
    import pandas as pd

    names = lines[0].rstrip(ENDING).split(",")
    missing = [name for name in kinds if name not in names]
    if missing:
        raise UserError(f"{path}: line 1 cannot be read (no column {missing[0]})")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: two columns have one name")
    for number, line in enumerate(lines, 1):
        if line.count(",") != len(names) - 1:
            raise UserError(f"{path}: line {number} cannot be read (it has not {len(names)} values)")
    try:
        with np.errstate(invalid="ignore"):  # infinity in a column of whole numbers: an error follows
            return pd.read_csv(io.StringIO("".join(lines)), dtype=kinds, **options)  # type: ignore[arg-type]
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: cannot be read ({reading.first_line(error)})") from error


def whole_lines(path: Path) -> list[str]:
    """The lines of a file without half a line at its end; none if the file is not there."""
    lines = reading.text(path, reading.RECORDS).split(ENDING) if os.path.exists(path) else []
    return [line + ENDING for line in lines[:-1]]
