"""A training's folder, opened again: its configuration, its algorithm, and the policies that it left behind."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
import numpy as np
from omegaconf import DictConfig, OmegaConf

from envs.base import UserError
from shoal import policies
from shoal.algorithm import Algorithm, Params
from shoal.records import EVALUATIONS
from shoal.runner import make_plan
from shoal.sweep import Runs


@dataclass(frozen=True)
class Training:
    """What a folder holds."""

    folder: Path
    config: DictConfig
    algorithm: Algorithm
    runs: Runs

    @cached_property
    def best(self) -> int:
        """The run with the highest return of its absolute metric, or of its last evaluation."""
        lines = (self.folder / EVALUATIONS).read_text().splitlines()
        last: dict[int, float] = {}
        for entry in map(json.loads, lines):
            values = entry["metrics"]["episode_return"]
            last |= {run: float(np.nanmean(v)) for run, v in zip(entry["runs"], values, strict=True)}
        return max(last, key=lambda run: (np.isfinite(last[run]), last[run]))

    def policy(self, run: int, which: str = "best") -> Params:
        """The ``best`` or ``last`` policy of a run, for ``algorithm.acting.act``."""
        if not 0 <= run < len(self.runs):
            raise UserError(f"run {run}: {self.folder} has runs 0 to {len(self.runs) - 1}")
        key, hypers = jax.tree.map(lambda leaf: leaf[0], self.runs.select(np.array([run])))
        like = jax.eval_shape(lambda: self.algorithm.policy(self.algorithm.init(key, hypers)))
        return policies.load(self.folder, like, run, which)


def load(folder: str | Path) -> Training:
    """Open the folder that a training left behind."""
    folder = Path(folder)
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder}: no config.yaml there; name the folder that a training left behind")
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    module = importlib.import_module(f"baselines.{config.file.replace('/', '.')}")
    plan = make_plan(module.make, module.Config, module.Hypers, config, folder)
    return Training(folder, config, plan.algorithm, plan.runs)
