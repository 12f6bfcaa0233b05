"""The run axis over devices: runs never talk to each other, so each device trains its share of them.

On a CPU every core is a device. One run's matrix products are too small to share between cores, and a batch of runs
falls out of the cache; so each core trains its runs one after the other (``lax.map``), which on two
cores was much faster than ``vmap`` on both. An accelerator vmaps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

CORES_FLAG = "--xla_force_host_platform_device_count"


def cores_as_devices() -> None:
    """Make every CPU core a device of its own. Works only before JAX has looked for devices; a set flag stays."""
    flags = os.environ.get("XLA_FLAGS", "")
    if CORES_FLAG not in flags:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ["XLA_FLAGS"] = f"{flags} {CORES_FLAG}={cores}".strip()


def run_mesh(runs: int) -> Mesh:
    """The devices that ``runs`` runs are spread over; fewer runs than devices leave some idle."""
    return Mesh(np.array(jax.devices()[:runs]), ("runs",))


def padded(runs: int) -> int:
    """``runs``, rounded up so that every device has as many."""
    devices = run_mesh(runs).size
    return -(-runs // devices) * devices


def put(tree: Any, runs: int) -> Any:
    """Spread the leading axis of a tree over the devices."""
    return jax.device_put(tree, NamedSharding(run_mesh(runs), P("runs")))


def shapes(tree: Any, runs: int) -> Any:
    """What :func:`put` would make of a tree of arrays, without the arrays."""
    spread = NamedSharding(run_mesh(runs), P("runs"))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=spread), tree)


def over_runs(function: Callable, runs: int, in_place: bool = False) -> Callable:
    """``function`` of one run, for ``runs`` (padded) runs on a leading axis of every argument and result.

    ``in_place``: its first result takes the place of its first argument, which should be donated.
    """
    if jax.default_backend() != "cpu":
        local = jax.vmap(function)
    elif in_place:
        local = partial(_one_by_one, function)
    else:

        def local(*arguments):
            return jax.lax.map(lambda one: function(*one), arguments)

    mesh = run_mesh(runs)
    return jax.shard_map(local, mesh=mesh, in_specs=P("runs"), out_specs=P("runs"), check_vma=False)


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
