"""Make a jaxmarl environment from a recipe and the user's keyword arguments, without its greetings and warnings."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from shoal.envs.jaxmarl.family import Family, Inner
from shoal.errors import UserError


def construct(name: str, family: Family, which: Any, kwargs: dict[str, Any]) -> tuple[Inner, int]:
    """The jaxmarl environment and its horizon; a keyword that it does not know is the user's error."""
    _import(name)
    own = _keywords(family.recipe) - {"which"}
    recipe = family.recipe(which, **{key: value for key, value in kwargs.items() if key in own})
    passed_on = _keywords(recipe.construct, *recipe.takes) - own - recipe.sets.keys() - family.hidden
    given = {key: value for key, value in kwargs.items() if key != "continuous"}
    for key in given.keys() - own - passed_on:
        allowed = (own | passed_on | {"horizon"} | ({"reward_shaping"} if family.shaped else set())) - {"continuous"}
        raise UserError(f"env.kwargs.{key}: {name} takes {', '.join(sorted(allowed))}")
    arguments = {key: value for key, value in given.items() if key in passed_on} | recipe.sets
    try:
        with warnings.catch_warnings():
            # jaxmarl and brax advise other environments than the one asked for; JaxNav warns of its own defaults.
            warnings.simplefilter("ignore")
            inner = recipe.construct(**arguments)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        if not given:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"env.kwargs={given}: {name} refuses them: {reason}") from error
    return inner, recipe.horizon(inner) if callable(recipe.horizon) else recipe.horizon


def _keywords(*functions: Callable) -> set[str]:
    parameters = [p for function in functions for p in inspect.signature(function).parameters.values()]
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _import(name: str) -> None:
    try:
        with _silent_import():
            environments = importlib.import_module("jaxmarl.environments")
    except ModuleNotFoundError as error:
        raise UserError(f"env={name}: needs the package {error.name}; pip install jaxmarl") from error
    if name.startswith("mabrax/") and not environments.MABRAX_AVAILABLE:
        raise UserError(f"env={name}: needs the package brax; pip install brax")


@contextlib.contextmanager
def _silent_import() -> Iterator[None]:
    """Swallows jaxmarl's greetings; it sets the streams back to the interpreter's own, so those are swapped as well."""
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__")}
    sink = io.StringIO()
    vars(sys).update(stdout=sink, __stdout__=sink)
    try:
        yield
    finally:
        vars(sys).update(streams)
