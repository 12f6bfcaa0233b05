"""VMAS, the vectorised multi-agent simulator, natively in JAX: ``vmas/balance`` and so on."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

from shoal.envs.registry import Factory, register
from shoal.envs.vmas import scenarios
from shoal.envs.vmas.base import Scenario, State
from shoal.envs.vmas.checks import typed

__all__ = ["Scenario", "State", "register_all", "task"]


def task(scenario: type[Scenario]) -> Factory:
    """What ``shoal.envs.register`` takes: the scenario with its arguments checked, and with any kind of action."""
    options = scenario.options_type

    def make(continuous: bool = True, multi_discrete: bool = False, **kwargs: Any) -> Scenario:
        typed(make, {"continuous": continuous, "multi_discrete": multi_discrete})
        given = typed(options or scenario.__init__, kwargs)
        env = scenario(options(**given)) if options else scenario(**given)
        env.choose_actions(continuous=continuous and not multi_discrete, multi_discrete=multi_discrete)
        return env

    own = inspect.signature(make).parameters
    parameters = [*inspect.signature(options or scenario).parameters.values(), own["continuous"], own["multi_discrete"]]
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    make.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return make


def register_all() -> None:
    """Make every scenario of the folder known as ``vmas/<file>``: a file holds one, with its name in camel case.

    Files whose name starts with an underscore are what scenarios share.
    """
    for module in (m for m in pkgutil.iter_modules(scenarios.__path__) if not m.name.startswith("_")):
        found = importlib.import_module(f"{scenarios.__name__}.{module.name}")
        register(f"vmas/{module.name}", task(getattr(found, "".join(map(str.capitalize, module.name.split("_"))))))
