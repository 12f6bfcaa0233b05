"""A validated training: what to run, in which batches and chunks."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chex
import jax
import numpy as np
from omegaconf import DictConfig, OmegaConf

from shoal.algorithm import Algorithm, Hypers
from shoal.folder.layout import objective_of
from shoal.hashing import key_of
from shoal.run import hosts, memory, sweep
from shoal.run.placement import Placement
from shoal.run.state import RunState, first_state, train_chunk

if TYPE_CHECKING:
    from shoal.evolve.rules import Rules


@dataclasses.dataclass(frozen=True)
class Plan:
    """A validated training: what to run and where."""

    algorithm: Algorithm
    runs: sweep.Runs
    settings: DictConfig
    folder: Path
    updates_per_chunk: int
    chunks: int
    placement: Placement
    rules: Rules | None = None  # of evolution
    rounds_per_chunk: int = 1

    @property
    def batch_size(self) -> int:
        """Runs that train at once."""
        given = self.settings.runs_per_batch
        return min(given, len(self.runs)) if isinstance(given, int) else len(self.runs)

    @property
    def width(self) -> int:
        """The batch on the devices: a few runs more where they do not divide evenly, dropped from all results."""
        return self.placement.padded(self.batch_size)

    @property
    def batches(self) -> int:
        return math.ceil(len(self.runs) / self.batch_size)

    @property
    def objective(self) -> str:
        """The metric that selects policies and ranks runs."""
        return objective_of(self.settings)

    @property
    def steps_per_chunk(self) -> int:
        """Environment steps of one run."""
        return self.updates_per_chunk * self.algorithm.steps_per_update

    @property
    def steps_per_round(self) -> int:
        """Environment steps of one run."""
        return self.updates_per_round * self.algorithm.steps_per_update

    @property
    def updates_per_round(self) -> int:
        """Updates between two evaluations; without evolution a chunk is one round."""
        return self.updates_per_chunk // self.rounds_per_chunk

    def key(self, words: chex.Array) -> chex.PRNGKey:
        """The key of a run, from two words of :meth:`sweep.Runs.select`."""
        return key_of(words, self.settings.prng)

    def shapes_of_one(self) -> tuple[RunState, Hypers]:
        """The shapes of a run's first state, and the hyperparameters of one."""
        words, hypers = jax.tree.map(lambda leaf: leaf[0], self.runs.select(np.array([0])))
        return jax.eval_shape(lambda w, h: first_state(self.algorithm, self.key(w), h), words, hypers), hypers

    def batch_runs(self, batch: int) -> np.ndarray:
        """The runs of a batch."""
        return np.arange(batch * self.batch_size, min((batch + 1) * self.batch_size, len(self.runs)))


def changed(settings: DictConfig, **values: Any) -> DictConfig:
    """A copy of some settings with other values, ``{"evaluation.objective": "win_rate"}``."""
    settings = settings.copy()
    for name, value in values.items():
        OmegaConf.update(settings, name, value)
    return settings


def fitting(plan: Plan) -> int:
    """``runs_per_batch=auto``: how many runs to train at once, said where it is not all of them."""
    need, placement, count = one_run(plan), plan.placement, len(plan.runs)
    available = hosts.least(memory.available_memory(placement))
    size = memory.fit(count, available, lambda runs: need.of(runs, placement), placement)
    if size < count and hosts.leads():
        batches = math.ceil(count / size)
        print(f"runs_per_batch={size}: {batches} batches, as {need.text(count, placement, available)}", file=sys.stderr)
    return size


def one_run(plan: Plan) -> memory.Need:
    """What one run needs, from traces alone."""
    state, hypers = plan.shapes_of_one()
    traced = jax.make_jaxpr(chunk_of(plan))(state, hypers)
    return memory.state_need(state, 1, memory.beside_state(traced.jaxpr))


def chunk_of(plan: Plan) -> Callable:
    """The chunk, or the round, of one run: ``(state, hypers) -> state, metrics, episodes``."""
    evaluation = plan.settings.evaluation

    def chunk(state: RunState, hypers: Hypers):
        return train_chunk(
            plan.algorithm,
            state,
            hypers,
            plan.updates_per_round,
            evaluation.episodes,
            evaluation.greedy,
            plan.objective,
        )

    return chunk
