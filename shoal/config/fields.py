"""The fields of a configuration: defaults, limits and choices, and the check of a value against them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import UserError

INT32, FLOAT32 = 2**31 - 1, 3.4028235e38  # the largest numbers that a compiled program holds
Choices = tuple[str, ...] | Callable[[], tuple[str, ...]]


def setting(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Choices = (),
    words: tuple[str, ...] = (),
    divided: str = "",
) -> Any:
    """A field of a static configuration, and what it may be; a dataclass as ``default`` has fields of its own.

    ``words`` may stand in a number's place. A number that several learners of a run have together is ``divided``
    between them, ``evenly`` (they must divide it) or rounded ``up``.
    """
    metadata = {"low": low, "high": high, "choices": choices, "words": words, "divided": divided}
    if isinstance(default, tuple) or dataclasses.is_dataclass(default):  # OmegaConf reads lists into tuples
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def hyper(default: float, *, low: float | None = None, high: float | None = None) -> Any:
    """A traced number: it may differ between the runs of one program, and ``sweep.<name>`` varies it."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "choices": ()})


def limits(field: dataclasses.Field) -> dict[str, Any]:
    found = {key: field.metadata.get(key) for key in ("low", "high")} | {"words": field.metadata.get("words", ())}
    choices = field.metadata.get("choices", ())
    return found | {"choices": choices() if callable(choices) else choices}


def validate(prefix: str, value: Any, field: dataclasses.Field) -> None:
    """Raise a :class:`UserError` if ``value`` is not one that ``field`` may have."""
    allowed = limits(field)
    name = f"{prefix}{field.name}"
    if allowed["choices"] and value not in allowed["choices"]:
        raise UserError(f"{name}={value}: must be one of {', '.join(allowed['choices'])}")
    if allowed["words"] and isinstance(value, str) and value not in allowed["words"]:
        raise UserError(f"{name}={value}: must be a whole number or {' or '.join(allowed['words'])}")
    for number in value if isinstance(value, list | tuple) else [value]:
        if field.type in ("tuple[int, ...]", "tuple[float, ...]") and (
            isinstance(number, bool) or not isinstance(number, int | float)
        ):
            raise UserError(f"{name}={list(value)}: must be a list of numbers, [a,b]")
        if isinstance(number, float) and not math.isfinite(number):
            raise UserError(f"{name}={number}: must be a finite number")
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        low, high = allowed["low"], allowed["high"]
        most = INT32 if isinstance(number, int) else FLOAT32  # what compiled programs hold
        if low is not None and high is None and number < low:
            raise UserError(f"{name}={_short(number)}: must be at least {_short(low)}")
        low, high = -most if low is None else low, most if high is None else high
        if not low <= number <= high:
            raise UserError(f"{name}={_short(number)}: must be in [{_short(low)}, {_short(high)}]")


def _short(number: float) -> str:
    """A number to be read: whole ones in full, unless they are very long."""
    if isinstance(number, float):
        return f"{number:g}"
    return str(number) if abs(number) < 10**20 else f"{str(number)[:10]}... ({len(str(number))} digits)"


def validate_fields(prefix: str, node: Any, schema: type) -> None:
    """:func:`validate` every field of a dataclass, given its values."""
    for field in dataclasses.fields(schema):
        value = node.get(field.name) if isinstance(node, Mapping) else getattr(node, field.name)
        validate(prefix, value, field)
