"""Several processes, one training: each drives its own devices, the first writes what people read.

JAX connects them (``jax.distributed``); here is when, and the few things that processes must agree on between chunks:
a hyperparameter, a checkpoint to go on from, whether to stop. With one process all of it costs nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import jax
import numpy as np

from shoal.errors import UserError

T = TypeVar("T")
LONGEST = 4096  # bytes of a text to agree on
LOST = 3  # exit code


class Place(NamedTuple):
    """Which of the processes this is, and where they meet."""

    coordinator: str  # host:port of the first
    processes: int
    process: int
    device: int | None = None  # the only one to drive, where several processes share a node's accelerators


def slurm(environ: Mapping[str, str]) -> Place | None:
    """What ``srun`` says of a step with several tasks; None outside of one.

    One task per node drives all accelerators that it sees; with more of them each takes the one of its local number.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
    if not all(name in environ for name in names) or int(environ["SLURM_STEP_NUM_TASKS"]) < 2:
        return None
    job, nodes, tasks, process = (environ[name] for name in names)
    found = re.match(r"([^,\[]+)(?:\[([^,\-\]]+))?", nodes)
    if found is None:
        raise UserError(f"SLURM_STEP_NODELIST={nodes}: cannot be read; set distributed.coordinator=host:port")
    first = "".join(filter(None, found.groups()))
    shared = int(tasks) > int(environ.get("SLURM_STEP_NUM_NODES", tasks))
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    device = int(environ["SLURM_LOCALID"]) if shared and len(visible) > 1 else None
    port = 61440 + int(job) % 4096  # two jobs on one node shall not meet
    return Place(f"{first}:{port}", int(tasks), int(process), device)


def place_of(settings: Any, environ: Mapping[str, str]) -> Place | None:
    """Where ``distributed.*`` (:class:`shoal.config.settings.Distributed`) puts this process; None if it is alone."""
    if settings.coordinator == "none":
        return None
    if settings.coordinator == "auto":
        return slurm(environ)
    if settings.processes is None or settings.process is None:
        raise UserError(
            f"distributed.coordinator={settings.coordinator}: needs distributed.processes=<how many> and "
            "distributed.process=<which, from 0>"
        )
    if ":" not in settings.coordinator:
        raise UserError(f"distributed.coordinator={settings.coordinator}: must be host:port, auto or none")
    if not 0 <= settings.process < settings.processes:
        raise UserError(f"distributed.process={settings.process}: must be in [0, {settings.processes - 1}]")
    return Place(settings.coordinator, settings.processes, settings.process)


def join(settings: Any) -> None:
    """Connect to the other processes, if there are any; before JAX has looked for devices."""
    place = place_of(settings, os.environ)
    if place is None or jax.distributed.is_initialized():
        return
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.processes,
            place.process,
            local_device_ids=place.device,
            cluster_detection_method="deactivate",
            initialization_timeout=settings.patience,
            heartbeat_timeout_seconds=settings.timeout,
            shutdown_timeout_seconds=settings.timeout,
        )
    except RuntimeError as error:
        raise UserError(f"distributed.coordinator={place.coordinator}: {str(error).splitlines()[0]}") from error


def leads() -> bool:
    """Whether this process writes records, logs and tables."""
    return jax.process_index() == 0


def count() -> int:
    return jax.process_count()


def fetch(tree: Any) -> Any:
    """A tree of arrays as numpy, whole on every process."""
    if count() == 1:
        return jax.device_get(tree)
    leaves, structure = jax.tree.flatten(tree)
    spread = [x for x in leaves if isinstance(x, jax.Array) and not x.is_fully_addressable]
    if spread:
        mesh = spread[0].sharding.mesh  # type: ignore[attr-defined]
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        whole = iter(jax.jit(_identity, out_shardings=everywhere)(spread))  # compiled once for each list of shapes
        leaves = [next(whole) if isinstance(x, jax.Array) and not x.is_fully_addressable else x for x in leaves]
    return jax.tree.unflatten(structure, [np.asarray(x) for x in leaves])


def _identity(tree: Any) -> Any:
    return tree


def agree(tree: Any) -> Any:
    """The first process's tree of numbers, on every process."""
    if count() == 1:
        return tree
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


def agree_on(text: str) -> str:
    """The first process's text: a folder with the time in its name is not the same in all."""
    if count() == 1:
        return text
    return bytes(agree(np.frombuffer(text.encode().ljust(LONGEST), np.uint8))).decode().rstrip()


def any_of(*flags: bool) -> list[bool]:
    """Each flag, as raised by any process."""
    if count() == 1:
        return list(flags)
    raised = _all(np.array(flags))
    return [bool(raised[:, i].any()) for i in range(len(flags))]


def all_or_none(step: Callable[[], T]) -> T:
    """``step()`` of every process. A :class:`UserError` in one of them is an error of all."""
    failure = result = None
    try:
        result = step()
    except UserError as error:
        failure = error
    (failed,) = any_of(failure is not None)
    if failed:
        raise failure or UserError("another process of this training has ended it")
    return result  # type: ignore[return-value]


def least(number: int | None) -> int | None:
    """The smallest number that any process has; None if one has none."""
    if count() == 1:
        return number
    smallest = float(_all(np.array([-1.0 if number is None else float(number)])).min())
    return None if smallest < 0 else int(smallest)


def _all(numbers: np.ndarray) -> np.ndarray:
    """``[processes, ...]``: the numbers of every process."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(numbers)).reshape(count(), *numbers.shape)


def give_up(error: Exception) -> NoReturn:
    """End this process, at once and in one line, because another one has gone: JAX would wait for it to say goodbye."""
    reason = str(error).splitlines()[0]
    print(f"error: lost another process; the same command with resume=auto goes on ({reason})", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST)


def meet(where: str) -> None:
    """Wait until every process has come here."""
    if count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(where)
