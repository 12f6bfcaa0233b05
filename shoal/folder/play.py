"""One episode, step by step, to look at: for pictures and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import Env


class Episode(NamedTuple):
    """An episode up to its end."""

    states: Any  # [T + 1, ...]: env.render(states) draws them
    rewards: np.ndarray  # [T, A]

    @property
    def episode_return(self) -> float:
        """The mean over agents of the sum of their rewards."""
        return float(self.rewards.mean(axis=-1).sum())


def play(env: Env, initial_carry: Callable[[int], Any], act: Callable, seed: int) -> Episode:
    """One episode of ``act(carry, timestep [1, ...], key) -> carry, action [1, A, ...]``."""

    def step(carry, key):
        state, timestep, memory = carry
        act_key, env_key = jax.random.split(key)
        memory, action = act(memory, timestep, act_key)
        state, timestep = jax.vmap(env.step)(env_key[None], state, action)
        return (state, timestep, memory), (state, timestep.earned[0], timestep.terminated | timestep.truncated)

    def episode(key):
        reset_key, *keys = jax.random.split(key, env.horizon + 1)
        state, timestep = jax.vmap(env.reset)(reset_key[None])
        _, (states, rewards, ended) = jax.lax.scan(step, (state, timestep, initial_carry(1)), jnp.stack(keys))
        both = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest])[:, 0], state, states)
        return both, rewards, ended[:, 0]

    states, rewards, ended = jax.device_get(jax.jit(episode)(jax.random.PRNGKey(seed)))
    length = int(np.argmax(ended)) + 1
    return Episode(jax.tree.map(lambda leaf: leaf[: length + 1], states), rewards[:length])
