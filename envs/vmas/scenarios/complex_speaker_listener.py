"""Complex speaker listener: over a noisy channel, one agent tells several others where each of them has to go.

Not of VMAS: the worked example of docs/scenarios.md.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.world import pick, relative
from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.placement import apart
from shoal.envs.vmas.world import World

RADIUS = 0.075
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")


class ComplexSpeakerListener(Scenario):
    """All lose the mean distance of the listeners to their goals.

    Hidden: ``goal [n_listeners]``, the landmark that each listener has to go to; 0 unless given.
    """

    position = None  # nobody sees where it is itself

    def __init__(self, n_listeners: int = 2, n_landmarks: int = 5, c_noise: float = 0.1, collide: bool = True):
        count("n_listeners", n_listeners)
        count("n_landmarks", n_landmarks)
        at_least("c_noise", c_noise)
        self.n_listeners, self.n_landmarks = n_listeners, n_landmarks
        body, colours = Sphere(RADIUS), [COLOURS[i % len(COLOURS)] for i in range(n_landmarks)]
        landmarks = [Landmark(name=f"landmark {i}", collide=False, colour=c) for i, c in enumerate(colours)]
        speaker = Agent(name="speaker_0", shape=body, movable=False, collide=False, silent=False, c_noise=c_noise)
        listeners = [Agent(name=f"listener_{i}", shape=body, collide=collide) for i in range(n_listeners)]
        super().__init__(World(landmarks, [speaker, *listeners], dim_c=n_listeners * n_landmarks))

    def spawn(self, key):
        place_key, goal_key = jax.random.split(key)
        pos = apart(place_key, self.world.size, 2 * RADIUS, (-1.0, -1.0), (1.0, 1.0))
        return {"pos": pos, "goal": jax.random.randint(goal_key, (self.n_listeners,), 0, self.n_landmarks)}

    def remember(self, state, given):
        return {"goal": np.zeros(self.n_listeners, int)}

    def reward(self, key, state):
        goals = pick(state.pos[: self.n_landmarks], state["goal"])  # [n_listeners, 2]
        far = distance(self.pos(state)[1:], goals)  # [n_listeners]
        return state, self.shared(-far.mean()), {"arrived": self.shared((far < RADIUS).mean())}

    def observe(self, key, state):
        speaker = jax.nn.one_hot(state["goal"], self.n_landmarks).reshape(-1)
        pos, vel, message = self.pos(state)[1:], self.vel(state)[1:], state.comm[0]
        heard = jnp.broadcast_to(message, (self.n_listeners, message.size))
        listeners = jnp.concatenate([vel, relative(pos, state.pos[: self.n_landmarks]), heard], axis=1)
        return [speaker, *listeners]
