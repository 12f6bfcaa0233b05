"""Every command of the README and of docs/commands.md runs, as written, at a small size."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.conftest import ROOT, SMALL

README = (ROOT / "README.md").read_text()
PAGES = README + (ROOT / "docs" / "commands.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGES, re.DOTALL)
LINES = [line for block in BLOCKS if "baselines/" in block for line in block.splitlines()]
# Copies are edited below, and SLURM is stood in for in tests/scripts/test_slurm.py.
COMMANDS = [line for line in LINES if line.startswith("python") and "my_idea" not in line and "slurm" not in line]
COMMANDS = list({line.split("#")[0].strip(): line for line in COMMANDS}.values())  # some stand on both pages
SMALLER = [word for word in SMALL if not word.startswith(("total_steps", "seeds", "algo.num_envs"))]

OFF_POLICY = ["chunks=2", "algo.learning_starts=0", "algo.batch_size=4", "algo.q.hidden=8", "evaluation.episodes=2"]


def small(command: str) -> list[str]:
    """The command's own words, with sizes cut down where it does not set them itself, and where it does."""
    words = shlex.split(command, comments=True)[1:]
    sizes = {"total_steps": "256", "seeds": "2", "algo.num_envs": "4", "sweep.num": "3", "population": "4"}
    given = {word.split("=")[0]: word for word in words}
    kept = []
    for word in words:
        name, _, value = word.partition("=")
        if name == "algo.num_envs" and "," in value:
            kept.append("algo.num_envs=4,8")
        elif name in sizes:
            kept.append(f"{name}={512 if value == '2e6' else sizes[name]}")
        else:
            kept.append(word)
    if "resume" in given:
        return kept
    named = 3 if words[0] == "-m" else 1  # `-m baselines <algorithm>`, or a file
    smaller = OFF_POLICY if named == 3 or "maddpg" in words[0] else SMALLER
    defaults = [f"{n}={v}" for n, v in sizes.items() if n not in given and n not in ("sweep.num", "population")]
    return [*kept[:named], *smaller, *defaults, *kept[named:]]


def run(words: list[str], folder) -> str:
    environment = os.environ | {"WANDB_MODE": "offline"}
    result = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder from which the commands find the project as from its root."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("baselines", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_the_readme_is_short_and_shows_how_to_begin():
    assert len(README.splitlines()) <= 120
    assert len(COMMANDS) >= 10
    assert "pip install -e . -c constraints.txt && python baselines/ippo/ippo_ff_mpe.py" in README
    assert 'pip install -e ".[test]" -c constraints.txt && pytest' in README


@pytest.mark.parametrize("command", COMMANDS, ids=[c.split("/")[-1][:50] for c in COMMANDS])
def test_commands(command, folder):
    if "resume=" in command and not (folder / "runs" / "mine").exists():
        run(small(next(c for c in COMMANDS if "run.dir=runs/mine" in c)), folder)
    assert "absolute" in run(small(command), folder)


def test_copy_and_edit(tmp_path):
    """A copied file with another loss works from any folder, and the change matters."""
    source = (ROOT / "baselines" / "ippo" / "ippo_ff_mpe.py").read_text()
    edited = source.replace("total += hypers.vf_coef", "total += 0.5 * hypers.vf_coef")
    assert edited != source
    (tmp_path / "plain.py").write_text(source)
    (tmp_path / "my_idea.py").write_text(edited)
    for name in ("plain", "my_idea"):
        run([f"{tmp_path}/{name}.py", *SMALL, "env=mpe/simple_tag", "hypers.lr=0.01", f"run.dir={name}"], tmp_path)
    one, other = ((tmp_path / name / "metrics.csv").read_text() for name in ("plain", "my_idea"))
    assert one.splitlines()[0] == other.splitlines()[0]
    assert one != other
    recipe = (ROOT / "config" / "ippo_ff_mpe.yaml").read_text()
    (tmp_path / "my_idea.yaml").write_text(f"{recipe}\nseed: 5\n")
    run([f"{tmp_path}/my_idea.py", *SMALL, "run.dir=own"], tmp_path)
    assert "seed: 5" in (tmp_path / "own" / "config.yaml").read_text()


def test_notebook_snippet():
    snippet = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0].replace(
        "total_steps=1e5", "total_steps=2048, num_envs=4"
    )
    names: dict = {}
    exec(snippet, names)  # the README's own lines
    assert names["metrics"]["episode_return"].shape == (4, 4)
