"""What each cell of a benchmark will take, and how far it is."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
from omegaconf import OmegaConf

from shoal.algorithm import algorithm_in
from shoal.benchmark.cells import Cell, composed
from shoal.benchmark.settings import name_of
from shoal.config.settings import complete, saved_settings
from shoal.errors import UserError
from shoal.folder import checkpoint
from shoal.folder.layout import CONFIG, PROVENANCE, RETURN
from shoal.folder.tables import Entry, read_evaluations
from shoal.run import cost
from shoal.run.compile import in_precision
from shoal.run.memory import available_memory
from shoal.run.plan import Plan, changed
from shoal.run.progress import human
from shoal.run.resume import FREE_TO_CHANGE
from shoal.run.state import train_chunk
from shoal.training import make_plan

# A begun cell keeps its own.
MAY_DIFFER = (*FREE_TO_CHANGE, "updates_per_chunk", "rounds_per_chunk", "runs_per_batch")
SHARE = 0.8  # of the free memory that a cell may take before its runs are trained in batches


class Planned(NamedTuple):
    """A cell, and what is known of it before it trains."""

    cell: Cell
    state: str  # new, begun, finished or impossible
    reason: str = ""  # of the impossible
    runs: int = 0
    batches: int = 0
    steps: int = 0  # of a run
    done: float = 0.0  # share that is trained already
    seconds: float = 0.0  # estimated: all of it
    memory: float = 0.0  # estimated bytes
    objective: str = RETURN  # the metric that ranks its runs


def plan_cell(cell: Cell) -> Planned:
    """What a cell will take and how far it is; impossible pairs with their reason.

    A setting that is wrong raises a :class:`UserError`: it is a mistake, not a pair that cannot be.
    """
    module, cfg = composed(cell)
    try:
        made = make_plan(algorithm_in(module), cfg, cell.folder)
    except UserError as error:
        return Planned(cell, "impossible", str(error))
    except Exception as error:  # a file of the user's: its own training will say more
        return Planned(cell, "new", f"cannot be planned: {type(error).__name__}: {error}")
    steps = made.steps_per_chunk * made.chunks
    done = _done(cell, made, module)
    state = "finished" if ended(cell.folder, steps, made.batches) else "begun" if done else "new"
    seconds, memory = (0.0, 0.0) if state == "finished" else estimate(made)
    available = available_memory(made.placement)
    if state == "new" and cfg.runs_per_batch is None and available is not None and memory > SHARE * available:
        fit = max(1, int(len(made.runs) * SHARE * available / memory))
        made = dataclasses.replace(made, settings=changed(made.settings, runs_per_batch=fit))
        cell = cell._replace(words=(*cell.words, f"runs_per_batch={fit}"))
        seconds, memory = estimate(made)
    sizes = (len(made.runs), made.batches, steps, done, seconds, memory)
    return Planned(cell, state, "", *sizes, made.objective)


def _done(cell: Cell, made: Plan, module: ModuleType) -> float:
    """The share of a cell that its folder holds, after checking that it holds the same training."""
    if not os.path.exists(cell.folder / CONFIG):
        return 0.0
    saved = complete(cell.folder, saved_settings(cell.folder), module.Config, module.Hypers)
    before: Any = OmegaConf.to_container(saved)
    now: Any = OmegaConf.to_container(made.settings, resolve=True)
    for key in sorted(_leaves(before) | _leaves(now)):
        old, new = OmegaConf.select(OmegaConf.create(before), key), OmegaConf.select(OmegaConf.create(now), key)
        if old != new and not any(key == free or key.startswith(f"{free}.") for free in MAY_DIFFER):
            raise UserError(f"{cell.folder}: was begun with {key}={old}, not {new}; dir=<folder> starts anew")
    size = before.get("updates_per_chunk") or made.updates_per_chunk  # a begun training keeps their size
    return checkpointed(cell.folder) / math.ceil(made.algorithm.num_updates / size) / made.batches


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, value in tree.items():
        inner = isinstance(value, Mapping) and value
        found |= _leaves(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}"}
    return found


def checkpointed(folder: Path) -> int:
    """Chunks of all batches that checkpoints vouch for."""
    return sum(max(checkpoint.chunks(batch), default=0) for batch in (folder / "checkpoints").glob("batch_*"))


def ended(folder: Path, steps: int, batches: int) -> bool:
    """Whether every batch has had its last evaluation after ``steps`` steps, and the folder is whole."""
    last = {entry["batch"] for entry in evaluations(folder) if "absolute" in entry and entry["env_steps"] >= steps}
    return len(last) == batches and (folder / PROVENANCE).exists()


def evaluations(folder: Path) -> list[Entry]:
    """Everything that a training has evaluated so far; nothing if the file cannot be read."""
    with contextlib.suppress(UserError):
        return read_evaluations(folder).entries
    return []


def estimate(made: Plan) -> tuple[float, float]:
    """Seconds and bytes that a training will take, from the trace of one run's chunk."""
    with in_precision(made.settings.precision):
        return _estimate(made)


def _estimate(made: Plan) -> tuple[float, float]:
    evaluation = made.settings.evaluation
    state, hypers = made.shapes_of_one()

    def chunk(state, hypers):
        updates = made.updates_per_chunk
        return train_chunk(made.algorithm, state, hypers, updates, evaluation.episodes, evaluation.greedy)

    jaxpr = jax.make_jaxpr(chunk)(state, hypers).jaxpr
    taken, rates = cost.walk(jaxpr), cost.Rates()
    devices = made.placement.mesh(made.width).size
    batches = made.batches * made.chunks * made.width / devices
    seconds = rates.compile * cost.equations(jaxpr) + batches * rates.seconds(taken)
    state_size = float(sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state)))
    at_once = devices if made.placement.platform == "cpu" else made.width
    return seconds, made.width * state_size + at_once * max(0.0, taken.peak - state_size)


def plan_table(planned: Sequence[Planned]) -> list[list[str]]:
    """What will be trained, and how long it will take: rows under a header, a sum at the end."""
    rows = [["algorithm", "task", "runs", "steps each", "time, about", "memory, about", ""]]
    for one in planned:
        if one.state != "impossible":
            state = {"new": one.reason, "begun": f"begun ({one.done:.0%})", "finished": "finished"}[one.state]
            about = [duration(one.seconds), _size(one.memory)] if one.seconds else ["", ""]
            runs = f"{one.runs}" + (f" in {one.batches} batches" if one.batches > 1 else "")
            figures = [runs, human(one.steps), *about, state]
            rows.append([name_of(one.cell.algorithm), one.cell.task, *figures])
    left = sum(remaining(one) for one in planned)
    rows.append([f"{len(rows) - 1} cells", "", "", "", duration(left), "", "to go"])
    return rows


def remaining(one: Planned) -> float:
    """Estimated seconds that a cell still needs."""
    return 0.0 if one.state in ("finished", "impossible") else one.seconds * (1 - min(one.done, 1.0))


def duration(seconds: float) -> str:
    """``45 s``, ``3 min``, ``2.5 h``, ``4 d``."""
    for size, unit, shown in ((86400.0, "d", ".1f"), (3600.0, "h", ".1f"), (60.0, "min", ".0f")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:{shown}} {unit}"
    return f"{seconds:.0f} s"


def _size(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
