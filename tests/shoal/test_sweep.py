"""The run axis: which run is which."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from shoal.baselines.ippo.ippo_ff_mpe import Hypers
from shoal.errors import UserError
from shoal.run.sweep import expand, sweep_points


def test_grid_is_points_times_seeds():
    runs = expand(Hypers(), {"mode": "grid", "lr": [1e-4, 1e-3], "ent_coef": [0, 0.01, 0.1]}, seeds=4, first_seed=7)
    assert len(runs) == 24
    assert runs.swept == ["lr", "ent_coef"]
    assert runs.points[4] == {"lr": 1e-3, "ent_coef": 0.01}
    np.testing.assert_array_equal(runs.seed[:5], [7, 8, 9, 10, 7])
    np.testing.assert_allclose(runs.hypers.lr, np.repeat([1e-4, 1e-3], 12))
    np.testing.assert_allclose(runs.hypers.gamma, np.full(24, 0.99))


def test_the_same_seed_has_the_same_key_at_every_point():
    runs = expand(Hypers(), {"lr": [1e-4, 1e-3]}, seeds=3)
    keys, _ = runs.select(np.arange(6))
    np.testing.assert_array_equal(keys[:3], keys[3:])
    assert len(np.unique(np.asarray(keys), axis=0)) == 3
    np.testing.assert_array_equal(keys[1], jax.random.PRNGKey(1))
    alone, _ = expand(Hypers(), {}, seeds=1, first_seed=2).select(np.arange(1))
    np.testing.assert_array_equal(keys[2], alone[0])


def test_points_that_are_not_paired_have_luck_of_their_own():
    runs = expand(Hypers(), {"lr": [1e-4, 1e-3], "paired": False}, seeds=3, first_seed=5)
    assert runs.swept == ["lr"]
    keys, _ = runs.select(np.arange(6))
    assert len(np.unique(keys, axis=0)) == 6
    np.testing.assert_array_equal(keys[:3, 1], [5, 6, 7])
    np.testing.assert_array_equal(keys[0], jax.random.PRNGKey(5))  # the first point's are the plain runs


def test_zip_and_random():
    assert sweep_points(Hypers, {"mode": "zip", "lr": [1, 2], "gamma": [0.5, 0.6]}) == [
        {"lr": 1.0, "gamma": 0.5},
        {"lr": 2.0, "gamma": 0.6},
    ]
    drawn = sweep_points(Hypers, {"mode": "random", "num": 500, "lr": {"min": 1e-5, "max": 1e-2, "log": True}})
    logs = np.log10([point["lr"] for point in drawn])
    assert logs.min() >= -5
    assert logs.max() <= -2
    assert abs(logs.mean() + 3.5) < 0.15
    assert drawn == sweep_points(Hypers, {"mode": "random", "num": 500, "lr": {"min": 1e-5, "max": 1e-2, "log": True}})


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"mode": "zip", "lr": [1], "gamma": [0.5, 0.6]}, "equally long"),
        ({"lr": {"min": 1, "max": 2}}, "sweep.mode=random"),
        ({"mode": "random", "lr": {"min": 0, "max": 2, "log": True}}, "min > 0"),
        ({"mode": "random", "lr": {"low": 0}}, "a range is"),
        ({"gamma": [0.9, 1.2]}, "sweep.gamma=1.2: must be in [0, 1]"),
        ({"momentum": [1]}, "not a hyperparameter"),
        ({"mode": "diagonal", "lr": [1]}, "grid, zip, random"),
    ],
)
def test_mistakes_are_named(sweep, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[").replace("]", r"\]")):
        sweep_points(Hypers, sweep)
