"""SMAX against jaxmarl's: from the same state, by the same actions and random numbers to the same next state."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.envs import smax
from tests.envs.test_jaxmarl import jit

pytestmark = pytest.mark.filterwarnings("ignore")  # jaxmarl's own

EPISODES, STEPS = 6, 40
OPTIONS = [
    ("2s3z", {"observation_type": "conic", "attack_mode": "random", "see_enemy_actions": False}),
    ("3s_vs_5z", {"use_self_play_reward": True, "walls_cause_death": False, "map_width": 20, "map_height": 24}),
    ("smacv2_5_units", {"world_steps_per_env_step": 3, "time_per_step": 0.125, "enemy_shoots": False}),
]


def as_ours(state, env):
    """jaxmarl's state as ours; jaxmarl sets an enemy's goal in its first step only."""
    inner, script = state.state, state.enemy_policy_state
    x, y = jnp.round(inner.prev_movement_actions).astype(int).T
    move = jnp.select([y > 0, x > 0, y < 0, x < 0], [0, 1, 2, 3], smax.STOP)
    opposite = env.size - inner.unit_positions[env.allies :]
    goal = jnp.where((script.default_target == 0).all(-1, keepdims=True), opposite, script.default_target)
    return smax.State(
        pos=inner.unit_positions.T,
        health=inner.unit_health,
        cooldown=inner.unit_weapon_cooldowns,
        types=inner.unit_types.astype(jnp.int32),
        action=jnp.where(inner.prev_attack_actions > 0, inner.prev_attack_actions, move).astype(jnp.int32),
        goal=goal.T,
        prey=script.last_attacked_enemy.astype(jnp.int32),
    )


def jaxmarls_numbers(key, env):
    """The uniform numbers that jaxmarl's step draws from its key, in our order."""
    key, script_key = jax.random.split(key)
    keys = jax.vmap(jax.random.split)(jax.random.split(script_key, env.enemies))  # [M, 2]: to follow, to attack
    script = jax.vmap(jax.vmap(jax.random.uniform))(keys).T[: 1 + (env.attack_mode == "random")]

    def world_step(key, _):
        key, step_key = jax.random.split(key)
        return key, jax.vmap(jax.random.uniform)(jax.random.split(step_key, env.units))

    _, late = jax.lax.scan(world_step, key, length=env.substeps)
    return jnp.concatenate([late.reshape(-1), script.reshape(-1)])


def go_east(key, mask):
    """A legal action, more often to the enemies than elsewhere."""
    return jax.random.categorical(key, jnp.where(mask, 2.0 * (jnp.arange(mask.shape[-1]) == 1), -jnp.inf))


@pytest.mark.parametrize(("name", "kwargs"), [(name, {}) for name in smax.MAPS] + OPTIONS)
def test_steps_are_jaxmarls(name, kwargs):
    theirs, ours = (envs.make(f"{family}/{name}", **kwargs).env for family in ("jaxmarl_smax", "smax"))
    ours.between_shots = 1  # jaxmarl draws numbers for every world step
    for fact in ("agents", "groups", "obs_sizes", "state_size", "action_space", "horizon", "terminates"):
        assert getattr(ours, fact) == getattr(theirs, fact)

    def body(carry, key):
        state, timestep = carry
        act_key, step_key = jax.random.split(key)
        action = go_east(act_key, timestep.action_mask)
        result = ours._advance(as_ours(state, ours), action, jaxmarls_numbers(step_key, ours))
        state, timestep = theirs.step(step_key, state, action)
        return (state, timestep), (result, (as_ours(state, ours), timestep))

    @jit
    @jax.vmap
    def both(key):
        reset_key, scan_key = jax.random.split(key)
        return jax.lax.scan(body, theirs.reset(reset_key), jax.random.split(scan_key, STEPS))[1]

    result, expected = both(jax.random.split(jax.random.key(0), EPISODES))
    timestep = expected[1]
    assert timestep.terminated.any() and timestep.reward.any() and not timestep.alive.all()
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(result), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype, path
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", ["2s3z", "5m_vs_6m", "smacv2_5_units"])
def test_first_states_are_distributed_as_jaxmarls(name):
    theirs, ours = (envs.make(f"{family}/{name}").env for family in ("jaxmarl_smax", "smax"))
    count = 4000
    expected = jit(jax.vmap(lambda key: as_ours(theirs.reset(key)[0], ours)))(
        jax.random.split(jax.random.key(0), count)
    )
    state = jit(jax.vmap(lambda key: ours.reset(key)[0]))(jax.random.split(jax.random.key(1), count))
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)

    def largest_gap(a, b):  # Kolmogorov and Smirnov's, 0.05 by chance once in 10 000 times
        both = np.sort(np.concatenate([a, b]))
        return np.abs(np.searchsorted(np.sort(a), both) - np.searchsorted(np.sort(b), both)).max() / count

    def views(state):  # sums and differences show how units depend on one another
        pos = np.asarray(state.pos).reshape(count, -1)
        team = np.asarray(state.pos[:, 0, : ours.allies]).mean(-1)
        return [
            *pos.T,
            team,
            np.abs(pos[:, 0] - pos[:, 1]),
            pos[:, 0] + pos[:, ours.allies],
            state.types[:, 0],
            state.health[:, -1],
        ]

    assert max(largest_gap(a, b) for a, b in zip(views(state), views(expected), strict=True)) < 0.06
    if ours.random_units:
        np.testing.assert_array_equal(state.types[:, : ours.allies], state.types[:, ours.allies :])
        assert set(np.unique(state.types)) == set(range(6))


def test_one_is_as_many():
    env = envs.make("smax/smacv2_5_units")
    keys = jax.random.split(jax.random.key(0), (2, 3))
    action = jax.random.randint(jax.random.key(1), (2, 3, env.num_agents), 0, env.action_space.size)

    def play(key, action):
        return env.step(key, env.reset(key)[0], action)

    nested = jit(jax.vmap(jax.vmap(play)))(keys, action)
    for i, j in ((0, 0), (1, 2)):
        alone = jit(play)(keys[i, j], action[i, j])
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(nested), strict=True):
            np.testing.assert_allclose(a, b[i, j], rtol=1e-5, atol=1e-5)
    shared = jit(jax.vmap(play, in_axes=(None, 0)))(keys[0, 0], action[0])[1]  # one key for all
    np.testing.assert_allclose(shared.obs[0], nested[1].obs[0, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("steps", "cooldown", "shots"), [(8, 0.5, 1), (16, 0.5, 2), (8, 0.2, 3), (8, 0.01, 8)])
def test_random_numbers_suffice_for_all_shots(steps, cooldown, shots):
    """A weapon is ready again after at least its cooldown less one world step, counted from the next."""
    env = smax.Smax(("m", "m"), world_steps_per_env_step=steps, unit_type_weapon_cooldowns=[cooldown] * 6)
    assert env.shots == shots
    stats = env.stats(jnp.zeros((2, 1), jnp.int32))
    step = partial(env._world_step, action=jnp.full((2, 1), smax.MOVES), stats=stats)
    start = jnp.zeros((2, 2, 1)).at[:, 0].set(4.0).at[:, 1].set(6.0), jnp.full((2, 1), 1e6), jnp.zeros((2, 1))

    def body(carry, late):
        after, _ = step(carry, late)
        return after, after[1] < carry[1]

    _, hit = jax.lax.scan(body, start, jnp.full((10 * steps, 2, 1), -env.seconds))
    times = np.flatnonzero(np.asarray(hit[:, 0, 0]))
    assert len(times) > 5 and np.diff(times).min() >= env.between_shots
