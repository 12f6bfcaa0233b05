"""What a training writes: whole, in any folder, by one writer, through no symbolic link, on a disk that may be full."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import streams
from shoal.errors import Fault, UserError
from shoal.folder import checkpoint, lock, reading, writing
from shoal.folder.records import Begun, Records
from shoal.run import signals
from shoal.run.placement import place
from shoal.run.resume import refuse_taken
from shoal.run.signals import Stop
from tests.conftest import SCRIPT, SMALL
from tests.shoal.test_loggers import opened
from tests.shoal.test_runner import same_bits

TINY = ["env=matrix/climbing", "algo.num_envs=4", "algo.rollout_length=8"]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
ODD = ["[2026] proj", "back\\slash", "st*r**?", "späce ü 鱼", "{a,b} $HOME ~ 'q' \"q\"", "long"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished training."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), *SMALL, *TINY, f"run.dir={folder}"])
        from shoal.baselines.ippo import ippo_ff_mpe as ippo
        from shoal.cli import main

        main(ippo.IPPO)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(trained, tmp_path / "copy")


@pytest.fixture
def complaint(train, capsys):
    """``complaint(*words)``: the one line that a command is refused with."""

    def call(*words: str, folder=None, code: int = 2) -> str:
        with pytest.raises(SystemExit) as stop:
            train(*words, small=folder is not None, folder=folder)
        lines = capsys.readouterr().err.splitlines()
        assert stop.value.code == code and len(lines) == 1, lines
        return lines[0]

    return call


def content(folder) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != lock.NAME
    }


# Files


def test_no_symbolic_link_is_followed(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    for name in ("metrics.csv", "report.html"):
        (tmp_path / name).symlink_to(theirs)
        with pytest.raises(Fault, match="symbolic link"):
            writing.append(tmp_path / name, "x")
        writing.write(tmp_path / name, "mine")
        assert (tmp_path / name).read_text() == "mine" and not (tmp_path / name).is_symlink()
    assert theirs.read_text() == "precious"
    (tmp_path / "checkpoints").symlink_to(tmp_path)
    with pytest.raises(Fault, match="symbolic link"):
        checkpoint.save(tmp_path / "checkpoints" / "batch_0", 1, {"a": jnp.ones(2)}, keep=2)


def test_what_a_full_disk_leaves(tmp_path, monkeypatch):
    """A file as it was before, and nothing beside it."""
    path = tmp_path / "metrics.csv"
    writing.append(path, "run\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]) if len(data) > 4 else exec("raise FULL"))
    with pytest.raises(Fault, match=r"metrics.csv: cannot be written \(No space left on device\)"):
        writing.append(path, "0,0,64\n")
    monkeypatch.undo()
    assert path.read_text() == "run\n"

    def full(_):
        raise FULL

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Fault):
        writing.write(path, "other")
    assert path.read_text() == "run\n" and os.listdir(tmp_path) == ["metrics.csv"]


def test_a_pipe_does_not_hang_a_writer(tmp_path):
    os.mkfifo(tmp_path / "metrics.csv")
    with pytest.raises(Fault):
        writing.append(tmp_path / "metrics.csv", "x")


# Checkpoints


def state_of(runs: int) -> dict:
    state = {
        "kernel": jnp.arange(runs * 6, dtype=jnp.float32).reshape(runs, 2, 3),
        "half": jnp.ones((runs, 2), jnp.bfloat16) / 3,
        "key": jnp.arange(2 * runs, dtype=jnp.uint32).reshape(runs, 2),
        "alive": jnp.arange(runs) % 2 == 0,
        "empty": jnp.zeros((runs, 0), jnp.int8),
    }
    return place().put(state, runs)


@pytest.mark.parametrize("name", ODD)
def test_a_checkpoint_in_any_path(tmp_path, name):
    place = tmp_path
    for part in ["n" * 250] * 11 + ["batch_0"] if name == "long" else [name, "batch_0"]:
        place /= part
    place.parent.mkdir(parents=True)
    state = state_of(2)
    checkpoint.save(place, 1, state, keep=1, callbacks={"a": 1}, records={"metrics.csv": [2, "x"]})
    checkpoint.save(place, 2, state, keep=1)
    assert checkpoint.chunks(place) == [2] and checkpoint.newest(place) == 2
    restored, callbacks = checkpoint.restore(place, 2, jax.eval_shape(lambda: state_of(4)), runs=2)
    assert callbacks is None
    for name, array in restored.items():
        np.testing.assert_array_equal(array, np.concatenate([state[name]] * 2), err_msg=name)
        assert array.dtype == state[name].dtype


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_checkpoint_of_typed_keys(tmp_path, kind):
    state = {"key": jax.random.split(jax.random.key(3, impl=kind), 2)}
    checkpoint.save(tmp_path / "b", 1, state, keep=1)
    restored, _ = checkpoint.restore(tmp_path / "b", 1, jax.eval_shape(lambda: state), runs=2)
    assert restored["key"].dtype == state["key"].dtype
    assert (jax.random.bits(restored["key"][0]) == jax.random.bits(state["key"][0])).all()


def test_a_file_that_is_larger_than_the_state_is_not_read(train, folder, capsys):
    """Whatever its manifest says: a sparse file of a terabyte would keep a reader busy for an hour."""
    place = folder / "checkpoints" / "batch_0" / "4"
    path = place / "state.0.safetensors"
    os.truncate(path, 2**40)
    manifest = json.loads((place / checkpoint.MANIFEST).read_text())
    manifest["files"][path.name][0] = 2**40
    (place / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    begin = time.monotonic()
    train(f"resume={folder}", small=False)
    assert time.monotonic() - begin < 300
    assert f"{path.name} has {2**40} bytes, more than" in capsys.readouterr().err


def test_a_checkpoint_is_read_back_before_it_counts(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "c" / "b", 1, state_of(2), keep=2)
    monkeypatch.setattr(reading, "digest", lambda path: "other")
    with pytest.raises(Fault, match="what was read back is not what was written"):
        checkpoint.save(tmp_path / "c" / "b", 2, state_of(2), keep=2)
    assert os.listdir(tmp_path / "c" / "b") == ["1"]


def test_a_checkpoint_of_another_state_or_of_orbax_is_refused(tmp_path):
    checkpoint.save(tmp_path / "b", 1, state_of(2), keep=2)
    with pytest.raises(UserError, match=r"another state .*\(more\)"):
        checkpoint.restore(tmp_path / "b", 1, state_of(2) | {"more": np.zeros(2)}, runs=2)
    (tmp_path / "b" / "2" / "state").mkdir(parents=True)
    with pytest.raises(UserError, match="orbax"):
        checkpoint.newest(tmp_path / "b")


# Records


def played(batch: int, env_steps: int) -> dict:
    """An evaluation of both runs of a batch."""
    runs = [2 * batch, 2 * batch + 1]
    return {"batch": batch, "env_steps": env_steps, "runs": runs, "metrics": {"episode_return": [[0.5], [1.0]]}}


def filled(folder) -> dict[int, dict]:
    """Two batches of two runs, two chunks each; what their checkpoints say of the records."""
    records = Records(folder)
    for batch in range(2):
        for steps in (64, 128):
            rows = [{"run": 2 * batch + i, "seed": i, "env_steps": steps, "loss": 0.5} for i in range(2)]
            records.append(rows, played(batch, steps))
    records.append_evaluation({"absolute": True, **played(1, 128)})
    return {batch: records.seal(batch) for batch in range(2)}


HARMS = {
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "nul": lambda data: b"\0" * len(data),
    "middle": lambda data: b"".join(line for i, line in enumerate(data.splitlines(keepends=True)) if i != 2),
    "changed": lambda data: data.replace(b"64", b"63", 1),
    "junk": lambda data: data.replace(b"\n", b"\n\xff\xfe junk\n", 1),
}


@pytest.mark.parametrize("name", ["metrics.csv", "evaluations.jsonl"])
@pytest.mark.parametrize("harm", HARMS)
def test_records_mend_themselves_and_leave_no_silent_hole(tmp_path, capsys, name, harm):
    seals = filled(tmp_path)
    path = tmp_path / name
    before = path.read_bytes()
    path.write_bytes(HARMS[harm](before))
    records = Records(tmp_path)
    records.mend([Begun(0, 2, 128, seals[0]), Begun(2, 4, 128, seals[1])])
    said = capsys.readouterr().err.splitlines()
    if harm == "junk":
        assert said == [] and path.read_bytes() == before
    else:
        assert len(said) == 1 and str(path) in said[0] and "the checkpoint has seen" in said[0]
        assert (tmp_path / f"{name}.damaged").exists() == (harm not in ("empty", "nul"))
    row = {"run": 2, "seed": 0, "env_steps": 192, "loss": 0.5}
    records.append([row], played(1, 192))
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "run,seed,env_steps,loss" and lines[-1] == "2,0,192,0.5"
    assert records.evaluations()[-1]["env_steps"] == 192


def test_what_no_checkpoint_has_seen_is_cut_off(tmp_path, capsys):
    """The rows of another batch stay, as does what a shorter training has recorded of it."""
    seals = filled(tmp_path)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("0,0,192,0.5\n0,0,2")
    records = Records(tmp_path)
    records.mend([Begun(0, 2, 128, seals[0]), Begun(2, 4, 64, {})])
    assert capsys.readouterr().err == ""
    rows = [line.split(",")[:3] for line in (tmp_path / "metrics.csv").read_text().splitlines()[1:]]
    assert rows == [[str(r), str(r % 2), str(s)] for r, s in [(0, 64), (1, 64), (0, 128), (1, 128), (2, 64), (3, 64)]]
    assert [entry["env_steps"] for entry in records.evaluations()] == [64, 128, 64]
    assert records.seal(0) == seals[0]


def test_a_resumed_training_says_what_is_missing(train, folder, capsys):
    path = folder / "evaluations.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[2:]))
    train(f"resume={folder}", small=False)
    said = capsys.readouterr()
    assert "2 of 4 lines are left" in said.err
    assert "2 evaluations are missing in evaluations.jsonl; the first is of step 192" in said.out


# Going on


def test_a_training_in_a_folder_with_brackets(train, trained, tmp_path):
    """From the command line to its end, and on from the middle (B1)."""
    folder = tmp_path / "[2026] proj"
    train(*TINY, folder=folder)
    same_bits(trained, folder)
    shutil.rmtree(folder / "checkpoints" / "batch_0" / "4")
    train(f"resume={folder}", small=False)
    same_bits(trained, folder)


@pytest.mark.parametrize("harm", ["damaged", "gone", "folder gone"])
def test_nothing_starts_over_where_checkpoints_are_lost(train, folder, capsys, harm):
    for file in (folder / "checkpoints").rglob("*.safetensors"):
        file.write_bytes(b"")
    if harm == "gone":
        shutil.rmtree(folder / "checkpoints" / "batch_0")
    elif harm == "folder gone":
        shutil.rmtree(folder / "checkpoints")
    before = content(folder)
    with pytest.raises(SystemExit) as stop:
        train(f"resume={folder}", small=False)
    said = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and len(said) == (3 if harm == "damaged" else 1)
    assert "records reach step 256" in said[-1] and "run.dir=<another folder> starts anew" in said[-1]
    assert content(folder) == before


@pytest.mark.parametrize("rest", [pytest.param("", marks=pytest.mark.thorough), "\0"], ids=["empty", "nul"])
def test_a_training_without_a_finished_chunk_begins_again(train, trained, tmp_path, capsys, rest):
    folder = tmp_path / "begun"
    folder.mkdir()
    shutil.copy(trained / "config.yaml", folder)
    (folder / "metrics.csv").write_text(40 * rest)
    train(f"resume={folder}", small=False)
    assert capsys.readouterr().err.splitlines() == [f"{folder}: no chunk was finished; the training begins again"]
    same_bits(trained, folder)


THOROUGH = [pytest.param(call, marks=pytest.mark.thorough) for call in (0, 3, 4, 5, 6, 13, 14, 15, 17, 18)]


@pytest.mark.parametrize("call", [2, 9, 16, *THOROUGH])
def test_a_full_disk_is_one_line_and_the_training_goes_on_to_the_bit(
    train, complaint, trained, tmp_path, monkeypatch, call
):
    """The ``call``-th file finds no room: settings, records, checkpoints, pictures, policies."""
    calls, sync = iter(range(10**6)), os.fsync

    def fsync(descriptor):
        if next(calls) == call:
            raise FULL
        sync(descriptor)

    folder = tmp_path / "full"
    monkeypatch.setattr(writing.os, "fsync", fsync)
    line = complaint(*TINY, folder=folder, code=1)
    assert "No space left on device" in line and str(folder) in line
    monkeypatch.undo()
    if (folder / "config.yaml").exists():
        train(f"resume={folder}", small=False)
    else:
        train(*TINY, folder=folder)
    same_bits(trained, folder)
    assert not list(folder.rglob("*partial*"))


@pytest.fixture
def disk():
    """``disk(place, size)``: a small file system of its own at ``place``, or ``size`` for the one that is there."""
    places = []

    def call(where: Path, size: str) -> None:
        options = f"{'remount,' if where in places else ''}size={size}"
        where.mkdir(parents=True, exist_ok=True)
        if shutil.which("mount") is None:
            pytest.skip("there is no mount")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)], capture_output=True)
        if done.returncode:
            pytest.skip("file systems cannot be mounted here")
        places.append(where)

    yield call
    for mounted in set(places):
        subprocess.run(["umount", "-l", str(mounted)], check=True)


DISKS = [("none", "", "36k"), ("none", "", "100k"), ("wandb_offline", "", "60k"), ("tensorboard", "", "76k")]
DISKS += [("wandb_offline", "wandb", "8k"), ("tensorboard", "tensorboard", "4k")]


@pytest.mark.thorough
@pytest.mark.parametrize(("logger", "place", "size"), DISKS)
def test_a_disk_that_is_really_full(shell, trained, tmp_path, disk, logger, place, size):
    """The folder, or a logger's part of it, on a file system of a few blocks; then there is room, for a new process."""
    folder = tmp_path / "full"
    disk(folder / place, size)
    done = shell(SCRIPT, *SMALL, *TINY, f"logger={logger}", f"run.dir={folder}")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"error: {folder / place}") and "No space left on device" in done.stderr
    disk(folder / place, "64m")
    done = shell(SCRIPT, f"resume={folder}")
    assert done.returncode == 0, done.stderr
    same_bits(trained, folder)


@pytest.mark.thorough
@pytest.mark.parametrize("size", ["8k", "28k", "80k", "160k"])
def test_what_wandb_loses_is_said(shell, tmp_path, disk, size):
    """It writes in a process of its own, which is silent: its file is whole, or a line says that there was no room."""
    disk(tmp_path / "run" / "wandb", size)
    done = shell(SCRIPT, *SMALL, *TINY, "logger=wandb_offline", f"run.dir={tmp_path / 'run'}")
    if done.returncode == 0:
        (run,) = opened(tmp_path / "run")
        assert [row["_step"] for row in run["history"]] == [64, 128, 192, 256]
    else:
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        assert "wandb: cannot be written (No space left on device)" in done.stderr


@pytest.mark.parametrize(("name", "reason"), [("n" * 300, "File name too long"), ("file/x", "Not a directory")])
def test_a_folder_that_cannot_be_made_is_one_line(complaint, tmp_path, name, reason):
    (tmp_path / "file").touch()
    line = complaint(*TINY, folder=tmp_path / name, code=1)
    assert line.startswith(f"error: {str(tmp_path / name)[:100]}") and line.endswith(f"({reason})")


def test_a_small_address_space_is_said_before_anything_starts(complaint, monkeypatch, tmp_path):
    """Its threads would end the process without a word (B17)."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10**9, 10**9))
    assert "the address space is limited to 1.0 GB (ulimit -v)" in complaint(*TINY, folder=tmp_path / "x", code=1)


# One writer


def test_one_folder_has_one_writer(complaint, folder):
    here = f"process {os.getpid()} on {socket.gethostname()} writes there"
    with lock.held(folder):
        assert here in complaint(f"resume={folder}")
        assert here in complaint(*TINY, folder=folder)
    with lock.held(folder):  # free again
        pass


def test_a_killed_writer_is_no_obstacle(tmp_path):
    code = (
        "import sys, time, pathlib; from shoal.folder import lock\n"
        "with lock.held(pathlib.Path(sys.argv[1])): time.sleep(99)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    while not (tmp_path / lock.NAME).exists() or not (tmp_path / lock.NAME).read_text():
        assert process.poll() is None
        time.sleep(0.05)
    with pytest.raises(UserError, match=f"process {process.pid} on"), lock.held(tmp_path):
        pass
    process.kill()
    process.wait()
    with lock.held(tmp_path):
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("case", ["rebooted", "copied", "silent", "alive", "junk", "no locks"])
def test_a_lock_that_another_machine_has_left(tmp_path, monkeypatch, case):
    """The kernel knows nothing of it: host, start of the machine and signs of life decide."""
    monkeypatch.setattr(lock, "WATCH", 0.5)
    path = tmp_path / lock.NAME
    path.touch()
    left = {"host": "elsewhere", "pid": 7, "boot": "before", "inode": path.stat().st_ino}
    left |= {"rebooted": {"host": socket.gethostname()}, "copied": {"inode": -1}}.get(case, {})
    path.write_text("[" * 4000 if case == "junk" else json.dumps(left))
    if case == "no locks":

        def flock(*_):
            raise OSError(errno.ENOLCK, "no locks")

        monkeypatch.setattr(lock.fcntl, "flock", flock)
    stop, begin = threading.Event(), time.monotonic()

    def touch():
        while not stop.wait(0.1):
            os.utime(path)

    toucher = threading.Thread(target=touch)
    if case == "alive":
        toucher.start()
        with pytest.raises(UserError, match="process 7 on elsewhere writes there"), lock.held(tmp_path):
            pass
        stop.set()
        toucher.join()
        return
    with lock.held(tmp_path):
        assert (time.monotonic() - begin > 0.5) == (case in ("silent", "no locks"))


# Signals and streams


def test_ctrl_c_works_from_the_first_moment(tmp_path):
    """While JAX and its friends are imported an exception could be dropped.

    Tests that run in the background of a shell inherit that Ctrl-C is ignored, which a training would respect.
    """
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    for delay in (0.7, 1.4):
        command = [sys.executable, str(SCRIPT), *SMALL, *TINY, f"run.dir={tmp_path / str(delay)}"]
        process = subprocess.Popen(command, preexec_fn=heard)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == -signal.SIGINT
        assert not (tmp_path / str(delay) / "config.yaml").exists()


def test_a_closed_pipe_ends_nothing(monkeypatch):
    """Neither a line of a signal nor any other; a standard output that is cut off is said in the end."""

    def cut():
        left, right = os.pipe()
        os.close(left)
        return os.fdopen(right, "w", buffering=1)

    monkeypatch.setattr(sys, "stderr", cut())
    stop = Stop()
    stop._ask(signal.SIGTERM, None)
    assert stop.asked and stop.scheduled
    with streams.guarded():
        print("line", file=sys.stderr, flush=True)
    monkeypatch.setattr(sys, "stdout", cut())
    with pytest.raises(Fault, match="standard output: cannot be written"), streams.guarded():
        print("table", flush=True)
        print("more", flush=True)


def test_a_second_signal_ends_at_once_though_exceptions_are_dropped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(signals.os, "_exit", sys.exit)
    stop = Stop(tmp_path)
    stop._ask(signal.SIGINT, None)
    with pytest.raises(SystemExit) as end:
        stop._ask(signal.SIGINT, None)
    assert end.value.code == 128 + signal.SIGINT
    assert f"resume={tmp_path} goes on from the last checkpoint" in capsys.readouterr().err.splitlines()[-1]


# Loggers


def test_a_logger_without_network_leaves_the_folder_free(complaint, tmp_path, monkeypatch):
    import wandb

    asked = {}

    def init(**words):
        asked.update(words)
        raise wandb.errors.CommError("no such host\nmore")

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.delenv("WANDB_INIT_TIMEOUT", raising=False)
    place = tmp_path / "place"
    assert "no such host; logger=wandb_offline" in complaint(*TINY, "logger=wandb", folder=place)
    assert asked["settings"] == {"init_timeout": 7}
    assert not (place / "config.yaml").exists()
    refuse_taken(place)


def test_tensorboard_where_a_file_stands(complaint, tmp_path):
    (tmp_path / "tensorboard").touch()
    line = complaint(*TINY, "logger=tensorboard", folder=tmp_path, code=1)
    assert line.startswith(f"error: {tmp_path / 'tensorboard'}: cannot be written (")
