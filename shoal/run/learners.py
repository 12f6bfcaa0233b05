"""One run as several learners: each has a part of the environments, the replay and every batch, and they average.

    python baselines/qmix/qmix_rnn_mpe.py seeds=1 learners=2

Of a state's two halves ``learnt`` is one for all learners, and each has a ``slot``. A gradient is the mean of the
learners' gradients, of means over all of their rows, so that it is that of one batch with everybody's part in it. Where
there are devices enough every learner has one (``run.sharding``); on fewer all are vmapped, with the same keys, equal
to float tolerance. Unlike ``devices`` it is a property of the training: another number of learners draws other batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import chex
import jax

from shoal.algorithm import Algorithm, Hypers, TrainState
from shoal.envs.base import Env
from shoal.errors import UserError
from shoal.hashing import split as split_key
from shoal.rl.metrics import Metrics, Table, mean_over_updates

AXIS = "learners"

_on_devices = False  # whether each learner has a device in the program that is traced


@contextmanager
def on_devices() -> Iterator[None]:
    """While a program is traced in which :data:`AXIS` is an axis of the mesh: a state is one learner's, without it."""
    global _on_devices
    _on_devices = True
    try:
        yield
    finally:
        _on_devices = False


def made(algorithm: type[Algorithm], config: Any, env: Env, count: int = 1) -> Algorithm:
    """The ``algorithm`` on ``env``, with ``count`` learners; ``config`` says what they have together."""
    if count == 1:
        return algorithm(config, env)
    if env.host:
        raise UserError(f"learners={count}: environments on the host are stepped for all in one call; learners=1")

    class Together(algorithm):  # type: ignore[valid-type, misc]
        """A run of several learners: its ``slot`` has a leading axis for them."""

        @property
        def steps_per_update(self) -> int:
            return int(super().steps_per_update * count)

        def init(self, key: chex.PRNGKey, hypers: Hypers) -> TrainState:
            one = super().init
            # lax.map: a batched first draw of orthogonal matrices may hang
            state = jax.lax.map(lambda k: one(k, hypers), split_key(key, count))
            return TrainState(jax.tree.map(lambda x: x[0], state.learnt), state.slot)

        def update(self, state: TrainState, hypers: Hypers) -> tuple[TrainState, Metrics]:
            one = super().update
            if _on_devices:
                return one(state, hypers)  # with the learner's metrics: everyones() follows, once for many updates
            halves = TrainState(learnt=None, slot=0)  # type: ignore[call-arg]
            every = jax.vmap(one, in_axes=(halves, None), out_axes=(halves, 0), axis_name=AXIS)
            new, metrics = every(state, hypers)
            return new, mean_over_updates(Table.of(metrics)).columns()

    try:
        return Together(parts(config, count), env, AXIS)
    except UserError as error:
        raise UserError(f"{error} (each of learners={count} has a part of it)") from error


def parts(config: Any, count: int) -> Any:
    """The settings of one of ``count`` learners: fields that are ``divided`` are what all have together."""
    each = {}
    for field in dataclasses.fields(config):
        if field.metadata.get("divided"):
            whole = getattr(config, field.name)
            if field.metadata["divided"] == "evenly" and whole % count:
                raise UserError(f"learners={count}: must divide algo.{field.name}={whole}")
            each[field.name] = -(-whole // count)
    return dataclasses.replace(config, **each)


def check_averages(algorithm: Algorithm, hypers: Hypers) -> None:
    """Refuse an algorithm whose learners would drift apart: all that they have learnt must depend on means alone."""
    key = jax.random.PRNGKey(0)
    try:
        jax.eval_shape(lambda: algorithm.update(algorithm.init(key, hypers), hypers))
    except ValueError as error:
        if "out_axes is None" not in str(error):
            raise
        raise UserError(
            "learners: what this algorithm file learns differs between learners: give its optimiser and statistics "
            "axis_name=self.axis_name, or use shoal.rl.learners.mean(grads, self.axis_name)"
        ) from error


def everyones(metrics: Table) -> Table:
    """``[K, M]``, the figures of ``K`` updates, to ``[W * K, M]`` where each learner has a device of its own."""
    if not _on_devices:
        return metrics
    return metrics.replace(values=jax.lax.all_gather(metrics.values, AXIS, tiled=True))  # type: ignore[attr-defined]
