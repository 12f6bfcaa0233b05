"""Joint passage: two agents carry the rod that ties them through a gap of a wall and lay it on a goal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.checks import count, positive
from shoal.envs.vmas.entities import Agent, Sphere
from shoal.envs.vmas.geometry import angle_apart, distance
from shoal.envs.vmas.scenarios._passages import AGENT_RADIUS, above, below, in_a_row, middle
from shoal.envs.vmas.scenarios._rods import BOX_LENGTH, RodOptions, RodScenario, settings_of

U_MULTIPLIER = 0.8
UPRIGHT = np.float32(np.pi / 2)


class JointPassage(RodScenario):
    """Both earn what the rod came closer to the nearest gap, or above the wall to the goal, and what it turned towards
    upright, or once through (both agents if ``all_passed_rot``, else its centre) towards the goal's angle;
    ``collision_reward`` for each box or border that an agent, the mass or (boxes only) the rod touches; minus energy.

    Hidden: ``pos_shaping_pre``, ``pos_shaping_post``: distances to the nearest gap and the goal; ``rot_shaping_pre``,
    ``rot_shaping_post``: of the angle to ``middle_angle`` (upright) and to the goal's; ``passed``: 100 once both agents
    were above the wall. With the controller ``accum_errs [A, 2]`` and ``prev_err [A, 2]``, with a cost of energy
    ``force [A, 2]``, with ``joint_angle_obs_noise`` ``unseen``: by what agent 1's look turned the rod.
    """

    def __init__(
        self,
        n_passages: int = 1,
        fixed_passage: bool = True,
        joint_length: float = 0.5,
        random_start_angle: bool = True,
        random_goal_angle: bool = True,
        observe_joint_angle: bool = False,
        joint_angle_obs_noise: float = 0.0,
        asym_package: bool = True,
        mass_ratio: float = 5.0,
        mass_position: float = 0.75,
        max_speed_1: float | None = None,
        pos_shaping_factor: float = 1.0,
        rot_shaping_factor: float = 1.0,
        collision_reward: float = 0.0,
        energy_reward_coeff: float = 0.0,
        all_passed_rot: bool = True,
        obs_noise: float = 0.0,
        use_controller: bool = False,
    ):
        boxes = in_a_row(BOX_LENGTH)
        count("n_passages", n_passages, 1, boxes)
        positive("mass_ratio", mass_ratio)
        positive("max_speed_1", max_speed_1)
        self.fixed_passage = fixed_passage
        self.random_start_angle, self.random_goal_angle = random_start_angle, random_goal_angle
        self.factors = pos_shaping_factor, rot_shaping_factor
        self.collision_reward, self.all_passed_rot = collision_reward, all_passed_rot
        agent: dict[str, Any] = {"shape": Sphere(AGENT_RADIUS), "u_multiplier": U_MULTIPLIER, "f_range": U_MULTIPLIER}
        masses, speeds = (1.0, 1.0 if asym_package else mass_ratio), (None, max_speed_1)
        agents = [Agent(name=f"agent_{i}", mass=masses[i], max_speed=speeds[i], **agent) for i in range(2)]
        gaps, self.slots = middle(boxes, n_passages), from_middle(boxes, n_passages)
        solid = np.setdiff1d(np.arange(boxes), gaps)
        if fixed_passage:  # then the rod meets no other boxes than those beside the gaps
            filled = np.setdiff1d(np.arange(boxes), self.slots)[: len(solid)]
            solid = solid[np.isin(filled, [self.slots.min() - 1, self.slots.max() + 1])]
        self.build(
            agents,
            gaps,
            RodOptions(
                joint_length=joint_length,
                mass=mass_ratio if asym_package else None,
                mass_position=mass_position,
                touches=tuple(f"passage {i}" for i in solid),
                max_force=U_MULTIPLIER,
                controller=use_controller,
                energy_reward_coeff=energy_reward_coeff,
                obs_noise=obs_noise,
                observe_joint_angle=observe_joint_angle,
                joint_angle_obs_noise=joint_angle_obs_noise,
            ),
            **settings_of(asym_package, (10, 900.0, 2500.0, 0.15), (7, 400.0, 1500.0, 0.25)),
        )

    def spawn(self, key):
        draw_key, noise_key = jax.random.split(key)
        draw = jax.random.uniform(draw_key, (7 + len(self.slots),))
        angle, goal_angle = jnp.pi * (draw[:2] - 0.5) * np.array([self.random_start_angle, self.random_goal_angle])
        half, goal_half = (self.half * jnp.stack([jnp.cos(a), jnp.sin(a)]) for a in (angle, goal_angle))
        turned = jnp.where(draw[2] < 0.5, jnp.where(angle > 0, -jnp.pi, jnp.pi), 0.0)  # which agent is where
        rod, goal = below(draw[3:5], half, AGENT_RADIUS), above(draw[5:7], goal_half, AGENT_RADIUS)
        slots = self.slots if self.fixed_passage else jnp.floor((self.row.number - 1) * draw[7:])
        return self.poses(noise_key, rod, angle + turned, goal, goal_angle, self.row.filled(slots))

    def remember(self, state, given):
        (rod, goal), (angle, goal_angle) = (x[np.array([self.rod, self.goal])] for x in (state.pos, state.rot))
        pos, rot = self.factors
        return super().remember(state, given) | {
            "pos_shaping_pre": pos * distance(state.pos[self.row.ways], rod).min(),
            "pos_shaping_post": pos * distance(goal, rod),
            "rot_shaping_pre": rot * angle_apart(angle, UPRIGHT),
            "rot_shaping_post": rot * angle_apart(angle, goal_angle),
            "middle_angle": UPRIGHT,
        }

    def reward(self, key, state):
        now = {name: value for name, value in self.remember(state, {}).items() if "shaping" in name}
        closer = {name: state[name] - value for name, value in now.items()}
        above_wall = state.pos[self.rod, 1] > 0
        both, state, first = self.passing(state)
        moved = jnp.where(above_wall, closer["pos_shaping_post"], closer["pos_shaping_pre"])
        through = both if self.all_passed_rot else above_wall
        turned = jnp.where(through, closer["rot_shaping_post"], closer["rot_shaping_pre"])
        crashed = jnp.float32(0)
        if self.collision_reward:
            rod = np.array([self.rod])
            parts = [(self.moving, self.row.solid), (self.moving, self.borders), (rod, self.row.solid)]
            crashed = self.collision_reward * sum(self.touching(state, a, b) for a, b in parts)
        energy = self.energy(state)
        info = {"pos_rew": moved, "rot_rew": turned, "collision_rew": crashed, "energy_rew": energy, "passed": first}
        info = {name: self.shared(value) for name, value in info.items()}
        state = self.jittered(key, state.remember(**now))
        return state, self.shared(moved + turned + crashed + energy), info

    def observe(self, key, state):
        pos, goal_angle = self.pos(state), state.rot[self.goal]
        to_ways = (pos[:, None] - state.pos[self.row.ways]).reshape(2, -1)
        blocks = [pos, self.vel(state), pos - state.pos[self.goal], to_ways]
        blocks += [jnp.stack([jnp.cos(goal_angle), jnp.sin(goal_angle)])]
        blocks += [self.seen_angle(state)] if self.observe_joint_angle else []
        return self.noisy(key, self.beside(*blocks))


def from_middle(number: int, count: int) -> np.ndarray:
    """``[count]`` of ``number`` slots from the middle outwards: right, left, right..."""
    step = np.arange(count)
    return number // 2 + (step + 1) // 2 * np.where(step % 2, 1, -1)
