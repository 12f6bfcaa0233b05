"""scripts/render.py, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

import shoal

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "render.py"


def make_best(folder: Path, run: int) -> None:
    """Change the records of a training so that this run has the highest return."""
    path = folder / "evaluations.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in entries:
        returns = entry["metrics"]["episode_return"]
        entry["metrics"]["episode_return"] = [
            [float(number == run)] * len(values) for number, values in zip(entry["runs"], returns, strict=True)
        ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.mark.parametrize("env", ["vmas/simple", "mpe/simple_spread"])
def test_the_best_run_of_a_training_is_animated(train, shell, tmp_path, env):
    folder, out = train(f"env={env}", "env.kwargs.horizon=6", "seeds=3"), tmp_path / "best.png"
    make_best(folder, 1)  # neither the first nor the last
    done = shell(SCRIPT, str(folder), "--size", "200", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{env}, run 1: return per agent ")
    with Image.open(out) as image:
        drawn = np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]).astype(int)
    training = shoal.load(folder)
    assert training.best == 1 and drawn.shape == (7, 200, 200, 3)
    off = [np.abs(training.algorithm.env.render(training.play(run).states, 200) - drawn).max() for run in range(3)]
    assert off[1] <= 3 and min(off[0], off[2]) > 20, off


def test_several_stand_in_a_row(train, shell, tmp_path):
    folder = train("env=vmas/simple", "env.kwargs.horizon=6")
    done = shell(SCRIPT, str(folder), "vmas/simple", "--size", "40", "--out", str(tmp_path / "both.gif"))
    assert done.returncode == 0, done.stderr
    assert "vmas/simple, run " in done.stdout and "random actions" in done.stdout
    with Image.open(tmp_path / "both.gif") as image:
        assert image.size == (80, 40)
    refused = shell(SCRIPT, str(folder), "--run", "7")
    assert refused.returncode != 0 and "run 7" in refused.stderr and "Traceback" not in refused.stderr


def test_a_format_that_cannot_be_written_is_refused_before_anything_is_played(shell):
    refused = shell(SCRIPT, "vmas/simple", "--out", "x.mp4")
    assert refused.returncode == 2 and refused.stdout == ""
    assert refused.stderr == "error: x.mp4: an animation ends in .gif, .png, .webp\n"


def test_what_is_neither_is_said(shell, tmp_path):
    refused = shell(SCRIPT, str(tmp_path))
    assert refused.returncode != 0 and "no config.yaml there" in refused.stderr + refused.stdout
    refused = shell(SCRIPT, "vmas/simple", "--episodes", "0")
    assert refused.returncode == 2
    assert refused.stderr == "error: argument --episodes: 0: must be a whole number in [1, 1000]\n"
    refused = shell(SCRIPT, "vmas/balanse")
    assert "did you mean vmas/balance" in refused.stderr + refused.stdout
