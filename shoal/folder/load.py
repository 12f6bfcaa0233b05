"""A training's folder, opened again: its records as tables, its configuration, and the policies that it left behind.

    runs = shoal.load("runs/mine")
    runs.metrics.groupby("env_steps")["evaluation/episode_return"].mean().plot()
    policy = runs.policy("best")

Tables and configuration are read from the files alone, of a running, a stopped or a finished training: no environment
is made and JAX is not imported. Policies need the algorithm, and make it when they are first asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from shoal.config.files import import_named
from shoal.config.named import algorithms, module_of
from shoal.folder import lineage, reading
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
from shoal.folder.tables import diverged_runs, metrics_table, read_evaluations

if TYPE_CHECKING:
    from shoal.algorithm import Algorithm, Params
    from shoal.folder.play import Episode
    from shoal.run.plan import Plan


@dataclass(frozen=True)
class Runs:
    """What a folder holds. Tables are read when they are first used: load again to see what a training has added."""

    folder: Path
    config: DictConfig  # config.yaml: runs.config.hypers.lr
    file: str | Path | None = None  # the user's own algorithm file that made it

    def __repr__(self) -> str:
        return f"Runs({str(self.folder)!r}: {self.name} on {self.config.env.name}, {len(self)} runs)"

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
        mode = self.config.sweep.mode
        return int(self.config.sweep.num if mode == "random" else sizes[0] if mode == "zip" else np.prod(sizes))

    @property
    def _sweep_values(self) -> list[Any]:
        return [OmegaConf.to_container(self.config.sweep)[name] for name in self.swept]  # type: ignore[call-overload, index]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """``metrics.csv``: a row per run and chunk. Empty if there is none yet."""
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
            raise _mistake(f"{self.folder}: was no evolution (evolve=none)")
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
            raise _mistake(f"{path}: is written when a training ends; until then there is .evaluations")
        return reading.json_file(path, reading.RECORDS)

    @property
    def _entries(self) -> list[dict[str, Any]]:
        found = read_evaluations(self.folder)
        for number, reason in found.faults.items():
            if number != found.half:
                raise _mistake(f"{self.folder / EVALUATIONS}: line {number} cannot be read ({reason})")
        return found.entries

    @cached_property
    def best(self) -> int:
        """The run with the highest objective in its absolute metric, or in its last evaluation; a diverged one last."""
        last: dict[int, float] = {}
        for entry in self._entries:
            values = entry["metrics"][self.objective]
            last |= {run: float(np.nanmean(v)) for run, v in zip(entry["runs"], values, strict=True)}
        if not last:
            raise _mistake(f"{self.folder}: no evaluation there yet")
        lost = diverged_runs(self.folder)
        return max(last, key=lambda run: (run not in lost, np.isfinite(last[run]), last[run]))

    @cached_property
    def plan(self) -> Plan:
        """The training itself, as the runner made it: its algorithm, its environment, the whole run axis.

        Nothing in this process changes: neither its devices nor its precision, which is JAX's own here.
        """
        from shoal.config.settings import complete
        from shoal.envs.host import pettingzoo
        from shoal.errors import UserError
        from shoal.training import open_plan

        module = self.module
        settings = complete(self.folder, self.config, module.Config, module.Hypers)
        own = pettingzoo.own_module(settings.env.name)
        if own is not None:
            raise _mistake(f"{self.folder}: its environment is the module {own}; {_named(own)}")
        try:
            return open_plan(module.make, module.Config, module.Hypers, settings, self.folder)
        except UserError as error:
            raise UserError(f"{self.folder}: {error}") from error

    @property
    def algorithm(self) -> Algorithm:
        return self.plan.algorithm

    def policy(self, run: int | str = "best", which: str = "best") -> Params:
        """The ``best`` or ``last`` policy of a run (a number, or ``"best"``), for ``algorithm.acting.act``."""
        from shoal.folder import policies

        number, (shapes, _) = self.number(run), self.plan.shapes_of_one()
        return policies.load(self.folder, shapes.best_policy, number, which)

    def play(self, run: int | str = "best", which: str = "best", seed: int = 0) -> Episode:
        """One greedy episode of a policy; ``env.render(episode.states)`` draws it."""
        from shoal.folder.play import play

        acting, policy = self.algorithm.acting, self.policy(run, which)

        def act(memory, timestep, key):
            return acting.act(policy, memory, timestep, key, True)

        return play(self.algorithm.env, acting.initial_carry, act, seed)

    def number(self, run: int | str) -> int:
        """The number of a run, which may be called ``"best"``."""
        number = self.best if run == "best" else run
        if isinstance(number, str) or not 0 <= number < len(self):
            raise _mistake(f"run {run}: {self.folder} has runs 0 to {len(self) - 1}")
        return int(number)

    @cached_property
    def module(self) -> ModuleType:
        """The algorithm file: one of baselines, the one that ``file`` names, or one that is imported already."""
        if self.file is not None:
            module = import_named(self.file)
            if hasattr(module, "make"):
                return module
        recipe, file = self.config.recipe, self.config.file
        if self.file is None and Path(file).name != recipe:
            found = sys.modules.get(recipe)
            if found and all(hasattr(found, name) for name in ("make", "Config", "Hypers")):
                return found
            path = f"path/to/{recipe}.py"
            raise _mistake(f"{self.folder}: was made by {recipe}.py, which is not one of baselines; {_named(path)}")
        if file not in algorithms().values():
            raise _mistake(f"{self.folder}: its config.yaml names baselines/{file}.py, and there is no such file")
        return module_of(file)


def _named(code: str) -> str:
    """How the user has code run that a folder is about."""
    return f'a folder runs no code by itself: file="{code}" of shoal.load, import={code} of a script, names it'


def load(folder: str | Path, file: str | Path | None = None) -> Runs:
    """Open the folder that a training left behind, or is still writing. Nothing in it is run.

    ``file`` is the user's own Python (``path/to/file.py``, or ``package.module``) that made it, or that registers its
    environment or network. Only policies need it, and not if it is imported already.
    """
    folder = Path(folder)
    path = folder / CONFIG
    if not os.path.exists(path):
        raise _mistake(f"{folder}: no config.yaml there; name the folder that a training left behind")
    runs = Runs(folder, OmegaConf.create(reading.settings(path)), file)
    try:
        few = len(runs) <= reading.MOST_RUNS
    except OverflowError:
        few = False
    if not few:
        raise _mistake(f"{path}: more than {reading.MOST_RUNS} runs")
    return runs


def _mistake(text: str) -> Exception:
    from shoal.errors import UserError  # with it come all environments: not for reading tables

    return UserError(text)
