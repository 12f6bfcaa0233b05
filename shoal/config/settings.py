"""The settings that every training has, their dataclasses, and the check of a composed configuration."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from shoal.config.fields import limits, setting, validate, validate_fields
from shoal.config.schemes import SCHEMES
from shoal.config.words import one_line
from shoal.errors import UserError
from shoal.folder import layout, reading
from shoal.folder.layout import CONFIG

LOGGERS = ("none", "wandb", "wandb_offline", "tensorboard")
LOGGER_MODES = ("one", "per_seed")
SHARES = ("batch_share", "epoch_share", "learn_share")  # hypers that a switch turns on (shoal.rl.shares)
PRNGS = ("hash", "threefry")  # how a training's random numbers are made (envs.hashing)
MATMUL = ("default", "high", "highest", "bfloat16", "tensorfloat32", "float32")
SWEEP_MODES = ("grid", "zip", "random")
MOST_STEPS = 1e15  # environment steps of one run


@dataclasses.dataclass
class EnvChoice:
    name: str = MISSING
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)  # for envs.make: continuous, horizon, ...


@dataclasses.dataclass
class Evaluation:
    episodes: int = setting(32, low=1)  # per run and chunk; the absolute metric plays ten times as many
    greedy: bool = setting(True)  # the policy's mode rather than a sample
    objective: str = setting("auto")  # the metric that ranks, the higher the better; auto: the first team's return


@dataclasses.dataclass
class Checkpoint:
    every: int = setting(1, low=1)  # chunks between two checkpoints
    keep: int = setting(2, low=1)  # the newest ones stay


@dataclasses.dataclass
class Logger:
    name: str = setting("none", choices=LOGGERS)  # beside the files that are always written
    project: str = setting("shoal")  # wandb's project
    runs: int = setting(16, low=0)  # how many single runs are logged, beside their mean or each as wandb's own
    mode: str = setting("one", choices=LOGGER_MODES)  # one wandb run with a series per run, or a wandb run for each
    group: str = setting("")  # wandb's group; the folder's name if empty and the mode is per_seed
    tags: list[str] = dataclasses.field(default_factory=list)  # beside algorithm, environment and swept values
    entity: str | None = setting(None)  # wandb's team or user; none for your own


@dataclasses.dataclass
class Distributed:
    coordinator: str = setting("auto")  # host:port of the first process; auto: what srun says; none: this one is alone
    processes: int | None = setting(None, low=1)  # how many there are
    process: int | None = setting(None, low=0)  # which one this is
    timeout: int = setting(60, low=1)  # seconds until a process that has gone is missed
    patience: int = setting(300, low=1)  # seconds to wait for all to come


@dataclasses.dataclass
class Precision:
    activations: str = setting("float32", choices=("float32", "bfloat16"))  # what networks compute in
    matmul: str = setting("default", choices=MATMUL)  # jax_default_matmul_precision


@dataclasses.dataclass
class Run:
    dir: str = setting("runs/${recipe}/${slug:${env.name}}/${now:%Y-%m-%d_%H-%M-%S}")  # the folder left behind


@dataclasses.dataclass
class Settings:
    """What the runner is told; ``algo``, ``hypers`` and ``sweep`` get their fields from the algorithm file."""

    recipe: str = MISSING  # the algorithm file's name, which folders carry
    file: str = ""  # the algorithm file that a named algorithm is made with: config/algorithm/<name>.yaml
    algorithm: str = ""  # the name that reports carry (a copied file's own name is used instead)
    env: EnvChoice = dataclasses.field(default_factory=EnvChoice)
    algo: Any = MISSING
    hypers: Any = MISSING
    sweep: Any = MISSING
    evolve: Any = dataclasses.field(default_factory=lambda: {"scheme": "none"})  # shoal.config.schemes
    population: int | None = setting(None, low=1)  # members that evolve together; none for 32
    seeds: int = setting(1, low=1)  # runs per point of the sweep; with evolution, populations
    seed: int = setting(0, low=0, high=2**31 - 1)  # the first seed
    total_steps: float = setting(1e6, low=1, high=MOST_STEPS)  # environment steps of one run
    prng: str = setting("hash", choices=PRNGS)  # of random numbers: hashes for keys, weights and shuffles, or for none
    chunks: int = setting(20, low=1)  # training is cut into so many; each ends with an evaluation
    runs_per_batch: int | str | None = setting(None, low=1, words=("auto",))  # at once; none for all, auto to fit
    learners: int = setting(1, low=1)  # of one run: shares of its environments and batches, a device each if there are
    devices: int | str = setting("all", low=1, words=("all",))  # that this process uses
    distributed: Distributed = dataclasses.field(default_factory=Distributed)
    precision: Precision = dataclasses.field(default_factory=Precision)
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
    logger: Logger = dataclasses.field(default_factory=Logger)
    run: Run = dataclasses.field(default_factory=Run)
    resume: str | None = setting(None)  # the folder of a training to go on with; auto: run.dir, if it holds one
    callbacks: list[str] = dataclasses.field(default_factory=list)  # file.py:Name, package.module:Name
    imports: list[str] = dataclasses.field(default_factory=list)  # modules that import= names: file.py, package.module


def sweep_schema(hypers_type: type) -> type:
    """How points are made (``folder.layout.SWEEP_FIELDS``), and one open field per hyperparameter."""
    own: list[tuple[str, Any, Any]] = [
        ("mode", str, setting("grid", choices=SWEEP_MODES)),
        ("num", int, setting(10, low=1)),
        ("seed", int, setting(0, low=0)),
        ("paired", bool, setting(True)),  # a seed has the same first weights and luck at every point; false: its own
    ]
    names = [(f.name, Any, dataclasses.field(default=None)) for f in dataclasses.fields(hypers_type)]
    return dataclasses.make_dataclass("Sweep", own + names)


def settings_schema(config_type: type, hypers_type: type, name: str) -> DictConfig:
    """All settings of an algorithm file, with their types and defaults."""
    plain_hypers = dataclasses.make_dataclass(
        "Hypers", [(f.name, float, setting(f.default, **limits(f))) for f in dataclasses.fields(hypers_type)]
    )
    algo_node = OmegaConf.structured(config_type)
    for node in (algo_node, *algo_node.values()):  # Config is frozen; its overrides are not
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, False)
    algo_node.total_steps = "${total_steps}"
    schema = OmegaConf.structured(Settings(recipe=name))
    schema.algo, schema.hypers = algo_node, OmegaConf.structured(plain_hypers)
    schema.sweep = OmegaConf.structured(sweep_schema(hypers_type))
    return schema


def build(node: DictConfig, prefix: str, schema: type) -> Any:
    """The dataclass ``schema`` from its part of the composed configuration, validated."""
    values = {}
    for field in dataclasses.fields(schema):
        if field.name not in node:  # a folder of before it was a setting
            continue
        value = node[field.name]
        schema_of = type(field.default_factory()) if callable(field.default_factory) else type(None)
        if isinstance(value, DictConfig) and dataclasses.is_dataclass(schema_of):
            value = build(value, f"{prefix}{field.name}.", schema_of)
        elif isinstance(value, ListConfig):
            value = tuple(value)
        validate(prefix, value, field)
        values[field.name] = value
    return schema(**values)


def check_settings(cfg: DictConfig, config_type: type, hypers_type: type) -> None:
    """Every value of a composed configuration is one that is allowed."""
    for name in ("env", "algo", "hypers", "sweep", "evolve"):
        if not isinstance(cfg[name], DictConfig):
            raise UserError(f"{name}={cfg[name]}: has settings; {name}.<setting>=<value> changes one")
    for key in sorted(OmegaConf.missing_keys(cfg)):
        raise UserError(f"{key}=???: needs a value")
    build(cfg.algo, "algo.", config_type)
    build(cfg.hypers, "hypers.", hypers_type)
    for field in dataclasses.fields(Settings):
        if field.name in ("env", "algo", "hypers", "sweep", "recipe", "file", "algorithm", "evolve"):
            continue
        value = cfg[field.name]
        if isinstance(value, DictConfig):
            validate_fields(f"{field.name}.", value, type(field.default_factory()))  # type: ignore[operator, misc]
        else:
            validate("", value, field)
    sweep = cfg.sweep
    validate_fields("sweep.", sweep, sweep_schema(hypers_type))
    scheme = SCHEMES.get(cfg.evolve.scheme)
    names = {field.name for field in dataclasses.fields(scheme)} if scheme else set()
    others = ", ".join(name for name in SCHEMES if name != "none")
    unused = sorted(set(cfg.evolve) - names)
    if cfg.evolve.scheme == "none" and unused and "rounds" not in cfg.evolve:
        raise UserError(f"evolve.{unused[0]}: needs evolution; evolve is one of {others}")
    if scheme is None or not names >= set(cfg.evolve) or ("rounds" in names) != ("rounds" in cfg.evolve):
        raise UserError(f"evolve.scheme={cfg.evolve.scheme}: is chosen by evolve={cfg.evolve.scheme}")
    build(cfg.evolve, "evolve.", scheme)
    if cfg.evolve.scheme == "none" and cfg.population is not None:
        raise UserError(f"population={cfg.population}: needs evolution; evolve is one of {others}")
    evolved = cfg.evolve.get("hypers")
    for name in SHARES:
        evolving = name in evolved if isinstance(evolved, DictConfig | ListConfig) else name == evolved
        used = name in cfg.hypers and (cfg.hypers[name] != 1 or sweep.get(name) is not None or evolving)
        if used and not cfg.algo.get("elastic_batches"):
            where = "evolve.hypers" if evolving else "hypers" if sweep.get(name) is None else "sweep"
            value = "" if evolving else f"={cfg[where][name]}"
            raise UserError(f"{where}.{name}{value}: counts only with algo.elastic_batches=true")


def saved_settings(folder: Path) -> DictConfig:
    """What the ``config.yaml`` of a folder says."""
    path = folder / CONFIG
    if not os.path.exists(path):  # nor is a name that is too long
        raise UserError(f"{folder}: no config.yaml there; name the folder that a training left behind")
    return OmegaConf.create(reading.settings(path))


def complete(folder: Path, saved: DictConfig, config_type: type, hypers_type: type) -> DictConfig:
    """The configuration that a folder holds, checked; what has since become a setting is at its default.

    Settings that are no longer there stay, as names without a meaning.
    """
    schema = settings_schema(config_type, hypers_type, "")
    schema.run.dir = ""
    schema.evaluation.objective = layout.objective_of(saved)
    try:
        scheme = SCHEMES.get(str(OmegaConf.select(saved, "evolve.scheme", default="none")))
        schema.evolve = OmegaConf.structured(scheme or SCHEMES["none"])
        for node in (schema, *schema.values(), *schema.algo.values()):
            if isinstance(node, DictConfig):
                OmegaConf.set_struct(node, False)
        settings = OmegaConf.merge(schema, saved)
        assert isinstance(settings, DictConfig)
        check_settings(settings, config_type, hypers_type)
    except OmegaConfBaseException as error:
        raise UserError(f"{folder}/config.yaml: {one_line(error)}") from error
    except UserError as error:
        raise UserError(f"{folder}/config.yaml: {error}") from error
    return settings
