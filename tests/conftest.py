"""Shared by all tests: cores as devices, one compilation cache, and the command line as a function."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# All of this before JAX is imported. Small programs run for milliseconds: compiling them fast is what counts, and the
# older way to emit fused loops takes a third of the newer one's time.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "shoal-test-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("WANDB_MODE", "offline")

from shoal.cli import cores_as_devices

cores_as_devices()
ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "baselines" / "ippo" / "ippo_ff_mpe.py"
# A training that compiles and ends in seconds: eight updates of 4 x 8 steps.
SMALL = [
    "total_steps=256",
    "chunks=4",
    "seeds=2",
    "algo.num_envs=4",
    "algo.rollout_length=8",
    "algo.epochs=2",
    "algo.minibatches=2",
    "algo.actor.widths=[8]",
    "algo.critic.widths=[8]",
    "evaluation.episodes=2",
]


@pytest.fixture
def train(monkeypatch, tmp_path):
    """``train(*words, dir=...)``: the command line in this process; returns the folder that it leaves behind."""
    from shoal.algorithm import algorithm_in
    from shoal.baselines.ippo import ippo_ff_mpe
    from shoal.cli import main

    def call(*words: str, folder: Path | None = None, small: bool = True, module=ippo_ff_mpe, callbacks=()) -> Path:
        folder = folder or tmp_path / f"run_{len(list(tmp_path.iterdir()))}"
        place = [] if any(word.startswith(("resume=", "-m")) for word in words) else [f"run.dir={folder}"]
        script = Path(module.__file__)
        monkeypatch.setattr(sys, "argv", [str(script), *(SMALL if small else []), *words, *place])
        main(algorithm_in(module), callbacks=callbacks)
        return folder

    return call


@pytest.fixture
def shell():
    """``shell(script, *words)``: the command line as a process of its own."""

    def call(script: Path, *words: str, timeout: float = 300, **kwargs) -> subprocess.CompletedProcess:
        command = [sys.executable, str(script), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **kwargs)

    return call
