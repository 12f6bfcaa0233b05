"""The physics: entities as arrays, pairs of each kind as one expression, semi-implicit Euler steps.

Shapes: ``N`` entities, landmarks before agents; ``P`` pairs of a kind. Which pairs can collide is decided once, when
the world is built; :meth:`World.step` evaluates all pairs of a kind together.

Written for the compiler: on a CPU a gather or a scatter is a kernel of its own that nothing is fused with, so ``take``
is made of slices and ``gather`` of a product with a constant matrix of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas import geometry
from shoal.envs.vmas.entities import Agent, Box, Entity, Joint, Landmark, Line, Sphere
from shoal.envs.vmas.geometry import LINE_MARGIN, Vec
from shoal.errors import UserError

KINDS = ((Sphere, Sphere), (Line, Sphere), (Line, Line), (Box, Sphere), (Box, Line), (Box, Box))
MIN_ANGLE = 1e-9


class Motion(NamedTuple):
    """Where the entities are and how they move."""

    pos: Vec  # [N]
    vel: Vec  # [N]
    rot: chex.Array  # [N]
    ang_vel: chex.Array  # [N]


class Pairs(NamedTuple):
    """The pairs of one kind."""

    first: np.ndarray  # [P] entities
    second: np.ndarray  # [P]
    reach: np.ndarray  # [P] centres farther apart than this are not looked at


@dataclass(frozen=True)
class Settings:
    """The constants of a world, by default VMAS's."""

    dt: float = 0.1  # of a step
    substeps: int = 1
    drag: float = 0.25
    linear_friction: float = 0.0
    angular_friction: float = 0.0
    x_semidim: float | None = None  # bodies stay within this of the middle; None is no limit
    y_semidim: float | None = None
    dim_c: int = 0  # the size of a message
    collision_force: float = 100.0
    joint_force: float = 130.0
    torque_constraint_force: float = 1.0
    contact_margin: float = 1e-3
    gravity: tuple[float, float] = (0.0, 0.0)


class World:
    """A world of landmarks and agents."""

    def __init__(
        self, landmarks: Sequence[Landmark], agents: Sequence[Agent], *, joints: Sequence[Joint] = (), **constants: Any
    ):
        """``constants`` are fields of :class:`Settings`."""
        settings = Settings(**constants)
        self.landmarks, self.agents = tuple(landmarks), tuple(agents)
        self.entities: tuple[Entity, ...] = (*self.landmarks, *self.agents)
        self.names = tuple(entity.name for entity in self.entities)
        self.size = len(self.entities)  # N
        self.bodies = slice(len(landmarks), self.size)  # the agents among the entities
        self.dt, self.substeps, self.dim_c = settings.dt, settings.substeps, settings.dim_c
        self.x_semidim, self.y_semidim = settings.x_semidim, settings.y_semidim
        self.collision_force, self.joint_force = settings.collision_force, settings.joint_force
        self.torque_constraint_force = settings.torque_constraint_force
        self.contact_margin = settings.contact_margin

        self.movable, self.rotatable = self._column("movable", bool), self._column("rotatable", bool)
        self.mass, self.inertia = self._column("mass"), self._column("inertia")
        self.drag = self._column("drag", default=settings.drag)
        self.max_speed, self.v_range = (
            self._column("max_speed", default=np.inf),
            self._column("v_range", default=np.inf),
        )
        self.linear_friction = self._column("linear_friction", default=max(settings.linear_friction, 0))
        self.angular_friction = self._column("angular_friction", default=max(settings.angular_friction, 0))
        self.gravity = np.array(
            [np.add(settings.gravity, e.gravity or (0, 0)) for e in self.entities], np.float32
        )  # [N, 2]
        shapes = [entity.shape for entity in self.entities]
        self.radius = np.array([s.radius if isinstance(s, Sphere) else 0 for s in shapes], np.float32)
        self.half = np.array([0 if isinstance(s, Sphere) else s.length / 2 for s in shapes], np.float32)
        self.half_width = np.array([s.width / 2 if isinstance(s, Box) else 0 for s in shapes], np.float32)
        self.hollow = np.array([isinstance(s, Box) and s.hollow for s in shapes])
        self.reach = np.array([s.reach for s in shapes], np.float32)
        self.max_f, self.f_range, self.max_t, self.t_range = (
            np.array([np.inf if (v := getattr(agent, name)) is None else v for agent in self.agents], np.float32)
            for name in ("max_f", "f_range", "max_t", "t_range")
        )
        self.joints = tuple(joints)
        self.pairs = {kind: pairs for kind in KINDS if len((pairs := self._pairs(kind)).first)}

    def index(self, name: str) -> int:
        """The place of an entity by its name."""
        return self.names.index(name)

    # ------------------------------------------------------------------------------------------------- the step

    def step(self, motion: Motion, force: Vec, torque: chex.Array, gravity: chex.Array | None = None) -> Motion:
        """``substeps`` substeps under the agents' own ``force [W]`` and ``torque [W]``.

        ``gravity [N, 2]``, if given, replaces the world's.
        """
        force = geometry.limited(force, self.max_f) if np.isfinite(self.max_f).any() else force
        if np.isfinite(self.f_range).any():
            force = Vec(jnp.clip(force.x, -self.f_range, self.f_range), jnp.clip(force.y, -self.f_range, self.f_range))
        if np.isfinite(most := np.minimum(self.max_t, self.t_range)).any():
            torque = jnp.clip(torque, -most, most)
        landmarks = (self.bodies.start, 0)
        force = Vec(jnp.pad(force.x, landmarks), jnp.pad(force.y, landmarks))  # [N]
        torque = jnp.pad(torque, landmarks)
        if gravity is not None or self.gravity.any():
            force = force + Vec.of(self.gravity if gravity is None else gravity) * self.mass

        def substep(motion: Motion, keep: chex.Array) -> tuple[Motion, None]:
            return self._substep(motion, force, torque, keep), None

        keep = np.ones((self.substeps, self.size), np.float32)  # what drag leaves of a velocity: once a step
        keep[0] = 1 - self.drag
        if self.substeps == 1:
            return substep(motion, keep[0])[0]
        return jax.lax.scan(substep, motion, keep)[0]

    def _substep(self, motion: Motion, force: Vec, torque: chex.Array, keep: chex.Array) -> Motion:
        pos, vel, rot, ang_vel = motion
        dt = self.dt / self.substeps
        if self.linear_friction.any():
            force = force + self._friction(vel, dt)
        if self.angular_friction.any():
            stop = jnp.minimum(self.angular_friction * self.inertia, jnp.abs(ang_vel) / dt * self.inertia)
            torque = torque - jnp.sign(ang_vel) * stop
        pushes, turns = self._contacts(pos, rot)
        if self.joints:
            pulls, twists = self._joint_forces(pos, rot)
            pushes, turns = pushes + pulls, turns + twists
        force, torque = force + pushes, torque + turns

        if self.movable.any():
            moved = vel * keep + force / self.mass * dt
            if np.isfinite(self.max_speed).any():
                moved = geometry.limited(moved, self.max_speed)
            if np.isfinite(self.v_range).any():
                limit = self.v_range
                moved = Vec(jnp.clip(moved.x, -limit, limit), jnp.clip(moved.y, -limit, limit))
            vel = moved if self.movable.all() else geometry.where(self.movable, moved, vel)
            there = pos + vel * dt
            if self.x_semidim is not None:
                there = Vec(jnp.clip(there.x, -self.x_semidim, self.x_semidim), there.y)
            if self.y_semidim is not None:
                there = Vec(there.x, jnp.clip(there.y, -self.y_semidim, self.y_semidim))
            pos = there if self.movable.all() else geometry.where(self.movable, there, pos)
        if self.rotatable.any():
            ang_vel = jnp.where(self.rotatable, ang_vel * keep + torque / self.inertia * dt, ang_vel)
            rot = jnp.where(self.rotatable, rot + ang_vel * dt, rot)
        return Motion(pos, vel, rot, ang_vel)

    def _friction(self, vel: Vec, dt: float) -> Vec:
        """Against the velocity; each component at most what stops it."""
        unit = vel / vel.norm
        slow = lambda v, u: -u * jnp.minimum(self.linear_friction * self.mass, jnp.abs(v) / dt * self.mass)  # noqa: E731
        return Vec(slow(vel.x, unit.x), slow(vel.y, unit.y))

    # -------------------------------------------------------------------------------------------------- contacts

    def _contacts(self, pos: Vec, rot: chex.Array) -> tuple[Vec, chex.Array]:
        """The forces and torques of all contacts on each entity."""
        along = self._directions(rot)
        pushes: list[Vec] = []  # [P] of each kind, on the first of a pair
        turns: list[tuple[chex.Array, np.ndarray]] = []
        for kind, pairs in self.pairs.items():
            push, arm_a, arm_b = self._push(kind, pairs, pos, along)
            if kind != (Sphere, Sphere):  # whose contact begins just there
                gap = self.take(pos, pairs.first) - self.take(pos, pairs.second)
                push = push * (gap.norm <= pairs.reach)
            pushes.append(push)
            for arm, side, sign in ((arm_a, pairs.first, 1.0), (arm_b, pairs.second, -1.0)):
                if arm is not None and self.rotatable[side].any():
                    turns.append((sign * arm.cross(push), side))
        if not pushes:
            zeros = jnp.zeros_like(rot)
            return Vec(zeros, zeros), zeros
        first = np.concatenate([pairs.first for pairs in self.pairs.values()])
        second = np.concatenate([pairs.second for pairs in self.pairs.values()])
        force = Vec(jnp.concatenate([p.x for p in pushes]), jnp.concatenate([p.y for p in pushes]))
        return self.gather(force, first, second), self._sum_turns(turns, rot)

    def _sum_turns(self, turns: list[tuple[chex.Array, np.ndarray]], rot: chex.Array) -> chex.Array:
        if not turns:
            return jnp.zeros_like(rot)
        values, places = zip(*turns, strict=True)
        return self.gather(jnp.concatenate(values), np.concatenate(places))

    def _push(self, kind, pairs: Pairs, pos: Vec, along: Vec) -> tuple[Vec, Vec | None, Vec | None]:
        """The force ``[P]`` on the first of each pair, and the arms it has on both; a sphere has none."""
        a, b = self._shape(kind[0], pairs.first, pos, along), self._shape(kind[1], pairs.second, pos, along)
        rest = np.full(len(pairs.first), LINE_MARGIN, np.float32)
        if kind == (Sphere, Sphere):
            return self._repel(a, b, self.radius[pairs.first] + self.radius[pairs.second]), None, None
        if kind == (Line, Sphere):
            touch = geometry.point_on_line(b, a)
            return -self._repel(b, touch, rest + self.radius[pairs.second]), touch - a.centre, None
        if kind == (Line, Line):
            on_a, on_b = geometry.line_to_line(a, b)
            return self._repel(on_a, on_b, rest), on_a - a.centre, on_b - b.centre
        if kind == (Box, Sphere):
            touch = geometry.point_on_box(b, a)
            inner, depth = self._inner(b, touch, a, pairs.first)
            return -self._repel(b, inner, rest + self.radius[pairs.second] + depth), touch - a.centre, None
        if kind == (Box, Line):
            on_a, on_b = geometry.line_to_box(b, a)
            inner, depth = self._inner(on_b, on_a, a, pairs.first)
            return self._repel(inner, on_b, rest + depth), on_a - a.centre, on_b - b.centre
        on_a, on_b = geometry.box_to_box(a, b)
        inner_a, depth_a = self._inner(on_b, on_a, a, pairs.first)
        inner_b, depth_b = self._inner(on_a, on_b, b, pairs.second)
        return self._repel(inner_a, inner_b, rest + depth_a + depth_b), on_a - a.centre, on_b - b.centre

    def _repel(self, a: Vec, b: Vec, rest: chex.Array) -> Vec:
        return geometry.repulsion(a, b, rest, self.collision_force, self.contact_margin)

    def _inner(self, outside: Vec, surface: Vec, box: geometry.Box, index: np.ndarray) -> tuple[Vec, chex.Array]:
        """Where a box pushes from: its surface if it is hollow, else inside it."""
        hollow = self.hollow[index]
        if hollow.all():
            return surface, jnp.zeros_like(surface.x)
        inner, depth = geometry.inner_point(outside, surface, box.centre)
        return geometry.where(hollow, surface, inner), jnp.where(hollow, 0.0, depth)

    def _joint_forces(self, pos: Vec, rot: chex.Array) -> tuple[Vec, chex.Array]:
        """The forces and torques of all joints on each entity."""
        a, b = (np.array([self.index(getattr(joint, side)) for joint in self.joints]) for side in "ab")
        along = self._directions(rot)
        arm_a, arm_b = (
            self._anchor(
                index, np.array([getattr(joint, f"anchor_{side}") for joint in self.joints], np.float32), along
            )
            for index, side in ((a, "a"), (b, "b"))
        )
        point_a, point_b = self.take(pos, a) + arm_a, self.take(pos, b) + arm_b
        pull = geometry.attraction(point_a, point_b, self.joint_force, self.contact_margin)
        turn_a, turn_b = arm_a.cross(pull), -arm_b.cross(pull)
        locked = np.array([joint.lock is not None for joint in self.joints])
        if locked.any():
            angle = np.array([joint.lock or 0.0 for joint in self.joints], np.float32)
            off = self.take(rot, a) - (self.take(rot, b) + angle)
            twist = jnp.where(
                locked & (jnp.abs(off) >= MIN_ANGLE),
                self.torque_constraint_force * jnp.sign(off) * (jnp.exp(jnp.abs(off)) - 1),
                0.0,
            )
            turn_a, turn_b = turn_a - twist, turn_b + twist
        return self.gather(pull, a, b), self._sum_turns([(turn_a, a), (turn_b, b)], rot)

    def _anchor(self, index: np.ndarray, anchor: np.ndarray, along: Vec) -> Vec:
        """From an entity's centre to its anchor."""
        offset = Vec(anchor[:, 0] * self.half[index], anchor[:, 1] * self.half_width[index])
        return offset.turned(self.take(along, index))

    # ---------------------------------------------------------------------------------------------- questions

    def distance(self, state, a, b) -> chex.Array:
        """From the surface of ``a`` to that of ``b``: places of entities, arrays that broadcast, each of one shape.

        Negative where they overlap; lines and the sides of boxes are ``LINE_MARGIN`` thick. A body wholly inside a box
        is as far as its perimeter, unless it is a sphere: that is at -1.
        """
        a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
        shape, a, b = a.shape, a.reshape(-1), b.reshape(-1)
        kind = (type(self.entities[a[0]].shape), type(self.entities[b[0]].shape))
        if kind not in KINDS:
            a, b, kind = b, a, kind[::-1]
        pos, along = Vec.of(state.pos), self._directions(state.rot)
        one, two = self._shape(kind[0], a, pos, along), self._shape(kind[1], b, pos, along)
        if kind == (Sphere, Sphere):
            gap = (one - two).norm - self.radius[a] - self.radius[b]
        elif kind == (Line, Sphere):
            gap = (two - geometry.point_on_line(two, one)).norm - LINE_MARGIN - self.radius[b]
        elif kind == (Box, Sphere):
            touch = geometry.point_on_box(two, one)
            far = (two - touch).norm
            inside = (two - one.centre).norm < (one.centre - touch).norm
            overlap = inside | (far < self.radius[b] + LINE_MARGIN)
            gap = jnp.where(overlap, -1.0, far - LINE_MARGIN - self.radius[b])
        else:
            closest = {
                (Line, Line): geometry.line_to_line,
                (Box, Line): lambda box, line: geometry.line_to_box(line, box),
                (Box, Box): geometry.box_to_box,
            }[kind]
            on_a, on_b = closest(one, two)
            gap = (on_a - on_b).norm - LINE_MARGIN
        return gap.reshape(shape)

    def overlap(self, state, a, b) -> chex.Array:
        """Whether ``a`` and ``b`` overlap: see :meth:`distance`."""
        return self.distance(state, a, b) < 0

    def near(self, state, a, b) -> chex.Array:
        """Whether the circles around ``a`` and ``b`` touch: what VMAS asks before it looks for a contact."""
        gap = Vec.of(state.pos[a]) - Vec.of(state.pos[b])
        return gap.norm <= self.reach[a] + self.reach[b]

    def can_collide(self, a: int, b: int) -> bool:
        """Whether two entities ever push each other."""
        one, two = self.entities[a], self.entities[b]
        free = one.movable or one.rotatable or two.movable or two.rotatable
        joined = any({joint.a, joint.b} == {one.name, two.name} for joint in self.joints)
        return one.collide and two.collide and free and not joined and one.touches(two) and two.touches(one)

    # -------------------------------------------------------------------------------------------------- arrays

    def take(self, x, index: np.ndarray):
        """``x[index]``, ``[N] -> [P]``, for a static index: slices and repetitions, side by side."""
        if isinstance(x, Vec):
            return Vec(self.take(x.x, index), self.take(x.y, index))
        parts, start = [], 0
        while start < len(index):
            steps = np.diff(index[start:])
            repeats = 1 + int(np.argmax(np.append(steps, 1) != 0))
            ascends = 1 + int(np.argmax(np.append(steps, 0) != 1))
            i = int(index[start])
            if repeats > ascends:
                parts.append(jnp.broadcast_to(x[i : i + 1], (repeats,)))
            else:
                parts.append(x[i : i + ascends])
            start += max(repeats, ascends)
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def gather(self, x, index: np.ndarray, minus: np.ndarray | None = None):
        """``[P] -> [N]``: the sum of what acts on each entity: ``x[p]`` on ``index[p]``, ``-x[p]`` on ``minus[p]``."""
        if isinstance(x, Vec):
            return Vec(self.gather(x.x, index, minus), self.gather(x.y, index, minus))
        matrix = np.zeros((len(index), self.size), np.float32)
        matrix[np.arange(len(index)), index] = 1
        if minus is not None:
            matrix[np.arange(len(index)), minus] = -1
        return jnp.sum(x[:, None] * matrix, axis=0)

    def per_agent(self, x: chex.Array, index: np.ndarray) -> chex.Array:
        """``[P] -> [W]``: the sum of what belongs to each agent; ``index [P]`` are the agents' places."""
        return self.gather(x, index)[self.bodies]

    def _directions(self, rot: chex.Array) -> Vec:
        """Where each entity's own x axis points."""
        return Vec.at_angle(rot)

    def _shape(self, kind: type, index: np.ndarray, pos: Vec, along: Vec):
        """The entities ``index``, all of one kind, as geometry sees them; a sphere is its centre."""
        centre = self.take(pos, index)
        if kind is Sphere:
            return centre
        if kind is Line:
            return geometry.Line(centre, self.take(along, index), self.half[index])
        return geometry.Box(centre, self.take(along, index), self.half[index], self.half_width[index])

    def _pairs(self, kind: tuple[type, type]) -> Pairs:
        """The pairs of a kind that can collide, the shape that ``kind`` names first in front."""
        found = []
        for i in range(self.size):
            for j in range(i + 1, self.size):
                shapes = type(self.entities[i].shape), type(self.entities[j].shape)
                if shapes in (kind, kind[::-1]) and self.can_collide(i, j):
                    found.append((i, j) if shapes == kind else (j, i))
        first, second = np.array(found, int).reshape(-1, 2).T
        return Pairs(first, second, self.reach[first] + self.reach[second])

    def _column(self, name: str, dtype: type = float, default: float = 0.0) -> np.ndarray:
        """``[N]``: a fact of every entity, ``default`` where it is None."""
        values = [getattr(entity, name) for entity in self.entities]
        if len(set(self.names)) != len(self.names):
            raise UserError(f"World: two entities have one name in {', '.join(self.names)}")
        return np.array(
            [default if value is None else value for value in values], bool if dtype is bool else np.float32
        )
