"""A folder opened again: tables with the right types, of finished, stopped and copied trainings; policies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import shoal
from shoal.config.files import import_file
from shoal.errors import UserError
from shoal.run.resume import resumed_config
from tests.conftest import ROOT, SCRIPT, SMALL

SWEEP = ["env=matrix/climbing", "sweep.lr=[1e-3,3e-4,1e-3]", "sweep.gamma=[0.9,0.99]", "runs_per_batch=8"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three by two points of a sweep, two seeds of each, in two batches."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), *SMALL, *SWEEP, f"run.dir={folder}"])
        from shoal.baselines.ippo import ippo_ff_mpe as ippo
        from shoal.cli import main

        main(ippo.IPPO)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(trained, tmp_path / "copy")


def test_metrics(trained):
    runs = shoal.load(trained)
    table = runs.metrics
    assert len(runs) == 12 and len(table) == 48 and repr(runs).endswith("ippo on matrix/climbing, 12 runs)")
    for name in ("run", "seed", "env_steps"):
        assert table[name].dtype == np.int64
    assert table.diverged.dtype == bool and not table.diverged.any()
    assert all(
        table[name].dtype == np.float64 for name in table if name not in ("run", "seed", "env_steps", "diverged")
    )
    assert set(table.lr) == {1e-3, 3e-4} and set(table.gamma) == {0.9, 0.99}  # as they were asked for
    assert len(table[(table.lr == 3e-4) & (table.env_steps == 256)]) == 4


def test_which_run_is_which(trained):
    runs = shoal.load(str(trained))
    axis = runs.plan.runs
    assert runs.swept == axis.swept and len(runs) == len(axis)
    np.testing.assert_array_equal(runs.table.point, axis.point)
    np.testing.assert_array_equal(runs.table.seed, axis.seed)
    for run, row in runs.table.iterrows():
        assert {name: row[name] for name in runs.swept} == axis.points[axis.point[run]]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ({"mode": "zip", "lr": [1, 2, 3], "gamma": [0.1, 0.2, 0.3]}, 6),
        ({"mode": "random", "num": 7, "lr": {"min": 0.1, "max": 1.0}}, 14),
        ({"mode": "random", "num": 7}, 2),
        ({"mode": "grid", "lr": [1, 2, 3], "gamma": 0.5}, 6),
    ],
)
def test_the_number_of_runs_is_the_sweeps(trained, words, count):
    runs = shoal.load(trained)
    runs.config.sweep = dict.fromkeys(runs.config.sweep) | {"num": 10, "seed": 0, "paired": True} | words
    assert len(runs) == count == len(runs.plan.runs)


def test_evaluations_are_every_episode(trained):
    runs = shoal.load(trained)
    table = runs.evaluations
    assert len(table) == 12 * (4 * 2 + 20)
    assert list(table)[:8] == ["run", "point", "seed", "lr", "gamma", "env_steps", "absolute", "episode"]
    assert table.absolute.dtype == bool and table.absolute.sum() == 12 * 20
    means = table[~table.absolute].groupby(["run", "env_steps"]).episode_return.mean()
    there = runs.metrics.set_index(["run", "env_steps"])["evaluation/episode_return"].sort_index()
    np.testing.assert_allclose(means.to_numpy(), there.to_numpy(), rtol=1e-4, atol=1e-4)
    last = table[table.absolute].groupby("run").episode_return.mean()
    assert last[runs.best] == last.max()
    stored = runs.marl_eval["matrix"]["climbing"]["ippo lr=0.001 gamma=0.9"]["seed_1"]
    mine = table[(table.run == 1) & (table.env_steps == 64)].episode_return
    assert stored["step_1"]["mean_episode_return"] == list(mine)


def test_config_and_policies(trained):
    runs = shoal.load(trained)
    assert runs.config.hypers.clip_eps == 0.17
    assert runs.config.algo.actor.widths == [8]
    stored = load_file(trained / "policies.safetensors")
    for run, number in ((5, 5), ("best", runs.best)):
        for which in ("best", "last"):
            policy = runs.policy(run, which)
            np.testing.assert_array_equal(
                policy["actor"]["head"]["kernel"], stored[f"{which}/actor/head/kernel"][number]
            )
    with pytest.raises(UserError, match=r"run 12: .* has runs 0 to 11"):
        runs.policy(12)
    with pytest.raises(UserError, match="run worst"):
        runs.policy("worst")
    episode = runs.play(seed=3)
    assert episode.rewards.shape == (runs.algorithm.env.horizon, 2)
    assert jax.tree.leaves(episode.states)[0].shape[0] == len(episode.rewards) + 1
    per_step = runs.evaluations.episode_return / runs.evaluations.episode_length
    assert per_step.min() - 1e-4 <= episode.episode_return / len(episode.rewards) <= per_step.max() + 1e-4


def test_tables_need_no_jax(trained):
    """And ``import shoal`` leaves JAX alone: who trains in the same process still has every core as a device."""
    code = (
        "import sys, shoal; runs = shoal.load(sys.argv[1]); runs.metrics, runs.evaluations, runs.table, runs.best;"
        "bad = {'jax', 'flax', 'envs', 'baselines'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code, str(trained)], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        shoal.lode  # noqa: B018


def test_a_training_that_still_runs(folder):
    """Half a line at the end of both files, no files of the end, one batch not begun."""
    for name in ("evaluations.json", "policies.safetensors", "curves.png", "provenance.json"):
        (folder / name).unlink()
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(lines[: 1 + 8 * 2]) + lines[17][:20])
    entries = (folder / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (folder / "evaluations.jsonl").write_text("".join(entries[:2]) + entries[2][:50])
    runs = shoal.load(folder)
    assert len(runs) == 12 and len(runs.metrics) == 16 and runs.metrics.env_steps.max() == 128
    assert len(runs.evaluations) == 8 * 2 * 2 and len(runs.table) == 8 and runs.best < 8
    assert runs.config.seeds == 2
    with pytest.raises(UserError, match="is written when a training ends"):
        runs.marl_eval  # noqa: B018
    with pytest.raises(UserError, match=r"policies.safetensors: cannot be read"):
        runs.policy("best")


def test_a_training_that_has_just_begun(folder):
    (folder / "metrics.csv").unlink()
    (folder / "evaluations.jsonl").write_text("")
    runs = shoal.load(folder)
    assert len(runs.metrics) == 0 and len(runs.evaluations) == 0 and len(runs.table) == 0
    assert {"run", "seed", "env_steps"} <= set(runs.metrics)
    with pytest.raises(UserError, match="no evaluation there yet"):
        runs.best  # noqa: B018


def test_a_file_of_ones_own(trained, folder, tmp_path, monkeypatch):
    """Its tables need nothing; its policies the file, which is named, by its path or as a module."""
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("recipe: ippo_ff_mpe", "recipe: my_idea"))
    idea = tmp_path / "ideas" / "my_idea.py"
    idea.parent.mkdir()
    idea.write_text(SCRIPT.read_text().replace("scale=0.01)", "scale=0.02)"))
    runs = shoal.load(folder)
    assert runs.name == "my_idea" and len(runs.metrics) == 48 and len(runs.evaluations) > 0
    shutil.copy(idea, folder / "my_idea.py")
    with pytest.raises(UserError, match=r'was made by my_idea.py, which is not one .* file="path/to/my_idea.py"'):
        runs.policy("best")
    with pytest.raises(UserError, match=r"none.py: no such Python file"):
        shoal.load(folder, file="none.py").policy("best")
    mine = shoal.load(folder, file=idea)
    np.testing.assert_array_equal(
        mine.policy(3)["actor"]["head"]["kernel"], shoal.load(trained).policy(3)["actor"]["head"]["kernel"]
    )
    assert mine.module.__file__ == str(idea)
    assert shoal.load(folder).module is mine.module  # imported already
    monkeypatch.delitem(sys.modules, "my_idea")
    monkeypatch.syspath_prepend(str(idea.parent))  # what can be imported is not, until it is named
    with pytest.raises(UserError, match=r"a folder runs no code by itself"):
        shoal.load(folder).module  # noqa: B018
    assert shoal.load(folder, file="my_idea").module.__file__ == str(idea)


def test_an_example_whose_file_only_registers(folder):
    """examples/attend.py brings an environment and a network, and takes its algorithm from baselines."""
    config = (folder / "config.yaml").read_text()
    for old, new in (("recipe: ippo_ff_mpe", "recipe: attend"), ("name: matrix/climbing", "name: example/forage")):
        assert old in config
        config = config.replace(old, new)
    (folder / "config.yaml").write_text(config)
    from examples import attend

    for _ in range(2):  # what is registered stays so: a file is imported once, whatever it is called
        runs = shoal.load(folder, file=ROOT / "examples" / "attend.py")
        assert runs.algorithm.env.name == "example/forage"
    assert import_file(attend.__file__) is attend


def test_a_file_that_is_called_as_a_package(tmp_path):
    mine = tmp_path / "json.py"
    mine.write_text("answer = 42")
    assert import_file(mine).answer == 42 and sys.modules["json"] is json
    (tmp_path / "broken.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            import_file(tmp_path / "broken.py")


def test_a_folder_of_an_older_version(folder):
    """Settings that have come since are at their defaults."""
    lines = (folder / "config.yaml").read_text().splitlines()
    start = lines.index("logger:")
    kept = [
        line for line in lines if not line.startswith(("callbacks", "  mode: one", "  group", "  tags", "  entity"))
    ]
    assert len(kept) <= len(lines) - 5 and start
    (folder / "config.yaml").write_text("\n".join(kept))
    runs = shoal.load(folder)
    assert len(runs.plan.runs) == 12 and runs.plan.settings.logger.mode == "one"
    ippo = runs.module
    assert resumed_config(folder, runs.config, [], ippo.Config, ippo.Hypers).callbacks == []


def test_no_folder(tmp_path):
    with pytest.raises(UserError, match=r"no config.yaml there"):
        shoal.load(tmp_path)


def test_several_folders_are_one_table(trained, folder):
    """What the guide says: a name for each, and pandas does the rest."""
    both = pd.concat({name: shoal.load(place).metrics for name, place in {"a": trained, "b": folder}.items()})
    assert len(both) == 96 and len(both.loc["b"]) == 48
    assert json.loads((trained / "provenance.json").read_text())["runs"] == 12
