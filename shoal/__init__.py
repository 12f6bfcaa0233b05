"""Multi-agent reinforcement learning in JAX. ``shoal.load(folder)`` opens what a training left behind.

Importing this imports nothing else: ``sharding.cores_as_devices`` must come before JAX looks for devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.folder.load import Runs, load

__all__ = ["Runs", "load"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from shoal.folder import load

        return getattr(load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
