"""One chunk of one run, with stubs in place of algorithms: divergence, evaluation keys, best policies, objectives."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from omegaconf import OmegaConf

from shoal import envs
from shoal.algorithm import Algorithm, TrainState
from shoal.config.schemes import Pbt
from shoal.envs.base import Discrete, Env, TimeStep
from shoal.envs.wrappers import TimeLimit
from shoal.errors import UserError
from shoal.evolve import rounds as generations
from shoal.evolve.rules import Range, Rules
from shoal.folder.records import Records
from shoal.rl.metrics import EPISODES, chosen_objective
from shoal.run import sweep
from shoal.run.evaluate import absolute_metric, evaluate
from shoal.run.placement import place
from shoal.run.plan import Plan
from shoal.run.progress import Display
from shoal.run.state import first_state, train_chunk


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


class Hypers(struct.PyTreeNode):
    lr: jax.Array = 1.0  # type: ignore[assignment]


class Learnt(struct.PyTreeNode):
    params: jax.Array  # counts updates
    opt_state: jax.Array


class Slot(struct.PyTreeNode):
    updates: jax.Array  # counts updates, and is nothing that a run learns
    envs: tuple = ()
    key: tuple = ()


class Stub(Algorithm):
    """An algorithm whose parameters grow by ``lr`` in each update and are NaN after update ``broken`` alone."""

    steps_per_update, num_updates = 1, 8

    def __init__(self, broken: int = -1):
        self.env, self.broken = TimeLimit(Lottery()), broken

    def init(self, key, hypers):
        return TrainState(Learnt(jnp.float32(0.0), jnp.float32(0.0)), Slot(jnp.int32(0)))

    def update(self, state, hypers):
        updates = state.slot.updates + 1
        params = jnp.where(updates == self.broken, jnp.nan, state.learnt.params + hypers.lr)
        zero = jnp.float32(0.0)
        metrics = {"loss": params, "episode_return": zero, "episode_length": zero, EPISODES: zero}
        return TrainState(Learnt(params, state.learnt.opt_state + 1), Slot(updates)), metrics

    def policy(self, learnt):
        return {"params": learnt.params}

    def act(self, policy, memory, timestep, key, greedy):
        return memory, jnp.broadcast_to(policy["params"].astype(jnp.int32), (timestep.obs.shape[0], 2))

    def init_optimiser(self, params, hypers):
        return jnp.float32(0.0)


def chunks(algorithm: Algorithm, count: int, updates: int, growth: float = 1.0, state=None, **settings):
    """The states after each of ``count`` chunks, and the episodes that each has evaluated."""
    hypers = Hypers(jnp.float32(growth))
    state = first_state(algorithm, jax.random.PRNGKey(3), hypers) if state is None else state
    program = jax.jit(lambda s: train_chunk(algorithm, s, hypers, updates, 4, True, **settings))
    states, episodes = [], []
    for _ in range(count):
        state, _, played = program(state)
        states.append(jax.device_get(state))
        episodes.append(jax.device_get(played))
    return states, episodes


@pytest.mark.parametrize("updates", [1, 3])
def test_divergence_is_never_forgotten(updates):
    """NaN at update 2 alone: parameters stay those of update 1, in that chunk and in the next ones."""
    states, _ = chunks(Stub(broken=2), 3, updates)
    for number, state in enumerate(states, 1):
        after = number * updates
        assert state.diverged == (after >= 2)
        assert state.train.learnt.params == min(after, 1.0)
        assert state.train.learnt.opt_state == min(after, 1.0)
        assert state.train.slot.updates == after  # all else goes on


def test_every_chunk_evaluates_other_episodes():
    _, episodes = chunks(Stub(), 3, 1, growth=0.0)
    returns = np.stack([played["episode_return"] for played in episodes])
    assert len(np.unique(returns)) == returns.size


@pytest.mark.parametrize(("best", "broken", "better"), [(-1e9, -1, True), (1e9, -1, False), (-1e9, 2, False)])
def test_the_best_policy_is_replaced_by_a_better_one_of_a_run_that_lives(best, broken, better):
    algorithm = Stub(broken)
    (state,), _ = chunks(algorithm, 1, 2)
    marked = state.replace(best_return=np.float32(best), best_policy={"params": np.float32(-5.0)})
    (after,), (played,) = chunks(algorithm, 1, 1, state=marked)
    expected = played["episode_return"].mean() if better else best
    np.testing.assert_allclose(after.best_return, expected, rtol=1e-6)
    assert after.best_policy["params"] == (3.0 if better else -5.0)


def test_an_evaluation_uses_no_key_twice():
    """The key for the next evaluation opens no episode and makes no step of this one."""
    seen: list[np.ndarray] = []

    class Spied(Lottery):
        def reset(self, key):
            jax.debug.callback(lambda k: seen.append(np.asarray(k)), key)
            return super().reset(key)

        def step(self, key, state, action):
            jax.debug.callback(lambda k: seen.append(np.asarray(k)), key)
            return super().step(key, state, action)

    key = jax.random.PRNGKey(5)
    following, _ = evaluate(
        dataclasses.replace(Stub(), env=TimeLimit(Spied())), {"params": jnp.zeros(())}, key, 3, True
    )
    jax.effects_barrier()
    used = [key, following, *seen]
    assert len(seen) == 6
    assert len(np.unique(np.stack(used), axis=0)) == len(used)


@pytest.mark.parametrize("objective", ["episode_return/blue", "win_rate"])
def test_the_objective_selects(objective):
    """The best policy, and evolution's fitness."""
    states, episodes = chunks(Stub(), 8, 1, objective=objective)
    means = np.stack([played[objective].mean() for played in episodes])
    best = np.stack([state.best_return for state in states])
    np.testing.assert_allclose(best, np.maximum.accumulate(means), rtol=1e-6)
    assert states[-1].best_policy["params"] == 1 + means.argmax()

    rules = Rules(Pbt(), {"lr": Range(0.1, 1.0, True)}, Stub(), 2, ())
    keys, hypers = jax.random.split(jax.random.PRNGKey(0), 2), Hypers(jnp.ones(2))

    @jax.jit
    def evolved(keys, hypers):
        run = jax.vmap(lambda k, h: first_state(rules.algorithm, k, h))(keys, hypers)
        state = jax.vmap(lambda r, k, h: generations.start(r, k, h, rules))(run, keys, hypers)
        train = partial(train_chunk, rules.algorithm, updates=1, episodes=4, greedy=True, objective=objective)
        return generations.train_rounds(state, train, rules, 2, 2, place(), objective)[1]

    told = jax.device_get(evolved(keys, hypers))
    np.testing.assert_allclose(told.fitness, told.episodes[objective].mean(axis=-1), rtol=1e-6)
    np.testing.assert_allclose(told.best_return, np.maximum.accumulate(told.fitness), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("mpe/simple_spread", "auto", "episode_return"),
        ("mpe/simple_tag", "auto", "episode_return/adversary"),
        ("mpe/simple_tag", "episode_return", "episode_return"),
        ("mpe/simple_tag", "episode_return/agent", "episode_return/agent"),
        ("smax/3m", "auto", "episode_return"),
        ("smax/3m", "win_rate", "win_rate"),
    ],
)
def test_what_an_objective_may_be(name, word, expected):
    assert chosen_objective(word, envs.make(name)) == expected


def test_an_objective_that_there_is_not_is_refused_in_one_line(train, capsys):
    names = "auto, episode_length, episode_return, episode_return/adversary, episode_return/agent"
    with pytest.raises(UserError, match=f"^evaluation.objective=win_rate: must be one of {names}$"):
        chosen_objective("win_rate", envs.make("mpe/simple_tag"))
    with pytest.raises(SystemExit):
        train("env=mpe/simple_tag", "evaluation.objective=episode_return/prey")
    assert capsys.readouterr().err.startswith("error: evaluation.objective=episode_return/prey: must be one of auto, ")


class Told(Lottery):
    """Pays what the agents do."""

    def step(self, key, state, action):
        return state, self._timestep(1.0).replace(reward=action.astype(jnp.float32))


def test_the_absolute_metric_is_of_the_best_policies_and_played_once(tmp_path):
    """Two runs whose best policies play 3 and 5, whatever their last ones play."""
    settings = OmegaConf.create({"runs_per_batch": None, "evaluation": {"episodes": 4, "greedy": True}})
    algorithm = dataclasses.replace(Stub(), env=TimeLimit(Told()))
    plan = Plan(
        algorithm, sweep.expand(Hypers(), {}, 2), settings, tmp_path, updates_per_chunk=7, chunks=3, placement=place()
    )
    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    state = jax.vmap(lambda key: first_state(algorithm, key, Hypers()))(keys)
    state = state.replace(best_policy={"params": jnp.array([3.0, 5.0])})
    records = Records(tmp_path)
    played = absolute_metric(plan, 0, state, records, Display(1, 2, shown=False))
    assert played["episode_return"] == [[3.0] * 40, [5.0] * 40]
    (entry,) = records.evaluations()
    assert entry["absolute"] and entry["env_steps"] == 21 and entry["metrics"] == played
    assert absolute_metric(plan, 0, state, records, Display(1, 2, shown=False)) is None
    longer = dataclasses.replace(plan, chunks=4)
    assert absolute_metric(longer, 0, state, records, Display(1, 2, shown=False)) == played
