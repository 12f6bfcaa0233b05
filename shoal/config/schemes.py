"""The settings of evolution: ``evolve=tournament`` chooses a scheme, and each scheme has fields of its own.

``shoal.evolve.rules`` makes rules of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.config.fields import setting

STARTS = ("recipe", "random")


@dataclass
class Weights:
    """How likely each kind of mutation is, before they are made to sum to one."""

    none: float = setting(0.4, low=0.0)
    architecture: float | None = setting(None, low=0.0)  # none for 0.2 if networks are elastic, else 0
    parameters: float = setting(0.2, low=0.0)
    activation: float = setting(0.0, low=0.0)
    hyper: float = setting(0.2, low=0.0)


@dataclass
class Noise:
    """How parameters mutate: in a random subset of the policy's matrices."""

    share: float = setting(0.1, low=0.0, high=1.0)  # of the entries change
    strong: float = setting(0.05, low=0.0, high=1.0)  # of these get much noise
    reset: float = setting(0.05, low=0.0, high=1.0)  # of these are drawn anew, N(0, 1); the others get a little noise
    much: float = setting(10.0, low=0.0)  # times the entry
    little: float = setting(0.1, low=0.0)  # times the entry
    limit: float = setting(1e6, low=0.0)  # nothing becomes larger


@dataclass
class Growth:
    """How architectures mutate (elastic networks only)."""

    new_layer: float = setting(0.2, low=0.0, high=1.0)  # chance of a layer more or less, rather than units
    min_width: int = setting(32, low=1)  # units that a layer keeps at least
    nodes: tuple[int, ...] = setting((16, 32, 64), low=1)  # how many units come or go


@dataclass
class Plain:
    """No evolution: every run trains by itself."""

    scheme: str = "none"


@dataclass
class Evolution:
    """What all schemes have in common."""

    scheme: str = ""
    rounds: int = setting(20, low=1)  # that make up the training; each ends with an evaluation, which is the fitness
    every: int = setting(1, low=1)  # rounds between two selections
    start: str = setting("random", choices=STARTS)  # members' first values: the recipe's, or drawn (but for one member)
    hypers: Any = setting(None)  # what evolves: {lr: {min: 1e-5, max: 1e-2, log: true}, ...}; none for the usual


@dataclass
class Tournament(Evolution):
    """Every member is a clone of the best of a few, then mutated in one way: AgileRL's evolution."""

    scheme: str = "tournament"
    start: str = setting("recipe", choices=STARTS)
    size: int = setting(2, low=1)  # members that are drawn, with replacement, of which the best is cloned
    elitism: bool = setting(True)  # the best member goes on as it is, in slot 0
    factors: tuple[float, ...] = setting((0.8, 1.2), low=0.0)  # a hyperparameter is multiplied by one of these
    reset_optimiser: bool = setting(True)  # the moments are forgotten when a learning rate changes
    weights: Weights = setting(Weights())
    noise: Noise = setting(Noise())
    architecture: Growth = setting(Growth())


@dataclass
class Explore(Evolution):
    """Losers become clones of winners, whose hyperparameters are then perturbed or drawn anew."""

    factors: tuple[float, ...] = setting((0.8, 1.2), low=0.0)  # a hyperparameter is multiplied by one of these
    resample: float = setting(0.25, low=0.0, high=1.0)  # chance that it is drawn from its range instead
    reset_optimiser: bool = setting(False)  # the moments are forgotten when a learning rate changes


@dataclass
class Pbt(Explore):
    """Population-based training (Jaderberg et al. 2017), with truncation selection."""

    scheme: str = "pbt"
    exploit: float = setting(0.2, low=0.0, high=0.5)  # the worst of this share become clones of the best of this share
    burn_in: int = setting(0, low=0)  # rounds before which nobody is replaced who has not diverged


@dataclass
class MfPbt(Explore):
    """Sub-populations that select at different frequencies, with migrants: MF-PBT (Doulazmi et al. 2025)."""

    scheme: str = "mf_pbt"
    factors: tuple[float, ...] = setting((0.8, 1.25), low=0.0)  # a hyperparameter is multiplied by one of these
    resample: float = setting(0.0, low=0.0, high=1.0)  # chance that it is drawn from its range instead
    frequencies: tuple[int, ...] = setting((1, 5), low=1)  # a sub-population each, selecting every so many times
    winners: float = setting(0.25, low=0.0, high=0.5)  # share of a sub-population that is cloned, and that is replaced
    migrants: float = setting(0.25, low=0.0, high=0.5)  # share that the best of all others may replace


@dataclass
class Halving(Evolution):
    """Random search with asynchronous successive halving: the worst end early, and fresh draws get their slots."""

    scheme: str = "halving"
    reduction: int = setting(3, low=2)  # one in so many passes a rung; rungs are so many times as far apart


SCHEMES: dict[str, type] = {
    "none": Plain,
    "tournament": Tournament,
    "pbt": Pbt,
    "mf_pbt": MfPbt,
    "halving": Halving,
}
