"""The rules of an evolution: its scheme's settings, checked against the algorithm that evolves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig, OmegaConf

from shoal.algorithm import Algorithm, Hypers
from shoal.config.fields import FLOAT32
from shoal.config.schemes import SCHEMES, MfPbt, Plain, Tournament, Weights
from shoal.config.settings import build
from shoal.errors import UserError
from shoal.nn.elastic import Settings as Architecture

POPULATION = 32  # members, if none are said
WIDEST = 10.0  # a range that is not given reaches from a tenth of the recipe's value to ten times it


class Range(NamedTuple):
    """Where a hyperparameter may go."""

    low: float
    high: float
    log: bool  # draws are uniform in its logarithm


@dataclass(frozen=True)
class Rules:
    """Everything that the evolution of a training needs to know, fixed when its program is compiled."""

    scheme: Any  # an Evolution
    ranges: dict[str, Range]
    algorithm: Algorithm
    population: int  # M
    weights: tuple[float, ...] = ()  # tournament: of none, architecture, parameters, activation, hyper; they sum to one

    @property
    def growth(self) -> Architecture:
        return Architecture(**dataclasses.asdict(self.scheme.architecture))


def parse(node: DictConfig) -> Any:
    """The settings of the chosen scheme, validated; None without evolution."""
    schema = SCHEMES[node.scheme]
    return None if schema is Plain else build(node, "evolve.", schema)


def make_rules(
    scheme: Any, population: int | None, algorithm: Algorithm, hypers: Hypers, elastic: bool, mutable: bool
) -> Rules:
    """Check a scheme against the algorithm: which hyperparameters evolve, and which mutations are possible."""
    members = POPULATION if population is None else population
    least = 2
    if isinstance(scheme, MfPbt):
        subs = len(scheme.frequencies)
        least = 2 * subs
        if subs < 2:
            raise UserError(f"evolve.frequencies={list(scheme.frequencies)}: needs two sub-populations at least")
        if members % subs:
            raise UserError(f"population={members}: must be a multiple of the {subs} evolve.frequencies")
    if members < least:
        raise UserError(f"population={members}: evolve={scheme.scheme} needs {least} members at least")
    factors = getattr(scheme, "factors", (1.0,))
    if not factors:
        raise UserError("evolve.factors=[]: needs a factor at least")
    if min(factors) <= 0:
        raise UserError(f"evolve.factors={list(factors)}: each must be more than 0")
    if isinstance(scheme, Tournament) and not scheme.architecture.nodes:
        raise UserError("evolve.architecture.nodes=[]: needs a number of units at least")
    ranges = make_ranges(scheme.hypers, hypers, algorithm.evolving)
    weights: tuple[float, ...] = ()
    if isinstance(scheme, Tournament):
        weights = _weights(scheme.weights, elastic, mutable, bool(ranges))
    elif not ranges:
        raise UserError(f"evolve={scheme.scheme}: no hyperparameter evolves; evolve.hypers={{lr: {{min: a, max: b}}}}")
    return Rules(scheme, ranges, algorithm, members, weights)


def _weights(weights: Weights, elastic: bool, mutable: bool, hypers: bool) -> tuple[float, ...]:
    """Chances of the kinds of mutation, in their order."""
    if weights.architecture and not elastic:
        raise UserError(
            f"evolve.weights.architecture={weights.architecture:g}: no network is elastic; "
            "algo.actor.elastic=true (or algo.q.elastic) makes it one"
        )
    if weights.activation and not mutable:
        raise UserError(
            f"evolve.weights.activation={weights.activation:g}: no activation can change; "
            "algo.actor.elastic=true algo.actor.mutable_activation=true lets it"
        )
    if weights.hyper and not hypers:
        raise UserError(f"evolve.weights.hyper={weights.hyper:g}: no hyperparameter evolves; evolve.hypers names some")
    chances = dataclasses.asdict(weights)
    if weights.architecture is None:
        chances["architecture"] = 0.2 if elastic else 0.0
    total = sum(chances.values())
    if not total:
        raise UserError("evolve.weights: all are 0; one at least must be more")
    return tuple(chance / total for chance in chances.values())


def make_ranges(given: Any, hypers: Hypers, usual: Sequence[str]) -> dict[str, Range]:
    """The range of each hyperparameter that evolves: those ``given``, or the ``usual`` ones around the recipe's values.

    ``given`` is ``{name: {min, max, log}}``, or names alone, in a list or as ``{name: null}``.
    """
    given = OmegaConf.to_container(given) if OmegaConf.is_config(given) else given
    fields = {field.name: field for field in dataclasses.fields(hypers)}
    if given is None:  # a recipe that has switched one of the usual ones off (0) keeps it off
        given = [name for name in usual if getattr(hypers, name) > 0]
    if isinstance(given, str):
        given = [given]
    if isinstance(given, list | tuple):
        given = dict.fromkeys(given)
    if not isinstance(given, Mapping):
        raise UserError(f"evolve.hypers={given}: must be names, or ranges: {{lr: {{min: 1e-5, max: 1e-2, log: true}}}}")
    ranges = {}
    for name, value in given.items():
        if name not in fields:
            raise UserError(f"evolve.hypers.{name}: not a hyperparameter; these are: {', '.join(fields)}")
        limits = fields[name].metadata
        low, high = (-math.inf if limits["low"] is None else limits["low"], limits["high"])
        high = math.inf if high is None else high
        if value is None:
            ranges[name] = _around(name, float(getattr(hypers, name)), low, high)
            continue
        ranges[name] = _range(name, value)
        for end in (ranges[name].low, ranges[name].high):
            if not low <= end <= high:
                raise UserError(f"evolve.hypers.{name}={end:g}: must be in [{low:g}, {high:g}]")
    return ranges


def _around(name: str, value: float, low: float, high: float) -> Range:
    if value <= 0:
        raise UserError(f"evolve.hypers.{name}: is {value:g} in this recipe, so it needs a range: {{min: a, max: b}}")
    return Range(max(value / WIDEST, low), min(value * WIDEST, high), True)


def _range(name: str, value: Any) -> Range:
    example = "{min: a, max: b} or {min: a, max: b, log: true}"
    if not isinstance(value, Mapping) or not {"min", "max"} <= set(value) <= {"min", "max", "log"}:
        raise UserError(f"evolve.hypers.{name}={value}: a range is {example}")
    try:
        low, high, log = float(value["min"]), float(value["max"]), value.get("log", False)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"evolve.hypers.{name}={dict(value)}: a range is {example}, of numbers") from error
    if not isinstance(log, bool):
        raise UserError(f"evolve.hypers.{name}.log={log}: must be true or false")
    if not -FLOAT32 <= low < high <= FLOAT32 or (log and low <= 0):
        what = f"needs {-FLOAT32:g} <= min < max <= {FLOAT32:g}{', min > 0 with log' if log else ''}"
        raise UserError(f"evolve.hypers.{name}={dict(value)}: {what}")
    return Range(low, high, log)


def first_values(rules: Rules, hypers: Hypers, seeds: Sequence[int]) -> Hypers:
    """The hyperparameters that the populations start with, ``[S * M]``; a population's depend on its seed alone.

    A recipe's value outside its range begins at the nearest end.
    """
    members = rules.population
    names = [field.name for field in dataclasses.fields(hypers)]
    columns = {name: np.full((len(seeds), members), getattr(hypers, name), np.float32) for name in names}
    for name, (low, high, _) in rules.ranges.items():
        columns[name] = np.clip(columns[name], np.float32(low), np.float32(high))
    if rules.scheme.start == "random":
        for row, seed in enumerate(seeds):
            rng = np.random.default_rng([seed, members])
            for name, (low, high, log) in rules.ranges.items():
                draws = rng.uniform(np.log(low), np.log(high), members) if log else rng.uniform(low, high, members)
                columns[name][row, 1:] = (np.exp(draws) if log else draws)[1:]  # the first keeps the recipe's
    return type(hypers)(**{name: column.ravel() for name, column in columns.items()})
