"""Passage: five agents in a cross go through the gaps of a wall to goals in the same cross."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.scenarios._passages import AGENT_RADIUS, SEMIDIM, Row, above, below, in_a_row
from shoal.envs.vmas.world import World

N_AGENTS, BOX_LENGTH = 5, 0.103
SPACING = 0.1  # between neighbours in the cross
CROSS = SPACING * np.array([[1, 0], [0, 1], [-1, 0], [0, -1], [0, 0]], np.float32)
SHAPING, COLLISION_PENALTY = 100.0, -10.0


class Passage(Scenario):
    """An agent earns 100 times what it came closer to its goal (all of them together if ``shared_reward``), and -10
    for each other agent and each box that it overlaps; if ``shared_reward``, also for what those before it overlap.

    Hidden: ``global_shaping [A]``, 100 times the distances to the goals.
    """

    terminates = True
    horizon = 500

    def __init__(self, n_passages: int = 1, shared_reward: bool = True):
        boxes = in_a_row(BOX_LENGTH)
        count("n_passages", n_passages, 1, boxes)
        self.shared_reward = shared_reward
        self.row = Row(BOX_LENGTH, tuple(range(n_passages)), start=N_AGENTS)
        shape = Sphere(AGENT_RADIUS)
        agents = [Agent(name=f"agent_{i}", shape=shape, u_multiplier=0.7) for i in range(N_AGENTS)]
        goals = [Landmark(name=f"goal {i}", shape=shape, collide=False, colour="light_green") for i in range(N_AGENTS)]
        self.first, self.second = np.triu_indices(N_AGENTS, 1) + np.array(N_AGENTS + boxes)  # [P] pairs of agents
        super().__init__(World([*goals, *self.row.boxes], agents, x_semidim=SEMIDIM, y_semidim=SEMIDIM))

    def spawn(self, key):
        draw = jax.random.uniform(key, (4 + N_AGENTS + self.row.number,))
        cross = jnp.asarray(CROSS)[jnp.argsort(draw[4 : 4 + N_AGENTS])]
        room = np.full(2, SPACING + 3 * AGENT_RADIUS, np.float32)
        goals, agents = above(draw[:2], room, radius=0.0) + cross, below(draw[2:4], room, radius=0.0) + cross
        boxes = self.row.places(jnp.argsort(draw[4 + N_AGENTS :]))
        return {"pos": jnp.concatenate([goals, boxes, agents])}

    def distances(self, state):
        """``[A]``: to the own goals."""
        return distance(self.pos(state), state.pos[:N_AGENTS])

    def remember(self, state, given):
        return {"global_shaping": SHAPING * self.distances(state)}

    def reward(self, key, state):
        now = self.remember(state, {})
        closer = state["global_shaping"] - now["global_shaping"]
        crashed = COLLISION_PENALTY * self.collisions_of_each(state)
        reward = closer.sum() + jnp.cumsum(crashed) if self.shared_reward else closer + crashed
        return state.remember(**now), reward, {}

    def collisions_of_each(self, state):
        """``[A]``: how many agents and boxes each agent overlaps."""
        others = self.world.overlap(state, self.first, self.second).astype(jnp.float32)
        others = self.world.per_agent(others, self.first) + self.world.per_agent(others, self.second)
        return others + self.row.hits(self.world, state, self.bodies)

    def observe(self, key, state):
        pos = self.pos(state)
        to_ways = (state.pos[self.row.ways] - pos[:, None]).reshape(N_AGENTS, -1)
        return self.beside(pos, self.vel(state), state.pos[:N_AGENTS] - pos, to_ways)

    def done(self, state):
        return (self.distances(state) <= AGENT_RADIUS / 2).all()
