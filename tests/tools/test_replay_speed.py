"""The comparison with flashbax's prioritised replay runs; how often that goes wrong is in results/."""

from __future__ import annotations

import pytest

from tools import replay_speed


@pytest.mark.parametrize("name", ["ours", pytest.param("flashbax", marks=pytest.mark.thorough)])
def test_faults_are_counted(name):
    found = replay_speed.faults(name, count=4)
    assert found["draws"] == 4096 and found["draws of empty slots"] == 0
    new = found["priority of a new item, the highest being 1.9"]
    assert new == pytest.approx(1.9 if name == "ours" else 1.0, abs=1e-3)


@pytest.mark.thorough
def test_an_update_of_each_is_timed(monkeypatch):
    monkeypatch.setattr(replay_speed, "TIMED", 1)
    assert all(time > 0 for time in replay_speed.microseconds(20_000, runs=1, repetitions=1).values())
