"""Independent episodes with frozen parameters, inside the compiled program (Gorsane et al. 2022)."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from shoal.algorithm import Algorithm, Metrics, Params
from shoal.envs.base import select
from shoal.hashing import split
from shoal.rl.metrics import of_episodes

ABSOLUTE = 10  # the absolute metric plays so many times the episodes of an evaluation


def evaluate(
    algorithm: Algorithm, policy: Params, key: chex.PRNGKey, episodes: int, greedy: bool
) -> tuple[chex.PRNGKey, Metrics]:
    """The next key, and one value per episode, ``[episodes]``, of every metric.

    Each environment plays exactly one episode.
    """
    env, acting = algorithm.env, algorithm.acting
    keys = split(key, 1 + episodes + env.horizon)
    key, reset_keys, step_keys = keys[0], keys[1 : episodes + 1], keys[episodes + 1 :]
    state, timestep = jax.vmap(env.reset)(reset_keys)
    running = jnp.ones(episodes, bool)
    returns = jnp.zeros_like(timestep.reward)
    length = jnp.zeros(episodes, jnp.int32)

    def step(carry, step_key):
        state, timestep, memory, running, returns, length = carry
        act_key, env_key = split(step_key, 2)
        memory, action = acting.act(policy, memory, timestep, act_key, greedy)
        new_state, new_timestep = jax.vmap(env.step)(split(env_key, episodes), state, action)
        # A finished episode stands still, and so does its last `info`.
        state, timestep = select(running, (new_state, new_timestep), (state, timestep))
        returns = returns + jnp.where(running[:, None], timestep.earned, 0.0)
        length = length + running
        running = running & ~(timestep.terminated | timestep.truncated)
        return (state, timestep, memory, running, returns, length), None

    carry = (state, timestep, acting.initial_carry(episodes), running, returns, length)
    carry, _ = jax.lax.scan(step, carry, step_keys)
    _, timestep, _, _, returns, length = carry
    return key, of_episodes(returns, length, timestep.info, env)
