"""scripts/render.py, as a user calls it."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

import shoal

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "render.py"


def test_a_trained_policy_is_animated(train, shell, tmp_path):
    folder = train("env=vmas/simple", "env.kwargs.horizon=6")
    done = shell(SCRIPT, str(folder), "vmas/simple", "--size", "40", "--out", str(tmp_path / "both.gif"))
    assert done.returncode == 0, done.stderr
    assert "vmas/simple, run " in done.stdout and "random actions" in done.stdout
    with Image.open(tmp_path / "both.gif") as image:
        assert image.size == (80, 40)
    training = shoal.load(folder)
    assert training.best in (0, 1) and len(training) == 2
    refused = shell(SCRIPT, str(folder), "--run", "7")
    assert refused.returncode != 0 and "run 7" in refused.stderr and "Traceback" not in refused.stderr


def test_what_is_neither_is_said(shell, tmp_path):
    refused = shell(SCRIPT, str(tmp_path))
    assert refused.returncode != 0 and "no config.yaml there" in refused.stderr + refused.stdout
    refused = shell(SCRIPT, "vmas/simple", "--episodes", "0")
    assert refused.returncode == 2 and refused.stderr == "error: --episodes, --size and --fps: must be above 0\n"
    refused = shell(SCRIPT, "vmas/balanse")
    assert "did you mean vmas/balance" in refused.stderr + refused.stdout
