"""What trainings record, read back: whole lines, broken lines, half a line at the end."""

from __future__ import annotations

import json

import pytest

import shoal
from shoal.folder.tables import diverged_runs, newest_rows, read_evaluations, swept_of_runs
from tests import made


def test_a_broken_line_and_half_a_line_are_told_apart(tmp_path):
    folder = made.training(tmp_path / "a", chunks=2, absolute=False)
    path = folder / "evaluations.jsonl"
    whole = path.read_text()
    assert [entry["env_steps"] for entry in read_evaluations(folder).entries] == [1000, 2000]
    path.write_text(whole + whole[:40])  # a training is writing it
    assert read_evaluations(folder).half == 3
    assert list(read_evaluations(folder).faults) == [3]
    assert len(shoal.load(folder)._entries) == 2
    path.write_text(whole + whole[:40] + "\n")
    assert read_evaluations(folder).half is None
    with pytest.raises(ValueError, match=r"evaluations.jsonl: line 3 cannot be read"):
        _ = shoal.load(folder)._entries
    path.write_text(whole.rstrip("\n"))  # nothing but its end is missing
    assert read_evaluations(folder) == ([json.loads(line) for line in whole.splitlines()], {}, None)
    path.unlink()
    assert read_evaluations(folder) == ([], {}, None)


def test_rows_that_cannot_be_read_count_for_nothing(tmp_path):
    path = tmp_path / "metrics.csv"
    assert newest_rows(tmp_path) == [] and diverged_runs(tmp_path) == set()
    path.write_text("run,seed,env_steps,lr,diverged\n0,0,10,0.00100000005,0\n1,1,10,0.01,1\n1,1\n0,0,20,0.1,1\n0,0,3")
    assert diverged_runs(tmp_path) == {0, 1}
    assert swept_of_runs(tmp_path, ["lr"]) == {0: {"lr": 0.001}, 1: {"lr": 0.01}}
    assert newest_rows(tmp_path) == [{"run": "0", "seed": "0", "env_steps": "20", "lr": "0.1", "diverged": "1"}]
