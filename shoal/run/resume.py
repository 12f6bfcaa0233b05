"""Where a training begins or goes on: its folder, its configuration, its checkpoints."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from omegaconf import DictConfig, OmegaConf

from shoal.config.settings import complete, saved_settings
from shoal.config.words import pasted
from shoal.envs.host import pettingzoo
from shoal.errors import UserError
from shoal.folder import checkpoint, lock, policies, reading, writing
from shoal.folder.layout import CONFIG, METRICS
from shoal.folder.records import Begun, Records
from shoal.run import callbacks, hosts, memory
from shoal.run.plan import Plan

MOST_DEVICES = 1024  # to which a batch of runs may have been filled up

# When resuming; callbacks may be mended, or left out to go on after one that has stopped the training.
FREE_TO_CHANGE = (
    "total_steps",
    "logger",
    "checkpoint",
    "resume",
    "run",
    "callbacks",
    "imports",
    "devices",
    "distributed",
    "algo.total_steps",
)


def refuse_taken(folder: Path) -> None:
    """A :class:`UserError` if there is a training in a folder that a new one is meant for."""
    with writing.faults(folder):
        taken = [name for name in (CONFIG, METRICS, "checkpoints") if os.path.lexists(folder / name)]
    if taken and hosts.leads():
        with lock.held(folder):  # or another process is at work there: that is the answer then
            raise UserError(f"run.dir={folder}: holds a training already; {pasted('resume', folder)} goes on with it")


def write_config(plan: Plan) -> None:
    """``config.yaml``: what a resumed training goes by. From here on the folder holds a training."""
    if not hosts.leads():
        return
    saved = OmegaConf.create(OmegaConf.to_container(plan.settings, resolve=True))
    saved.callbacks = list(map(callbacks.absolute, plan.settings.callbacks))
    saved.updates_per_chunk, saved.rounds_per_chunk = plan.updates_per_chunk, plan.rounds_per_chunk
    saved.population = plan.rules and plan.rules.population
    saved.run.dir = str(plan.folder)
    writing.write(plan.folder / CONFIG, OmegaConf.to_yaml(saved))


def found_training(cfg: DictConfig, folder: Path | None, overrides: list[str]) -> str | None:
    """``resume=auto``: the folder of this command's training if that has begun; None if it has not."""
    if folder is None and not any(word.lstrip("+").startswith("run.dir=") for word in overrides):
        raise UserError(
            "resume=auto: needs run.dir=<folder>, the same every time; the default has the time in its name"
        )
    folder = Path(hosts.agree_on(str(folder or cfg.run.dir)))
    begun = bool(hosts.agree(np.int32((folder / CONFIG).exists())))
    return str(folder) if begun else None


def resumed_config(
    folder: Path, cfg: DictConfig, overrides: list[str], config_type: type, hypers_type: type
) -> DictConfig:
    """The configuration of the training in ``folder``, with those overrides that may change on the way."""
    saved = saved_settings(folder)
    if saved.file != cfg.file and saved.file and cfg.file:
        raise UserError(f"resume={folder}: is a training of baselines/{saved.file}.py, not of this file")
    saved = complete(folder, saved, config_type, hypers_type)
    for word in overrides:
        key = word.lstrip("+").split("=", 1)[0]
        if key.startswith(("hydra", "launcher")):
            continue
        value = OmegaConf.select(cfg, key)
        before = OmegaConf.select(saved, key)
        if key in ("runs_per_batch", "evaluation.objective") and value == "auto":
            continue  # stays as it was chosen
        if key in ("evolve", "env"):  # a name; words of their own change the settings under it
            name = "scheme" if key == "evolve" else "name"
            value, before = value[name], before[name]
            if value == before:
                continue
        if value != before and key.split(".")[0] not in FREE_TO_CHANGE:
            raise UserError(f"{word}: a resumed training cannot change this (it was {before}); start a new one instead")
        OmegaConf.update(saved, key, value)
    check_code(folder, saved, cfg, overrides)
    saved.algo.total_steps = saved.total_steps
    OmegaConf.update(saved, "resume", str(folder))
    return saved


def check_code(folder: Path, saved: DictConfig, cfg: DictConfig, overrides: list[str]) -> None:
    """Refuse code that only the folder names: a stranger may have written its configuration."""
    named = {word.lstrip("+").split("=", 1)[0] for word in overrides}
    words = list(saved.callbacks)
    if words and "callbacks" not in named and words != list(map(callbacks.absolute, cfg.callbacks)):
        listed = f"callbacks=[{','.join(words)}]"
        raise UserError(
            f"resume={folder}: was trained with {listed}, and a folder runs no code by itself; "
            "the same word names them again, callbacks=[] goes on without"
        )
    if saved.imports and "imports" not in named:
        listed = f"import=[{','.join(saved.imports)}]"
        raise UserError(
            f"resume={folder}: was trained with {listed}, and a folder runs no code by itself; "
            "the same word names them again, import=[] goes on without"
        )
    module = None if "env" in named else pettingzoo.own_module(saved.env.name)
    if module is not None:
        raise UserError(
            f"resume={folder}: its environment is your own module {module}, and a folder runs no code by itself; "
            f"env={saved.env.name} names it again"
        )


def most_bytes(plan: Plan) -> float:
    """No file of a checkpoint has more: twice the state of a batch, on as many devices as there may be."""
    state, _ = plan.shapes_of_one()
    return 2 * memory.state_need(state, 1).state * (plan.batch_size + MOST_DEVICES) + reading.FACTS


def standing(plan: Plan, records: Records) -> list[int]:
    """The chunks that each batch has behind it, by its newest whole checkpoint; the records are mended to fit.

    A training that has never come to a checkpoint begins. One that has lost its checkpoints is refused.
    """
    if not hosts.leads():
        return [0] * plan.batches
    writing.remove_partial(plan.folder)
    places = [checkpoint.batch_folder(plan.folder, batch) for batch in range(plan.batches)]
    most = most_bytes(plan) if any(map(checkpoint.chunks, places)) else math.inf
    found = [checkpoint.newest(place, most) for place in places]
    batches = []
    for batch, chunk in enumerate(found):
        runs, sealed = plan.batch_runs(batch), checkpoint.manifest(places[batch] / str(chunk)) if chunk else {}
        steps = (chunk or 0) * plan.steps_per_chunk
        batches.append(Begun(int(runs[0]), int(runs[-1]) + 1, steps, sealed.get("records", {})))
    unsaved = plan.settings.checkpoint.every * plan.steps_per_chunk
    for place, chunk, reach in zip(places, found, records.reach(batches), strict=True):
        finished = place == places[0] and (plan.folder / policies.FILE).exists()
        if chunk is None and (reach > unsaved or finished or checkpoint.chunks(place)):
            raise UserError(
                f"{plan.folder}: no checkpoint in {place} can be used, and records reach step {reach}; nothing is "
                "changed here; run.dir=<another folder> starts anew"
            )
    records.mend(batches)
    return [chunk or 0 for chunk in found]
