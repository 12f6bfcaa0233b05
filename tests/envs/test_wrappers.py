"""Time limits, automatic resets with their pool, episode statistics, agent ids; matrix games."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from shoal import envs
from shoal.envs.base import Discrete, Env, TimeStep
from shoal.envs.wrappers import AgentId, AutoReset, EpisodeStats, TimeLimit, Wrapper
from shoal.run.evaluate import evaluate


@struct.dataclass
class CountState:
    start: jax.Array
    step: jax.Array


class Count(Env):
    """Observes where it started and how far it is; agent 1 earns twice agent 0's reward; ends by itself at ``end``."""

    def __init__(self, horizon: int = 4, end: int = 1000):
        self.agents, self.groups = ("a", "b"), ("team", "team")
        self.obs_sizes, self.state_size, self.action_space = (2, 2), 4, Discrete((3, 3))
        self.horizon, self.end, self.terminates = horizon, end, end <= horizon

    def reset(self, key):
        return self._show(CountState(jax.random.uniform(key), jnp.int32(0)), jnp.zeros(2))

    def step(self, key, state, action):
        return self._show(CountState(state.start, state.step + 1), jnp.array([1.0, 2.0]))

    def _show(self, state, reward):
        obs = jnp.broadcast_to(jnp.stack([state.start, state.step.astype(jnp.float32)]), (2, 2))
        terminated = state.step >= self.end
        mask, alive = jnp.ones((2, 3), bool), jnp.ones(2, bool)
        return state, TimeStep(obs, obs.reshape(-1), mask, reward, terminated, jnp.bool_(False), alive, {})


def roll(vec: AutoReset, steps: int, rollouts: int = 1):
    """All time steps ``[rollouts * steps, E, ...]`` of a vectorised environment, a fresh pool per rollout."""
    key = jax.random.PRNGKey(0)
    state, timestep = vec.reset(key)
    first, history = timestep, []
    step = jax.jit(vec.step)
    for rollout in range(rollouts):
        pool = vec.fresh(jax.random.fold_in(key, rollout + 1), state)
        for _ in range(steps):
            action = jnp.zeros((vec.num_envs, 2), jnp.int32)
            state, timestep = step(jax.random.split(key, vec.num_envs), state, action, pool)
            history.append(timestep)
    return first, jax.tree.map(lambda *x: np.stack(x), *history)


def test_time_limit_truncates_and_never_terminates():
    _, steps = roll(AutoReset(TimeLimit(Count(horizon=4)), 2, 12), 12)
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0]), [3, 7, 11])
    assert not steps.terminated.any()


class Blind(Wrapper):
    """Agent 1 is dead and sees no numbers, agent 0 one infinity."""

    def step(self, key, state, action):
        state, timestep = self.env.step(key, state, action)
        obs = timestep.obs.at[0, 0].set(jnp.inf).at[1, 0].set(jnp.nan)
        return state, timestep.replace(obs=obs, alive=jnp.array([True, False]))


def test_a_dead_agents_row_is_zero():
    _, steps = roll(AutoReset(TimeLimit(Blind(Count(horizon=4))), 2, 3), 3)
    np.testing.assert_array_equal(steps.obs[1, 0], [[np.inf, 2.0], [0.0, 0.0]])


def test_an_episode_that_ends_just_at_its_horizon_is_terminated():
    _, steps = roll(AutoReset(TimeLimit(Count(horizon=4, end=4)), 2, 8), 8)
    np.testing.assert_array_equal(np.flatnonzero(steps.terminated[:, 0]), [3, 7])
    assert not steps.truncated.any()


def test_auto_reset_keeps_the_true_successor():
    first, steps = roll(AutoReset(TimeLimit(Count(horizon=4)), 3, 8), 8)
    np.testing.assert_array_equal(steps.final_obs[3, :, 0, 1], [4, 4, 4])  # the last observation of the episode
    np.testing.assert_array_equal(steps.final_obs[3, :, 0, 0], first.obs[:, 0, 0])
    np.testing.assert_array_equal(steps.obs[3, :, 0, 1], [0, 0, 0])  # the first of the next
    assert (steps.obs[3, :, 0, 0] != first.obs[:, 0, 0]).all()
    np.testing.assert_array_equal(steps.is_first[:, 0], [False, False, False, True] * 2)
    np.testing.assert_array_equal(steps.final_obs[0], steps.obs[0])  # inside an episode they are the same


class Changing(Count):
    """Each step has its own legal action, agent 1 dies at step 4, and the state is ten times the step."""

    def _show(self, state, reward):
        state, timestep = super()._show(state, reward)
        mask = jnp.broadcast_to(jnp.arange(3) == state.step % 3, (2, 3))
        alive = jnp.array([True, False]) | (state.step < 4)
        return state, timestep.replace(state=jnp.full(4, 10.0 * state.step), action_mask=mask, alive=alive)


def test_a_truncated_episode_keeps_its_own_mask_state_and_deaths():
    """Step 4 is the last: its successor has action 1, state 40 and a dead agent; the next episode begins otherwise."""
    _, steps = roll(AutoReset(TimeLimit(Changing(horizon=4)), 2, 8), 8)
    assert steps.truncated[3].all()
    np.testing.assert_array_equal(steps.final_action_mask[3, 0], [[False, True, False]] * 2)
    np.testing.assert_array_equal(steps.action_mask[3, 0], [[True, False, False]] * 2)
    np.testing.assert_array_equal(steps.final_state[3, 0], [40.0] * 4)
    np.testing.assert_array_equal(steps.state[3, 0], [0.0] * 4)
    np.testing.assert_array_equal(steps.final_alive[3, 0], [True, False])
    np.testing.assert_array_equal(steps.alive[3, 0], [True, True])
    final = jax.tree.map(lambda x: x[3], steps.final)
    np.testing.assert_array_equal(final.obs[0, 0, 1], 4)
    np.testing.assert_array_equal(final.state[0], [40.0] * 4)
    np.testing.assert_array_equal(final.alive[0], [True, False])
    assert not final.is_first.any()  # though the next episode's first observation is beside it
    for name in ("action_mask", "state", "alive"):  # inside an episode the successor is what to act on
        np.testing.assert_array_equal(getattr(steps, name)[1], getattr(steps, f"final_{name}")[1])


@pytest.mark.parametrize(
    ("horizon", "end", "rollout"), [(4, 1000, 8), (5, 1000, 8), (100, 8, 32), (1, 1, 8), (100, 3, 32)]
)
def test_every_episode_starts_from_a_state_of_its_own(horizon, end, rollout):
    vec = AutoReset(TimeLimit(Count(horizon, end)), 4, rollout)
    first, steps = roll(vec, rollout, rollouts=3)
    starts = np.concatenate([np.asarray(first.obs[:, 0, 0]), steps.obs[..., 0, 0][steps.is_first]])
    assert len(np.unique(starts)) == len(starts)
    assert len(starts) == 4 + 4 * (3 * rollout // min(horizon, end))


class Chance(Count):
    """The first state decides whether an episode has 1 step or 20, each with probability 1/2."""

    def _show(self, state, reward):
        state, timestep = super()._show(state, reward)
        return state, timestep.replace(terminated=state.step >= jnp.where(state.start < 0.5, 1, 20))


@pytest.mark.parametrize("length", [8, 16, 32, 128])
def test_half_of_all_episodes_start_from_either_of_two_states(length):
    """However many episodes of a rollout are short: none begins from a first state that has been used."""
    vec = AutoReset(TimeLimit(Chance(horizon=100, end=1)), 64, length)

    def rollout(state, key):
        pool = vec.fresh(key, state)

        def step(state, keys):
            state, timestep = vec.step(keys, state, jnp.zeros((64, 2), jnp.int32), pool)
            return state, (timestep.is_first, timestep.obs[:, 0, 0])

        return jax.lax.scan(step, state, jax.random.split(key, (length, 64)))

    @jax.jit
    def play(key):
        state, _ = vec.reset(key)
        return jax.lax.scan(rollout, state, jax.random.split(key, 2048 // length))[1]

    begins, start = play(jax.random.PRNGKey(length))
    starts = np.asarray(start)[np.asarray(begins)]
    assert len(starts) > 10_000
    assert abs((starts < 0.5).mean() - 0.5) < 3 * 0.5 / np.sqrt(len(starts))
    assert len(np.unique(starts)) > len(starts) - 3 * len(starts) ** 2 / 2**24  # chance repeats some: 24 bits


def test_runs_that_are_vmapped_reset_as_they_do_alone():
    """One run of two is dry: both loop, and the other keeps what it has."""
    vec = AutoReset(TimeLimit(Count(horizon=100, end=2)), 2, 8)

    def play(key, late):
        state, _ = vec.reset(key)
        state = state.replace(inner=state.inner.replace(inner=state.inner.inner.replace(step=-6 * late)))
        pool = vec.fresh(key, state)
        step = lambda state, keys: vec.step(keys, state, jnp.zeros((2, 2), jnp.int32), pool)  # noqa: E731
        return jax.lax.scan(step, state, jax.random.split(key, (8, 2)))[1].obs

    keys, late = jax.random.split(jax.random.PRNGKey(0)), jnp.array([[0, 0], [1, 1]])
    both = jax.vmap(play)(keys, late)
    for run in range(2):
        np.testing.assert_array_equal(both[run], play(keys[run], late[run]))


def test_the_pool_is_much_smaller_than_a_reset_per_step():
    assert AutoReset(TimeLimit(Count(horizon=25)), 16, 128).pool_size == 6
    assert AutoReset(TimeLimit(Count(horizon=100, end=50)), 16, 128).pool_size == 16


def test_episode_statistics_are_not_multiplied_by_the_agents():
    _, steps = roll(EpisodeStats(AutoReset(TimeLimit(Count(horizon=4)), 2, 8)), 8)
    np.testing.assert_array_equal(steps.episode_return[3], [[4, 8], [4, 8]])
    np.testing.assert_array_equal(steps.episode_length[3], [4, 4])
    np.testing.assert_array_equal(steps.episode_return[7], [[4, 8], [4, 8]])


def test_agent_id_is_appended_to_the_observation():
    env = AgentId(TimeLimit(Count()))
    assert env.obs_sizes == (4, 4)
    assert env.obs_size == 4
    _, timestep = env.reset(jax.random.PRNGKey(0))
    np.testing.assert_array_equal(timestep.obs[:, 2:], np.eye(2))
    _, timestep = env.step(jax.random.PRNGKey(0), env.reset(jax.random.PRNGKey(0))[0], jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(timestep.obs[:, 2:], np.eye(2))


def test_registry():
    envs.register("test/count", Count)
    env = envs.make("test/count", horizon=7)
    assert env.horizon == 7
    assert "test/count" in envs.list()
    assert envs.list("matrix") == ["matrix/climbing", "matrix/hidden", "matrix/penalty", "matrix/two_step"]
    for arguments, message in [
        (("test/cuont", {}), "did you mean test/count"),
        (("test/count", {"width": 3}), "takes end, horizon"),
        (("test/count", {"horizon": 0}), "at least 1"),
        (("test/count", {"continuous": True}), "discrete actions only"),
    ]:
        with pytest.raises(envs.UserError, match=message):
            envs.make(arguments[0], **arguments[1])
    with pytest.raises(envs.UserError, match="family/task"):
        envs.register("count", Count)


def play(env: Env, *actions):
    state, timestep = env.reset(jax.random.PRNGKey(3))
    for action in actions:
        state, timestep = env.step(jax.random.PRNGKey(0), state, jnp.array(action, jnp.int32))
    return state, timestep


@pytest.mark.parametrize(
    ("name", "actions", "reward"),
    [
        ("matrix/climbing", [(0, 0)], 11),
        ("matrix/climbing", [(0, 1)], -30),
        ("matrix/climbing", [(2, 2)], 5),
        ("matrix/penalty", [(0, 2)], -100),
        ("matrix/penalty", [(2, 2)], 10),
        ("matrix/two_step", [(0, 0), (1, 0)], 7),
        ("matrix/two_step", [(1, 0), (1, 1)], 8),
        ("matrix/two_step", [(1, 1), (0, 1)], 1),
    ],
)
def test_matrix_payoffs(name, actions, reward):
    _, timestep = play(envs.make(name), *actions)
    np.testing.assert_array_equal(timestep.reward, [reward, reward])
    assert timestep.terminated
    assert not timestep.truncated


def test_the_hidden_state_is_seen_by_one_and_told_to_the_other():
    env = envs.make("matrix/hidden", states=3)
    state, first = play(env)
    hidden = int(state.inner.hidden)
    np.testing.assert_array_equal(first.obs[0, 1:4], np.eye(3)[hidden])
    np.testing.assert_array_equal(first.obs[1, 1:], np.zeros(6))
    _, second = play(env, (2, 0))
    np.testing.assert_array_equal(second.obs[1, 4:], np.eye(3)[2])
    assert not second.terminated
    assert play(env, (2, 0), (0, hidden))[1].reward[0] == 1
    assert play(env, (2, 0), (0, (hidden + 1) % 3))[1].reward[0] == 0


@pytest.mark.parametrize("name", envs.list("matrix"))
def test_matrix_games_scan(name):
    env = envs.make(name)
    state, timestep = env.reset(jax.random.PRNGKey(0))

    def step(carry, key):
        return env.step(key, carry[0], jnp.zeros(2, jnp.int32)), None

    jax.lax.scan(step, (state, timestep), jax.random.split(jax.random.PRNGKey(1), 3))


class Shaped(Wrapper):
    """Pays three more at every step, which shall not count."""

    def reset(self, key):
        state, timestep = self.env.reset(key)
        return state, timestep.replace(info={"task_reward": timestep.reward})

    def step(self, key, state, action):
        state, timestep = self.env.step(key, state, action)
        return state, timestep.replace(reward=timestep.reward + 3.0, info={"task_reward": timestep.reward})


def test_a_shaped_reward_is_learnt_from_and_not_counted():
    plain = envs.make("mpe/simple_spread", horizon=3)
    actions, keys = jnp.ones((5, 2, 3), jnp.int32), jax.random.split(jax.random.PRNGKey(1), (5, 2))
    returns, rewards, evaluated = [], [], []
    for env in (plain, Shaped(plain)):
        vec = EpisodeStats(AutoReset(env, 2, 5))
        state, _ = vec.reset(jax.random.PRNGKey(0))
        pool = vec.fresh(jax.random.PRNGKey(2), state)
        _, steps = jax.lax.scan(lambda s, x, v=vec, p=pool: v.step(x[1], s, x[0], p), state, (actions, keys))
        returns.append(steps.episode_return)
        rewards.append(steps.reward)
        plays = {"initial_memory": lambda num_envs: (), "act": lambda policy, memory, *rest: (memory, actions[0])}
        algorithm = SimpleNamespace(env=env, **plays)
        evaluated.append(evaluate(algorithm, None, jax.random.PRNGKey(3), 2, True)[1]["episode_return"])
    np.testing.assert_allclose(rewards[1], rewards[0] + 3.0, rtol=1e-5)
    np.testing.assert_allclose(returns[1], returns[0], rtol=1e-5)
    np.testing.assert_allclose(evaluated[1], evaluated[0], rtol=1e-5)
