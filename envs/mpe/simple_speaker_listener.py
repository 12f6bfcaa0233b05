"""simple_speaker_listener: one agent knows the goal and only speaks, the other listens and moves."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv
from shoal.envs.mpe.world import World, pick, squared_distances

LANDMARKS, WORDS = 3, 3


class SimpleSpeakerListener(ParticleEnv):
    """Both lose the squared distance of the listener to the goal."""

    name = "mpe/simple_speaker_listener"
    speakers, words = 1, WORDS
    goals, goal_count = (), LANDMARKS

    def __init__(self, continuous: bool = False):
        super().__init__(
            World(2, radius=np.repeat([0.075, 0.04], [2, LANDMARKS]), movable=np.array([False, True])),
            agents=["speaker_0", "listener_0"],
            groups=["team", "team"],
            obs_sizes=[LANDMARKS, 2 + 2 * LANDMARKS + WORDS],
            continuous=continuous,
        )

    def observe(self, state):
        goal_colour = jnp.where(np.arange(LANDMARKS) == state.goal, 0.65, 0.15)
        speaker = jnp.concatenate([goal_colour, jnp.zeros(self.obs_size - LANDMARKS)])
        to_landmarks = (state.landmarks - state.pos[1]).reshape(-1)
        listener = jnp.concatenate([state.vel[1], to_landmarks, state.comm[0]])
        return jnp.stack([speaker, listener])

    def reward(self, state):
        off = squared_distances(state.pos[1:], pick(state.landmarks, state.goal)[None])
        return jnp.broadcast_to(-off.reshape(()), (2,))
