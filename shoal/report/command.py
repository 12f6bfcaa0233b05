"""A page, pictures and merged evaluations from folders of trainings, benchmarks and sweeps, or marl-eval's JSON.

    shoal report runs/benchmark/quick                    # to that folder: report.html, figures/, ...
    shoal report runs/a runs/b mava/metrics.json --out runs/comparison
    shoal report multirun/2026-01-01 --animations 0      # no episodes of the best policies
    shoal report runs/mine import=meet.py                # your own Python, which registers its environment or network

Folders are searched for trainings, whatever their depth. What cannot be read is said in one line, and the report is
about the rest; the exit code is 1 if nothing of some argument could be used.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

from shoal.config.files import after_imports
from shoal.config.words import Parser, fail, number
from shoal.errors import UserError
from shoal.folder import writing
from shoal.report import figures
from shoal.report.merge import merge
from shoal.report.page import page
from shoal.report.read import read
from shoal.report.summary import summarise
from shoal.report.table import Results


def write(folder: Path, found: Results, title: str, animations: int) -> None:
    """Everything into ``folder``."""
    merged = merge(found.cells, found.notes)
    data = summarise(found, title)
    writing.make_folder(folder)
    figures.save(data, folder / "figures")
    write_scores(folder / "scores.csv", data)
    own = folder / "evaluations.json"
    if own.resolve() not in found.sources and not (folder / "evaluations.jsonl").exists():  # a training has its own
        writing.write(own, json.dumps(merged))
    episodes: list[tuple[str, str, str]] = []
    if animations:
        from shoal.report.animation import best_policies

        episodes = best_policies(found, animations, data["notes"])
    writing.write(folder / "report.html", page(data, found, episodes))


def plain(cell: str) -> str:
    """Text that no spreadsheet takes for a formula: an apostrophe goes before what looks like one."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def write_scores(path: Path, data: dict[str, Any]) -> None:
    """The tables of the page, for other programs."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    columns = ("runs", "diverged", "steps", "first", "last", "mean", "std", "best")
    writer.writerow(["metric", "score", "task", "algorithm", "iqm", "iqm_low", "iqm_high", *columns])
    for block in data["metrics"]:
        for task in block["tasks"]:
            for row in task["rows"]:
                names = map(plain, (block["name"], block["score"], task["task"], row["algorithm"]))
                writer.writerow([*names, *row["iqm"], *(row[column] for column in columns)])
    writing.write(path, text.getvalue())


def main(words: list[str]) -> int:
    """``shoal report <folder> ...``; the exit code."""
    parser = Parser(__doc__, prog="shoal report")
    parser.add_argument("what", nargs="+", help="folders of trainings, benchmarks or sweeps; marl-eval's JSON files")
    parser.add_argument(
        "--out", type=Path, help="a folder; else the one that is reported on, or runs/report for several"
    )
    parser.add_argument("--title", help="of the page; else the folder's name")
    parser.add_argument(
        "--animations", type=number(int, 0, 1000), default=3, help="tasks of which the best policy is shown; 0 for none"
    )
    try:
        options = parser.parse_args(after_imports(words))
        found = read(options.what)
    except (UserError, OSError) as error:  # such as a name that is too long
        fail(error)
    if not found.cells:
        for note in found.notes[:-1] if len(found.notes) > 1 else []:
            print(note, file=sys.stderr)
        print(f"error: nothing to report on: {found.notes[-1]}", file=sys.stderr)
        return 1
    first = Path(options.what[0])
    out = options.out or (first if len(options.what) == 1 and first.is_dir() else Path("runs/report"))
    title = options.title or (out if options.out or len(options.what) > 1 else first).resolve().name
    shown = len(found.notes)
    for note in found.notes[:shown]:
        print(note, file=sys.stderr)
    try:
        write(out, found, title, options.animations)
    except ValueError as error:
        if not hasattr(error, "code"):  # an envs.base.Fault, whose module brings JAX along
            raise
        fail(error)
    for note in found.notes[shown:]:
        print(note, file=sys.stderr)
    print(out / "report.html")
    return 1 if found.unusable else 0
