"""What a program will take, told from its trace before anything is compiled: products, elements, operations, bytes.

The trace (a jaxpr) is walked with every loop's length; a ``cond`` counts as its dearest branch, a ``while`` whose
length nobody knows as one turn. Seconds follow from three constants of this machine's kind (:class:`Rates`), fitted by
``tools/calibrate.py``; they are for plans, where a factor of two is good enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

NEVER_IN_PLACE = ("dot_general", "conv_general_dilated", "sort", "gather", "transpose")


class Cost(NamedTuple):
    """Of one call."""

    flops: float = 0.0  # of matrix products and convolutions
    elements: float = 0.0  # numbers written by everything else
    operations: float = 0.0  # operations executed, loops unrolled
    peak: float = 0.0  # bytes alive at once, inputs and outputs included


@dataclass(frozen=True)
class Rates:
    """Seconds per unit on one core."""

    flop: float = 1 / 88e9
    element: float = 1 / 6.4e9
    operation: float = 0.0  # the fit found none: what is written counts
    compile: float = 2.4e-3  # per equation of the trace

    def seconds(self, cost: Cost) -> float:
        return cost.flops * self.flop + cost.elements * self.element + cost.operations * self.operation


def of(function: Callable, *arguments: Any) -> Cost:
    """The cost of ``function(*arguments)``; arguments may be shapes."""
    return walk(jax.make_jaxpr(function)(*arguments).jaxpr)


def walk(jaxpr: Any) -> Cost:
    """The cost of a jaxpr: sums over its equations, and the most that is alive at once.

    A number dies at its last use, and what is written there may take its place: inputs count as donated.
    """
    last_use = {var: i for i, eqn in enumerate(jaxpr.eqns) for var in eqn.invars if isinstance(var, core.Var)}
    last_use |= {var: len(jaxpr.eqns) for var in jaxpr.outvars if isinstance(var, core.Var)}
    alive = peak = float(sum(_bytes(var) for var in {*jaxpr.invars, *jaxpr.constvars}))
    flops = elements = operations = 0.0
    for i, eqn in enumerate(jaxpr.eqns):
        one = of_equation(eqn)
        flops, elements, operations = flops + one.flops, elements + one.elements, operations + one.operations
        used = {var for var in eqn.invars if isinstance(var, core.Var)}
        dying = sum(_bytes(var) for var in used if last_use[var] == i)
        written = sum(_bytes(var) for var in eqn.outvars)
        in_place = 0.0 if eqn.primitive.name in NEVER_IN_PLACE else min(dying, written)
        peak = max(peak, alive + written - in_place + one.peak)
        alive += sum(_bytes(var) for var in eqn.outvars if var in last_use) - dying
    return Cost(flops, elements, operations, peak)


def of_equation(eqn: Any) -> Cost:
    """The cost of one equation; ``peak`` is what it needs beyond its inputs and outputs."""
    inner = [(walk(jaxpr), sum(_bytes(var) for var in jaxpr.invars)) for jaxpr in inner_jaxprs(eqn)]
    if not inner:
        return _plain(eqn)
    beyond = max(max(0.0, cost.peak - given) for cost, given in inner)
    columns = zip(*(cost[:3] for cost, _ in inner), strict=True)
    if eqn.primitive.name == "cond":
        flops, elements, operations = map(max, columns)
    else:
        turns = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        flops, elements, operations = (turns * sum(column) for column in columns)
    return Cost(flops, elements, operations, beyond)


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """The jaxprs that an equation calls."""
    for name, value in eqn.params.items():
        if eqn.primitive.name.startswith("custom_vjp") and name in ("fwd_jaxpr_thunk", "bwd"):
            continue  # not what a call without a gradient does
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


def equations(jaxpr: Any) -> int:
    """How many equations a jaxpr has, inner ones included, each once: what a compiler has to read."""
    return sum(1 + sum(equations(inner) for inner in inner_jaxprs(eqn)) for eqn in jaxpr.eqns)


def _plain(eqn: Any) -> Cost:
    written = float(sum(math.prod(var.aval.shape) for var in eqn.outvars if hasattr(var.aval, "shape")))
    name = eqn.primitive.name
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return Cost(flops=2.0 * written * math.prod(shape[axis] for axis in contracted), operations=1.0)
    if name == "conv_general_dilated":
        kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
        return Cost(flops=2.0 * written * math.prod(kernel) / kernel[spec[0]], operations=1.0)
    if name in ("threefry2x32", "random_bits", "random_split"):
        return Cost(elements=8.0 * written, operations=1.0)  # twenty rounds on each word
    read = max((math.prod(v.aval.shape) for v in eqn.invars if hasattr(v.aval, "shape")), default=0)
    if name.startswith(("reduce", "sort", "cum", "argmax", "argmin")):
        return Cost(elements=float(read), operations=1.0)
    if name in ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "slice", "copy"):
        return Cost()  # fused away, or a view
    return Cost(elements=written, operations=1.0)


def _bytes(var: Any) -> float:
    aval = var.aval
    if not hasattr(aval, "shape"):
        return 0.0
    try:
        size = np.dtype(aval.dtype).itemsize
    except TypeError:  # a key of JAX's new kind
        size = 8
    return float(math.prod(aval.shape) * size)
