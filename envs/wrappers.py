"""Wrappers around the environment protocol: the time limit, agent ids, and the vectorised environment to learn from."""

from __future__ import annotations

from typing import Any

import chex
import jax.numpy as jnp
from flax import struct

from envs.base import Env, EnvState, TimeStep


class Wrapper(Env):
    """Has the wrapped environment's facts as its own; other attributes are looked up in the wrapped environment."""

    def __init__(self, env: Env):
        self.env = env
        for fact in Env.__annotations__:
            setattr(self, fact, getattr(env, fact))

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet: do not look for it in itself
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, key: chex.PRNGKey) -> tuple[EnvState, TimeStep]:
        return self.env.reset(key)

    def step(self, key: chex.PRNGKey, state: EnvState, action: chex.Array) -> tuple[EnvState, TimeStep]:
        return self.env.step(key, state, action)


@struct.dataclass
class TimeLimitState:
    inner: EnvState
    step: chex.Array  # [] int32, steps since the reset


class TimeLimit(Wrapper):
    """Truncates an episode after ``horizon`` steps; an episode that ends by itself just then is terminated, not truncated."""

    def reset(self, key):
        inner, timestep = self.env.reset(key)
        return TimeLimitState(inner, jnp.int32(0)), timestep

    def step(self, key, state, action):
        inner, timestep = self.env.step(key, state.inner, action)
        step = state.step + 1
        truncated = (step >= self.horizon) & ~timestep.terminated
        return TimeLimitState(inner, step), timestep.replace(truncated=truncated)
