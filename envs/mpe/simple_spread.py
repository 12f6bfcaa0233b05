"""simple_spread: agents cover the landmarks together without bumping into each other."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv, numbered
from shoal.envs.mpe.world import World, least, relative, squared_distances, total
from shoal.envs.options import check_count, check_ratio

SILENCE = 2  # each agent's observation holds so many zeros per other agent: a message channel that nobody uses


class SimpleSpread(ParticleEnv):
    """The team loses each landmark's distance to its nearest agent, and an agent loses 1 per collision.

    ``local_ratio`` weighs the second against the first.
    """

    name = "mpe/simple_spread"
    position = (2, 4)

    def __init__(self, num_agents: int = 3, num_landmarks: int = 3, local_ratio: float = 0.5, continuous: bool = False):
        agents = check_count("num_agents", num_agents, 1)
        landmarks = check_count("num_landmarks", num_landmarks, 1)
        self.local_ratio = check_ratio("local_ratio", local_ratio)
        super().__init__(
            World(agents, radius=np.repeat([0.15, 0.05], [agents, landmarks]), solid=agents),
            agents=numbered("agent", agents),
            groups=["team"] * agents,
            obs_sizes=[4 + 2 * landmarks + (2 + SILENCE) * (agents - 1)] * agents,
            continuous=continuous,
        )

    def observe(self, state):
        silence = jnp.zeros((self.num_agents, SILENCE * (self.num_agents - 1)))
        return jnp.concatenate([state.vel, state.pos, relative(state.pos, state.landmarks), silence], axis=1)

    def reward(self, state):
        radius = self.world.radius[: self.num_agents]
        reach = (radius[:, None] + radius) ** 2
        np.fill_diagonal(reach, 0)  # nobody collides with itself
        collisions = total((squared_distances(state.pos, state.pos) < reach).astype(jnp.float32))  # [A]
        uncovered = total(jnp.sqrt(least(squared_distances(state.pos, state.landmarks), axis=0)))
        return -self.local_ratio * collisions - (1 - self.local_ratio) * uncovered
