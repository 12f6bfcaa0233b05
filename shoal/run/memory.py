"""What a training needs and what the device has, before anything is compiled; and how many runs fit at once.

Sizes come from shapes: those of a run's state exactly, what a chunk takes beside it (the rollout, gradients) from the
trace of its program (``shoal.run.cost``), which is near enough for a plan. The compiled program is asked again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from shoal.errors import UserError
from shoal.run import cost, sharding

if TYPE_CHECKING:
    from shoal.run.plan import Plan

SHARE = 0.8  # of what is free: a plan is not exact, and the machine has other things to do
OPTIMISER, REPLAY = "opt_state", "buffer"  # fields of a training state, by convention


@dataclass(frozen=True)
class Need:
    """Bytes of one run."""

    parameters: int  # with the copies that are kept: targets, the best policy
    optimiser: int
    replay: int
    environments: int  # and whatever else is in the state
    rollout: int  # what a chunk takes beside its state while it runs

    @property
    def state(self) -> int:
        return self.parameters + self.optimiser + self.replay + self.environments

    def of(self, runs: int) -> int:
        """Bytes of ``runs`` (padded) runs at once, in the memory that :func:`holders` devices share.

        A core trains its runs one after the other: their rollouts share the place of one.
        """
        devices = holders(runs)
        per_device = math.ceil(runs / sharding.run_mesh(runs).shape["runs"])
        at_once = 1 if jax.default_backend() == "cpu" and "envs" not in sharding.run_mesh(runs).shape else per_device
        return devices * (per_device * self.state + at_once * self.rollout)

    def text(self, runs: int, available: int | None) -> str:
        """``8 runs: 0.2 MiB parameters, ..., about 30 MiB in all of 12 GiB free``."""
        parts = {"parameters": self.parameters, "optimiser": self.optimiser, "replay": self.replay}
        parts |= {"environments": self.environments}
        held = ", ".join(f"{size_text(runs * size)} {name}" for name, size in parts.items() if size)
        rollout = size_text(self.of(runs) - math.ceil(runs * self.state / shares(runs)))
        free = f" of {size_text(available)} free" if available is not None else ""
        where = "host" if jax.default_backend() == "cpu" else "device"
        which = "" if shares(runs) == 1 else f" on each {where}"
        return (
            f"memory for {runs} run{'s' * (runs > 1)}: {held}, about {rollout} rollout; "
            f"{size_text(self.of(runs))}{which}{free}"
        )


def holders(runs: int) -> int:
    """How many of this process's devices share one memory: cores do, accelerators have their own."""
    if jax.default_backend() != "cpu":
        return 1
    return sharding.run_mesh(runs).size // jax.process_count()


def shares(runs: int) -> int:
    """In how many memories the runs lie."""
    return sharding.run_mesh(runs).size // holders(runs)


def state_need(state: Any, runs: int, rollout: int = 0) -> Need:
    """What one run needs, from the shapes of the state of ``runs``."""

    def total(tree: Any) -> int:
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree)) // runs

    train = state.train
    optimiser, replay = total(getattr(train, OPTIMISER, ())), total(getattr(train, REPLAY, ()))
    parameters = total((train.params, getattr(train, "target", ()), state.best_policy))
    return Need(parameters, optimiser, replay, total(state) - parameters - optimiser - replay, rollout)


def beside_state(jaxpr: Any) -> int:
    """Bytes that a chunk takes beside its inputs, from its trace: those of one device where it is mapped over them."""
    return int(max((cost.of_equation(eqn).peak for eqn in jaxpr.eqns), default=0))


def fit(runs: int, available: int | None, needed: Callable[[int], int]) -> int:
    """The batch size for ``runs``: as few batches as fit into ``available``, about equally large; at least one run.

    ``needed(n)`` are the bytes of ``n`` runs at once.
    """
    if available is None or needed(sharding.padded(runs)) <= SHARE * available:
        return runs
    low, high = 1, runs  # low fits (or nothing does), high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(sharding.padded(middle)) <= SHARE * available else (low, middle)
    even = math.ceil(runs / math.ceil(runs / low))
    whole = sharding.padded(even)  # a batch that leaves no device idle, if that fits too
    return whole if whole <= low else even


def size_text(size: float) -> str:
    """``3.2 GiB``, ``120 MiB``, ``4 KiB``."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.2g} {name}" if size < 10 * unit else f"{size / unit:.0f} {name}"
    return f"{math.ceil(size / 2**10)} KiB"


def check_memory(needed: int, available: int | None, plan: Plan) -> None:
    """A :class:`UserError` that names ``runs_per_batch`` (and ``buffer_size``) if more is needed than there is."""
    if available is None or needed <= available:
        return
    advice, runs, algo = [], plan.width, plan.settings.algo
    members = plan.rules.population if plan.rules else 1
    fit = int(runs * available / needed * 0.9)
    if 0 < fit < members:
        advice.append(f"population={fit} makes a population that fits")
    elif runs > 1 and fit:
        advice.append(f"runs_per_batch={fit // members * members} (or auto) trains them in batches that fit")
    if "buffer_size" in algo:
        advice.append(f"a smaller algo.buffer_size (it is {algo.buffer_size}) makes each run smaller")
    advice = advice or ["make the networks, algo.num_envs or algo.rollout_length smaller"]
    raise UserError(
        f"{runs} run{'s' * (runs > 1)} need {size_text(needed)} and {size_text(available)} are free; "
        f"{'; '.join(advice)}"
    )


def available_memory() -> int | None:
    """Bytes that the device can still give; None if it does not tell."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(meminfo["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
