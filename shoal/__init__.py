"""Multi-agent reinforcement learning in JAX. ``shoal.load(folder)`` opens what a training left behind.

Importing this imports nothing else: ``shoal.cli.cores_as_devices`` must come before JAX looks for devices.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.cli import main
    from shoal.loaded import Runs, load

__all__ = ["Runs", "load", "main"]
MODULES = {"Runs": "shoal.loaded", "load": "shoal.loaded", "main": "shoal.cli"}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(importlib.import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
