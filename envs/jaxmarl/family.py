"""What the adapter must know of one of jaxmarl's families: the facts and functions that differ between them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chex
import numpy as np

from shoal.envs.base import EnvState

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


def one_team(inner: Inner, agents: Sequence[Agent]) -> tuple[str, ...]:
    """The groups of agents that all play together."""
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
    groups: Callable[[Inner, Sequence[Agent]], tuple[str, ...]] = one_team
    observe: Callable[[Any, Agent], chex.Array] = lambda obs, agent: obs[agent]
    pack: Callable[[dict], Any] = lambda actions: actions  # actions by agent -> what step_env takes
    mask: Callable[[Inner, EnvState], dict] | None = None  # legal actions by agent
    state: Callable[[Inner, EnvState, Any, int], chex.Array] | None = None  # (.., observations, horizon) -> [S]
    alive: Callable[[Inner, EnvState], chex.Array] | None = None  # [A] bool
    info: Callable[[Inner, EnvState], dict[str, chex.Array]] = lambda inner, state: {}
    set_horizon: Callable[[Inner, int], None] = lambda inner, horizon: None


def class_of(module: str, name: str) -> Callable[..., Inner]:
    """The class or function ``name`` of ``jaxmarl.environments.<module>``, which this imports."""
    return getattr(importlib.import_module(f"jaxmarl.environments.{module}"), name)
