"""Many devices, several processes, signals: the same training, whatever it runs on and however often it is stopped."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

import shoal
from shoal import envs
from shoal.algorithm import algorithm_in
from shoal.baselines.ippo import ippo_ff_mpe as ippo
from shoal.baselines.qmix import qmix_rnn_mpe as qmix
from shoal.cli import CORES_FLAG
from shoal.config.settings import Distributed
from shoal.errors import UserError
from shoal.folder import checkpoint
from shoal.nn.models import Model
from shoal.run import compile, hosts, loop, memory, sweep
from shoal.run.compile import compile_programs
from shoal.run.placement import check_devices, place
from shoal.run.plan import Plan, one_run
from shoal.run.progress import Display
from shoal.run.signals import GO_ON
from shoal.run.state import first_state
from tests.conftest import SCRIPT, SMALL

RUNS = 9  # more than eight devices, and not a multiple
CONSTANT = ["hypers.lr_end=1.0", "hypers.ent_coef_end=1.0"]  # nothing that depends on the length
WORDS = [*SMALL, "env=matrix/climbing", f"seeds={RUNS}", *CONSTANT]


def environment(devices: int) -> dict[str, str]:
    """This process's, with so many CPU devices."""
    flags = re.sub(rf"{CORES_FLAG}=\d+", "", os.environ.get("XLA_FLAGS", ""))
    return os.environ | {"XLA_FLAGS": f"{flags} {CORES_FLAG}={devices}"}


def begin(*words: str, devices: int = 1) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.Popen(
        command, env=environment(devices), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: subprocess.Popen, code: int | None = 0) -> str:
    """What it has said on standard error, after it has ended with ``code`` (None: any but 0)."""
    _, said = process.communicate(timeout=400)
    assert (process.returncode == code) if code is not None else process.returncode, said
    return said


def metrics(folder: Path) -> np.ndarray:
    return pd.read_csv(folder / "metrics.csv").sort_values(["run", "env_steps"]).to_numpy(float)


def keys(folder: Path) -> np.ndarray:
    """The random state of every run in the newest checkpoint."""
    place = folder / "checkpoints" / "batch_0"
    return checkpoint.read(place / str(checkpoint.newest(place)))["train/key"][:RUNS]


@pytest.fixture
def whole(train):
    return train(*WORDS, "devices=1", small=False)


def test_eight_devices_and_one_go_on_with_each_others_checkpoints(train, whole, tmp_path):
    eight, one = tmp_path / "eight", tmp_path / "one"
    process = begin(*WORDS, "total_steps=128", "chunks=2", f"run.dir={eight}", devices=8)
    train(*WORDS, "devices=1", "total_steps=128", "chunks=2", small=False, folder=one)
    said = end(process)
    assert f"{RUNS} runs on 8 devices: 7 more train along, and are dropped" in said
    process = begin(f"resume={one}", "total_steps=256", "devices=all", devices=8)
    train(f"resume={eight}", "total_steps=256", "devices=1", small=False)
    end(process)
    for folder in (eight, one):
        np.testing.assert_allclose(metrics(folder), metrics(whole), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(keys(folder), keys(whole))
    assert len(metrics(eight)) == 4 * RUNS


def pair(folder: Path, *words: str, timeout: int = 300) -> list[subprocess.Popen]:
    """Two processes of one training, with a device each; after ``timeout`` seconds one that is silent is missed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = [f"distributed.coordinator=localhost:{port}", "distributed.processes=2", f"distributed.timeout={timeout}"]
    words = (*words, *where, f"run.dir={folder}", "resume=auto")
    return [begin(*words, f"distributed.process={process}") for process in range(2)]


def newest(folder: Path) -> int:
    return max(checkpoint.chunks(folder / "checkpoints" / "batch_0"), default=0)


def wait_for(folder: Path, chunk: int, processes: list[subprocess.Popen]) -> None:
    while newest(folder) < chunk:
        assert all(process.poll() is None for process in processes), [p.communicate() for p in processes]
        time.sleep(0.02)


def test_two_processes_are_stopped_and_killed_and_are_as_one(train, tmp_path):
    words = [*WORDS, "total_steps=2048", "chunks=32", "seeds=3"]
    folder, draw = tmp_path / "two", random.Random(os.getpid())
    both = pair(folder, *words)
    wait_for(folder, 2, both)
    both[1].send_signal(signal.SIGUSR1)  # to one of them: both stop, after the same chunk
    said = [end(process, code=GO_ON) for process in both]
    assert "stopping after this chunk" in said[1]
    stopped = newest(folder)
    assert 2 <= stopped < 32 and len(metrics(folder)) == 3 * stopped
    both = pair(folder, *words, timeout=10)
    wait_for(folder, stopped + 1, both)
    time.sleep(draw.uniform(0.0, 0.3))
    killed = draw.randrange(2)
    both[killed].kill()
    end(both[1 - killed], code=None)  # does not wait for ever
    end(both[killed], code=-signal.SIGKILL)
    left = newest(folder)
    both = pair(folder, *words)
    said = [end(process) for process in both]
    assert ["3 runs on 2 devices: 1 more train along" in text for text in said] == [True, False]  # one of them tells
    assert left < 32
    alone = train(*words, "devices=1", small=False)
    for name in ("metrics.csv", "evaluations.json"):
        assert (folder / name).read_bytes() == (alone / name).read_bytes(), name


def test_a_scheduler_can_start_the_same_command_again(train, monkeypatch, tmp_path, capsys):
    folder = tmp_path / "mine"
    words = [*WORDS, "resume=auto", f"run.dir={folder}"]
    original = loop.chunk_records

    def spy(*arguments):
        os.kill(os.getpid(), signal.SIGUSR1)
        return original(*arguments)

    monkeypatch.setattr(loop, "chunk_records", spy)
    with pytest.raises(SystemExit) as stopped:
        train(*words, small=False)
    assert stopped.value.code == GO_ON == 75
    assert newest(folder) == 1
    monkeypatch.setattr(loop, "chunk_records", original)
    train(*words, small=False)
    assert newest(folder) == 4 and len(metrics(folder)) == 4 * RUNS
    train(*words, small=False)  # finished: nothing to do, no error
    assert len(metrics(folder)) == 4 * RUNS
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "resume=auto"])
    with pytest.raises(SystemExit):
        shoal.main(ippo.IPPO)
    assert "resume=auto: needs run.dir=<folder>" in capsys.readouterr().err


@pytest.mark.skipif(jax.local_device_count() < 2, reason="one core")
def test_fewer_runs_than_devices_share_their_environments(train):
    one = train(*WORDS, "seeds=1", "devices=1", small=False)
    both = train(*WORDS, "seeds=1", "devices=2", small=False)
    np.testing.assert_allclose(metrics(both), metrics(one), rtol=1e-4, atol=1e-5)


@pytest.fixture
def small_plan(tmp_path):
    """``plan(runs, devices)``: a training of the smallest size, not begun."""

    def make(runs: int, devices: int | str = "all", module=ippo, **config) -> Plan:
        sizes = {"num_envs": 4, "rollout_length": 8, "total_steps": 256.0, **config}
        if module is ippo:
            sizes |= {"actor": Model(widths=(8,)), "critic": Model(widths=(8,))}
        algorithm = algorithm_in(module)(module.Config(**sizes), envs.make("matrix/climbing"))
        evaluation = {"episodes": 2, "greedy": True}
        settings = {"evaluation": evaluation, "runs_per_batch": None, "algo": {"num_envs": 4}, "prng": "hash"}
        runs = sweep.expand(module.Hypers(), {}, runs)
        return Plan(algorithm, runs, OmegaConf.create(settings), tmp_path, 2, 2, place(devices, 4))

    return make


@pytest.mark.skipif(jax.local_device_count() < 2, reason="one core")
def test_shared_environments_lie_on_all_devices_and_gradients_are_added_up(small_plan):
    plan = small_plan(1, 2)
    assert dict(plan.placement.mesh(1).shape) == {"runs": 1, "envs": 2}
    programs = compile_programs(plan, Display(1, 1, shown=False))
    state = programs.start(*plan.placement.put(plan.runs.select(np.zeros(1, int)), 1))
    assert len(state.train.slot.envs.timestep.obs.sharding.device_set) == 2
    assert {shard.data.shape[1] for shard in state.train.slot.envs.timestep.obs.addressable_shards} == {2}
    assert state.train.learnt.params["actor"]["head"]["kernel"].is_fully_replicated
    assert "all-reduce" in programs.chunk.as_text()
    assert place("all", 4).mesh(1).size == 1  # cores share environments only when asked to


def test_a_chunk_never_waits_for_the_host_and_its_state_is_donated(small_plan):
    plan = small_plan(2)
    programs = compile_programs(plan, Display(1, 1, shown=False))
    keys, hypers = plan.placement.put(plan.runs.select(np.arange(2)), 2)
    state = programs.start(keys, hypers)
    with jax.transfer_guard("disallow"):
        with pytest.raises(Exception, match="transfer"):
            jax.jit(lambda x: x)(np.ones(3))  # the guard does guard
        after, *told = programs.chunk(state, hypers)
    jax.block_until_ready(told)
    text = programs.chunk.as_text()
    assert not re.search(r"outfeed|infeed|callback|send\(|recv\(", text)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(after))
    aliased = programs.chunk.memory_analysis().alias_size_in_bytes * plan.placement.mesh(2).size
    assert aliased >= size


def test_more_devices_than_there_are_is_said():
    with pytest.raises(UserError, match=r"devices=999: there (is|are) \d+ \(cpu\)"):
        check_devices(999)


def test_a_plan_of_memory_counts_every_part(small_plan):
    plan = small_plan(3, 1)
    need = one_run(plan)
    state = jax.eval_shape(lambda k: first_state(plan.algorithm, k, ippo.Hypers()), jax.random.PRNGKey(0))
    assert need.state == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    count = sum(leaf.size for leaf in jax.tree.leaves(state.train.learnt.params))
    assert need.optimiser == 8 * count + 4 and need.replay == 0  # Adam's two moments and its counter
    assert need.rollout > 8 * 4 * 2 * 4  # at least the observations of all agents
    assert need.of(3, plan.placement) == 3 * need.state + need.rollout  # on a core one run after the other
    plan = small_plan(1, 1, module=qmix, buffer_size=4000, batch_size=4)
    replays = one_run(plan)
    assert replays.replay > 4000 * 2 * 4 and "replay" in replays.text(1, plan.placement, None)


@pytest.mark.parametrize(
    ("runs", "available", "batch"),
    [(10, None, 10), (10, 125, 10), (10, 100, 5), (10, 60, 4), (10, 5, 1), (7, 62, 4)],
)
def test_as_few_batches_as_fit_of_about_equal_size(runs, available, batch):
    assert memory.fit(runs, available, lambda n: 10 * n, place(1)) == batch


def test_runs_per_batch_auto_fits_the_memory(train, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(compile, "WORTH_SAYING", 0)
    wide = [*WORDS, "algo.actor.widths=[64,64]", "algo.critic.widths=[64,64]", "runs_per_batch=auto"]
    plenty = train(*wide, small=False)
    said = capsys.readouterr().err
    assert re.search(
        r"^memory for \d+ runs: .* parameters, .* optimiser, .* environments, about .* rollout", said, re.M
    )
    assert not re.search(r"^runs_per_batch=", said, re.MULTILINE)
    words = [*wide, "devices=1"]
    monkeypatch.setattr(memory, "available_memory", lambda _: 2**20)
    tight = train(*words, small=False, folder=tmp_path / "tight")
    said = capsys.readouterr().err
    chosen = int(re.search(r"^runs_per_batch=(\d+): \d batches, as memory for 9 runs", said, re.MULTILINE)[1])
    assert 1 <= chosen < RUNS
    assert len(list((tight / "checkpoints").glob("batch_*"))) == -(-RUNS // chosen)
    np.testing.assert_allclose(metrics(tight), metrics(plenty), rtol=1e-4, atol=1e-5)
    assert OmegaConf.load(tight / "config.yaml").runs_per_batch == chosen
    train(*words, "resume=auto", f"run.dir={tight}", small=False)  # keeps its batches
    assert capsys.readouterr().err.count("error") == 0


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node7", "node7"), ("node001,host2", "node001"), ("gpu[003-015],host2", "gpu003"), ("a-b[1,7-9]", "a-b1")],
)
def test_srun_says_where_processes_meet(nodes, first):
    environ = {"SLURM_JOB_ID": "70001", "SLURM_STEP_NODELIST": nodes, "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    environ |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert hosts.slurm(environ) == (f"{first}:{61440 + 70001 % 4096}", 2, 1, None)  # all four are its own
    crowded = environ | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "3"}
    assert hosts.slurm(crowded).device == 3
    assert hosts.slurm(environ | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert hosts.slurm({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}) is None  # a batch script, not a step of it
    assert hosts.place_of(Distributed(coordinator="none"), environ) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"coordinator": "host:1"}, "needs distributed.processes"),
        ({"coordinator": "host", "processes": 2, "process": 0}, "must be host:port"),
        ({"coordinator": "host:1", "processes": 2, "process": 2}, r"distributed.process=2: must be in \[0, 1\]"),
    ],
)
def test_mistakes_in_where_processes_meet(settings, said):
    with pytest.raises(UserError, match=said):
        hosts.place_of(Distributed(**settings), {})
