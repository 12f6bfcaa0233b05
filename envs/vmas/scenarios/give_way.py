"""Give way: two agents in a corridor too narrow for both change places, past a niche in which one can wait."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import at_least, count, positive
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

HALF_LENGTH, HALF_WIDTH = 2.5, 0.2  # of the corridor
NICHE = np.array([[1.35, 0.2], [-1.35, 0.2], [-0.2, 0.44], [0.2, 0.44], [0.0, 0.68]], np.float32)  # its five lines
NICHE_LENGTHS, NICHE_TURNS = (2.3, 2.3, 0.48, 0.48, 0.4), (0.0, 0.0, np.pi / 2, np.pi / 2, 0.0)
STARTS = np.array([[-2, 0], [2, 0]], np.float32)
GOALS = np.array([[2.29, 0], [-2.29, 0]], np.float32)
NOISE = 0.02  # of the starts


class GiveWay(Scenario):
    """Both earn what the two came closer to their goals, and ``final_reward`` while both are there; each pays for
    touching the other, the niche (``passage_collision_penalty``) or another line, and for its energy.

    Hidden: ``shaping [A]``, the distances to the goals times their factor; with the controller ``accum_errs [A, 2]``
    and ``prev_err [A, 2]``; with a delay ``input_queue [A, dt_delay, 2]``, the oldest first, zero at first; with a cost
    of energy ``force [A, 2]``, what was done last.
    """

    def __init__(
        self,
        v_range: float = 0.5,
        a_range: float = 1.0,
        obs_noise: float = 0.0,
        box_agents: bool = False,
        linear_friction: float = 0.1,
        mirror_passage: bool = False,
        done_on_completion: bool = False,
        observe_rel_pos: bool = False,
        pos_shaping_factor: float = 1.0,
        final_reward: float = 0.01,
        energy_rew_coeff: float = 0.0,
        agent_collision_penalty: float = 0.0,
        passage_collision_penalty: float = 0.0,
        obstacle_collision_penalty: float = 0.0,
        use_velocity_controller: bool = True,
        min_input_norm: float = 0.08,
        dt_delay: int = 0,
    ):
        positive("v_range", v_range)
        positive("a_range", a_range)
        at_least("obs_noise", obs_noise)
        at_least("linear_friction", linear_friction)
        at_least("min_input_norm", min_input_norm)
        count("dt_delay", dt_delay, 0)
        self.terminates = done_on_completion
        self.obs_noise, self.observe_rel_pos, self.mirror = obs_noise, observe_rel_pos, mirror_passage
        self.factor, self.final_reward, self.energy_coeff = pos_shaping_factor, final_reward, energy_rew_coeff
        self.f_range, self.delay, dt = a_range + linear_friction, dt_delay, 0.05
        self.steering = steering(v_range, self.f_range, min_input_norm, dt) if use_velocity_controller else None
        agent: dict[str, Any] = {
            "rotatable": False,
            "shape": Box(BOX_LENGTH, BOX_WIDTH) if box_agents else Sphere(RADIUS),
            "linear_friction": linear_friction,
            "f_range": self.f_range,
            "v_range": v_range,
            "u_range": v_range if use_velocity_controller else self.f_range,
        }
        agents = [Agent(name=f"agent_{i}", colour=("blue", "green")[i], **agent) for i in range(2)]
        goals = [
            Landmark(name=f"goal_{i}", shape=Sphere(GOAL_RADIUS), collide=False, colour=("blue", "green")[i])
            for i in range(2)
        ]
        ends = [Landmark(name=f"wall {i}", shape=Line(2 * HALF_WIDTH), colour="black") for i in range(2)]
        floor = niche("2") if mirror_passage else [Landmark(name="floor", shape=Line(2 * HALF_LENGTH), colour="black")]
        landmarks = [*goals, *ends, *niche(""), *floor]
        settings: dict[str, Any] = {"dt": dt, "drag": 0.0, "linear_friction": linear_friction}
        settings |= {"substeps": 16 if box_agents else 5, "collision_force": 10000.0 if box_agents else 500.0}
        self.obstacles = np.arange(2, len(landmarks))  # [L]
        passages = [landmark.name.startswith("ceil 2") for landmark in landmarks[2:]]
        self.obstacle_penalty = np.where(passages, passage_collision_penalty, obstacle_collision_penalty)  # [L]
        self.collision_penalty = agent_collision_penalty
        super().__init__(World(landmarks, agents, **settings))

    def spawn(self, key):
        noise = jax.random.uniform(key, (4,), minval=-NOISE, maxval=NOISE).reshape(2, 2)
        turns = [0, 0, np.pi / 2, np.pi / 2, *NICHE_TURNS, *(NICHE_TURNS if self.mirror else (0,)), 0, 0]
        ends = np.array([[-HALF_LENGTH, 0], [HALF_LENGTH, 0]], np.float32)
        floor = NICHE * np.array([1, -1]) if self.mirror else np.array([[0, -HALF_WIDTH]])
        pos = jnp.concatenate([GOALS, ends, NICHE, floor.astype(np.float32), STARTS + noise])
        return {"pos": pos, "rot": np.array(turns, np.float32)}

    def distances(self, state):
        """``[A]``: to the own goals."""
        return distance(self.pos(state), state.pos[:2])

    def remember(self, state, given):
        still = jnp.zeros((2, 2))
        values = {"shaping": self.factor * self.distances(state)}
        if self.steering is not None:
            values |= {"accum_errs": still, "prev_err": still}
        if self.delay:
            values["input_queue"] = jnp.zeros((2, self.delay, 2))
        return values | ({"force": still} if self.energy_coeff else {})

    def control(self, key, state, u):
        if self.steering is not None:
            if self.delay:
                queue = state["input_queue"]
                state = state.remember(input_queue=jnp.concatenate([queue[:, 1:], u[:, None]], axis=1))
                u = queue[:, 0]
            u, accum, prev = self.steering(u, self.vel(state), state["accum_errs"], state["prev_err"])
            state = state.remember(accum_errs=accum, prev_err=prev)
        return (state.remember(force=u) if self.energy_coeff else state), u

    def reward(self, key, state):
        now = self.factor * (far := self.distances(state))
        closer = self.shared((state["shaping"] - now).sum())
        final = self.shared(jnp.where((far < GOAL_RADIUS).all(), self.final_reward, 0.0))
        first, second = self.bodies
        met = self.world.distance(state, first, second) <= MIN_COLLISION_DISTANCE
        crashed = self.shared(jnp.where(met, self.collision_penalty, 0.0))
        pairs = state, self.bodies[:, None], self.obstacles
        touching = self.world.near(*pairs) & (self.world.distance(*pairs) <= MIN_COLLISION_DISTANCE)  # [A, L]
        obstacle = (touching * self.obstacle_penalty).sum(axis=1)
        energy = jnp.zeros(2)
        if self.energy_coeff:
            energy = -self.energy_coeff * distance(state["force"], energy) / np.sqrt(2 * self.f_range**2)
        info = {
            "pos_rew": closer,
            "final_rew": final,
            "energy_rew": energy,
            "agent_collision_rew": crashed,
            "obstacle_collision_rew": obstacle,
        }
        return state.remember(shaping=now), closer + obstacle + crashed + energy + final, info

    def observe(self, key, state):
        pos = self.pos(state)
        obs = self.beside(pos, self.vel(state), *([pos - pos[::-1]] if self.observe_rel_pos else []))
        if self.obs_noise:
            obs = obs + jax.random.uniform(key, obs.shape, minval=-self.obs_noise, maxval=self.obs_noise)
        return obs

    def done(self, state):
        return (self.distances(state) < GOAL_RADIUS).all()


def niche(mark: str) -> list[Landmark]:
    """The corridor's upper lines and the niche between them; ``mark`` is part of their names."""
    names = [f"ceil {kind}{mark} {i}" for kind, number in ((1, 2), (2, 3)) for i in range(number)]
    return [
        Landmark(name=name, shape=Line(length), colour="black")
        for name, length in zip(names, NICHE_LENGTHS, strict=True)
    ]
