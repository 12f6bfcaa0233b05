"""simple_adversary: good agents know which landmark counts and must not show it to the adversary."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv, numbered
from shoal.envs.mpe.world import World, distance, least, pick, relative, total
from shoal.envs.options import check_count


class SimpleAdversary(ParticleEnv):
    """Good agents share: the adversaries' distances to the goal, minus that of the nearest of them.

    An adversary loses its own distance to the goal, which it does not know. ``num_obs`` is the number of landmarks.
    """

    name = "mpe/simple_adversary"
    goals = ()

    def __init__(self, num_good_agents: int = 2, num_adversaries: int = 1, num_obs: int = 2, continuous: bool = False):
        good = check_count("num_good_agents", num_good_agents, 1)
        bad = self.num_adversaries = check_count("num_adversaries", num_adversaries, 1)
        landmarks = self.goal_count = check_count("num_obs", num_obs, 1)
        seen = 2 * (landmarks + good + bad - 1)
        super().__init__(
            World(good + bad, radius=np.repeat([0.15, 0.08], [good + bad, landmarks])),
            agents=numbered("adversary", bad) + numbered("agent", good),
            groups=["adversary"] * bad + ["agent"] * good,
            obs_sizes=[seen] * bad + [seen + 2] * good,
            continuous=continuous,
        )

    def observe(self, state):
        bad = self.num_adversaries
        seen = relative(state.pos, state.landmarks)
        to_goal = pick(state.landmarks, state.goal) - state.pos[bad:]
        adversaries = jnp.concatenate([seen[:bad], jnp.zeros((bad, 2))], axis=1)
        return jnp.concatenate([adversaries, jnp.concatenate([to_goal, seen[bad:]], axis=1)])

    def reward(self, state):
        bad = self.num_adversaries
        to_goal = distance(state.pos, pick(state.landmarks, state.goal))  # [A]
        shared = total(to_goal[:bad]) - least(to_goal[bad:])
        return jnp.concatenate([-to_goal[:bad], jnp.broadcast_to(shared, (self.num_agents - bad,))])
