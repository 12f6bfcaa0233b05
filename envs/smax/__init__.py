"""SMAX, StarCraft-like battles against a scripted team, as ``smax/2s3z`` and so on.

The same state, action and random numbers give the same next state, observations, rewards and legal actions as in
JaxMARL's ``HeuristicEnemySMAX.step_env`` (Rutherford et al. 2024; tests/envs/test_smax.py compares them on every map).
Names, order and numbering of units and actions are JaxMARL's: north, east, south, west, stop, then attack an enemy.
An episode ends when a team is dead; JaxMARL's own time limit is a step late, our ``TimeLimit`` is not.
Left out: continuous actions, learned enemies, and names for the types of units.

An environment is a handful of small arrays, and a CPU is fast along a long last axis only. So the battle is written
for many environments at once with them on the last axis, and ``jax.vmap`` (over environments, as everywhere in Shoal)
is told to use it: see :func:`batched_last`.
"""

from __future__ import annotations

from functools import partial

from shoal.envs.registry import register
from shoal.envs.smax.battle import MOVES, STOP, Smax, State
from shoal.envs.smax.units import MAPS

__all__ = ["MAPS", "MOVES", "STOP", "Smax", "State", "register_all"]


def register_all() -> None:
    """Make every map known as ``smax/<map>``."""
    for name, units in MAPS.items():
        register(f"smax/{name}", partial(Smax, units))
