"""The jaxmarl adapter against jaxmarl itself, used directly: one representative task per row of the table."""

import importlib
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.envs.check import check
from shoal.envs.jaxmarl import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore")  # jaxmarl's and brax's own


# These programs run for milliseconds; so compiled they run slower, but compile four times faster.
jit = partial(
    jax.jit,
    compiler_options={
        "xla_cpu_use_fusion_emitters": False,
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)


@dataclass(frozen=True, eq=False)
class Case:
    """A task of ours and the same environment built from jaxmarl by hand."""

    name: str
    module: str  # in jaxmarl.environments
    cls: str
    arguments: dict[str, Any]  # of jaxmarl's constructor
    kwargs: dict[str, Any]  # of envs.make
    steps: int = 30  # before jaxmarl's own time limit
    observe: Callable = lambda obs, agent: obs[agent]
    pack: Callable = lambda actions: actions
    legal: str = ""  # jaxmarl's method, if it has masks
    state: Callable | None = None
    young: Callable | None = None  # turns back the step counter that jaxmarl's environment sees

    def direct(self):
        arguments = {key: value() if callable(value) else value for key, value in self.arguments.items()}
        return getattr(importlib.import_module(f"jaxmarl.environments.{self.module}"), self.cls)(**arguments)

    def __str__(self) -> str:
        return self.name + "".join(f",{key}={value}" for key, value in self.kwargs.items())


def scenario(name):
    return importlib.import_module("jaxmarl.environments.smax.smax_env").MAP_NAME_TO_SCENARIO[name]


def layout(name):
    return importlib.import_module("jaxmarl.environments.overcooked").overcooked_layouts[name]


def vector(image, inventory):
    return jnp.concatenate([image.reshape(-1), inventory])


CONTINUOUS = {"action_type": "Continuous"}
CASES = [
    Case("jaxmarl_mpe/simple_tag", "mpe", "SimpleTagMPE", {}, {}, steps=25),
    Case("jaxmarl_mpe/simple_world_comm", "mpe", "SimpleWorldCommMPE", CONTINUOUS, {"continuous": True}, steps=25),
    Case("jaxmarl_mpe/simple_facmac_3a", "mpe", "SimpleFacmacMPE3a", {}, {}, steps=25),
    Case(
        "jaxmarl_smax/2s3z",
        "smax",
        "HeuristicEnemySMAX",
        {"scenario": lambda: scenario("2s3z")},
        {},
        legal="get_avail_actions",
        state=lambda env, obs, state: obs["world_state"],
    ),
    Case(
        "overcooked/cramped_room",
        "overcooked",
        "Overcooked",
        {"layout": lambda: layout("cramped_room")},
        {"reward_shaping": 0.5},
        steps=399,
    ),
    Case("overcooked_v2/cramped_room_v2", "overcooked_v2", "OvercookedV2", {"layout": "cramped_room_v2"}, {}),
    Case("hanabi/three_players", "hanabi", "Hanabi", {"num_agents": 3}, {}, legal="get_legal_moves"),
    Case(
        "mabrax/hopper_3x1",
        "mabrax",
        "Hopper",
        {"auto_reset": False},
        {},
        steps=150,
        state=lambda env, obs, state: state.obs,
        young=lambda state: state.replace(info=state.info | {"steps": jnp.float32(0)}),
    ),
    Case("jaxnav/grid", "jaxnav", "JaxNav", {"num_agents": 3}, {"num_agents": 3, "continuous": True}),
    Case("coin_game/coin_game", "coin_game", "CoinGame", {"cnn": True}, {}),
    Case("storm/np", "storm", "InTheMatrix", {}, {}),
    Case(
        "storm/grid",
        "storm",
        "InTheGrid",
        {},
        {},
        steps=0,  # as np but for the observation, and slow to compile
        observe=lambda obs, agent: vector(obs["observations"][agent], obs["inventory"].T[agent]),
    ),
    Case(
        "storm/2p",
        "storm",
        "InTheGrid_2p",
        {},
        {},
        steps=0,
        observe=lambda obs, agent: vector(obs[agent]["observation"], obs[agent]["inventory"]),
        pack=lambda actions: (actions[0], actions[1]),
    ),
    Case("switch_riddle/switch_riddle", "switch_riddle", "SwitchRiddle", {"num_agents": 10}, {"num_agents": 10}),
]
make = cache(lambda case: envs.make(case.name, **case.kwargs))


def random_action(env, key, timestep):
    """A legal action, the same for every legal one."""
    if isinstance(env.action_space, envs.Discrete):
        return jax.random.categorical(key, jnp.where(timestep.action_mask, 0.0, -jnp.inf))
    space = env.action_space
    return jax.random.uniform(key, space.low.shape, minval=space.low, maxval=space.high)


def rollout(env, key, steps, policy=random_action):
    """The time steps of one episode that is never reset, ``[T]`` in front; the first is the reset's."""

    def body(carry, key):
        state, timestep = carry
        act_key, step_key = jax.random.split(key)
        state, timestep = env.step(step_key, state, policy(env, act_key, timestep))
        return (state, timestep), timestep

    reset_key, scan_key = jax.random.split(key)
    first = env.reset(reset_key)
    _, rest = jax.lax.scan(body, first, jax.random.split(scan_key, steps))
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first[1], rest)


def constant(action):
    return lambda env, key, timestep: jnp.full(env.num_agents, action)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_are_jaxmarls(case):
    """Both start from the same key, and step from the same state (which halves the compilation) to the same next."""
    env, direct = make(case), case.direct()
    # The prey of FACMAC plays by itself.
    agents = direct.adversaries if "facmac" in case.name else direct.agents

    def seen(obs, state):
        rows = [case.observe(obs, agent).astype(float) for agent in agents]
        masks = getattr(direct, case.legal)(state) if case.legal else {}
        whole = case.state(direct, obs, state) if case.state else ()
        return {"obs": rows, "masks": [masks[a] for a in agents if masks], "state": whole}

    def same(ours, theirs):
        pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
        return jnp.array([jnp.array_equal(a, b, equal_nan=True) for a, b in pairs])

    def by_agent(action):
        sizes = env.action_space.sizes
        own = {agent: action[i] if action.ndim == 1 else action[i][: sizes[i]] for i, agent in enumerate(agents)}
        return case.pack({**own, **{agent: jnp.zeros(5) for agent in direct.agents if agent not in agents}})

    def body(carry, key):
        ours, timestep = carry
        act_key, step_key = jax.random.split(key)
        action = random_action(env, act_key, timestep)
        theirs = case.young(ours.inner) if case.young else ours.inner
        ours, timestep = env.step(step_key, ours, action)
        obs, theirs, reward, done, info = direct.step_env(step_key, theirs, by_agent(action))
        result = {
            "reward": [reward[agent] for agent in agents],
            "done": done["__all__"],
            "shaped": [info["shaped_reward"][agent] for agent in agents] if "shaped_reward" in info else [],
            "same_state": True if case.young else same(ours.inner, theirs),
        }
        return (ours, timestep), (timestep, seen(obs, theirs) | result)

    @jit
    def both(key):
        reset_key, scan_key = jax.random.split(key)
        obs, theirs = direct.reset(reset_key)
        ours, timestep = env.reset(reset_key)
        result = seen(obs, theirs) | {"same_state": same(ours.inner, theirs)}
        if case.young:  # our copy is old, and must not mind
            ours = ours.replace(inner=ours.inner.replace(info=ours.inner.info | {"steps": jnp.float32(980)}))
        if case.steps == 0:
            return timestep, result, None, None
        _, (timesteps, direct_steps) = jax.lax.scan(body, (ours, timestep), jax.random.split(scan_key, case.steps))
        return timestep, result, timesteps, direct_steps

    first, direct_first, timesteps, direct_steps = jax.tree.map(np.asarray, both(jax.random.key(1)))
    for ours, theirs in ((first, direct_first), (timesteps, direct_steps))[: 1 + (case.steps > 0)]:
        assert theirs["same_state"].all()
        for i, row in enumerate(theirs["obs"]):
            lead = ours.terminated.ndim
            flat = row.reshape(*row.shape[:lead], -1)
            assert flat.shape[-1] == env.obs_sizes[i]
            flat = np.where(ours.alive[..., i, None], flat, 0.0)  # ours hides what the dead see
            np.testing.assert_allclose(ours.obs[..., i, : env.obs_sizes[i]], flat, rtol=1e-6, atol=1e-6)
            assert not ours.obs[..., i, env.obs_sizes[i] :].any()
            if env.obs_shape:
                np.testing.assert_array_equal(ours.obs[..., i, :].reshape(row.shape), row)
        for i, mask in enumerate(theirs["masks"]):
            np.testing.assert_array_equal(ours.action_mask[..., i, : mask.shape[-1]], mask == 1)
        if case.state:
            np.testing.assert_allclose(ours.state, theirs["state"], rtol=1e-6, atol=1e-6)
    if case.steps == 0:
        return
    reward = np.stack(direct_steps["reward"], -1)
    if direct_steps["shaped"]:
        shaped = np.stack(direct_steps["shaped"], -1)
        np.testing.assert_allclose(timesteps.info["shaped_reward"], shaped.mean(-1), rtol=1e-6)
        reward = reward + case.kwargs.get("reward_shaping", 0.0) * shaped
        assert shaped.any() or case.steps < 100
    np.testing.assert_allclose(timesteps.reward, reward, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(timesteps.terminated, direct_steps["done"])
    assert case.name != "mabrax/hopper_3x1" or timesteps.terminated.any()  # it falls


@pytest.mark.parametrize("case", CASES, ids=str)
def test_facts_and_structure(case):
    env, key = make(case), jax.random.key(0)
    first = jax.eval_shape(env.reset, key)
    action = jax.eval_shape(lambda: random_action(env, key, env.reset(key)[1]))
    after = jax.eval_shape(env.step, key, first[0], action)
    assert jax.tree.structure(first) == jax.tree.structure(after)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type) and not a.weak_type

    jax.eval_shape(jax.vmap(lambda key: rollout(env, key, 3)), jax.random.split(key, 2))

    env.env.checked = False  # here it is
    check(env)
    timestep = first[1]
    for name, value in timestep.info.items():
        assert value.shape == ((env.num_agents,) if name == "task_reward" else ()) and value.dtype == jnp.float32


def test_padded_actions_are_masked():
    env = envs.make("jaxmarl_mpe/simple_speaker_listener")
    mask = np.asarray(jit(env.reset)(jax.random.key(0))[1].action_mask)
    np.testing.assert_array_equal(mask.sum(-1), [3, 5])
    assert not mask[0, 3:].any() and env.action_space == envs.Discrete((3, 5))
    continuous = envs.make("jaxmarl_mpe/simple_world_comm", continuous=True)
    assert continuous.action_space.sizes == (9, 5, 5, 5, 5, 5)
    np.testing.assert_array_equal(continuous.action_space.low, np.zeros((6, 9)))
    np.testing.assert_array_equal(continuous.action_space.high, np.ones((6, 9)))
    mask = np.asarray(jit(continuous.reset)(jax.random.key(0))[1].action_mask)
    np.testing.assert_array_equal(mask.sum(-1), continuous.action_space.sizes)


def test_groups():
    def groups(name):
        env = envs.make(name)
        return dict(zip(env.agents, env.groups, strict=True))

    assert groups("jaxmarl_mpe/simple_tag") == {f"adversary_{i}": "adversary" for i in range(3)} | {"agent_0": "agent"}
    assert groups("jaxmarl_mpe/simple_crypto") == {"eve_0": "adversary", "alice_0": "agent", "bob_0": "agent"}
    assert groups("jaxmarl_mpe/simple_facmac_3a") == {f"adversary_{i}": "team" for i in range(3)}
    assert groups("jaxmarl_mpe/simple_spread") == {f"agent_{i}": "team" for i in range(3)}
    assert groups("coin_game/coin_game") == {"agent_0": "agent_0", "agent_1": "agent_1"}
    assert groups("jaxmarl_smax/3m") == groups("smax/3m") == {f"ally_{i}": "ally" for i in range(3)}


STILL = [  # (name, kwargs, an action by which nothing ends, horizon)
    ("jaxmarl_mpe/simple_spread", {}, 0, 25),
    ("smax/3m", {"enemy_shoots": False}, 4, 100),
    ("jaxmarl_smax/3m", {"enemy_shoots": False}, 4, 100),
    ("overcooked_v2/cramped_room", {}, 4, 400),
    ("coin_game/coin_game", {}, 4, 100),
    ("storm/2p", {"num_inner_steps": 5, "num_outer_steps": 3}, 4, 15),
    ("switch_riddle/switch_riddle", {"num_agents": 5}, 0, 14),
]


@pytest.mark.parametrize(("name", "kwargs", "action", "horizon"), STILL)
def test_only_our_time_limit_ends_an_episode(name, kwargs, action, horizon):
    env = envs.make(name, **kwargs)
    assert env.horizon == horizon
    steps = jit(lambda key: rollout(env, key, horizon + 3, constant(action)))(jax.random.key(0))
    assert not steps.terminated.any()
    np.testing.assert_array_equal(steps.truncated, np.arange(horizon + 4) >= horizon)


def test_overcookeds_shaped_rewards_are_paid():
    """An onion into the pot and one plate for the soup, 3 each; a second plate is of no use."""
    up, down, right, left, stay, interact = range(6)
    script = [  # of the left and the right cook of cramped_room
        *((left, down), (interact, left), (right, left), (up, stay)),  # an onion; the other walks to the plates
        *((interact, down), (stay, interact), (stay, up)),  # into the pot; a plate, and back to the middle
        *((left, stay), (down, stay), (down, stay), (interact, stay)),  # a second plate
    ]
    env = envs.make("overcooked/cramped_room", reward_shaping=1.0)
    paid = []
    state, _ = env.reset(jax.random.key(0))
    step = jax.jit(env.step)
    for action in script:
        state, timestep = step(jax.random.key(0), state, jnp.array(action))
        paid.append(timestep.reward.tolist())
    assert [(i, row) for i, row in enumerate(paid) if any(row)] == [(4, [3.0, 0.0]), (5, [0.0, 3.0])], paid


def test_halfcheetah_cannot_fall_and_leaves_no_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = envs.make("mabrax/halfcheetah_6x1")
    assert not env.terminates and env.state_size == 17 and not list(tmp_path.iterdir())


def test_default_horizons():
    horizons = {"overcooked/cramped_room": 400, "jaxnav/grid": 500, "mabrax/hopper_3x1": 1000, "storm/2p": 152}
    horizons |= {"switch_riddle/switch_riddle": 34, "hanabi/three_players": 90}
    made = {case.name: make(case) for case in CASES if case.name in horizons}
    assert {name: env.horizon for name, env in made.items()} == horizons
    assert envs.make("mabrax/hopper_3x1", action_repeat=4).horizon == 250


def test_horizon_reaches_what_the_agents_see():
    kitchen = envs.make("overcooked/cramped_room", horizon=50)
    steps = jit(lambda key: rollout(kitchen, key, 55, constant(4)))(jax.random.key(0))
    urgency = np.asarray(steps.obs).reshape(56, 2, *kitchen.obs_shape)[..., -1]
    np.testing.assert_array_equal(urgency.min((1, 2, 3)), np.arange(56) > 10)
    np.testing.assert_array_equal(steps.truncated, np.arange(56) >= 50)
    assert not steps.terminated.any()
    nav = envs.make("jaxnav/corner_2", lidar_num_beams=10)
    steps = jit(lambda key: rollout(nav, key, 505, constant(2)))(jax.random.key(0))
    np.testing.assert_allclose(steps.state[:, -1], np.arange(506) / 500 - 0.5, atol=1e-6)
    np.testing.assert_array_equal(steps.truncated, np.arange(506) >= 500)
    assert not steps.terminated.any() and steps.alive.all()


def test_a_single_round_keeps_its_last_observation_and_reward():
    one, many = (envs.make("coin_game/coin_game", num_inner_steps=10, num_outer_steps=n) for n in (1, 2))
    assert (one.horizon, many.horizon) == (10, 20)

    @jit
    @jax.vmap
    def last(key):
        ends = [rollout(env, key, 10, lambda *_: jnp.array([0, 2])) for env in (one, many)]
        return [(steps.obs[-1], steps.reward[-1]) for steps in ends]

    (obs, reward), (new_obs, new_reward) = last(jax.random.split(jax.random.key(0), 64))
    assert reward.any() and not new_reward.any()
    assert (obs != new_obs).any((1, 2)).mean() > 0.9


def focus_fire(env, key, timestep):
    """Attack the last enemy in range, else wait; in half of the episodes act at random."""
    last_legal = env.action_space.size - 1 - jnp.argmax(timestep.action_mask[:, ::-1], axis=-1)
    episode_key, act_key = key
    return jnp.where(jax.random.bernoulli(episode_key), last_legal, random_action(env, act_key, timestep))


@pytest.mark.parametrize("name", ["smax/3m", "jaxmarl_smax/3m"])
def test_smax_deaths_and_victories(name):
    env, episodes = envs.make(name), 16

    def play(key):
        policy = lambda env, act_key, timestep: focus_fire(env, (key, act_key), timestep)  # noqa: E731
        return rollout(env, key, env.horizon, policy)

    steps = jit(jax.vmap(play))(jax.random.split(jax.random.key(3), episodes))
    steps = jax.tree.map(np.asarray, steps)  # [episode, T, ...]
    assert steps.terminated.any(1).all()
    over = steps.terminated.argmax(1)  # the step that ended each battle
    alive, mask, won = steps.alive, steps.action_mask, steps.info["won"]

    assert alive[:, 0].all() and not alive[np.arange(episodes), over].all()
    assert (alive[:, 1:] <= alive[:, :-1]).all()  # nobody rises again
    assert mask.any(-1).all()
    dead = mask[~alive]
    np.testing.assert_array_equal(dead.sum(-1), 1)
    assert dead[:, 4].all()  # stop
    np.testing.assert_array_equal(steps.terminated, (won == 1) | ~alive.any(-1))

    final_won = won[np.arange(episodes), over]
    assert 0 < final_won.sum() < episodes and set(np.unique(won)) == {0.0, 1.0}
    assert all(not won[i, :end].any() for i, end in enumerate(over))
    bonus = steps.reward[np.arange(episodes), over, 0] >= 1.0  # jaxmarl pays 1 for a battle won
    np.testing.assert_array_equal(final_won == 1, bonus)


def careful(env, key, timestep):
    """Hanabi: rather hint or discard than play a card blindly, so that games reach their last round."""
    hand = 4 if env.num_agents > 3 else 5
    plays = jnp.zeros(env.action_space.size, bool).at[hand : 2 * hand].set(True)
    other = timestep.action_mask & ~plays
    mask = jnp.where(other.any(-1, keepdims=True), other, timestep.action_mask)
    return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))


def test_hanabi_ends_by_itself_and_always_has_a_move():
    env = envs.make("hanabi/four_players")
    play = jit(jax.vmap(lambda key: rollout(env, key, env.horizon, careful)))
    steps = jax.tree.map(np.asarray, play(jax.random.split(jax.random.key(0), 16)))
    assert steps.terminated.any(1).all()
    over = steps.terminated.argmax(1)
    assert over.max() > 50 and not steps.truncated[:, : over.max()].any()
    moves = steps.action_mask.sum(-1)  # [episode, T, A]
    for episode, end in enumerate(over):
        assert (moves[episode, :end] >= 1).all()
        assert (moves[episode, :end, :] > 1).sum(-1).max() <= 1  # one player moves, the others wait
    score = steps.info["score"]
    np.testing.assert_allclose(np.cumsum(steps.reward[..., 0], axis=1), score, atol=1e-5)


def test_switch_riddle_is_won_by_telling_in_time():
    env = envs.make("switch_riddle/switch_riddle", horizon=40)
    play = jit(jax.vmap(lambda key: rollout(env, key, 40)))
    steps = jax.tree.map(np.asarray, play(jax.random.split(jax.random.key(0), 64)))
    first = steps.terminated.argmax(1)
    reward, won = (x[np.arange(64), first] for x in (steps.reward[..., 0], steps.info["won"]))
    np.testing.assert_array_equal(won == 1, reward == 1)
    assert 0 < won.sum() < 64


def to_the_goal(env, key, timestep):
    """JaxNav: turn to the goal, then drive."""
    bearing = timestep.obs[:, -2]
    return jnp.where(bearing > 0.05, 0, jnp.where(bearing < -0.05, 4, 12))


@pytest.mark.parametrize("policy", [to_the_goal, constant(12)], ids=["goal", "crash"])
def test_jaxnav_is_won_at_the_goal_and_lost_in_a_crash(policy):
    env = envs.make("jaxnav/blank_test", lidar_num_beams=10)
    steps = jit(lambda key: rollout(env, key, 150, policy))(jax.random.key(0))
    assert steps.terminated.any() and not steps.truncated.any()
    end, arrives = int(steps.terminated.argmax()), policy is to_the_goal
    assert steps.alive[:end].all() and (steps.reward[end] > 0).all() == arrives
    np.testing.assert_array_equal(steps.info["won"][: end + 1], (np.arange(end + 1) == end) & arrives)


@pytest.mark.parametrize("evaporating", [False, True])
def test_a_jaxnav_robot_at_its_goal_acts_unless_it_evaporates(evaporating):
    env = envs.make("jaxnav/long_corridor_2", lidar_num_beams=10, evaporating=evaporating)
    first_drives = lambda *args: to_the_goal(*args).at[1].set(2)  # noqa: E731
    steps = jit(lambda key: rollout(env, key, 60, first_drives))(jax.random.key(0))
    arrival = int(steps.reward[:, 0].argmax())
    assert steps.reward[arrival, 0] > 1 and not steps.terminated.any() and steps.alive[:, 1].all()
    np.testing.assert_array_equal(steps.alive[:, 0], (np.arange(61) < arrival) | (not evaporating))
    assert ("won" in steps.info) != evaporating


def test_names_are_jaxmarls():
    def listed(family):
        return {name.split("/")[1] for name in envs.list(family)}

    def theirs(module, name):
        return getattr(importlib.import_module(f"jaxmarl.environments.{module}"), name)

    make(CASES[0])  # imports jaxmarl quietly
    assert listed("smax") == listed("jaxmarl_smax") == set(theirs("smax.smax_env", "MAP_NAME_TO_SCENARIO"))
    assert listed("overcooked") == set(theirs("overcooked", "overcooked_layouts"))
    assert listed("overcooked_v2") == set(theirs("overcooked_v2", "overcooked_v2_layouts"))
    mappings = theirs("mabrax.mappings", "_agent_action_mapping")
    assert listed("mabrax") == {name.replace("|", "_") for name in mappings}
    singletons = theirs("jaxnav.jaxnav_singletons", "registered_singletons")
    assert {name.replace("_", "") for name in listed("jaxnav")} == {"grid"} | {name.lower() for name in singletons}
    registered = importlib.import_module("jaxmarl").registered_envs
    mpe = {name[len("MPE_") : -len("_v0")] for name in registered if name.startswith("MPE_")}
    assert listed("jaxmarl_mpe") == mpe
    assert {name for family in FAMILIES for name in (f"{family.name}/{task}" for task in family.tasks)} <= set(
        envs.list()
    )


def test_listing_imports_neither_jaxmarl_nor_brax_and_making_is_silent():
    code = (
        "import sys, envs\n"
        "assert 'smax/3m' in envs.list()\n"
        "assert not {'jaxmarl', 'brax'} & set(sys.modules)\n"
        "streams = sys.stdout, sys.stderr, sys.__stdout__\n"
        "envs.make('switch_riddle/switch_riddle')\n"
        "assert streams == (sys.stdout, sys.stderr, sys.__stdout__) and 'jaxmarl' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("smax/3m", {"foo": 1}, "env.kwargs.foo: smax/3m takes attack_mode, "),
        ("smax/3m", {"continuous": True}, "has discrete actions only"),
        ("smax/3m", {"attack_mode": "weakest"}, "env.kwargs.attack_mode='weakest': must be 'closest' or 'random'"),
        ("smax/3m", {"unit_type_health": [45.0]}, "env.kwargs.unit_type_health=[45.0]: must be 6 numbers"),
        ("jaxmarl_smax/3m", {"foo": 1}, "env.kwargs.foo: jaxmarl_smax/3m takes attack_mode, "),
        ("jaxmarl_smax/3m", {"reward_shaping": 1.0}, "env.kwargs.reward_shaping: jaxmarl_smax/3m takes "),
        ("jaxmarl_smax/3m", {"max_steps": 10}, "env.kwargs.max_steps: jaxmarl_smax/3m takes "),
        ("jaxmarl_mpe/simple_facmac", {"continuous": False}, "has continuous actions only"),
        ("overcooked/cramped_room", {"layout": "x"}, "takes horizon, random_reset, reward_shaping"),
        ("hanabi/two_players", {"num_colors": 9}, "hanabi/two_players refuses them: "),
        ("coin_game/coin_game", {"foo": 1}, "num_inner_steps, num_outer_steps"),
        ("mabrax/hopper_3x1", {"auto_reset": True}, "env.kwargs.auto_reset: mabrax/hopper_3x1 takes action_repeat, "),
    ],
)
def test_wrong_kwargs_are_one_line(name, kwargs, message):
    with pytest.raises(envs.UserError) as error:
        envs.make(name, **kwargs)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_kwargs_reach_jaxmarl():
    assert isinstance(envs.make("jaxmarl_mpe/simple_spread", continuous=True).action_space, envs.Continuous)
    assert isinstance(envs.make("jaxmarl_mpe/simple_spread", continuous=False).action_space, envs.Discrete)
    assert envs.make("jaxmarl_mpe/simple_spread", num_agents=5, num_landmarks=5).num_agents == 5
    assert envs.make("jaxmarl_smax/3m", observation_type="conic").obs_size == 13 * 64 + 10
    assert envs.make("overcooked_v2/cramped_room", agent_view_size=1).obs_shape[:2] == (3, 3)
    assert envs.make("coin_game/coin_game", cnn=False).obs_shape == ()


def test_a_missing_package_is_named(monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[0] == "jaxmarl"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    with pytest.raises(envs.UserError, match=r"^env=jaxmarl_smax/3m: needs the package jaxmarl.*$"):
        envs.make("jaxmarl_smax/3m")


def test_no_warnings_are_left_to_the_user():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = envs.make("jaxnav/long_corridor_2")
        jax.eval_shape(env.step, jax.random.key(0), env.reset(jax.random.key(0))[0], jnp.zeros(2, jnp.int32))
