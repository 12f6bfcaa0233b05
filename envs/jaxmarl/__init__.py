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

from collections.abc import Callable
from typing import Any

from shoal.envs.base import Env
from shoal.envs.jaxmarl.adapter import JaxMARLEnv
from shoal.envs.jaxmarl.families import FAMILIES
from shoal.envs.jaxmarl.family import Family
from shoal.envs.registry import register

__all__ = ["FAMILIES", "register_all"]


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
