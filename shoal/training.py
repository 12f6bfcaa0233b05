"""From a configuration to a folder: a checked plan, its training, and the report at its end.

A chunk is ``K`` updates and one evaluation of all runs of a batch, compiled once, its state donated (``run.state``).
Between chunks the host draws the progress bar, appends to the records and writes checkpoints (``run.loop``).
``chunks=1`` trains everything as one program. Runs that do not fit in memory together train in batches of
``runs_per_batch``, one batch after the other.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
from omegaconf import DictConfig, OmegaConf

from shoal import envs
from shoal.algorithm import Algorithm
from shoal.config.fields import INT32
from shoal.config.settings import build, check_settings
from shoal.config.words import pasted
from shoal.envs.check import check
from shoal.errors import Fault, UserError
from shoal.evolve.plan import evolving_plan
from shoal.folder import lock, writing
from shoal.folder.layout import CONFIG, algorithm_name
from shoal.report.results import write_results
from shoal.rl.metrics import chosen_objective
from shoal.run import callbacks as user_callbacks
from shoal.run import hosts, learners, loggers, sweep
from shoal.run.compile import in_precision
from shoal.run.loop import train
from shoal.run.placement import check_devices, place
from shoal.run.plan import Plan, changed, fitting
from shoal.run.resume import found_training, refuse_taken, resumed_config
from shoal.run.signals import Stopped

NO_THREAD = "can't start new thread"


def make_plan(kind: type[Algorithm], cfg: DictConfig, folder: Path) -> Plan:
    """:func:`open_plan` for a training that begins or goes on: on the devices that it asks for, in batches that fit."""
    plan = open_plan(kind, cfg, folder)
    env, rules = plan.algorithm.env, plan.rules
    if rules is not None and rules.scheme.every >= plan.chunks * plan.rounds_per_chunk and hosts.leads():
        rounds = plan.chunks * plan.rounds_per_chunk
        print(f"warning: evolve.every={rules.scheme.every}: nobody is selected in {rounds} rounds", file=sys.stderr)
    check_devices(cfg.devices, together=env.host, learners=cfg.learners)
    if cfg.runs_per_batch != "auto":
        return plan
    members = rules.population if rules else 1
    with in_precision(cfg.precision):
        size = max(1, fitting(plan) // members) * members  # whole populations
    return dataclasses.replace(plan, settings=changed(plan.settings, runs_per_batch=size))


def open_plan(kind: type[Algorithm], cfg: DictConfig, folder: Path) -> Plan:
    """Check a configuration against its environment and split its training into chunks.

    A folder from a machine with more devices can be opened here.
    """
    check_settings(cfg, kind.Config, kind.Hypers)
    kwargs = OmegaConf.to_container(cfg.env.kwargs, resolve=True)
    assert isinstance(kwargs, dict)
    try:
        env = envs.make(cfg.env.name, **{str(name): value for name, value in kwargs.items()})
    except TypeError as error:
        raise UserError(f"env.kwargs={kwargs}: {error}") from error
    check(env)
    objective = chosen_objective(cfg.evaluation.objective, env)
    cfg = changed(cfg, **{"evaluation.objective": objective})
    algorithm = learners.made(kind, build(cfg.algo, "algo.", kind.Config), env, cfg.learners)
    if algorithm.num_updates > INT32:
        raise UserError(f"total_steps={cfg.algo.total_steps:g}: makes {algorithm.num_updates} updates; {INT32} at most")
    values = OmegaConf.to_container(cfg.sweep, resolve=True)
    assert isinstance(values, dict)
    hypers = build(cfg.hypers, "hypers.", kind.Hypers)
    if cfg.learners > 1:
        learners.check_averages(algorithm, hypers)
    placement = place(cfg.devices, cfg.algo.get("num_envs", 1), together=env.host, learners=cfg.learners)
    if cfg.evolve.scheme != "none":
        if cfg.learners > 1:
            raise UserError(f"learners={cfg.learners}: not with evolution, whose members keep the devices busy")
        return evolving_plan(algorithm, hypers, values, cfg, folder, placement)
    runs = sweep.expand(hypers, values, cfg.seeds, cfg.seed)  # type: ignore[arg-type]
    updates = cfg.get("updates_per_chunk") or math.ceil(algorithm.num_updates / cfg.chunks)
    return Plan(algorithm, runs, cfg, folder, updates, math.ceil(algorithm.num_updates / updates), placement)


def run(
    kind: type[Algorithm],
    cfg: DictConfig,
    folder: Path | None,
    overrides: list[str],
    callbacks: Sequence[Any] = (),
) -> Path:
    """Train what ``cfg`` says; the folder that it leaves behind is returned.

    ``folder`` replaces ``run.dir`` (Hydra's multirun names its own); ``overrides`` are the command line's words,
    which a resumed training lays over the configuration that it was started with; ``callbacks`` are called before those
    that the configuration names.
    """
    hosts.join(cfg.distributed)
    given = [user_callbacks.made(callback) for callback in callbacks]
    if cfg.resume == "auto":
        with writing.faults(folder or cfg.run.dir, "read"):
            cfg = changed(cfg, resume=found_training(cfg, folder, overrides))
    new = cfg.resume is None
    folder = Path(hosts.agree_on(str(folder or cfg.run.dir))) if new else Path(cfg.resume)
    if new:
        hosts.all_or_none(lambda: refuse_taken(folder))
    else:
        with writing.faults(folder, "read"):
            cfg = resumed_config(folder, cfg, overrides, kind.Config, kind.Hypers)
    plan = make_plan(kind, cfg, folder)
    train_in_folder(plan, given, new)
    return folder


def train_in_folder(plan: Plan, given: Sequence[Any], new: bool) -> None:
    """Train a plan while its folder is locked; a ``new`` training must have it for itself."""
    folder, cfg = plan.folder, plan.settings
    named = [user_callbacks.find(word) for word in cfg.callbacks]
    with ExitStack() as stack:
        hosts.all_or_none(lambda: stack.enter_context(lock.held(folder, hosts.leads())))
        if new:
            hosts.all_or_none(lambda: refuse_taken(folder))  # by a training that has begun meanwhile
        logger = hosts.all_or_none(lambda: make_logger(plan))
        try:
            # Callbacks are called once, by the first process, which tells the others what has changed.
            train_and_report(plan, logger, [*given, *named] if hosts.leads() else [])
        except jax.errors.JaxRuntimeError as error:
            raise stopped_on_host(plan) or error from None
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and NO_THREAD not in str(error):
                raise
            raise Fault(f"{error or 'no memory'}: too little memory or too few threads (ulimit -v, -u)") from error
        except Fault as error:
            begun = (folder / CONFIG).is_file()
            hint = f"; with that mended {pasted('resume', folder)} goes on" if begun else ""
            raise Fault(f"{error}{hint}") from error


def train_and_report(plan: Plan, logger: loggers.Logger, callbacks: Sequence[Any] = ()) -> None:
    """Train all batches of a plan, write its results, and call the callbacks' end."""
    trained = train(plan, logger, callbacks)
    logger.close()
    if hosts.leads():
        write_results(plan, trained)
        if trained.stopped:
            print(f"stopped; {pasted('resume', plan.folder)} goes on")
    trained.hooks.end(not trained.stopped)
    if trained.stopped and trained.scheduled:
        raise Stopped


def stopped_on_host(plan: Plan) -> UserError | None:
    """What to tell the user if it was the environments on the host that ended a training."""
    failure = plan.algorithm.env.pool.failure if plan.algorithm.env.host else None
    if failure is None:
        return None
    saved = any((plan.folder / "checkpoints").glob("batch_*/*"))
    hint = f"{pasted('resume', plan.folder)} goes on from the last chunk" if saved else "no chunk was finished"
    return UserError(f"{failure}; {hint}")


def make_logger(plan: Plan) -> loggers.Logger:
    """The logger of the first process; the others have none."""
    if not hosts.leads():
        return loggers.Silent()
    settings, container = plan.settings, OmegaConf.to_container(plan.settings, resolve=True)
    return loggers.make(settings.logger, plan.folder, container, plan.runs, algorithm_name(settings))  # type: ignore[arg-type]
