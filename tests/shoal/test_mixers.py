"""VDN is the sum, QMIX is monotonic and knows the state, and no mixture looks over the team's edge."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.rl.mixers import Mixing, QMixer

TEAMS = np.array([0, 1, 0, 0])
STATE = 5


def mixing(kind: str) -> Mixing:
    return Mixing(kind, QMixer(width=8, hyper_width=16), TEAMS)


def rows(count: int = 64):
    keys = jax.random.split(jax.random.PRNGKey(1), 3)
    chosen = 3.0 * jax.random.normal(keys[0], (count, 4))
    return chosen, jax.random.normal(keys[1], (count, STATE)), jnp.ones((count, 4), bool)


def params(kind: str):
    return mixing(kind).init(jax.random.PRNGKey(0), STATE)


def slopes(kind: str, chosen, state, alive):
    """``[rows, M, A]``: how each team's value follows each agent's."""
    one = lambda c, s, a: jax.jacobian(lambda c: mixing(kind)(params(kind), c, s, a))(c)  # noqa: E731
    return np.asarray(jax.vmap(one)(chosen, state, alive))


def test_vdn_is_the_sum_of_each_team():
    chosen, state, alive = rows()
    expected = np.stack([chosen[:, team == TEAMS].sum(-1) for team in range(2)], axis=-1)
    np.testing.assert_allclose(mixing("vdn")({}, chosen, state, alive), expected, rtol=1e-5)


def test_none_leaves_everyone_to_himself():
    chosen, state, alive = rows()
    np.testing.assert_array_equal(mixing("none")({}, chosen, state, alive), chosen)
    np.testing.assert_array_equal(slopes("none", chosen, state, alive)[0], np.eye(4))


def test_qmix_is_monotonic_and_not_linear():
    slope = slopes("qmix", *rows())
    members = np.arange(2)[:, None] == TEAMS
    assert (slope[:, members] >= 0).all() and (slope[:, members] > 0).mean() > 0.99
    assert (slope[:, ~members] == 0).all()  # the other team's values are none of its business
    chosen, state, alive = rows()
    moved = slopes("qmix", chosen + 2.0, state, alive)
    assert not np.allclose(slope, moved)


def test_qmix_uses_the_state():
    chosen, state, alive = rows()
    assert not np.allclose(slopes("qmix", chosen, state, alive), slopes("qmix", chosen, -state, alive))


@pytest.mark.parametrize("kind", ["qmix", "vdn", "none"])
def test_the_dead_add_nothing(kind):
    chosen, state, alive = rows()
    alive = alive.at[:, 2].set(False)
    poisoned = chosen.at[:, 2].set(1e9)
    mix = mixing(kind)
    np.testing.assert_array_equal(mix(params(kind), chosen, state, alive), mix(params(kind), poisoned, state, alive))
    assert not np.array_equal(
        mix(params(kind), chosen, state, ~alive), mix(params(kind), poisoned, state, ~alive)
    )  # the living do


def test_rewards_and_lives_of_teams():
    reward = jnp.array([1.0, 5.0, 2.0, 6.0])
    np.testing.assert_allclose(mixing("vdn").reward(reward), [3.0, 5.0])
    np.testing.assert_allclose(mixing("none").reward(reward), reward)
    alive = jnp.array([False, False, True, False])
    np.testing.assert_array_equal(mixing("qmix").earning(alive), [True, False])
    np.testing.assert_array_equal(mixing("none").earning(alive), alive)


def test_every_team_weighs_alike():
    x = jnp.array([[1.0, 10.0]])
    total = mixing("vdn").mean(x, jnp.ones((1, 2), bool), np.zeros(4, int))
    np.testing.assert_allclose(total, 11.0)
    shared, independent = np.zeros(4, int), np.arange(4)
    values, where = jnp.array([[1.0, 2.0, 3.0, 4.0]]), jnp.ones((1, 4), bool)
    np.testing.assert_allclose(mixing("none").mean(values, where, shared), 2.5)
    np.testing.assert_allclose(mixing("none").mean(values, where, independent), 10.0)


def test_options_of_the_hypernetworks():
    """Linear ones have one layer and stay monotonic; the state's scale is seen."""
    chosen, state, alive = rows(16)
    linear = Mixing("qmix", QMixer(width=8, hyper_width=0), TEAMS)
    learnt = linear.init(jax.random.PRNGKey(0), STATE)
    assert (
        not {"w_1_hidden", "w_2_hidden"} & set(learnt["mixer"]) and learnt["mixer"]["w_1"]["kernel"].shape[1] == STATE
    )
    slope = jax.vmap(jax.jacobian(lambda c, s, a: linear(learnt, c, s, a)))(chosen, state, alive)
    assert (np.asarray(slope) >= 0).all() and (np.asarray(slope) > 0).any()
    small, large = (linear(learnt, chosen, scale * state, alive) for scale in (1.0, 10.0))
    assert not np.allclose(small, large, rtol=1e-3, atol=1e-3)
