"""What a critic gets, by gradient: each value's dependence on every observation and on the state."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from shoal.envs.wrappers import View
from shoal.errors import UserError
from shoal.nn.models import Model
from shoal.rl.critics import CRITICS, CriticView
from tests.baselines.toy import CENTRAL, RECURRENT, made, params_of, value

ALIVE = np.array([True, False, True])
NOTHING, EVERYBODY, ITSELF = np.zeros((3, 3)), np.ones((3, 3)), np.eye(3)
SEES = {  # whose observations, and whether the state
    "state": (NOTHING, True),
    "observations": (EVERYBODY * ALIVE, False),
    "agent_state": (ITSELF, True),
    "local": (ITSELF, False),
}
MIXING = {
    "observations": (EVERYBODY * ALIVE + ITSELF > 0, False),  # a dead agent still sees itself, and nobody listens
    "agent_state": (EVERYBODY * ALIVE + ITSELF > 0, True),
}


def influence(name: str, obs_of_dead: float = 1.0, **changes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values ``[A]``, and whether each depends on each observation ``[A, A]`` and on the state ``[A]``."""
    algorithm = made(name, **changes)
    params = params_of(algorithm)
    obs = np.random.default_rng(0).normal(size=(1, 3, 6)).astype(np.float32)
    obs[:, ~ALIVE] *= obs_of_dead
    state = np.linspace(-1, 1, 4, dtype=np.float32)[None]
    memory = algorithm.memories(1)["critic"] if name in RECURRENT else ()

    @jax.jit
    def values(obs, state):
        x = View(obs[None], state[None], ALIVE[None, None], np.zeros((1, 1), bool))
        stats = {"actor": None, "critic": None} if name in CENTRAL else None
        return value(algorithm, params, stats, x, memory)[1][0, 0]

    by_obs, by_state = jax.jit(jax.jacrev(values, (0, 1)))(obs, state)
    assert np.isfinite(by_obs).all() and np.isfinite(by_state).all()
    return values(obs, state), np.abs(by_obs).sum(axis=(1, 3)) > 0, np.abs(by_state).sum(axis=(1, 2)) > 0


@pytest.mark.parametrize("sharing", ["shared", "independent"])
@pytest.mark.parametrize("kind", CRITICS)
@pytest.mark.parametrize("name", CENTRAL)
def test_a_critic_sees_what_its_input_says(name, kind, sharing):
    values, by_obs, by_state = influence(name, critic_input=kind, sharing=sharing)
    np.testing.assert_array_equal(by_obs, SEES[kind][0])
    np.testing.assert_array_equal(by_state, SEES[kind][1])
    assert len(np.unique(values)) == 3  # every agent has a value of its own


@pytest.mark.parametrize("kind", MIXING)
@pytest.mark.parametrize(("name", "model"), [("mappo_ff", "gnn"), ("mappo_rnn", "deepsets")])
def test_a_critic_that_mixes_sees_all_living_agents(name, model, kind):
    critic = Model("gru", (8,), torso=model, hidden=6) if name in RECURRENT else Model(model, (8,))
    _, by_obs, by_state = influence(name, critic=critic, critic_input=kind, sharing="group")
    np.testing.assert_array_equal(by_obs, MIXING[kind][0])
    np.testing.assert_array_equal(by_state, MIXING[kind][1])


@pytest.mark.parametrize("name", ["ippo_ff", "ippo_rnn"])
def test_an_independent_critic_sees_its_own_observation(name):
    _, by_obs, by_state = influence(name)
    np.testing.assert_array_equal(by_obs, ITSELF)
    assert not by_state.any()


@pytest.mark.parametrize("poison", [1e6, np.nan])
@pytest.mark.parametrize("name", CENTRAL)
def test_a_dead_agents_observation_is_blank_to_a_central_critic(name, poison):
    clean, poisoned = (influence(name, by, critic_input="observations")[0] for by in (1.0, poison))
    np.testing.assert_array_equal(clean, poisoned)


def view_of(kind: str, model: Model, shape: tuple[int, ...] = (), size: int = 0) -> CriticView:
    """Of two agents under two policies, with a state of 3."""
    size = size or int(np.prod(shape))
    env = SimpleNamespace(num_agents=2, obs_size=size, state_size=3, obs_shape=shape, position=None)
    return CriticView(kind, model, env, np.array([0, 1]))


def test_rows_are_what_the_table_says():
    obs, state, alive = np.arange(8.0).reshape(2, 4), np.array([9.0, 8.0, 7.0]), np.array([True, False])
    for kind, expected in {
        "state": [state, state],
        "observations": [np.r_[obs[0], np.zeros(4)]] * 2,
        "agent_state": [np.r_[obs[0], state], np.r_[obs[1], state]],
        "local": obs,
    }.items():
        view = view_of(kind, Model(), size=4)
        np.testing.assert_array_equal(view(obs, state, alive), expected)
        assert view.size == np.shape(expected)[1]
        assert view.values == (2 if view.central else 1)
        np.testing.assert_array_equal(view.alive(alive), [True, True] if view.central else alive)


def test_each_agent_gets_the_value_that_its_policy_says_of_it():
    values = np.arange(4.0).reshape(2, 2)  # [K, V]
    np.testing.assert_array_equal(view_of("state", Model(), size=4).of_agents(values), [0.0, 3.0])
    np.testing.assert_array_equal(view_of("local", Model(), size=4).of_agents(values[:, :1]), [0.0, 2.0])


def test_images_lie_over_each_other_and_what_stands_behind_follows():
    shape = (2, 3, 4)
    view = view_of("observations", Model("cnn"), shape, size=24 + 2)
    images, behind = np.arange(48.0).reshape(2, *shape), np.array([[-1.0, -2.0], [-3.0, -4.0]])
    obs = np.concatenate([images.reshape(2, -1), behind], axis=-1)
    row = np.asarray(view(obs, np.zeros(3), np.ones(2, bool)))[0]
    assert view.inputs.shape == (2, 3, 8)
    np.testing.assert_array_equal(row[:48].reshape(2, 3, 8), np.concatenate([images[0], images[1]], axis=-1))
    np.testing.assert_array_equal(row[48:], behind.reshape(-1))


def test_tables_of_entities_make_one_table():
    assert view_of("observations", Model(), (5, 3)).inputs.shape == (10, 3)
    assert view_of("observations", Model(), (5, 3), size=17).inputs.shape == ()  # ids between them
    assert view_of("agent_state", Model(), (5, 3)).inputs.shape == (5, 3)
    assert view_of("state", Model(), (5, 3)).inputs.shape == ()


@pytest.mark.parametrize(
    ("kind", "model", "message"),
    [
        ("state", Model("deepsets"), "algo.critic_input=state: deepsets reads all agents"),
        ("local", Model("gru", torso="gnn"), "algo.critic_input=local: gnn reads all agents"),
        ("state", Model("cnn"), "algo.critic_input=state: a state is no image"),
    ],
)
def test_what_cannot_be_is_said(kind, model, message):
    with pytest.raises(UserError, match=message):
        view_of(kind, model, (2, 2, 2)).check()
    view_of("observations", model, (2, 2, 2)).check()
