"""What a benchmark compares with what: its settings, from the command line and from a file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from shoal import envs
from shoal.config import compose
from shoal.config.fields import setting, validate
from shoal.config.files import imported
from shoal.config.named import CONFIG_DIR, algorithms
from shoal.config.settings import Settings
from shoal.config.words import as_text, nearest, one_line, readable, unknown
from shoal.errors import UserError
from shoal.folder import reading, writing

RECIPE = "benchmark.yaml"


SHIPPED = Path(CONFIG_DIR) / "benchmark"


@dataclasses.dataclass
class Benchmark:
    """What is compared with what. Everything else on the command line goes to every cell."""

    algorithms: list[str] = dataclasses.field(default_factory=list)  # names, or paths of algorithm files
    tasks: list[str] = dataclasses.field(default_factory=list)  # family/task
    name: str = setting("benchmark")
    dir: str = setting("runs/benchmark/${name}")  # the folder; the same one goes on
    seeds: int = setting(10, low=1)
    seed: int = setting(0, low=0)  # the first one
    total_steps: float | None = setting(None, low=1)  # of a run; none for each recipe's own
    chunks: int = setting(20, low=1)  # evaluations
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # of every cell, over its recipe
    by_algorithm: dict[str, Any] = dataclasses.field(default_factory=dict)  # of an algorithm's cells, over those
    by_task: dict[str, Any] = dataclasses.field(default_factory=dict)  # of a task's cells, over those
    plan: bool = setting(False)  # print the plan and end
    report: bool = setting(True)  # write the report at the end
    cell: int | None = setting(None, low=0)  # only this one, for launchers


DECIDED = {  # what the words of a cell do not say
    "env": "tasks=[a,b] names them",
    "env.name": "tasks=[a,b] names them",
    "algorithm": "algorithms=[a,b] names them",
    "file": "algorithms=[a,b] names them",
    "recipe": "algorithms=[a,b] names them",
    "run.dir": "dir=<folder> is that of all",
    "run": "dir=<folder> is that of all",
    "resume": "the same command goes on",
}
FIELDS = tuple(field.name for field in dataclasses.fields(Benchmark))


def name_of(algorithm: str) -> str:
    """What an algorithm is called: its name, or that of its file."""
    return Path(algorithm).stem if algorithm.endswith(".py") else algorithm


def read(words: Sequence[str]) -> tuple[Benchmark, list[str]]:
    """The benchmark that a command line describes, and the words that go to every cell.

    ``benchmark=quick`` takes ``config/benchmark/quick.yaml``, ``benchmark=my.yaml`` that file; other words go over it.
    """
    schema = OmegaConf.structured(Benchmark)
    own: list[tuple[str, Any]] = []
    others: list[str] = []
    readable(words)
    words = imported(words)
    for word in words:
        name = word.partition("=")[0]
        if word.startswith("-"):
            raise unknown(word, ("benchmark", *FIELDS))
        override = compose.parsed(as_text(word) if name in ("dir", "benchmark") else word)
        key = override.key_or_group
        if override.is_sweep_override():
            raise UserError(f"{word}: several values of one setting are a list here: {key}=[a,b]")
        if key == "benchmark":
            schema = OmegaConf.merge(schema, _file(str(override.value())))
        elif key.split(".")[0] in FIELDS:
            own.append((key, override.value()))
        else:
            check_word(word, key)
            others.append(word)
    try:
        for key, value in own:
            OmegaConf.update(schema, key, value, merge=False)
        benchmark = OmegaConf.to_object(schema)
    except Exception as error:  # OmegaConf answers some values with errors of any kind
        raise UserError(one_line(error, list(words))) from error
    assert isinstance(benchmark, Benchmark)
    check(benchmark)
    return benchmark, others


def check_word(word: str, key: str) -> None:
    """Refuse what is no setting of a training, and what a benchmark sets for each of its cells."""
    if key in DECIDED:
        raise UserError(f"{word}: a benchmark sets this for each of its trainings; {DECIDED[key]}")
    settings = [field.name for field in dataclasses.fields(Settings)]
    if key.split(".")[0] not in (*settings, *compose.GROUPS):
        raise unknown(word, ("benchmark", *FIELDS, *settings))


def _file(name: str) -> DictConfig:
    path = Path(name) if name.endswith((".yaml", ".yml")) else SHIPPED / f"{name}.yaml"
    if not os.path.exists(path):
        known = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.yaml")))
        raise UserError(f"benchmark={name}: no such file; a path of a YAML file, or one of {known}")
    try:
        tree = OmegaConf.create(reading.yaml_file(path, aliases=True))
        if not isinstance(tree, DictConfig):
            raise UserError(f"{path}: not a benchmark; it must have algorithms and tasks")
        tree.setdefault("name", path.stem)
        return OmegaConf.merge(OmegaConf.structured(Benchmark), tree)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from error


def check(benchmark: Benchmark) -> None:
    """Names that exist, values that are allowed."""
    for field in dataclasses.fields(Benchmark):
        validate("", getattr(benchmark, field.name), field)
    known = algorithms()
    files = [name for name in benchmark.algorithms if name.endswith(".py")]
    for name in files:
        if not Path(name).exists():
            raise UserError(f"algorithms: {name}: no such file")
    for name in (*benchmark.algorithms, *benchmark.by_algorithm):
        if name not in (*known, *files, *map(name_of, files)):
            hint = nearest(name, known)
            raise UserError(f"algorithms: {name}: no such algorithm; {hint}there are {', '.join(known)}, or a .py file")
    for task in (*benchmark.tasks, *benchmark.by_task):
        if task not in envs.list():
            envs.make(task)  # raises, with the nearest names
    for what in ("algorithms", "tasks"):
        names = list(map(name_of, getattr(benchmark, what)))
        if not names:
            raise UserError(f"{what}=[]: name some, such as algorithms=[mappo,qmix] tasks=[vmas/balance]")
        if len(set(names)) < len(names):
            raise UserError(f"{what}={names}: each only once")


def save(benchmark: Benchmark, words: Sequence[str]) -> None:
    """``benchmark.yaml``: what is run here, ready to be run again."""
    folder = Path(benchmark.dir)
    tree = OmegaConf.to_container(OmegaConf.structured(benchmark), resolve=True)
    assert isinstance(tree, dict)
    for name in ("plan", "cell", "report"):
        tree.pop(name)
    text = OmegaConf.to_yaml(OmegaConf.create(tree))
    if words:
        text = f"# with {' '.join(words)}\n{text}"
    with writing.faults(f"dir={folder}"):
        folder.mkdir(parents=True, exist_ok=True)  # which may be a symbolic link
    writing.write(folder / RECIPE, text)
