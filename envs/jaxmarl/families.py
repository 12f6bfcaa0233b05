"""jaxmarl's families: for each its tasks, how to construct one, and where it differs from the others."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import chex
import jax.numpy as jnp

from shoal.envs.base import EnvState
from shoal.envs.jaxmarl.family import UNLIMITED, Agent, Family, Inner, Recipe, class_of, one_team

# --- MPE ---


def _mpe(which: str, continuous: bool = False) -> Recipe:
    sets = {"max_steps": UNLIMITED, "action_type": "Continuous" if continuous else "Discrete"}
    return Recipe(class_of("mpe", which), sets, 25, takes=(class_of("mpe", "SimpleMPE"),))


def _facmac(which: dict[str, Any]) -> Recipe:
    sets = {"max_steps": UNLIMITED} | which
    return Recipe(class_of("mpe", "SimpleFacmacMPE"), sets, 25, takes=(class_of("mpe", "SimpleMPE"),))


def _mpe_groups(inner: Inner, agents: Sequence[Agent]) -> tuple[str, ...]:
    if not hasattr(inner, "good_agents"):
        return one_team(inner, agents)
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
    groups=one_team,
    state=_facmac_state,
)


# --- SMAX ---


def _smax(which: str) -> Recipe:
    smax_env = importlib.import_module("jaxmarl.environments.smax.smax_env")
    sets = {"scenario": smax_env.MAP_NAME_TO_SCENARIO[which], "max_steps": UNLIMITED}
    return Recipe(class_of("smax", "HeuristicEnemySMAX"), sets, 100, takes=(smax_env.SMAX,))


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
    return Recipe(class_of("overcooked_v2", "OvercookedV2"), {"layout": which, "max_steps": UNLIMITED}, 400)


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
    return Recipe(class_of("hanabi", "Hanabi"), {"num_agents": which}, _longest_hanabi)


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
    takes = (class_of("mabrax", "MABraxEnv"), getattr(importlib.import_module(f"brax.envs.{module}"), body))

    def construct(**kwargs: Any) -> Inner:
        mujoco = importlib.import_module("mujoco")
        handler = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda message: None)  # else halfcheetah's model leaves a MUJOCO_LOG.TXT behind
        try:
            return class_of("mabrax", cls)(**kwargs)
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
    return Recipe(class_of("jaxnav", "JaxNav"), sets, 500)


def _jaxnav_singleton(which: str, continuous: bool = False) -> Recipe:
    sets = _jaxnav(None, continuous).sets | {
        "env_id": which,
        "map_id": "Grid-Rand-Poly",  # its own default lacks a method that stepping needs
    }
    takes = (class_of("jaxnav", "JaxNavSingleton"), class_of("jaxnav", "JaxNav"))
    return Recipe(class_of("jaxnav", "make_jaxnav_singleton"), sets, 500, takes)


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
    return Recipe(class_of("coin_game", "CoinGame"), sets | {"cnn": cnn}, horizon)


def _storm(which: str, num_inner_steps: int = 152, num_outer_steps: int = 1, payoff_matrix: Any = None) -> Recipe:
    sets, horizon = _rounds(num_inner_steps, num_outer_steps)
    if payoff_matrix is not None:
        sets["payoff_matrix"] = jnp.asarray(payoff_matrix)  # it is indexed as an array; a config gives lists
    return Recipe(class_of("storm", which), sets, horizon)


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
    return Recipe(class_of("switch_riddle", "SwitchRiddle"), {}, lambda inner: inner.max_steps)


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
