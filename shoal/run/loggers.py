"""Where metrics go beside the files: wandb, wandb offline, tensorboard; on the host, between chunks."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.errors import Fault, UserError
from shoal.folder import writing
from shoal.folder.layout import DIVERGED, ENV_STEPS, EVALUATION, RETURN, RUN, SEED, objective_of
from shoal.run.sweep import Runs

Rows = list[dict[str, Any]]  # one per run: run, seed, env_steps, the swept hyperparameters and the metrics
NOT_METRICS = (RUN, SEED, ENV_STEPS)
PATIENCE = 7  # seconds that wandb may take to begin, before anything has been trained
MOST = 64  # characters of a tag that wandb takes


class Logger(Protocol):
    def log(self, rows: Rows, env_steps: int) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Logs nowhere: the files are enough."""

    def log(self, rows: Rows, env_steps: int) -> None: ...

    def close(self) -> None: ...


def summary(rows: Rows, runs: int, objective: str = RETURN) -> dict[str, float]:
    """``mean/<metric>`` over runs, the highest ``best/evaluation/<objective>`` and ``best/episode_return`` (training),
    and ``run_<i>/<metric>`` of the first ``runs`` ones.

    A run that has diverged is in no mean and not the best; ``mean/diverged`` is the share of such runs.
    """
    names = [name for name in rows[0] if name not in NOT_METRICS]
    living = [row for row in rows if not row.get(DIVERGED)]
    finite = {name: [row[name] for row in living if np.isfinite(row[name])] for name in names}
    finite |= {DIVERGED: [row[DIVERGED] for row in rows]} if DIVERGED in names else {}
    values = {f"mean/{name}": float(np.mean(column)) for name, column in finite.items() if column}
    for name in (EVALUATION + objective, RETURN):
        if finite.get(name):
            values[f"best/{name}"] = float(np.max(finite[name]))
    for row in rows if len(rows) > 1 else []:
        if row[RUN] < runs:
            values |= {f"run_{row['run']}/{name}": float(row[name]) for name in names}
    return {name: value for name, value in values.items() if np.isfinite(value)}


class Wandb:
    """One wandb run with a series per run, or (``per_seed``) one for each run, in a group.

    A wandb run is known by the folder and the run: a resumed training goes on in the same ones.
    """

    def __init__(self, settings: Any, folder: Path, config: Mapping, runs: Runs, name: str):
        try:
            import wandb
        except ImportError as error:
            raise UserError("logger=wandb: the package wandb is not installed; pip install wandb") from error
        os.environ.setdefault("WANDB_SILENT", "true")
        logging.raiseExceptions = False  # wandb logs to files, and a full disk would print a stack trace for each line
        self.settings, self.folder, self.config, self.table, self.name = settings, folder, dict(config), runs, name
        self.wandb = wandb
        self.started: dict[int | None, Any] = {}  # by the run's number; None is all of them
        self.each = settings.mode == "per_seed"
        if self.each and len(runs) > settings.runs:
            print(
                f"logger.runs={settings.runs}: of {len(runs)} runs only the first {settings.runs} are logged to wandb",
                file=sys.stderr,
            )
        if not self.each:
            self._start(None)  # a mistake is told before anything compiles
        elif settings.runs:
            self._start(0)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """A full disk and wandb's own errors are one line."""
        try:
            with writing.faults(self.folder / "wandb"):
                yield
                if self.started:
                    writing.check_room(self.folder / "wandb")  # wandb's process is silent on a full disk
        except self.wandb.Error as error:
            raise Fault(f"logger={self.settings.name}: {str(error).splitlines()[0]}") from error

    def log(self, rows: Rows, env_steps: int) -> None:
        with self._faults():
            self._log(rows, env_steps)

    def _log(self, rows: Rows, env_steps: int) -> None:
        if not self.each:
            figures = summary(rows, self.settings.runs, objective_of(self.config))
            self.started[None].log(figures, step=env_steps)
            return
        for row in rows:
            if row[RUN] < self.settings.runs:
                values = {name: float(value) for name, value in row.items() if name not in NOT_METRICS}
                finite = {name: value for name, value in values.items() if np.isfinite(value)}
                self._start(row[RUN]).log(finite, step=env_steps)

    def close(self) -> None:
        with self._faults():
            for run in self.started.values():
                run.finish()

    def _start(self, run: int | None) -> Any:
        """The wandb run of ``run``, begun when it is first needed."""
        if run in self.started:
            return self.started[run]
        what = str(self.folder.absolute()) if run is None else f"{self.folder.absolute()} {run}"
        settings, config, env = self.settings, self.config, self.config["env"]["name"]
        name, group, tags = self.folder.name, settings.group or None, [self.name, env, *settings.tags]
        if run is not None:
            point = self.table.points[self.table.point[run]]
            seed, label = int(self.table.seed[run]), self.table.label(self.table.point[run])
            member = f"member {self.table.member[run]}" if self.table.member is not None else ""
            config = {key: value for key, value in config.items() if key not in ("sweep", "seeds")}
            config |= {"run": config["run"] | {"number": run}, "seed": seed, "hypers": config["hypers"] | point}
            name = " ".join(filter(None, [self.name, env, label, f"seed {seed}", member]))
            group, tags = group or self.folder.name, tags + label.split()
        patience = None if self.started or "WANDB_INIT_TIMEOUT" in os.environ else {"init_timeout": PATIENCE}
        writing.make_folder(self.folder / "wandb")
        try:
            self.started[run] = self.wandb.init(
                project=settings.project,
                entity=settings.entity,
                dir=self.folder,
                name=name,
                group=group,
                tags=[tag[:MOST] for tag in dict.fromkeys(tags)],
                id=hashlib.sha256(what.encode()).hexdigest()[:16],
                resume="allow",
                reinit="create_new",
                config=config,
                mode="offline" if settings.name == "wandb_offline" else "online",
                settings=patience,
            )
        except OSError as error:
            raise Fault(f"{self.folder / 'wandb'}: cannot be written ({writing.reason(error)})") from error
        except self.wandb.Error as error:
            line = str(error).splitlines()[0]
            raise UserError(f"logger=wandb: {line}; logger=wandb_offline needs no network") from error
        return self.started[run]


class Tensorboard:
    """An event file. It is written at once: tensorboardX's own thread would hang on a full disk."""

    def __init__(self, folder: Path, runs: int, objective: str = RETURN):
        from tensorboardX.event_file_writer import EventsWriter

        self.place, self.runs, self.objective = writing.make_folder(folder / "tensorboard"), runs, objective
        with writing.faults(self.place):
            self.events = EventsWriter(str(self.place / "events"))

    def log(self, rows: Rows, env_steps: int) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar

        values = [scalar(name, value).value[0] for name, value in summary(rows, self.runs, self.objective).items()]
        with writing.faults(self.place):
            self.events.write_event(Event(wall_time=time.time(), step=env_steps, summary=Summary(value=values)))
            self.events.flush()

    def close(self) -> None:
        with writing.faults(self.place):
            self.events.close()


def make(settings: Any, folder: Path, config: Mapping, runs: Runs, name: str) -> Logger:
    """The logger that ``settings`` names, for ``runs`` of the algorithm ``name``."""
    if settings.name in ("wandb", "wandb_offline"):
        return Wandb(settings, folder, config, runs, name)
    if settings.name == "tensorboard":
        return Tensorboard(folder, settings.runs, objective_of(config))
    return Silent()
