"""Where metrics go beside the files: wandb, wandb offline, tensorboard; on the host, between chunks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from envs.base import UserError

Rows = list[dict[str, Any]]  # one per run: run, seed, env_steps, the swept hyperparameters and the metrics
NOT_METRICS = ("run", "seed", "env_steps")


class Logger(Protocol):
    def log(self, rows: Rows, env_steps: int) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Logs nowhere: the files are enough."""

    def log(self, rows: Rows, env_steps: int) -> None: ...

    def close(self) -> None: ...


def summary(rows: Rows, runs: int) -> dict[str, float]:
    """``mean/<metric>`` over runs, ``best/episode_return``, and ``run_<i>/<metric>`` of the first ``runs`` ones."""
    names = [name for name in rows[0] if name not in NOT_METRICS]
    finite = {name: [row[name] for row in rows if np.isfinite(row[name])] for name in names}
    values = {f"mean/{name}": float(np.mean(column)) for name, column in finite.items() if column}
    if finite["episode_return"]:
        values["best/episode_return"] = float(np.max(finite["episode_return"]))
    for row in rows if len(rows) > 1 else []:
        if row["run"] < runs:
            values |= {f"run_{row['run']}/{name}": float(row[name]) for name in names}
    return {name: value for name, value in values.items() if np.isfinite(value)}


class Wandb:
    def __init__(self, project: str, folder: Path, config: Mapping, runs: int, offline: bool):
        try:
            import wandb
        except ImportError as error:
            raise UserError("logger=wandb: the package wandb is not installed; pip install wandb") from error
        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            # One wandb run per folder, whatever its name: a resumed training goes on in the same one.
            identity = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
            self.run = wandb.init(
                project=project,
                dir=folder,
                name=folder.name,
                id=identity,
                resume="allow",
                config=dict(config),
                mode="offline" if offline else "online",
            )
        except (wandb.Error, OSError) as error:
            line = str(error).splitlines()[0]
            raise UserError(f"logger=wandb: {line}; logger=wandb_offline needs no network") from error
        self.runs = runs

    def log(self, rows: Rows, env_steps: int) -> None:
        self.run.log(summary(rows, self.runs), step=env_steps)

    def close(self) -> None:
        self.run.finish()


class Tensorboard:
    def __init__(self, folder: Path, runs: int):
        from tensorboardX import SummaryWriter

        self.writer, self.runs = SummaryWriter(str(folder / "tensorboard")), runs

    def log(self, rows: Rows, env_steps: int) -> None:
        for name, value in summary(rows, self.runs).items():
            self.writer.add_scalar(name, value, env_steps)

    def close(self) -> None:
        self.writer.close()


def make(settings: Any, folder: Path, config: Mapping) -> Logger:
    """The logger that ``settings`` (:class:`shoal.config.Logger`) names."""
    if settings.name in ("wandb", "wandb_offline"):
        return Wandb(settings.project, folder, config, settings.runs, offline=settings.name == "wandb_offline")
    if settings.name == "tensorboard":
        return Tensorboard(folder, settings.runs)
    return Silent()
