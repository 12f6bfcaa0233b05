"""Independent episodes with frozen parameters, inside the compiled program (Gorsane et al. 2022)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.algorithm import Algorithm, Metrics, Params
from shoal.envs.base import select
from shoal.folder.records import Records, evaluation_entry
from shoal.hashing import split
from shoal.rl.metrics import of_episodes
from shoal.run import hosts
from shoal.run.progress import Display

if TYPE_CHECKING:
    from shoal.run.plan import Plan
    from shoal.run.state import RunState

ABSOLUTE = 10  # the absolute metric plays so many times the episodes of an evaluation


def evaluate(
    algorithm: Algorithm, policy: Params, key: chex.PRNGKey, episodes: int, greedy: bool
) -> tuple[chex.PRNGKey, Metrics]:
    """The next key, and one value per episode, ``[episodes]``, of every metric.

    Each environment plays exactly one episode.
    """
    env = algorithm.env
    keys = split(key, 1 + episodes + env.horizon)
    key, reset_keys, step_keys = keys[0], keys[1 : episodes + 1], keys[episodes + 1 :]
    state, timestep = jax.vmap(env.reset)(reset_keys)
    running = jnp.ones(episodes, bool)
    returns = jnp.zeros_like(timestep.reward)
    length = jnp.zeros(episodes, jnp.int32)

    def step(carry, step_key):
        state, timestep, memory, running, returns, length = carry
        act_key, env_key = split(step_key, 2)
        memory, action = algorithm.act(policy, memory, timestep, act_key, greedy)
        new_state, new_timestep = jax.vmap(env.step)(split(env_key, episodes), state, action)
        # A finished episode stands still, and so does its last `info`.
        state, timestep = select(running, (new_state, new_timestep), (state, timestep))
        returns = returns + jnp.where(running[:, None], timestep.earned, 0.0)
        length = length + running
        running = running & ~(timestep.terminated | timestep.truncated)
        return (state, timestep, memory, running, returns, length), None

    carry = (state, timestep, algorithm.initial_memory(episodes), running, returns, length)
    carry, _ = jax.lax.scan(step, carry, step_keys)
    _, timestep, _, _, returns, length = carry
    return key, of_episodes(returns, length, timestep.info, env)


def absolute_metric(
    plan: Plan, batch: int, state: RunState, records: Records, display: Display
) -> dict[str, Any] | None:
    """Ten times the episodes with each run's best parameters, once per batch; None if they have been played before."""
    env_steps = plan.steps_per_chunk * plan.chunks
    past = [entry for entry in records.evaluations() if "absolute" in entry and entry["batch"] == batch]
    played = any(entry["env_steps"] == env_steps for entry in past)  # not that of a shorter training, gone on with
    if hosts.agree(np.int32(played)):
        return None
    display.compiling("the last evaluation")
    settings = plan.settings.evaluation

    def play(policy: Params, key: chex.PRNGKey) -> Metrics:
        if not plan.algorithm.env.host:
            return evaluate(plan.algorithm, policy, key, ABSOLUTE * settings.episodes, settings.greedy)[1]
        # One after the other: the host holds no more environments than the evaluations before needed.
        one = partial(evaluate, plan.algorithm, policy, episodes=settings.episodes, greedy=settings.greedy)
        _, episodes = jax.lax.scan(lambda key, _: one(key), key, length=ABSOLUTE)
        return jax.tree.map(lambda x: x.reshape(-1), episodes)

    program = jax.jit(plan.placement.over_runs(play, plan.width))
    episodes = hosts.fetch(program(state.best_policy, state.evaluation_key))
    entry = evaluation_entry(batch, plan.batch_runs(batch), env_steps, episodes)
    if hosts.leads():
        records.append_evaluation({"absolute": True, **entry})
    return entry["metrics"]
