"""The compiled programs of a batch of runs."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import chex
import jax
import numpy as np
from omegaconf import DictConfig

from shoal.algorithm import Hypers
from shoal.evolve import rounds
from shoal.nn import networks
from shoal.run import hosts, memory
from shoal.run.plan import Plan, chunk_of
from shoal.run.progress import Display
from shoal.run.state import first_state

# The first states are computed once: there is nothing to gain from optimising that program.
RUN_ONCE: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# Level 3, the default, took longer to compile here and the result was no faster.
RUN_LONG: dict[str, Any] = {
    "xla_backend_optimization_level": 2,
    "xla_cpu_prefer_vector_width": 512,  # where a CPU has such registers; LLVM would take half of them
}
WORTH_SAYING = 2**28  # bytes: what a training takes is told from here on, to a terminal always


@contextmanager
def in_precision(precision: DictConfig) -> Iterator[None]:
    """What networks compute in, and how exactly matrices are multiplied, while a training is planned and runs."""
    before = networks.compute_in(precision.activations)
    try:
        with jax.default_matmul_precision(None if precision.matmul == "default" else precision.matmul):
            yield
    finally:
        networks.compute_in(before)


@dataclasses.dataclass
class Programs:
    """The compiled functions of a batch; calling them can never compile again."""

    start: Callable
    chunk: Callable
    state: Any  # the shapes of a batch's state
    seconds: float  # what compiling took
    memory: int  # bytes that a batch takes


@contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's garbage collector, which takes a fifth of the time that tracing does and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@no_collection()
def compile_programs(plan: Plan, display: Display) -> Programs:
    """Compile the start and the chunk for one batch of runs, and refuse what will not fit in memory."""
    begin, placement = time.perf_counter(), plan.placement
    words, hypers = placement.put(plan.runs.select(np.zeros(plan.width, int)), plan.width)

    def first(words: chex.Array, hypers: Hypers):
        key = plan.key(words)
        state = first_state(plan.algorithm, key, hypers)
        return state if plan.rules is None else rounds.start(state, key, hypers, plan.rules)

    def evolving(state: rounds.Evolving, _: Hypers):
        assert plan.rules is not None
        return rounds.train_rounds(
            state, chunk_of(plan), plan.rules, plan.batch_size, plan.rounds_per_chunk, placement, plan.objective
        )

    if plan.width > plan.batch_size:
        devices, more = placement.mesh(plan.batch_size).size, plan.width - plan.batch_size
        display.line(f"{plan.batch_size} runs on {devices} devices: {more} more train along, and are dropped")
    display.compiling("the training")
    traced = jax.jit(placement.over_runs(first, plan.width)).trace(words, hypers)
    shapes = placement.shapes(traced.out_info, plan.width)
    available = hosts.least(memory.available_memory(placement))
    # The least that it can be, known before anything is compiled.
    memory.check_memory(memory.state_need(shapes, plan.width).of(plan.width, placement), available, plan)
    chunk = placement.over_runs(chunk_of(plan), plan.width, in_place=True) if plan.rules is None else evolving
    chunk_traced = jax.jit(chunk, donate_argnums=0).trace(shapes, hypers)
    chunk_lowered = chunk_traced.lower()
    with ThreadPoolExecutor() as pool:  # XLA leaves the interpreter alone: the small program hides behind the large
        chunk_compiling = pool.submit(chunk_lowered.compile, RUN_LONG)
        need = memory.state_need(shapes, plan.width, memory.beside_state(chunk_traced.jaxpr.jaxpr))
        if display.console.is_terminal or need.of(plan.width, placement) > WORTH_SAYING:
            display.line(need.text(plan.width, placement, available))
        start_compiled = traced.lower().compile(RUN_ONCE)
        chunk_compiled = chunk_compiling.result()
    taken = memory_of(chunk_compiled, placement.holders(plan.width))
    memory.check_memory(taken, available, plan)
    if taken > WORTH_SAYING:
        display.line(f"{plan.width} runs at once take {memory.size_text(taken)}")
    return Programs(start_compiled, chunk_compiled, shapes, time.perf_counter() - begin, taken)


def memory_of(program: Any, holders: int) -> int:
    """Bytes that a compiled program will have in use at once, in a memory that ``holders`` devices share."""
    sizes = program.memory_analysis()
    if sizes is None:
        return 0
    taken = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return holders * (taken - sizes.alias_size_in_bytes)
