"""Multi-agent reinforcement learning in JAX. ``shoal.load(folder)`` opens what a training left behind.

Importing this imports nothing else. Each name is found when it is first used: ``shoal.cli.cores_as_devices`` must come
before JAX looks for devices, and tables of results need no JAX at all.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import baselines, envs, nn, rl
    from shoal.algorithm import Algorithm
    from shoal.cli import main
    from shoal.config.fields import hyper, setting
    from shoal.envs import Env, list, make, register
    from shoal.errors import UserError
    from shoal.loaded import Runs, load
    from shoal.run.callbacks import Callback

__all__ = [
    "Algorithm",
    "Callback",
    "Env",
    "Runs",
    "UserError",
    "baselines",
    "envs",
    "hyper",
    "list",
    "load",
    "main",
    "make",
    "nn",
    "register",
    "rl",
    "setting",
]
MODULES = {  # where each name is; names that are not here are modules themselves
    "Algorithm": "shoal.algorithm",
    "Callback": "shoal.run.callbacks",
    "Env": "shoal.envs",
    "Runs": "shoal.loaded",
    "UserError": "shoal.errors",
    "hyper": "shoal.config.fields",
    "list": "shoal.envs",
    "load": "shoal.loaded",
    "main": "shoal.cli",
    "make": "shoal.envs",
    "register": "shoal.envs",
    "setting": "shoal.config.fields",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(MODULES.get(name, f"shoal.{name}"))
    return getattr(module, name) if name in MODULES else module


def __dir__() -> Sequence[str]:
    return __all__
