"""simple: agents go to the landmarks, alone."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv, numbered
from shoal.envs.mpe.world import World, squared_distances, total
from shoal.envs.options import check_count


class Simple(ParticleEnv):
    """Each agent sees its velocity and the landmarks; its reward is minus the squared distances to them."""

    name = "mpe/simple"

    def __init__(self, num_agents: int = 1, num_landmarks: int = 1, continuous: bool = False):
        agents = check_count("num_agents", num_agents, 1)
        landmarks = check_count("num_landmarks", num_landmarks, 1)
        super().__init__(
            World(agents, radius=np.full(agents + landmarks, 0.05)),
            agents=numbered("agent", agents),
            groups=["team"] * agents,
            obs_sizes=[2 + 2 * landmarks] * agents,
            continuous=continuous,
        )

    def observe(self, state):
        to_landmarks = state.landmarks - state.pos[:, None]  # [A, L, 2]
        return jnp.concatenate([state.vel, to_landmarks.reshape(self.num_agents, -1)], axis=1)

    def reward(self, state):
        return -total(squared_distances(state.pos, state.landmarks))
