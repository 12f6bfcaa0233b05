"""A user's functions between chunks: what they are told, what they change, and what a resume makes of it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from examples.anneal_clip import CosineClip, stop_when_it_stands_still
from shoal.run import loop
from shoal.run.callbacks import Callback
from shoal.run.compile import compile_programs
from tests.conftest import ROOT
from tests.shoal.test_runner import same_bits

ENV = "env=matrix/climbing"


def metrics(folder):
    return pd.read_csv(folder / "metrics.csv")


class Spy(Callback):
    """Remembers what it was told; anneals by what it sees."""

    def __init__(self, fail_at: int = 0, stop_at: int = 0):
        self.chunks, self.evaluations, self.ends = [], [], []
        self.fail_at, self.stop_at = fail_at, stop_at

    def on_chunk(self, context):
        self.chunks.append(context)
        context.memory["seen"] = (*context.memory.get("seen", ()), context.chunk)
        if context.chunk == self.fail_at:
            raise RuntimeError("a mistake of mine")
        if context.chunk == self.stop_at:
            context.stop()
        scores = context.metrics["evaluation/episode_return"].to_numpy()
        return {"ent_coef": 0.1 + 0.01 * np.abs(scores), "gamma": 0.5 + 0.1 * context.progress}

    def on_evaluation(self, context):
        self.evaluations.append(context)

    def on_end(self, context):
        self.ends.append(context)


def test_what_a_callback_is_told_and_that_it_changes_the_next_chunk_only(train):
    spy = Spy()
    folder, plain = train(ENV, "sweep.lr=[1e-3,3e-3]", callbacks=[spy]), train(ENV, "sweep.lr=[1e-3,3e-3]")
    assert [c.chunk for c in spy.chunks] == [1, 2, 3, 4] and [c.progress for c in spy.chunks] == [0.25, 0.5, 0.75, 1]
    first, last = spy.chunks[0], spy.chunks[-1]
    assert (first.chunks, first.env_steps, first.total_steps, first.runs) == (4, 64, 256, [0, 1, 2, 3])
    assert first.folder == folder and first.config.seeds == 2 and (folder / "metrics.csv").exists()
    assert list(first.metrics.run) == [0, 1, 2, 3] and np.shape(first.episodes["episode_return"]) == (4, 2)
    assert all(type(value) in (int, float, bool) for row in first.rows for value in row.values())
    assert first.hypers["gamma"][0] != last.hypers["gamma"][0] and spy.ends[0].memory == {"seen": [1, 2, 3, 4]}
    assert [c.absolute for c in spy.evaluations] == [False] * 4 + [True]
    assert np.shape(spy.evaluations[-1].episodes["episode_return"]) == (4, 20)
    assert len(spy.ends) == 1 and spy.ends[0].finished
    changed, unchanged = metrics(folder), metrics(plain)
    at_first = changed.env_steps == 64
    np.testing.assert_array_equal(changed[at_first].loss, unchanged[at_first].loss)
    assert (changed[~at_first].loss != unchanged[~at_first].loss).all()
    np.testing.assert_allclose(
        changed[~at_first]["hypers/gamma"], 0.5 + 0.1 * (changed[~at_first].env_steps - 64) / 256
    )
    np.testing.assert_allclose(  # a value of its own for every run
        changed[~at_first]["hypers/ent_coef"],
        0.1 + 0.01 * changed[changed.env_steps < 256]["evaluation/episode_return"].abs(),
        rtol=1e-5,
    )
    assert not any(name.startswith("hypers/") for name in unchanged)


def test_a_constant_callback_is_a_constant_setting(train):
    """From the second chunk on: what a callback returns is what the command line would have set."""
    told = metrics(train(ENV, "hypers.lr_end=1", callbacks=[lambda context: {"vf_coef": 0.25, "lr": 0.0}]))
    assert (told["hypers/lr"][told.env_steps > 64] == 0).all()
    frozen = told[told.env_steps > 64].groupby("run")["entropy"].nunique()
    assert (frozen <= 2).all()  # no learning: the policy stands still


@pytest.mark.parametrize("harm", ["stop", "damage"])
def test_resume_to_the_bit(train, tmp_path, harm):
    """Changed hyperparameters and a callback's memory belong to the checkpoint that is gone on with."""
    words = [ENV, "seeds=3", "runs_per_batch=2"]
    whole = train(*words, callbacks=[Spy()])
    folder = train(*words, callbacks=[Spy(stop_at=3)])
    assert metrics(folder).env_steps.max() == 192 and len(metrics(folder)) == 6
    if harm == "damage":
        newest = folder / "checkpoints" / "batch_0" / "3"
        saved = json.loads((newest / "callbacks.json").read_text())
        before = json.loads((newest.parent / "2" / "callbacks.json").read_text())
        assert saved["memory"]["Spy"]["seen"] == [1, 2, 3] and before["memory"]["Spy"]["seen"] == [1, 2]
        assert saved["hypers"]["gamma"] != before["hypers"]["gamma"]
        (newest / "callbacks.json").write_text(json.dumps(saved | {"hypers": before["hypers"]}))  # by hand: not trusted
    spy = Spy()
    train(f"resume={folder}", small=False, callbacks=[spy])
    assert spy.chunks[0].chunk == (3 if harm == "damage" else 4)
    assert list(spy.chunks[0].memory["seen"]) == [1, 2, 3, 4][: spy.chunks[0].chunk]
    same_bits(whole, folder)


def test_a_failing_callback_costs_nothing(train, capsys):
    whole = train(ENV, callbacks=[Spy()])
    folder = whole.with_name("failed")
    with pytest.raises(RuntimeError, match="a mistake of mine") as failure:
        train(ENV, "checkpoint.every=4", callbacks=[Spy(fail_at=3)], folder=folder)
    note = "".join(failure.value.__notes__)
    assert "callback Spy failed after chunk 3" in note and f"resume={folder} goes on" in note
    assert sorted(p.name for p in (folder / "checkpoints" / "batch_0").iterdir()) == ["3"]
    mended = Spy()
    train(f"resume={folder}", small=False, callbacks=[mended])
    assert [c.chunk for c in mended.chunks] == [3, 4]  # its turn again, with the same numbers
    same_bits(whole, folder)


def test_going_on_without_callbacks_keeps_what_they_changed(train):
    folder = train(ENV, callbacks=[Spy(stop_at=2)])
    train(f"resume={folder}", small=False)
    saved = json.loads((folder / "checkpoints" / "batch_0" / "4" / "callbacks.json").read_text())
    np.testing.assert_allclose(saved["hypers"]["gamma"], 0.55)
    table = metrics(folder)
    assert len(table) == 8 and table["hypers/gamma"].isna().sum() == 4  # nobody to tell them


def test_nothing_compiles_again(train, monkeypatch):
    """The chunk is one compiled program, called with other numbers."""
    programs, calls = [], []
    original = compile_programs

    def compiling(plan, display):
        made = original(plan, display)
        programs.append(made)
        chunk = made.chunk
        made.chunk = lambda state, hypers: calls.append(np.asarray(hypers.gamma)[0]) or chunk(state, hypers)
        return made

    monkeypatch.setattr(loop, "compile_programs", compiling)
    train(ENV, callbacks=[Spy()])
    assert len(programs) == 1 and len(set(calls)) == 4


@pytest.mark.parametrize(
    ("callback", "line"),
    [
        (lambda c: {"clip": 0.1}, "callback <lambda>: clip is not a hyperparameter; these are: lr, lr_end, gamma"),
        (lambda c: {"gamma": 1.5}, "callback <lambda>: gamma=1.5: must be in [0, 1]"),
        (lambda c: {"gamma": float("nan")}, "callback <lambda>: gamma=nan: must be a finite number"),
        (lambda c: {"gamma": [0.1, 0.2, 0.3]}, "must be a number, or one for each of 2 runs"),
        (lambda c: c.memory.update(x=np.zeros(2)), "context.memory: must be what JSON can hold"),
        (3, "callback int: needs one of on_chunk, on_evaluation, on_end, or to be a function"),
    ],
)
def test_mistakes_are_one_line(train, capsys, callback, line):
    with pytest.raises(SystemExit):
        train(ENV, callbacks=[callback])
    said = capsys.readouterr().err.strip()
    assert line in said and "Traceback" not in said and len(said.splitlines()) == 1


def test_callbacks_by_name(train, capsys, tmp_path, monkeypatch):
    """From a file, from a module; the folder remembers where, and a resume has them named again."""
    example = ROOT / "examples" / "anneal_clip.py"
    shutil.copy(example, tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    folder = train(ENV, "callbacks=[mine.py:CosineClip,examples.anneal_clip:stop_when_it_stands_still]")
    given = train(ENV, callbacks=[CosineClip(), stop_when_it_stands_still])
    same_bits(folder, given)
    clip = metrics(folder)
    clip = clip[clip.run == 0]["hypers/clip_eps"].to_numpy()
    np.testing.assert_allclose(clip / clip[0], 0.1 + 0.45 * (1 + np.cos(np.pi * np.arange(4) / 4)), rtol=1e-5)
    monkeypatch.chdir("/")
    words = f"callbacks=[{tmp_path}/mine.py:CosineClip,examples.anneal_clip:stop_when_it_stands_still]"
    with pytest.raises(SystemExit):
        train(f"resume={folder}", small=False)
    assert f"was trained with {words}, and a folder runs no code by itself" in capsys.readouterr().err
    train(f"resume={folder}", words, small=False)
    for word, line in (
        ("none.py:X", "callbacks=none.py: no such Python file"),
        ("nowhere.at_all:X", "callbacks=nowhere.at_all: no module nowhere"),
        (f"{example}:Nothing", "has no Nothing"),
        ("CosineClip", "callbacks=CosineClip: write path/to/file.py:Name or package.module:Name"),
    ):
        with pytest.raises(SystemExit):
            train(ENV, f"callbacks=[{word}]", folder=tmp_path / "none")
        said = capsys.readouterr().err.strip()
        assert line in said and len(said.splitlines()) == 1
        assert not (tmp_path / "none").exists()
