"""The worked example of docs/scenarios.md, and that the text runs and shows the file as it is."""

from __future__ import annotations

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.envs import registry
from shoal.envs.vmas.scenarios import complex_speaker_listener as example
from tests.conftest import ROOT

KEY = jax.random.key(0)


def make(**kwargs):
    """The task without its time limit."""
    return envs.make("vmas/complex_speaker_listener", **kwargs).env


def run(function, *args):
    """``function(*args)``, compiled in a hurry because it runs once."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})(*args)


def scene(env, **given):
    """Landmarks in a row on the x axis, the speaker far above, listeners in a row below the first landmarks."""
    row = np.stack([0.5 * np.arange(env.n_landmarks), np.zeros(env.n_landmarks)], axis=1)
    listeners = np.stack([0.5 * np.arange(env.n_listeners), np.full(env.n_listeners, -1.0)], axis=1)
    return env.restore(np.concatenate([row, [[0.0, 5.0]], listeners]), **given)


def said(env, words):
    """Everyone stands still and the speaker says ``words``."""
    return jnp.zeros((env.num_agents, env.action_space.size)).at[0, 2:].set(words)


@pytest.mark.parametrize("listeners, landmarks", [(2, 5), (3, 4), (1, 1)])
def test_shapes(listeners, landmarks):
    env = make(n_listeners=listeners, n_landmarks=landmarks)
    words = listeners * landmarks
    assert env.agents == ("speaker_0", *(f"listener_{i}" for i in range(listeners)))
    assert env.entities == (*(f"landmark {i}" for i in range(landmarks)), *env.agents)
    assert env.obs_sizes == (words, *[2 + 2 * landmarks + 2 * (listeners - 1) + words] * listeners)
    assert env.action_space.sizes == (2 + words, *[2] * listeners)
    state, timestep = run(env.reset, KEY)
    assert timestep.obs.shape == (1 + listeners, env.obs_size)
    assert state.comm.shape == (1 + listeners, words) and not state.comm.any()
    assert not timestep.obs[1:, -words:].any()  # nobody has spoken yet


def test_goals_are_drawn_and_shown_to_the_speaker_alone():
    env = make()
    state, timestep = run(jax.vmap(env.reset), jax.random.split(KEY, 200))
    assert set(np.unique(state["goal"])) == set(range(5))
    shown = timestep.obs[:, 0, :10].reshape(200, 2, 5)
    np.testing.assert_array_equal(shown, jax.nn.one_hot(state["goal"], 5))
    one, other = (env.observe(KEY, scene(env, goal=goal)) for goal in ([1, 2], [4, 0]))
    np.testing.assert_array_equal(one[1:], other[1:])


def test_a_message_reaches_every_listener_and_is_gone_after_the_next_step():
    env = make(c_noise=0.0)
    words = jnp.linspace(0, 1, 10)
    state, timestep = run(env.step, KEY, scene(env), said(env, words))
    np.testing.assert_array_equal(state.comm, jnp.zeros((3, 10)).at[0].set(words))
    np.testing.assert_array_equal(timestep.obs[1:, -10:], jnp.stack([words, words]))
    timestep = run(env.step, KEY, state, said(env, 0.0))[1]
    assert not timestep.obs[1:, -10:].any()


def test_a_discrete_message_is_one_hot():
    env = make(c_noise=0.0, continuous=False)
    assert env.action_space.sizes == (90, 9, 9)
    obs = run(env.step, KEY, scene(env), jnp.array([7, 0, 0]))[1].obs
    np.testing.assert_array_equal(obs[1:, -10:], np.tile(np.arange(10) == 7, (2, 1)))


def test_noise_acts_on_the_message_alike_for_all_who_hear_it():
    env = make(c_noise=0.3)
    step = jax.vmap(lambda key: env.step(key, scene(env), said(env, 0.5)))
    state, timestep = run(step, jax.random.split(KEY, 2000))
    heard = timestep.obs[:, 1:, -10:]  # [2000, listeners, words]
    np.testing.assert_array_equal(heard[:, 0], heard[:, 1])
    np.testing.assert_allclose(heard.mean(axis=(0, 1)), 0.5, atol=0.04)
    np.testing.assert_allclose(heard.std(axis=(0, 1)), 0.3, atol=0.03)
    assert not state.comm[:, 1:].any()  # listeners are silent, noise or not


def test_reward_and_observation_by_hand():
    env = make()
    state = scene(env, goal=[0, 3])  # listener_0 at (0, -1), listener_1 at (0.5, -1); goals at (0, 0) and (1.5, 0)
    _, reward, info = env.reward(KEY, state)
    np.testing.assert_allclose(reward, -(1 + np.sqrt(2)) / 2 * np.ones(3), rtol=1e-6)
    np.testing.assert_array_equal(info["arrived"], np.zeros(3))
    there = state.replace(pos=state.pos.at[-1].set(jnp.array([1.5, 0.05])))
    np.testing.assert_allclose(env.reward(KEY, there)[1], -1.05 / 2 * np.ones(3), rtol=1e-6)
    np.testing.assert_array_equal(env.reward(KEY, there)[2]["arrived"], np.full(3, 0.5))
    landmarks = [[0.5 * i - 0.5, 1.0] for i in range(5)]
    expected = np.concatenate([[0, 0], np.ravel(landmarks), [-0.5, 0], np.zeros(10)])
    np.testing.assert_allclose(env.observe(KEY, state)[2], expected, atol=1e-6)


def test_listeners_collide_unless_told_not_to_and_the_speaker_stays():
    for collide in (True, False):
        env = make(collide=collide)
        state = scene(env)
        state = state.replace(pos=state.pos.at[-3:].set(jnp.array([[0.0, -1], [0, -1], [0.1, -1]])))
        after = run(env.step, KEY, state, said(env, 0.0).at[0, :2].set(1.0))[0]
        assert bool((after.pos[-2:] != state.pos[-2:]).any()) == collide
        np.testing.assert_array_equal(after.pos[-3], state.pos[-3])


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"n_listeners": 0}, "n_listeners=0: must be at least 1"),
        ({"n_landmarks": 0}, "n_landmarks=0: must be at least 1"),
        ({"n_landmarks": 2.5}, "n_landmarks=2.5: must be a whole number"),
        ({"c_noise": -0.1}, "c_noise=-0.1: must be at least 0"),
        ({"collide": 1}, "collide=1: must be true or false"),
        ({"n_agents": 3}, "n_agents: vmas/complex_speaker_listener takes"),
    ],
)
def test_refuses_arguments(kwargs, message):
    with pytest.raises(envs.UserError, match=re.escape(message)):
        make(**kwargs)


def test_the_tutorial_shows_the_file_and_runs(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))  # what it registers is for this test only
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "scenarios.md").read_text(), re.DOTALL)
    source, names = inspect.getsource(example), {"__name__": "tutorial"}
    shown = "".join(block for block in blocks if block in source)
    for block in blocks:
        if block not in source:
            exec(block, names)
    words = re.sub(r'^""".*?"""\s*from __future__ import annotations', "", source, flags=re.DOTALL).split()
    assert shown.split() == words  # all of it, in its order
    assert envs.make("my/meet").obs_sizes == (8, 8)
