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
from shoal.run import cost
from shoal.run.placement import Placement

if TYPE_CHECKING:
    from shoal.run.plan import Plan

SHARE = 0.8  # of what is free: a plan is not exact, and the machine has other things to do


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

    def of(self, runs: int, placement: Placement) -> int:
        """Bytes of ``runs`` (padded) runs at once, in the memory that :meth:`Placement.holders` devices share.

        A core trains its runs one after the other: their rollouts share the place of one.
        """
        mesh = placement.mesh(runs)
        per_device = math.ceil(runs / mesh.shape["runs"])
        at_once = 1 if placement.platform == "cpu" and "envs" not in mesh.shape else per_device
        return placement.holders(runs) * (per_device * self.state + at_once * self.rollout)

    def text(self, runs: int, placement: Placement, available: int | None) -> str:
        """``8 runs: 0.2 MiB parameters, ..., about 30 MiB in all of 12 GiB free``."""
        parts = {"parameters": self.parameters, "optimiser": self.optimiser, "replay": self.replay}
        parts |= {"environments": self.environments}
        held = ", ".join(f"{size_text(runs * size)} {name}" for name, size in parts.items() if size)
        whole, memories = self.of(runs, placement), placement.memories(runs)
        rollout = size_text(whole - math.ceil(runs * self.state / memories))
        free = f" of {size_text(available)} free" if available is not None else ""
        which = "" if memories == 1 else f" on each {'host' if placement.platform == 'cpu' else 'device'}"
        return (
            f"memory for {runs} run{'s' * (runs > 1)}: {held}, about {rollout} rollout; {size_text(whole)}{which}{free}"
        )


def state_need(state: Any, runs: int, rollout: int = 0) -> Need:
    """What one run needs, from the shapes of the state of ``runs``."""

    def total(tree: Any) -> int:
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree)) // runs

    learnt, slot = state.train.learnt, state.train.slot
    optimiser, replay = total(learnt.opt_state), total(slot) - total((slot.envs, slot.key))
    parameters = total((learnt, state.best_policy)) - optimiser
    return Need(parameters, optimiser, replay, total(state) - parameters - optimiser - replay, rollout)


def beside_state(jaxpr: Any) -> int:
    """Bytes that a chunk takes beside its inputs, from its trace: those of one device where it is mapped over them."""
    return int(max((cost.of_equation(eqn).peak for eqn in jaxpr.eqns), default=0))


def fit(runs: int, available: int | None, needed: Callable[[int], int], placement: Placement) -> int:
    """The batch size for ``runs``: as few batches as fit into ``available``, about equally large; at least one run.

    ``needed(n)`` are the bytes of ``n`` runs at once.
    """
    if available is None or needed(placement.padded(runs)) <= SHARE * available:
        return runs
    low, high = 1, runs  # low fits (or nothing does), high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(placement.padded(middle)) <= SHARE * available else (low, middle)
    even = math.ceil(runs / math.ceil(runs / low))
    whole = placement.padded(even)  # a batch that leaves no device idle, if that fits too
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


def available_memory(placement: Placement) -> int | None:
    """Bytes that a device of this process can still give; None if it does not tell."""
    device = next(device for device in placement.devices if device.process_index == jax.process_index())
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(meminfo["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
