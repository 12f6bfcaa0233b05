"""Files that a stranger may have written: plain data, of a size that is checked before anything is read.

All that opens a training's folder reads through here: ``resume``, ``shoal.load``, reports, exports, benchmarks. Only
regular files are read (a link may lead to one), so that no pipe and no device can hang a reader. YAML and JSON become
dictionaries, lists, numbers and text, nothing else. Every fault is a ``UserError``: one line with the path.
Nothing here needs JAX.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from shoal.errors import UserError

SETTINGS, FACTS, RECORDS = 2**20, 2**26, 2**32  # bytes: the most that a configuration, a JSON, a record may have
DEPTH = 32  # of nested lists and mappings in YAML
MOST_RUNS = 10**7  # of a training
KINDS: dict[str, type] = {  # what every training's configuration has
    "recipe": str,
    "file": str,
    "algorithm": str,
    "env": dict,
    "env.name": str,
    "env.kwargs": dict,
    "algo": dict,
    "hypers": dict,
    "sweep": dict,
    "evolve": dict,
    "seeds": int,
    "seed": int,
    "population": int,
    "updates_per_chunk": int,
    "rounds_per_chunk": int,
    "callbacks": list,
    "imports": list,
    "evaluation": dict,
    "evaluation.objective": str,
    "sweep.mode": str,
    "sweep.num": int,
}
OPTIONAL = (
    "evaluation",
    "evaluation.objective",
    "sweep.mode",
    "sweep.num",
    "env.kwargs",
    "sweep",
    "evolve",
    "population",
    "updates_per_chunk",
    "rounds_per_chunk",
    "callbacks",
    "imports",
)
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*(?:[eE][-+]?\d+)?)"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class Unreadable(Exception):
    """Why a file is of no use, in one line."""


class Foreign(Unreadable):
    """It is a file for something else."""


def reason(error: ValueError, folder: Path) -> str:
    """What a fault says, without the folder that it is said of anyway."""
    return str(error).replace(f"{folder}/", "")


@contextmanager
def opened(path: Path, most: int) -> Iterator[BinaryIO]:
    """A regular file of at most ``most`` bytes, to be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would wait
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path}: is no regular file")
            if status.st_size > most:
                raise UserError(f"{path}: has {status.st_size} bytes, and at most {most} are read")
            file = os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
        with file:
            yield file
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def text(path: Path, most: int) -> str:
    """What a file says."""
    with opened(path, most) as file:
        data = file.read(os.fstat(file.fileno()).st_size)  # not `most`: so much would be set aside for it
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text (byte {error.start})") from error


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with opened(path, 2**63) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def json_file(path: Path, most: int = FACTS) -> Any:
    """What a JSON file holds."""
    said = text(path, most)
    try:
        return json.loads(said)
    except RecursionError as error:
        raise UserError(f"{path}: is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{path}: no JSON that can be read ({first_line(error)})") from error


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's plain data, with numbers as OmegaConf reads them: ``1e-3`` is one, a date is text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [name.value for name, _ in node.value]
        if len(set(map(str, names))) < len(names):
            raise yaml.constructor.ConstructorError(None, None, "a name is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if not rule[0].endswith((":timestamp", ":float"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def yaml_file(path: Path, aliases: bool = False) -> Any:
    """What a YAML file holds: no tags, at most :data:`DEPTH` levels, and ``aliases`` only if it is the user's own."""
    said = text(path, SETTINGS)
    try:
        depth = 0
        for event in yaml.parse(said, _Loader):  # libyaml's composer recurses without a limit
            if isinstance(event, yaml.AliasEvent) and not aliases:
                raise ValueError(f"line {event.start_mark.line + 1}: aliases are not read")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise ValueError("nested too deeply")
        tree = yaml.load(said, _Loader)
        for count, (where, value) in enumerate(_leaves(tree)):
            if not isinstance(value, str | int | float | None):
                raise ValueError(f"{where}: a {type(value).__name__} is no plain value")
            if count > SETTINGS:
                raise ValueError("its aliases stand for too much")
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UserError(f"{path}: no YAML that can be read ({line}{first_line(error.problem)})") from error
    except Exception as error:  # the constructors of `!!int`, `!!timestamp` and others fail in many ways
        raise UserError(f"{path}: no YAML that can be read ({first_line(error)})") from error
    return tree


def first_line(error: object) -> str:
    """The first line of an error's text, cut to 200 characters; the name of its type if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _leaves(node: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every key and every value in a tree that is neither a list nor a mapping, with its place."""
    if isinstance(node, dict):
        for name, value in node.items():
            place = f"{where}.{name}" if where else str(name)
            yield place, name
            yield from _leaves(value, place)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _leaves(value, f"{where}[{number}]")
    else:
        yield where, node


def settings(path: Path) -> dict[str, Any]:
    """A training's ``config.yaml``. Its values are what they say: nothing in it is filled in from elsewhere."""
    tree = yaml_file(path)
    if not isinstance(tree, dict):
        raise UserError(f"{path}: is no training's configuration")
    for where, leaf in _leaves(tree):
        if isinstance(leaf, str) and ("${" in leaf or leaf == "???"):
            raise UserError(
                f"{path}: {where}: {leaf[:100]!r}: a folder's values stand for themselves, without ${{...}}"
            )
    for name, kind in KINDS.items():
        value: Any = tree
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None and name in OPTIONAL:
            tree.pop(name, None)  # it is at its default
            continue
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**31):
            allowed = {str: "text", int: "a whole number", dict: "settings", list: "a list"}[kind]
            raise UserError(f"{path}: is no training's configuration ({name}: {str(value)[:50]}: must be {allowed})")
    if not tree["seeds"] or "/" not in tree["env"]["name"] or tree.get("population") == 0:
        raise UserError(f"{path}: is no training's configuration (env.name, seeds or population)")
    for name in ("callbacks", "imports"):
        if any(not isinstance(word, str) for word in tree.get(name, [])):
            raise UserError(f"{path}: is no training's configuration ({name}: must be names)")
    if tree.get("evolve", {}).get("scheme", "none") != "none" and not tree.get("population"):
        raise UserError(f"{path}: is no training's configuration (population: is missing)")
    return tree
