"""The cells of a benchmark, algorithms times tasks: the command line and the folder of each.

A cell is one compiled program with all its seeds on the run axis, trained by a process of its own, so that what kills
one leaves the others alone. Cells have fixed folders: the same benchmark goes on where it was stopped or killed.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from shoal.benchmark.settings import Benchmark, check_word, name_of
from shoal.config import compose
from shoal.errors import UserError


class Cell(NamedTuple):
    """One algorithm on one task."""

    algorithm: str
    task: str
    words: tuple[str, ...]  # of its command line
    folder: Path

    @property
    def label(self) -> str:
        return f"{name_of(self.algorithm)} on {self.task}"


def words_of(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """A tree of settings as words of the command line: ``{hypers: {lr: 1e-3}}`` is ``hypers.lr=0.001``."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from words_of(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={_text(value)}"


def _text(value: Any) -> str:
    """A value as Hydra's grammar reads it."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def cells_of(benchmark: Benchmark, words: Sequence[str]) -> list[Cell]:
    """The cross product; later settings win: all cells', the algorithm's, the task's, the command line's."""
    product = []
    for algorithm in benchmark.algorithms:
        for task in benchmark.tasks:
            tree: Any = OmegaConf.merge(
                {"seeds": benchmark.seeds, "seed": benchmark.seed, "chunks": benchmark.chunks},
                {} if benchmark.total_steps is None else {"total_steps": benchmark.total_steps},
                benchmark.settings,
                benchmark.by_algorithm.get(name_of(algorithm), {}),
                benchmark.by_task.get(task, {}),
            )
            settings = list(words_of(OmegaConf.to_container(tree)))  # type: ignore[arg-type]
            for word in settings:
                check_word(word, word.partition("=")[0])
            own = (f"env={task}", *settings, *words)
            folder = Path(benchmark.dir) / name_of(algorithm) / task.replace("/", ".")
            product.append(Cell(algorithm, task, own, folder))
    return product


def composed(cell: Cell) -> tuple[ModuleType, DictConfig]:
    """The cell's algorithm file and its configuration, checked as its own command line would."""
    if not cell.algorithm.endswith(".py"):
        return compose.composed(cell.algorithm, list(cell.words))
    path = Path(cell.algorithm)
    command = [sys.executable, str(path), *cell.words, "--cfg", "job", "--resolve"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise UserError(f"{cell.algorithm}: {last_line(told.stderr)}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module, OmegaConf.create(told.stdout)  # type: ignore[return-value]


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "it said nothing"
