"""The scripted players of football: who has the ball dribbles it towards the goal, the others look for a good place.

Shapes: ``n`` players of the team, ``K`` places that a player thinks about, ``G`` times that possession is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import chex
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.geometry import Vec, safe_sqrt, stacked, where

PLACES = 3  # where it wanted to go, somewhere around the ball, somewhere around itself
AHEAD = 0.01  # of the way, where a player looks for its next move
REACTION = 25.0
TOUCH = 0.7  # of both radii: how deep into the ball a player aims


class Normals(NamedTuple):
    """What a team draws in a step."""

    places: chex.Array  # [n, 2, 2]
    values: chex.Array  # [n, K], if decisions are not perfect
    target: chex.Array  # [n, 2], if moves are not precise
    target_vel: chex.Array  # [n, 2]
    possession: chex.Array  # [n, G], if decisions are not perfect

    @classmethod
    def of(cls, flat: chex.Array) -> Normals:
        """From ``[n, 11 + G]``, or ``[n, 4]`` if only the places are drawn."""
        return cls(flat[:, :4].reshape(-1, 2, 2), flat[:, 4:7], flat[:, 7:9], flat[:, 9:11], flat[:, 11:])


class Moving(NamedTuple):
    """Where players or the ball are and how they move."""

    pos: Vec
    vel: Vec


class Plan(NamedTuple):
    """The curves that the players of a team follow, all ``[n]``."""

    start: Vec
    start_vel: Vec
    target: Vec
    target_vel: Vec

    def at(self, time: chex.Numeric) -> Vec:
        """Where the cubic curve is at a time from 0 to 1."""
        t = time
        return (
            self.start * (2 * t**3 - 3 * t**2 + 1)
            + self.target * (3 * t**2 - 2 * t**3)
            + self.start_vel * (t**3 - 2 * t**2 + t)
            + self.target_vel * (t**3 - t**2)
        )

    def velocity(self, time: chex.Numeric) -> Vec:
        """How it moves there."""
        t = time
        return (
            self.start * (6 * t**2 - 6 * t)
            + self.target * (6 * t - 6 * t**2)
            + self.start_vel * (3 * t**2 - 4 * t + 1)
            + self.target_vel * (3 * t**2 - 2 * t)
        )


@dataclass(frozen=True)
class Pitch:
    """Its measures; the middle is the origin, the goals are left and right."""

    half_length: float
    half_width: float
    half_goal: float
    goal_depth: float
    agent_size: float
    ball_size: float

    @property
    def net(self) -> float:
        """x of the middle of the right goal."""
        return self.half_length + (self.goal_depth - self.agent_size) / 2


@dataclass(frozen=True)
class Planner:
    """A team of scripted players."""

    names: tuple[str, ...]  # [n]
    radii: tuple[float, ...]  # [n]
    pitch: Pitch
    way: int  # 1: attacks to the right, -1: to the left
    speed: float  # the three strengths: 1 is perfect
    decision: float
    precision: float

    @property
    def net(self) -> float:
        """x of the goal that it attacks."""
        return self.way * self.pitch.net

    @property
    def asks(self) -> np.ndarray:
        """``[n]``: the last time that possession was asked when a player moves. VMAS asks at names with a zero."""
        return np.cumsum(["0" in name for name in self.names]) - 1

    @property
    def draws(self) -> int:
        """How many normals a player needs in a step."""
        return 4 if self.decision == self.precision == 1 else 12 + int(self.asks[-1])

    def plan(self, normals: chex.Array, players: Moving, ball: Moving, aim: Vec, aim_rel: Vec) -> tuple[Plan, Vec]:
        """What each player is about to do, and where to relative to the ball.

        ``normals [n, draws]``; ``players`` ``[n]``; ``ball`` ``[]``; ``aim`` and ``aim_rel`` ``[n]`` are the targets
        of the last plan, in the world and from the ball as it was then.
        """
        drawn, pos = Normals.of(normals), players.pos
        has_ball = self.possession(drawn, players, ball)
        attack, support = self.dribble(pos, ball.pos), self.support(drawn, pos, ball.pos, aim_rel)
        start, start_vel, target, target_vel = (where(has_ball, a, b) for a, b in zip(attack, support, strict=True))
        if self.precision != 1:
            noise = 10 * (1 - self.precision) * (1 - jnp.exp(-(aim - target).norm))
            target = target + Vec.of(drawn.target) * noise
            target_vel = target_vel + Vec.of(drawn.target_vel) * noise
        return Plan(start, start_vel, target, target_vel), target - ball.pos

    def follow(self, plan: Plan, players: Moving) -> Vec:
        """``[n]``: the actions that bring the players along their plan."""
        push = (plan.at(AHEAD) - players.pos) * 0.5 + (plan.velocity(AHEAD) - players.vel) * 0.5
        push = push * (REACTION * self.speed**2)
        return Vec(jnp.clip(push.x, -1, 1), jnp.clip(push.y, -1, 1))

    def possession(self, drawn: Normals, players: Moving, ball: Moving) -> chex.Array:
        """``[n]``: whose ball it is: the closest one soon, rather one that stands behind it."""
        pos = players.pos
        to_ball, to_net = ball.pos - pos, Vec(self.net - pos.x, -pos.y)
        soon = (to_ball + (ball.vel - players.vel) * 0.5).norm
        score = soon - 0.5 * self.decision * unit(to_ball).dot(unit(to_net))
        if self.decision == 1:
            return jnp.arange(len(self.names)) == jnp.argmin(score)
        scores = score[:, None] + 0.5 * (1 - self.decision) ** 2 * drawn.possession[:, : self.asks[-1] + 1]  # [n, G]
        return jnp.arange(len(self.names)) == jnp.argmin(scores, axis=0)[self.asks]

    def dribble(self, pos: Vec, ball: Vec) -> Plan:
        """Round the ball and through it towards the net."""
        along = unit(Vec(self.net - ball.x, -ball.y))
        speed = 0.16 + 0.16 * self.speed
        behind = ball - along * ((ball - pos).norm * 0.6)
        start_vel = unit(behind - pos) * speed
        through = unit(along + unit(start_vel) * 0.5)
        hit = along * speed
        reach = TOUCH * (self.pitch.ball_size + np.array(self.radii, np.float32))
        return Plan(pos, start_vel, ball - through * reach, hit * jnp.ones_like(pos.x))

    def support(self, drawn: Normals, pos: Vec, ball: Vec, aim_rel: Vec) -> Plan:
        """To the best of a few places, and stay there."""
        spread = 0.5 * (1 + 3 * (1 - self.decision))
        around = Vec.of(drawn.places) * spread  # [n, 2]
        places = stacked([aim_rel + ball, ball + around[:, 0], pos + around[:, 1]])  # [K, n]
        places = self.onto_pitch(places)
        value = self.value(places, pos, ball)
        if self.decision != 1:
            keep = 3 * (1 - self.decision) * (np.arange(PLACES) == 0)[:, None]
            value = value + (1 - self.decision) * drawn.values.T + keep
        best = jnp.argmax(value, axis=0) == np.arange(PLACES)[:, None]  # [K, n]
        target = Vec(jnp.sum(best * places.x, axis=0), jnp.sum(best * places.y, axis=0))
        way = target - pos
        start_vel = unit(way) * (way.norm > 0.1)
        zeros = jnp.zeros_like(pos.x)
        return Plan(pos, start_vel, target, Vec(zeros, zeros))

    def onto_pitch(self, places: Vec) -> Vec:
        """The closest places on the pitch or in a goal."""
        top = self.pitch.half_width - self.pitch.agent_size
        y = jnp.clip(places.y, -top, top)
        before_goal = jnp.abs(y) < self.pitch.half_goal - self.pitch.agent_size
        end = self.pitch.half_length - self.pitch.agent_size + jnp.where(before_goal, self.pitch.goal_depth, 0.0)
        return Vec(jnp.clip(places.x, -end, end), y)

    def value(self, places: Vec, pos: Vec, ball: Vec) -> chex.Array:
        """``[K, n]``: how good it is for each player to be at each place: the mean of five terms."""
        to_ball = ball - places
        beta = unit(to_ball)
        near = jnp.exp(-2 * to_ball.norm**4)
        behind = jnp.minimum(1.25 + beta.dot(unit(Vec(self.net - places.x, -places.y))), 1.0)
        guard = jnp.maximum(-beta.dot(Vec(-self.net - places.x, -places.y)), 0.0)
        n = len(self.names)
        free = jnp.zeros_like(near)
        if n > 1:
            gaps = places[..., None] - pos  # [K, n, n]
            close = jnp.exp(-5 * gaps.norm) * (1 - np.eye(n, dtype=np.float32))
            free = 1 - safe_sqrt(jnp.sum(close**2, axis=-1))
        to_side = jnp.exp(-8 * jnp.abs(self.pitch.half_width - jnp.abs(places.y)))
        to_end = jnp.exp(-8 * jnp.abs(self.pitch.half_length - jnp.abs(places.x)))
        return (near + behind + guard + free + 1 - Vec(to_side, to_end).norm) / 5


def unit(v: Vec) -> Vec:
    """Of length one; zero stays zero."""
    length = v.norm
    return v / jnp.where(length > 0, length, 1.0)
