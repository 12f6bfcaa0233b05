"""Environments on the host: the pool gives what a plain loop over PettingZoo gives, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.baselines.ippo import ippo_rnn_smax as ippo_rnn
from shoal.baselines.maddpg import maddpg_ff_mpe as maddpg
from shoal.baselines.mappo import mappo_ff_vmas as mappo
from shoal.baselines.mappo import mappo_rnn_smax as mappo_rnn
from shoal.baselines.masac import masac_ff_vmas as masac
from shoal.baselines.qmix import pqn_rnn_smax as pqn
from shoal.baselines.qmix import qmix_rnn_mpe as qmix
from shoal.config import compose
from shoal.envs.base import Continuous, Discrete, MultiDiscrete, select
from shoal.envs.host import pool
from shoal.envs.wrappers import AutoReset
from shoal.errors import UserError
from shoal.hashing import hashed, split
from tests.conftest import ROOT
from tests.envs.zoo import CUT, ENDS, LOOKS, Zoo

NAME = "pettingzoo/tests.envs.zoo"
RUNS, ENVS, STEPS = 2, 3, 12


@pytest.fixture(autouse=True)
def _no_pool_is_left():
    yield
    pool.close_all()


def seed_of(key) -> int:
    return int(jax.random.bits(hashed(key), dtype=jnp.uint32) >> 1)


def first_keys(key):
    return split(key, ENVS)


def roll(vec: AutoReset, key, steps: int = STEPS):
    """Random play: states after every step, the time steps, and what was played with which keys."""

    def step(state, key):
        act_key, env_key = jax.random.split(key)
        action = jax.random.randint(act_key, (ENVS, 3), 0, jnp.array([2, 2, 3]))
        keys = jax.random.split(env_key, ENVS)
        state, timestep = vec.step(keys, state, action, vec.fresh(env_key, state))
        return state, (state, timestep, action, keys)

    state, first = vec.reset(key)
    last, (states, timesteps, actions, keys) = jax.lax.scan(step, state, jax.random.split(key, steps))
    return first, timesteps, actions, keys, state, states, last


def rows(seen: dict) -> np.ndarray:
    """``[A, O]`` from PettingZoo's dictionary; zeros for who is not in it."""
    padded = np.zeros((3, 6), np.float32)
    for i, agent in enumerate(LOOKS):
        if agent in seen:
            padded[i, : LOOKS[agent]] = seen[agent]
    return padded


def test_what_the_pool_gives_is_what_a_plain_loop_gives():
    """Two runs of three environments, one call for all: each as if it were alone in the world."""
    env = envs.make(NAME, workers=2, masks="in info")
    keys = jax.random.split(jax.random.PRNGKey(5), RUNS)
    first, steps, actions, step_keys, *_ = jax.device_get(
        jax.jit(jax.vmap(partial(roll, AutoReset(env, ENVS, 4))))(keys)
    )
    assert steps.obs.shape == (RUNS, STEPS, ENVS, 3, 6)
    terminated = truncated = 0
    for run in range(RUNS):
        for e in range(ENVS):
            zoo = Zoo(masks="in info")
            seen, _ = zoo.reset(seed_of(first_keys(keys[run])[e]))
            np.testing.assert_array_equal(first.obs[run, e], rows(seen))
            assert first.alive[run, e].all()
            for t in range(STEPS):
                at = (run, t, e)
                mask = {agent: zoo.mask(agent) for agent in zoo.agents}
                playing = list(zoo.agents)
                before = steps.action_mask[run, t - 1, e] if t else first.action_mask[run, e]
                for i, agent in enumerate(LOOKS):
                    legal = mask[agent] if agent in playing and mask[agent].any() else np.arange(3) < 2 + (i == 2)
                    np.testing.assert_array_equal(before[i], np.resize(legal, 3) & (np.arange(3) < len(legal)))
                act = {agent: 1 + int(actions[at][list(LOOKS).index(agent)]) for agent in playing}
                seen, rewards, _, cut, _ = zoo.step(act)
                over, all_cut = not zoo.agents, any(cut.values())
                alive = playing if over else zoo.agents
                np.testing.assert_array_equal(steps.final_obs[at], rows({a: seen[a] for a in alive}))
                np.testing.assert_array_equal(steps.final_alive[at], [agent in alive for agent in LOOKS])
                np.testing.assert_array_equal(steps.reward[at], [rewards.get(agent, 0.0) for agent in LOOKS])
                assert steps.terminated[at] == (over and not all_cut)
                assert steps.truncated[at] == (over and all_cut)
                terminated, truncated = terminated + steps.terminated[at], truncated + steps.truncated[at]
                if over:
                    seen, _ = zoo.reset(seed_of(step_keys[at]))
                    alive = list(LOOKS)
                assert steps.is_first[at] == over
                np.testing.assert_array_equal(steps.obs[at], rows({a: seen[a] for a in alive}))
                np.testing.assert_array_equal(steps.alive[at], [agent in alive for agent in LOOKS])
                np.testing.assert_array_equal(steps.state[at], steps.obs[at].reshape(-1))
    assert terminated > 2
    assert truncated > 2


def test_facts():
    env = envs.make("pettingzoo/tests/envs/zoo")  # slashes or dots
    assert env.name == NAME
    assert env.agents == tuple(LOOKS)
    assert env.groups == ("scout", "scout", "runner")
    assert (env.obs_sizes, env.obs_shape, env.state_size, env.horizon) == ((4, 4, 6), (), 18, 1000)
    assert env.action_space == Discrete((2, 2, 3))
    assert env.host
    assert envs.make(NAME).pool is env.pool  # shared by all of a process


@pytest.mark.parametrize("masks", ["in observation", "in info"])
def test_masks(masks):
    _, timestep = envs.make(NAME, masks=masks).reset(jax.random.PRNGKey(0))
    np.testing.assert_array_equal(timestep.action_mask, [[1, 0, 0], [1, 0, 0], [1, 0, 1]])
    assert timestep.obs.shape == (3, 6)


def test_two_numbers_at_once():
    env = envs.make(NAME, actions="multi")
    assert env.action_space == MultiDiscrete(((4, 1), (4, 1), (2, 3)))
    state, timestep = env.reset(jax.random.PRNGKey(0))
    np.testing.assert_array_equal(timestep.action_mask[:2], [[1, 1, 1, 1, 1, 0, 0]] * 2)
    np.testing.assert_array_equal(timestep.action_mask[2], [1, 1, 0, 0, 1, 1, 1])
    _, timestep = env.step(jax.random.PRNGKey(1), state, jnp.array([[3, 0], [1, 0], [1, 2]]))
    np.testing.assert_array_equal(timestep.reward, [31.0, 11.0, 31.0])


def test_continuous_actions_stay_in_their_bounds():
    env = envs.make(NAME, actions="box", continuous=True)
    assert isinstance(env.action_space, Continuous)
    assert env.action_space.sizes == (1, 1, 3)
    state, _ = env.reset(jax.random.PRNGKey(0))
    _, timestep = env.step(jax.random.PRNGKey(1), state, jnp.array([[0.5, 9, 9], [-3.0, 9, 9], [0.25, 0.25, 2.0]]))
    np.testing.assert_array_equal(timestep.reward, [6.0, -19.0, 16.0])


def test_pictures_and_an_own_state():
    env = envs.make(NAME, looks="picture", own_state=True)
    assert (env.obs_shape, env.obs_size, env.state_size) == ((4, 5, 3), 60, 2)
    state, _ = env.reset(jax.random.PRNGKey(0))
    _, timestep = env.step(jax.random.PRNGKey(1), state, jnp.zeros(3, jnp.int32))
    np.testing.assert_allclose(timestep.obs, 0.2, rtol=1e-6)
    assert timestep.state[0] == 1.0


def test_a_shorter_time_limit():
    env = envs.make(NAME, horizon=3)
    _, steps, *_ = jax.jit(partial(roll, AutoReset(env, ENVS, 4)))(jax.random.PRNGKey(0))
    np.testing.assert_array_equal(steps.truncated.T, np.resize([False, False, True], (ENVS, STEPS)))
    np.testing.assert_array_equal(steps.obs[:, :, 0, 0].T, np.resize([1, 2, 0], (ENVS, STEPS)))
    assert not steps.terminated.any()


def test_an_evaluation_stands_still_and_cannot_go_back():
    env = envs.make(NAME, workers=2)
    keys = jax.random.split(jax.random.PRNGKey(2), 4)
    state, first = jax.vmap(env.reset)(keys)
    before, ends = state, np.where(first.obs[:, 0, 1] % 2 == 0, ENDS, CUT)
    over = np.zeros(4, bool)
    for t in range(1, 8):
        new, timestep = jax.vmap(env.step)(keys, state, jnp.zeros((4, 3), jnp.int32))
        np.testing.assert_array_equal((timestep.terminated | timestep.truncated)[~over], (t == ends)[~over])
        state = select(jnp.asarray(~over), new, state)  # as shoal.run.evaluate does
        over = over | np.asarray(timestep.terminated | timestep.truncated)
    assert over.all()
    state, _ = jax.vmap(env.reset)(keys)
    with pytest.raises(Exception, match="cannot go back"):
        jax.block_until_ready(jax.vmap(env.step)(keys, before, jnp.zeros((4, 3), jnp.int32)))
    assert "cannot go back" in str(env.pool.failure)


def test_a_killed_worker_is_replaced_once():
    env = envs.make(NAME, workers=3)  # one environment each
    vec = AutoReset(env, ENVS, 4)
    step = jax.jit(vec.step)
    key, action, fresh = first_keys(jax.random.PRNGKey(7)), jnp.zeros((ENVS, 3), jnp.int32), None
    state, _ = vec.reset(jax.random.PRNGKey(3))
    state, before = step(key, state, action, fresh)
    env.pool.processes[1].popen.send_signal(signal.SIGKILL)
    state, after = step(key, state, action, fresh)
    np.testing.assert_array_equal(after.truncated, [False, True, False])
    np.testing.assert_array_equal(after.final_obs[1], before.obs[1])  # the last that was known of it
    np.testing.assert_array_equal(after.final_alive[1], before.alive[1])
    assert (after.reward[1] == 0).all()
    np.testing.assert_array_equal(after.obs[:, 0, 0], [2, 0, 2])
    assert int(after.obs[1, 0, 1]) == seed_of(key[1]) % 1000
    state, later = step(key, state, action, fresh)
    np.testing.assert_array_equal(later.obs[:, 0, 0], [3, 1, 3])
    assert not later.truncated.any()
    env.pool.processes[1].popen.send_signal(signal.SIGKILL)
    with pytest.raises(jax.errors.JaxRuntimeError, match="second time"):
        jax.block_until_ready(step(key, state, action, fresh))
    assert "killed by signal 9" in str(env.pool.failure)
    assert env.pool.processes == []
    assert envs.make(NAME, workers=3).pool is not env.pool  # whoever asks next gets workers


def test_a_resumed_training_and_a_copied_run_begin_anew():
    env = envs.make(NAME, workers=2)
    keys = jax.random.split(jax.random.PRNGKey(1), RUNS)
    *_, last = jax.device_get(jax.jit(jax.vmap(partial(roll, AutoReset(env, ENVS, 4), steps=3)))(keys))
    seen = last.inner.inner.now.obs  # [R, E, A, O]

    def step(vec, state):
        keys = first_keys(jax.random.PRNGKey(0))
        return vec.step(keys, state, jnp.zeros((ENVS, 3), jnp.int32), vec.fresh(keys[0], state))

    copied = jax.tree.map(lambda leaf: leaf[np.array([0, 0])], last)  # as an evolution does
    state, result = jax.vmap(partial(step, AutoReset(env, ENVS, 4)))(copied)
    np.testing.assert_array_equal(result.truncated[1], [True] * ENVS)
    np.testing.assert_array_equal(result.final_obs[1], seen[0])
    np.testing.assert_array_equal(result.final_obs[0, :, 0, 0], seen[0, :, 0, 0] + 1)
    _, result = jax.vmap(partial(step, AutoReset(env, ENVS, 4)))(state)
    assert not result.truncated[1].any()  # it is at home now

    other = AutoReset(envs.make(NAME, workers=1), ENVS, 4)  # a pool that knows nothing of it, as in a new process
    state, result = jax.vmap(partial(step, other))(last)
    assert result.truncated.all()
    np.testing.assert_array_equal(result.final_obs, seen)
    assert (result.obs[..., 0, 0] == 0).all()
    _, result = jax.vmap(partial(step, other))(state)
    assert (result.obs[..., 0, 0] == 1).all()


ZOO = [f"env={NAME}", "seeds=2", "chunks=2", "total_steps=128", "evaluation.episodes=2", "env.kwargs.horizon=6"]


class Idle:
    """Only there to give the table the same columns."""

    def on_chunk(self, context):
        pass


class Murder:
    """Kills a worker after the first chunk that has been replaced before, as far as the pool knows."""

    def on_chunk(self, context):
        if context.chunk == 1:
            (workers,) = pool._pools.values()
            workers.restarts[0] = pool.RESTARTS
            workers.processes[0].popen.kill()


def test_a_training_repeats_to_the_bit_stops_in_one_line_and_resumes(train, capsys):
    """The second chunk's death finds the first one saved, though checkpoints are rare."""
    whole = train(*ZOO, callbacks=[Idle])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train(*ZOO, "checkpoint.every=100", callbacks=[Murder])
    printed = capsys.readouterr().err.strip().splitlines()
    assert [line for line in printed if "rror" in line] == printed[-1:]
    assert "second time (killed by signal 9); resume=" in printed[-1]
    stopped = Path(printed[-1].partition("resume=")[2].split()[0])
    one, other = ((folder / "metrics.csv").read_text().splitlines() for folder in (whole, stopped))
    assert len(one) == 1 + 2 * 2  # two runs, two chunks
    assert one[:3] == other
    train(f"resume={stopped}", f"env={NAME}", small=False, callbacks=[Idle])  # the module is named again
    assert "episodes start anew" in " ".join(capsys.readouterr().err.split())
    resumed = (stopped / "metrics.csv").read_text().splitlines()
    assert resumed[:3] == one[:3]
    assert len(resumed) == len(one)


def test_the_command_line_takes_slashes_or_dots_and_tells_mistakes_in_one_line(train, capsys):
    _, cfg = compose.composed("ippo", ["env=pettingzoo/sisl/pursuit_v5", "env.kwargs.n_pursuers=2"])
    assert cfg.env == {"name": "pettingzoo/sisl.pursuit_v5", "kwargs": {"n_pursuers": 2}}
    with pytest.raises(SystemExit):
        train("env=pettingzoo/sisl/pursuit_v4")
    assert capsys.readouterr().err == (
        "error: env=pettingzoo/sisl.pursuit_v4: no such module; did you mean sisl.pursuit_v5?\n"
    )


SMALLER = ["total_steps=128", "evaluation.episodes=1", "seeds=1", "chunks=1", "population=2", "evolve.rounds=2"]


@pytest.mark.thorough
def test_populations_evolve_on_it(train):
    folder = train(*ZOO, "evolve=tournament", *SMALLER)
    assert len((folder / "lineage.csv").read_text().splitlines()) == 1 + 2 * 2


def test_no_training_begins_amid_others(train, capsys):
    with pytest.raises(SystemExit):
        train(*ZOO, "evolve=halving", "population=2", "seeds=1")
    assert capsys.readouterr().err.startswith("error: evolve=halving: begins trainings amid others")


@pytest.mark.parametrize("module", [qmix, pytest.param(maddpg, marks=pytest.mark.thorough)])
def test_off_policy_files_train_on_it(train, module):
    kind = "discrete" if module is qmix else "box"
    sizes = ["algo.num_envs=2", "algo.rollout_length=6", "algo.batch_size=4", "algo.buffer_size=64"]
    nets = ["q.widths=[8]", *(["q.hidden=8", "hyper_width=8"] if module is qmix else ["actor.widths=[8]"])]
    sizes += [f"algo.{word}" for word in nets]
    words = [*ZOO, *sizes, "total_steps=24", "seeds=1", "chunks=1", f"env.kwargs.actions={kind}"]
    folder = train(*words, module=module, small=False)
    assert "nan" not in (folder / "evaluations.json").read_text().lower()


@pytest.mark.parametrize("module", [ippo_rnn, mappo, mappo_rnn, pqn, masac])
def test_the_other_files_fit(module):
    """A state of the same shape after an update: tools/support.py trains every file."""
    algorithm = module.make(module.Config(num_envs=4, rollout_length=6), envs.make(NAME, horizon=6))
    key, hypers = jax.random.PRNGKey(0), module.Hypers()
    state = jax.eval_shape(algorithm.init, key, hypers)
    new, metrics = jax.eval_shape(algorithm.update, state, hypers)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert "episode_return/scout" in metrics


def test_workers_end_with_a_killed_parent():
    code = f"import envs, time; e = envs.make({NAME!r}, workers=1); print(e.pool.processes[0].popen.pid, flush=True)"
    script = [sys.executable, "-c", f"{code}; time.sleep(99)"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as parent:
        worker = int(parent.stdout.readline())
        os.kill(worker, signal.SIGTERM)  # of the whole group, say: the parent alone decides
        time.sleep(0.2)
        os.kill(worker, 0)
        parent.kill()
    for _ in range(50):
        time.sleep(0.1)
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if "Z" in Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2]:
            return  # ended; nobody here is its parent
    pytest.fail("the worker outlives its parent")


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("sisl.multiwalker_v8", {}, "did you mean sisl.multiwalker_v9"),
        ("multiwalker_v9", {}, "did you mean sisl.multiwalker_v9"),
        ("no_such_package.game", {}, "no such module"),
        ("tests.envs.made", {}, "no such module"),
        ("a-b", {}, "name a module"),
        ("tests.made", {}, "neither parallel_env nor env"),
        ("tests.envs.turns", {}, "take turns"),
        ("tests.envs.zoo", {"wings": 2}, "env.kwargs={'wings': 2}: .*wings"),
        ("tests.envs.zoo", {"actions": "endless"}, "have no bounds"),
        ("tests.envs.zoo", {"workers": 0}, "env.kwargs.workers=0"),
        ("tests.envs.zoo", {"continuous": True}, "discrete actions only"),
    ],
)
def test_mistakes_are_one_line(name, kwargs, message):
    with pytest.raises(UserError, match=message) as caught:
        envs.make(f"pettingzoo/{name}", **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"fails": 2}, "zoo.py:.*: RuntimeError: the wheels came off"), ({"exits": 2}, "exit code 3")],
)
def test_what_goes_wrong_in_an_environment_is_told(kwargs, message):
    env = envs.make(NAME, **kwargs)
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(partial(roll, AutoReset(env, ENVS, 4)))(jax.random.PRNGKey(0)))
    with pytest.raises(UserError, match=message):
        raise env.pool.failure


@pytest.mark.parametrize(
    "name",
    [
        "sisl.multiwalker_v9",
        "sisl.pursuit_v5",
        "butterfly.knights_archers_zombies_v11",
        "mpe2.simple_tag_v3",
        "tests.envs.aec",
    ],
)
def test_real_ones_step(name):
    env = envs.make(f"pettingzoo/{name}", horizon=6)
    vec = AutoReset(env, 2, 4)

    def play(key):
        def step(state, key):
            shape = (2, env.num_agents)
            if isinstance(env.action_space, Continuous):
                action = jax.random.uniform(key, (*shape, env.action_space.size), minval=-1.0)
            else:
                action = jax.random.randint(key, shape, 0, jnp.array(env.action_space.sizes))
            return vec.step(jax.random.split(key, 2), state, action, None)

        state, first = vec.reset(key)
        return first, jax.lax.scan(step, state, jax.random.split(key, 8))[1]

    first, steps = jax.jit(play)(jax.random.PRNGKey(0))
    assert np.isfinite(steps.obs).all()
    assert np.isfinite(steps.reward).all()
    assert (np.abs(steps.obs).max(axis=(0, 1, 3)) > 0).all()
    np.testing.assert_array_equal(steps.truncated[:, 0], np.arange(1, 9) == 6)
    assert steps.state.shape == (8, 2, env.state_size)
    # The seeds differ; but knights and archers always start from the same places, and zombies come later.
    assert np.array_equal(first.obs[0], first.obs[1]) == ("zombies" in name)
    assert steps.alive[0].all()


def test_mpe2_is_the_native_world():
    """The same actions from the same places: the pool's simple_spread is the one written in JAX."""
    native, zoo = envs.make("mpe/simple_spread"), envs.make("pettingzoo/mpe2.simple_spread_v3")
    assert native.obs_sizes == zoo.obs_sizes
    assert native.action_space == zoo.action_space
    assert native.horizon == zoo.horizon
    state, first = zoo.reset(jax.random.PRNGKey(4))
    own, landmarks = first.obs[:, 2:4], first.obs[0, 4:10].reshape(3, 2) + first.obs[0, 2:4]
    mirror = native.restore(pos=jnp.concatenate([own, landmarks]))
    step, mirrored = jax.jit(zoo.step), jax.jit(native.step)
    for t in range(25):
        key = jax.random.PRNGKey(t)
        action = jax.random.randint(key, (3,), 0, 5)
        state, one = step(key, state, action)
        mirror, other = mirrored(key, mirror, action)
        np.testing.assert_allclose(one.obs, other.obs, atol=2e-5)
        np.testing.assert_allclose(one.reward, other.reward, atol=2e-5)
        assert bool(one.truncated) == bool(other.truncated) == (t == 24)
        assert not one.terminated
