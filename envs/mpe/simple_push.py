"""simple_push: an adversary learns which landmark the good agent heads for, and pushes it away."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv, numbered
from shoal.envs.mpe.world import World, distance, least, pick, relative
from shoal.envs.options import check_count

LANDMARKS = 2
LANDMARK_COLOURS = np.array([0.1, 0.9, 0.1, 0.1, 0.1, 0.9], np.float32)


class SimplePush(ParticleEnv):
    """A good agent loses its distance to the goal; an adversary gains what it is nearer than the nearest of them."""

    name = "mpe/simple_push"
    goals, goal_count = (), LANDMARKS

    def __init__(self, num_good_agents: int = 1, num_adversaries: int = 1, continuous: bool = False):
        good = check_count("num_good_agents", num_good_agents, 1)
        bad = self.num_adversaries = check_count("num_adversaries", num_adversaries, 1)
        agents = good + bad
        seen = 2 + 2 * (LANDMARKS + agents - 1)
        super().__init__(
            World(agents, radius=np.full(agents + LANDMARKS, 0.05), solid=agents),
            agents=numbered("adversary", bad) + numbered("agent", good),
            groups=["adversary"] * bad + ["agent"] * good,
            obs_sizes=[seen] * bad + [seen + 2 + 3 + len(LANDMARK_COLOURS)] * good,
            continuous=continuous,
        )

    def observe(self, state):
        bad, good = self.num_adversaries, self.num_agents - self.num_adversaries
        seen = relative(state.pos, state.landmarks)
        to_goal = pick(state.landmarks, state.goal) - state.pos[bad:]
        own_colour = jnp.where(np.arange(3) == state.goal + 1, 0.75, 0.25)
        colours = [jnp.broadcast_to(colour, (good, colour.shape[0])) for colour in (own_colour, LANDMARK_COLOURS)]
        to_landmarks, to_others = seen[bad:, : 2 * LANDMARKS], seen[bad:, 2 * LANDMARKS :]
        agents = jnp.concatenate([state.vel[bad:], to_goal, colours[0], to_landmarks, colours[1], to_others], axis=1)
        padding = jnp.zeros((bad, self.obs_size - 2 - seen.shape[1]))
        adversaries = jnp.concatenate([state.vel[:bad], seen[:bad], padding], axis=1)
        return jnp.concatenate([adversaries, agents])

    def reward(self, state):
        bad = self.num_adversaries
        to_goal = distance(state.pos, pick(state.landmarks, state.goal))  # [A]
        return jnp.concatenate([least(to_goal[bad:]) - to_goal[:bad], -to_goal[bad:]])
