"""What wandb is given, read back from its offline files: one run with a series per seed, or a run for each."""

from __future__ import annotations

import errno
import json
import os
import resource
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest
from wandb.proto import wandb_internal_pb2

from shoal.config.settings import Logger
from shoal.errors import Fault
from shoal.run import loggers

WORDS = ["env=matrix/climbing", "logger=wandb_offline", "sweep.lr=[1e-3,3e-4]"]
HEADER, BLOCK = 7, 2**15  # of wandb's file: a LevelDB log of protobuf records


def records(path) -> list:
    """The records of an offline run."""
    content, found, part = path.read_bytes(), [], b""
    assert content[:4] == b":W&B"
    position = HEADER
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:  # the rest of a block is padding
            position += BLOCK - position % BLOCK
            continue
        length, kind = struct.unpack("<HB", content[position + 4 : position + HEADER])
        part += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (1, 4):  # whole, or the last of several
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            found, part = [*found, record], b""
    return found


def opened(folder) -> list[dict]:
    """Every offline run in a folder: how it was begun, its configuration, its history."""
    runs = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        facts: dict = {"config": {}, "history": []}
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run" and record.run.project:
                run = record.run
                facts |= {"id": run.run_id, "group": run.run_group, "tags": list(run.tags), "name": run.display_name}
                facts |= {"project": run.project, "entity": run.entity}
            for update in record.run.config.update if kind == "run" else record.config.update:
                facts["config"][update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
            if kind == "history":
                items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                facts["history"].append(items)
        runs.append(facts)
    return runs


def test_one_run_with_a_series_per_seed(train):
    folder = train(*WORDS, "logger.group=mine", "logger.tags=[paper,first]", "logger.project=fish", "logger.runs=3")
    (run,) = opened(folder)
    assert (run["project"], run["group"], run["name"]) == ("fish", "mine", folder.name)
    assert run["tags"] == ["ippo", "matrix/climbing", "paper", "first"]
    assert run["config"]["hypers"]["clip_eps"] > 0 and run["config"]["sweep"]["lr"] == [1e-3, 3e-4]
    assert run["config"]["seeds"] == 2 and run["config"]["env"]["name"] == "matrix/climbing"
    steps = [row["_step"] for row in run["history"]]
    assert steps == [64, 128, 192, 256]
    best = ("best/evaluation/episode_return", "best/episode_return")
    for name in ("mean/evaluation/episode_return", *best, "run_2/loss"):
        assert all(name in row for row in run["history"]), name
    assert "run_3/loss" not in run["history"][0]


def test_a_run_for_each_seed(train, capsys):
    """Its own configuration, a group, tags; bounded, said; batches, and a resume in the same ones."""
    words = [*WORDS, "logger.mode=per_seed", "logger.runs=3", "runs_per_batch=2"]
    folder = train(*words)
    said = capsys.readouterr().err.strip().splitlines()
    assert said == ["logger.runs=3: of 4 runs only the first 3 are logged to wandb"]
    runs = {run["config"]["run"]["number"]: run for run in opened(folder)}
    assert sorted(runs) == [0, 1, 2] and len({run["id"] for run in runs.values()}) == 3
    for number, run in runs.items():
        lr = [1e-3, 1e-3, 3e-4][number]
        assert run["group"] == folder.name and run["config"]["seed"] == [0, 1, 0][number]
        assert run["config"]["hypers"]["lr"] == lr and run["config"]["algo"]["num_envs"] == 4
        assert "sweep" not in run["config"]
        assert run["tags"] == ["ippo", "matrix/climbing", f"lr={lr:g}"]
        assert run["name"] == f"ippo matrix/climbing lr={lr:g} seed {[0, 1, 0][number]}"
        assert [row["_step"] for row in run["history"]] == [64, 128, 192, 256]
        assert all("evaluation/episode_return" in row and "loss" in row for row in run["history"])
    assert len({run["history"][0]["loss"] for run in runs.values()}) == 3
    train(f"resume={folder}", "total_steps=320", small=False)
    again = opened(folder)
    assert {run["id"] for run in again} == {run["id"] for run in runs.values()}
    steps = sorted(row["_step"] for run in again for row in run["history"])
    assert steps == sorted([64, 128, 192, 256, 320] * 3)

    # wandb's own command finds and would upload them.
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    seen = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=120, check=False)
    assert seen.returncode == 0, seen.stderr
    shown = seen.stdout + seen.stderr
    assert all(identity in shown for identity in {run["id"] for run in again}), shown


@pytest.mark.parametrize(("word", "line"), [("logger.mode=each", "logger.mode=each: must be one of one, per_seed")])
def test_mistakes(train, capsys, word, line):
    with pytest.raises(SystemExit):
        train(*WORDS, word)
    assert line in capsys.readouterr().err


# A full disk


ROWS = [{"run": 0, "seed": 0, "env_steps": 64, "episode_return": 1.0, "diverged": False}]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full(*_, **__):
    raise FULL


@pytest.mark.parametrize("when", ["log", "close"])
def test_tensorboards_events_find_no_room(tmp_path, when):
    """The system refuses to let the file grow, whatever tensorboardX keeps back until it is closed."""
    logger = loggers.Tensorboard(tmp_path, runs=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    act = {"log": lambda: logger.log(ROWS, 64), "close": logger.close}[when]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(Fault) as error:
            act()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(error.value) == f"{tmp_path / 'tensorboard'}: cannot be written (File too large)"


class FakeError(Exception):
    """What wandb raises."""


@pytest.mark.parametrize("when", ["init", "log", "finish", "nobody"])
@pytest.mark.parametrize("fault", [FULL, FakeError("broken pipe\nand much more")], ids=["disk", "wandb"])
def test_wandbs_faults_are_one_line(tmp_path, monkeypatch, when, fault):
    """``nobody``: wandb writes in a process of its own, which does not say that there was no room."""

    def act(name: str):
        def call(*_, **__):
            if name == when:
                raise fault

        return call

    run = SimpleNamespace(log=act("log"), finish=act("finish"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Error=FakeError, init=lambda **_: act("init")() or run))
    if when == "nobody":
        monkeypatch.setattr(os, "fsync", full)
    config = {"env": {"name": "a/b"}}
    with pytest.raises((Fault, loggers.UserError)) as error:
        logger = loggers.make(Logger(name="wandb_offline"), tmp_path, config, range(1), "ippo")
        logger.log(ROWS, 64)
        logger.close()
    line = str(error.value)
    if isinstance(fault, FakeError) and when != "nobody":
        assert line.startswith(f"logger=wandb{'' if when == 'init' else '_offline'}: broken pipe") and "\n" not in line
    else:
        assert line == f"{tmp_path / 'wandb'}: cannot be written (No space left on device)"
