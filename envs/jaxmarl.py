"""JaxMARL's environments behind the protocol: one :class:`Family` per row of ``FAMILIES``, one adapter for all.

jaxmarl keeps agents in dicts, resets by itself and mixes its time limit into ``done``. Here agents are an axis,
``step_env`` (which does not reset) is called, and the inner time limit is out of reach, so that ``terminated`` means
termination and ``TimeLimit`` truncates at ``horizon``. jaxmarl and brax take seconds to import: the tables of names
are static and the packages are imported when the first environment is made.

What ends an episode, and after how many steps we truncate (jaxmarl's own limit of 25 or 100 is tested before its
counter moves in MPE and SMAX, which gives 26 and 101 steps there; here they last 25 and 100):

============= ==================================================== ==============================================
family        terminated                                           horizon
============= ==================================================== ==============================================
jaxmarl_mpe   never                                                25
jaxmarl_smax  a team is dead                                       100
overcooked    never (v1 shows the last 40 steps in its last layer) 400
overcooked_v2 never                                                400
hanabi        out of lives, all fireworks, or the last round       more than the longest legal game
mabrax        the body falls (never in halfcheetah)                1000 / action_repeat
jaxnav        every robot reached its goal or crashed              500
coin_game     never                                                num_inner_steps * num_outer_steps = 100
storm         never                                                num_inner_steps * num_outer_steps = 152
switch_riddle an agent tells                                       4 * num_agents - 6
============= ==================================================== ==============================================

``coin_game`` and ``storm`` are games of ``num_outer_steps`` rounds: after ``num_inner_steps`` steps the board is laid
anew inside the same episode (jaxmarl pays nothing on that step), so that agents with a memory can answer the last
round. A round's end is neither termination nor truncation. With one round only, nothing is laid anew and the
truncated episode keeps its true last observation and reward.

``alive`` are the agents whose action counts: SMAX units with health, JaxNav robots that can still move (one that
reached its goal can, and can still crash, unless ``evaporating``).

Seen in jaxmarl 0.2.0 and left as it is: MABrax's observation tables for ``humanoid_9_8`` and ``halfcheetah_6x1`` were
made for longer observations than brax's (indices beyond the end read the last entry; halfcheetah's table is right with
``exclude_current_positions_from_observation=False``); the script of FACMAC's prey runs from a predator's position;
``simple_tag`` with several good agents charges each for the last one's collisions; ``storm/grid`` looks up the
direction of the other agents at wrong indices.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import ActionSpace, Continuous, Discrete, Env, EnvState, TimeStep, pad_stack, size_mask
from shoal.envs.registry import register
from shoal.errors import UserError

UNLIMITED = np.iinfo(np.int32).max  # a step count that no episode reaches

Inner = Any  # a jaxmarl environment
Agent = Any  # jaxmarl's name of an agent: a string, in STORM an int


@dataclass(frozen=True)
class Recipe:
    """How to construct one jaxmarl environment."""

    construct: Callable[..., Inner]
    sets: dict[str, Any]  # the arguments that the adapter decides
    horizon: int | Callable[[Inner], int]
    takes: tuple[Callable, ...] = ()  # further constructors, to which `construct` passes its keyword arguments on


def _one_team(inner: Inner, agents: Sequence[Agent]) -> tuple[str, ...]:
    return ("team",) * len(agents)


@dataclass(frozen=True)
class Family:
    """What differs between jaxmarl's families; the functions get the jaxmarl environment or its state first."""

    name: str
    tasks: Mapping[str, Any]  # our task name -> what the recipe needs to know
    recipe: Callable[..., Recipe]  # (what the task maps to, **the user's keyword arguments)
    hidden: frozenset[str] = frozenset()  # jaxmarl's arguments that a user may not give: ours to decide, or useless
    both_kinds: bool = False  # discrete and continuous actions: the recipe takes `continuous`
    terminates: bool = True
    shaped: bool = False  # reports a shaped reward beside the reward
    agents: Callable[[Inner], Sequence[Agent]] = lambda inner: inner.agents  # those that we control
    groups: Callable[[Inner, Sequence[Agent]], tuple[str, ...]] = _one_team
    observe: Callable[[Any, Agent], chex.Array] = lambda obs, agent: obs[agent]
    pack: Callable[[dict], Any] = lambda actions: actions  # actions by agent -> what step_env takes
    mask: Callable[[Inner, EnvState], dict] | None = None  # legal actions by agent
    state: Callable[[Inner, EnvState, Any, int], chex.Array] | None = None  # (.., observations, horizon) -> [S]
    alive: Callable[[Inner, EnvState], chex.Array] | None = None  # [A] bool
    info: Callable[[Inner, EnvState], dict[str, chex.Array]] = lambda inner, state: {}
    set_horizon: Callable[[Inner, int], None] = lambda inner, horizon: None


class JaxMARLEnv(Env):
    """One jaxmarl environment, seen through its :class:`Family`."""

    checked = True  # tracing takes seconds

    def __init__(self, family: Family, task: str, **kwargs: Any):
        self.name = f"{family.name}/{task}"
        self.family = family
        self.reward_shaping = kwargs.pop("reward_shaping", 0.0) if family.shaped else 0.0
        self.inner, horizon = _construct(self.name, family, family.tasks[task], kwargs)
        self.horizon = horizon
        self.terminates = family.terminates

        self.inner_agents = list(family.agents(self.inner))
        self.agents = tuple(a if isinstance(a, str) and not a.isdigit() else f"agent_{a}" for a in self.inner_agents)
        self.groups = family.groups(self.inner, self.agents)
        self.action_space = _action_space([self.inner.action_space(agent) for agent in self.inner_agents])
        # Agents that play by a script inside jaxmarl still want an entry among the actions.
        scripted = [agent for agent in self.inner.agents if agent not in self.inner_agents]
        self.scripted_actions = {agent: np.zeros(self.inner.action_space(agent).shape) for agent in scripted}

        key = jax.random.key(0)
        with _quiet():
            rows = jax.eval_shape(lambda key: self._rows(self.inner.reset(key)[0]), key)
        self.obs_sizes = tuple(math.prod(row.shape) for row in rows)
        image = rows[0].shape
        self.obs_shape = image if len(image) == 3 and all(row.shape == image for row in rows) else ()
        self.state_size = jax.eval_shape(self.reset, key)[1].state.shape[0]

    @property
    def horizon(self) -> int:  # type: ignore[override]
        """Steps after which an episode is truncated; jaxmarl is told where its observations show the time left."""
        return self._horizon

    @horizon.setter
    def horizon(self, steps: int) -> None:
        self._horizon = steps
        self.family.set_horizon(self.inner, steps)

    def reset(self, key: chex.PRNGKey) -> tuple[EnvState, TimeStep]:
        """The first state of an episode."""
        with _quiet():
            obs, state = self.inner.reset(key)
            nothing = jnp.zeros(self.num_agents)
            return self._timestep(state, obs, nothing, nothing, jnp.bool_(False))

    def step(self, key: chex.PRNGKey, state: EnvState, action: chex.Array) -> tuple[EnvState, TimeStep]:
        """One transition; an episode goes on until a true termination."""
        with _quiet():
            actions = self.family.pack(self.scripted_actions | self._by_agent(action))
            obs, state, rewards, dones, info = self.inner.step_env(key, state, actions)
            shaped = self._stack(info["shaped_reward"]) if self.family.shaped else jnp.zeros(self.num_agents)
            terminated = dones["__all__"] if self.terminates else jnp.bool_(False)
            return self._timestep(state, obs, self._stack(rewards), shaped, terminated)

    def _timestep(self, state, obs, reward, shaped, terminated) -> tuple[EnvState, TimeStep]:
        family, inner = self.family, self.inner
        state = jax.tree.map(_strong, state)
        stacked = pad_stack([row.reshape(-1).astype(jnp.float32) for row in self._rows(obs)], self.obs_size)
        info = dict(family.info(inner, state))
        if family.shaped:
            info |= {"shaped_reward": shaped.mean(), "task_reward": reward}
        timestep = TimeStep(
            obs=stacked,
            state=(family.state(inner, state, obs, self.horizon) if family.state else stacked.reshape(-1)),
            action_mask=self._action_mask(state),
            reward=reward + self.reward_shaping * shaped,
            terminated=terminated,
            truncated=jnp.bool_(False),
            alive=family.alive(inner, state) if family.alive else jnp.ones(self.num_agents, bool),
            info={name: jnp.asarray(value, jnp.float32) for name, value in info.items()},
        )
        return state, jax.tree.map(_strong, timestep)

    def _action_mask(self, state) -> chex.Array:
        if self.family.mask is None:
            return jnp.asarray(size_mask(self.action_space.sizes))
        legal = self.family.mask(self.inner, state)
        return pad_stack([legal[agent].astype(bool) for agent in self.inner_agents], self.action_space.size)

    def _by_agent(self, action) -> dict[Agent, chex.Array]:
        if isinstance(self.action_space, Discrete):
            return {agent: action[i] for i, agent in enumerate(self.inner_agents)}
        sizes = self.action_space.sizes
        return {agent: action[i, : sizes[i]] for i, agent in enumerate(self.inner_agents)}

    def _rows(self, obs) -> list[chex.Array]:
        return [self.family.observe(obs, agent) for agent in self.inner_agents]

    def _stack(self, values) -> chex.Array:
        return jnp.stack([jnp.asarray(values[agent], jnp.float32) for agent in self.inner_agents])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """While tracing: JaxNav and OvercookedV2 print, and JaxNav writes numbers into a bool array."""
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _strong(x) -> chex.Array:
    """The same values without a weak type or a Python scalar, which a scan's carry may not change."""
    x = jnp.asarray(x)
    return jax.lax.convert_element_type(x, x.dtype)


def _action_space(spaces: Sequence[Any]) -> ActionSpace:
    if hasattr(spaces[0], "n"):
        return Discrete(tuple(int(space.n) for space in spaces))
    sizes = tuple(space.shape[0] for space in spaces)

    def padded(bound: Any, size: int) -> np.ndarray:
        return np.pad(np.broadcast_to(bound, size), (0, max(sizes) - size), mode="edge")

    low = [padded(space.low, size) for space, size in zip(spaces, sizes, strict=True)]
    high = [padded(space.high, size) for space, size in zip(spaces, sizes, strict=True)]
    return Continuous(sizes, np.stack(low).astype(np.float32), np.stack(high).astype(np.float32))


def _construct(name: str, family: Family, which: Any, kwargs: dict[str, Any]) -> tuple[Inner, int]:
    """The jaxmarl environment and its horizon; a keyword that it does not know is the user's error."""
    _import(name)
    own = _keywords(family.recipe) - {"which"}
    recipe = family.recipe(which, **{key: value for key, value in kwargs.items() if key in own})
    passed_on = _keywords(recipe.construct, *recipe.takes) - own - recipe.sets.keys() - family.hidden
    given = {key: value for key, value in kwargs.items() if key != "continuous"}
    for key in given.keys() - own - passed_on:
        allowed = (own | passed_on | {"horizon"} | ({"reward_shaping"} if family.shaped else set())) - {"continuous"}
        raise UserError(f"env.kwargs.{key}: {name} takes {', '.join(sorted(allowed))}")
    arguments = {key: value for key, value in given.items() if key in passed_on} | recipe.sets
    try:
        with warnings.catch_warnings():
            # jaxmarl and brax advise other environments than the one asked for; JaxNav warns of its own defaults.
            warnings.simplefilter("ignore")
            inner = recipe.construct(**arguments)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        if not given:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"env.kwargs={given}: {name} refuses them: {reason}") from error
    return inner, recipe.horizon(inner) if callable(recipe.horizon) else recipe.horizon


def _keywords(*functions: Callable) -> set[str]:
    parameters = [p for function in functions for p in inspect.signature(function).parameters.values()]
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _import(name: str) -> None:
    try:
        with _silent_import():
            environments = importlib.import_module("jaxmarl.environments")
    except ModuleNotFoundError as error:
        raise UserError(f"env={name}: needs the package {error.name}; pip install jaxmarl") from error
    if name.startswith("mabrax/") and not environments.MABRAX_AVAILABLE:
        raise UserError(f"env={name}: needs the package brax; pip install brax")


@contextlib.contextmanager
def _silent_import() -> Iterator[None]:
    """Swallows jaxmarl's greetings; it sets the streams back to the interpreter's own, so those are swapped as well."""
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__")}
    sink = io.StringIO()
    vars(sys).update(stdout=sink, __stdout__=sink)
    try:
        yield
    finally:
        vars(sys).update(streams)


def _class(module: str, name: str) -> Callable[..., Inner]:
    return getattr(importlib.import_module(f"jaxmarl.environments.{module}"), name)


# --- MPE ---


def _mpe(which: str, continuous: bool = False) -> Recipe:
    sets = {"max_steps": UNLIMITED, "action_type": "Continuous" if continuous else "Discrete"}
    return Recipe(_class("mpe", which), sets, 25, takes=(_class("mpe", "SimpleMPE"),))


def _facmac(which: dict[str, Any]) -> Recipe:
    sets = {"max_steps": UNLIMITED} | which
    return Recipe(_class("mpe", "SimpleFacmacMPE"), sets, 25, takes=(_class("mpe", "SimpleMPE"),))


def _mpe_groups(inner: Inner, agents: Sequence[Agent]) -> tuple[str, ...]:
    if not hasattr(inner, "good_agents"):
        return _one_team(inner, agents)
    return tuple("agent" if agent in inner.good_agents else "adversary" for agent in agents)


def _facmac_state(inner: Inner, state: EnvState, obs: Any, horizon: int) -> chex.Array:
    whole = inner.get_world_state(state)
    return jnp.concatenate([whole[agent] for agent in inner.agents])


MPE = Family(
    name="jaxmarl_mpe",
    tasks={
        "simple": "SimpleMPE",
        "simple_adversary": "SimpleAdversaryMPE",
        "simple_crypto": "SimpleCryptoMPE",
        "simple_push": "SimplePushMPE",
        "simple_reference": "SimpleReferenceMPE",
        "simple_speaker_listener": "SimpleSpeakerListenerMPE",
        "simple_spread": "SimpleSpreadMPE",
        "simple_tag": "SimpleTagMPE",
        "simple_world_comm": "SimpleWorldCommMPE",
    },
    recipe=_mpe,
    hidden=frozenset(
        {"agents", "landmarks", "action_spaces", "observation_spaces", "colour", "dim_c", "dim_p", "action_type"}
    ),
    both_kinds=True,
    terminates=False,
    groups=_mpe_groups,
)

# The prey runs by a script, so the adversaries are all there is to control: `3a` has three agents.
FACMAC = replace(
    MPE,
    tasks={
        "simple_facmac": {},
        "simple_facmac_3a": {"num_adversaries": 3, "num_good_agents": 1, "num_landmarks": 2, "score_function": "min"},
        "simple_facmac_6a": {"num_adversaries": 6, "num_good_agents": 2, "num_landmarks": 4, "score_function": "min"},
        "simple_facmac_9a": {"num_adversaries": 9, "num_good_agents": 3, "num_landmarks": 6, "score_function": "min"},
    },
    recipe=_facmac,
    hidden=MPE.hidden | {"num_agents"},
    both_kinds=False,
    agents=lambda inner: inner.adversaries,
    groups=_one_team,
    state=_facmac_state,
)


# --- SMAX ---


def _smax(which: str) -> Recipe:
    smax_env = importlib.import_module("jaxmarl.environments.smax.smax_env")
    sets = {"scenario": smax_env.MAP_NAME_TO_SCENARIO[which], "max_steps": UNLIMITED}
    return Recipe(_class("smax", "HeuristicEnemySMAX"), sets, 100, takes=(smax_env.SMAX,))


def _smax_won(inner: Inner, state: EnvState) -> dict[str, chex.Array]:
    alive, allies = state.state.unit_alive, inner.num_allies
    return {"won": ~alive[allies:].any() & alive[:allies].any()}


SMAX = Family(
    name="jaxmarl_smax",
    tasks={
        name: name
        for name in (
            *("3m", "8m", "25m", "5m_vs_6m", "10m_vs_11m", "27m_vs_30m"),
            *("2s3z", "3s5z", "3s5z_vs_3s6z", "3s_vs_5z", "6h_vs_8z"),
            *("smacv2_5_units", "smacv2_10_units", "smacv2_20_units"),
        )
    },
    recipe=_smax,
    # The scenario decides these; continuous SMAX is not offered.
    hidden=frozenset(
        {"num_allies", "num_enemies", "smacv2_position_generation", "smacv2_unit_type_generation", "action_type"}
    ),
    groups=lambda inner, agents: ("ally",) * len(agents),
    mask=lambda inner, state: inner.get_avail_actions(state),
    state=lambda inner, state, obs, horizon: obs["world_state"],
    alive=lambda inner, state: state.state.unit_alive[: inner.num_allies],
    info=_smax_won,
)


# --- Overcooked ---


def _overcooked(which: str) -> Recipe:
    overcooked = importlib.import_module("jaxmarl.environments.overcooked")
    return Recipe(overcooked.Overcooked, {"layout": overcooked.overcooked_layouts[which]}, 400)


def _show_urgency(inner: Inner, horizon: int) -> None:
    inner.max_steps = horizon  # its last layer shows that fewer than 40 steps are left; its `done` is not listened to


def _overcooked_v2(which: str) -> Recipe:
    return Recipe(_class("overcooked_v2", "OvercookedV2"), {"layout": which, "max_steps": UNLIMITED}, 400)


OVERCOOKED = Family(
    name="overcooked",
    tasks={
        name: name for name in ("cramped_room", "asymm_advantages", "coord_ring", "forced_coord", "counter_circuit")
    },
    recipe=_overcooked,
    hidden=frozenset({"max_steps"}),
    terminates=False,
    shaped=True,
    set_horizon=_show_urgency,
)

OVERCOOKED_V2 = Family(
    name="overcooked_v2",
    tasks={
        name: name
        for name in (
            *("cramped_room", "asymm_advantages", "coord_ring", "forced_coord", "counter_circuit"),
            *("cramped_room_v2", "two_rooms", "two_rooms_both", "long_room", "fun_coordination"),
            *("asymm_advantages_recipes_center", "asymm_advantages_recipes_right", "asymm_advantages_recipes_left"),
            *("more_fun_coordination", "fun_symmetries", "fun_symmetries_plates", "fun_symmetries1"),
            *("grounded_coord_simple", "grounded_coord_ring", "test_time_simple", "test_time_wide"),
            *("demo_cook_simple", "demo_cook_wide"),
        )
    },
    recipe=_overcooked_v2,
    terminates=False,
    shaped=True,
)


# --- Hanabi ---


def _hanabi(which: int) -> Recipe:
    return Recipe(_class("hanabi", "Hanabi"), {"num_agents": which}, _longest_hanabi)


def _longest_hanabi(inner: Inner) -> int:
    """A bound on a legal game: each card drawn and a last round, and no more hints than tokens there ever are."""
    cards = int(inner.deck_size) - inner.num_agents * inner.hand_size + inner.num_agents
    hints = inner.max_info_tokens + cards + inner.num_colors
    return cards + hints + 1


HANABI = Family(
    name="hanabi",
    tasks={"two_players": 2, "three_players": 3, "four_players": 4, "five_players": 5},
    recipe=_hanabi,
    hidden=frozenset({"agents", "action_spaces", "observation_spaces", "num_moves"}),
    mask=lambda inner, state: inner.get_legal_moves(state),
    info=lambda inner, state: {"score": state.score},
)


# --- MABrax ---


def _mabrax(which: tuple[str, str, str]) -> Recipe:
    cls, module, body = which
    sets = {"episode_length": UNLIMITED, "auto_reset": False}
    takes = (_class("mabrax", "MABraxEnv"), getattr(importlib.import_module(f"brax.envs.{module}"), body))

    def construct(**kwargs: Any) -> Inner:
        mujoco = importlib.import_module("mujoco")
        handler = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)  # else halfcheetah's model leaves a MUJOCO_LOG.TXT behind
        try:
            return _class("mabrax", cls)(**kwargs)
        finally:
            mujoco.set_mju_user_warning(handler)

    return Recipe(construct, sets, lambda inner: math.ceil(1000 / inner.action_repeat), takes)


MABRAX = Family(
    name="mabrax",
    tasks={  # the class in jaxmarl, then the module and class in brax
        "ant_4x2": ("Ant", "ant", "Ant"),
        "hopper_3x1": ("Hopper", "hopper", "Hopper"),
        "humanoid_9_8": ("Humanoid", "humanoid", "Humanoid"),
        "walker2d_2x3": ("Walker2d", "walker2d", "Walker2d"),
    },
    recipe=_mabrax,
    hidden=frozenset({"env_name", "homogenisation_method"}),  # observations are padded here
    state=lambda inner, state, obs, horizon: state.obs,
)

HALFCHEETAH = replace(
    MABRAX, tasks={"halfcheetah_6x1": ("HalfCheetah", "half_cheetah", "Halfcheetah")}, terminates=False
)


# --- JaxNav ---


def _jaxnav(which: None, continuous: bool = False) -> Recipe:
    sets = {"act_type": "Continuous" if continuous else "Discrete", "max_steps": UNLIMITED}
    return Recipe(_class("jaxnav", "JaxNav"), sets, 500)


def _jaxnav_singleton(which: str, continuous: bool = False) -> Recipe:
    sets = _jaxnav(None, continuous).sets | {
        "env_id": which,
        "map_id": "Grid-Rand-Poly",  # its own default lacks a method that stepping needs
    }
    takes = (_class("jaxnav", "JaxNavSingleton"), _class("jaxnav", "JaxNav"))
    return Recipe(_class("jaxnav", "make_jaxnav_singleton"), sets, 500, takes)


def _jaxnav_alive(inner: Inner, state: EnvState) -> chex.Array:
    return ~state.done if inner.evaporating else ~(state.done | state.move_term)


def _jaxnav_state(inner: Inner, state: EnvState, obs: Any, horizon: int) -> chex.Array:
    """What jaxmarl's world states share: walls, poses, goals, speeds, and the time as a share of our horizon."""
    one_hot, observation = inner.num_agents, obs[inner.agents[0]].shape[0]
    shared = inner.get_world_state(state)[0, one_hot:-observation]
    return shared.at[-1].set(state.step / horizon - 0.5)


def _jaxnav_won(inner: Inner, state: EnvState) -> dict[str, chex.Array]:
    # An evaporating robot forgets whether it went at its goal or in a crash.
    return {} if inner.evaporating else {"won": state.goal_reached.all()}


JAXNAV = Family(
    name="jaxnav",
    tasks={"grid": None},  # random walls, starts and goals
    recipe=_jaxnav,
    hidden=frozenset({"do_sep_reward", "info_by_agent"}),
    both_kinds=True,
    state=_jaxnav_state,
    alive=_jaxnav_alive,
    info=_jaxnav_won,
)

JAXNAV_SINGLETON = replace(
    JAXNAV,
    tasks={
        "blank_test": "BlankTest",
        "middle_test": "MiddleTest",
        "blank_cross_2": "BlankCross2",
        "blank_cross_4": "BlankCross4",
        "blank_cross_uneven_2": "BlankCrossUneven2",
        "circle_cross": "CircleCross",
        "single_nav_1": "SingleNav1",
        "single_nav_2": "SingleNav2",
        "single_nav_3": "SingleNav3",
        "corridor_4": "Corridor4",
        "corridor_8": "Corridor8",
        "long_corridor_2": "LongCorridor2",
        "layby_4": "Layby4",
        "corner_2": "Corner2",
        "chicane_2": "Chicane2",
        "chicane_4": "Chicane4",
        "narrow_chicane_2a": "NarrowChicane2a",
        "narrow_chicane_2b": "NarrowChicane2b",
    },
    recipe=_jaxnav_singleton,
    hidden=JAXNAV.hidden | {"num_agents", "test_case", "map_params"},
)


# --- Games of rounds: the coin game and STORM ---


def _rounds(num_inner_steps: int, num_outer_steps: int) -> tuple[dict[str, Any], int]:
    # A single round ends with the episode, which is TimeLimit's: the board is never laid anew.
    inner_steps = num_inner_steps if num_outer_steps > 1 else UNLIMITED
    return {"num_inner_steps": inner_steps, "num_outer_steps": num_outer_steps}, num_inner_steps * num_outer_steps


def _coin_game(which: None, num_inner_steps: int = 10, num_outer_steps: int = 10, cnn: bool = True) -> Recipe:
    sets, horizon = _rounds(num_inner_steps, num_outer_steps)
    return Recipe(_class("coin_game", "CoinGame"), sets | {"cnn": cnn}, horizon)


def _storm(which: str, num_inner_steps: int = 152, num_outer_steps: int = 1, payoff_matrix: Any = None) -> Recipe:
    sets, horizon = _rounds(num_inner_steps, num_outer_steps)
    if payoff_matrix is not None:
        sets["payoff_matrix"] = jnp.asarray(payoff_matrix)  # it is indexed as an array; a config gives lists
    return Recipe(_class("storm", which), sets, horizon)


def _each_for_itself(inner: Inner, agents: Sequence[Agent]) -> tuple[str, ...]:
    return tuple(agents)


COIN_GAME = Family(
    name="coin_game",
    tasks={"coin_game": None},
    recipe=_coin_game,
    terminates=False,
    groups=_each_for_itself,
)

STORM_NP = Family(
    name="storm",
    tasks={"np": "InTheMatrix"},
    recipe=_storm,
    terminates=False,
    groups=_each_for_itself,
    pack=lambda actions: tuple(actions.values()),
)

# These two observe a small image and an inventory: a vector of both, without `obs_shape`.
STORM_GRID = replace(
    STORM_NP,
    tasks={"grid": "InTheGrid"},
    observe=lambda obs, agent: jnp.concatenate([obs["observations"][agent].reshape(-1), obs["inventory"][:, agent]]),
)

STORM_2P = replace(
    STORM_NP,
    tasks={"2p": "InTheGrid_2p"},
    hidden=frozenset({"num_agents"}),
    observe=lambda obs, agent: jnp.concatenate([obs[agent]["observation"].reshape(-1), obs[agent]["inventory"]]),
)


# --- The switch riddle ---


def _switch_riddle(which: None) -> Recipe:
    return Recipe(_class("switch_riddle", "SwitchRiddle"), {}, lambda inner: inner.max_steps)


def _unlimited(inner: Inner, horizon: int) -> None:
    inner.max_steps = UNLIMITED  # not an argument of its constructor


SWITCH_RIDDLE = Family(
    name="switch_riddle",
    tasks={"switch_riddle": None},
    recipe=_switch_riddle,
    info=lambda inner, state: {"won": state.done & (state.has_been == 1).all()},
    set_horizon=_unlimited,
)


FAMILIES = (
    *(MPE, FACMAC, SMAX, OVERCOOKED, OVERCOOKED_V2, HANABI, MABRAX, HALFCHEETAH),
    *(JAXNAV, JAXNAV_SINGLETON, COIN_GAME, STORM_NP, STORM_GRID, STORM_2P, SWITCH_RIDDLE),
)


def _factory(family: Family, task: str) -> Callable[..., Env]:
    def one_kind(**kwargs: Any) -> Env:
        return JaxMARLEnv(family, task, **kwargs)

    def both_kinds(continuous: bool = False, **kwargs: Any) -> Env:
        return JaxMARLEnv(family, task, continuous=continuous, **kwargs)

    return both_kinds if family.both_kinds else one_kind


def register_all() -> None:
    """Register every task of every family, without importing jaxmarl."""
    for family in FAMILIES:
        for task in family.tasks:
            register(f"{family.name}/{task}", _factory(family, task))
