"""From a command to a folder: what is left behind, reproducible to the bit, through kills, damage and NaN."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import shoal
from shoal import envs
from shoal.baselines.ippo import ippo_ff_mpe as ippo
from shoal.baselines.qmix import qmix_rnn_mpe as qmix
from shoal.errors import UserError
from shoal.folder import checkpoint, policies
from shoal.hashing import split
from shoal.nn.models import Model
from shoal.report import statistics
from shoal.run import loop, memory
from shoal.run.compile import memory_of
from shoal.run.evaluate import evaluate
from shoal.run.placement import place
from shoal.run.progress import Display
from shoal.run.resume import refuse_taken
from shoal.run.signals import GO_ON
from tests.conftest import SCRIPT, SMALL

TINY = Model(widths=(8,))


def metrics(folder) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv")


def same_bits(one, other, files=("metrics.csv", "evaluations.json")) -> None:
    """Metrics, evaluations and policies of two folders are the same bytes."""
    for name in files:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    first, second = load_file(one / policies.FILE), load_file(other / policies.FILE)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_what_is_left_behind(train, capsys):
    folder = train("sweep.lr=[1e-3,1e-4]", "env=mpe/simple_tag")
    table = metrics(folder)
    assert {"run", "seed", "env_steps", "episode_return", "lr", "loss", "policy_loss", "value_loss"} <= set(table)
    assert {"episode_return/adversary", "episode_return/agent", "evaluation/episode_return"} <= set(table)
    assert len(table) == 4 * 4  # a row per run and chunk
    assert table.groupby("run").env_steps.apply(list).iloc[3] == [64, 128, 192, 256]
    np.testing.assert_allclose(table[table.run == 2].lr, 1e-4)
    assert list(table[table.env_steps == 64].seed) == [0, 1, 0, 1]
    # Returns are means over agents, not sums: simple_tag has three adversaries and one agent.
    mean = (3 * table["evaluation/episode_return/adversary"] + table["evaluation/episode_return/agent"]) / 4
    np.testing.assert_allclose(mean, table["evaluation/episode_return"], rtol=1e-4, atol=1e-5)

    document = json.loads((folder / "evaluations.json").read_text())
    record = document["mpe"]["simple_tag"]
    assert list(record) == ["ippo lr=0.001", "ippo lr=0.0001"]
    seed = record["ippo lr=0.001"]["seed_1"]
    assert list(seed) == ["step_1", "step_2", "step_3", "step_4", "absolute_metrics"]
    assert seed["step_2"]["step_count"] == 128
    assert len(seed["step_2"]["mean_episode_return"]) == 2
    assert len(seed["absolute_metrics"]["mean_episode_return"]) == 20

    assert (folder / "curves.png").stat().st_size > 10_000
    assert json.loads((folder / "provenance.json").read_text())["runs"] == 4
    assert checkpoint.chunks(folder / "checkpoints" / "batch_0") == [3, 4]
    printed = capsys.readouterr().out
    assert "lr=0.001" in printed
    assert str(folder) in printed


def test_the_same_command_repeats_to_the_bit_and_seeds_differ(train):
    one, two = train(), train()
    same_bits(one, two)
    last = metrics(one).groupby("run").last()
    assert last.loss[0] != last.loss[1]
    other = metrics(train("seed=1"))
    np.testing.assert_array_equal(other[other.run == 0].loss, metrics(one)[metrics(one).run == 1].loss)


def test_batches_and_sweeps_do_not_change_a_run(train):
    together = train("seeds=3", "sweep.lr=[1e-3,3e-4]")
    batched = train("seeds=3", "sweep.lr=[1e-3,3e-4]", "runs_per_batch=4")
    one, other = (metrics(f).sort_values(["run", "env_steps"]) for f in (together, batched))
    np.testing.assert_allclose(one.to_numpy(float), other.to_numpy(float), rtol=1e-4, atol=1e-5)
    alone = metrics(train("seeds=1", "seed=1", "hypers.lr=3e-4"))
    inside = one[one.run == 4].drop(columns="lr")
    np.testing.assert_allclose(inside.to_numpy(float)[:, 1:], alone.to_numpy(float)[:, 1:], rtol=1e-3, atol=1e-4)


def test_one_program_is_the_same_training(train):
    chunked, whole = train(), train("chunks=1")
    last, only = (load_file(folder / policies.FILE) for folder in (chunked, whole))
    for name in (name for name in last if name.startswith("last/")):
        np.testing.assert_allclose(last[name], only[name], rtol=1e-5, atol=1e-6)


def test_resume_extends_a_finished_training(train):
    folder = train("hypers.lr_end=1.0")
    train(f"resume={folder}", small=False)  # nothing to do: still a report
    assert len(metrics(folder)) == 8
    train(f"resume={folder}", "total_steps=512", small=False)
    assert len(metrics(folder)) == 16
    straight = train("hypers.lr_end=1.0", "total_steps=512", "chunks=8")
    np.testing.assert_array_equal(metrics(folder).loss, metrics(straight).loss)
    with pytest.raises(SystemExit):
        train(f"resume={folder}", "algo.num_envs=8", small=False)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_training_resumes_to_the_bit(train, tmp_path, kill):
    words = ["total_steps=4096", "chunks=64", "seeds=3", "runs_per_batch=2", "evaluation.episodes=1"]
    whole = train(*words)
    folder = tmp_path / "killed"
    command = [sys.executable, str(SCRIPT), *SMALL, *words, f"run.dir={folder}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (folder / "metrics.csv").exists():
        time.sleep(0.05)
    time.sleep(random.Random(os.getpid()).uniform(0.0, 0.5))
    ended = (folder / "curves.png").exists()  # and Python is on its way out, without handlers of signals
    process.send_signal(kill)
    printed = process.communicate(timeout=60)
    if kill == signal.SIGTERM and not ended:
        assert process.returncode == GO_ON
        assert f"resume={folder} goes on" in printed[0]
        assert (folder / "curves.png").exists()
    train(f"resume={folder}", small=False)
    same_bits(whole, folder)
    rows = metrics(folder)
    assert not rows.duplicated(["run", "env_steps"]).any()
    assert len(rows) == 3 * 64


REPLAY = [
    "total_steps=800",
    "chunks=4",
    "seeds=2",
    "algo.num_envs=4",
    "algo.rollout_length=10",
    "algo.batch_size=4",
    "algo.buffer_size=200",
    "algo.learning_starts=0",
    "algo.mixer=vdn",
    "algo.q.hidden=8",
    "hypers.lr_end=1.0",  # nothing that depends on the length of the training
    "hypers.eps_end=1.0",
    "hypers.priority_beta=1.0",
    "evaluation.episodes=2",
]


def test_replay_resumes_to_the_bit(train, tmp_path):
    """The buffer has wrapped when the training stops, and is part of what goes on, its priorities too."""
    words = [*REPLAY, "algo.replay=prioritised"]
    whole = train(*words, small=False, module=qmix)
    half = train(*words, "total_steps=400", "chunks=2", small=False, module=qmix, folder=tmp_path / "half")
    train(f"resume={half}", "total_steps=800", small=False, module=qmix)
    same_bits(whole, half, files=["metrics.csv"])  # the absolute metric was taken when the first half ended
    assert (metrics(whole).loss > 0).all()


def test_a_buffer_that_does_not_fit_is_refused_before_it_is_made(train, capsys, tmp_path):
    """Terabytes: known from the shapes, said in one line that names the way out; the folder stays free."""
    with pytest.raises(SystemExit):
        train(*REPLAY, "algo.buffer_size=2000000000", small=False, module=qmix, folder=tmp_path / "large")
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "algo.buffer_size" in line and "GiB are free" in line
    assert "runs_per_batch" not in line  # one run does not fit either
    assert not (tmp_path / "large" / "config.yaml").exists()
    refuse_taken(tmp_path / "large")


def test_a_half_written_line_is_cut_off(train):
    whole = train()
    folder = train("checkpoint.every=3")
    shutil.rmtree(folder / "checkpoints" / "batch_0" / "4")
    with (folder / "metrics.csv").open("a") as file:
        file.write("0,0,99")
    train(f"resume={folder}", small=False)
    same_bits(whole, folder)


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(train, capsys, harm):
    whole = train()
    folder = train()
    newest = folder / "checkpoints" / "batch_0" / "4"
    largest = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    if harm == "truncate":
        largest.write_bytes(content[: len(content) // 2])
    elif harm == "flip":
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    elif harm == "remove":
        largest.unlink()
    else:
        (newest / checkpoint.MANIFEST).write_text("{")
    train(f"resume={folder}", small=False)
    assert "is damaged" in capsys.readouterr().err
    same_bits(whole, folder)


def test_a_diverging_run_is_marked_and_its_neighbours_never_notice(train, capsys):
    calm = train("sweep.lr=[1e-3,1e-3]", "seeds=1")
    wild = train("sweep.lr=[1e-3,1e38]", "seeds=1")
    assert "run 1 diverged" in capsys.readouterr().err
    one, other = metrics(calm), metrics(wild)
    np.testing.assert_array_equal(one[one.run == 0].drop(columns="lr"), other[other.run == 0].drop(columns="lr"))
    assert list(other[other.run == 1].diverged) == [1, 1, 1, 1]
    assert not one.diverged.any()
    frozen = load_file(wild / policies.FILE)
    assert all(np.isfinite(array).all() for array in frozen.values())


def test_no_chunk_but_the_first_compiles(train, monkeypatch):
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    seen: list[int] = []
    original = loop.chunk_records

    def spy(*arguments):
        seen.append(len(compiled))
        return original(*arguments)

    monkeypatch.setattr(loop, "chunk_records", spy)
    train("chunks=8")
    assert len(seen) == 8
    assert seen[1] == seen[-1]


def test_200_runs_start_and_end(train):
    table = metrics(train("seeds=200", "chunks=2", "total_steps=64"))
    assert len(table) == 400
    assert table.loss.nunique() == 400


def test_too_little_memory_is_said_before_anything_runs(train, monkeypatch, capsys):
    for available, advice in ((5_000, "algo.num_envs"), (10_000, "runs_per_batch=1 ")):
        monkeypatch.setattr(memory, "available_memory", lambda _: available)  # noqa: B023
        with pytest.raises(SystemExit):
            train()
        assert advice in capsys.readouterr().err.strip().splitlines()[-1]


def test_the_memory_of_all_devices_counts():
    """A program over all cores is described by what one of them needs."""
    size = 10_000
    runs = 2 * len(jax.devices())
    placement = place()
    double = placement.over_runs(lambda x: x * 2, runs)
    program = jax.jit(double).lower(jax.ShapeDtypeStruct((runs, size), "float32")).compile()
    assert memory_of(program, placement.holders(runs)) >= 2 * runs * size * 4  # in and out


def test_loading_executes_no_code(train, tmp_path):
    folder = train()
    env = envs.make("mpe/simple_spread")
    config = ippo.Config(num_envs=4, rollout_length=8, actor=TINY, critic=TINY)
    algorithm = ippo.IPPO(config, env)
    like = jax.eval_shape(
        lambda key: algorithm.policy(algorithm.init(key, ippo.Hypers()).learnt), jax.random.PRNGKey(0)
    )
    policy = policies.load(folder, like, run=1)
    stored = load_file(folder / policies.FILE)
    np.testing.assert_array_equal(policy["actor"]["head"]["kernel"], stored["best/actor/head/kernel"][1])

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "boom"),))

    (folder / policies.FILE).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="cannot be read"):
        policies.load(folder, like, run=0)
    newest = folder / "checkpoints" / "batch_0" / "4"
    for file in [p for p in newest.rglob("*") if p.is_file()]:
        assert not file.read_bytes().startswith(b"\x80\x04"), f"{file} is a pickle"
    assert not (tmp_path / "boom").exists()


def test_evaluation_is_one_whole_episode_per_environment(train):
    config = ippo.Config(num_envs=2, rollout_length=8, actor=TINY, critic=TINY)
    algorithm = ippo.IPPO(config, envs.make("mpe/simple_spread"))
    state = algorithm.init(jax.random.PRNGKey(0), ippo.Hypers())
    policy = algorithm.policy(state.learnt)
    next_key, values = evaluate(algorithm, policy, jax.random.PRNGKey(5), 3, True)
    assert not np.array_equal(next_key, jax.random.PRNGKey(5))
    np.testing.assert_array_equal(values["episode_length"], [25, 25, 25])
    step, act = jax.jit(algorithm.env.step), jax.jit(algorithm.act, static_argnums=4)
    for episode, key in enumerate(split(jax.random.PRNGKey(5), 1 + 3 + 25)[1:4]):
        env_state, timestep = algorithm.env.reset(key)
        total = np.zeros(3)
        while not (timestep.terminated or timestep.truncated):
            batched = jax.tree.map(lambda x: x[None], timestep)
            _, action = act(policy, (), batched, key, True)
            env_state, timestep = step(key, env_state, action[0])
            total += np.asarray(timestep.reward)
        np.testing.assert_allclose(values["episode_return"][episode], total.mean(), rtol=1e-4)


def test_sampled_evaluation_is_another_one(train):
    greedy, sampled = metrics(train()), metrics(train("evaluation.greedy=false"))
    np.testing.assert_array_equal(greedy.loss, sampled.loss)
    assert (greedy["evaluation/episode_return"] != sampled["evaluation/episode_return"]).all()


def test_the_bar_shows_on_a_terminal_only(train, monkeypatch, capsys):
    train()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with Display(1000, runs=3) as display:
        assert display.console.is_terminal
        display.compiling("the training")
        display.bar.refresh()
        display.advance(250, 1234.0, np.array([-30.75, 5.0, -10.25]), np.array([False, True, False]))
        display.bar.refresh()
    shown = capsys.readouterr().err
    for part in (
        "compiling the training",
        "training 3 runs",
        "25%",
        "250/1k steps",
        "1.23k steps/s",
        "-20.50 mean",
        "-10.25 best (1 diverged)",
    ):
        assert part in shown, part


def test_the_best_parameters_are_kept(train):
    table = metrics(train("hypers.lr=0.05"))
    best = table.groupby("run")["evaluation/episode_return"].cummax()
    np.testing.assert_allclose(table.best_return, best, rtol=1e-5)


@pytest.mark.parametrize("name", ["wandb_offline", "tensorboard"])
def test_loggers(train, name):
    folder = train(f"logger={name}")
    pattern = "wandb/offline-run-*/*.wandb" if name == "wandb_offline" else "tensorboard/events*"
    assert [p for p in folder.glob(pattern) if p.stat().st_size > 500]


def test_multirun(train, tmp_path):
    train("-m", "algo.num_envs=4,8", "env=mpe/simple_spread,mpe/simple_tag", "chunks=1", f"hydra.sweep.dir={tmp_path}")
    folders = sorted(p.parent.relative_to(tmp_path) for p in tmp_path.rglob("metrics.csv"))
    assert len(folders) == 4


def test_statistics_against_scipy():
    from scipy import stats

    values = np.random.default_rng(0).normal(size=(11, 3))
    np.testing.assert_allclose(statistics.iqm(values), stats.trim_mean(values, 0.25, axis=0))
    low, high = statistics.bootstrap(np.random.default_rng(1).normal(size=(400, 1)))
    width = float(high[0] - low[0])
    assert 0.15 < width < 0.3  # the IQM of a normal is about as sharp as its mean: 4 sigma / sqrt(400) = 0.2


def test_a_training_by_threefry_says_so_and_goes_on_to_the_same_bits(train, capsys):
    words = ("prng=threefry", "env=matrix/hidden", "hypers.lr_end=1", "evaluation.greedy=false")
    whole, cut = train(*words), train(*words, "total_steps=128", "chunks=2")
    assert "prng: threefry" in (cut / "config.yaml").read_text()
    train(f"resume={cut}", "total_steps=256", small=False)
    same_bits(whole, cut, files=("metrics.csv",))
    assert shoal.load(cut).policy() is not None
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train(f"resume={cut}", "prng=hash", small=False)
    assert "prng=hash: a resumed training cannot change this (it was threefry)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train("prng=rbg")
    assert "prng=rbg: must be one of hash, threefry" in capsys.readouterr().err
