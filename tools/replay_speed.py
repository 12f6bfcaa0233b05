"""Prioritised replay against flashbax's: faults in a million draws, and the time of an update.

    python tools/replay_speed.py          # a minute; results/replay_speed.json

An update is one of MADDPG's: 400 items are added, four batches of 256 are drawn, and their 1,024 priorities are set,
over six orders of magnitude. The first update finds 14,000 items. Programs that are compared take turns, and the best
call counts.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import chex
import flashbax
import jax
import jax.numpy as jnp
import numpy as np
from flashbax.buffers import sum_tree

from shoal.config.words import Parser, number
from shoal.rl.replay import PRIORITY_EXPONENT, SMALLEST_PRIORITY, Replay
from shoal.run.progress import show_table

RECORD = Path(__file__).parent.parent / "results" / "replay_speed.json"
CAPACITIES = (20_000, 100_000)
RUNS = (1, 4)
STORED, ADDED, DRAWS, BATCH = 14_000, 400, 4, 256
MILLION = 977  # updates, of 1,024 draws
TIMED = 50  # updates of one call
HIGHEST = 1.9


class Flashbax:
    """flashbax's prioritised buffer behind the functions of :class:`shoal.rl.replay.Replay` that are used here."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.buffer = flashbax.make_prioritised_item_buffer(
            capacity, 1, BATCH, add_batches=True, priority_exponent=PRIORITY_EXPONENT, device=jax.default_backend()
        )

    def init(self, items: chex.Array) -> Any:
        return self.buffer.init(items[0])

    def add(self, state: Any, items: chex.Array) -> Any:
        return self.buffer.add(state, items)

    def draw(self, state: Any, key: chex.PRNGKey) -> tuple[chex.Array, chex.Array]:
        """Where the items lie and their weights, ``[B]`` each."""
        drawn = self.buffer.sample(state, key)
        weight = 1 / (drawn.probabilities * jnp.where(state.is_full, self.capacity, state.current_index))
        return drawn.indices, weight / weight.max()

    def reprioritise(self, state: Any, index: chex.Array, priority: chex.Array) -> Any:
        return self.buffer.set_priorities(state, index, jnp.maximum(priority, SMALLEST_PRIORITY))

    def priority(self, state: Any, index: int) -> chex.Array:
        """Of one item, to the power of the exponent."""
        return sum_tree.get(state.sum_tree_state, jnp.array([index]))[0]

    def drift(self, state: Any) -> float:
        """How far the root is from the sum of the leaves, as a share of it."""
        tree = state.sum_tree_state
        nodes = np.asarray(tree.nodes, np.float64)
        return nodes[0] / nodes[2**tree.tree_depth - 1 :].sum() - 1


class Ours:
    """:class:`shoal.rl.replay.Replay`, likewise."""

    def __init__(self, capacity: int):
        self.capacity, self.buffer = capacity, Replay("prioritised", capacity, BATCH)
        self.init, self.add = self.buffer.init, self.buffer.add

    def draw(self, state: Any, key: chex.PRNGKey) -> tuple[chex.Array, chex.Array]:
        sample = self.buffer.sample(state, key)
        return sample.index, sample.weight

    def reprioritise(self, state: Any, index: chex.Array, priority: chex.Array) -> Any:
        return self.buffer.reprioritise(state, index, priority, jnp.bool_(True))

    def priority(self, state: Any, index: int) -> chex.Array:
        return state.priority[index]

    def drift(self, state: Any) -> float:
        """No sum is kept between two draws."""
        return 0.0


KINDS: dict[str, Callable[[int], Any]] = {"ours": Ours, "flashbax": Flashbax}


def update(buffer: Any, carry: tuple[Any, chex.Array], key: chex.PRNGKey) -> tuple[tuple[Any, chex.Array], chex.Array]:
    """One update; the carry is the buffer's state and how many items it had, the result counts faults ``[2]``."""
    state, stored = carry
    state = buffer.add(state, jnp.zeros(ADDED))
    stored = jnp.minimum(stored + ADDED, buffer.capacity)
    *draw_keys, key = jax.random.split(key, DRAWS + 1)
    index, weight = map(jnp.concatenate, zip(*(buffer.draw(state, draw_key) for draw_key in draw_keys), strict=True))
    faults = jnp.stack([(index >= stored).sum(), (~jnp.isfinite(weight)).sum()])
    priority = 10.0 ** jax.random.uniform(key, index.shape, minval=-3, maxval=3)
    return (buffer.reprioritise(state, index, priority), stored), faults


def updates(buffer: Any, number: int, carry: Any, key: chex.PRNGKey) -> tuple[Any, chex.Array]:
    """Many of these, and their faults together."""
    carry, faults = jax.lax.scan(partial(update, buffer), carry, jax.random.split(key, number))
    return carry, faults.sum(axis=0)


def filled(buffer: Any) -> tuple[Any, chex.Array]:
    """A buffer with the first items."""
    state = buffer.add(buffer.init(jnp.zeros(STORED)), jnp.zeros(STORED))
    return state, jnp.int32(STORED)


def faults(name: str, count: int = MILLION) -> dict[str, Any]:
    """What goes wrong in ``count`` updates of the smaller buffer."""
    buffer = KINDS[name](CAPACITIES[0])
    first = jax.jit(lambda: filled(buffer))()
    (state, _), (beyond, weights) = jax.jit(partial(updates, buffer, count))(first, jax.random.PRNGKey(0))
    fresh = buffer.add(buffer.reprioritise(first[0], jnp.array([0]), jnp.array([HIGHEST])), jnp.zeros(ADDED))
    new = float(buffer.priority(fresh, STORED)) ** (1 / PRIORITY_EXPONENT)
    return {
        "draws": count * DRAWS * BATCH,
        "draws of empty slots": int(beyond),
        "weights that are no number": int(weights),
        "drift of the sum": buffer.drift(state),
        f"priority of a new item, the highest being {HIGHEST}": round(new, 4),
    }


def microseconds(capacity: int, runs: int, repetitions: int) -> dict[str, float]:
    """Of one update of each kind, ``runs`` side by side."""
    programs, carries, best = {}, {}, dict.fromkeys(KINDS, float("inf"))
    keys = jax.random.split(jax.random.PRNGKey(1), runs)
    for name, kind in KINDS.items():
        buffer = kind(capacity)
        carries[name] = jax.jit(jax.vmap(lambda _, buffer=buffer: filled(buffer)))(jnp.arange(runs))
        programs[name] = jax.jit(jax.vmap(partial(updates, buffer, TIMED)), donate_argnums=0)
    for turn in range(repetitions + 1):
        for name, program in programs.items():
            begin = time.perf_counter()
            carries[name], _ = jax.block_until_ready(program(carries[name], keys))
            if turn:  # the first compiles
                best[name] = min(best[name], time.perf_counter() - begin)
    return {name: round(seconds / TIMED * 1e6, 1) for name, seconds in best.items()}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--repetitions", type=number(int, 1, 1000), default=9)
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    packages = ("jax", "jaxlib", "flashbax")
    record: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "faults": {name: faults(name) for name in KINDS},
        "microseconds": [
            {"items": capacity, "runs": runs} | microseconds(capacity, runs, options.repetitions)
            for capacity in CAPACITIES
            for runs in RUNS
        ],
    }
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    found, times = record["faults"], record["microseconds"]
    rows = [[what, *(f"{found[name][what]:.7g}" for name in KINDS)] for what in found["ours"]]
    show_table([["", *KINDS], *rows], "Faults")
    show_table([list(times[0]), *(list(map(str, row.values())) for row in times)], "Microseconds of an update")


if __name__ == "__main__":
    main()
