"""Any PettingZoo environment: ``pettingzoo/sisl.multiwalker_v9``, or a module of your own, ``pettingzoo/mine.my_env``.

These environments are Python objects, so worker processes step them (``shoal.envs.host.pool``). The compiled program
calls out to them once per step: an ordered callback with all environments of all runs, whatever ``vmap`` s are around
it. ``shoal.envs.host.calls`` says what their states can and cannot do.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import Continuous, Discrete, Env, MultiDiscrete, TimeStep, select, size_mask
from shoal.envs.host import pool
from shoal.envs.host.calls import HostState, Lasting, Seen, Step, one_call
from shoal.envs.registry import register_family
from shoal.errors import UserError
from shoal.hashing import hashed

FAMILY = "pettingzoo"


class PettingZoo(Env):
    """One PettingZoo environment behind the protocol."""

    def __init__(self, workers: pool.Pool):
        self.pool, facts = workers, workers.facts
        self.agents = facts["agents"]
        self.groups = tuple(re.sub(r"_?\d+$", "", agent) or agent for agent in self.agents)
        self.obs_sizes, self.obs_shape = facts["obs_sizes"], tuple(facts["obs_shape"])
        self.horizon = facts["horizon"]
        self.state_size = facts["state_size"] or self.num_agents * self.obs_size
        self.action_space = _action_space(facts)
        self.mask = size_mask(facts["sizes"])
        self._reset_call = one_call(self._on_reset, self._blank_reset)
        self._lasting_call = one_call(self._on_lasting_reset, self._blank_reset)
        self._step_call = one_call(self._on_step, self._blank_step)

    def reset(self, key):
        if isinstance(key, HostState):  # the next episode has begun with the last one's end
            return key.replace(now=key.first), self._timestep(key.first)
        call = self._lasting_call if isinstance(key, Lasting) else self._reset_call
        bank, number, clock, seen = call(_seed(key.key if isinstance(key, Lasting) else key))
        return HostState(bank, number, clock, seen, seen), self._timestep(seen)

    def step(self, key, state, action):
        made = self._step_call(state.bank, state.number, state.clock, _seed(key), action)
        seen = select(made.lost, state.now, made.last)
        state = HostState(made.bank, made.number, made.clock, seen, made.first)
        timestep = self._timestep(seen).replace(
            reward=made.reward, terminated=made.terminated, truncated=made.truncated
        )
        return state, timestep

    def _timestep(self, seen: Seen) -> TimeStep:
        return TimeStep(
            obs=seen.obs,
            state=seen.obs.reshape(-1) if seen.state is None else seen.state,
            action_mask=jnp.asarray(self.mask) if seen.mask is None else seen.mask,
            reward=jnp.zeros(self.num_agents),
            terminated=jnp.bool_(False),
            truncated=jnp.bool_(False),
            alive=seen.alive,
            info={},
        )

    def _blank(self) -> Seen:
        facts, agents = self.pool.facts, self.num_agents
        return Seen(
            obs=np.zeros((agents, self.obs_size), np.float32),
            alive=np.zeros(agents, bool),
            mask=np.zeros(self.mask.shape, bool) if facts["masked"] else None,
            state=np.zeros(facts["state_size"], np.float32) if facts["state_size"] else None,
        )

    def _blank_reset(self) -> tuple[Any, ...]:
        return np.int32(0), np.int32(0), np.int32(0), self._blank()

    def _blank_step(self) -> Step:
        no = np.bool_(False)
        reward, seen = np.zeros(self.num_agents, np.float32), self._blank()
        return Step(np.int32(0), np.int32(0), np.int32(0), reward, no, no, no, last=seen, first=seen)

    def _on_reset(self, seed: np.ndarray, training: bool = False) -> Any:
        bank, clock, seen = self.pool.reset(seed.reshape(-1), training)
        numbers = np.arange(seed.size, dtype=np.int32)
        return np.full(seed.size, bank, np.int32), numbers, clock, _seen(seen)

    def _on_lasting_reset(self, seed: np.ndarray) -> Any:
        return self._on_reset(seed, training=True)

    def _on_step(
        self, bank: np.ndarray, number: np.ndarray, clock: np.ndarray, seed: np.ndarray, action: np.ndarray
    ) -> Any:
        bank = bank.reshape(-1)
        number = np.where(bank == bank[0], number.reshape(-1), -1)  # of another bank: not here
        action = action.reshape(bank.size, *action.shape[seed.ndim :])
        clock, last, first = self.pool.step(
            int(bank[0]), number, clock.reshape(-1), seed.reshape(-1), action, self.horizon
        )
        numbers = np.arange(bank.size, dtype=np.int32)
        made = {name: last[name] for name in ("reward", "terminated", "truncated", "lost")}
        return Step(np.full_like(bank, bank[0]), numbers, clock, **made, last=_seen(last), first=_seen(first))


def _seen(arrays: pool.Seen) -> Seen:
    return Seen(arrays["obs"], arrays["alive"], arrays.get("mask"), arrays.get("state"))


def _seed(key: chex.PRNGKey) -> chex.Array:
    """What a worker seeds an episode with: 31 bits, which every generator takes."""
    return jax.random.bits(hashed(key), dtype=jnp.uint32) >> 1


def _action_space(facts: dict[str, Any]) -> Discrete | MultiDiscrete | Continuous:
    if facts["kind"] == "discrete":
        return Discrete(facts["sizes"])
    if facts["kind"] == "multi":
        return MultiDiscrete(facts["sizes"])
    return Continuous(facts["sizes"], facts["low"], facts["high"])


def module_path(task: str) -> str:
    """``sisl/multiwalker_v9`` as ``sisl.multiwalker_v9``."""
    path = task.strip("/").replace("/", ".").removesuffix(".py")
    if not all(part.isidentifier() for part in path.split(".")):
        raise UserError(f"env={FAMILY}/{task}: name a module, as {FAMILY}/sisl.multiwalker_v9")
    return path


def own_module(name: str) -> str | None:
    """The module that an environment's name would import, if it is neither PettingZoo's nor imported already."""
    family, _, task = name.partition("/")
    if family != FAMILY:
        return None
    path = module_path(task)
    spec = importlib.util.find_spec(FAMILY)
    places = [Path(place, *path.split(".")) for place in (spec.submodule_search_locations or ())] if spec else []
    inside = any(place.with_name(f"{place.name}.py").is_file() or (place / "__init__.py").is_file() for place in places)
    return None if inside or spec is None or path in sys.modules else path


def factory(task: str) -> Callable[..., Env]:
    """What makes the environment of a module."""
    path = module_path(task)

    def make(continuous: bool | None = None, workers: int | None = None, **kwargs: Any) -> Env:
        """``workers`` processes (one for each core unless given); the rest goes to the module's ``parallel_env``."""
        if workers is not None and (int(workers) != workers or workers < 1):
            raise UserError(f"env.kwargs.workers={workers}: must be a whole number, at least 1")
        return PettingZoo(pool.shared(f"{FAMILY}/{path}", path, kwargs, continuous, workers))

    return make


def register_all() -> None:
    """Register the family."""
    register_family(FAMILY, factory, module_path)
