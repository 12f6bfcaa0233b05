"""The types of SMAX's units, the maps, and what a unit's type decides.

Shapes: U units, E environments, K types of units.
"""

from __future__ import annotations

from collections.abc import Sequence

import chex
import numpy as np
from flax import struct

from shoal.errors import UserError

TYPES = "mMsZzh"  # marine, marauder, stalker, zealot, zergling, hydralisk
MAPS: dict[str, tuple[str, str] | int] = {  # the types of both teams, or how many units of random types each
    "3m": ("m" * 3, "m" * 3),
    "8m": ("m" * 8, "m" * 8),
    "25m": ("m" * 25, "m" * 25),
    "5m_vs_6m": ("m" * 5, "m" * 6),
    "10m_vs_11m": ("m" * 10, "m" * 11),
    "27m_vs_30m": ("m" * 27, "m" * 30),
    "2s3z": ("ssZZZ", "ssZZZ"),
    "3s5z": ("sssZZZZZ", "sssZZZZZ"),
    "3s5z_vs_3s6z": ("sssZZZZZ", "sssZZZZZZ"),
    "3s_vs_5z": ("sss", "ZZZZZ"),
    "6h_vs_8z": ("hhhhhh", "ZZZZZZZZ"),
    "smacv2_5_units": 5,
    "smacv2_10_units": 10,
    "smacv2_20_units": 20,
}


class Stats(struct.PyTreeNode):
    """What a unit's type decides: ``[U, 1]`` on a map of given types, else ``[U, E]``."""

    velocities: chex.Array
    attacks: chex.Array
    attack_ranges: chex.Array
    sight_ranges: chex.Array
    radiuses: chex.Array
    health: chex.Array
    weapon_cooldowns: chex.Array


def per_type(name: str, values: Sequence[float]) -> np.ndarray:
    """``[K]``, if there are so many."""
    if np.shape(values) != (len(TYPES),):
        raise UserError(f"env.kwargs.{name}={values}: must be {len(TYPES)} numbers, one for each type of unit")
    return np.asarray(values, np.float32)
