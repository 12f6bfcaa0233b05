"""What resets of VMAS's tasks draw together, and where discovery's targets go: the laws of pairs and of events."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from tests.envs.test_vmas import alike, load, make, recorded, run

RESETS = 2000


def spawned(task: str, **kwargs):
    """The environment, and what many resets of it start with."""
    env = make(task, **kwargs)
    return env, run(jax.vmap(env.spawn), jax.random.split(jax.random.key(0), RESETS))


def unrelated(values: np.ndarray) -> None:
    """Whether the columns of ``[R, n]`` do not go together, as far as ``R`` draws tell."""
    related = np.corrcoef(values.T) - np.eye(values.shape[1])
    assert np.abs(related).max() < 4.5 / np.sqrt(len(values))


def evenly(values: np.ndarray, choices: int) -> None:
    """Whether the whole numbers ``[R]`` are all equally frequent."""
    shares = np.bincount(values, minlength=choices) / len(values)
    assert len(shares) == choices
    np.testing.assert_allclose(shares, 1 / choices, atol=4.5 * np.sqrt(1 / choices / len(values)))


@pytest.mark.parametrize("task, landmarks", [("simple_adversary", 2), ("simple_push", 2), ("simple_adversary", 4)])
def test_all_have_the_same_goal(task, landmarks):
    env, start = spawned(task, **({"n_agents": 5, "n_adversaries": 2} if landmarks == 4 else {}))
    goal = start["goal"].astype(int)
    assert goal.shape == (RESETS, env.num_agents)
    np.testing.assert_array_equal(goal, np.repeat(goal[:, :1], env.num_agents, axis=1))
    evenly(goal[:, 0], landmarks)
    unrelated(np.concatenate([goal[:, :1], start["pos"].reshape(RESETS, -1)], axis=1))


def test_speakers_know_a_goal():
    _, start = spawned("simple_speaker_listener")
    goal = start["goal_b"]
    np.testing.assert_array_equal(goal[:, 1], -1)
    evenly(goal[:, 0], 3)
    unrelated(np.concatenate([goal[:, :1], start["pos"].reshape(RESETS, -1)], axis=1))


def test_two_goals_are_drawn_independently():
    _, start = spawned("simple_reference")
    evenly(start["goal_b"] @ np.array([3, 1]), 9)
    unrelated(np.concatenate([start["goal_b"], start["pos"].reshape(RESETS, -1)], axis=1))


def test_secrets_and_keys_are_independent_bits():
    _, start = spawned("simple_crypto", dim_c=6)
    bits = np.concatenate([start["secret"], start["key"]], axis=1)
    assert set(np.unique(bits)) == {0, 1}
    np.testing.assert_allclose(bits.mean(axis=0), 0.5, atol=4.5 * 0.5 / np.sqrt(RESETS))
    unrelated(bits)


def test_gaussians_are_anywhere_and_apart_from_agents():
    env, start = spawned("sampling", xdim=0.5, ydim=1.5, grid_spacing=0.25)
    locs = start["locs"]
    assert locs.shape == (RESETS, 3, 2)
    alike(locs, np.linspace(-1, 1, 33)[:, None, None] * np.broadcast_to(env.size, (3, 2)), 10**9, "locs")
    unrelated(np.concatenate([locs, start["pos"]], axis=1).reshape(RESETS, -1))


def test_agents_that_do_not_collide_may_start_at_one_place():
    env, start = spawned("sampling", collisions=False, spawn_same_pos=True)
    assert env.lidar is None and not start["pos"].any()
    _, apart = spawned("sampling", collisions=False)
    assert (np.linalg.norm(apart["pos"][:, 0] - apart["pos"][:, 1], axis=-1) > 0).all()


def test_an_agent_and_its_goal_have_the_same_place_in_the_cross():
    env, start = spawned("passage")
    theirs = np.concatenate([load("passage")["default"][f"{kind}/pos"][:, 0] for kind in ("random", "push")])
    for pos in (start["pos"], theirs):
        goals, agents = pos[:, :5], pos[:, env.bodies]
        centred = [places - places.mean(axis=1, keepdims=True) for places in (goals, agents)]
        np.testing.assert_allclose(*centred, atol=1e-6)
    offsets = start["pos"][:, env.bodies] - start["pos"][:, env.bodies].mean(axis=1, keepdims=True)
    slots = np.round(offsets / 0.1).astype(int) @ np.array([3, 1])  # -3, -1, 0, 1, 3
    slots = np.searchsorted([-3, -1, 0, 1, 3], slots)
    np.testing.assert_array_equal(np.sort(slots, axis=1), np.tile(np.arange(5), (RESETS, 1)))
    for i in range(5):
        evenly(slots[:, i], 5)


def test_covered_targets_go_where_the_originals_do():
    record, env = recorded("discovery", "default")
    assert env.targets_respawn and json.loads(record["kwargs"].item()) == {}
    pos = record["respawn/pos"]
    action = np.zeros((env.num_agents, 2), np.float32)
    step = jax.vmap(lambda key: env.step(key, env.restore(pos), action)[0].pos)
    found = run(step, jax.random.split(jax.random.key(0), RESETS))
    np.testing.assert_allclose(found[:, 1:], np.broadcast_to(pos[1:], found[:, 1:].shape), atol=1e-5)
    alike(found[:, 0], record["respawn/places"], 1000, "places")
    nearest = np.linalg.norm(found[:, 1:] - found[:, :1], axis=-1).min(axis=1)
    alike(nearest, record["respawn/nearest"], 1000, "nearest")
