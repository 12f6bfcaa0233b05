"""One chunk of one run, with stubs in place of algorithms: divergence, the evaluation's key, the best policy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from envs.base import Discrete, Env, TimeStep
from envs.wrappers import TimeLimit
from shoal import runner
from shoal.algorithm import Acting, Algorithm
from shoal.metrics import EPISODES


class Lottery(Env):
    """One step, which pays what the reset has drawn."""

    name, mortal, terminates = "test/lottery", False, False
    agents, groups, obs_sizes, state_size = ("a", "b"), ("red", "blue"), (1, 1), 2
    action_space, horizon = Discrete((2, 2)), 1

    def reset(self, key):
        prize = jax.random.uniform(key)
        return prize, self._timestep(0.0)

    def step(self, key, state, action):
        return state, self._timestep(state)

    def _timestep(self, prize):
        return TimeStep(
            obs=jnp.zeros((2, 1)),
            state=jnp.zeros(2),
            action_mask=jnp.ones((2, 2), bool),
            reward=jnp.array([1.0, -10.0]) * prize,
            terminated=jnp.bool_(False),
            truncated=jnp.bool_(False),
            alive=jnp.ones(2, bool),
            info={"won": prize > 0.5},
        )


class State(struct.PyTreeNode):
    params: jax.Array  # counts updates
    opt_state: jax.Array
    updates: jax.Array  # counts updates, and is nothing that a run learns


def stub(broken: int = -1) -> Algorithm:
    """An algorithm whose parameters grow by ``hypers`` in each update and are NaN after update ``broken`` alone."""

    def update(state: State, hypers: jax.Array):
        updates = state.updates + 1
        params = jnp.where(updates == broken, jnp.nan, state.params + hypers)
        zero = jnp.float32(0.0)
        metrics = {"loss": params, "episode_return": zero, "episode_length": zero, EPISODES: zero}
        return State(params, state.opt_state + 1, updates), metrics

    def act(policy, carry, timestep, key, greedy):
        return carry, jnp.zeros((timestep.obs.shape[0], 2), jnp.int32)

    return Algorithm(
        init=lambda key, hypers: State(jnp.float32(0.0), jnp.float32(0.0), jnp.int32(0)),
        update=update,
        policy=lambda state: {"params": state.params},
        acting=Acting(lambda num_envs: (), act),
        env=TimeLimit(Lottery()),
        steps_per_update=1,
        num_updates=8,
    )


def chunks(algorithm: Algorithm, count: int, updates: int, growth: float = 1.0, state=None, **settings):
    """The states after each of ``count`` chunks, and the episodes that each has evaluated."""
    hypers = jnp.float32(growth)
    state = runner.start(algorithm, jax.random.PRNGKey(3), hypers) if state is None else state
    program = jax.jit(lambda s: runner.train_chunk(algorithm, s, hypers, updates, 4, True, **settings))
    states, episodes = [], []
    for _ in range(count):
        state, _, played = program(state)
        states.append(jax.device_get(state))
        episodes.append(jax.device_get(played))
    return states, episodes


@pytest.mark.parametrize("updates", [1, 3])
def test_divergence_is_never_forgotten(updates):
    """NaN at update 2 alone: parameters stay those of update 1, in that chunk and in the next ones."""
    states, _ = chunks(stub(broken=2), 3, updates)
    for number, state in enumerate(states, 1):
        after = number * updates
        assert state.diverged == (after >= 2)
        assert state.train.params == min(after, 1.0)
        assert state.train.opt_state == min(after, 1.0)
        assert state.train.updates == after  # all else goes on


def test_every_chunk_evaluates_other_episodes():
    _, episodes = chunks(stub(), 3, 1, growth=0.0)
    returns = np.stack([played["episode_return"] for played in episodes])
    assert len(np.unique(returns)) == returns.size


@pytest.mark.parametrize(("best", "broken", "better"), [(-1e9, -1, True), (1e9, -1, False), (-1e9, 2, False)])
def test_the_best_policy_is_replaced_by_a_better_one_of_a_run_that_lives(best, broken, better):
    algorithm = stub(broken)
    (state,), _ = chunks(algorithm, 1, 2)
    marked = state.replace(best_return=np.float32(best), best_policy={"params": np.float32(-5.0)})
    (after,), (played,) = chunks(algorithm, 1, 1, state=marked)
    expected = played["episode_return"].mean() if better else best
    np.testing.assert_allclose(after.best_return, expected, rtol=1e-6)
    assert after.best_policy["params"] == (3.0 if better else -5.0)
