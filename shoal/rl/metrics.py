"""Episode statistics: what a rollout's finished episodes came to.

An agent's return is the undiscounted sum of its rewards over an episode; ``episode_return`` is the mean over
agents, never multiplied by their number. Environments with several groups also get ``episode_return/<group>``.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs.base import Env
from shoal.envs.wrappers import VecTimeStep
from shoal.errors import UserError

Metrics = dict[str, chex.Array]
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


def chosen_objective(word: str, env: Env) -> str:
    """The metric that ``evaluation.objective`` names; ``auto`` is the return of the first team, or of the only one."""
    if word == "auto":
        return f"episode_return/{env.group_names[0]}" if len(env.group_names) > 1 else "episode_return"

    def names(key: chex.PRNGKey) -> Metrics:
        timestep = env.reset(key)[1]
        return of_episodes(timestep.reward, jnp.int32(0), timestep.info, env)

    known = jax.eval_shape(names, jax.random.PRNGKey(0))
    if word not in known:
        raise UserError(f"evaluation.objective={word}: must be one of auto, {', '.join(known)}")
    return word


def episode_metrics(step: VecTimeStep, env: Env) -> Metrics:
    """Means over the episodes that ended in ``step [T, E, ...]``; NaN if none did."""
    ended = step.ended
    count = ended.sum().astype(jnp.float32)
    values = of_episodes(step.episode_return, step.episode_length, step.info, env)
    means = {name: jnp.where(ended, value, 0.0).sum() / count for name, value in values.items()}
    return means | {EPISODES: count}


def by_group(terms: Metrics, alive: chex.Array, env: Env) -> Metrics:
    """Masked means of ``terms [..., A]``: over all agents, and over each group where there are several."""
    # Side by side: a reduction for every term takes longer to compile, and to run.
    stacked = jnp.stack([jnp.float32(term) for term in terms.values()])  # [M, ..., A]
    totals = jnp.where(alive, stacked, 0.0).sum(tuple(range(1, stacked.ndim - 1)))  # [M, A]
    counts = alive.sum(tuple(range(alive.ndim - 1)))  # [A]

    def means(members: np.ndarray) -> list[chex.Array]:
        return list(totals[:, members].sum(axis=-1) / jnp.maximum(counts[members].sum(), 1))

    everyone = dict(zip(terms, means(np.arange(env.num_agents)), strict=True))
    if len(env.group_names) == 1:
        return everyone
    for index, group in enumerate(env.group_names):
        names = [f"{name}/{group}" for name in terms]
        everyone |= dict(zip(names, means(np.flatnonzero(env.group_ids == index)), strict=True))
    return everyone


def is_per_episode(name: str) -> bool:
    """Whether a metric is a mean over episodes (rather than over gradient steps)."""
    return name.split("/")[0] in PER_EPISODE


class Table(struct.PyTreeNode):
    """Named figures side by side in one array: a program with one result compiles sooner than one with twenty."""

    values: chex.Array  # [..., M]
    names: tuple[str, ...] = struct.field(pytree_node=False)

    @classmethod
    def of(cls, metrics: Metrics) -> Table:
        """``[...]`` figures by name as one ``[..., M]`` table, sorted by name."""
        names = tuple(sorted(metrics))
        return cls(jnp.stack([jnp.float32(metrics[name]) for name in names], axis=-1), names)

    def __getitem__(self, name: str) -> chex.Array:
        return self.values[..., self.names.index(name)]

    def mean(self) -> Table:
        """Over all axes."""
        return self.replace(values=self.values.reshape(-1, len(self.names)).mean(axis=0))  # type: ignore[attr-defined]

    def columns(self) -> Metrics:
        """The figures by name, ``[...]``."""
        return {name: self.values[..., column] for column, name in enumerate(self.names)}


def mean_over_updates(metrics: Table) -> Table:
    """``[K, M]`` to ``[M]``: figures of ``K`` updates to one each; those per episode weigh every episode alike."""
    per_episode = np.array([is_per_episode(name) for name in metrics.names])
    counts = np.array([name == EPISODES for name in metrics.names])
    weights = jnp.where(per_episode, metrics[EPISODES][:, None], 1.0)
    total = jnp.where(weights > 0, metrics.values * weights, 0.0).sum(axis=0)  # no episode ended: NaN times zero
    return metrics.replace(values=total / jnp.where(counts, 1.0, weights.sum(axis=0)))


def mean_over_episodes(values: Metrics) -> Metrics:
    """``[episodes]`` to one figure each."""
    return jax.tree.map(jnp.mean, values)
