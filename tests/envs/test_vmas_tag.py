"""simple_tag with ``respawn_at_catch``, whose places are random: rewards are those of VMAS from the same states."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from shoal import envs

AGENTS = [[0, 0], [0.05, 0.05], [-0.8, -0.8], [0.03, -0.02], [-0.8, -0.75]]  # the good ones, touched by two and by one
SHAPED = {"shape_agent_rew": True, "shape_adversary_rew": True}


def caught(key=0, **kwargs):
    """The state in which both good agents are caught, and what comes of it."""
    env = envs.make("vmas/simple_tag", num_good_agents=2, respawn_at_catch=True, bound=0.9, **kwargs).env
    state = env.restore([[0.9, -0.9], [0.9, -0.89], *AGENTS], vel=np.full((7, 2), 0.1))
    return env, state, *env.reward(jax.random.key(key), state)[:2]


@pytest.mark.parametrize(
    "kwargs, expected",
    [
        ({}, [30, 30, 30, -20, -10]),
        ({"adversaries_share_rew": False, "agents_share_rew": True}, [10, 10, 10, -30, -30]),
        (SHAPED, [29.9841, 29.9841, 29.9841, -19.8752, -9.7686]),
        ({**SHAPED, "adversaries_share_rew": False}, [9.9964, 9.9927, 9.995, -19.8752, -9.7686]),
        ({**SHAPED, "agents_share_rew": True}, [29.9841, 29.9841, 29.9841, -29.6438, -29.6438]),
    ],
)
def test_all_are_paid_before_anyone_respawns(kwargs, expected):
    np.testing.assert_allclose(caught(**kwargs)[3], expected, atol=1e-4)


def test_the_caught_start_again_at_rest():
    _, before, after, _ = caught()
    np.testing.assert_array_equal(after.pos[:-2], before.pos[:-2])
    np.testing.assert_array_equal(after.vel[:-2], before.vel[:-2])
    assert not after.vel[-2:].any() and (after.pos[-2:] != before.pos[-2:]).all()
    places = np.stack([caught(key)[2].pos[-2:] for key in range(30)])
    assert np.abs(places).max() < 0.9 and places.min() < -0.6 and places.max() > 0.6


def test_the_free_stay():
    env, state, _, _ = caught()
    free = state.replace(pos=state.pos.at[-1].set(np.array([-0.8, 0.75])))
    after, reward, _ = env.reward(jax.random.key(0), free)
    np.testing.assert_array_equal(after.pos[-1], free.pos[-1])
    np.testing.assert_array_equal(reward, [20, 20, 20, -20, 0])
