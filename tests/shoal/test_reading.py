"""A folder from a stranger: opening it runs nothing, fills in nothing, waits for nothing, and changes nothing here."""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys

import jax
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import shoal
from shoal.__main__ import run as run_command
from shoal.baselines.ippo import ippo_ff_mpe as ippo
from shoal.benchmark import plan
from shoal.config.settings import complete, saved_settings
from shoal.envs.host.pettingzoo import own_module
from shoal.errors import UserError
from shoal.folder import checkpoint, policies, reading, seals
from shoal.folder.provenance import read_provenance
from shoal.report import animation
from shoal.report.merge import merge
from shoal.report.page import page
from shoal.report.read import read
from shoal.report.summary import summarise
from shoal.run.compile import in_precision
from shoal.run.resume import resumed_config
from shoal.training import make_plan
from tests.conftest import SCRIPT, SMALL
from tools import fuzz_folders

TOUCH = "from pathlib import Path\nPath({mark!r}).touch()\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger") / "training"
    with pytest.MonkeyPatch.context() as patch:
        words = ["env=matrix/climbing", "sweep.lr=[1e-3,3e-4]", "total_steps=64", "chunks=2"]
        patch.setattr(sys, "argv", [str(SCRIPT), *SMALL, *words, f"run.dir={folder}"])
        from shoal.cli import main

        main(ippo.IPPO)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(trained, tmp_path / "copy")


@pytest.fixture
def command(capsys):
    """``command(name, *words)``: what ``shoal <name>`` prints to stderr."""

    def call(name, *words) -> str:
        with pytest.raises(SystemExit) as ended:
            run_command([name, *map(str, words)])
        assert ended.value.code in (1, 2)
        return capsys.readouterr().err

    return call


def settings(folder, **changes) -> None:
    """Change ``config.yaml``: ``env__name`` is ``env.name``."""
    path = folder / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    for name, value in changes.items():
        *places, last = name.split("__")
        holder = tree
        for place in places:
            holder = holder[place]
        holder[last] = value
    path.write_text(yaml.safe_dump(tree))


# What a folder names is not run (B2, B3, B4).


def test_a_stranger_names_callbacks(train, folder, capsys):
    mark, evil = folder / "mark", folder / "evil.py"
    evil.write_text(TOUCH.format(mark=str(mark)) + "def X(context): ...\n")
    settings(folder, callbacks=[f"{evil}:X"])
    for words in ([], ["total_steps=128"]):
        with pytest.raises(SystemExit):
            train(f"resume={folder}", *words, small=False)
        said = capsys.readouterr().err
        assert f"was trained with callbacks=[{evil}:X], and a folder runs no code by itself" in said
        assert len(said.splitlines()) == 1 and not mark.exists()
    cfg = complete(folder, saved_settings(folder), ippo.Config, ippo.Hypers)
    cfg.callbacks = []
    assert resumed_config(folder, cfg, ["callbacks=[]"], ippo.Config, ippo.Hypers).callbacks == []


def test_a_stranger_names_an_algorithm_file(folder, tmp_path, monkeypatch):
    mark, package = tmp_path / "mark", tmp_path / "stranger"
    package.mkdir()
    (package / "__init__.py").write_text(TOUCH.format(mark=str(mark)))
    (package / "evil.py").write_text("make = Config = Hypers = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for file, recipe in (("", "stranger.evil"), ("", ""), ("../stranger/evil", "evil"), ("ippo/../../stranger", "..")):
        settings(folder, file=file, recipe=recipe)
        with pytest.raises(UserError, match=r"a folder runs no code by itself|there is no such file"):
            shoal.load(folder).policy()
    assert not mark.exists() and "stranger" not in sys.modules


def test_a_stranger_names_a_pettingzoo_module(train, folder, tmp_path, monkeypatch, capsys, command):
    pytest.importorskip("pettingzoo")
    mark = tmp_path / "mark"
    (tmp_path / "evil_env.py").write_text(TOUCH.format(mark=str(mark)))
    monkeypatch.syspath_prepend(tmp_path)
    settings(folder, env__name="pettingzoo/evil_env")
    with pytest.raises(UserError, match=r"its environment is the module evil_env; a folder runs no code by itself"):
        shoal.load(folder).algorithm  # noqa: B018
    with pytest.raises(SystemExit):
        train(f"resume={folder}", small=False)
    assert "is your own module evil_env" in capsys.readouterr().err
    assert animation.best_policies(read([folder]), 3, []) == []
    assert "evil_env" in command("render", folder)
    assert not mark.exists()
    assert own_module("pettingzoo/sisl.multiwalker_v9") is None and own_module("vmas/balance") is None
    assert own_module("pettingzoo/utils.none_there") == "utils.none_there"
    shoal.load(folder, file="evil_env").module  # noqa: B018 -- named, and so imported
    assert mark.exists() and own_module("pettingzoo/evil_env") is None
    monkeypatch.delitem(sys.modules, "evil_env")


# A configuration is plain data (B12, B13, B15).

BAD_SETTINGS = {
    "": "is no training's configuration",
    "- a\n- list": "is no training's configuration",
    "env: {name: [": "no YAML that can be read",
    "\x00": "no YAML that can be read",
    "a: !!python/object/apply:os.system [ls]": "could not determine a constructor",
    "a: &a [x]\nb: *a": "aliases are not read",
    "a: &a [*a]": "aliases are not read",
    "a: 1\na: 2": "a name is given twice",
    "[" * 100_000: "nested too deeply",
    "a: !!timestamp x": "no YAML that can be read",
    "a: !!set {x}": "a set is no plain value",
    "a: " + "9" * 5000: "no YAML that can be read",
    "a: 1": "is no training's configuration (recipe: None: must be text)",
}
BAD_VALUES = [
    ({"algorithm": "ippo${oc.env:HOME}"}, "a folder's values stand for themselves"),
    ({"env__kwargs": {"${x}": 1}}, "a folder's values stand for themselves"),
    ({"hypers__vf_coef": "???"}, "a folder's values stand for themselves"),
    ({"seeds": 1e9}, "seeds: 1000000000.0: must be a whole number"),
    ({"seeds": 10**30}, "must be a whole number"),
    ({"seeds": 2**31 - 1}, "more than 10000000 runs"),
    ({"env": [1]}, "env: [1]: must be settings"),
    ({"callbacks": [[1]]}, "callbacks: must be names"),
]
BAD_SETTINGS_OF_POLICIES = [
    ({"total_steps": float("inf")}, "total_steps"),
    ({"hypers__lr": float("nan")}, "hypers.lr"),
    ({"hypers__gamma": "x"}, "hypers.gamma: must be a number"),
    ({"algo__num_envs": [1]}, "algo.num_envs"),
    ({"algo__actor__widths": 8}, "algo.actor.widths"),
    ({"precision": None}, "precision"),
    ({"evaluation": {"episodes": 0}}, "evaluation.episodes=0: must be at least 1"),
    ({"evolve": {"scheme": "mine"}, "population": 3}, "evolve.scheme=mine"),
    ({"env__name": "matrix/none"}, "matrix/none"),
    ({"env__kwargs": {"colour": 1}}, "env.kwargs.colour"),
]


def one_line(folder, call, line, first=None) -> None:
    with pytest.raises(UserError) as error:
        call()
    said = str(error.value)
    assert line in said and "\n" not in said and len(said) < 600, said
    assert said.startswith(str(first or folder)), said


def test_a_broken_configuration_is_one_line_everywhere(folder, command, train, capsys):
    path = folder / "config.yaml"
    for text, line in BAD_SETTINGS.items():
        path.write_text(text)
        one_line(folder, lambda: shoal.load(folder), line, path)
        one_line(folder, lambda: saved_settings(folder), line, path)
        found = read([folder])
        assert not found.cells and len(found.notes) == 1 and line in found.notes[0], found.notes
    path.write_bytes(b"\xff\xfe\x00")
    assert command("export", folder) == command("render", folder) == f"error: {path}: is no text (byte 0)\n"
    with pytest.raises(SystemExit):
        train(f"resume={folder}", small=False)
    assert capsys.readouterr().err == f"error: {path}: is no text (byte 0)\n"


@pytest.mark.parametrize(("changes", "line"), BAD_VALUES)
def test_a_strange_value_is_one_line(folder, changes, line):
    settings(folder, **changes)
    one_line(folder, lambda: shoal.load(folder), line, folder / "config.yaml")


def test_a_setting_of_the_wrong_kind_is_one_line(trained, folder):
    for changes, line in BAD_SETTINGS_OF_POLICIES:
        shutil.copy(trained / "config.yaml", folder / "config.yaml")
        settings(folder, **changes)
        one_line(folder, lambda: shoal.load(folder).plan, line)
        one_line(folder, lambda: shoal.load(folder).policy(), line)


def test_no_secret_leaves_the_environment(folder, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    settings(folder, algorithm="ippo${oc.env:SECRET}")
    found = read([folder])
    assert not found.cells and "hunter2" not in str(found.notes) and "oc.env:SECRET" in str(found.notes)


def test_what_is_no_regular_file_is_not_waited_for(folder):
    for name, call in (
        ("config.yaml", lambda: shoal.load(folder)),
        ("metrics.csv", lambda: shoal.load(folder).metrics),
        ("evaluations.jsonl", lambda: shoal.load(folder).best),
        ("evaluations.json", lambda: shoal.load(folder).marl_eval),
        (policies.FILE, lambda: shoal.load(folder).policy(0)),
    ):
        path, kept = folder / name, folder.with_name("kept")
        path.rename(kept)
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir):
            make(path)
            one_line(folder, call, f"{name}: is no regular file", path)
            path.rmdir() if path.is_dir() else path.unlink()
        path.symlink_to(kept)  # a link to a file is as good as the file
        call()
        path.unlink()
        kept.rename(path)
    os.truncate(folder / "config.yaml", 2**40)
    one_line(folder, lambda: shoal.load(folder), "has 1099511627776 bytes, and at most 1048576 are read")


# Records, manifests and policies (B9, B13, B16, B20, B23).


INFINITY = float("inf")
STRANGE = [(INFINITY, 1.0), (INFINITY, -INFINITY), (1e308, 1.0), (1e308, -1e308)]


@pytest.mark.parametrize("line", [0, -2, -1], ids=["first", "last", "absolute"])
def test_an_evaluation_of_numbers_that_are_none_is_left_out(folder, line):
    """Infinity, or what float32 cannot hold, in one episode or in two of both signs."""
    path = folder / "evaluations.jsonl"
    lines = path.read_text().splitlines()
    entry = json.loads(lines[line])
    for strange in STRANGE:
        changed = copy.deepcopy(entry)
        changed["metrics"]["episode_return"][1][:2] = strange
        others = [*lines]
        others[line] = json.dumps(changed)
        path.write_text("\n".join(others) + "\n")
        found = read([folder])
        assert "<script" in page(summarise(found, "title"), found)
        assert merge(found.cells, found.notes)


@pytest.mark.parametrize("name", ["metrics.csv", "evaluations.jsonl"])
def test_a_changed_figure_is_said(folder, capsys, name):
    """One digit of a finished training, which no resume will ever check."""
    assert shoal.load(folder).best >= 0 and not read([folder]).notes
    assert capsys.readouterr().err == ""
    path = folder / name
    text = path.read_text()
    at = text.index(",0.", text.index("\n")) + 3 if name == "metrics.csv" else text.index(".0") + 1
    path.write_text(f"{text[:at]}{9 - int(text[at])}{text[at + 1 :]}")
    runs = shoal.load(folder)
    assert runs.best >= 0 and len(runs.metrics)
    assert capsys.readouterr().err.splitlines() == [f"warning: {path}: {seals.CHANGED}"]
    assert read([folder]).notes[0] == f"{folder}: {name}: {seals.CHANGED}"


def test_a_sweep_without_its_mode(folder):
    path = folder / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    del tree["sweep"]["mode"]
    path.write_text(yaml.safe_dump(tree))
    assert len(shoal.load(folder)) == 4


def test_facts_of_other_kinds(folder):
    path = folder / "provenance.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"devices": {"cpu": "0"}}))
    assert read_provenance(folder) == {}


def test_a_junk_line_is_named(folder):
    def junk(name: str, number: int, line: str) -> None:
        lines = (folder / name).read_text().splitlines()
        lines[number - 1] = line
        (folder / name).write_text("\n".join(lines) + "\n")

    text = (folder / "metrics.csv").read_text()
    for line in ("junk", "\x00", ",".join(["x"] * len(text.splitlines()[0].split(",")))):
        (folder / "metrics.csv").write_text(text)
        junk("metrics.csv", 3, line)
        one_line(folder, lambda: shoal.load(folder).metrics, "metrics.csv: ", folder / "metrics.csv")
    (folder / "metrics.csv").write_text(text)
    text = (folder / "evaluations.jsonl").read_text()
    deep = '{"a":' * 100_000
    wrong = json.dumps(json.loads(text.splitlines()[0]) | {"runs": [0, 1, 2]})
    for line in ("", "\x00", "[]", deep, wrong, wrong.replace("[0, 1, 2]", "[0, 1, 2, Infinity]")):
        (folder / "evaluations.jsonl").write_text(text)
        junk("evaluations.jsonl", 2, line)
        one_line(folder, lambda: shoal.load(folder).best, "evaluations.jsonl: line 2 cannot be read")
        found = read([folder])
        assert len(found.cells) == 2 and "line 2 of evaluations.jsonl cannot be read" in found.notes[0]
        assert len(plan.evaluations(folder)) == 2


def test_a_manifest_vouches_for_every_file(folder):
    place = folder / "checkpoints" / "batch_0" / "2"
    manifest = place / checkpoint.MANIFEST
    whole = json.loads(manifest.read_text())
    files = whole["files"]
    assert checkpoint.damage(place) is None
    first = next(iter(files))
    for tree, line in (
        ({}, "cannot be read"),
        ([1], "cannot be read"),
        ({"files": {}}, f"{first} is not in"),
        ({"files": files, "records": 3}, "cannot be read"),
        ({"files": files, "records": {"metrics.csv": [1]}}, "cannot be read"),
        ({"files": {**files, "/dev/zero": [0, "x"]}}, "/dev/zero is missing"),
        ({"files": {**files, "../../../config.yaml": [0, "x"]}}, "is missing"),
        ({"files": {**files, "a\x00b": [0, "x"]}}, "is missing"),
        ({"files": {**files, first: 3}}, "cannot be read"),
    ):
        manifest.write_text(json.dumps(tree))
        assert line in checkpoint.damage(place), tree
    manifest.write_text("[" * 100_000)
    assert "cannot be read" in checkpoint.damage(place)
    manifest.write_text(json.dumps(whole))
    os.mkfifo(place / "pipe")
    assert checkpoint.damage(place) == "pipe is not in manifest.json"
    manifest.write_text(json.dumps({"files": {**files, "pipe": [0, "x"]}}))
    assert checkpoint.damage(place) == "manifest.json cannot be read (UserError)"


def test_a_changed_policy_is_named(folder, command):
    path = folder / policies.FILE
    data = bytearray(path.read_bytes())
    data[-40] ^= 1  # of the last policy of some run
    path.write_bytes(data)
    training = shoal.load(folder)
    assert all(training.policy(run, "best") for run in range(4))
    refused = []
    for run in range(4):
        try:
            training.policy(run, "last")
        except UserError as error:
            refused.append(str(error))
    assert refused == [f"{path}: the last policy of run 3 has changed since it was written (checksum)"]
    assert command("export", folder, "run=3", "which=last") == f"error: {refused[0]}\n"


def rewrite(folder, change) -> None:
    """``policies.safetensors`` with other arrays, and no checksum."""
    from safetensors.numpy import save_file

    path = folder / policies.FILE
    save_file({name: change(name, array) for name, array in load_file(path).items()}, path)


def test_policies_of_other_shapes_and_of_nan(folder, command):
    rewrite(folder, lambda name, array: array * np.float32(np.nan))
    line = "policy of run 0 is not finite (NaN): its training diverged"
    assert line in command("export", folder, "run=0")
    said = command("render", folder, "--run", "0").splitlines()  # a matrix game has no pictures
    assert "warning" in said[0] and "the best policy of run 0 is not finite (NaN)" in said[0] and len(said) == 2
    rewrite(folder, lambda name, array: array[..., None])
    one_line(folder, lambda: shoal.load(folder).policy(0), "has shape [", folder / policies.FILE)
    rewrite(folder, lambda name, array: np.zeros(array.shape[:-1], np.int32))
    one_line(folder, lambda: shoal.load(folder).policy(0), "is int32, not float32", folder / policies.FILE)
    rewrite(folder, lambda name, array: array[:2])
    one_line(folder, lambda: shoal.load(folder).policy(3), "cannot be read", folder / policies.FILE)


def test_json_of_others_is_one_line(tmp_path):
    path = tmp_path / "results.json"
    deep = "[" * 100_000
    record = {"mpe": {"simple": {"ippo": {"seed_0": {"step_1": {"step_count": float("inf"), "return": [1.0]}}}}}}
    for text in (deep, json.dumps(record), "[1]", '{"a": {"b": {"c": []}}}', "\x00", '{"mpe": 1}'):
        path.write_text(text)
        found = read([path])
        assert not found.cells and len(found.notes) == 1 and "\n" not in found.notes[0]


# Opening changes nothing in this process (15).


def state_of_process() -> dict:
    """JAX's configuration, the environment, and the plain values in modules of ours."""
    names = [name for name in sorted(sys.modules) if name.split(".")[0] in ("shoal", "envs")]
    ours = {
        f"{module}.{name}": (id(value), value if isinstance(value, int | float | str | tuple) else None)
        for module in names
        for name, value in vars(sys.modules[module]).items()
        if not name.startswith("__") and not isinstance(value, dict)
    }
    return {"jax": dict(jax.config.values), "environ": dict(os.environ), "ours": ours}


def test_opening_changes_nothing_here(folder):
    settings(folder, devices=8, learners=2, precision={"activations": "bfloat16", "matmul": "highest"})
    shoal.load(folder).algorithm  # noqa: B018 -- whatever is imported is imported now
    before = state_of_process()
    training = shoal.load(folder)
    assert training.algorithm.env.num_agents == 2 and training.plan.settings.devices == 8
    policy = training.policy()
    assert policies.is_finite(policy)
    assert state_of_process() == before
    with pytest.raises(UserError, match="devices=8: there "):
        make_plan(ippo.make, ippo.Config, ippo.Hypers, training.plan.settings, folder)


def test_training_leaves_the_process_as_it_was(trained, folder):
    precision = shoal.load(folder).plan.settings.precision
    precision.activations, precision.matmul = "bfloat16", "highest"
    before = state_of_process()
    with in_precision(precision):
        assert jax.config.jax_default_matmul_precision == "highest"
    assert state_of_process() == before


def test_a_hundred_damaged_folders(trained):
    """A few cases of tools/fuzz_folders.py."""
    found = fuzz_folders.run(trained, cases=100, seed=1, patience=20.0)
    assert found.cases == 100 and found.refused > 50, found
    assert not found.faults, "\n".join(found.faults)


def test_numbers_are_read_as_the_command_line_reads_them(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: 1e-3\nb: 1.0e+10\nc: -.inf\nd: 2020-01-01\ne: 12\nf: yes\ng: null\nh: 1e\n")
    assert reading.yaml_file(path) == {
        "a": 0.001,
        "b": 1e10,
        "c": -float("inf"),
        "d": "2020-01-01",
        "e": 12,
        "f": True,
        "g": None,
        "h": "1e",
    }
