"""Wind flocking: two agents fly against the wind, side by side, or the big one in the shelter of the small one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario
from shoal.envs.vmas.checks import positive
from shoal.envs.vmas.controllers import VelocityController
from shoal.envs.vmas.entities import Agent, Sphere
from shoal.envs.vmas.geometry import Vec, angle_apart
from shoal.envs.vmas.world import World
from shoal.errors import UserError

BIG_RADIUS, SMALL_RADIUS = 0.05, 0.03
WANTED_DISTANCE, GOAL_HEIGHT = 1.0, 10.0
ENERGY_FROM, WIND_FROM = 10, 5  # the steps from which on their changes count


class WindFlocking(Scenario):
    """Both earn what became less, each times its factor: the errors of their distance, of the angle and the height of
    the pair, of their velocities, and the forces they need and the wind they feel (all three as means).

    Hidden: ``t``, the steps made; ``distance_shaping``, ``pos_shaping``, ``rot_shaping`` and ``vel_shaping``,
    ``energy_shaping``, ``wind_shaping [2]``, the last values; ``gravity [2, 2]``, the wind that each feels, all of it
    unless given (VMAS's resets keep the last one); ``force [2, 2]``, what they did last, 0 unless given;
    ``accum_errs`` and ``prev_err [2, 2]``, their controllers' memories if ``use_controller``, 0 at a reset.
    """

    def __init__(
        self,
        vel_shaping_factor: float = 1.0,
        dist_shaping_factor: float = 1.0,
        wind_shaping_factor: float = 1.0,
        pos_shaping_factor: float = 0.0,
        rot_shaping_factor: float = 0.0,
        energy_shaping_factor: float = 0.0,
        observe_rel_pos: bool = True,
        observe_rel_vel: bool = True,
        observe_pos: bool = False,
        use_controller: bool = True,
        wind: float = 0.0,
        v_range: float = 0.5,
        desired_vel: float = 0.4,
        f_range: float | None = 100.0,
        cover_angle_tolerance: float = 1.0,
    ):
        for name, value in (
            ("v_range", v_range),
            ("f_range", f_range),
            ("cover_angle_tolerance", cover_angle_tolerance),
        ):
            positive(name, value)
        if f_range is None and not use_controller:
            raise UserError("env.kwargs.f_range=None: must be a number if use_controller=false, the limit of actions")
        self.factors = {
            "distance_shaping": dist_shaping_factor,
            "rot_shaping": rot_shaping_factor,
            "pos_shaping": pos_shaping_factor,
            "vel_shaping": vel_shaping_factor,
            "energy_shaping": energy_shaping_factor,
            "wind_shaping": wind_shaping_factor,
        }
        self.sees = (observe_pos, observe_rel_pos, observe_rel_vel)
        self.wind = np.array([0.0, -wind], np.float32)
        self.goal_vel, self.tolerance = np.array([0.0, desired_vel], np.float32), cover_angle_tolerance
        u_range = v_range if use_controller else f_range
        body: dict[str, Any] = {"u_range": u_range, "v_range": v_range, "f_range": f_range}
        agents = [
            Agent(name=f"agent_{i}", shape=Sphere(radius), **body)
            for i, radius in enumerate((BIG_RADIUS, SMALL_RADIUS))
        ]
        world = World([], agents, drag=0.0, linear_friction=0.1)
        self.controller = VelocityController(1.5, 0.6, 0.002, f_range or np.inf, world.dt) if use_controller else None
        super().__init__(world)

    def spawn(self, key):
        draw = jax.random.uniform(key, (2,))
        angle = (2 * draw[0] - 1) * jnp.pi / 8
        side = jnp.where(draw[1] < 0.5, -WANTED_DISTANCE / 2, WANTED_DISTANCE / 2)  # of the big one
        big = side * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return {"pos": jnp.stack([big, -big])}

    def remember(self, state, given):
        gravity = given.get("gravity", np.stack([self.wind, self.wind]))
        zeros = jnp.zeros((2, 2))
        memory = {} if self.controller is None else {"accum_errs": zeros, "prev_err": zeros}
        return {
            "t": jnp.int32(0),
            "gravity": gravity,
            "force": zeros,
            **self.shapings(state, zeros, gravity),
            **memory,
        }

    def control(self, key, state, u):
        if self.controller is None:
            return state.remember(force=u), u
        force, accum, prev = self.controller(u, self.vel(state), state["accum_errs"], state["prev_err"])
        return state.remember(force=force, accum_errs=accum, prev_err=prev), force

    def gravity(self, state):
        return state["gravity"]

    def angle(self, state):
        """In which direction the big one is from the small one."""
        gap = Vec.of(state.pos[0] - state.pos[1])
        return jnp.arctan2(gap.y, jnp.where((gap.x == 0) & (gap.y == 0), 1.0, gap.x))

    def shapings(self, state, force, gravity):
        """By name: what is to become less."""
        apart = Vec.of(state.pos[0] - state.pos[1]).norm
        now = {
            "distance_shaping": jnp.abs(apart - WANTED_DISTANCE),
            "rot_shaping": angle_apart(self.angle(state), jnp.float32(0)),
            "pos_shaping": jnp.abs(state.pos[:, 1].max() - GOAL_HEIGHT),
            "vel_shaping": Vec.of(state.vel - self.goal_vel).norm,
            "energy_shaping": Vec.of(force).norm,
            "wind_shaping": Vec.of(gravity).norm,
        }
        return {name: self.factors[name] * value for name, value in now.items()}

    def reward(self, key, state):
        t = state["t"] + 1
        felt = jnp.minimum(1 + jnp.sin(self.angle(state)), self.tolerance) / self.tolerance
        gravity = jnp.stack([self.wind * felt, self.wind])
        now = self.shapings(state, state["force"], gravity)
        less = {name: state[name] - value for name, value in now.items()}
        energy = jnp.where(t < ENERGY_FROM, 0.0, less["energy_shaping"])  # [2]
        wind = jnp.where(t < WIND_FROM, 0.0, less["wind_shaping"])
        means = less["vel_shaping"].mean() + energy.mean() + wind.mean()
        earned = less["distance_shaping"] + less["rot_shaping"] + less["pos_shaping"] + means
        info = {
            "dist_rew": self.shared(less["distance_shaping"]),
            "rot_rew": self.shared(less["rot_shaping"]),
            "pos_rew": self.shared(less["pos_shaping"]),
            "agent_wind_rew": wind,
            "agent_vel_rew": less["vel_shaping"],
            "agent_energy_rew": energy,
            "delta_vel_to_goal": Vec.of(state.vel - self.goal_vel).norm,
        }
        return state.remember(t=t, gravity=gravity, **now), self.shared(earned), info

    def observe(self, key, state):
        pos, vel = self.pos(state), self.vel(state)
        see_pos, see_rel_pos, see_rel_vel = self.sees
        blocks = [(see_pos, pos), (True, vel), (see_rel_pos, pos[::-1] - pos), (see_rel_vel, vel[::-1] - vel)]
        return self.beside(*[block for seen, block in blocks if seen])
