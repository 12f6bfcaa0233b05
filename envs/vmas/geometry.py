"""Plane geometry of spheres, lines and boxes, on arrays of any shape: closest points, contact forces, rays.

A :class:`Vec` holds ``x`` and ``y`` apart: on a CPU, XLA turns a reduction over an axis of two into a slow loop. Every
function is elementwise, so the same expression serves one pair, ``P`` pairs, or ``[A, K, M]`` rays. Square roots and
quotients are guarded before they are taken, so that gradients stay finite where the guard decides.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax.numpy as jnp
from flax import struct

LINE_MARGIN = 4 / 600  # how thick a line or a box's side is to the touch
MIN_DISTANCE = 1e-6  # closer than this, two points push in no direction
HALF_TURN = jnp.pi
NOTHING = 1e-12  # the length of no vector


class Vec(struct.PyTreeNode):
    """Points or arrows in the plane, ``x`` and ``y`` of equal shape."""

    x: chex.Array
    y: chex.Array

    def __add__(self, other: Vec) -> Vec:
        return Vec(self.x + other.x, self.y + other.y)

    def __sub__(self, other: Vec) -> Vec:
        return Vec(self.x - other.x, self.y - other.y)

    def __neg__(self) -> Vec:
        return Vec(-self.x, -self.y)

    def __mul__(self, scale: chex.Numeric) -> Vec:
        return Vec(self.x * scale, self.y * scale)

    def __truediv__(self, scale: chex.Numeric) -> Vec:
        return Vec(self.x / scale, self.y / scale)

    def __getitem__(self, index) -> Vec:
        return Vec(self.x[index], self.y[index])

    def dot(self, other: Vec) -> chex.Array:
        """The inner product."""
        return self.x * other.x + self.y * other.y

    def cross(self, other: Vec) -> chex.Array:
        """The third component of the cross product: the torque of force ``other`` at arm ``self``."""
        return self.x * other.y - self.y * other.x

    def turned(self, direction: Vec) -> Vec:
        """Rotated by the angle of the unit vector ``direction``."""
        return Vec(self.x * direction.x - self.y * direction.y, self.x * direction.y + self.y * direction.x)

    @property
    def normal(self) -> Vec:
        """A quarter turn to the left."""
        return Vec(-self.y, self.x)

    @property
    def norm(self) -> chex.Array:
        """The length, with gradient zero at zero."""
        return safe_sqrt(self.x * self.x + self.y * self.y)

    @classmethod
    def of(cls, array: chex.Array) -> Vec:
        """From ``[..., 2]``."""
        return cls(array[..., 0], array[..., 1])

    @classmethod
    def at_angle(cls, angle: chex.Array) -> Vec:
        """The unit vector of an angle."""
        return cls(jnp.cos(angle), jnp.sin(angle))

    @property
    def array(self) -> chex.Array:
        """``[..., 2]``."""
        return jnp.stack([self.x, self.y], axis=-1)


class Line(NamedTuple):
    """A segment: its centre, unit direction and half length."""

    centre: Vec
    along: Vec
    half: chex.Array


class Box(NamedTuple):
    """A rectangle: its centre, the unit direction of its length, half its length and half its width."""

    centre: Vec
    along: Vec
    half: chex.Array
    half_width: chex.Array

    @property
    def sides(self) -> Line:
        """``[4, ...]``: the sides at the ends of its length (plus, minus), then of its width (plus, minus)."""
        centre, along, across = self.centre, self.along, self.along.normal
        half, half_width = jnp.broadcast_arrays(self.half, self.half_width)
        ends, edges = along * half, across * half_width
        middles = [centre + ends, centre - ends, centre + edges, centre - edges]
        directions = [across, across, along, along]
        return Line(stacked(middles), stacked(directions), jnp.stack([half_width, half_width, half, half]))

    @property
    def corners(self) -> Vec:
        """``[4, ...]``."""
        ends, edges = self.along * self.half, self.along.normal * self.half_width
        front, back = self.centre + ends, self.centre - ends
        return stacked([front + edges, front - edges, back + edges, back - edges])

    def inside_out(self, point: Vec) -> Vec:
        """``point`` as the box sees it: from its centre, along its length and width."""
        return (point - self.centre).turned(Vec(self.along.x, -self.along.y))


def safe_sqrt(x: chex.Array) -> chex.Array:
    """``sqrt``, with gradient zero at zero, where it is ``NOTHING``.

    Clamped rather than chosen: XLA computes a square root once, but what a choice depends on again for every reader.
    """
    return jnp.sqrt(jnp.maximum(x, NOTHING**2))


def distance(a: chex.Array, b: chex.Array) -> chex.Array:
    """Between points ``[..., 2]``."""
    return Vec.of(a - b).norm


def stacked(vectors: list[Vec]) -> Vec:
    """On a new leading axis."""
    xs, ys = jnp.broadcast_arrays(*[v.x for v in vectors]), jnp.broadcast_arrays(*[v.y for v in vectors])
    return Vec(jnp.stack(xs), jnp.stack(ys))


def joined(a: Vec, b: Vec) -> Vec:
    """Along the leading axis."""
    return Vec(jnp.concatenate([a.x, b.x]), jnp.concatenate([a.y, b.y]))


def where(condition: chex.Array, if_true: Vec, if_false: Vec) -> Vec:
    """Elementwise choice."""
    return Vec(jnp.where(condition, if_true.x, if_false.x), jnp.where(condition, if_true.y, if_false.y))


def softplus(x: chex.Array) -> chex.Array:
    """``log(1 + exp(x))`` without overflow."""
    return jnp.maximum(x, 0.0) + jnp.log(1 + jnp.exp(-jnp.abs(x)))


# ---------------------------------------------------------------------------------------------- closest points


def nearest_of(firsts: Vec, seconds: Vec) -> tuple[Vec, Vec]:
    """Of candidate pairs of points on the leading axis, the closest pair; of equally close ones the first."""
    gaps = firsts - seconds
    squares = gaps.dot(gaps)
    first, second, least = firsts[0], seconds[0], squares[0]
    for i in range(1, squares.shape[0]):
        closer = squares[i] < least
        first, second = where(closer, firsts[i], first), where(closer, seconds[i], second)
        least = jnp.where(closer, squares[i], least)
    return first, second


def point_on_line(point: Vec, line: Line) -> Vec:
    """The point of a segment closest to ``point``."""
    shift = (line.centre - point).dot(line.along)
    return line.centre - line.along * jnp.clip(shift, -line.half, line.half)


def point_on_box(point: Vec, box: Box) -> Vec:
    """The point of a box's perimeter closest to ``point``, also if that is inside.

    Only the two sides that ``point`` leans to can be closest. Which of them is decided in the box's frame; the point
    itself is projected in the world's, whose rounding VMAS shares.
    """
    q, across = box.inside_out(point), box.along.normal
    end = jnp.where(q.x >= 0, box.half, -box.half)
    edge = jnp.where(q.y >= 0, box.half_width, -box.half_width)
    to_end = Vec(q.x - end, q.y - jnp.clip(q.y, -box.half_width, box.half_width))
    to_edge = Vec(q.x - jnp.clip(q.x, -box.half, box.half), q.y - edge)
    on_edge = to_edge.dot(to_edge) < to_end.dot(to_end)
    middle = box.centre + where(on_edge, across * edge, box.along * end)
    side = Line(middle, where(on_edge, box.along, across), jnp.where(on_edge, box.half, box.half_width))
    return point_on_line(point, side)


def line_to_line(a: Line, b: Line) -> tuple[Vec, Vec]:
    """The closest points of two segments; both are the crossing if they cross."""
    a_plus, a_minus = a.centre + a.along * a.half, a.centre - a.along * a.half
    b_plus, b_minus = b.centre + b.along * b.half, b.centre - b.along * b.half
    on_a = [a_plus, a_minus, point_on_line(b_plus, a), point_on_line(b_minus, a)]
    on_b = [point_on_line(a_plus, b), point_on_line(a_minus, b), b_plus, b_minus]
    first, second = nearest_of(stacked(on_a), stacked(on_b))
    crosses, crossing = crossing_of(a, b)
    return where(crosses, crossing, first), where(crosses, crossing, second)


def crossing_of(a: Line, b: Line) -> tuple[chex.Array, Vec]:
    """Whether two segments cross, and where."""
    start, other = a.centre + a.along * a.half, b.centre + b.along * b.half
    r, s, between = a.along * (-2 * a.half), b.along * (-2 * b.half), other - start
    det = r.cross(s)
    safe = jnp.where(det == 0, 1.0, det)
    t, u = between.cross(s) / safe, between.cross(r) / safe
    return (det != 0) & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1), start + r * t


def line_to_box(line: Line, box: Box) -> tuple[Vec, Vec]:
    """The closest points of a box's perimeter and of a segment: the box's first.

    Either an end of the line and its projection on the box, or a corner and its projection on the line, or a crossing.
    Which of them is decided in the box's frame, where it is cheap.
    """
    back = Vec(box.along.x, -box.along.y)
    middle, along = box.inside_out(line.centre), line.along.turned(back)
    plus_wins = _to_perimeter(middle + along * line.half, box) <= _to_perimeter(middle - along * line.half, box)
    reach = jnp.where(plus_wins, line.half, -line.half)
    to_end = _to_perimeter(middle + along * reach, box)
    corner, to_corner = _nearest_corner(middle, along, line.half, box)
    at_corner = to_corner < to_end
    end, corner = line.centre + line.along * reach, box.centre + corner.turned(box.along)
    on_box = where(at_corner, corner, point_on_box(end, box))
    on_line = where(at_corner, point_on_line(corner, line), end)
    crosses, shift = _crossing(middle, along, line.half, box)
    crossing = line.centre + line.along * shift
    return where(crosses, crossing, on_box), where(crosses, crossing, on_line)


def _to_perimeter(q: Vec, box: Box) -> chex.Array:
    """The squared distance of a point in the box's frame to the box's perimeter."""
    x, y = jnp.abs(q.x), jnp.abs(q.y)
    over_x, over_y = x - box.half, y - box.half_width
    outside_x, outside_y = jnp.maximum(over_x, 0.0), jnp.maximum(over_y, 0.0)
    return jnp.minimum(over_x**2 + outside_y**2, over_y**2 + outside_x**2)


def _nearest_corner(middle: Vec, along: Vec, half: chex.Array, box: Box) -> tuple[Vec, chex.Array]:
    """The corner that is closest to a segment, and its squared distance, all in the box's frame."""
    best, least = Vec(middle.x, middle.y), jnp.full_like(middle.x, jnp.inf)
    for x_sign, y_sign in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        corner = Vec(x_sign * box.half, y_sign * box.half_width)
        to_corner = corner - middle
        gap = to_corner - along * jnp.clip(to_corner.dot(along), -half, half)
        square = gap.dot(gap)
        best, least = where(square < least, corner, best), jnp.minimum(square, least)
    return best, least


def _crossing(middle: Vec, along: Vec, half: chex.Array, box: Box) -> tuple[chex.Array, chex.Array]:
    """Whether a segment crosses the perimeter, and how far along: the first in the order of ``sides``."""
    found, shift = jnp.zeros_like(middle.x, bool), jnp.zeros_like(middle.x)
    sides = (
        (middle.x, along.x, box.half, middle.y, along.y, box.half_width),
        (middle.y, along.y, box.half_width, middle.x, along.x, box.half),
    )
    for start, step, wall, other, other_step, limit in sides:
        pace = 1 / jnp.where(step == 0, 1.0, step)
        for sign in (1, -1):
            t = (sign * wall - start) * pace
            valid = (step != 0) & (jnp.abs(t) <= half) & (jnp.abs(other + t * other_step) <= limit)
            shift = jnp.where(valid & ~found, t, shift)
            found = found | valid
    return found, shift


def box_to_box(a: Box, b: Box) -> tuple[Vec, Vec]:
    """The closest points of two boxes' perimeters: a corner and its projection on the other box, or a crossing."""
    of_a, of_b = a.corners, b.corners
    first, second = nearest_of(
        joined(of_a, point_on_box(of_b, _expanded(a))), joined(point_on_box(of_a, _expanded(b)), of_b)
    )
    sides = _expanded(b.sides)
    a_sides = Line(*(_second_axis(part) for part in a.sides))
    crosses, crossing = crossing_of(a_sides, sides)  # [4, 4, ...]
    flat = lambda x: x.reshape(16, *x.shape[2:])  # noqa: E731
    crosses, crossing = first_of(flat(crosses), Vec(flat(crossing.x), flat(crossing.y)))
    return where(crosses, crossing, first), where(crosses, crossing, second)


def first_of(valid: chex.Array, points: Vec) -> tuple[chex.Array, Vec]:
    """Whether any of the leading axis is valid, and the first one's point."""
    found, point = valid[0], points[0]
    for i in range(1, valid.shape[0]):
        point = where(found, point, points[i])
        found = found | valid[i]
    return found, point


def inner_point(outside: Vec, surface: Vec, centre: Vec) -> tuple[Vec, chex.Array]:
    """Where a solid box is pushed from, and how deep that is, for ``outside`` with its closest point ``surface``.

    A point on the surface itself gives twice the surface's *world* coordinates and depth 0, as VMAS has it.
    """
    v, u = surface - outside, centre - surface
    length = v.norm
    apart = length > NOTHING
    unit = v / length
    depth = unit.dot(u)
    return surface + where(apart, unit * depth, surface), jnp.where(apart, jnp.abs(depth), 0.0)


def _expanded(shape):
    """A line or a box with a new leading axis, to meet several points or sides of another."""
    return type(shape)(*(Vec(p.x[None], p.y[None]) if isinstance(p, Vec) else jnp.asarray(p)[None] for p in shape))


def _second_axis(part):
    """``[4, ...] -> [4, 1, ...]``."""
    return Vec(part.x[:, None], part.y[:, None]) if isinstance(part, Vec) else part[:, None]


# ---------------------------------------------------------------------------------------------------- forces


def repulsion(a: Vec, b: Vec, rest: chex.Array, gain: float, margin: float) -> Vec:
    r"""The force on ``a`` that keeps it ``rest`` away from ``b``.

    .. math:: f = K \frac{a - b}{d}\, k \log(1 + e^{(d_0 - d) / k}) \text{ where } d = |a - b| \le d_0
    """
    delta = a - b
    distance = delta.norm
    touching = (distance >= MIN_DISTANCE) & (distance <= rest)
    size = gain * margin * softplus((rest - distance) / margin) / jnp.where(touching, distance, 1.0)
    return delta * jnp.where(touching, size, 0.0)


def attraction(a: Vec, b: Vec, gain: float, margin: float) -> Vec:
    r"""The force on ``a`` that a joint pulls it to ``b`` with: :math:`-K \frac{a - b}{d}\, k \log(1 + e^{d / k})`."""
    delta = a - b
    distance = delta.norm
    apart = distance >= MIN_DISTANCE
    size = gain * margin * softplus(distance / margin) / jnp.where(apart, distance, 1.0)
    return -(delta * jnp.where(apart, size, 0.0))


def limited(v: Vec, size: chex.Numeric) -> Vec:
    """``v`` with a length of at most ``size``."""
    length = v.norm
    too_long = length > size
    # both guarded: without a limit the size is infinite, whose product has no gradient
    return where(too_long, v / jnp.where(too_long, length, 1.0) * jnp.where(too_long, size, 1.0), v)


# ------------------------------------------------------------------------------------------------------- rays


def ray_to_sphere(origin: Vec, along: Vec, centre: Vec, radius: chex.Array) -> chex.Array:
    """How far a ray goes until it hits, infinite if it does not."""
    to_centre = centre - origin
    ahead = to_centre.dot(along)
    aside = (to_centre - along * ahead).norm
    hit = (aside < radius) & (ahead > 0)
    inside = jnp.where(hit, radius * radius - aside * aside, 1.0)
    return jnp.where(hit, jnp.abs(ahead) - jnp.sqrt(jnp.where(inside > 0, inside, 1e-8)), jnp.inf)


def ray_to_line(origin: Vec, along: Vec, line: Line) -> chex.Array:
    """How far a ray goes until it hits, infinite if it does not."""
    whole = line.along * (2 * line.half)
    det = whole.cross(along)
    safe = jnp.where(det == 0, 1.0, det)
    away = origin - line.centre
    t, u = away.cross(along) / safe, away.cross(whole) / safe
    return jnp.where((det != 0) & (jnp.abs(t) <= 0.5) & (u >= 0), jnp.abs(u), jnp.inf)


def ray_to_box(origin: Vec, along: Vec, box: Box) -> chex.Array:
    """How far a ray goes until it enters, infinite if it does not: the slab test in the box's own frame."""
    back = Vec(box.along.x, -box.along.y)
    start, step = (origin - box.centre).turned(back), along.turned(back)
    near_x, far_x = _slab(start.x, step.x, box.half)
    near_y, far_y = _slab(start.y, step.y, box.half_width)
    near, far = jnp.maximum(near_x, near_y), jnp.minimum(far_x, far_y)
    return jnp.where((far >= near) & (near > 0), near, jnp.inf)


def _slab(start: chex.Array, step: chex.Array, half: chex.Array) -> tuple[chex.Array, chex.Array]:
    """When a point that moves by ``step`` enters and leaves ``[-half, half]``: always or never if it stands still."""
    safe = jnp.where(step == 0, 1.0, step)
    a, b = (-half - start) / safe, (half - start) / safe
    inside = jnp.abs(start) < half
    near = jnp.where(step == 0, jnp.where(inside, -jnp.inf, jnp.inf), jnp.minimum(a, b))
    far = jnp.where(step == 0, jnp.where(inside, jnp.inf, -jnp.inf), jnp.maximum(a, b))
    return near, far


def angle_apart(a: chex.Array, b: chex.Array) -> chex.Array:
    """The distance of two directions of an undirected line: angles that differ by half a turn are the same."""
    gap = a % HALF_TURN - b % HALF_TURN
    return jnp.minimum(jnp.abs(gap), jnp.minimum(jnp.abs(gap + HALF_TURN), jnp.abs(gap - HALF_TURN)))
