"""Typed configuration: what the command line accepts, checked before anything compiles.

An algorithm file declares two dataclasses, ``Config`` (static) and ``Hypers`` (traced); :func:`main` makes them and
the runner's own settings one Hydra schema, composes the file's recipe over it and hands the result to the runner.
A mistake is answered by one line that names the field, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flax import struct
from hydra import compose, initialize_config_dir
from hydra import main as hydra_main
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from shoal import envs
from shoal.config.files import import_file
from shoal.config.words import as_text, fail, nearest, pasted, readable, unknown
from shoal.errors import UserError
from shoal.folder import reading, records

if TYPE_CHECKING:
    from shoal.run.callbacks import Callback

CONFIG_DIR = str((Path(__file__).parent.parent / "recipes").resolve())
SEARCH = f"hydra.searchpath=[file://{CONFIG_DIR}]"  # for a recipe that lies elsewhere
OPEN = ("env.kwargs.", "evolve.hypers.")  # settings with names of their own
PATHS = ("run.dir", "resume")  # which may have any letters, also those of Hydra's grammar
GROUPS = ("env", "logger", "algorithm", "evolve", "launcher")  # what is chosen by a name
LAUNCHERS = ("slurm", "local")  # config/launcher
FLAGS_WITH_VALUE: dict[str, tuple[str, ...]] = {  # Hydra's own, such as `--cfg job`; () for anything
    "--cfg": ("job", "hydra", "all"),
    "--package": (),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}
SHORT = {"-c": "--cfg", "-p": "--package", "-i": "--info", "-m": "--multirun", "-r": "--run", "-h": "--help"}
FLAGS = ("--help", "--hydra-help", "--version", "--resolve", "--run", "--multirun", "--shell-completion")
RECIPE_FLAGS = {"--config-name": "name", "-cn": "name", "--config-dir": "dir", "-cd": "dir"}
LOGGERS = ("none", "wandb", "wandb_offline", "tensorboard")
SHARES = ("batch_share", "epoch_share", "learn_share")  # hypers that a switch turns on (shoal.rl.shares)
LOGGER_MODES = ("one", "per_seed")
PRNGS = ("hash", "threefry")  # how a training's random numbers are made (envs.hashing)
MATMUL = ("default", "high", "highest", "bfloat16", "tensorfloat32", "float32")
INT32, FLOAT32 = 2**31 - 1, 3.4028235e38  # the largest numbers that a compiled program holds
MOST_STEPS = 1e15  # environment steps of one run
MOST_JOBS = 10_000  # of a multirun


Choices = tuple[str, ...] | Callable[[], tuple[str, ...]]


def setting(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Choices = (),
    words: tuple[str, ...] = (),
) -> Any:
    """A field of a static configuration, and what it may be; a dataclass as ``default`` has fields of its own.

    ``words`` may stand in a number's place.
    """
    metadata = {"low": low, "high": high, "choices": choices, "words": words}
    if isinstance(default, tuple) or dataclasses.is_dataclass(default):  # OmegaConf reads lists into tuples
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def hyper(default: float, *, low: float | None = None, high: float | None = None) -> Any:
    """A traced number: it may differ between the runs of one program, and ``sweep.<name>`` varies it."""
    return struct.field(default=default, metadata={"low": low, "high": high, "choices": ()})


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
    evolve: Any = dataclasses.field(default_factory=lambda: {"scheme": "none"})  # shoal.evolve.schemes
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


SWEEP_MODES = ("grid", "zip", "random")


def sweep_schema(hypers_type: type) -> type:
    """How points are made (``records.SWEEP_FIELDS``), and one open field per hyperparameter."""
    own: list[tuple[str, Any, Any]] = [
        ("mode", str, setting("grid", choices=SWEEP_MODES)),
        ("num", int, setting(10, low=1)),
        ("seed", int, setting(0, low=0)),
        ("paired", bool, setting(True)),  # a seed has the same first weights and luck at every point; false: its own
    ]
    names = [(f.name, Any, dataclasses.field(default=None)) for f in dataclasses.fields(hypers_type)]
    return dataclasses.make_dataclass("Sweep", own + names)


def _register_schema(config_type: type, hypers_type: type, name: str) -> None:
    """Tell Hydra of the schema and of every registered environment and logger."""
    OmegaConf.register_new_resolver("slug", lambda name: name.replace("/", "."), replace=True)
    schema = _schema(config_type, hypers_type, name)
    store = ConfigStore.instance()
    store.store(name="schema", node=schema)
    for name in envs.list():
        family, task = name.split("/")
        store.store(group=f"env/{family}", name=task, node=EnvChoice(name=name))
    for name, scheme in _schemes().items():
        store.store(group="evolve", name=name, node=scheme)
    for name in LOGGERS:
        store.store(group="logger", name=name, node=Logger(name=name))


def _schema(config_type: type, hypers_type: type, name: str) -> DictConfig:
    """All settings of an algorithm file, with their types and defaults."""
    plain_hypers = dataclasses.make_dataclass(
        "Hypers", [(f.name, float, setting(f.default, **_limits(f))) for f in dataclasses.fields(hypers_type)]
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


def _schemes() -> dict[str, type]:
    from shoal.evolve.schemes import SCHEMES  # which declares its settings with what is here

    return SCHEMES


def _limits(field: dataclasses.Field) -> dict[str, Any]:
    limits = {key: field.metadata.get(key) for key in ("low", "high")} | {"words": field.metadata.get("words", ())}
    choices = field.metadata.get("choices", ())
    return limits | {"choices": choices() if callable(choices) else choices}


def validate(prefix: str, value: Any, field: dataclasses.Field) -> None:
    """Raise a :class:`UserError` if ``value`` is not one that ``field`` may have."""
    limits = _limits(field)
    name = f"{prefix}{field.name}"
    if limits["choices"] and value not in limits["choices"]:
        raise UserError(f"{name}={value}: must be one of {', '.join(limits['choices'])}")
    if limits["words"] and isinstance(value, str) and value not in limits["words"]:
        raise UserError(f"{name}={value}: must be a whole number or {' or '.join(limits['words'])}")
    for number in value if isinstance(value, list | tuple) else [value]:
        if field.type in ("tuple[int, ...]", "tuple[float, ...]") and (
            isinstance(number, bool) or not isinstance(number, int | float)
        ):
            raise UserError(f"{name}={list(value)}: must be a list of numbers, [a,b]")
        if isinstance(number, float) and not math.isfinite(number):
            raise UserError(f"{name}={number}: must be a finite number")
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        low, high = limits["low"], limits["high"]
        most = INT32 if isinstance(number, int) else FLOAT32  # what compiled programs hold
        if low is not None and high is None and number < low:
            raise UserError(f"{name}={_short(number)}: must be at least {_short(low)}")
        low, high = -most if low is None else low, most if high is None else high
        if not low <= number <= high:
            raise UserError(f"{name}={_short(number)}: must be in [{_short(low)}, {_short(high)}]")


def _short(number: float) -> str:
    """A number to be read: whole ones in full, unless they are very long."""
    if isinstance(number, float):
        return f"{number:g}"
    return str(number) if abs(number) < 10**20 else f"{str(number)[:10]}... ({len(str(number))} digits)"


def validate_fields(prefix: str, node: Any, schema: type) -> None:
    """:func:`validate` every field of a dataclass, given its values."""
    for field in dataclasses.fields(schema):
        value = node.get(field.name) if isinstance(node, DictConfig | dict) else getattr(node, field.name)
        validate(prefix, value, field)


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
    scheme = _schemes().get(cfg.evolve.scheme)
    names = {field.name for field in dataclasses.fields(scheme)} if scheme else set()
    if scheme is None or not names >= set(cfg.evolve) or ("rounds" in names) != ("rounds" in cfg.evolve):
        raise UserError(f"evolve.scheme={cfg.evolve.scheme}: is chosen by evolve={cfg.evolve.scheme}")
    build(cfg.evolve, "evolve.", scheme)
    if cfg.evolve.scheme == "none" and cfg.population is not None:
        others = ", ".join(name for name in _schemes() if name != "none")
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
    path = folder / "config.yaml"
    if not os.path.exists(path):  # nor is a name that is too long
        raise UserError(f"{folder}: no config.yaml there; name the folder that a training left behind")
    return OmegaConf.create(reading.settings(path))


def complete(folder: Path, saved: DictConfig, config_type: type, hypers_type: type) -> DictConfig:
    """The configuration that a folder holds, checked; what has since become a setting is at its default.

    Settings that are no longer there stay, as names without a meaning.
    """
    schema = _schema(config_type, hypers_type, "")
    schema.run.dir = ""
    schema.evaluation.objective = records.objective_of(saved)
    try:
        scheme = _schemes().get(str(OmegaConf.select(saved, "evolve.scheme", default="none")))
        schema.evolve = OmegaConf.structured(scheme or _schemes()["none"])
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


def _compose(recipe: str, overrides: list[str], config_dir: str) -> DictConfig:
    for name in (word.removeprefix("env=") for word in overrides if word.startswith("env=")):
        if envs.canonical(name) == name and name not in envs.list():  # of a family that has no list
            family, task = name.split("/")
            ConfigStore.instance().store(group=f"env/{family}", name=task, node=EnvChoice(name=name))
    with initialize_config_dir(version_base="1.3", config_dir=config_dir):
        return compose(recipe, [*overrides, SEARCH])


def _known_keys(node: Any, prefix: str = "") -> set[str]:
    keys = set()
    if isinstance(node, DictConfig):
        for name in map(str, node):
            keys |= {prefix + name} | _known_keys(node._get_node(name), f"{prefix}{name}.")
    return keys


def _flags(argv: list[str]) -> tuple[list[str], list[str]]:
    """Hydra's flags with their values, and all other words."""
    flags, words, rest = [], [], iter(argv)
    for word in rest:
        name, equals, value = word.partition("=")
        name = SHORT.get(name, name)
        if not word.startswith("-"):
            words.append(word)
        elif name in FLAGS_WITH_VALUE:
            value = value if equals else next(rest, "")
            if value not in (FLAGS_WITH_VALUE[name] or (value,)):
                raise UserError(f"{name} {value}: must be one of {', '.join(FLAGS_WITH_VALUE[name])}")
            flags += [word] if equals else [word, value]
        elif word in (*FLAGS, *SHORT):
            flags.append(word)
        else:
            raise unknown(word, (*FLAGS, *FLAGS_WITH_VALUE, *RECIPE_FLAGS, *SHORT))
    return flags, words


def check_overrides(argv: list[str], recipe: str, config_type: type, hypers_type: type, config_dir: str) -> list[str]:
    """The command line as Hydra shall see it, after every mistake in it has been answered by a :class:`UserError`."""
    readable(argv)
    flags, words = _flags(argv)
    kinds = {SHORT.get(flag, flag).partition("=")[0] for flag in flags}
    words = [_canonical(word) for word in words]
    evolve = [word.removeprefix("evolve=") for word in words if word.startswith("evolve=")]
    schemes = [f"evolve={name.strip()}" for names in evolve for name in names.split(",")]
    _check_groups(schemes, "")
    try:  # a scheme of evolution has settings of its own; a multirun may have several
        recipes = [_compose(recipe, scheme, config_dir) for scheme in ([[name] for name in schemes] or [[]])]
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_misfit(recipe, config_dir, error)) from error
    defaults, known = recipes[0], set().union(*map(_known_keys, recipes))
    checked, singles, variants = [], [], []
    goes_on = any(word.startswith("resume=") and word != "resume=auto" for word in words)
    for word in words:
        if goes_on and not schemes and word.startswith(("evolve.", "population=")):
            raise UserError(f"{word}: a resumed training cannot change this; start a new one instead")
        name = word.partition("=")[0]
        if name in PATHS and "--multirun" not in kinds:
            word = as_text(word)
        override = parsed(word)
        if name == "env.kwargs" or word.startswith(OPEN):
            word = f"++{word}"
        key = override.key_or_group
        _check_key(key, known, hypers_type)
        if override.package is not None or (override.is_delete() and not key.startswith(("hydra", *OPEN))):
            raise UserError(f"{word}: cannot be taken away or renamed; {key}=<value> changes it")
        checked.append(word)
        if key == "launcher" and not {"--multirun", "--cfg"} & kinds:
            raise UserError(f"{word}: launches the jobs of a multirun (-m); without one, leave it out")
        if override.is_sweep_override():
            if "--multirun" not in kinds:
                raise UserError(f"{word}: several values of one setting need -m (Hydra's multirun)")
            options = _options(word, override)
            singles.append(options[0])
            variants += [(len(singles) - 1, option) for option in options[1:]]
        else:
            singles.append(word)
    for position, option in [(None, ""), *variants]:
        trial = [option if i == position else word for i, word in enumerate(singles)]
        _check_groups(trial, defaults.file)
        try:
            cfg = _compose(recipe, trial, config_dir)
        except Exception as error:  # Hydra answers some words with errors of any kind
            raise UserError(one_line(error, trial)) from error
        try:
            check_settings(cfg, config_type, hypers_type)
        except OmegaConfBaseException as error:
            raise UserError(one_line(error, trial)) from error
    return flags + checked


def parsed(word: str) -> Override:
    """A word of the command line as Hydra's grammar reads it."""
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except Exception as error:  # Hydra's grammar has functions, which may be given anything
        raise UserError(f"{word or repr(word)}: cannot be read; write name=value, lists as [a,b]") from error


def _options(word: str, override: Override) -> list[str]:
    """The single settings that a word with several values stands for."""
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1))
    except Exception as error:  # Hydra's grammar has more kinds of sweeps than a multirun can launch
        raise UserError(f"{word}: cannot be read; write name=a,b") from error
    if not 0 < len(values) <= MOST_JOBS:
        raise UserError(f"{word}: must be between 1 and {MOST_JOBS} values")
    return [f"{override.key_or_group}={value}" for value in values]


def _canonical(word: str) -> str:
    """A word for a group without Hydra's ``+``, and names of environments in their one spelling.

    Recipes and folders go by that spelling.
    """
    key, _, value = word.partition("=")
    if key.lstrip("+") in GROUPS:
        key, word = key.lstrip("+"), word.lstrip("+")
    if key != "env":
        return word
    return f"env={','.join(envs.canonical(name) or name for name in value.split(','))}"


def _check_key(key: str, known: set[str], hypers_type: type) -> None:
    if key.startswith(("hydra.", "hydra/", *OPEN)) or key in known or key in GROUPS:
        return
    parent, _, leaf = key.rpartition(".")
    static = sorted(k for k in known if k.startswith("algo.") and k.endswith(f".{leaf}"))
    if parent == "sweep" and static:
        raise UserError(
            f"{key}: {leaf} is fixed when the program is compiled; sweep it with Hydra's multirun: -m {static[0]}=a,b"
        )
    siblings = sorted(k for k in known if k.rpartition(".")[0] == parent) or sorted(k for k in known if "." not in k)
    same = [k for k in sorted(known) if k.endswith(f".{leaf}")][:1]
    hint = nearest(key, known) or (f"did you mean {same[0]}? " if same else "")
    raise UserError(
        f"{key}: no such setting; {hint}{parent or 'top level'} has {', '.join(s.split('.')[-1] for s in siblings)}"
    )


def algorithms() -> dict[str, str]:
    """The named algorithms, each with its file: ``{"vdn": "qmix/qmix_rnn_mpe", ...}``."""
    folder = Path(CONFIG_DIR) / "algorithm"
    return {path.stem: str(OmegaConf.load(path).file) for path in sorted(folder.glob("*.yaml"))}


def composed(algorithm: str, words: list[str]) -> tuple[ModuleType, DictConfig]:
    """The file of a named algorithm and its configuration, checked as the command line's."""
    file = algorithms()[algorithm]
    module = importlib.import_module(f"shoal.baselines.{file.replace('/', '.')}")
    recipe, words = Path(file).name, [f"algorithm={algorithm}", *words]
    _register_schema(module.Config, module.Hypers, name=recipe)
    checked = check_overrides(words, recipe, module.Config, module.Hypers, CONFIG_DIR)
    return module, _compose(recipe, checked, CONFIG_DIR)


def _check_groups(words: list[str], file: str) -> None:
    """Names of algorithms, environments and loggers: Hydra's own message for these lists the whole search path."""
    for word in words:
        key, _, value = word.partition("=")
        if key == "algorithm" and algorithms().get(value) != file:
            known = algorithms()
            here = ", ".join(name for name, other in known.items() if other == file) or "no named algorithms"
            where = f"; python -m shoal {value} runs that" if value in known else ""
            raise UserError(f"algorithm={value}: this file has {here}{where}")
        if key == "env" and envs.canonical(value) is None:
            envs.make(value)  # raises, with the nearest names
        for group, names in (("logger", LOGGERS), ("evolve", tuple(_schemes()))):
            if key == group and value not in names:
                raise UserError(f"{group}={value}: must be one of {', '.join(names)}")
        if key == "launcher":
            if value not in LAUNCHERS:
                raise UserError(f"launcher={value}: must be one of {', '.join(LAUNCHERS)}")
            if importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None:
                raise UserError(f"launcher={value}: needs hydra-submitit-launcher; pip install -e '.[launchers]'")


def one_line(error: Exception, words: list[str] | None = None) -> str:
    """Hydra's and OmegaConf's messages as ``field=value: what is wrong``."""
    cause: BaseException = error
    key = getattr(cause, "full_key", None) or ""
    while cause.__cause__ is not None:
        cause = cause.__cause__
        key = getattr(cause, "full_key", None) or key
    said = [w.split("=", 1)[1] for w in words or [] if w.lstrip("+").startswith(f"{key}=")]
    value = said[-1] if said else None  # of a name that is given twice the last counts
    text = (str(cause).splitlines() or [type(cause).__name__])[0]
    if "is not a ListConfig" in text:
        text = "must be a list, [a,b]"
    kinds = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
    for kind, allowed in kinds.items():
        if f"converted to {kind}" in text or (kind == "Boolean" and "valid bool" in text):
            text = f"must be {allowed}"
    if key and value is not None:
        return f"{key}={value}: {text}"
    return f"{key}: {text}" if key else text


def _misfit(recipe: str, config_dir: str, error: Exception) -> str:
    """Why a recipe cannot be composed: it is not there, or was made for another file."""
    path = Path(config_dir) / f"{recipe.removesuffix('.yaml')}.yaml"
    if not path.exists():
        return f"--config-name {recipe}: no {path.name} in {config_dir}"
    lines = str(error).splitlines()
    reason = " ".join(lines[:2]) if lines[0].endswith(":") else one_line(error)
    return f"{path}: is no recipe for this file ({reason})"


def _chosen_recipe(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command line without Hydra's ``--config-name`` and ``--config-dir``, and what these say."""
    rest, chosen = [], {}
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in RECIPE_FLAGS:
            value = value if equals else next(words, "")
            chosen[RECIPE_FLAGS[flag]] = str(Path(value).absolute()) if RECIPE_FLAGS[flag] == "dir" else value
        else:
            rest.append(word)
    return rest, chosen


class Job:
    """What Hydra runs. A launcher pickles it: what an algorithm file defines is then found by importing it again.

    Pickled by value, as things of a script would be, its classes are no longer those that JAX knows.
    """

    def __init__(self, make: Callable, config_type: type, hypers_type: type, callbacks: Sequence[Callback | Callable]):
        self.parts, self.callbacks = (make, config_type, hypers_type), callbacks
        self.begun = False

    def __getstate__(self) -> dict[str, Any]:
        file = str(Path(sys.modules[self.parts[0].__module__].__file__ or "").absolute())
        return {"file": file, "names": [part.__name__ for part in self.parts], "callbacks": self.callbacks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        module = import_file(state["file"])
        make, config_type, hypers_type = (getattr(module, name) for name in state["names"])
        self.parts, self.callbacks = (make, config_type, hypers_type), state["callbacks"]
        self.begun = False

    def __call__(self, cfg: DictConfig) -> None:
        import jax

        from shoal.run import hosts, progress, runner, sharding

        self.begun = True
        sharding.cores_as_devices()  # not before: a launcher's job may be on another machine than the command
        multirun = HydraConfig.get().mode == RunMode.MULTIRUN
        folder = Path(HydraConfig.get().runtime.output_dir) if multirun else None
        try:
            overrides = list(HydraConfig.get().overrides.task)
            with progress.guarded():
                runner.run(*self.parts, cfg, folder, overrides, self.callbacks)
        except UserError as error:
            fail(error)
        except runner.Stopped:
            sys.exit(runner.GO_ON)
        except KeyboardInterrupt:
            where = folder or cfg.resume or cfg.run.dir
            print(
                f"stopped at once; {pasted('resume', where)} goes on from the last checkpoint, if there is one",
                file=sys.stderr,
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + signal.SIGINT)  # an ordinary end would wait for the chunk under way
        except jax.errors.JaxRuntimeError as error:
            if hosts.count() == 1:
                raise
            hosts.give_up(error)


def main(
    make: Callable, config_type: type, hypers_type: type, recipe: str, callbacks: Sequence[Callback | Callable] = ()
) -> None:
    """The command line of an algorithm file: compose the recipe, check it, train.

    ``recipe`` names ``config/<recipe>.yaml``. A YAML file named like the script and lying beside it goes before that,
    so that a copied file can have a recipe of its own. ``callbacks`` go before those of the command line.
    """
    script = Path(sys.argv[0]).absolute()
    config_dir = CONFIG_DIR
    if script.with_suffix(".yaml").exists():
        recipe, config_dir = script.stem, str(script.parent)
    argv, chosen = _chosen_recipe(sys.argv[1:])
    recipe, config_dir = chosen.get("name", recipe), chosen.get("dir", config_dir)
    try:
        _register_schema(config_type, hypers_type, name=script.stem)
        argv = check_overrides(argv, recipe, config_type, hypers_type, config_dir)
    except UserError as error:
        fail(error)
    sys.argv[1:] = [*argv, SEARCH]
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    job = Job(make, config_type, hypers_type, callbacks)
    try:
        hydra_main(version_base="1.3", config_path=config_dir, config_name=recipe)(job)()
    except (HydraException, OmegaConfBaseException) as error:
        if job.begun:  # it is a fault of the training, or of a callback
            raise
        fail(one_line(error, argv))
