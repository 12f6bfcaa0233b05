"""One run between two chunks: its state, its start, and a chunk of its training."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct

from shoal.algorithm import Algorithm, Hypers, Metrics, Params, TrainState
from shoal.folder.layout import RETURN
from shoal.hashing import replace_stream
from shoal.rl.metrics import Table, mean_over_updates
from shoal.run import learners
from shoal.run.evaluate import evaluate

# The first word of an evaluation's key: evaluation never shares random numbers with training. The second is the seed,
# so that the members of a population, like the points of a sweep, play the same episodes: what differs is what they do.
EVALUATION_STREAM = 0x65766C


class RunState(struct.PyTreeNode):
    """One run between two chunks."""

    train: TrainState
    best_policy: Params  # of the best evaluation so far
    best_return: chex.Array  # [] float32, of the objective
    diverged: chex.Array  # [] bool: a parameter became NaN or infinite; frozen since
    evaluation_key: chex.PRNGKey


def first_state(algorithm: Algorithm, key: chex.PRNGKey, hypers: Hypers) -> RunState:
    """The state of one run before its first update."""
    train = algorithm.init(key, hypers)
    evaluation_key = replace_stream(key, EVALUATION_STREAM)
    return RunState(train, algorithm.policy(train.learnt), jnp.float32(-jnp.inf), jnp.bool_(False), evaluation_key)


def all_finite(tree: Any) -> chex.Array:
    """Whether no number of a tree is NaN or infinite."""
    # Side by side: a reduction for every leaf takes four times as long to compile.
    return jnp.isfinite(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])).all()


def either(condition: chex.Array, yes: Any, no: Any) -> Any:
    """One of two trees. Unlike a select of every leaf, a branch has nothing to compile (under ``vmap`` it is one)."""
    return jax.lax.cond(condition, lambda: yes, lambda: no)


def train_chunk(
    algorithm: Algorithm,
    state: RunState,
    hypers: Hypers,
    updates: int,
    episodes: int,
    greedy: bool,
    objective: str = RETURN,
) -> tuple[RunState, Table, Metrics]:
    """``updates`` updates of one run and an evaluation; metrics are means over the chunk, evaluation per episode.

    The policy with the highest mean of ``objective`` is the best one.
    """

    def update(carry, _):
        train, diverged = carry
        new, metrics = algorithm.update(train, hypers)
        diverged = diverged | ~all_finite(new.learnt.params)
        new = new.replace(learnt=either(diverged, train.learnt, new.learnt))
        return (new, diverged), Table.of(metrics)

    (train, diverged), metrics = jax.lax.scan(update, (state.train, state.diverged), length=updates)
    policy = algorithm.policy(train.learnt)
    evaluation_key, episodes_played = evaluate(algorithm, policy, state.evaluation_key, episodes, greedy)
    mean = episodes_played[objective].mean()
    better = ~diverged & (mean > state.best_return)
    state = state.replace(
        train=train,
        diverged=diverged,
        best_policy=either(better, policy, state.best_policy),
        best_return=jnp.where(better, mean, state.best_return),
        evaluation_key=evaluation_key,
    )
    return state, mean_over_updates(learners.everyones(metrics)), episodes_played
