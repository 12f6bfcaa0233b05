"""``provenance.json``: the command, the versions and the machine that made a training."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from shoal.folder import writing

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
    facts = {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "devices": [str(device) for device in jax.devices()],
        "cores": os.cpu_count(),
        "runs": runs,
        "env_steps_per_run": env_steps,
        "session": session,
    }
    writing.write(folder / "provenance.json", json.dumps(facts, indent=2))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
