"""Damage the folder of a training in many ways and open it by everything that reads folders: faults must be one line.

    python tools/fuzz_folders.py runs/<folder>                        # 2,000 damaged copies, drawn from seed 0
    python tools/fuzz_folders.py runs/<folder> --cases 20000 --seed 1
    python tools/fuzz_folders.py runs/<folder> --record results/fuzz_folders.json

A case changes one file: bytes, lines, or a value of its YAML or JSON. Then tables, policies, reports and a resume read
the folder, in this process and without training. What is not a ``UserError`` of one line, or takes longer than
``--patience`` seconds, is printed with the number of its case, and the exit code is 1.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

import shoal
from shoal.config.fields import INT32
from shoal.config.settings import complete, saved_settings
from shoal.config.words import Parser, fail, number
from shoal.errors import UserError
from shoal.folder import checkpoint, policies
from shoal.report.merge import merge
from shoal.report.page import page
from shoal.report.read import read
from shoal.report.summary import summarise

FILES = ("config.yaml", "metrics.csv", "evaluations.jsonl", "evaluations.json", "provenance.json", policies.FILE)
STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**9, 10**30, 0.5, 1e308, -1e308, float("nan"), float("inf"), "", "abc", "1e9", "a/b"),
    *("${oc.env:HOME}", "???", "/dev/zero", "../../x", "é\u2028\x00", "x" * 5000),
    *([], {}, [[]], [1, "a"], {"a": 1}, {"name": "none"}, [[[1.0]]]),
)
BYTES = (
    b"\x00",
    b"\xff",
    b"\n",
    b",",
    b"{",
    b"]",
    b"&a [*a, *a]",
    b"!!python/name:os.system",
    b"[" * 2000,
    b'"',
    b": ",
)


@dataclasses.dataclass
class Found:
    """What a number of cases came to."""

    cases: int = 0
    refused: int = 0  # readings that ended in one line
    read: int = 0  # readings that gave something
    longest: float = 0.0  # seconds of one reading
    kinds: Counter = dataclasses.field(default_factory=Counter)  # of damage
    faults: list[str] = dataclasses.field(default_factory=list)


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes other, gone, repeated or new."""
    at, much = rng.randrange(len(data) + 1), rng.choice((1, 2, 8, 100))
    part = data[at : at + much]
    new = (bytes(byte ^ 1 << rng.randrange(8) for byte in part), b"", part * 3, rng.choice(BYTES) + part)
    return data[:at] + rng.choice(new) + data[at + much :]


def spoil_lines(data: bytes, rng: random.Random) -> bytes:
    """A line cut, gone, twice, elsewhere, or rubbish."""
    lines = data.splitlines(keepends=True) or [b""]
    at = rng.randrange(len(lines))
    line, to = lines[at], rng.randrange(len(lines))
    cut = line[: rng.randrange(len(line) + 1)]
    new = ([cut], [], [line, line], [rng.choice(BYTES) + b"\n"], [cut + rng.choice(BYTES) + line[len(cut) :]])
    lines[at : at + 1] = rng.choice(new)
    lines.insert(to, line) if rng.random() < 0.1 else None
    return b"".join(lines)


def spoil_tree(tree: Any, rng: random.Random) -> Any:
    """One value of a tree is another, gone, or under another name."""
    tree = copy.deepcopy(tree)
    places = [(tree, name) for name in tree] if isinstance(tree, dict) else []
    for holder, name in places:
        inner = holder[name]
        names = inner if isinstance(inner, dict) else range(min(len(inner), 3)) if isinstance(inner, list) else ()
        places += [(inner, each) for each in names]
    if not places or rng.random() < 0.02:
        return rng.choice(STRANGE)
    holder, name = rng.choice(places)
    if rng.random() < 0.2 and isinstance(holder, dict):
        value = holder.pop(name)
        if rng.random() < 0.5:
            holder[f"{name}x"] = value
    else:
        holder[name] = rng.choice(STRANGE)
    return tree


def spoil_values(name: str, data: bytes, rng: random.Random) -> bytes:
    """:func:`spoil_tree` of a file that holds one; bytes of another."""
    if name.endswith(".yaml"):
        return yaml.safe_dump(spoil_tree(yaml.safe_load(data), rng), allow_unicode=True).encode("utf-8", "replace")
    if name.endswith(".json"):
        return json.dumps(spoil_tree(json.loads(data), rng)).encode()
    if name.endswith(".jsonl"):
        lines = data.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(spoil_tree(json.loads(lines[at]), rng)).encode()
        return b"\n".join(lines) + b"\n"
    if name.endswith(".csv"):
        rows = [line.split(b",") for line in data.splitlines()]
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = str(rng.choice(STRANGE)).encode()
        return b"\n".join(map(b",".join, rows)) + b"\n"
    return spoil_bytes(data, rng)


def damage(folder: Path, name: str, rng: random.Random) -> str:
    """Damage one file of a folder; what was done, in words."""
    path = folder / name
    data = path.read_bytes()
    kind = rng.choice(("bytes", "lines", "values", "values"))
    spoil: Callable[[], bytes] = {
        "bytes": lambda: spoil_bytes(data, rng),
        "lines": lambda: spoil_lines(data, rng),
        "values": lambda: spoil_values(path.name, data, rng),
    }[kind]
    path.write_bytes(spoil())
    return f"{kind} of {path.name}"


def readings(folder: Path, name: str, config_type: type, hypers_type: type) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that reads the file ``name`` of a folder without training or compiling."""

    def report() -> str:
        found = read([folder])
        if not found.cells:
            raise UserError(found.notes[-1])
        merge(found.cells, found.notes)
        return page(summarise(found, "title"), found)

    def read_by(what: str) -> Callable[[], Any]:
        return lambda: getattr(shoal.load(folder), what)

    config, metrics, evaluations, marl_eval, _, weights = FILES
    every: dict[str, tuple[tuple[str, ...], Callable[[], Any]]] = {
        **{what: ((config, metrics), read_by(what)) for what in ("metrics", "table")},
        **{what: ((config, metrics, evaluations), read_by(what)) for what in ("evaluations", "best")},
        "marl_eval": ((marl_eval,), read_by("marl_eval")),
        "policy": ((config, weights), lambda: shoal.load(folder).policy(0)),
        "report": (FILES[:5], report),
        "resume": ((config,), lambda: complete(folder, saved_settings(folder), config_type, hypers_type)),
        "checkpoint": (
            (checkpoint.MANIFEST,),
            lambda: [checkpoint.damage(path) for path in sorted(folder.glob("checkpoints/*/*"))],
        ),
    }
    yield from ((what, reading) for what, (files, reading) in every.items() if name in files)


def run(training: Path, cases: int, seed: int, patience: float) -> Found:
    """Damage copies of a ``training`` and read them."""
    found, module = Found(), shoal.load(training).module
    names = [name for name in FILES if (training / name).exists()]
    names += [str(path.relative_to(training)) for path in training.glob("checkpoints/*/*/manifest.json")]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "training"
        shutil.copytree(training, folder)
        for case in range(cases):
            rng = random.Random(f"{seed} {case}")
            name = rng.choice(names)
            kind = damage(folder, name, rng)
            found.cases += 1
            found.kinds[kind] += 1
            for what, reading in readings(folder, Path(name).name, module.Config, module.Hypers):
                begin = time.perf_counter()
                try:
                    reading()
                    found.read += 1
                except UserError as error:
                    found.refused += 1
                    if "\n" in str(error):
                        found.faults.append(f"case {case} ({kind}), {what}: several lines: {error}")
                except BaseException:  # whatever it is, it is what is looked for
                    found.faults.append(f"case {case} ({kind}), {what}: {traceback.format_exc()}")
                took = time.perf_counter() - begin
                found.longest = max(found.longest, took)
                if took > patience:
                    found.faults.append(f"case {case} ({kind}), {what}: took {took:.0f} s")
            shutil.copyfile(training / name, folder / name)
    return found


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("training", type=Path, help="the folder that a training left behind; it is copied")
    parser.add_argument("--cases", type=number(int, 1, 10**7), default=2000)
    parser.add_argument("--seed", type=number(int, 0, INT32), default=0)
    parser.add_argument("--patience", type=number(float, 0.1, 3600), default=5.0, help="seconds that one may take")
    parser.add_argument("--record", type=Path, help="a JSON file for what was found")
    options = parser.parse_args()
    try:
        found = run(options.training, options.cases, options.seed, options.patience)
    except UserError as error:
        fail(error)
    for fault in found.faults:
        print(fault, file=sys.stderr)
    facts = dataclasses.asdict(found) | {"seed": options.seed, "faults": len(found.faults)}
    facts |= {"kinds": dict(sorted(found.kinds.items())), "longest": round(found.longest, 2)}
    if options.record:
        options.record.write_text(json.dumps(facts, indent=2) + "\n")
    print(", ".join(f"{name} {value}" for name, value in facts.items() if name != "kinds"))
    sys.exit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
