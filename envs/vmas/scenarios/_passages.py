"""What the passage tasks share: a wall of boxes with gaps across the middle of the world."""

from __future__ import annotations

from dataclasses import dataclass

import chex
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import State
from shoal.envs.vmas.entities import Box, Landmark
from shoal.envs.vmas.world import World

AGENT_RADIUS, WALL_WIDTH = 0.03333, 0.2
SEMIDIM = 1.0


@dataclass(frozen=True)
class Row:
    """Boxes ``passage 0``, ``passage 1``... side by side along the x axis; those in ``gaps`` only mark a way through.

    A slot is a place in the row, counted from the left; ``start`` is the first box among the world's entities.
    """

    length: float  # of a box
    gaps: tuple[int, ...]
    start: int

    @property
    def number(self) -> int:
        """How many boxes there are."""
        return in_a_row(self.length)

    @property
    def boxes(self) -> list[Landmark]:
        """What the row is made of."""
        shape = Box(self.length, WALL_WIDTH)
        return [
            Landmark(name=f"passage {i}", shape=shape, collide=i not in self.gaps, colour="red")
            for i in range(self.number)
        ]

    @property
    def ways(self) -> np.ndarray:
        """``[G]``: the gaps among the entities."""
        return self.start + np.array(self.gaps)

    @property
    def solid(self) -> np.ndarray:
        """``[number - G]``: the boxes that block the way, among the entities."""
        return self.start + np.setdiff1d(np.arange(self.number), self.gaps)

    def places(self, slots: chex.Array) -> chex.Array:
        """``[...] -> [..., 2]``: where slots are."""
        x = self.length * (slots + 0.5) - (SEMIDIM + AGENT_RADIUS)
        return jnp.stack([x, jnp.zeros_like(x)], axis=-1).astype(jnp.float32)

    def filled(self, slots: chex.Array) -> chex.Array:
        """``[number, 2]``: the places of all boxes with the gaps in ``slots [G]``, the others from left to right."""
        taken = (np.arange(self.number) == slots[:, None]).any(axis=0)
        free = jnp.argsort(taken, stable=True)[: self.number - len(self.gaps)]
        where = np.argsort([*self.ways, *self.solid])
        return self.places(jnp.concatenate([slots, free]))[where]

    def hits(self, world: World, state: State, bodies: np.ndarray) -> chex.Array:
        """``[n]``: how many boxes each of ``bodies [n]`` overlaps."""
        if not len(self.solid):
            return jnp.zeros(len(bodies))
        return world.overlap(state, bodies[:, None], self.solid).sum(axis=1)


def in_a_row(length: float) -> int:
    """How many boxes of a length fit side by side."""
    return int(2 * (SEMIDIM + AGENT_RADIUS) / length)


def middle(number: int, count: int) -> tuple[int, ...]:
    """``count`` of ``number`` boxes, those in the middle."""
    first = number // 2 - count // 2
    return tuple(range(first, first + count))


def above(draw: chex.Array, half: chex.Array, radius: float) -> chex.Array:
    """``[2]``: above the wall, by ``draw [2]`` of U(0, 1), with room for ``half [2]`` and a radius around it."""
    aside = jnp.abs(half)
    x = (SEMIDIM - radius - aside[0]) * (2 * draw[0] - 1)
    low, high = 2 * radius + WALL_WIDTH / 2 + aside[1], SEMIDIM - radius - aside[1]
    return jnp.stack([x, low + (high - low) * draw[1]])


def below(draw: chex.Array, half: chex.Array, radius: float) -> chex.Array:
    """``[2]``: likewise below the wall."""
    return above(draw, half, radius) * np.array([1, -1], np.float32)
