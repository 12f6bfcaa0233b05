"""The run axis over devices: runs never talk to each other, so each device trains its share of them.

On a CPU every core is a device. One run's matrix products are too small to share between cores, and a batch of runs
falls out of the cache; so each core trains its runs one after the other (``lax.map``), which on two
cores was much faster than ``vmap`` on both. An accelerator vmaps.

A run with several learners (``rl.learners``) has a device for each of them, if there are as many: a mesh of runs by
learners, in which each device trains its own share and the learners' gradients are averaged.

Where there are fewer runs than devices, the environments of each run can be shared as well: a mesh of runs by
environments, one program over all of it, in which XLA adds up the gradients. Accelerators do; cores only when a number
of ``devices`` asks for it.

Environments on the host are stepped for all runs in one call, so such runs are vmapped on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shoal.errors import UserError
from shoal.rl import learners as several

PER_ENVIRONMENT = ("env_state", "timestep", "memory")  # fields of a state whose arrays may have an environment axis


@dataclass(frozen=True)
class Choice:
    """What a training was told to use."""

    devices: int | None = None  # of each process; None for all
    num_envs: int = 1  # of one run
    share_envs: bool = False  # between devices, where there are too few runs
    together: bool = False  # all runs vmapped on one device
    learners: int = 1  # of one run


_choice = Choice()
_inside: Mesh | None = None  # whose environments are shared by the function that is being traced


def choose(devices: int | str = "all", num_envs: int = 1, together: bool = False, learners: int = 1) -> None:
    """From now on use ``devices`` of each process's, for runs of so many environments; one if these are on the host."""
    global _choice
    if together and jax.process_count() > 1:
        raise UserError("environments on the host are stepped by one process; start a training for each host instead")
    if learners > 1 and jax.process_count() > 1:
        raise UserError(f"learners={learners}: share a run between the devices of one process; processes share runs")
    here = jax.local_device_count()
    if isinstance(devices, int) and devices > here:
        raise UserError(f"devices={devices}: there {'is' if here == 1 else 'are'} {here} ({jax.default_backend()})")
    share_envs = learners == 1 and (isinstance(devices, int) or jax.default_backend() != "cpu")
    _choice = Choice(devices if isinstance(devices, int) else None, num_envs, share_envs, together, learners)


def run_mesh(runs: int) -> Mesh:
    """The devices that ``runs`` runs are spread over, as many of every process; without use for more, some are idle."""
    if _choice.together:
        return Mesh(np.array(jax.devices()[:1]), ("runs",))
    processes = jax.process_count()
    each = min(_choice.devices or jax.local_device_count(), jax.local_device_count())
    if 1 < _choice.learners <= each:
        rows = min(runs, each // _choice.learners)
        shape = (rows, _choice.learners)
        return Mesh(np.array(_first(each)[: math.prod(shape)]).reshape(shape), ("runs", several.AXIS))
    if _choice.share_envs and runs < each * processes:
        share = each * processes // runs
        share = next(n for n in range(share, 0, -1) if _choice.num_envs % n == 0)
        if share > 1 and (processes == 1 or runs * share == each * processes):
            return Mesh(np.array(_first(each)[: runs * share]).reshape(runs, share), ("runs", "envs"))
    return Mesh(np.array(_first(min(each, -(-runs // processes)))), ("runs",))


def _first(each: int) -> list[Any]:
    """The first ``each`` devices of every process."""
    if jax.process_count() == 1:
        return jax.devices()[:each]
    by_process: dict[int, list[Any]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    return [device for index in sorted(by_process) for device in by_process[index][:each]]


def padded(runs: int) -> int:
    """``runs``, rounded up so that every device has as many."""
    devices = run_mesh(runs).shape["runs"]
    return -(-runs // devices) * devices


def _spread(tree: Any, runs: int) -> Any:
    """The sharding of every leaf."""
    mesh = run_mesh(runs)
    over_runs = NamedSharding(mesh, P("runs"))
    if several.AXIS in mesh.shape:
        over_learners = NamedSharding(mesh, P("runs", several.AXIS))
        return jax.tree_util.tree_map_with_path(lambda path, _: over_learners if _is_own(path) else over_runs, tree)
    if "envs" not in mesh.shape:
        return jax.tree.map(lambda _: over_runs, tree)
    over_both = NamedSharding(mesh, P("runs", "envs"))

    def of(path: tuple, leaf: Any) -> NamedSharding:
        names = {getattr(key, "name", getattr(key, "key", None)) for key in path}
        shared = names & {*PER_ENVIRONMENT} and len(leaf.shape) > 1 and leaf.shape[1] == _choice.num_envs
        return over_both if shared else over_runs

    return jax.tree_util.tree_map_with_path(of, tree)


def _is_own(path: tuple) -> bool:
    """Whether a leaf of a tree with a ``RunState`` in it is what each learner has."""
    names = [getattr(key, "name", None) for key in path]
    return "train" in names and names[names.index("train") + 1] in several.OWN


def put(tree: Any, runs: int) -> Any:
    """Spread the leading axis of a tree over the devices."""
    spread = _spread(tree, runs)
    if jax.process_count() == 1:
        return jax.device_put(tree, spread)
    # Every process has the whole tree and makes the part of it that its devices hold.
    return jax.tree.map(
        lambda x, s: jax.make_array_from_callback(np.shape(x), s, np.asarray(x).__getitem__), tree, spread
    )


def shapes(tree: Any, runs: int) -> Any:
    """What :func:`put` would make of a tree of arrays, without the arrays."""
    return jax.tree.map(
        lambda x, spread: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=spread), tree, _spread(tree, runs)
    )


def spread(tree: Any, runs: int) -> Any:
    """:func:`put` inside a program."""
    return jax.lax.with_sharding_constraint(tree, _spread(tree, runs))


def over_runs(function: Callable, runs: int, in_place: bool = False) -> Callable:
    """``function`` of one run, for ``runs`` (padded) runs on a leading axis of every argument and result.

    ``in_place``: its first result takes the place of its first argument, which should be donated.
    """
    if _choice.together:
        return jax.vmap(function)
    mesh = run_mesh(runs)
    if "envs" in mesh.shape:

        def together(*arguments):
            with _sharing(mesh):
                results = jax.vmap(function, spmd_axis_name="runs")(*arguments)
            return jax.lax.with_sharding_constraint(results, _spread(results, runs))

        return together
    if several.AXIS in mesh.shape:
        return _over_learners(function, runs, mesh, in_place)
    local = _local(function, in_place)
    return jax.shard_map(local, mesh=mesh, in_specs=P("runs"), out_specs=P("runs"), check_vma=False)


def _local(function: Callable, in_place: bool) -> Callable:
    """``function`` for the runs of one device."""
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    if in_place:
        return partial(_one_by_one, function)
    return lambda *arguments: jax.lax.map(lambda one: function(*one), arguments)


def _over_learners(function: Callable, runs: int, mesh: Mesh, in_place: bool) -> Callable:
    """A device for every learner of a run; what does not change a state in place is done for all of them, by each."""

    local = _local(function, in_place)

    def at_own(change: Callable, state: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, x: change(x, 1) if _is_own(path) else x, state)

    def learner(state, *rest):
        with several.on_devices():
            state, *others = local(at_own(jnp.squeeze, state), *rest)
        return at_own(jnp.expand_dims, state), others

    def for_each_learner(*arguments):
        own = jax.tree.map(lambda sharding: sharding.spec, _spread(arguments[0], runs))
        specs = (own, *[P("runs")] * (len(arguments) - 1))
        state, others = jax.shard_map(learner, mesh=mesh, in_specs=specs, out_specs=(own, P("runs")), check_vma=False)(
            *arguments
        )
        return state, *others

    def for_all(*arguments):
        results = jax.shard_map(local, mesh=mesh, in_specs=P("runs"), out_specs=P("runs"), check_vma=False)(*arguments)
        return spread(results, runs)

    return for_each_learner if in_place else for_all


def _one_by_one(function: Callable, states: Any, *rest: Any) -> Any:
    """``lax.map`` that writes each run's new state over its old one: half the memory, and less to compile."""

    def step(states: Any, inputs: Any) -> Any:
        run, rest = inputs
        state, *others = function(
            jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, run, keepdims=False), states), *rest
        )
        return jax.tree.map(lambda x, new: jax.lax.dynamic_update_index_in_dim(x, new, run, 0), states, state), others

    runs = len(jax.tree.leaves(states)[0])
    states, others = jax.lax.scan(step, states, (jnp.arange(runs), rest))
    return states, *others


@contextmanager
def _sharing(mesh: Mesh) -> Iterator[None]:
    global _inside
    before, _inside = _inside, mesh
    try:
        yield
    finally:
        _inside = before


def share_rows(x: chex.Array) -> chex.Array:
    """Share the last axis between the devices that share a run's environments; elsewhere ``x`` as it is.

    Laid on the indices of minibatches: each device then learns from its rows of every one of them.
    """
    if _inside is None or x.shape[-1] % _inside.shape["envs"]:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(_inside, P(*[None] * (x.ndim - 1), "envs")))
