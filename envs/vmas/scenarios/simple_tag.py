"""Simple tag: adversaries hunt faster good agents among obstacles."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from shoal.envs.mpe.world import others, relative
from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count
from shoal.envs.vmas.entities import Agent, Landmark, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.placement import uniform
from shoal.envs.vmas.world import World

CATCH, SHAPING = 10.0, 0.1


class SimpleTag(Scenario):
    """An adversary earns 10 for each good agent that it touches, a good agent loses 10 for each adversary.

    Shaped, an adversary also loses a tenth of the distance to the nearest good agent and a good agent earns a tenth of
    all distances to adversaries; shared, all of a team earn the team's sum. With ``respawn_at_catch`` a caught agent
    starts again at rest, anywhere. Hidden: nothing.
    """

    def __init__(
        self,
        num_good_agents: int = 1,
        num_adversaries: int = 3,
        num_landmarks: int = 2,
        shape_agent_rew: bool = False,
        shape_adversary_rew: bool = False,
        agents_share_rew: bool = False,
        adversaries_share_rew: bool = True,
        observe_same_team: bool = True,
        observe_pos: bool = True,
        observe_vel: bool = True,
        bound: float = 1.0,
        respawn_at_catch: bool = False,
    ):
        count("num_good_agents", num_good_agents)
        count("num_adversaries", num_adversaries)
        count("num_landmarks", num_landmarks, 0)
        at_least("bound", bound, 0.1)
        self.n_good, self.n_bad, self.n_landmarks = num_good_agents, num_adversaries, num_landmarks
        self.shape_good, self.shape_bad = shape_agent_rew, shape_adversary_rew
        self.share_good, self.share_bad = agents_share_rew, adversaries_share_rew
        self.observe_same_team, self.observe_pos, self.observe_vel = observe_same_team, observe_pos, observe_vel
        self.bound, self.respawns = bound, respawn_at_catch
        self.position = ((2, 4) if observe_vel else (0, 2)) if observe_pos else None
        bad, good, obstacle = Sphere(0.075), Sphere(0.05), Sphere(0.2)
        hunter: dict[str, Any] = {"shape": bad, "u_multiplier": 3.0, "max_speed": 1.0, "group": "adversary"}
        prey: dict[str, Any] = {"shape": good, "u_multiplier": 4.0, "max_speed": 1.3, "group": "agent"}
        agents = [Agent(name=f"adversary_{i}", colour="red", **hunter) for i in range(num_adversaries)]
        agents += [Agent(name=f"agent_{i}", colour="green", **prey) for i in range(num_good_agents)]
        landmarks = [Landmark(name=f"landmark {i}", shape=obstacle, colour="black") for i in range(num_landmarks)]
        self.reach = bad.radius + good.radius
        super().__init__(World(landmarks, agents, substeps=10, collision_force=500.0, x_semidim=bound, y_semidim=bound))

    def spawn(self, key):
        pos = uniform(key, self.world.size, (-1.0, -1.0), (1.0, 1.0))
        n = self.n_landmarks
        return {"pos": jnp.concatenate([pos[:n] * (self.bound - 0.1), pos[n:] * self.bound])}

    def reward(self, key, state):
        pos = self.pos(state)
        far = distance(pos[: self.n_bad, None], pos[self.n_bad :])  # [adversaries, good]
        caught = far < self.reach
        bad, good = CATCH * caught.sum(axis=1), -CATCH * caught.sum(axis=0)
        if self.shape_bad:
            bad = bad - SHAPING * far.min(axis=1)
        if self.shape_good:
            good = good + SHAPING * far.sum(axis=0)
        if self.share_bad:
            bad = jnp.full_like(bad, bad.sum())
        if self.share_good:
            good = jnp.full_like(good, good.sum())
        if self.respawns:
            state = self.respawn(key, state, caught.any(axis=0))
        return state, jnp.concatenate([bad, good]), {}

    def respawn(self, key, state, caught):
        """The state with the good agents that are ``caught [good]`` somewhere else, at rest."""
        n = self.world.size - self.n_good
        place = jax.random.uniform(key, (self.n_good, 2), minval=-self.bound, maxval=self.bound)
        pos = jnp.where(caught[:, None], place, state.pos[n:])
        vel = jnp.where(caught[:, None], 0.0, state.vel[n:])
        return state.replace(pos=state.pos.at[n:].set(pos), vel=state.vel.at[n:].set(vel))

    def observe(self, key, state):
        pos, vel, landmarks, split = self.pos(state), self.vel(state), state.pos[: self.n_landmarks], self.n_bad
        own = [*([vel] if self.observe_vel else []), *([pos] if self.observe_pos else [])]
        prey_vel = jnp.broadcast_to(vel[split:].reshape(-1), (split, 2 * self.n_good))
        if self.observe_same_team:
            seen = relative(pos, landmarks)
            bad, good = seen[:split], [seen[split:], others(vel[split:])]
        else:
            bad = self.seen(pos[:split], jnp.concatenate([landmarks, pos[split:]]))
            good = [self.seen(pos[split:], jnp.concatenate([landmarks, pos[:split]]))]
        return [
            *jnp.concatenate([*(block[:split] for block in own), bad, prey_vel], axis=1),
            *jnp.concatenate([*(block[split:] for block in own), *good], axis=1),
        ]

    def seen(self, pos, targets):
        """``[n, 2 m]``: where ``targets [m, 2]`` are for those at ``pos [n, 2]``."""
        return (targets - pos[:, None]).reshape(len(pos), -1)
