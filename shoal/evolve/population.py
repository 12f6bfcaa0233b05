"""The members of a population, and how each came about.

The members are the runs of the run axis. Shapes: M members.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import chex
from flax import struct


class Kind(enum.IntEnum):
    """How a member came about."""

    START = 0  # at the beginning
    KEPT = 1  # the same as before
    ELITE = 2  # a clone of the best, as it was
    NONE = 3  # a clone, not mutated
    ARCHITECTURE = 4
    PARAMETERS = 5
    ACTIVATION = 6
    HYPER = 7  # one hyperparameter
    EXPLORE = 8  # a clone whose hyperparameters all were perturbed or drawn
    MIGRANT = 9  # a clone from another sub-population
    FRESH = 10  # begins anew, with hyperparameters that were drawn; its slot's training state is to be initialised


MUTATIONS = (Kind.NONE, Kind.ARCHITECTURE, Kind.PARAMETERS, Kind.ACTIVATION, Kind.HYPER)  # as Rules.weights
NOBODY = -1  # the parent of a fresh member; the hyperparameter that changed if it was not one


class Trial(struct.PyTreeNode):
    """What successive halving remembers of a slot."""

    age: chex.Array  # [M] int32, selections since its member was fresh
    scores: chex.Array  # [M, rungs] of the last member of the slot that came to each rung; NaN if none has


class Population(struct.PyTreeNode):
    """The members of one population."""

    learnt: Any  # [M, ...] of the algorithm's state (shoal.algorithm.TrainState): what a clone copies
    hypers: Any  # [M]
    diverged: chex.Array  # [M] bool
    generation: chex.Array  # [M] int32, selections before this one; the same for all
    parent: chex.Array  # [M] int32, the member that it is a clone of
    kind: chex.Array  # [M] int32, a Kind
    changed: chex.Array  # [M] int32, the hyperparameter that was mutated, as an index into Rules.ranges
    memory: Trial | None  # of the scheme


class Offspring(NamedTuple):
    """The next generation, before it is made."""

    parent: chex.Array  # [M] int32, whom it learns from
    donor: chex.Array  # [M] int32, whose hyperparameters it has
    kind: chex.Array  # [M] int32
