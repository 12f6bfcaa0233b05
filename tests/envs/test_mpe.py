"""MPE against JaxMARL's ``step_env``, against recorded steps of PettingZoo's ``mpe2``, and the protocol."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.envs.check import check
from shoal.envs.mpe.world import World, relative, without_own

DATA = Path(__file__).parent.parent / "data"
TASKS = tuple(name.removeprefix("mpe/") for name in envs.list("mpe"))
RECORDED = tuple(sorted(path.stem.removeprefix("mpe_") for path in DATA.glob("mpe_*.npz")))
JAXMARL = {  # the version in JaxMARL's name of a task
    "simple_speaker_listener": 4,
    **dict.fromkeys((task for task in TASKS if "facmac" in task), 1),
}
BATCH = 128


def make(task: str, **kwargs):
    """The task without its time limit."""
    return envs.make(f"mpe/{task}", **kwargs).env


def run(function, *args):
    """``function(*args)`` as numpy arrays, compiled in a hurry because it runs once."""
    return jax.device_get(jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})(*args))


def random_actions(env, batch: int = BATCH, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    sizes = env.action_space.sizes
    if isinstance(env.action_space, envs.Continuous):
        return rng.uniform(size=(batch, env.num_agents, env.action_space.size)).astype(np.float32)
    return rng.integers(sizes, size=(batch, *np.shape(sizes))).astype(np.int32)


JAXMARL_CASES = [
    *[(task, continuous, {}) for task in RECORDED for continuous in (False, True)],
    *[(f"simple_facmac_{predators}a", True, {}) for predators in (3, 9)],
    ("simple_adversary", False, {"num_good_agents": 3, "num_adversaries": 2, "num_obs": 4}),
    ("simple_tag", False, {"num_good_agents": 3, "num_adversaries": 2, "num_obs": 1}),
    ("simple_world_comm", False, {"num_good_agents": 1, "num_adversaries": 2}),
    ("simple_facmac", True, {"num_good_agents": 2, "num_adversaries": 2, "num_landmarks": 3, "view_radius": 1.0}),
]


@pytest.mark.parametrize("task, continuous, kwargs", JAXMARL_CASES)
def test_a_step_equals_jaxmarls(task, continuous, kwargs):
    import jaxmarl
    from jaxmarl.environments.mpe.simple import State
    from jaxmarl.environments.mpe.simple_crypto import CryptoState

    env = make(task, continuous=continuous, **kwargs)
    kind = {} if "facmac" in task else {"action_type": "Continuous" if continuous else "Discrete"}
    reference = jaxmarl.make(f"MPE_{task}_v{JAXMARL.get(task, 3)}", **kwargs, **kind)
    assert env.agents == tuple(reference.agents)
    for agent, size in zip(env.agents, env.action_space.sizes, strict=True):
        space = reference.action_space(agent)
        assert size == (space.shape[0] if continuous else space.n)

    rng = np.random.default_rng(0)
    entities = env.num_agents + env.world.landmarks
    scale = rng.uniform(0.1, 1.5, size=(BATCH, 1, 1))  # together, so that they collide, or apart, to leave the arena
    pos = (scale * rng.uniform(-1, 1, size=(BATCH, entities, 2))).astype(np.float32)
    vel = (rng.normal(size=(BATCH, env.num_agents, 2)) * env.world.movable[:, None]).astype(np.float32)
    goal = None if env.goals is None else rng.integers(env.goal_count, size=(BATCH, *env.goals))
    actions = random_actions(env)
    keys = rng.integers(2**32, size=(BATCH, 2)).astype(np.uint32)

    def reference_step(key, pos, vel, goal, action):
        state = {
            "p_pos": pos,
            "p_vel": jnp.zeros_like(pos).at[: env.num_agents].set(vel),
            "c": jnp.zeros((env.num_agents, reference.dim_c)),
            "done": jnp.array(False),
            "step": jnp.array(0),
        }
        if task == "simple_crypto":
            colours = jnp.where(goal[:, None] == jnp.arange(4), 255.0, 0.0)
            state = CryptoState(**state, goal_colour=colours[0], private_key=colours[1])
        else:
            state = State(**state, goal=goal)
        sizes = env.action_space.sizes
        action = {a: action[i, : sizes[i]] if continuous else action[i] for i, a in enumerate(env.agents)}
        obs, new, reward, _, _ = reference.step_env.__wrapped__(reference, key, state, action)
        return obs, new.p_pos, new.p_vel, reward

    def both(key, pos, vel, goal, action):
        own = env.step(key, env.restore(pos, vel, goal=goal), action)
        return own, reference_step(key, pos, vel, goal, action)

    (new, timestep), expected = run(jax.vmap(both), keys, pos, vel, goal, actions)
    obs, next_pos, next_vel, reward = expected
    # JaxMARL's crypto rewards are differences of squares up to 65025
    close = {"rtol": 1e-5, "atol": 5e-2 if task == "simple_crypto" else 1e-5}
    np.testing.assert_allclose(new.pos, next_pos[:, : env.num_agents], **close)
    np.testing.assert_allclose(new.vel, next_vel[:, : env.num_agents], **close)
    np.testing.assert_array_equal(new.landmarks, next_pos[:, env.num_agents :])
    for i, agent in enumerate(env.agents):
        size = env.obs_sizes[i]
        assert obs[agent].shape[-1] == size
        np.testing.assert_allclose(timestep.obs[:, i, :size], obs[agent], **close)
        np.testing.assert_array_equal(timestep.obs[:, i, size:], 0)
        np.testing.assert_allclose(timestep.reward[:, i], reward[agent], **close)
    if env.world.solid:
        assert np.abs(new.vel - 0.75 * vel).max() > 0.6, "nothing collided: the test shows less than it says"


RECORDED_CASES = [
    *[(task, case, {}) for task in RECORDED for case in ("discrete", "continuous") if task != "simple_crypto"],
    ("simple_spread", "extra", {}),
    *[("simple_crypto", case, {"rules": "mpe2"}) for case in ("discrete", "continuous")],
    ("simple_tag", "extra", {"rules": "mpe2"}),
    ("simple_world_comm", "extra", {"rules": "mpe2"}),
]


@pytest.mark.parametrize("task, case, rules", RECORDED_CASES)
def test_recorded_steps_equal_mpe2s(task, case, rules):
    with np.load(DATA / f"mpe_{task}.npz") as data:
        record = {k.removeprefix(f"{case}/"): data[k] for k in data.files if k.startswith(f"{case}/")}
    kwargs = {k.removeprefix("kwargs."): v.item() for k, v in record.items() if k.startswith("kwargs.")}
    env = make(task, continuous=case == "continuous", **kwargs, **rules)
    assert env.agents == tuple(record["agents"])
    assert env.obs_sizes == tuple(record["obs_sizes"])
    goal = record["goal"] if env.goals is not None else None

    def step(pos, vel, goal, action):
        return env.step(jax.random.key(0), env.restore(pos, vel, goal=goal), action)

    new, timestep = run(jax.vmap(step), record["pos"], record["vel"], goal, record["action"])
    close = {"rtol": 1e-5, "atol": 2e-5}
    np.testing.assert_allclose(new.vel, record["next_vel"], **close)
    np.testing.assert_allclose(timestep.obs, record["obs"], **close)
    np.testing.assert_allclose(timestep.reward, record["reward"], **close)
    expected = record["pos"][:, : env.num_agents] + 0.1 * record["vel"] * env.world.movable[:, None]
    np.testing.assert_allclose(new.pos, expected, **close)


def test_every_task_of_mpe2_is_recorded():
    assert set(RECORDED) == {task for task in TASKS if "facmac" not in task}
    assert sum(path.stat().st_size for path in DATA.glob("mpe_*.npz")) < 200_000


@pytest.mark.parametrize("task", TASKS)
def test_protocol(task):
    env = make(task)
    key, action = jax.random.key(0), random_actions(env, batch=1)[0]
    check(env)
    state, first = jax.eval_shape(env.reset, key)
    assert first.info == {} and not env.terminates

    def constants(key, state, action):
        timestep = env.step(key, state, action)[1]
        return timestep.action_mask, timestep.alive, timestep.terminated | timestep.truncated

    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
    mask, alive, ended = run(constants, key, zeros, action)
    np.testing.assert_array_equal(mask.sum(axis=-1), env.action_space.sizes)
    assert alive.all() and not env.mortal and not ended


@pytest.mark.parametrize("task", ["simple_reference", "simple_world_comm"])
def test_a_move_and_a_word_equal_the_flat_action(task):
    env, multi = make(task), make(task, multi_discrete=True)
    assert multi.action_space.parts == (5, env.words)
    flat = np.arange(env.action_space.size)[:, None] % env.action_space.sizes  # [N, A], every action of every agent
    pairs = np.stack([flat % 5, flat // 5], axis=-1)
    assert tuple(map(tuple, pairs.max(axis=0) + 1)) == multi.action_space.sizes

    def step(key, pos, vel, goal, flat, pair):
        state = env.restore(pos, vel, goal=goal)
        return env.step(key, state, flat), multi.step(key, state, pair)

    rng = np.random.default_rng(0)
    pos = rng.uniform(-1, 1, size=(len(flat), env.num_agents + env.world.landmarks, 2))
    vel = rng.normal(size=(len(flat), env.num_agents, 2))
    goal = None if env.goals is None else rng.integers(env.goal_count, size=(len(flat), *env.goals))
    keys = jax.random.split(jax.random.key(0), len(flat))
    (state, timestep), (multi_state, multi_timestep) = run(jax.vmap(step), keys, pos, vel, goal, flat, pairs)
    jax.tree.map(np.testing.assert_array_equal, state, multi_state)
    jax.tree.map(
        np.testing.assert_array_equal, timestep.replace(action_mask=None), multi_timestep.replace(action_mask=None)
    )
    mask = multi_timestep.action_mask[0]
    assert mask.shape == (env.num_agents, multi.action_space.size)
    for i, (moves, words) in enumerate(multi.action_space.sizes):
        np.testing.assert_array_equal(np.flatnonzero(mask[i]), [*range(moves), *range(5, 5 + words)])


@pytest.mark.parametrize("task", TASKS)
def test_position_is_where_every_agent_sees_its_own(task):
    env = envs.make(f"mpe/{task}")
    known = "spread" in task or "tag" in task or "facmac" in task or "world" in task
    assert env.position == ((2, 4) if known else None)

    def episode(key, action):
        state, first = env.reset(key)
        new, second = env.step(key, state, action)
        return (first.obs, state.inner.pos), (second.obs, new.inner.pos)

    keys = jax.random.split(jax.random.key(0), 4)
    for obs, pos in run(jax.vmap(episode), keys, random_actions(env, batch=4)):
        found = [(i, i + 2) for i in range(env.obs_size - 1) if (obs[..., i : i + 2] == pos).all()]
        assert found == ([env.position] if known else [])


def test_the_global_state_is_all_observations():
    _, timestep = run(make("simple_push").reset, jax.random.key(0))
    np.testing.assert_array_equal(timestep.state, timestep.obs.reshape(-1))


def test_groups_are_the_teams():
    assert envs.make("mpe/simple_spread").group_names == ("team",)
    assert make("simple_speaker_listener").groups == ("team", "team")
    assert make("simple_tag").groups == ("adversary", "adversary", "adversary", "agent")
    assert make("simple_world_comm").agents[0] == "leadadversary_0"
    assert make("simple_world_comm").groups[0] == "adversary"
    assert make("simple_crypto").agents == ("eve_0", "alice_0", "bob_0")
    assert make("simple_crypto", rules="mpe2").agents == ("eve_0", "bob_0", "alice_0")


def test_an_episode_is_truncated_after_25_steps():
    env = envs.make("mpe/simple_spread")

    def body(state, _):
        state, timestep = env.step(jax.random.key(0), state, jnp.zeros(3, jnp.int32))
        return state, (timestep.terminated, timestep.truncated)

    def episode(key):
        return jax.lax.scan(body, env.reset(key)[0], length=25)[1]

    terminated, truncated = run(episode, jax.random.key(0))
    assert not terminated.any()
    np.testing.assert_array_equal(truncated, np.arange(25) == 24)


@pytest.mark.parametrize(
    "task, kwargs, spawn",
    [
        ("simple_spread", {}, 1.0),
        ("simple_reference", {}, 1.0),
        ("simple_tag", {}, 1.0),
        ("simple_tag", {"rules": "mpe2"}, 0.9),
    ],
)
def test_resets_are_uniform(task, kwargs, spawn):
    env = make(task, **kwargs)
    keys = np.random.default_rng(0).integers(2**32, size=(4000, 2)).astype(np.uint32)
    state, timestep = run(jax.vmap(env.reset), keys)
    for places, bound in ((state.pos, 1.0), (state.landmarks, spawn)):
        assert 0.99 * bound < np.abs(places).max() <= bound
        np.testing.assert_allclose(places.mean(0), 0, atol=0.06)
        np.testing.assert_allclose(places.var(0), bound**2 / 3, rtol=0.1)
    flat = np.concatenate([state.pos, state.landmarks], axis=1).reshape(4000, -1)
    correlation = np.corrcoef(flat.T) - np.eye(flat.shape[1])
    assert np.abs(correlation).max() < 0.08
    np.testing.assert_array_equal(state.vel, 0)
    np.testing.assert_array_equal(timestep.reward, 0)
    if env.goals is not None:
        counts = np.stack([np.bincount(column, minlength=env.goal_count) for column in state.goal.T])
        assert counts.shape[1] == env.goal_count
        np.testing.assert_allclose(counts / 4000, 1 / env.goal_count, atol=0.04)


def test_restore_gives_the_state_back():
    for task in ("simple_reference", "simple_tag"):
        env = make(task)
        state, _ = run(env.reset, jax.random.key(0))
        state = state.replace(vel=state.vel + 1)
        restored = env.restore(np.concatenate([state.pos, state.landmarks]), state.vel, state.comm, state.goal)
        assert jax.tree.structure(restored) == jax.tree.structure(state)
        jax.tree.map(np.testing.assert_array_equal, restored, state)
    with pytest.raises(envs.UserError, match="goal=None"):
        make("simple_reference").restore(np.zeros((5, 2)))


@pytest.mark.parametrize(
    "task, given, message",
    [
        ("simple_tag", {"pos": np.zeros((5, 2))}, r"restore\(pos=...\): must have the shape \(6, 2\), not \(5, 2\)"),
        ("simple_tag", {"vel": np.zeros((5, 2))}, r"restore\(vel=...\): must have the shape \(4, 2\)"),
        ("simple_tag", {"vel": 1.0}, r"restore\(vel=...\): must have the shape \(4, 2\)"),
        ("simple_tag", {"vel": "fast"}, r"restore\(vel=...\): must be numbers"),
        ("simple_tag", {"comm": np.zeros((4, 2))}, r"restore\(comm=...\): nobody speaks in SimpleTag"),
        ("simple_tag", {"goal": 1}, r"restore\(goal=...\): SimpleTag has no goal"),
        ("simple_reference", {"comm": np.zeros((2, 3)), "goal": [0, 1]}, r"restore\(comm=...\): must have the shape"),
        ("simple_reference", {"goal": [0, 1, 2]}, r"restore\(goal=...\): must have the shape \(2,\)"),
    ],
)
def test_restore_refuses_what_does_not_fit(task, given, message):
    env = make(task)
    places = env.world.agents + env.world.landmarks
    with pytest.raises(envs.UserError, match=message):
        env.restore(**{"pos": np.zeros((places, 2)), **given})


def test_restore_takes_rows_for_all_bodies_or_for_those_that_count():
    env = make("simple_speaker_listener")
    pos = np.zeros((env.world.agents + env.world.landmarks, 2))
    said = np.arange(env.num_agents * env.words, dtype=np.float32).reshape(env.num_agents, -1)
    whole = env.restore(pos, pos + 1, said, goal=[1])
    own = env.restore(pos, pos[: env.num_agents] + 1, said[: env.speakers], goal=[1])
    jax.tree.map(np.testing.assert_array_equal, whole, own)
    assert whole.vel.shape == (env.num_agents, 2) and whole.comm.shape == (env.speakers, env.words)


def test_entities_in_one_place_do_not_become_nan():
    env = make("simple_tag")
    new, timestep = run(env.step, jax.random.key(0), env.restore(np.zeros((6, 2))), np.zeros(4, np.int32))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((new, timestep.obs, timestep.reward)))


@pytest.mark.parametrize("task, matters", [("simple_tag", False), ("simple_facmac_3a", True)])
def test_the_key_matters_only_to_scripted_prey(task, matters):
    env = make(task, continuous=True)
    pos = 0.3 * np.random.default_rng(0).uniform(-1, 1, size=(env.num_agents + env.world.landmarks, 2))

    def step(key):
        return env.step(key, env.restore(pos), jnp.zeros((env.num_agents, 5)))[0].vel

    vel = run(jax.vmap(step), jax.random.split(jax.random.key(1), 32))
    assert (vel != vel[0]).any() == matters


def test_a_push_acts_on_both_of_a_pair_but_moves_only_what_can_move():
    world = World(2, radius=np.array([0.1, 0.1, 0.1]), solid=3, movable=np.array([True, True]))
    force = world.contact_force(jnp.array([[0.0, 0.0], [0.15, 0.0]]), jnp.array([[9.0, 9.0]]))
    np.testing.assert_allclose(force, [[-5, 0], [5, 0]], rtol=1e-4)
    anchored = World(2, radius=np.array([0.1, 0.1, 0.1]), solid=3, movable=np.array([True, False]))
    np.testing.assert_allclose(
        anchored.contact_force(jnp.array([[0.0, 0.0], [0.15, 0.0]]), jnp.array([[9.0, 9.0]])),
        [[-5, 0], [0, 0]],
        rtol=1e-4,
    )
    slow = World(1, radius=np.array([0.1]), max_speed=0.5)
    _, vel = slow.move(jnp.zeros((1, 2)), jnp.zeros((1, 2)), jnp.zeros((0, 2)), jnp.array([[2.0, 0.0]]))
    np.testing.assert_allclose(vel, [[0.2, 0]], rtol=1e-6)
    _, vel = slow.move(jnp.zeros((1, 2)), jnp.zeros((1, 2)), jnp.zeros((0, 2)), jnp.array([[30.0, 40.0]]))
    np.testing.assert_allclose(vel, [[0.3, 0.4]], rtol=1e-6)


def test_geometry():
    matrix = jnp.arange(9).reshape(3, 3)
    np.testing.assert_array_equal(without_own(matrix), [[1, 2], [3, 5], [6, 7]])
    pos, landmark = jnp.array([[0.0, 0.0], [1.0, 2.0]]), jnp.array([[5.0, 5.0]])
    np.testing.assert_array_equal(relative(pos, landmark), [[5, 5, 1, 2], [4, 3, -1, -2]])


@pytest.mark.parametrize(
    "task, kwargs, message",
    [
        ("simple_spread", {"num_agents": 0}, "num_agents=0: must be a whole number, at least 1"),
        ("simple_spread", {"num_landmarks": 2.5}, "num_landmarks=2.5: must be a whole number"),
        ("simple_spread", {"local_ratio": 1.2}, r"local_ratio=1.2: must be in \[0, 1\]"),
        ("simple_tag", {"num_obs": -1}, "num_obs=-1: must be a whole number, at least 0"),
        ("simple_tag", {"rules": "openai"}, "rules='openai': must be 'jaxmarl' or 'mpe2'"),
        ("simple_world_comm", {"num_forests": 0}, "num_forests=0"),
        ("simple_facmac", {"view_radius": -2}, "view_radius=-2: must be at least 0, or -1"),
        ("simple_facmac", {"score_function": "max"}, "score_function='max': must be 'sum' or 'min'"),
        ("simple_facmac_3a", {"num_adversaries": 4}, "num_adversaries"),
        ("simple_push", {"num_landmarks": 3}, "num_landmarks: mpe/simple_push takes"),
        ("simple_reference", {"continuous": True, "multi_discrete": True}, "multi_discrete=True: must be False if"),
        ("simple_spread", {"multi_discrete": True}, "multi_discrete: mpe/simple_spread takes"),
    ],
)
def test_bad_arguments_are_named(task, kwargs, message):
    with pytest.raises(envs.UserError, match=message):
        make(task, **kwargs)


def test_small_worlds_work():
    for task, kwargs in (
        ("simple_spread", {"num_agents": 1, "num_landmarks": 1}),
        ("simple_tag", {"num_good_agents": 1, "num_adversaries": 1, "num_obs": 0}),
        ("simple_tag", {"num_good_agents": 3, "num_adversaries": 1, "num_obs": 0, "rules": "mpe2"}),
        ("simple_world_comm", {"num_good_agents": 1, "num_adversaries": 1, "num_obs": 0}),
        ("simple_world_comm", {"num_good_agents": 1, "num_adversaries": 1, "rules": "mpe2"}),
        ("simple_facmac", {"num_landmarks": 0, "view_radius": -1}),
        ("simple_adversary", {"num_obs": 1}),
    ):
        env = make(task, **kwargs)
        state = jax.eval_shape(env.reset, jax.random.key(0))[0]
        timestep = jax.eval_shape(env.step, jax.random.key(0), state, random_actions(env, 1)[0])[1]
        assert timestep.obs.shape == (env.num_agents, env.obs_size), task
