"""Names to environments: ``make("mpe/simple_spread")``, ``register("my/env", factory)``, ``list_envs()``."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from shoal.envs.base import Env
from shoal.envs.check import check_facts
from shoal.envs.wrappers import TimeLimit
from shoal.errors import UserError

MOST = 1000  # of anything that an environment has
COUNTS = ("n_", "num_", "dim_", "agents", "states")  # how the names of its numbers begin
LARGEST = 2**31 - 1
Factory = Callable[..., Env]
_FACTORIES: dict[str, Factory] = {}
_FAMILIES: dict[str, tuple[Callable[[str], Factory], Callable[[str], str]]] = {}


def register(name: str, factory: Factory) -> None:
    """Make ``factory(**kwargs) -> Env`` a task for every algorithm, under ``family/task``.

    A factory that knows both kinds of action takes ``continuous: bool = False``. Registering a name again
    replaces it, so that a notebook cell can be run twice.
    """
    family, _, task = name.partition("/")
    if not family or not task or "/" in task:
        raise UserError(f"register({name!r}): a name is 'family/task'")
    _FACTORIES[name] = factory


def register_family(family: str, factory_of: Callable[[str], Factory], canonical_task: Callable[[str], str]) -> None:
    """Make every ``family/task`` an environment, by ``factory_of(task)``; ``canonical_task`` gives its one spelling."""
    _FAMILIES[family] = (factory_of, canonical_task)


def canonical(name: str) -> str | None:
    """The one spelling of a name that there is an environment for, or may be in a family without a list; else None."""
    family, _, task = name.partition("/")
    if name in _FACTORIES:
        return name
    return f"{family}/{_FAMILIES[family][1](task)}" if task and family in _FAMILIES else None


def list_envs(family: str | None = None) -> list[str]:
    """The registered names, sorted; only one family's if it is given."""
    return sorted(name for name in _FACTORIES if family is None or name.startswith(f"{family}/"))


def make(name: str, *, horizon: int | None = None, continuous: bool | None = None, **kwargs) -> Env:
    """The environment ``family/task`` with its time limit.

    ``horizon`` replaces the task's own, ``continuous`` chooses the kind of action where a task has both, and the
    other keyword arguments go to the task.
    """
    name = canonical(name) or name
    family, _, task = name.partition("/")
    factory = _FACTORIES.get(name) or (_FAMILIES[family][0](task) if family in _FAMILIES and task else None)
    if factory is None:
        close = difflib.get_close_matches(name, _FACTORIES, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "envs.list() names them all."
        yours = "If it is yours, import the module that registers it (import=<file.py>)"
        raise UserError(f"env={name}: no such environment; {hint} {yours}")
    parameters = inspect.signature(factory).parameters
    if continuous is not None and "continuous" in parameters:
        kwargs["continuous"] = continuous
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        unknown = [key for key in kwargs if key not in parameters]
        if unknown:
            allowed = ", ".join(sorted({*parameters, "horizon"} - {"continuous"}))
            raise UserError(f"env.kwargs.{unknown[0]}: {name} takes {allowed}")
    _check_sizes(kwargs)
    env = factory(**kwargs)
    check_facts(env, name)
    env.name = name
    if continuous is not None and continuous != (type(env.action_space).__name__ == "Continuous"):
        kind = type(env.action_space).__name__.lower()
        raise UserError(f"env.kwargs.continuous={continuous}: {name} has {kind} actions only")
    if horizon is not None:
        number = isinstance(horizon, Real) and not isinstance(horizon, bool) and math.isfinite(horizon)
        if not number or int(horizon) != horizon or not 1 <= horizon <= LARGEST:
            raise UserError(
                f"env.kwargs.horizon={horizon}: must be a whole number of steps, at least 1, at most {LARGEST}"
            )
        env.horizon = int(horizon)
    return TimeLimit(env)


def _check_sizes(kwargs: dict[str, Any]) -> None:
    """Refuse numbers of things with which making an environment would not end."""
    for name, value in kwargs.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        most = MOST if name.startswith(COUNTS) else LARGEST if isinstance(value, int) else math.inf
        if math.isfinite(value) and value > most:
            raise UserError(f"env.kwargs.{name}={value}: must be at most {most}")
