"""A user's own Python between two chunks: schedules, logging, early stopping.

A callback is an object with any of ``on_chunk``, ``on_evaluation`` and ``on_end``, or a function, which is an
``on_chunk``. All run on the host. What ``on_chunk`` returns are new values of hyperparameters for the next chunk: they
are arguments of the compiled program, so nothing compiles again. They and each callback's ``memory`` are stored in the
checkpoint that they belong to, so that a resumed training is the same to the bit.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig

from shoal.config.fields import validate
from shoal.config.files import import_named
from shoal.config.words import pasted
from shoal.errors import UserError
from shoal.folder.layout import HYPERS

if TYPE_CHECKING:
    import pandas as pd

    from shoal.run.plan import Plan

Changes = Mapping[str, Any]  # {"clip_eps": 0.1}, or an array with a value per run


@dataclasses.dataclass(frozen=True)
class Context:
    """What a callback is told. Numbers are plain Python: they are the same after a resume."""

    folder: Path
    config: DictConfig
    chunk: int  # that has ended, the first is 1
    chunks: int
    env_steps: int  # of each run, so far
    total_steps: int
    runs: list[int]  # that train now; all of them, unless runs_per_batch cuts them
    rows: list[dict[str, Any]]  # of metrics.csv, one per run
    episodes: dict[str, list[list[float]]]  # of the evaluation: metric, run, episode
    hypers: dict[str, np.ndarray]  # [runs] each, as used in this chunk
    memory: dict[str, Any]  # the callback's own between chunks, kept in checkpoints; what JSON can hold
    stop: Callable[[], None]  # end after this chunk; resume= goes on
    absolute: bool = False  # whether `episodes` are those of the last evaluation, with the best parameters
    finished: bool = False  # on_end: the training is complete, not stopped

    @property
    def progress(self) -> float:
        """The share of the training that is done."""
        return self.env_steps / self.total_steps

    @property
    def metrics(self) -> pd.DataFrame:
        """``rows`` as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows)


class Callback:
    """Does nothing. Deriving from it is not needed: an object with any of these will do."""

    def on_chunk(self, context: Context) -> Changes | None:
        """After every chunk; may return new values of hyperparameters, for all runs or one per run."""

    def on_evaluation(self, context: Context) -> None:
        """After every evaluation: that of each chunk, after ``on_chunk``, and the ``absolute`` one at the end."""

    def on_end(self, context: Context) -> None:
        """When all files are written, of a finished or a stopped training."""


METHODS = ("on_chunk", "on_evaluation", "on_end")


def find(word: str) -> Any:
    """The callback that ``path/to/file.py:Name`` or ``package.module:Name`` names."""
    place, _, name = word.rpartition(":")
    if not place or not name:
        raise UserError(f"callbacks={word}: write path/to/file.py:Name or package.module:Name")
    module = import_named(place, "callbacks=")
    if not hasattr(module, name):
        raise UserError(f"callbacks={word}: {place} has no {name}")
    return made(getattr(module, name))


def made(callback: Any) -> Any:
    """A callback as an object, if it is one: a class is called."""
    callback = callback() if isinstance(callback, type) else callback
    if not callable(callback) and not any(hasattr(callback, method) for method in METHODS):
        raise UserError(f"callback {_name(callback)}: needs one of {', '.join(METHODS)}, or to be a function")
    return callback


def absolute(word: str) -> str:
    """A callback's word that is valid in every folder."""
    place, _, name = word.rpartition(":")
    return f"{Path(place).absolute()}:{name}" if place.endswith(".py") else word


def _name(callback: Any) -> str:
    return getattr(callback, "__name__", type(callback).__name__)


class Hooks:
    """The callbacks of one training, and what they have changed in the batch of runs under way."""

    def __init__(self, callbacks: Sequence[Any], plan: Plan, stop: Callable[[str], None]):
        self.callbacks: dict[str, Any] = {}
        for callback in callbacks:
            count = sum(_name(callback) == _name(other) for other in self.callbacks.values())
            self.callbacks[f"{_name(callback)} {count + 1}" if count else _name(callback)] = callback
        self.plan, self.stop = plan, stop
        self.fields = {field.name: field for field in dataclasses.fields(plan.runs.hypers)}
        self.last: dict[str, Any] = {"chunk": 0, "rows": [], "episodes": {}}

    def begin(self, runs: np.ndarray, saved: dict[str, Any] | None) -> None:
        """A batch of runs begins, or goes on with what its checkpoint holds."""
        self.runs, self.changed = runs, saved is not None
        self.hypers = {name: np.array(getattr(self.plan.runs.hypers, name)[runs]) for name in self.fields}
        self.memory: dict[str, Any] = {}
        if saved is not None:
            try:
                missed, self.memory = saved.get("missed"), dict(saved["memory"])
                changed = {name: np.array(values, np.float32) for name, values in saved["hypers"].items()}
                if any(name not in self.fields or values.shape != runs.shape for name, values in changed.items()):
                    raise ValueError("hypers")
                if missed is not None and set(missed) != set(self.last):
                    raise ValueError("missed")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                where = f"{self.plan.folder}: what callbacks left behind in its checkpoint"
                raise UserError(f"{where} cannot be read ({type(error).__name__})") from error
            self.hypers |= changed
            if missed is not None:  # a callback failed after this chunk, and has its turn again
                self.after_chunk(**missed)

    def state(self) -> dict[str, Any] | None:
        """What belongs into a checkpoint; None if no callback has ever had a say."""
        if not self.callbacks and not self.changed:
            return None
        return {"hypers": {name: values.tolist() for name, values in self.hypers.items()}, "memory": self.memory}

    def columns(self, position: int) -> dict[str, Any]:
        """The hyperparameters that a run has just trained with, for ``metrics.csv``."""
        if not self.callbacks:
            return {}
        return {HYPERS + name: values[position] for name, values in self.hypers.items()}

    def padded(self, width: int) -> Any:
        """The hyperparameters for a batch of ``width`` runs, as :func:`numpy.resize` repeats them."""
        return type(self.plan.runs.hypers)(**{name: np.resize(values, width) for name, values in self.hypers.items()})

    def after_chunk(self, chunk: int, rows: list[dict[str, Any]], episodes: dict[str, Any]) -> bool:
        """Every callback has its say; whether hyperparameters changed. If one fails, nothing has."""
        self.last = {"chunk": chunk, "rows": rows, "episodes": episodes}
        hypers, memory = dict(self.hypers), copy.deepcopy(self.memory)
        for name, callback in self.callbacks.items():
            context = self._context(name, memory)
            changes = self._call(name, getattr(callback, "on_chunk", callback), context)
            hypers |= self._checked(name, changes or {})
            self._call(name, getattr(callback, "on_evaluation", None), context)
        try:
            self.memory = json.loads(json.dumps(memory))  # as a checkpoint would give it back
        except TypeError as error:
            raise UserError(f"context.memory: must be what JSON can hold ({error})") from error
        changed = any(not np.array_equal(hypers[name], self.hypers[name]) for name in hypers)
        self.hypers = hypers
        return changed

    def after_absolute(self, episodes: dict[str, Any]) -> None:
        """The last evaluation of a batch."""
        self.last = self.last | {"chunk": self.plan.chunks, "episodes": episodes}
        for name, callback in self.callbacks.items():
            self._call(name, getattr(callback, "on_evaluation", None), self._context(name, self.memory, absolute=True))

    def end(self, finished: bool) -> None:
        """The training is over, for now or for good."""
        for name, callback in self.callbacks.items():
            self._call(name, getattr(callback, "on_end", None), self._context(name, self.memory, finished=finished))

    def missed(self) -> dict[str, Any]:
        """What a checkpoint holds after a callback failed: the state before it, and what it was told."""
        return (self.state() or {}) | {"missed": self.last}

    def _context(self, name: str, memory: dict[str, Any], **more: Any) -> Context:
        plan = self.plan
        return Context(
            folder=plan.folder,
            config=plan.settings,
            chunks=plan.chunks,
            env_steps=self.last["chunk"] * plan.steps_per_chunk,
            total_steps=plan.chunks * plan.steps_per_chunk,
            runs=self.runs.tolist(),
            hypers={key: values.copy() for key, values in self.hypers.items()},
            memory=memory.setdefault(name, {}),
            stop=lambda: self.stop(name),
            **self.last,
            **more,
        )

    def _call(self, name: str, function: Callable | None, context: Context) -> Any:
        if not callable(function):
            return None
        try:
            return function(context)
        except Exception as error:
            where = f"callback {name} failed after chunk {context.chunk}"
            error.add_note(
                f"{where}; the training is kept, and {pasted('resume', self.plan.folder)} goes on from there"
            )
            raise

    def _checked(self, name: str, changes: Changes) -> dict[str, np.ndarray]:
        """``changes`` as an array per hyperparameter, or a :class:`UserError`."""
        checked = {}
        if changes and self.plan.rules is not None:
            raise UserError(f"callback {name}: hyperparameters evolve here (evolve={self.plan.rules.scheme.scheme})")
        for key, value in changes.items():
            if key not in self.fields:
                known = ", ".join(self.fields)
                raise UserError(f"callback {name}: {key} is not a hyperparameter; these are: {known}")
            try:
                values = np.broadcast_to(np.asarray(value, np.float32), len(self.runs)).copy()
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"callback {name}: {key}={value}: must be a number, or one for each of {len(self.runs)} runs"
                ) from error
            for one in values.tolist():
                validate(f"callback {name}: ", one, self.fields[key])
            checked[key] = values
        return checked


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics as Python's own numbers, which JSON keeps exactly."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
