"""What all VMAS scenarios share: the state, how actions are read, the order of a step, and putting a state together.

A scenario describes its world once and then says five things: ``spawn``, ``remember``, ``reward``, ``observe``,
``done``.
Shapes: ``N`` entities (landmarks, then agents), ``W`` agents of the world, ``A`` of them by policies, ``U`` action
dimensions, ``C`` words.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs import drawing
from shoal.envs.base import (
    ActionSpace,
    Continuous,
    Discrete,
    Env,
    MultiDiscrete,
    TimeStep,
    given_array,
    pad_stack,
    size_mask,
)
from shoal.envs.vmas.dynamics import Body
from shoal.envs.vmas.geometry import Vec
from shoal.envs.vmas.pictures import scene
from shoal.envs.vmas.world import Motion, World
from shoal.errors import UserError

CHOICES = 3  # of each action dimension if discrete: nothing, minus, plus
FIELDS = ("pos", "vel", "rot", "ang_vel")


class State(struct.PyTreeNode):
    """The world between two steps."""

    pos: chex.Array  # [N, 2]
    vel: chex.Array  # [N, 2]
    rot: chex.Array  # [N] radians, never wrapped
    ang_vel: chex.Array  # [N]
    comm: chex.Array | None  # [W, C] what was said last; None where nobody speaks
    hidden: dict[str, chex.Array]  # what the scenario remembers: potentials, flags, goals, controllers

    def __getitem__(self, name: str) -> chex.Array:
        return self.hidden[name]

    def remember(self, **values: chex.Array) -> State:
        """The state with other hidden values."""
        return self.replace(hidden={**self.hidden, **values})


class Scenario(Env):
    """A task in a :class:`World`.

    Continuous actions are clamped to the agents' ranges; discrete ones have three choices per dimension (nothing,
    minus, plus), the first dimension most significant, a word last; multi-discrete ones leave them side by side.
    """

    terminates = False
    mortal = False
    position: tuple[int, int] | None = (0, 2)
    horizon = 100
    options_type: type | None = None  # a dataclass of which the constructor takes one, instead of keyword arguments

    def __init__(self, world: World):
        self.world = world
        self.learners = np.array([i for i, agent in enumerate(world.agents) if not agent.scripted], int)  # [A] of W
        acting = [world.agents[i] for i in self.learners]
        self.agents, self.groups = tuple(a.name for a in acting), tuple(a.group for a in acting)
        self.bodies = self.learners + world.bodies.start  # [A]: the policies' agents among the entities
        self.sizes = np.array([agent.dynamics.size for agent in world.agents])  # [W]
        self.speaks = np.array([bool(world.dim_c) and not agent.silent for agent in world.agents])  # [W]
        self.u_size = max(int(self.sizes.max()), 2)  # U
        self.u_range, self.u_multiplier = self._per_dimension("u_range"), self._per_dimension("u_multiplier")  # [W, U]
        self.u_noise = np.array([agent.u_noise for agent in world.agents], np.float32)
        self.c_noise = np.array([agent.c_noise for agent in world.agents], np.float32)
        self.choose_actions(continuous=True)
        key, rest = jax.random.key(0), np.zeros((world.size, 2), np.float32)
        rows = jax.eval_shape(lambda: self.observe(key, self.restore(rest)))
        self.obs_sizes = tuple(row.shape[-1] for row in (rows if isinstance(rows, list) else [rows] * len(acting)))
        self.state_size = self.num_agents * self.obs_size

    def choose_actions(self, *, continuous: bool, multi_discrete: bool = False) -> None:
        """The kind of action that policies give."""
        if continuous and multi_discrete:
            raise UserError("env.kwargs.multi_discrete=True: must be False if continuous=True")
        self.action_space = self._action_space(continuous, multi_discrete)
        self.action_mask = size_mask(self.action_space.sizes)

    # ------------------------------------------------------------------------------------- what a scenario says

    def spawn(self, key: chex.PRNGKey) -> dict[str, chex.Array]:
        """The arguments of :meth:`restore` for the first state of an episode: ``pos``, ``rot``, what is drawn."""
        raise NotImplementedError(f"{type(self).__name__}.spawn")

    def remember(self, state: State, given: dict[str, chex.Array]) -> dict[str, chex.Array]:
        """The hidden values of a state with these poses, as a reset leaves them; ``given`` are those already known."""
        return {}

    def control(self, key: chex.PRNGKey, state: State, u: chex.Array) -> tuple[State, chex.Array]:
        """The actions ``[W, U]`` of all agents: scripts act here, and controllers turn what is wanted into a force."""
        return state, u

    def gravity(self, state: State) -> chex.Array | None:
        """``[N, 2]``, if it is not always the world's."""
        return None

    def reward(self, key: chex.PRNGKey, state: State) -> tuple[State, chex.Array, dict[str, chex.Array]]:
        """For having come to ``state``: the state with what is remembered of it, ``[A]``, and information by name."""
        raise NotImplementedError(f"{type(self).__name__}.reward")

    def observe(self, key: chex.PRNGKey, state: State) -> chex.Array | list[chex.Array]:
        """``[A, O]``, or a vector per agent if they differ."""
        raise NotImplementedError(f"{type(self).__name__}.observe")

    def done(self, state: State) -> chex.Array:
        """Whether the episode is over; only asked if ``terminates``."""
        raise NotImplementedError(f"{type(self).__name__}.done")

    # ---------------------------------------------------------------------------------------- the environment

    @property
    def entities(self) -> tuple[str, ...]:
        """The names of all entities, in the order of every state: landmarks, then agents."""
        return self.world.names

    def restore(
        self, pos: Any, vel: Any = None, rot: Any = None, ang_vel: Any = None, comm: Any = None, **hidden: Any
    ) -> State:
        """The state with these poses, entities in the order of ``entities``, at rest and silent unless said otherwise.

        ``pos`` and ``vel`` are ``[N, 2]``, ``rot`` and ``ang_vel`` ``[N]``, ``comm`` is ``[W, C]``; axes of length 1
        may be more or fewer. Hidden values that are not given are those of a reset with these poses.
        """
        n = self.world.size
        shapes = dict(zip(FIELDS, ((n, 2), (n, 2), (n,), (n,)), strict=True))
        if self.speaks.any():
            shapes["comm"] = (len(self.world.agents), self.world.dim_c)
        elif comm is not None:
            raise UserError(f"restore(comm=...): nobody speaks in {type(self).__name__}")
        given = dict(zip((*FIELDS, "comm"), (pos, vel, rot, ang_vel, comm), strict=True))
        fields = {k: jnp.zeros(s) if given[k] is None else given_array(k, given[k], s) for k, s in shapes.items()}
        state = State(**{"comm": None, **fields}, hidden={})
        known = jax.eval_shape(lambda: self._hidden(state, {})) if hidden else {}
        unknown = [name for name in hidden if name not in known]
        if unknown:
            raise UserError(
                f"restore({unknown[0]}=...): {type(self).__name__} remembers {', '.join(known) or 'nothing'}"
            )
        hidden = {k: given_array(k, v, known[k].shape, known[k].dtype) for k, v in hidden.items()}
        return state.replace(hidden={**self._hidden(state, hidden), **hidden})

    def reset(self, key: chex.PRNGKey) -> tuple[State, TimeStep]:
        spawn_key, see_key = jax.random.split(key)
        state = self.restore(**self.spawn(spawn_key))
        zeros = jnp.zeros(self.num_agents)
        names = jax.eval_shape(self.reward, key, state)[2]
        info = {name: jnp.zeros(value.shape, value.dtype) for name, value in names.items()}
        return state, self._timestep(see_key, state, zeros, info, jnp.bool_(False))

    def step(self, key: chex.PRNGKey, state: State, action: chex.Array) -> tuple[State, TimeStep]:
        act_key, control_key, reward_key, see_key = jax.random.split(key, 4)
        u, comm = self.read_action(act_key, action)
        state, u = self.control(control_key, state, u)
        force, torque = self.forces(state, u)
        motion = Motion(Vec.of(state.pos), Vec.of(state.vel), state.rot, state.ang_vel)
        motion = self.world.step(motion, force, torque, self.gravity(state))
        state = state.replace(
            pos=motion.pos.array, vel=motion.vel.array, rot=motion.rot, ang_vel=motion.ang_vel, comm=comm
        )
        state, reward, info = self.reward(reward_key, state)
        terminated = self.done(state) if self.terminates else jnp.bool_(False)
        return state, self._timestep(see_key, state, reward, info, terminated)

    def forces(self, state: State, u: chex.Array) -> tuple[Vec, chex.Array]:
        """What the actions ``[W, U]`` do to the agents' bodies, by their dynamics: force and torque, ``[W]``."""
        agents, start = self.world.agents, self.world.bodies.start
        force, torque = Vec(jnp.zeros(len(agents)), jnp.zeros(len(agents))), jnp.zeros(len(agents))
        for kind in dict.fromkeys(agent.dynamics for agent in agents):
            of_kind = np.array([agent.dynamics == kind for agent in agents])
            index = np.flatnonzero(of_kind)
            places = slice(start, None) if of_kind.all() else start + index
            body = Body(
                Vec.of(state.vel[places]),
                state.rot[places],
                state.ang_vel[places],
                self.world.mass[places],
                self.world.inertia[places],
                self.world.dt,
            )
            push, turn = kind(u[index, : kind.size] if not of_kind.all() else u, body)
            if of_kind.all():
                return push, turn
            force = Vec(force.x.at[index].set(push.x), force.y.at[index].set(push.y))
            torque = torque.at[index].set(turn)
        return force, torque

    def read_action(self, key: chex.PRNGKey, action: chex.Array) -> tuple[chex.Array, chex.Array | None]:
        """What the agents want ``[W, U]``, zero where scripted, and what they say ``[W, C]``."""
        rows, width = self.learners, self.action_space.size
        u_range, words = self.u_range[rows], self.world.dim_c
        comm = None
        if isinstance(self.action_space, Continuous):
            action = jnp.pad(action, ((0, 0), (0, max(self.u_size - width, 0))))
            u = jnp.clip(action[:, : self.u_size], -u_range, u_range)
            if self.speaks.any():
                comm = jnp.clip(jnp.pad(action, ((0, 0), (0, words)))[:, 2 : 2 + words], 0.0, 1.0)  # [A, C]
        else:
            parts = action if isinstance(self.action_space, MultiDiscrete) else self._digits(action)  # [A, U (+ 1)]
            moves = parts[:, : self.u_size]
            u = u_range * ((moves == 2).astype(jnp.float32) - (moves == 1))
            if self.speaks.any():
                comm = (parts[:, -1:] == np.arange(words)).astype(jnp.float32)
        owned = np.arange(self.u_size) < self.sizes[rows][:, None]
        u = jnp.where(owned, u * self.u_multiplier[rows], 0.0)
        if self.u_noise[rows].any():
            u = u + jax.random.normal(key, u.shape) * self.u_noise[rows][:, None] * owned
        if comm is not None:
            comm = jnp.where(self.speaks[rows][:, None], comm, 0.0)
            if self.c_noise[rows].any():
                noise = jax.random.normal(jax.random.fold_in(key, 1), comm.shape)
                comm = comm + noise * (self.c_noise * self.speaks)[rows][:, None]
        return self._of_all(u), None if comm is None else self._of_all(comm)

    def render(self, states: State, size: int = 400) -> np.ndarray:
        """Pictures of the states ``[T, ...]`` of one environment: trails, lidar rays, a colour per group."""
        return drawing.animate(scene(self, states), size)

    def shown(self, state: State) -> chex.Array:
        """``[N]`` bool: what a picture shows now; not what has been eaten, for example."""
        return jnp.array([entity.drawn for entity in self.world.entities])

    def field(self, states: State) -> drawing.Field | None:
        """What the ground of the states ``[T, ...]`` holds, for pictures; None if nothing."""
        return None

    # ------------------------------------------------------------------------------------------------- helpers

    def pos(self, state: State) -> chex.Array:
        """``[A, 2]``: where the policies' agents are."""
        return state.pos[self.bodies] if len(self.bodies) < len(self.world.agents) else state.pos[self.world.bodies]

    def vel(self, state: State) -> chex.Array:
        """``[A, 2]``: how the policies' agents move."""
        return state.vel[self.bodies] if len(self.bodies) < len(self.world.agents) else state.vel[self.world.bodies]

    def shared(self, reward: chex.Array) -> chex.Array:
        """``[A]``: the same for all."""
        return jnp.full(self.num_agents, reward)

    def beside(self, *blocks: chex.Array) -> chex.Array:
        """``[A, O]``: blocks ``[A, n]`` side by side; a block ``[n]`` or ``[]`` is seen by all alike."""
        count = self.num_agents
        rows = [
            b if b.ndim == 2 else jnp.broadcast_to(b.reshape(-1), (count, b.size)) for b in map(jnp.asarray, blocks)
        ]
        return jnp.concatenate(rows, axis=-1)

    def _timestep(self, key, state: State, reward: chex.Array, info: dict, terminated: chex.Array) -> TimeStep:
        rows = self.observe(key, state)
        obs = pad_stack(rows, self.obs_size) if isinstance(rows, list) else rows
        return TimeStep(
            obs=obs,
            state=obs.reshape(-1),  # VMAS has no global state of its own
            action_mask=jnp.asarray(self.action_mask),
            reward=reward,
            terminated=terminated,
            truncated=jnp.bool_(False),
            alive=jnp.ones(self.num_agents, bool),
            info=info,
        )

    def _hidden(self, state: State, given: dict[str, chex.Array]) -> dict[str, chex.Array]:
        return {name: jnp.asarray(value) for name, value in self.remember(state, given).items()}

    def _of_all(self, rows: chex.Array) -> chex.Array:
        """``[A, n] -> [W, n]``: zeros for scripted agents."""
        if len(self.learners) == len(self.world.agents):
            return rows
        return jnp.zeros((len(self.world.agents), rows.shape[1])).at[self.learners].set(rows)

    def _digits(self, action: chex.Array) -> chex.Array:
        """``[A] -> [A, U (+ 1)]``: the choices that a flat action stands for, a word last."""
        sizes = np.array(self._choices())  # [A, D]
        strides = np.concatenate([np.cumprod(sizes[:, :0:-1], axis=1)[:, ::-1], np.ones((len(sizes), 1), int)], axis=1)
        return action[:, None] // strides % sizes

    def _choices(self) -> list[tuple[int, ...]]:
        """``[A, D]``: how many choices each sub-action has, 1 where an agent has none to make."""
        word = (self.world.dim_c,) if self.speaks.any() else ()
        return [
            (
                *(CHOICES if d < self.sizes[i] else 1 for d in range(self.u_size)),
                *(word if self.speaks[i] else (1,) * len(word)),
            )
            for i in self.learners
        ]

    def _action_space(self, continuous: bool, multi_discrete: bool) -> ActionSpace:
        if continuous:
            words = self.world.dim_c * self.speaks[self.learners]
            sizes = tuple((self.sizes[self.learners] + words).tolist())
            low, high = np.zeros((2, len(sizes), max(sizes)), np.float32)
            for row, i in enumerate(self.learners):
                moves = self.sizes[i]
                low[row, :moves], high[row, :moves] = -self.u_range[i, :moves], self.u_range[i, :moves]
                high[row, moves : sizes[row]] = 1
            high[high == low] = 1  # padding, never read
            return Continuous(sizes, low, high)
        choices = self._choices()
        if multi_discrete:
            return MultiDiscrete(tuple(choices))
        return Discrete(tuple(int(np.prod(row)) for row in choices))

    def _per_dimension(self, name: str) -> np.ndarray:
        """``[W, U]``: a number or a tuple of every agent."""
        rows = [np.broadcast_to(getattr(agent, name), self.u_size) if np.ndim(getattr(agent, name)) == 0
                else np.resize(getattr(agent, name), self.u_size) for agent in self.world.agents]  # fmt: skip
        return np.array(rows, np.float32)
