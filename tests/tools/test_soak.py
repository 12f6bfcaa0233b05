"""The soak script runs; what a leak and a diverged training look like to it."""

from __future__ import annotations

import numpy as np
import pytest

from tools import soak


def test_a_trial_of_two_updates():
    trial = soak.Trial("maddpg", "prioritised", "odd")
    found = soak.soak(trial, steps=512, chunks=2)
    assert found["updates"] == 2 and found["steps"] == 512 and found["finite"]
    assert len(found["memory_bytes"]) == 2 and found["memory_growth_bytes"] == 0
    assert {t.name for t in soak.trials()} >= {trial.name, "qmix uniform smallest", "pqn"}


@pytest.mark.thorough
def test_a_training_that_diverges_is_named(monkeypatch):
    module = soak.FILES["masac"]
    hypers = module.Hypers
    monkeypatch.setattr(module, "Hypers", lambda: hypers(lr=np.inf))
    with pytest.raises(SystemExit, match="masac uniform smallest: not finite after 256 steps"):
        soak.soak(soak.Trial("masac", "uniform", "smallest"), steps=256, chunks=1)


def test_memory_may_grow_while_it_warms_up_only():
    assert soak.growth([1, 5, 9, 9, 10, 10, 10, 10]) == 0
    assert soak.growth([1, 5, 9, 9, 10, 10, 12, 14]) == 4
