"""simple_tag: slow adversaries hunt faster good agents among obstacles."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.base import ParticleEnv, numbered
from shoal.envs.mpe.world import World, bound_penalty, others, relative, total, touching
from shoal.envs.options import check_choice, check_count


class SimpleTag(ParticleEnv):
    """Every catch gives each adversary 10 and costs the caught agent 10; good agents also pay for leaving the arena.

    ``num_obs`` is the number of obstacles. ``rules`` matters for two or more good agents and for where the obstacles
    spawn (see ``shoal.envs.mpe``).
    """

    name = "mpe/simple_tag"
    position = (2, 4)

    def __init__(
        self,
        num_good_agents: int = 1,
        num_adversaries: int = 3,
        num_obs: int = 2,
        rules: str = "jaxmarl",
        continuous: bool = False,
    ):
        good = self.num_good = check_count("num_good_agents", num_good_agents, 1)
        bad = self.num_adversaries = check_count("num_adversaries", num_adversaries, 1)
        obstacles = check_count("num_obs", num_obs, 0)
        self.rules = check_choice("rules", rules, ("jaxmarl", "mpe2"))
        self.landmark_spawn = 1.0 if rules == "jaxmarl" else 0.9
        seen = 4 + 2 * (obstacles + good + bad - 1)
        prey_seen = (1, 0) if rules == "jaxmarl" else (good, good - 1)  # velocities, by an adversary and a good agent
        super().__init__(
            tag_world(good, bad, obstacles),
            agents=numbered("adversary", bad) + numbered("agent", good),
            groups=["adversary"] * bad + ["agent"] * good,
            obs_sizes=[seen + 2 * prey_seen[0]] * bad + [seen + 2 * prey_seen[1]] * good,
            continuous=continuous,
        )

    def observe(self, state):
        bad, good = self.num_adversaries, self.num_good
        if self.rules == "jaxmarl" or good == 1:
            prey_vel = state.vel[-1] * (np.arange(self.num_agents) < bad).astype(np.float32)[:, None]
        else:
            by_hunters = jnp.broadcast_to(state.vel[bad:].reshape(-1), (bad, 2 * good))
            by_prey = jnp.concatenate([others(state.vel[bad:]), jnp.zeros((good, 2))], axis=1)
            prey_vel = jnp.concatenate([by_hunters, by_prey])
        return jnp.concatenate([state.vel, state.pos, relative(state.pos, state.landmarks), prey_vel], axis=1)

    def reward(self, state):
        bad, good = self.num_adversaries, self.num_good
        radius = self.world.radius
        prey, hunters = state.pos[bad:], state.pos[:bad]
        caught = touching(prey, radius[bad : bad + good], hunters, radius[:bad])  # [good, bad]
        times = total(caught.astype(jnp.float32))  # [good]
        gain = jnp.broadcast_to(10 * total(times), (bad,))
        if self.rules == "jaxmarl" and good > 1:
            # its table has a row per good agent but is read at the agent's own index, which ends at the last row
            times = times[np.minimum(np.arange(good) + bad, good - 1)]
        return jnp.concatenate([gain, -10 * times - total(bound_penalty(prey))])


def tag_world(good: int, bad: int, obstacles: int) -> World:
    """Adversaries, then good agents, smaller and faster, then big obstacles; all of them solid."""
    teams = [bad, good]
    return World(
        good + bad,
        radius=np.repeat([0.075, 0.05, 0.2], [*teams, obstacles]),
        solid=good + bad + obstacles,
        accel=np.repeat([3.0, 4.0], teams),
        max_speed=np.repeat([1.0, 1.3], teams),
    )
