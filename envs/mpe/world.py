"""The physics of MPE on stacked arrays, and the geometry that observations and rewards are made of.

Shapes: ``A`` agents, ``L`` landmarks, ``C`` the size of a message. Landmarks never move, so they carry no velocity.

Written for the compiler: on a CPU, XLA turns a reduction over an axis of two or three elements into a slow loop, and a
gather into another kernel. Short static axes are therefore unrolled (``total``, ``least``), coordinates are treated
as ``x`` and ``y``, and pairs come from slices. For the same reason a pair of entities is computed once, for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import chex
import jax.numpy as jnp
import numpy as np

DT = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 0.001  # how far apart the push of a contact begins


class World:
    """The static facts of a world's entities, agents before landmarks; a single number stands for all of them."""

    def __init__(
        self,
        agents: int,
        radius: np.ndarray,  # [A + L]
        *,
        solid: int = 0,  # how many entities collide: the first ones, all the agents among them, or none
        movable: np.ndarray | bool = True,  # [A]
        accel: np.ndarray | float = 5.0,  # [A] the force of a full action
        max_speed: np.ndarray | float = np.inf,  # [A]
    ):
        landmarks = len(radius) - agents
        if solid and not agents <= solid <= agents + landmarks:
            raise ValueError(f"solid={solid}: none, or all {agents} agents and some of {landmarks} landmarks")
        self.agents, self.landmarks, self.solid = agents, landmarks, solid
        self.radius = np.asarray(radius, np.float32)
        self.movable = np.broadcast_to(np.asarray(movable, bool), (agents,))
        self.accel, self.max_speed = (
            np.broadcast_to(np.asarray(value, np.float32), (agents,)) for value in (accel, max_speed)
        )
        # every colliding pair (i, j) once, ordered as `_pair_differences` orders them
        pairs = [(i, j) for i in range(min(agents, solid)) for j in range(i + 1, solid)]
        self.touch = np.array([self.radius[i] + self.radius[j] for i, j in pairs], np.float32)  # [P]
        pairs_of = [[k for k, pair in enumerate(pairs) if i in pair] for i in range(agents)]
        signs = [[1.0 if pairs[k][0] == i else -1.0 for k in pairs_of[i]] for i in range(agents)]
        self.pairs_of = np.array(pairs_of, np.int32)  # [A, pairs of an agent]
        self.pair_signs = np.array(signs, np.float32) * self.movable[:, None]

    def move(
        self, pos: chex.Array, vel: chex.Array, landmarks: chex.Array, thrust: chex.Array
    ) -> tuple[chex.Array, chex.Array]:
        """Positions and velocities ``[A, 2]`` after one step under ``thrust``, the agents' own force ``[A, 2]``."""
        force = thrust + self.contact_force(pos, landmarks) if self.solid > 1 else thrust
        next_vel = vel * (1 - DAMPING) + force * DT
        if np.any(np.isfinite(self.max_speed)):
            speed = jnp.sqrt(next_vel[:, 0] ** 2 + next_vel[:, 1] ** 2)  # [A]
            # divided, not multiplied: XLA recomputes a product in every observation that it enters, a quotient never
            next_vel = next_vel / jnp.maximum(speed / self.max_speed, 1)[:, None]
        return pos + vel * DT, next_vel

    def contact_force(self, pos: chex.Array, landmarks: chex.Array) -> chex.Array:
        """``[A, 2]``: what the solid entities that touch an agent push it away with."""
        entities = jnp.concatenate([pos, landmarks[: self.solid - self.agents]]) if self.solid > self.agents else pos
        dx = self._pair_differences(entities[:, 0])  # [P]
        dy = self._pair_differences(entities[:, 1])
        dist = jnp.sqrt(jnp.maximum(dx * dx + dy * dy, 1e-12))  # two entities in one place push nowhere, not NaN
        overlap = (self.touch - dist) / CONTACT_MARGIN
        softplus = jnp.maximum(overlap, jnp.log(1 + jnp.exp(jnp.minimum(overlap, 30))))
        push = CONTACT_FORCE * CONTACT_MARGIN * softplus / dist
        return jnp.stack([self._sum_per_agent(push * dx), self._sum_per_agent(push * dy)], axis=-1)

    def _pair_differences(self, x: chex.Array) -> chex.Array:
        """``[P]``: ``x[i] - x[j]`` of every colliding pair."""
        rows = min(self.agents, self.solid - 1)
        return jnp.concatenate([x[i : i + 1] - x[i + 1 :] for i in range(rows)])

    def _sum_per_agent(self, x: chex.Array) -> chex.Array:
        """``[A]``: the sum of a quantity ``[P]`` that acts on the first of a pair and, negated, on the second."""
        terms = [sign * x[pair] for sign, pair in zip(self.pair_signs.T, self.pairs_of.T, strict=True)]
        return reduce(jnp.add, terms)


def unstack(x: chex.Array, axis: int) -> list[chex.Array]:
    """The slices of ``x`` along a short static axis."""
    return [x[(slice(None),) * (axis % x.ndim) + (i,)] for i in range(x.shape[axis])]


def total(x: chex.Array, axis: int = -1) -> chex.Array:
    """The sum over a short static axis, unrolled."""
    return reduce(jnp.add, unstack(x, axis))


def least(x: chex.Array, axis: int = -1) -> chex.Array:
    """The minimum over a short static axis, unrolled."""
    return reduce(jnp.minimum, unstack(x, axis))


def squared_distances(a: chex.Array, b: chex.Array) -> chex.Array:
    """``[m, n]``: from each of ``a [m, 2]`` to each of ``b [n, 2]``."""
    return (a[:, None, 0] - b[:, 0]) ** 2 + (a[:, None, 1] - b[:, 1]) ** 2


def distance(a: chex.Array, b: chex.Array) -> chex.Array:
    """The distance between points ``[..., 2]``."""
    delta = a - b
    return jnp.sqrt(delta[..., 0] ** 2 + delta[..., 1] ** 2)


def touching(a: chex.Array, radius_a: Iterable[float], b: chex.Array, radius_b: Iterable[float]) -> chex.Array:
    """``[m, n]`` bool: which discs around ``a [m, 2]`` overlap which around ``b [n, 2]``."""
    reach = np.asarray(radius_a, np.float32)[:, None] + np.asarray(radius_b, np.float32)
    return squared_distances(a, b) < reach**2


def pick(rows: chex.Array, index: chex.Array) -> chex.Array:
    """``rows[index]``, ``[n, d] -> [..., d]``, for a traced index into a short axis: compares instead of gathering."""
    chosen = index[..., None] == np.arange(rows.shape[0])
    return total(jnp.where(chosen[..., None], rows, 0), axis=-2)


def without_own(matrix: chex.Array) -> chex.Array:
    """``[A, A, ...] -> [A, A - 1, ...]``: each agent's row without its own entry, by reshapes alone."""
    n, _, *rest = matrix.shape
    behind_diagonal = matrix.reshape(n * n, *rest)[1:].reshape(n - 1, n + 1, *rest)
    return behind_diagonal[:, :-1].reshape(n, n - 1, *rest)


def others(rows: chex.Array) -> chex.Array:
    """``[A, d] -> [A, (A - 1) d]``: for each agent the rows of all the others, in order."""
    return _surroundings(rows, rows[:0])


def relative(pos: chex.Array, landmarks: chex.Array) -> chex.Array:
    """``[A, 2 (L + A - 1)]``: where each agent sees the landmarks, then the other agents."""
    seen = _surroundings(pos, landmarks)
    return seen - jnp.tile(pos, (1, seen.shape[1] // 2))


def _surroundings(rows: chex.Array, shared: chex.Array) -> chex.Array:
    """``[A, L d + (A - 1) d]``: for each agent the ``shared`` rows, then those of the other agents."""
    count, size = rows.shape
    flat = jnp.concatenate([shared.reshape(-1), rows.reshape(-1)])
    own = [shared.size + i * size for i in range(count)]
    return jnp.stack([jnp.concatenate([flat[:i], flat[i + size :]]) for i in own])


def bound_penalty(x: chex.Array) -> chex.Array:
    """What leaving the arena costs, per coordinate: nothing inside 0.9, at most 10."""
    x = jnp.abs(x)
    outside = jnp.where(x < 1, 10 * (x - 0.9), jnp.minimum(jnp.exp(2 * x - 2), 10))
    return jnp.where(x < 0.9, 0, outside)
