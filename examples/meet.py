"""An environment of twenty-five lines: two agents on a line, each paid for being close to the other.

python -m shoal ippo env=my/meet import=examples/meet.py
"""

import jax
import jax.numpy as jnp

from shoal import envs


class Meet(envs.Env):
    agents, groups = ("left", "right"), ("team", "team")  # names, and the team of each agent
    obs_sizes, state_size = (2, 2), 4  # of each agent's observation, and of the global state
    action_space = envs.Discrete((3, 3))  # one step back, stay, one step forward
    horizon, terminates = 20, False  # the time limit, and whether an episode can end before it

    def reset(self, key):
        return self.show(jax.random.uniform(key, (2,), minval=-1.0))

    def step(self, key, pos, action):
        return self.show(pos + 0.1 * (action - 1))

    def show(self, pos):
        obs = jnp.stack([pos, pos[::-1]], axis=1)  # an agent's own place and the other's
        return pos, envs.TimeStep(
            obs=obs,
            state=obs.reshape(-1),
            action_mask=jnp.ones((2, 3), bool),
            reward=jnp.full(2, -jnp.abs(pos[0] - pos[1])),
            terminated=False,
            truncated=False,
            alive=jnp.ones(2, bool),
            info={},
        )


envs.register("my/meet", Meet)
