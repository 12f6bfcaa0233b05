"""A training's folder as tables: its configuration, metrics, evaluations and lineage.

They are read from the files alone, of a running, a stopped or a finished training: no environment is made and JAX is
not imported. ``shoal.load`` (``shoal.loaded``) adds the algorithm and its policies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from shoal.errors import UserError
from shoal.folder import lineage, reading, seals
from shoal.folder.layout import (
    CONFIG,
    ENV_STEPS,
    EVALUATIONS,
    MARL_EVAL,
    RETURN,
    RUN,
    SEED,
    algorithm_name,
    members_of,
    objective_of,
    swept_names,
)
from shoal.folder.tables import (
    Entry,
    diverged_runs,
    means_of,
    metrics_table,
    nan_runs,
    read_evaluations,
    recorded_objective,
)


@dataclass(frozen=True)
class Recorded:
    """What a folder has on record. Tables are read when they are first used: load again to see what came since."""

    folder: Path
    config: DictConfig  # config.yaml: runs.config.hypers.lr

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}: {self.name} on {self.config.env.name}, {len(self)} runs)"

    def __len__(self) -> int:
        return int(self.config.seeds) * self._num_points * self.members

    @property
    def members(self) -> int:
        """Of a population; 1 without evolution."""
        return members_of(self.config)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """What reports call the algorithm."""
        return algorithm_name(self.config)  # type: ignore[arg-type]

    @property
    def objective(self) -> str:
        """The metric that this training is ranked by, the higher the better."""
        return objective_of(self.config)  # type: ignore[arg-type]

    @property
    def swept(self) -> list[str]:
        """The names of the swept hyperparameters."""
        return swept_names(self.config)  # type: ignore[arg-type]

    @property
    def _num_points(self) -> int:
        """Points of the sweep, told from its settings."""
        if not self.swept:
            return 1
        sizes = [len(values) if isinstance(values, Sequence) else 1 for values in self._sweep_values]
        mode = self.config.sweep.get("mode")
        return int(
            self.config.sweep.get("num") or 10 if mode == "random" else sizes[0] if mode == "zip" else np.prod(sizes)
        )

    @property
    def _sweep_values(self) -> list[Any]:
        return [OmegaConf.to_container(self.config.sweep)[name] for name in self.swept]  # type: ignore[call-overload, index]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """``metrics.csv``: a row per run and chunk. Empty if there is none yet."""
        self._changed  # noqa: B018 -- said once
        return metrics_table(self.folder, self.swept)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Which run is which: ``point`` of the sweep, ``seed`` and the swept values, indexed by ``run``.

        With evolution a seed is a population, and instead of a point there is the ``member``.
        """
        rows = self.metrics.drop_duplicates(RUN).set_index(RUN).sort_index()
        if self.members > 1:
            rows.insert(0, "member", rows.index.to_numpy() % self.members)
            return rows[["member", SEED]]
        rows.insert(0, "point", rows.index.to_numpy() // int(self.config.seeds))
        return rows[["point", SEED, *(name for name in self.swept if name in rows)]]

    @cached_property
    def lineage(self) -> pd.DataFrame:
        """``lineage.csv``: a row per run and round of an evolution, how it came about and what it came to."""
        if self.members == 1:
            raise UserError(f"{self.folder}: was no evolution (evolve=none)")
        return lineage.read(self.folder)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row per run, evaluation and episode: the run's row of ``table``, ``env_steps``, ``episode``, its metrics.

        ``absolute`` marks the last evaluation with each run's best parameters, ten times as many episodes. The means
        over episodes are in ``metrics`` too, as ``evaluation/<name>``.
        """
        parts = []
        for entry in self._entries:
            shape = np.shape(entry["metrics"][RETURN])  # [runs, episodes]
            run, episode = np.meshgrid(entry["runs"], np.arange(shape[1]), indexing="ij")
            columns = {RUN: run.ravel(), ENV_STEPS: entry["env_steps"], "absolute": "absolute" in entry}
            columns |= {"episode": episode.ravel()}
            columns |= {name: np.asarray(values, float).ravel() for name, values in entry["metrics"].items()}
            parts.append(pd.DataFrame(columns))
        if not parts:
            return pd.DataFrame({RUN: [], ENV_STEPS: [], "episode": []}, dtype=int)
        return self.table.reset_index().merge(pd.concat(parts, ignore_index=True), on=RUN)

    @property
    def marl_eval(self) -> dict[str, Any]:
        """``evaluations.json``: marl-eval's layout of the same, written when a training ends or stops."""
        path = self.folder / MARL_EVAL
        if not os.path.exists(path):
            raise UserError(f"{path}: is written when a training ends; until then there is .evaluations")
        return reading.json_file(path, reading.RECORDS)

    @property
    def _entries(self) -> list[dict[str, Any]]:
        self._changed  # noqa: B018 -- said once
        found = read_evaluations(self.folder)
        for number, reason in found.faults.items():
            if number != found.half:
                raise UserError(f"{self.folder / EVALUATIONS}: line {number} cannot be read ({reason})")
        return found.entries

    @cached_property
    def _changed(self) -> list[str]:
        """The records that are not what the checkpoints have seen, after a warning of each."""
        names = seals.changed(self.folder, self.config)  # type: ignore[arg-type]
        for name in names:
            print(f"warning: {self.folder / name}: {seals.CHANGED}", file=sys.stderr)
        return names

    @cached_property
    def lost(self) -> list[int]:
        """The runs that belong in no mean: they diverged, or an evaluation of theirs is no number (NaN)."""
        return sorted(diverged_runs(self.folder) | self._broken(self._entries))

    def _broken(self, entries: Sequence[Entry]) -> set[int]:
        """The runs with a NaN in an evaluation. A slot of a population is none: who died there has been replaced."""
        return nan_runs(entries, recorded_objective(self.objective, entries)) if self.members == 1 else set()

    @cached_property
    def best(self) -> int:
        """The run with the highest objective in its absolute metric, or in its last evaluation.

        Runs that diverged come last, and before them those with a NaN in an evaluation.
        """
        entries = self._entries
        if not entries:
            raise UserError(f"{self.folder}: no evaluation there yet")
        objective = recorded_objective(self.objective, entries)
        if objective != self.objective:
            line = f"{self.folder}: evaluation.objective={self.objective} is no metric of its evaluations"
            print(f"warning: {line}; the best run is that of {objective}", file=sys.stderr)
        last: dict[int, float] = {}
        for entry in entries:
            last |= dict(zip(entry["runs"], means_of(entry, objective).tolist(), strict=True))
        diverged, broken = diverged_runs(self.folder), self._broken(entries)
        return max(last, key=lambda run: (run not in diverged, run not in broken, np.isfinite(last[run]), last[run]))

    def number(self, run: int | str) -> int:
        """The number of a run, which may be called ``"best"``."""
        number = self.best if run == "best" else run
        if isinstance(number, str) or not 0 <= number < len(self):
            raise UserError(f"run {run}: {self.folder} has runs 0 to {len(self) - 1}")
        return int(number)


def read_config(folder: Path) -> DictConfig:
    """The configuration of the training that a folder holds."""
    path = folder / CONFIG
    if not os.path.exists(path):
        raise UserError(f"{folder}: no config.yaml there; name the folder that a training left behind")
    return OmegaConf.create(reading.settings(path))


def refuse_too_many(recorded: Recorded) -> None:
    """Refuse a configuration with more runs than any training has."""
    try:
        few = len(recorded) <= reading.MOST_RUNS
    except OverflowError:
        few = False
    if not few:
        raise UserError(f"{recorded.folder / CONFIG}: more than {reading.MOST_RUNS} runs")
