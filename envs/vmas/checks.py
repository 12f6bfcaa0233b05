"""Checks of scenarios' arguments: one clear line that names the argument. Types are checked from the annotations."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from shoal.errors import UserError

NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", type(None): "null"}


def typed(function: Callable, kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs``, each of the type that ``function`` says; a whole number will do for a float, a list for a tuple."""
    hints = typing.get_type_hints(function)
    known = inspect.signature(function).parameters
    return {k: _converted(k, v, hints[k]) if k in known and k in hints else v for k, v in kwargs.items()}


def _converted(name: str, value: Any, hint: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option in (bool, str, type(None)) and isinstance(value, option):
            return value
        if option is int and isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
        if option is float and isinstance(value, Real) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise UserError(f"env.kwargs.{name}={value}: must be finite")
            return float(value)
        items = typing.get_args(option)
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(_converted(name, item, items[0]) for item in value)
    wanted = " or ".join(NAMES.get(option, "a list of numbers") for option in options)
    raise UserError(f"env.kwargs.{name}={value!r}: must be {wanted}")


def count(name: str, value: int, least: int = 1, most: int | None = None) -> None:
    """Refuses a number below ``least`` or above ``most``."""
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise UserError(f"env.kwargs.{name}={value}: must be {bounds}")


def positive(name: str, value: float | None) -> None:
    """Refuses what is not above zero; None is no limit."""
    if value is not None and not value > 0:
        raise UserError(f"env.kwargs.{name}={value:g}: must be above 0")


def at_least(name: str, value: float | None, least: float = 0.0) -> None:
    """Refuses what is below ``least``."""
    if value is not None and not value >= least:
        raise UserError(f"env.kwargs.{name}={value:g}: must be at least {least:g}")
