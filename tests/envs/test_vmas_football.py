"""Football's scripted players against recorded steps of the original, given the normals that it drew; and its start."""

from __future__ import annotations

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.vmas.base import FIELDS
from shoal.errors import UserError
from tests.envs.test_vmas import FREE_STEPS, KINDS, REWARD, STATE, compare, load, make, recorded, rows, run, states

PLANNED = load("football_planner")


def steps(record):
    """The states before and after every recorded step, flat, all else that was recorded of it, and the normals."""
    kinds = [kind for kind in KINDS if f"{kind}/pos" in record]
    if not record["agents"].size:  # nobody who sees or earns anything
        nothing = {f"{kind}/{name}": record[f"{kind}/done"] for kind in kinds for name in ("action", "obs", "reward")}
        record = {**record, **nothing}
    before, after, shown = jax.tree.map(lambda *parts: np.concatenate(parts), *[rows(record, kind) for kind in kinds])
    normals = [(v := record[f"{kind}/normals"]).reshape(-1, *v.shape[2:]) for kind in kinds]
    return before, after, shown, np.concatenate(normals)


def step_with(env, normals, before, action):
    """One step from each state, in which scripted players draw these normals."""

    def step(drawn, state, action):
        env.draw = lambda key: drawn
        return env.step(jax.random.key(0), env.restore(**state), action)

    return run(jax.vmap(step), normals, before, action)


@pytest.mark.parametrize("case", [case for case in PLANNED if PLANNED[case]["agents"].size])
def test_scripted_reds_play_as_the_originals(case):
    record = PLANNED[case]
    env = make("football", continuous=case != "discrete", **json.loads(record["kwargs"].item()))
    assert env.entities == tuple(record["entities"])
    assert env.obs_sizes == tuple(record["obs_sizes"])
    before, after, shown, normals = steps(record)
    state, timestep = step_with(env, normals, before, shown["action"])
    check = partial(compare, slice(None), False)
    for name in FIELDS:
        check(name, getattr(state, name), after[name], STATE)
    for name, value in state.hidden.items():
        check(name, value.reshape(after[name].shape), after[name], STATE)
    check("obs", timestep.obs, shown["obs"], STATE)
    check("reward", timestep.reward, shown["reward"], REWARD)
    np.testing.assert_array_equal(timestep.terminated, shown["done"])


@pytest.mark.parametrize("case", ["default", "discrete"])
def test_twenty_steps_against_scripted_reds_equal_the_originals(case):
    """Nothing but the first state and the normals is given."""
    record = PLANNED[case]
    env = make("football", continuous=case != "discrete", **json.loads(record["kwargs"].item()))
    known = states(record, "random")
    assert record["random/action"].shape[1] == FREE_STEPS

    def step(state, inputs):
        normals, action = inputs
        env.draw = lambda key: normals
        return (env.step(jax.random.key(0), state, action)[0],) * 2

    def episode(first, normals, actions):
        return jax.lax.scan(step, env.restore(**first), (normals, actions))[1]

    first = {name: value[:, 0] for name, value in known.items()}
    found = run(jax.vmap(episode), first, record["random/normals"], record["random/action"])
    for name in ("pos", "rot"):
        np.testing.assert_allclose(getattr(found, name), known[name][:, 1:], atol=1e-4, rtol=0, err_msg=name)


def test_scripted_blues_play_as_the_originals():
    """Recorded against scripted reds, whose forces are here the actions of reds that learn."""
    record = PLANNED["extra_3"]
    kwargs = json.loads(record["kwargs"].item())
    assert kwargs["ai_blue_agents"]
    env = make("football", ai_red_agents=False, **kwargs)
    kept = [i for i, name in enumerate(record["entities"]) if not name.startswith("Red ") or "Net" in name]
    assert env.entities == tuple(record["entities"][kept])
    before, after, _, normals = steps(record)
    blues, reds = env.blue.rows, env.red.rows
    force = after["force"][:, :, 0]
    action = np.zeros((len(force), len(reds), 4), np.float32)
    action[:, :, :2] = force[:, reds] * [-1, 1] / env.u_multiplier[reds, :2]
    known = {name: before[name][:, kept] for name in FIELDS}
    known |= {name: before[name][:, blues] for name in ("target_pos", "target_pos_rel")}
    state, _ = step_with(env, normals[:, blues], known, action)
    check = partial(compare, slice(None), False)
    for name in FIELDS:
        check(name, getattr(state, name), after[name][:, kept], STATE)
    check("force", state["force"], force, STATE)
    for name in ("target_pos", "target_pos_rel"):
        check(name, state[name], after[name][:, blues, 0], STATE)


@pytest.mark.parametrize("case", ["extra_0", "extra_1"])
def test_goals_of_both_teams_that_learn_are_recorded(case):
    record = load("football")[case]
    sparse = record["arrived/info.sparse_reward"].reshape(-1, len(record["agents"]))
    reds = np.char.find(record["agents"], "red") >= 0
    for team in (reds, ~reds):
        assert sparse[:, team].max() > 0 > sparse[:, team].min()


def test_formations_have_as_many_columns_as_they_need():
    """Five players, three in a column: VMAS's resets and ours are at the same places but for noise."""
    record, env = recorded("football", "extra_2")
    players = slice(len(env.world.landmarks), -1)
    firsts = np.concatenate([record[f"{kind}/pos"][:, 0, players] for kind in ("random", "push")])
    slots = env.formation(5) * [-1, 1]
    assert len(np.unique(np.round(slots[:, 0], 5))) == 2
    own = run(jax.vmap(lambda key: env.spawn(key)["pos"]), jax.random.split(jax.random.key(0), 64))
    for pos in (firsts, own[:, players]):
        assert np.abs(pos - slots).max() <= env.options.formation_noise / 2 + 1e-6


def test_formations_are_the_originals():
    record = load("football")["extra_3"]
    kwargs = json.loads(record["kwargs"].item())
    env = make("football", **kwargs)
    noise = kwargs["formation_noise"] / 2
    players = slice(len(env.world.landmarks), -1)
    firsts = np.concatenate([record[f"{kind}/pos"][:, 0, players] for kind in ("random", "push")])
    own = run(jax.vmap(lambda key: env.spawn(key)["pos"]), jax.random.split(jax.random.key(0), 64))
    slots = np.concatenate([env.formation(3) * [-1, 1], env.formation(1)])
    for pos in (firsts, own[:, players]):
        gaps = np.abs(pos[:, :, None] - slots).max(axis=-1)  # [episodes, players, slots]
        np.testing.assert_array_equal((gaps <= noise + 1e-6).sum(axis=1), 1)


@pytest.mark.parametrize("case", ["default", "extra_1", "extra_3"])
def test_walls_and_rotations_at_the_start_are_the_originals(case):
    record = load("football")[case]
    env = make("football", **json.loads(record["kwargs"].item()))
    spawned, walls = env.spawn(jax.random.key(0)), len(env.world.landmarks)
    np.testing.assert_allclose(spawned["pos"][:walls], record["random/pos"][0, 0, :walls], **STATE)
    np.testing.assert_allclose(spawned["pos"][-1], record["random/pos"][0, 0, -1], **STATE)
    np.testing.assert_allclose(spawned["rot"], record["random/rot"][0, 0], **STATE)


def test_either_team_may_be_scripted_but_not_both():
    env = make("football", ai_blue_agents=True, ai_red_agents=False, n_blue_agents=2, n_red_agents=1)
    assert env.agents == ("agent_red_0",)
    state, _ = env.reset(jax.random.key(0))
    _, timestep = env.step(jax.random.key(1), state, jnp.zeros((1, 2)))
    assert np.isfinite(timestep.obs).all()
    with pytest.raises(UserError, match="ai_red_agents=false"):
        make("football", ai_blue_agents=True)
    with pytest.raises(UserError, match="one for blue and one for red"):
        make("football", ai_strength=[1.0, 0.5, 0.2])
    with pytest.raises(UserError, match="arrays"):
        make("football", dict_obs=True)
    with pytest.raises(UserError, match="n_blue_agents=5"):
        make("football", physically_different=True)
