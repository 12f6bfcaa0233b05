"""``provenance.json``: the command, the versions and the machine that made a training."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from shoal.folder import reading, writing
from shoal.folder.layout import PROVENANCE

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "distrax",
    "flashbax",
    "jaxmarl",
    "brax",
    "numpy",
    "shoal",
)


def write_provenance(folder: Path, runs: int, env_steps: int, session: dict[str, Any]) -> None:
    """Write the file: how many runs of how many environment steps, and the figures of this ``session``."""
    import jax

    facts = {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "platform": platform.platform(),
        "devices": [str(device) for device in jax.devices()],
        "cores": os.cpu_count(),
        "runs": runs,
        "env_steps_per_run": env_steps,
        "session": session,
    }
    writing.write(folder / PROVENANCE, json.dumps(facts, indent=2))


def read_provenance(folder: Path) -> dict[str, Any]:
    """The facts that a training wrote; {} if the file is not what a training writes."""
    try:
        facts = reading.json_file(folder / PROVENANCE)
        numbers = [facts["runs"], facts["env_steps_per_run"], *facts["session"].values()]
        sound = all(number is None or (type(number) in (int, float) and 0 <= number < 2**63) for number in numbers)
        inner = [
            x for value in facts.values() for x in (value.values() if isinstance(value, dict) else np.ravel(value))
        ]
        flat = not any(isinstance(x, dict | list) for x in inner)
        devices = facts.get("devices", [])
        named = isinstance(devices, list) and all(isinstance(device, str) for device in devices)
        return facts if sound and flat and named and isinstance(facts.get("packages", {}), dict) else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
