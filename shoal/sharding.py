"""The run axis over devices: runs never talk to each other, so each device trains its share of them.

On a CPU every core is a device. One run's matrix products are too small to share between cores, and a batch of runs
falls out of the cache; so each core trains its runs one after the other (``lax.map``), which on two
cores was much faster than ``vmap`` on both. An accelerator vmaps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
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


def spread(tree: Any, runs: int) -> Any:
    """:func:`put` inside a program: the leading axis of every leaf goes over the devices."""
    return jax.lax.with_sharding_constraint(tree, NamedSharding(run_mesh(runs), P("runs")))


def over_runs(function: Callable, runs: int) -> Callable:
    """``function`` of one run, for ``runs`` (padded) runs on a leading axis of every argument and result."""
    if jax.default_backend() == "cpu":

        def local(*arguments):
            return jax.lax.map(lambda one: function(*one), arguments)
    else:
        local = jax.vmap(function)
    mesh = run_mesh(runs)
    return jax.shard_map(local, mesh=mesh, in_specs=P("runs"), out_specs=P("runs"), check_vma=False)
