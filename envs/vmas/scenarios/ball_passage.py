"""Ball passage: two agents push a ball through a gap of a wall to a goal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.scenarios._passages import AGENT_RADIUS, SEMIDIM, Row, above, below, in_a_row, middle
from shoal.envs.vmas.world import World

BOX_LENGTH = 0.103
REACH = 0.25  # from the ball to an agent at the start
COLLISION_PENALTY, AT_GOAL = -0.06, 0.01


class BallPassage(Scenario):
    """All earn what the ball came closer to the nearest gap, or above the wall to the goal, and -0.06 for each box
    that an agent or the ball overlaps. It is over when the ball is at the goal or at the border.

    Hidden: ``pos_shaping_pre``, the ball's distance to the nearest gap; ``pos_shaping_post``, to the goal.
    """

    terminates = True
    horizon = 500

    def __init__(self, n_passages: int = 1, fixed_passage: bool = False, random_start_angle: bool = True):
        boxes = in_a_row(BOX_LENGTH)
        count("n_passages", n_passages, 1, boxes)
        self.fixed_passage, self.random_start_angle = fixed_passage, random_start_angle
        self.goal, self.ball = range(2)
        self.row = Row(BOX_LENGTH, middle(boxes, n_passages), start=2)
        shape = Sphere(AGENT_RADIUS)
        landmarks = [
            Landmark(name="goal", shape=shape, collide=False, colour="light_green"),
            Landmark(name="ball", shape=shape, movable=True, linear_friction=0.02, colour="black"),
            *self.row.boxes,
        ]
        agents = [Agent(name=f"agent_{i}", shape=shape, u_multiplier=0.7, mass=2.0, drag=0.25) for i in range(2)]
        world = World(landmarks, agents, drag=0.0, x_semidim=SEMIDIM, y_semidim=SEMIDIM)
        self.moving = np.array([world.index(name) for name in ("agent_0", "agent_1", "ball")])
        super().__init__(world)

    def spawn(self, key):
        draw = jax.random.uniform(key, (5 + self.row.number,))
        angle = jnp.pi * (draw[0] - 0.5) if self.random_start_angle else jnp.float32(-jnp.pi / 2)
        half = REACH * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        goal, ball = above(draw[1:3], jnp.zeros(2), AGENT_RADIUS), below(draw[3:5], half, AGENT_RADIUS)
        slots = np.arange(self.row.number) if self.fixed_passage else jnp.argsort(draw[5:])
        boxes = self.row.places(slots)
        return {"pos": jnp.concatenate([jnp.stack([goal, ball]), boxes, jnp.stack([ball - half, ball + half])])}

    def remember(self, state, given):
        ball = state.pos[self.ball]
        return {
            "pos_shaping_pre": distance(state.pos[self.row.ways], ball).min(),
            "pos_shaping_post": distance(state.pos[self.goal], ball),
        }

    def reward(self, key, state):
        now = self.remember(state, {})
        pre, post = (state[name] - now[name] for name in ("pos_shaping_pre", "pos_shaping_post"))
        closer = jnp.where(state.pos[self.ball, 1] > 0, post, pre)
        crashed = COLLISION_PENALTY * self.row.hits(self.world, state, self.moving).sum()
        info = {"pos_rew": self.shared(closer), "collision_rew": self.shared(crashed)}
        return state.remember(**now), self.shared(closer + crashed), info

    def observe(self, key, state):
        pos = self.pos(state)
        to_ways = (pos[:, None] - state.pos[self.row.ways]).reshape(2, -1)
        return self.beside(pos, self.vel(state), pos - state.pos[self.goal], pos - state.pos[self.ball], to_ways)

    def done(self, state):
        ball = state.pos[self.ball]
        arrived = distance(ball, state.pos[self.goal]) <= AT_GOAL
        return arrived | (jnp.abs(ball) >= SEMIDIM - AGENT_RADIUS).any()
