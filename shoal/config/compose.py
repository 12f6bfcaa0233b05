"""Composing a configuration with Hydra: an algorithm file's recipe, and the words of a command line over it.

A mistake is answered by one line that names the field, the value and what is allowed.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import hydra
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from shoal import envs
from shoal.config.files import imported
from shoal.config.named import CONFIG_DIR, algorithms, module_of
from shoal.config.schemes import SCHEMES
from shoal.config.settings import LOGGERS, EnvChoice, Logger, check_settings, settings_schema
from shoal.config.words import as_text, nearest, one_line, readable, unknown
from shoal.errors import UserError
from shoal.folder import reading

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
COMMANDS = {"--run", "--multirun", "--cfg", "--info", "--shell-completion"}  # of which there is one at a time
RECIPE_FLAGS = {"--config-name": "name", "-cn": "name", "--config-dir": "dir", "-cd": "dir"}
MOST_JOBS = 10_000  # of a multirun


def register(config_type: type, hypers_type: type, name: str) -> None:
    """Tell Hydra of the schema and of every registered environment and logger."""
    OmegaConf.register_new_resolver("slug", lambda name: name.replace("/", "."), replace=True)
    schema = settings_schema(config_type, hypers_type, name)
    store = ConfigStore.instance()
    store.store(name="schema", node=schema)
    known = store.repo.get("env", {})  # what one call has stored stays for the next
    for name in envs.list():
        family, task = name.split("/")
        if f"{task}.yaml" not in known.get(family, {}):
            store.store(group=f"env/{family}", name=task, node=EnvChoice(name=name))
    for name, scheme in SCHEMES.items():
        store.store(group="evolve", name=name, node=scheme)
    for name in LOGGERS:
        store.store(group="logger", name=name, node=Logger(name=name))


def compose(recipe: str, overrides: list[str], config_dir: str) -> DictConfig:
    """A recipe with the words of a command line over it."""
    return _without_hydra(_compose(recipe, overrides, config_dir))


def _without_hydra(config: DictConfig) -> DictConfig:
    with read_write(config), open_dict(config):
        del config["hydra"]
    return config


def _compose(recipe: str, overrides: list[str], config_dir: str) -> DictConfig:
    """:func:`compose`, with Hydra's own settings as ``hydra``."""
    for name in (word.removeprefix("env=") for word in overrides if word.startswith("env=")):
        if envs.canonical(name) == name and name not in envs.list():  # of a family that has no list
            family, task = name.split("/")
            ConfigStore.instance().store(group=f"env/{family}", name=task, node=EnvChoice(name=name))
    with initialize_config_dir(version_base="1.3", config_dir=config_dir):
        return hydra.compose(recipe, [*overrides, SEARCH], return_hydra_config=True)


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


def _check_flags(kinds: set[str]) -> None:
    """Refuse flags that Hydra does not take together."""
    if len(kinds & COMMANDS) > 1:
        raise UserError(f"{' '.join(sorted(kinds & COMMANDS))}: only one of these at a time")
    if "--resolve" in kinds and not {"--cfg", "--help"} & kinds:
        raise UserError("--resolve: goes with --cfg or --help only")


class Command(NamedTuple):
    """A command line in which there is no mistake."""

    flags: list[str]  # Hydra's: -m, --cfg job
    words: list[str]  # name=value
    config: DictConfig  # what they make of the recipe; of several values of a word the first
    by_hydra: bool  # more is asked for than one training in this process: a multirun, a launcher, Hydra's callbacks


def check(argv: list[str], recipe: str, config_type: type, hypers_type: type, config_dir: str) -> Command:
    """Read a command line and compose its configuration; the first mistake in it raises a :class:`UserError`."""
    readable(argv)
    _check_recipe(recipe, config_dir)
    flags, given = _flags(argv)
    kinds = {SHORT.get(flag, flag).partition("=")[0] for flag in flags}
    _check_flags(kinds)
    given = [_canonical(word) for word in given]
    chosen = [word.removeprefix("evolve=") for word in given if word.startswith("evolve=")]
    schemes = [f"evolve={name.strip()}" for names in chosen for name in names.split(",")]
    _check_groups(schemes)
    words, trials = _read(given, bool(schemes), kinds)
    configs, by_hydra = [], bool(flags) or any(word.lstrip("+~").startswith("hydra") for word in words)
    for trial in trials:
        _check_algorithm(trial, recipe, config_dir)
        _check_groups(trial)
        try:
            config = _compose(recipe, trial, config_dir)
        except Exception as error:  # Hydra answers some words with errors of any kind
            known = set().union(*map(_known_keys, _defaults(recipe, schemes, config_dir)))
            for word in words:
                _check_key(parsed(word).key_or_group, known)
            raise UserError(one_line(error, trial)) from error
        by_hydra = by_hydra or _is_busy(config.hydra)
        configs.append(_without_hydra(config))
        if config.imports and not any(word.startswith("imports=") for word in words):
            raise UserError(f"imports={config.imports}: not in a recipe; import=<file.py> on the command line")
        try:
            check_settings(configs[-1], config_type, hypers_type)
        except OmegaConfBaseException as error:
            raise UserError(one_line(error, trial)) from error
    return Command(flags, words, configs[0], by_hydra)


def _is_busy(hydra: DictConfig) -> bool:
    """Whether a recipe has Hydra do anything around a training."""
    idle: dict[str, Any] = {"mode": None, "run.dir": ".", "output_subdir": None, "callbacks": {}}
    idle |= {"job.chdir": None, "job.env_set": {}, "job_logging.root": None, "hydra_logging.root": None}
    return any(OmegaConf.select(hydra, name) != value for name, value in idle.items())


def _defaults(recipe: str, schemes: list[str], config_dir: str) -> list[DictConfig]:
    """A recipe without the words of a command line, once for each scheme of evolution: these have different fields."""
    try:
        return [compose(recipe, words, config_dir) for words in ([[scheme] for scheme in schemes] or [[]])]
    except Exception as error:  # of Hydra, OmegaConf, YAML or the system
        raise UserError(_misfit(recipe, config_dir, error)) from error


def _read(given: list[str], evolves: bool, kinds: set[str]) -> tuple[list[str], list[list[str]]]:
    """The words as Hydra shall see them, and lists of them without multiple values: one for every value."""
    multirun = "--multirun" in kinds
    words, singles, variants = [], [], []
    goes_on = any(word.startswith("resume=") and word != "resume=auto" for word in given)
    for word in given:
        if goes_on and not evolves and word.startswith(("evolve.", "population=")):
            raise UserError(f"{word}: a resumed training cannot change this; start a new one instead")
        name = word.partition("=")[0]
        if name in PATHS and not multirun:
            word = as_text(word)
        override = parsed(word)
        key = override.key_or_group
        if name == "env.kwargs" or word.startswith(OPEN):
            word = f"++{word}"
        if override.package is not None or (override.is_delete() and not key.startswith(("hydra", *OPEN))):
            raise UserError(f"{word}: cannot be taken away or renamed; {key}=<value> changes it")
        words.append(word)
        if key == "launcher" and not {"--multirun", "--cfg"} & kinds:
            raise UserError(f"{word}: launches the jobs of a multirun (-m); without one, leave it out")
        if not override.is_sweep_override():
            if "/" in key and not isinstance(override.value(), str | list | None):
                raise UserError(f"{word}: must be a name")
            singles.append(word)
            continue
        if not multirun:
            raise UserError(f"{word}: several values of one setting need -m (Hydra's multirun)")
        options = _options(word, override)
        singles.append(options[0])
        variants += [(len(singles) - 1, option) for option in options[1:]]
    others = [[*singles[:position], option, *singles[position + 1 :]] for position, option in variants]
    return words, [singles, *others]


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
    """A word without Hydra's ``+``, unless it is about Hydra; names of environments in their one spelling.

    Recipes and folders go by that spelling.
    """
    if not word.lstrip("+").startswith("hydra"):
        word = word.lstrip("+")
    key, _, value = word.partition("=")
    if key != "env":
        return word
    return f"env={','.join(envs.canonical(name) or name for name in value.split(','))}"


def _check_key(key: str, known: set[str]) -> None:
    if key.startswith(("hydra.", "hydra/", *OPEN)) or key in known or key in GROUPS:
        return
    parent, _, leaf = key.rpartition(".")
    static = sorted(k for k in known if k.startswith("algo.") and k.endswith(f".{leaf}"))
    if parent == "sweep" and static:
        raise UserError(
            f"{key}: {leaf} is fixed when the program is compiled; sweep it with Hydra's multirun: -m {static[0]}=a,b"
        )
    if not any(k.startswith(f"{parent}.") for k in known):
        parent = ""
    siblings = sorted(k for k in known if k.rpartition(".")[0] == parent)
    same = [k for k in sorted(known) if k.endswith(f".{leaf}")][:1]
    hint = nearest(key, known) or (f"did you mean {same[0]}? " if same else "")
    raise UserError(
        f"{key}: no such setting; {hint}{parent or 'top level'} has {', '.join(s.split('.')[-1] for s in siblings)}"
    )


def composed(algorithm: str, words: list[str]) -> tuple[ModuleType, DictConfig]:
    """The file of a named algorithm and its configuration, checked as the command line's."""
    file = algorithms()[algorithm]
    module = module_of(file)
    recipe, words = Path(file).name, [f"algorithm={algorithm}", *imported(words)]
    register(module.Config, module.Hypers, name=recipe)
    return module, check(words, recipe, module.Config, module.Hypers, CONFIG_DIR).config


def _check_algorithm(words: list[str], recipe: str, config_dir: str) -> None:
    """Refuse the name of an algorithm that another file implements."""
    known = algorithms()
    for value in (word.removeprefix("algorithm=") for word in words if word.startswith("algorithm=")):
        if Path(known.get(value, "")).name == recipe:
            continue
        file = _defaults(recipe, [], config_dir)[0].file  # a recipe of the user's own says which file it is for
        if known.get(value) != file:
            here = ", ".join(name for name, other in known.items() if other == file) or "no named algorithms"
            where = f"; shoal {value} runs that" if value in known else ""
            raise UserError(f"algorithm={value}: this file has {here}{where}")


def _check_groups(words: list[str]) -> None:
    """Names of environments, loggers and launchers: Hydra's own message for these lists the whole search path."""
    for word in words:
        key, _, value = word.partition("=")
        if key == "env" and envs.canonical(value) is None:
            envs.make(value)  # raises, with the nearest names
        for group, names in (("logger", LOGGERS), ("evolve", tuple(SCHEMES))):
            if key == group and value not in names:
                raise UserError(f"{group}={value}: must be one of {', '.join(names)}")
        if key == "launcher":
            if value not in LAUNCHERS:
                raise UserError(f"launcher={value}: must be one of {', '.join(LAUNCHERS)}")
            if importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None:
                raise UserError(f"launcher={value}: needs hydra-submitit-launcher; pip install -e '.[launchers]'")


def _path_of(recipe: str, config_dir: str) -> Path:
    return Path(config_dir) / f"{recipe.removesuffix('.yaml')}.yaml"


def _check_recipe(recipe: str, config_dir: str) -> None:
    """Refuse a recipe that is no plain YAML: a stranger may have written it, and Hydra reads whatever is there."""
    path = _path_of(recipe, config_dir)
    if os.path.lexists(path) and not isinstance(reading.yaml_file(path, aliases=True), dict):
        raise UserError(f"{path}: is no recipe, which has a name and a value per line")


def _misfit(recipe: str, config_dir: str, error: Exception) -> str:
    """Why a recipe cannot be composed: it is not there, or was made for another file."""
    path = _path_of(recipe, config_dir)
    if not os.path.exists(path):
        return f"--config-name {recipe}: no {path.name} in {config_dir}"
    lines = str(error).splitlines() or [type(error).__name__]
    reason = " ".join(lines[:2]) if lines[0].endswith(":") else one_line(error)
    return f"{path}: is no recipe for this file ({reason})"


def chosen_recipe(argv: list[str]) -> tuple[list[str], dict[str, str]]:
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
