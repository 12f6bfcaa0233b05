"""What the two joint passages share: two agents tied by a rod, perhaps with a mass on it, carry it through a wall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.vmas.base import Scenario, State
from shoal.envs.vmas.checks import at_least, positive
from shoal.envs.vmas.controllers import VelocityController, forget_at_rest
from shoal.envs.vmas.entities import Agent, Joint, Landmark, Line, Sphere, rod
from shoal.envs.vmas.geometry import angle_apart, distance
from shoal.envs.vmas.scenarios._passages import AGENT_RADIUS, SEMIDIM, WALL_WIDTH, Row
from shoal.envs.vmas.world import World
from shoal.errors import UserError

BOX_LENGTH, MASS_RADIUS = 0.1476, AGENT_RADIUS * 2 / 3
FAR = SEMIDIM + AGENT_RADIUS
BORDERS = np.array([[FAR, 0], [0, FAR], [-FAR, 0], [0, -FAR]], np.float32)
BORDER_TURNS = np.array([np.pi / 2, 0, np.pi / 2, 0], np.float32)
MIN_COLLISION_DISTANCE, AT_GOAL = 0.005, 0.01
PASSED = 100.0  # what ``passed`` is from then on


@dataclass(frozen=True, kw_only=True)
class RodOptions:
    """The rod, what moves it and how well it is seen; names as in ``env.kwargs`` where a user gives the value."""

    joint_length: float
    mass: float | None  # of the body on the rod; None if there is none
    mass_position: float  # -1 and 1 are the ends of the rod
    touches: tuple[str, ...]  # the boxes that the rod itself collides with
    max_force: float
    controller: bool  # whether agents act through a velocity controller
    energy_reward_coeff: float
    obs_noise: float
    observe_joint_angle: bool
    joint_angle_obs_noise: float

    def __post_init__(self) -> None:
        """Refuse what is out of range or does not go together."""
        positive("joint_length", self.joint_length)
        at_least("obs_noise", self.obs_noise)
        at_least("joint_angle_obs_noise", self.joint_angle_obs_noise)
        if self.joint_angle_obs_noise and not self.observe_joint_angle:
            value = f"{self.joint_angle_obs_noise:g}"
            raise UserError(f"env.kwargs.joint_angle_obs_noise={value}: needs observe_joint_angle=true")
        if abs(self.mass_position) > 1:
            value = f"{self.mass_position:g}"
            raise UserError(f"env.kwargs.mass_position={value}: must be from -1 to 1, the ends of the rod")

    def bodies(self) -> tuple[list[Landmark], list[Joint]]:
        """The rod and the mass on it, if any, and the joints that hold them and the agents together."""
        touches = (lambda other: other.name in self.touches) if self.touches else None
        body, joints = rod("agent_0", "agent_1", self.joint_length, touches=touches)
        if self.mass is None:
            return [body], joints
        mass = Landmark(
            name="mass",
            shape=Sphere(MASS_RADIUS),
            movable=True,
            mass=self.mass,
            touches=lambda other: not isinstance(other.shape, Sphere),
            colour="black",
        )
        return [body, mass], [*joints, Joint(a=body.name, b="mass", anchor_a=(self.mass_position, 0.0))]


class RodScenario(Scenario):
    """Landmarks: the rod, the mass if any, the goal, four borders, the wall. Agent 1 is at the rod's plus end."""

    terminates = True
    horizon = 500

    def build(self, agents: list[Agent], gaps: tuple[int, ...], options: RodOptions, **settings: Any) -> None:
        """The world, with those ``gaps`` in the wall; ``settings`` go to :class:`World`."""
        self.observe_joint_angle, self.angle_noise = options.observe_joint_angle, options.joint_angle_obs_noise
        self.energy_coeff, self.obs_noise = options.energy_reward_coeff, options.obs_noise
        self.half, self.mass_position, self.rod = options.joint_length / 2, options.mass_position, 0
        self.max_force = options.max_force
        rods, joints = options.bodies()
        self.goal = len(rods)
        goal = Landmark(name="joint_goal", shape=Line(options.joint_length), collide=False, colour="light_green")
        borders = [Landmark(name=f"wall {i}", shape=Line(2 * FAR), colour="black") for i in range(4)]
        self.row = Row(BOX_LENGTH, gaps, start=self.goal + 5)
        self.borders = np.arange(self.goal + 1, self.goal + 5)
        landmarks = [*rods, goal, *borders, *self.row.boxes]
        world = World(landmarks, agents, joints=joints, x_semidim=SEMIDIM, y_semidim=SEMIDIM, **settings)
        self.moving = np.array([world.index(name) for name in ("agent_0", "agent_1", *["mass"] * (len(rods) - 1))])
        heavy = np.array([[agent.mass] for agent in agents], np.float32)
        limit = agents[0].f_range or np.inf
        self.controller = VelocityController(2.0, 10.0, 1e-5, limit, world.dt, heavy) if options.controller else None
        super().__init__(world)

    def poses(
        self, key: chex.PRNGKey, rod: chex.Array, turn: chex.Array, goal: chex.Array, goal_turn: chex.Array, boxes
    ) -> dict[str, chex.Array]:
        """What :meth:`spawn` gives, from where the rod and the goal are and how they are turned."""
        half = self.half * jnp.stack([jnp.cos(turn), jnp.sin(turn)])
        masses = [rod + self.mass_position * half] * (self.goal - 1)
        noise = self.jitter(key)
        turns = jnp.stack([turn + noise.sum(), *[jnp.float32(0)] * (self.goal - 1), goal_turn])
        pos = [jnp.stack([rod, *masses, goal]), BORDERS, boxes, jnp.stack([rod - half, rod + half])]
        rot = jnp.concatenate([turns, BORDER_TURNS])
        given = {"pos": jnp.concatenate(pos), "rot": jnp.pad(rot, (0, self.row.number + 2))}
        return given | ({"unseen": noise[1]} if self.angle_noise else {})

    def control(self, key, state, u):
        if self.controller is not None:
            memory = (forget_at_rest(u, state[name]) for name in ("accum_errs", "prev_err"))
            u, accum, prev = self.controller(u, self.vel(state), *memory)
            state = state.remember(accum_errs=accum, prev_err=prev)
        return (state.remember(force=u) if self.energy_coeff else state), u

    def remember(self, state, given):
        still = jnp.zeros((2, 2))
        values = {"passed": jnp.float32(0)}
        if self.controller is not None:
            values |= {"accum_errs": still, "prev_err": still}
        if self.angle_noise:
            values["unseen"] = jnp.float32(0)
        return values | ({"force": still} if self.energy_coeff else {})

    def energy(self, state: State) -> chex.Array:
        """What the forces of this step cost."""
        if not self.energy_coeff:
            return jnp.float32(0)
        used = distance(state["force"], jnp.zeros((2, 2))).sum()
        return -self.energy_coeff * used / np.sqrt(2 * self.max_force**2)

    def passing(self, state: State) -> tuple[chex.Array, State, chex.Array]:
        """Whether both agents are above the wall, the state that remembers it, and whether this is the first time."""
        there = (self.pos(state)[:, 1] > WALL_WIDTH / 2).all()
        passed = state["passed"]
        first = (there & (passed == 0)).astype(jnp.float32)
        return there, state.remember(passed=jnp.where(there, PASSED, passed)), first

    def touching(self, state: State, a: np.ndarray, b: np.ndarray) -> chex.Array:
        """How many of ``a [n]`` and ``b [m]`` touch."""
        if not len(b):
            return jnp.int32(0)
        return (self.world.distance(state, a[:, None], b) <= MIN_COLLISION_DISTANCE).sum()

    def jitter(self, key: chex.PRNGKey) -> chex.Array:
        """``[A]``: the noise with which each agent sees the rod's angle."""
        return self.angle_noise * jax.random.normal(key, (2,)) if self.angle_noise else jnp.zeros(2)

    def jittered(self, key: chex.PRNGKey, state: State) -> State:
        """In VMAS, looking at the rod turns it: first agent 0 does, then agent 1."""
        if not self.angle_noise:
            return state
        noise = self.jitter(key)
        return state.replace(rot=state.rot.at[self.rod].add(noise.sum())).remember(unseen=noise[1])

    def seen_angle(self, state: State) -> chex.Array:
        """``[A, 2]``: cosine and sine of the rod's angle as each agent saw it."""
        angle = jnp.full(2, state.rot[self.rod])
        if self.angle_noise:
            angle = angle - jnp.stack([state["unseen"], jnp.float32(0)])
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)

    def noisy(self, key: chex.PRNGKey, obs: chex.Array) -> chex.Array:
        """What is observed, with noise if there is some."""
        if not self.obs_noise:
            return obs
        return obs + jax.random.uniform(key, obs.shape, minval=-self.obs_noise, maxval=self.obs_noise)

    def done(self, state):
        near = distance(state.pos[self.rod], state.pos[self.goal]) <= AT_GOAL
        return near & (angle_apart(state.rot[self.rod], state.rot[self.goal]) <= AT_GOAL)


def settings_of(asymmetric: bool, one: tuple, other: tuple) -> dict[str, Any]:
    """The world's settings with a mass on the rod, and without: substeps, joint force, collision force, drag."""
    return dict(zip(("substeps", "joint_force", "collision_force", "drag"), one if asymmetric else other, strict=True))
