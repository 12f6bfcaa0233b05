"""simple_world_comm: simple_tag with food to eat, forests to hide in and a leader who sees all and directs the hunt."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv, numbered
from shoal.envs.mpe.world import World, bound_penalty, least, squared_distances, total, touching, unstack, without_own
from shoal.envs.options import check_choice, check_count

WORDS = 4


class SimpleWorldComm(ParticleEnv):
    """Adversaries gain 5 per catch and lose a tenth of the distance to the nearest good agent.

    A good agent loses 5 per catch and for leaving the arena, gains 2 on food and loses a twentieth of the distance to
    the nearest. Agents inside a forest are seen only from inside the same one, and by the leader. ``num_obs`` is the
    number of obstacles. ``rules`` matters unless there are two good agents, and for where landmarks spawn (see
    ``shoal.envs.mpe``).
    """

    name = "mpe/simple_world_comm"
    position = (2, 4)
    speakers, words = 1, WORDS

    def __init__(
        self,
        num_good_agents: int = 2,
        num_adversaries: int = 4,
        num_obs: int = 1,
        num_food: int = 2,
        num_forests: int = 2,
        rules: str = "jaxmarl",
        continuous: bool = False,
        multi_discrete: bool = False,
    ):
        good = self.num_good = check_count("num_good_agents", num_good_agents, 1)
        bad = self.num_adversaries = check_count("num_adversaries", num_adversaries, 1)
        obstacles = self.num_obs = check_count("num_obs", num_obs, 0)
        food = self.num_food = check_count("num_food", num_food, 1)
        forests = self.num_forests = check_count("num_forests", num_forests, 1)
        self.rules = check_choice("rules", rules, ("jaxmarl", "mpe2"))
        self.landmark_spawn = 1.0 if rules == "jaxmarl" else 0.9
        agents, landmarks = good + bad, obstacles + food + forests
        vel_seen = (min(2, agents - 1), 1) if rules == "jaxmarl" else (good, good - 1)  # by an adversary, a good agent
        seen = 4 + 2 * (landmarks + agents - 1) + forests
        super().__init__(
            World(
                agents,
                radius=np.repeat([0.075, 0.045, 0.2, 0.03, 0.3], [bad, good, obstacles, food, forests]),
                solid=agents + obstacles,
                accel=np.repeat([3.0, 4.0], [bad, good]),
                max_speed=np.repeat([1.0, 1.3], [bad, good]),
            ),
            agents=["leadadversary_0", *numbered("adversary", bad - 1), *numbered("agent", good)],
            groups=["adversary"] * bad + ["agent"] * good,
            obs_sizes=[seen + 2 * vel_seen[0] + WORDS] * bad + [seen + 2 * vel_seen[1]] * good,
            continuous=continuous,
            multi_discrete=multi_discrete,
        )

    def observe(self, state):
        agents, bad, forests = self.num_agents, self.num_adversaries, self.num_forests
        radius = self.world.radius
        inside = touching(state.pos, radius[:agents], state.landmarks[-forests:], radius[-forests:])  # [A, F]
        forest = jnp.where(inside, 1.0, -1.0)
        visible = self._visible(inside).astype(jnp.float32)[..., None]  # [A, A, 1]
        to_landmarks = (state.landmarks - state.pos[:, None]).reshape(agents, -1)
        to_others = without_own((state.pos - state.pos[:, None]) * visible).reshape(agents, -1)
        by_hunters, by_prey = self._velocities_seen(state.vel, visible)
        orders = jnp.broadcast_to(state.comm[0], (bad, WORDS))
        hunters = jnp.concatenate([by_hunters, forest[:bad], orders], axis=1)
        prey = jnp.concatenate([forest[bad:], by_prey], axis=1)
        width = max(hunters.shape[1], prey.shape[1])
        ends = [jnp.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in (hunters, prey)]
        return jnp.concatenate([state.vel, state.pos, to_landmarks, to_others, jnp.concatenate(ends)], axis=1)

    def _velocities_seen(self, vel, visible):
        """The velocities of others in an adversary's and in a good agent's observation: ``[bad, ...], [good, ...]``."""
        bad, good = self.num_adversaries, self.num_good
        if self.rules == "mpe2" or good == 2:
            by_hunters = vel[bad:] * visible[:bad, bad:]
            by_prey = without_own(vel[bad:] * visible[bad:, bad:])
        else:
            of_others = without_own(vel * visible)  # [A, A - 1, 2]
            by_hunters, by_prey = of_others[:bad, -2:], of_others[bad:, -1:]
        return by_hunters.reshape(bad, -1), by_prey.reshape(good, -1)

    def _visible(self, inside):
        """``[A, A]``: whether an agent sees another: in the same forest, both in none, or as the leader."""
        columns = unstack(inside, axis=1)  # a forest each, [A]
        hidden = sum(column.astype(jnp.float32) for column in columns) > 0
        visible = ~hidden[:, None] & ~hidden
        for column in columns:
            visible |= column[:, None] & column
        return visible | (np.arange(self.num_agents) == 0)[:, None]

    def reward(self, state):
        bad, good, obstacles = self.num_adversaries, self.num_good, self.num_obs
        agents, radius = bad + good, self.world.radius
        hunters, prey = state.pos[:bad], state.pos[bad:]
        food = state.landmarks[obstacles : obstacles + self.num_food]
        food_radius = radius[agents + obstacles : agents + obstacles + self.num_food]
        caught = total(touching(prey, radius[bad:agents], hunters, radius[:bad]).astype(jnp.float32))  # [good]
        eaten = total(touching(prey, radius[bad:agents], food, food_radius).astype(jnp.float32))  # [good]
        to_prey = jnp.sqrt(least(squared_distances(hunters, prey)))  # [bad]
        to_food = jnp.sqrt(least(squared_distances(prey, food)))  # [good]
        outside = total(bound_penalty(prey))
        return jnp.concatenate(
            [5 * total(caught) - 0.1 * to_prey, 2 * eaten - 5 * caught - 2 * outside - 0.05 * to_food]
        )
