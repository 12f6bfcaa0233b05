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
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, use_abstract_mesh
from jax.sharding import PartitionSpec as P

from shoal.algorithm import TrainState
from shoal.errors import UserError
from shoal.run import learners as several


@dataclass(frozen=True)
class Placement:
    """The devices of a training, and how its runs are spread over them."""

    platform: str  # of the devices: cpu, gpu or tpu
    devices: tuple[Any, ...]  # process after process, the same number of each
    num_envs: int = 1  # of one run
    learners: int = 1  # of one run
    share_envs: bool = False  # whether devices share the environments of a run, where there are too few runs
    together: bool = False  # whether all runs are vmapped on one device

    @property
    def processes(self) -> int:
        """Processes that the devices belong to."""
        return len({device.process_index for device in self.devices})

    def mesh(self, runs: int) -> Mesh:
        """The devices that ``runs`` runs are spread over, as many of every process; some may stay idle."""
        if self.together:
            return Mesh(np.array(self.devices[:1]), ("runs",))
        table = np.array(self.devices).reshape(self.processes, -1)
        processes, each = table.shape
        if 1 < self.learners <= each:
            shape = (min(runs, each // self.learners), self.learners)
            return Mesh(table.ravel()[: math.prod(shape)].reshape(shape), ("runs", several.AXIS))
        if self.share_envs and runs < table.size:
            share = next(n for n in range(table.size // runs, 0, -1) if self.num_envs % n == 0)
            if share > 1 and (processes == 1 or runs * share == table.size):
                return Mesh(table.ravel()[: runs * share].reshape(runs, share), ("runs", "envs"))
        return Mesh(table[:, : -(-runs // processes)].ravel(), ("runs",))

    def padded(self, runs: int) -> int:
        """``runs``, rounded up so that every device has as many."""
        devices = self.mesh(runs).shape["runs"]
        return -(-runs // devices) * devices

    def holders(self, runs: int) -> int:
        """How many of this process's devices share one memory: cores do, accelerators have one each."""
        return self.mesh(runs).size // self.processes if self.platform == "cpu" else 1

    def memories(self, runs: int) -> int:
        """In how many memories the runs lie."""
        return self.mesh(runs).size // self.holders(runs)

    def put(self, tree: Any, runs: int) -> Any:
        """Spread the leading axis of a tree over the devices."""
        shardings = self._shardings(tree, runs)
        if self.processes == 1:
            return jax.device_put(tree, shardings)
        # Every process has the whole tree and makes the part of it that its devices hold.
        return jax.tree.map(
            lambda x, s: jax.make_array_from_callback(np.shape(x), s, np.asarray(x).__getitem__), tree, shardings
        )

    def shapes(self, tree: Any, runs: int) -> Any:
        """The shapes and shardings of what :meth:`put` makes of a tree of arrays."""
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, self._shardings(tree, runs)
        )

    def spread(self, tree: Any, runs: int) -> Any:
        """:meth:`put` inside a program."""
        return jax.lax.with_sharding_constraint(tree, self._shardings(tree, runs))

    def over_runs(self, function: Callable, runs: int, in_place: bool = False) -> Callable:
        """``function`` of one run, for ``runs`` (padded) runs on a leading axis of every argument and result.

        ``in_place``: its first result takes the place of its first argument, which should be donated.
        """
        if self.together:
            return jax.vmap(function)
        mesh = self.mesh(runs)
        if "envs" in mesh.shape:

            def sharing(*arguments):
                with use_abstract_mesh(mesh.abstract_mesh):  # `rl.shuffle` finds the axis of environments in it
                    results = jax.vmap(function, spmd_axis_name="runs")(*arguments)
                return self.spread(results, runs)

            return sharing
        local = self._local(function, in_place)
        if several.AXIS in mesh.shape:
            return self._over_learners(local, runs, in_place)
        return jax.shard_map(local, mesh=mesh, in_specs=P("runs"), out_specs=P("runs"), check_vma=False)

    def _shardings(self, tree: Any, runs: int) -> Any:
        """The sharding of every leaf."""
        mesh = self.mesh(runs)
        over_runs = NamedSharding(mesh, P("runs"))
        if several.AXIS in mesh.shape:
            over_learners = NamedSharding(mesh, P("runs", several.AXIS))
            return by_half(tree, lambda _: over_runs, slot=lambda _: over_learners)
        if "envs" not in mesh.shape:
            return jax.tree.map(lambda _: over_runs, tree)
        over_both = NamedSharding(mesh, P("runs", "envs"))
        return by_half(tree, lambda _: over_runs, envs=lambda _: over_both)

    def _local(self, function: Callable, in_place: bool) -> Callable:
        """``function`` for the runs of one device."""
        if self.platform != "cpu":
            return jax.vmap(function)
        if in_place:
            return partial(_one_by_one, function)
        return lambda *arguments: jax.lax.map(lambda one: function(*one), arguments)

    def _over_learners(self, local: Callable, runs: int, in_place: bool) -> Callable:
        """A device for every learner of a run. Without a state to change, every learner does the work of all."""
        mesh = self.mesh(runs)

        def learner(state, *rest):
            with several.on_devices():
                state, *others = local(by_half(state, _same, slot=lambda x: x.squeeze(1)), *rest)
            return by_half(state, _same, slot=lambda x: jnp.expand_dims(x, 1)), others

        def for_each_learner(*arguments):
            own = jax.tree.map(lambda sharding: sharding.spec, self._shardings(arguments[0], runs))
            specs = (own, *[P("runs")] * (len(arguments) - 1))
            mapped = jax.shard_map(learner, mesh=mesh, in_specs=specs, out_specs=(own, P("runs")), check_vma=False)
            state, others = mapped(*arguments)
            return state, *others

        def for_all(*arguments):
            mapped = jax.shard_map(local, mesh=mesh, in_specs=P("runs"), out_specs=P("runs"), check_vma=False)
            return self.spread(mapped(*arguments), runs)

        return for_each_learner if in_place else for_all


def place(devices: int | str = "all", num_envs: int = 1, together: bool = False, learners: int = 1) -> Placement:
    """The first ``devices`` of every process, for runs of so many environments and learners.

    Fewer where there are fewer: :func:`check_devices` is what refuses them. ``together``: environments on the host.
    """
    platform, by_process = jax.default_backend(), defaultdict(list)
    for device in jax.devices():
        by_process[device.process_index].append(device)
    each = min(devices, jax.local_device_count()) if isinstance(devices, int) else jax.local_device_count()
    chosen = [device for index in sorted(by_process) for device in by_process[index][:each]]
    share_envs = learners == 1 and (isinstance(devices, int) or platform != "cpu")
    return Placement(platform, tuple(chosen), num_envs, learners, share_envs, together)


def check_devices(devices: int | str, together: bool = False, learners: int = 1) -> None:
    """Refuse what a training asks for and these processes do not have."""
    if together and jax.process_count() > 1:
        raise UserError("environments on the host are stepped by one process; start a training for each host instead")
    if learners > 1 and jax.process_count() > 1:
        raise UserError(f"learners={learners}: share a run between the devices of one process; processes share runs")
    here = jax.local_device_count()
    if isinstance(devices, int) and devices > here:
        raise UserError(f"devices={devices}: there {'is' if here == 1 else 'are'} {here} ({jax.default_backend()})")


def by_half(tree: Any, change: Callable, slot: Callable | None = None, envs: Callable | None = None) -> Any:
    """``change`` of every leaf; of those in a state's slot ``slot``, of those in its ``slot.envs`` ``envs``."""

    def one(x: Any) -> Any:
        if not isinstance(x, TrainState):
            return change(x)
        in_slot = slot or change
        changed = jax.tree.map(in_slot, x.slot).replace(envs=jax.tree.map(envs or in_slot, x.slot.envs))
        return TrainState(jax.tree.map(change, x.learnt), changed)  # type: ignore[call-arg]

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, TrainState))


def _same(x: Any) -> Any:
    return x


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
