"""Joint passage size: a small and a large agent tied by a rod, each through the gap that fits, lay it on a goal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.checks import count, positive
from shoal.envs.vmas.entities import Agent, Sphere
from shoal.envs.vmas.geometry import angle_apart, distance
from shoal.envs.vmas.scenarios._passages import AGENT_RADIUS, above, below
from shoal.envs.vmas.scenarios._rods import RodOptions, RodScenario, settings_of

LARGE = 3 * AGENT_RADIUS
FIXED_SLOT = 5  # of the large gap, which is two boxes wide
RIGHT, LEFT = 4, -3  # from there to the small gap


class JointPassageSize(RodScenario):
    """Both earn what the rod came closer to the middle of the gaps, or above the wall to the goal, and what it turned
    towards ``middle_angle``, with which each agent meets its gap (or half a turn from it, if ``middle_angle_180``);
    ``collision_reward`` for each box that an agent or the mass touches and each border that the last of these does;
    minus energy. ``random_start_angle`` does nothing, as in VMAS: the rod starts upright.

    Hidden: ``pos_shaping_pre``, ``pos_shaping_post``: distances to the middle of the gaps (from the first step on times
    the square of the factor) and to the goal; ``rot_shaping_pre``: of the angle to ``middle_angle``; ``passed``: 100
    once both agents were above the wall; ``pass_center``, ``big_passage_pos``, ``small_passage_pos``, all ``[2]``: the
    gaps. With the controller ``accum_errs [A, 2]`` and ``prev_err [A, 2]``, with a cost of energy ``force [A, 2]``,
    with ``joint_angle_obs_noise`` ``unseen``: by what agent 1's look turned the rod.
    """

    def __init__(
        self,
        n_passages: int = 3,
        fixed_passage: bool = False,
        joint_length: float = 0.52,
        random_start_angle: bool = False,
        random_goal_angle: bool = False,
        observe_joint_angle: bool = False,
        joint_angle_obs_noise: float = 0.0,
        asym_package: bool = False,
        mass_ratio: float = 1.0,
        mass_position: float = 0.75,
        max_speed_1: float | None = None,
        pos_shaping_factor: float = 1.0,
        rot_shaping_factor: float = 1.0,
        collision_reward: float = 0.0,
        energy_reward_coeff: float = 0.0,
        obs_noise: float = 0.0,
        middle_angle_180: bool = False,
        use_vel_controller: bool = False,
    ):
        count("n_passages", n_passages, 3, 4)
        positive("mass_ratio", mass_ratio)
        positive("max_speed_1", max_speed_1)
        self.fixed_passage, self.random_goal_angle = fixed_passage, random_goal_angle
        self.either_way = middle_angle_180
        self.factors, self.collision_reward = (pos_shaping_factor, rot_shaping_factor), collision_reward
        agents = [
            Agent(name="agent_0", shape=Sphere(AGENT_RADIUS), f_range=10.0),
            Agent(
                name="agent_1",
                shape=Sphere(LARGE),
                f_range=10.0,
                mass=1.0 if asym_package else mass_ratio,
                max_speed=max_speed_1,
            ),
        ]
        self.build(
            agents,
            tuple(range(n_passages)),
            RodOptions(
                joint_length=joint_length,
                mass=mass_ratio if asym_package else None,
                mass_position=mass_position,
                touches=(),
                max_force=1.0,
                controller=use_vel_controller,
                energy_reward_coeff=energy_reward_coeff,
                obs_noise=obs_noise,
                observe_joint_angle=observe_joint_angle,
                joint_angle_obs_noise=joint_angle_obs_noise,
            ),
            **settings_of(asym_package, (10, 700.0, 2500.0, 0.15), (5, 400.0, 1500.0, 0.25)),
        )

    def spawn(self, key):
        draw_key, noise_key = jax.random.split(key)
        draw = jax.random.uniform(draw_key, (8,))
        angle = jnp.where(draw[0] < 0.5, -jnp.pi / 2, jnp.pi / 2)
        goal_angle = jnp.pi * (draw[1] - 0.5) if self.random_goal_angle else jnp.float32(jnp.pi)
        half, goal_half = (self.half * jnp.stack([jnp.cos(a), jnp.sin(a)]) for a in (angle, goal_angle))
        rod, goal = below(draw[2:4], half, LARGE), above(draw[4:6], goal_half, LARGE)
        boxes = self.row.filled(self.gap_slots(draw[6], draw[7]))
        return self.poses(noise_key, rod, angle, goal, goal_angle, boxes)

    def gap_slots(self, draw_slot, draw_side):
        """``[n_passages]``: two slots of the large gap, one or two of the small one beyond two boxes."""
        number, last = len(self.row.gaps), self.row.number - 2
        slot, aside = jnp.float32(FIXED_SLOT), jnp.float32(RIGHT)
        if not self.fixed_passage:
            slot = jnp.floor((last + 1) * draw_slot)
            aside = jnp.where((slot > last - number) | ((slot >= number) & (draw_side < 0.5)), LEFT, RIGHT)
        offsets = [jnp.zeros_like(slot), jnp.ones_like(slot), aside, aside + jnp.sign(aside)][:number]
        return slot + jnp.stack(offsets)

    def remember(self, state, given):
        (rod, goal), angle = state.pos[np.array([self.rod, self.goal])], state.rot[self.rod]
        large, small = state.pos[self.row.ways[:2]].mean(axis=0), state.pos[self.row.ways[2]]
        centre, middle = (large + small) / 2, jnp.where(small[0] > large[0], jnp.pi, 0.0)
        pos, rot = self.factors
        off = angle_apart(angle, middle) if self.either_way else -jnp.cos(angle - middle)
        return super().remember(state, given) | {
            "pos_shaping_pre": pos * distance(rod, centre),
            "pos_shaping_post": pos * distance(rod, goal),
            "rot_shaping_pre": rot * off,
            "pass_center": centre,
            "big_passage_pos": large,
            "small_passage_pos": small,
            "middle_angle": middle,
        }

    def reward(self, key, state):
        now = {name: value for name, value in self.remember(state, {}).items() if "shaping" in name}
        now["pos_shaping_pre"] = self.factors[0] * now["pos_shaping_pre"]
        closer = {name: state[name] - value for name, value in now.items()}
        _, state, first = self.passing(state)
        moved = jnp.where(state.pos[self.rod, 1] > 0, closer["pos_shaping_post"], closer["pos_shaping_pre"])
        turned, crashed = closer["rot_shaping_pre"], jnp.float32(0)
        if self.collision_reward:
            touches = self.touching(state, self.moving, self.row.solid)
            touches = touches + self.touching(state, self.moving[-1:], self.borders)
            crashed = self.collision_reward * touches
        energy = self.energy(state)
        info = {"pos_rew": moved, "rot_rew": turned, "collision_rew": crashed, "energy_rew": energy, "passed": first}
        info = {name: self.shared(value) for name, value in info.items()}
        state = self.jittered(key, state.remember(**now))
        return state, self.shared(moved + turned + crashed + energy), info

    def observe(self, key, state):
        pos, goal_angle = self.pos(state), state.rot[self.goal]
        blocks = [pos, self.vel(state), pos - state.pos[self.goal]]
        blocks += [pos - state["big_passage_pos"], pos - state["small_passage_pos"]]
        blocks += [jnp.stack([jnp.cos(goal_angle), jnp.sin(goal_angle)])]
        blocks += [self.seen_angle(state)] if self.observe_joint_angle else []
        return self.noisy(key, self.beside(*blocks))
