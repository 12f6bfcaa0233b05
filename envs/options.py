"""Checks of the options that a user gives to an environment: one line that names the option."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from shoal.errors import UserError


def check_count(name: str, value: Any, least: int) -> int:
    """``value`` if it is a whole number of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise UserError(f"env.kwargs.{name}={value!r}: must be a whole number, at least {least}")
    return int(value)


def check_ratio(name: str, value: Any) -> float:
    """``value`` if it is in [0, 1]."""
    if isinstance(value, str | bool) or not 0 <= value <= 1:
        raise UserError(f"env.kwargs.{name}={value!r}: must be in [0, 1]")
    return float(value)


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """``value`` if it is one of ``allowed``."""
    if value not in allowed:
        raise UserError(f"env.kwargs.{name}={value!r}: must be {' or '.join(map(repr, allowed))}")
    return value
