"""The command line of an algorithm file, and what it changes in its process: devices, caches, the way it ends."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from hydra import main as hydra_main
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from shoal import streams
from shoal.config.compose import SEARCH, check, chosen_recipe, register
from shoal.config.files import import_file, import_named, imported
from shoal.config.named import CONFIG_DIR
from shoal.config.words import fail, one_line, pasted
from shoal.errors import Fault, UserError

if TYPE_CHECKING:
    from shoal.algorithm import Algorithm
    from shoal.run.callbacks import Callback


CORES_FLAG = "--xla_force_host_platform_device_count"
ADDRESS_SPACE = 1.9e9  # bytes that a small training takes up on two cores


def cores_as_devices() -> None:
    """Make every CPU core a device of its own. Works only before JAX has looked for devices; a set flag stays."""
    flags = os.environ.get("XLA_FLAGS", "")
    if CORES_FLAG not in flags:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ["XLA_FLAGS"] = f"{flags} {CORES_FLAG}={cores}".strip()


def check_address_space() -> None:
    """Refuse a limit under which XLA's threads would end the process without a word."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        raise Fault(f"the address space is limited to {limit / 1e9:.1f} GB (ulimit -v); JAX needs 2 GB at least")


def enable_compilation_cache() -> None:
    """Keep compiled programs between processes, unless the environment says where itself."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "shoal" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


class Job:
    """What Hydra runs. A launcher pickles it: what an algorithm file defines is then found by importing it again.

    Pickled by value, as things of a script would be, its classes are no longer those that JAX knows.
    """

    def __init__(self, kind: type[Algorithm], callbacks: Sequence[Callback | Callable]):
        self.kind, self.callbacks = kind, callbacks
        self.begun = False

    def __getstate__(self) -> dict[str, Any]:
        file = str(Path(sys.modules[self.kind.__module__].__file__ or "").absolute())
        return {"file": file, "name": self.kind.__name__, "callbacks": self.callbacks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.kind, self.callbacks = getattr(import_file(state["file"]), state["name"]), state["callbacks"]
        self.begun = False

    def __call__(self, cfg: DictConfig) -> None:
        """One training of those that Hydra starts."""
        multirun = HydraConfig.get().mode == RunMode.MULTIRUN
        folder = Path(HydraConfig.get().runtime.output_dir) if multirun else None
        self.train(cfg, list(HydraConfig.get().overrides.task), folder)

    def train(self, cfg: DictConfig, words: list[str], folder: Path | None = None) -> None:
        """Train what ``cfg`` says, composed with ``words``; ``folder`` replaces its ``run.dir``."""
        from shoal import training
        from shoal.run import hosts
        from shoal.run.signals import GO_ON, Stopped

        self.begun = True
        cores_as_devices()  # not before: a launcher's job may be on another machine than the command
        try:
            check_address_space()
            enable_compilation_cache()
            for name in cfg.imports:  # they are imported already, but in the process of a launcher
                import_named(name, "import=")
            with streams.guarded():
                training.run(self.kind, cfg, folder, words, self.callbacks)
        except UserError as error:
            fail(error)
        except Stopped:
            sys.exit(GO_ON)
        except KeyboardInterrupt:
            named = None if cfg.resume == "auto" else cfg.resume
            where = folder or named or cfg.run.dir
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


def main(kind: type[Algorithm], callbacks: Sequence[Callback | Callable] = ()) -> None:
    """The command line of an algorithm file: compose the recipe of the algorithm, check it, train.

    A YAML file with the script's name and in its folder goes before ``config/<recipe>.yaml``, so that a copied file can
    have a recipe of its own. ``callbacks`` are called before those of the command line.
    """
    recipe, config_type, hypers_type = kind.recipe, kind.Config, kind.Hypers
    script = Path(sys.argv[0]).absolute()
    config_dir = CONFIG_DIR
    if script.with_suffix(".yaml").exists():
        recipe, config_dir = script.stem, str(script.parent)
    given, chosen = chosen_recipe(sys.argv[1:])
    recipe, config_dir = chosen.get("name", recipe), chosen.get("dir", config_dir)
    try:
        argv = imported(given)
        register(config_type, hypers_type, name=script.stem)
        command = check(argv, recipe, config_type, hypers_type, config_dir)
    except UserError as error:
        fail(error)
    job = Job(kind, callbacks)
    if not command.by_hydra:
        job.train(command.config, command.words)
        return
    sys.argv[1:] = [*command.flags, *command.words, SEARCH]
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        hydra_main(version_base="1.3", config_path=config_dir, config_name=recipe)(job)()
    except Exception as error:  # Hydra answers some words with errors of any kind
        if job.begun:  # it is a fault of the training, or of a callback
            raise
        if isinstance(error, OSError):  # Hydra's own folders
            fail(error)
        line, words = one_line(error, argv), [word for word in argv if word.lstrip("+~").startswith(("hydra", "-"))]
        named = any(word.lstrip("+~").partition("=")[0] in line for word in words)
        fail(line if named else f"{' '.join(words)}: {line}")
