"""Multi give way: four agents at the ends of a cross of narrow corridors each go to another end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, positive
from shoal.envs.vmas.entities import Agent, Box, Landmark, Line, Sphere
from shoal.envs.vmas.geometry import distance
from shoal.envs.vmas.scenarios._steering import (
    BOX_LENGTH,
    BOX_WIDTH,
    GOAL_RADIUS,
    MIN_COLLISION_DISTANCE,
    RADIUS,
    steering,
)
from shoal.envs.vmas.world import World
from shoal.errors import UserError

N_AGENTS, HALF_LENGTH, HALF_WIDTH = 4, 2.5, 0.2  # of a corridor
STARTS = np.array([[-2, 0], [0, 2], [2, 0], [0, -2]], np.float32)
GOALS = np.array([[0, -2.29], [-2.29, 0], [0, 2.29], [2.29, 0]], np.float32)
WALLS = np.array([[x, y] for x in (-1.35, 1.35) for y in (-0.2, 0.2)], np.float32)  # those along x
ENDS = np.array([[-HALF_LENGTH, 0], [HALF_LENGTH, 0], [0, -HALF_LENGTH], [0, HALF_LENGTH]], np.float32)
TURNS = np.pi / 2 * np.array([0] * 4 + [0] * 4 + [1] * 4 + [1, 1, 0, 0] + [0] * 4, np.float32)
COLOURS = ("blue", "green", "red", "grey")
NEARNESS = -1e-4  # what a unit of distance costs where nothing is earned by coming closer


class MultiGiveWay(Scenario):
    """An agent earns what it came closer to its goal (all of them together if ``shared_rew``), ``final_reward`` while
    all are there, and ``agent_collision_penalty`` for each other agent that it touches. If ``pos_shaping_factor`` is 0,
    it instead pays 0.0001 times its distance. ``comms_range`` does nothing, as in VMAS.

    Hidden: ``shaping [A]``, the distances to the goals times their factor; the controller's ``accum_errs [A, 2]`` and
    ``prev_err [A, 2]``.
    """

    horizon = 200

    def __init__(
        self,
        u_range: float = 0.5,
        a_range: float = 1.0,
        obs_noise: float = 0.0,
        box_agents: bool = False,
        linear_friction: float = 0.1,
        min_input_norm: float = 0.08,
        comms_range: float = 5.0,
        shared_rew: bool = True,
        n_agents: int = N_AGENTS,
        pos_shaping_factor: float = 1.0,
        final_reward: float = 0.01,
        agent_collision_penalty: float = -0.1,
    ):
        if n_agents != N_AGENTS:
            raise UserError(f"env.kwargs.n_agents={n_agents}: must be {N_AGENTS}")
        positive("u_range", u_range)
        positive("a_range", a_range)
        at_least("obs_noise", obs_noise)
        at_least("linear_friction", linear_friction)
        at_least("min_input_norm", min_input_norm)
        at_least("comms_range", comms_range)
        self.obs_noise, self.shared_rew, self.factor = obs_noise, shared_rew, pos_shaping_factor
        self.final_reward, self.collision_penalty = final_reward, agent_collision_penalty
        f_range, dt = a_range + linear_friction, 0.1
        self.steering = steering(u_range, f_range, min_input_norm, dt)
        agent: dict[str, Any] = {
            "rotatable": False,
            "shape": Box(BOX_LENGTH, BOX_WIDTH) if box_agents else Sphere(RADIUS),
            "linear_friction": linear_friction,
            "f_range": f_range,
            "u_range": u_range,
        }
        agents = [Agent(name=f"agent_{i}", colour=COLOURS[i], **agent) for i in range(N_AGENTS)]
        landmarks = [
            *(
                Landmark(name=f"goal {i}", shape=Sphere(GOAL_RADIUS), collide=False, colour=COLOURS[i])
                for i in range(N_AGENTS)
            ),
            *(Landmark(name=f"wall {i}", shape=Line(HALF_LENGTH - HALF_WIDTH), colour="black") for i in range(8)),
            *(Landmark(name=f"short wall {i}", shape=Line(2 * HALF_WIDTH), colour="black") for i in range(4)),
        ]
        settings: dict[str, Any] = {"dt": dt, "drag": 0.0, "linear_friction": linear_friction}
        settings |= {"substeps": 16 if box_agents else 5, "collision_force": 10000.0 if box_agents else 500.0}
        self.first, self.second = np.triu_indices(N_AGENTS, 1) + np.array(len(landmarks))  # [P] pairs of agents
        super().__init__(World(landmarks, agents, **settings))

    def spawn(self, key):
        return {"pos": np.concatenate([GOALS, WALLS, WALLS[:, ::-1], ENDS, STARTS]), "rot": TURNS}

    def distances(self, state):
        """``[A]``: to the own goals."""
        return distance(self.pos(state), state.pos[:N_AGENTS])

    def remember(self, state, given):
        still = jnp.zeros((N_AGENTS, 2))
        return {"shaping": self.factor * self.distances(state), "accum_errs": still, "prev_err": still}

    def control(self, key, state, u):
        u, accum, prev = self.steering(u, self.vel(state), state["accum_errs"], state["prev_err"])
        return state.remember(accum_errs=accum, prev_err=prev), u

    def reward(self, key, state):
        now = self.factor * (far := self.distances(state))
        closer = state["shaping"] - now if self.factor else NEARNESS * far
        earned = self.shared(closer.sum()) if self.shared_rew else closer
        final = self.shared(jnp.where((far < GOAL_RADIUS).all(), self.final_reward, 0.0))
        touching = self.world.distance(state, self.first, self.second) <= MIN_COLLISION_DISTANCE
        touching = touching.astype(jnp.float32)
        met = self.world.per_agent(touching, self.first) + self.world.per_agent(touching, self.second)
        crashed = self.collision_penalty * met
        info = {"pos_rew": earned, "final_rew": final, "agent_collision_rew": crashed}
        return state.remember(shaping=now), earned + crashed + final, info

    def observe(self, key, state):
        pos = self.pos(state)
        obs = self.beside(pos, self.vel(state), pos - state.pos[:N_AGENTS], self.distances(state)[:, None])
        if self.obs_noise:
            obs = obs + jax.random.uniform(key, obs.shape, minval=-self.obs_noise, maxval=self.obs_noise)
        return obs
