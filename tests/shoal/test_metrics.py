"""Episode statistics and means of metrics, against plain loops; evaluations of episodes that end at different steps."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs.base import Discrete, Env, TimeStep
from shoal.envs.wrappers import TimeLimit
from shoal.rl import metrics
from shoal.run.evaluate import evaluate

TEAMS = SimpleNamespace(
    num_agents=3, group_names=("red", "blue"), group_ids=np.array([0, 1, 0]), groups=("red", "blue", "red")
)
ONE_TEAM = SimpleNamespace(num_agents=3, group_names=("team",), group_ids=np.zeros(3, int))


def test_an_episode_has_the_mean_return_every_teams_and_whether_it_was_won():
    returns = np.array([[1.0, 10.0, 4.0], [0.0, -2.0, 5.0]])
    values = metrics.of_episodes(jnp.array(returns), jnp.array([3, 4]), {"won": jnp.array([True, False])}, TEAMS)
    assert set(values) == {
        "episode_return", "episode_length", "episode_return/red", "episode_return/blue", "win_rate"
    }  # fmt: skip
    np.testing.assert_allclose(values["episode_return"], [5, 1])
    np.testing.assert_allclose(values["episode_return/red"], [2.5, 2.5])
    np.testing.assert_allclose(values["episode_return/blue"], [10, -2])
    np.testing.assert_allclose(values["win_rate"], [1, 0])
    np.testing.assert_allclose(values["episode_length"], [3, 4])
    assert set(metrics.of_episodes(jnp.array(returns), jnp.array([3, 4]), {}, ONE_TEAM)) == {
        "episode_return", "episode_length"
    }  # fmt: skip


def test_a_rollouts_metrics_are_means_over_the_episodes_that_ended():
    rng = np.random.default_rng(0)
    ended = np.array([[False, True], [True, True], [False, False]])
    step = SimpleNamespace(
        ended=jnp.array(ended),
        episode_return=jnp.array(rng.normal(size=(3, 2, 3))),
        episode_length=jnp.array(rng.integers(1, 9, (3, 2))),
        info={},
    )
    values = metrics.episode_metrics(step, TEAMS)
    own = [(t, e) for t in range(3) for e in range(2) if ended[t, e]]
    assert values["episodes"] == len(own) == 3
    blue = [step.episode_return[t, e, 1] for t, e in own]
    np.testing.assert_allclose(values["episode_return/blue"], np.mean(blue), rtol=1e-6)
    np.testing.assert_allclose(values["episode_length"], np.mean([step.episode_length[t, e] for t, e in own]))
    none = metrics.episode_metrics(SimpleNamespace(**{**vars(step), "ended": jnp.zeros((3, 2), bool)}), TEAMS)
    assert none["episodes"] == 0 and np.isnan(none["episode_return"])


def test_means_over_teams_count_those_who_live():
    """A dead agent's term counts for nothing, whatever it is; a team of which nobody lives has 0."""
    terms = jnp.array([[1.0, 2.0, 3.0], [5.0, np.nan, 7.0]])
    alive = jnp.array([[True, True, True], [True, False, False]])
    values = metrics.by_group({"loss": terms, "gap": 2 * terms}, alive, TEAMS)
    np.testing.assert_allclose(values["loss"], (1 + 2 + 3 + 5) / 4)
    np.testing.assert_allclose(values["loss/red"], (1 + 3 + 5) / 3)
    np.testing.assert_allclose(values["loss/blue"], 2)
    np.testing.assert_allclose(values["gap/red"], 6)
    dead = metrics.by_group({"loss": terms}, alive & jnp.array([True, False, True]), TEAMS)
    assert dead["loss/blue"] == 0
    assert set(metrics.by_group({"loss": terms}, alive, ONE_TEAM)) == {"loss"}


def test_a_chunks_figures_weigh_every_episode_alike():
    """Two updates with 1 and 3 episodes, one with none: its NaN counts for nothing."""
    table = metrics.Table.of(
        {
            "episodes": jnp.array([1.0, 3.0, 0.0]),
            "episode_return": jnp.array([8.0, 4.0, np.nan]),
            "episode_return/red": jnp.array([0.0, 4.0, np.nan]),
            "win_rate": jnp.array([1.0, 0.0, np.nan]),
            "loss": jnp.array([1.0, 2.0, 6.0]),
        }
    )
    values = metrics.mean_over_updates(table).columns()
    expected = {"episodes": 4, "episode_return": 5, "episode_return/red": 3, "win_rate": 0.25, "loss": 3}
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, err_msg=name)
    quiet = metrics.Table.of({name: column[2:] for name, column in table.columns().items()})
    assert np.isnan(metrics.mean_over_updates(quiet)["episode_return"])
    mean = table.mean()
    assert mean.names == table.names
    np.testing.assert_allclose(mean["loss"], 3)


class Clock(struct.PyTreeNode):
    end: jax.Array
    step: jax.Array


class Uneven(Env):
    """Ends by itself at a step that the reset draws, or never; pays the action and goes on paying after its end."""

    name, mortal, terminates = "test/uneven", False, True
    agents, groups, obs_sizes, state_size = ("a", "b"), ("team", "team"), (2, 2), 2
    action_space, horizon = Discrete((9, 9)), 4

    def reset(self, key):
        state = Clock(1 + jax.random.randint(key, (), 0, 6), jnp.int32(0))
        return state, self._timestep(state, jnp.zeros(2))

    def step(self, key, state, action):
        state = state.replace(step=state.step + 1)
        return state, self._timestep(state, action.astype(jnp.float32))

    def _timestep(self, state, reward):
        return TimeStep(
            obs=jnp.broadcast_to(jnp.stack([state.end, state.step]), (2, 2)).astype(jnp.float32),
            state=jnp.zeros(2),
            action_mask=jnp.ones((2, 9), bool),
            reward=reward,
            terminated=state.step == state.end,
            truncated=jnp.bool_(False),
            alive=jnp.ones(2, bool),
            info={"won": state.step == 2, "task_reward": 100.0 + reward},
        )


def test_an_evaluation_stops_counting_where_each_episode_ends():
    """Agent 1 plays the step, agent 0 how often the memory was called: returns, lengths, the last step's info."""

    def act(policy, carry, timestep, key, greedy):
        assert greedy == "yes"
        return carry + policy, jnp.stack([carry, timestep.obs[:, 1, 1].astype(jnp.int32)], axis=-1)

    memory = partial(jnp.zeros, dtype=jnp.int32)
    algorithm = SimpleNamespace(env=TimeLimit(Uneven()), initial_memory=memory, act=act)
    _, played = evaluate(algorithm, 2, jax.random.PRNGKey(1), 64, "yes")
    lengths = np.asarray(played["episode_length"]).astype(int)
    assert set(lengths) == {1, 2, 3, 4}
    expected = [np.mean([[100 + 2 * t, 100 + t] for t in range(n)], axis=1).sum() for n in lengths]
    np.testing.assert_allclose(played["episode_return"], expected)
    np.testing.assert_array_equal(played["win_rate"], lengths == 2)
