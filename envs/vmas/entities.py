"""What a world is made of: shapes, landmarks, agents, joints. All static, said once when a scenario is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.envs.vmas.dynamics import Dynamics, Holonomic


@dataclass(frozen=True)
class Sphere:
    radius: float = 0.05

    @property
    def reach(self) -> float:
        """The radius of the circle around it."""
        return self.radius

    def inertia(self, mass: float) -> float:
        """Its moment of inertia."""
        return 0.5 * mass * self.radius**2


@dataclass(frozen=True)
class Box:
    length: float = 0.3  # along its own x
    width: float = 0.1
    hollow: bool = False  # what is inside is pushed inwards by the walls, not out of the body

    @property
    def reach(self) -> float:
        """The radius of the circle around it."""
        return math.hypot(self.length / 2, self.width / 2)

    def inertia(self, mass: float) -> float:
        """Its moment of inertia."""
        return mass * (self.length**2 + self.width**2) / 12


@dataclass(frozen=True)
class Line:
    length: float = 0.5

    @property
    def reach(self) -> float:
        """The radius of the circle around it."""
        return self.length / 2

    def inertia(self, mass: float) -> float:
        """Its moment of inertia."""
        return mass * self.length**2 / 12


Shape = Sphere | Box | Line


def anything(other: Entity) -> bool:
    """The filter that lets everything collide."""
    return True


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A body; ``None`` stands for the world's value, or for no limit."""

    name: str
    shape: Shape = field(default_factory=Sphere)
    movable: bool = False
    rotatable: bool = False
    collide: bool = True
    touches: Callable[[Entity], bool] = anything  # what it collides with, if that agrees
    mass: float = 1.0
    drag: float | None = None
    linear_friction: float | None = None
    angular_friction: float | None = None
    gravity: tuple[float, float] | None = None  # beside the world's
    max_speed: float | None = None  # of its velocity's length
    v_range: float | None = None  # of each component
    colour: str = "grey"  # for pictures: a name of envs.drawing.COLOURS
    drawn: bool = True  # whether pictures show it
    halo: float = 0.0  # for pictures: radius of a faint disc around it, a range for example

    @property
    def inertia(self) -> float:
        """Its moment of inertia."""
        return self.shape.inertia(self.mass)


@dataclass(frozen=True, kw_only=True)
class Landmark(Entity):
    """A body without a will."""


@dataclass(frozen=True, kw_only=True)
class Agent(Entity):
    """A body that acts: by a policy, or if ``scripted`` by the scenario's ``control``."""

    movable: bool = True
    rotatable: bool = True
    group: str = "team"  # agents of a group may share parameters, and are reported together
    scripted: bool = False
    dynamics: Dynamics = field(default_factory=Holonomic)
    u_range: float | tuple[float, ...] = 1.0  # of each action dimension: actions are clamped to it
    u_multiplier: float | tuple[float, ...] = 1.0  # what a clamped action is multiplied with
    u_noise: float = 0.0  # standard deviation
    c_noise: float = 0.0
    silent: bool = True
    max_f: float | None = None  # of the force's length
    f_range: float | None = None  # of each component
    max_t: float | None = None
    t_range: float | None = None
    colour: str = ""  # empty: that of its group


@dataclass(frozen=True, kw_only=True)
class Joint:
    """Holds the anchors of two entities together; anchors are in units of half a length and half a width.

    ``lock``: the angle between the two that a torque keeps, if any.
    """

    a: str
    b: str
    anchor_a: tuple[float, float] = (0.0, 0.0)
    anchor_b: tuple[float, float] = (0.0, 0.0)
    lock: float | None = None


def rod(
    a: str,
    b: str,
    length: float,
    mass: float = 1.0,
    touches: Callable[[Entity], bool] | None = None,
) -> tuple[Landmark, list[Joint]]:
    """A stiff connection of ``a`` and ``b``: a landmark to be listed among the others, and its two joints.

    ``touches``: what it collides with, which is nothing unless given.
    """
    name = f"joint {a} {b}"
    body = Landmark(
        name=name,
        shape=Line(length),
        movable=True,
        rotatable=True,
        collide=touches is not None,
        mass=mass,
        touches=touches or anything,
        colour="black",
    )
    return body, [Joint(a=name, b=a, anchor_a=(-1.0, 0.0)), Joint(a=name, b=b, anchor_a=(1.0, 0.0))]
