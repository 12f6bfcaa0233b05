"""The soak script runs; what a leak and a diverged training look like to it."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from tools import soak


def test_a_trial_of_two_updates():
    trial = soak.Trial("maddpg", "prioritised", "odd")
    found = soak.soak(trial, steps=512, chunks=2)
    assert found["updates"] == 2 and found["steps"] == 512 and found["finite"]
    assert len(found["memory_bytes"]) == 2 and found["memory_growth_bytes"] == 0
    assert {t.name for t in soak.trials()} >= {trial.name, "matd3 prioritised odd", "pqn", "recipe"}


def test_matd3_has_two_critics_and_the_recipe_its_replay():
    def shapes(trial: soak.Trial):
        algorithm, hypers, runs = soak.prepared(trial, steps=512)
        state = jax.eval_shape(lambda key: algorithm.init(key, hypers), jax.random.PRNGKey(0))
        return [leaf.shape for leaf in jax.tree.leaves(state)], runs

    twins, one = (shapes(soak.Trial(file, "uniform", "odd"))[0] for file in ("matd3", "maddpg"))
    assert sum(map(math.prod, twins)) > sum(map(math.prod, one))
    recipe, runs = shapes(soak.Trial("recipe", "", ""))
    assert runs == 4 and (20_000,) in recipe  # 625 rows of 32 priorities


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
