"""Episode statistics: what a rollout's finished episodes came to.

An agent's return is the undiscounted sum of its rewards over an episode; ``episode_return`` is the mean over
agents, never multiplied by their number. Environments with several groups also get ``episode_return/<group>``.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from envs.base import Env
from envs.wrappers import VecTimeStep
from shoal.algorithm import Metrics
from shoal.returns import masked_mean, mean_by

EPISODES = "episodes"  # how many episodes ended: the weight of the metrics below
PER_EPISODE = ("episode_return", "episode_length", "win_rate")


def of_episodes(returns: chex.Array, length: chex.Array, info: dict[str, chex.Array], env: Env) -> Metrics:
    """Named values of each episode: ``returns [..., A]``, ``length [...]`` and the last step's ``info``."""
    values = {"episode_return": returns.mean(axis=-1), "episode_length": length.astype(jnp.float32)}
    if len(env.group_names) > 1:
        for index, name in enumerate(env.group_names):
            values[f"episode_return/{name}"] = returns[..., env.group_ids == index].mean(axis=-1)
    if "won" in info:
        values["win_rate"] = info["won"].astype(jnp.float32)
    return values


def episode_metrics(step: VecTimeStep, env: Env) -> Metrics:
    """Means over the episodes that ended in ``step [T, E, ...]``; NaN if none did."""
    ended = step.ended
    count = ended.sum().astype(jnp.float32)
    values = of_episodes(step.episode_return, step.episode_length, step.info, env)
    means = {name: jnp.where(ended, value, 0.0).sum() / count for name, value in values.items()}
    return means | {EPISODES: count}


def by_group(terms: Metrics, alive: chex.Array, env: Env) -> Metrics:
    """Masked means of ``terms [..., A]``: over all agents, and over each group where there are several."""
    means = {name: masked_mean(term, alive) for name, term in terms.items()}
    if len(env.group_names) > 1:
        for name, term in terms.items():
            values = mean_by(env.group_ids, term, alive)
            means |= {f"{name}/{group}": values[i] for i, group in enumerate(env.group_names)}
    return means


def is_per_episode(name: str) -> bool:
    """Whether a metric is a mean over episodes (rather than over gradient steps)."""
    return name.split("/")[0] in PER_EPISODE


def mean_over_updates(metrics: Metrics) -> Metrics:
    """``[K]`` updates to one figure each; per-episode figures weigh every episode alike."""
    episodes = metrics[EPISODES]

    def reduce(name, value):
        if name == EPISODES:
            return value.sum()
        if is_per_episode(name):
            return jnp.where(episodes > 0, value * episodes, 0.0).sum() / episodes.sum()
        return value.mean()

    return {name: reduce(name, value) for name, value in metrics.items()}


def mean_over_episodes(values: Metrics) -> Metrics:
    """``[episodes]`` to one figure each."""
    return jax.tree.map(jnp.mean, values)
