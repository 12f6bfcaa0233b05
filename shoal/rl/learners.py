"""One run as several learners: each has its share of the environments, the replay and every batch, and they average.

    python baselines/qmix/qmix_rnn_mpe.py seeds=1 learners=2

Parameters, optimiser and running statistics are one for all; environments, replay and random keys are each learner's
own. A gradient is the mean of the learners' gradients, of means over all of their rows, so that it is that of one
batch with everybody's share in it. Where there are devices enough every learner has one (``run.placement``); on fewer
all are vmapped, with the same keys, equal to float tolerance. Unlike ``devices`` it is a property of the training:
another number of learners draws other batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import chex
import jax
import jax.flatten_util

from shoal.algorithm import Algorithm, Hypers, Metrics, TrainState
from shoal.envs.base import Env
from shoal.errors import UserError
from shoal.hashing import split as split_key
from shoal.rl.metrics import Table, mean_over_updates

AXIS = "learners"
OWN = ("env_state", "timestep", "memory", "buffer", "noise", "key")  # fields of a state that each learner has, [W, ...]
SHARED = ("num_envs", "batch_size", "buffer_size", "learning_starts", "total_steps")  # settings that are for all

_several = False  # whether the function that is being traced is one learner's of several
_on_devices = False  # and whether each has a device of its own
_averaged = False  # whether it has averaged a tree, as gradients are, so far


@contextmanager
def on_devices() -> Iterator[None]:
    """While a program is traced in which :data:`AXIS` is an axis of the mesh: a state is one learner's, without it."""
    global _on_devices
    _on_devices = True
    try:
        yield
    finally:
        _on_devices = False


def mean(tree: Any) -> Any:
    """The mean over the learners of a run, in one exchange; the ``tree`` itself where there is one."""
    global _averaged
    if not _several:
        return tree
    _averaged = _averaged or not hasattr(tree, "shape")
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, AXIS))


def total(x: chex.Array) -> chex.Array:
    """The sum over the learners of a run."""
    return jax.lax.psum(x, AXIS) if _several else x


def split(make: Callable[[Any, Env], Algorithm], config: Any, env: Env, count: int) -> Algorithm:
    """What ``make`` makes, with ``count`` learners; ``config`` says what they have together."""
    if count == 1:
        return make(config, env)
    if env.host:
        raise UserError(f"learners={count}: environments on the host are stepped for all in one call; learners=1")
    try:
        one = make(share(config, count), env)
    except UserError as error:
        raise UserError(f"{error} (each of learners={count} has its share)") from error

    def init(key: chex.PRNGKey, hypers: Hypers) -> TrainState:
        # lax.map: a batched first draw of orthogonal matrices may hang
        state = jax.lax.map(lambda k: one.init(k, hypers), split_key(key, count))
        return common(state)

    def update(state: TrainState, hypers: Hypers) -> tuple[TrainState, Metrics]:
        def learner(state: TrainState) -> tuple[TrainState, Metrics]:
            with _one_of_several():
                new, metrics = one.update(state, hypers)
            if not _averaged:
                raise UserError(
                    f"learners={count}: this algorithm file does not average its gradients: learners.mean(grads)"
                )
            return new, metrics

        if _on_devices:
            return learner(state)  # and its own metrics: everyones() follows, once for many updates
        axes = state.replace(**{field.name: 0 if field.name in OWN else None for field in dataclasses.fields(state)})
        new, metrics = jax.vmap(learner, in_axes=(axes,), axis_name=AXIS)(state)
        return common(new), mean_over_updates(Table.of(metrics)).columns()

    steps = one.steps_per_update * count
    return dataclasses.replace(one, init=init, update=update, steps_per_update=steps)


def share(config: Any, count: int) -> Any:
    """The settings of one learner."""
    shares = {}
    for name in SHARED:
        if not hasattr(config, name):
            continue
        whole = getattr(config, name)
        if name in ("num_envs", "batch_size") and whole % count:
            raise UserError(f"learners={count}: must divide algo.{name}={whole}")
        shares[name] = whole / count if name == "total_steps" else -(-int(whole) // count)
    return dataclasses.replace(config, **shares)


def common(state: TrainState) -> TrainState:
    """Of what is the same for all learners the first one's; the rest as it is, ``[W, ...]``."""
    names = [field.name for field in dataclasses.fields(state) if field.name not in OWN]
    return state.replace(**{name: jax.tree.map(lambda x: x[0], getattr(state, name)) for name in names})


def everyones(metrics: Table) -> Table:
    """``[K, M]``, the figures of ``K`` updates, to ``[W * K, M]`` where each learner has a device of its own."""
    if not _on_devices:
        return metrics
    return metrics.replace(values=jax.lax.all_gather(metrics.values, AXIS, tiled=True))  # type: ignore[attr-defined]


@contextmanager
def _one_of_several() -> Iterator[None]:
    global _several, _averaged
    _several, _averaged = True, False
    try:
        yield
    finally:
        _several = False
