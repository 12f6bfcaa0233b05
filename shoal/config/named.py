"""The named algorithms and where the recipes are. Nothing here needs JAX or Hydra."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import yaml

CONFIG_DIR = str((Path(__file__).parent.parent / "recipes").resolve())


def algorithms() -> dict[str, str]:
    """The named algorithms, each with its file: ``{"vdn": "qmix/qmix_rnn_mpe", ...}``."""
    paths = sorted((Path(CONFIG_DIR) / "algorithm").glob("*.yaml"))
    return {path.stem: str(yaml.safe_load(path.read_text())["file"]) for path in paths}


def module_of(file: str) -> ModuleType:
    """An algorithm file as a module: ``qmix/qmix_rnn_mpe`` is ``shoal.baselines.qmix.qmix_rnn_mpe``."""
    return importlib.import_module(f"shoal.baselines.{file.replace('/', '.')}")
