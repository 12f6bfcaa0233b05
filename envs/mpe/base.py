"""What all MPE tasks share: their state, how actions are read, and the step."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs import drawing
from shoal.envs.base import ActionSpace, Continuous, Discrete, Env, MultiDiscrete, TimeStep, given_array, size_mask
from shoal.envs.mpe.world import World
from shoal.errors import UserError

HORIZON = 25
MOVES = 5  # stay, left, right, down, up
MOVE_PLUS, MOVE_MINUS = np.array([2, 4]), np.array([1, 3])  # the moves that push along +x, +y and along -x, -y


@struct.dataclass
class State:
    """The world between two steps; ``comm`` and ``goal`` are None in tasks without them."""

    pos: chex.Array  # [A, 2]
    vel: chex.Array  # [A, 2]
    landmarks: chex.Array  # [L, 2]
    comm: chex.Array | None  # [speakers, C] what the speakers said last
    goal: chex.Array | None  # int32, what the task drew at the reset: an index or several


class ParticleEnv(Env):
    """A task: subclasses describe the world, who speaks and what is drawn, and implement ``observe`` and ``reward``.

    An agent that moves has 5 actions (stay, left, right, down, up; continuous: 5 numbers in [0, 1], of which the
    second pushes left, the third right, the fourth down and the fifth up). One that speaks chooses a word or, if
    continuous, sends a vector in [0, 1]; one that does both has ``word * 5 + move`` (``(move, word)`` if
    ``multi_discrete``), or the move before the message.
    """

    terminates = False
    mortal = False
    horizon = HORIZON
    speakers, words = 0, 0  # how many agents speak, the first ones, and the size of a message
    goals: tuple[int, ...] | None = None  # the shape of the state's `goal`
    goal_count = 1  # an entry of `goal` is below this
    landmark_spawn = 1.0  # landmarks spawn within this of the centre, per coordinate; agents within 1

    def __init__(
        self,
        world: World,
        agents: list[str],
        groups: list[str],
        obs_sizes: list[int],
        continuous: bool,
        multi_discrete: bool = False,
    ):
        self.world = world
        self.agents, self.groups, self.obs_sizes = tuple(agents), tuple(groups), tuple(obs_sizes)
        self.state_size = self.num_agents * self.obs_size
        self.action_space = self._action_space(continuous, multi_discrete)
        self.action_mask = size_mask(self.action_space.sizes)

    def observe(self, state: State) -> chex.Array:
        """``[A, O]``."""
        raise NotImplementedError(f"{type(self).__name__}.observe")

    def reward(self, state: State) -> chex.Array:
        """``[A]``, for having come to ``state``."""
        raise NotImplementedError(f"{type(self).__name__}.reward")

    def reset(self, key: chex.PRNGKey) -> tuple[State, TimeStep]:
        agents, landmarks = self.world.agents, self.world.landmarks
        num_goals = 0 if self.goals is None else int(np.prod(self.goals))
        draws = jax.random.uniform(key, (2 * (agents + landmarks) + num_goals,))  # one draw: each costs a kernel
        pos = 2 * draws[: 2 * agents].reshape(agents, 2) - 1
        spread = self.landmark_spawn * (2 * draws[2 * agents : 2 * (agents + landmarks)] - 1)
        goal = None
        if self.goals is not None:
            goal = jnp.floor(draws[2 * (agents + landmarks) :] * self.goal_count).astype(jnp.int32).reshape(self.goals)
        comm = jnp.zeros((self.speakers, self.words)) if self.speakers else None
        state = State(pos, jnp.zeros((agents, 2)), spread.reshape(landmarks, 2), comm, goal)
        return state, self._timestep(state, jnp.zeros(agents))

    def step(self, key: chex.PRNGKey, state: State, action: chex.Array) -> tuple[State, TimeStep]:
        thrust, comm = self.read_action(action)
        pos, vel = state.pos, state.vel
        if np.any(self.world.movable):
            pos, vel = self.world.move(pos, vel, state.landmarks, self.thrust(key, state, thrust))
        state = State(pos, vel, state.landmarks, comm, state.goal)
        return state, self._timestep(state, self.reward(state))

    def thrust(self, key: chex.PRNGKey, state: State, thrust: chex.Array) -> chex.Array:
        """``[A, 2]``: the agents' own force; a task whose agents do not all obey replaces some of it."""
        return thrust

    def read_action(self, action: chex.Array) -> tuple[chex.Array, chex.Array | None]:
        """The force that the agents want ``[A, 2]`` and what the speakers say ``[speakers, C]``."""
        both = self.speakers and self.world.movable[0]  # speakers are alike: all of them move, or none
        comm = None
        if isinstance(self.action_space, Continuous):
            push = action[:, 2:5:2] - action[:, 1:4:2]
            if self.speakers:
                comm = action[: self.speakers, MOVES:] if both else action[: self.speakers, : self.words]
        else:
            if isinstance(self.action_space, MultiDiscrete):
                move, word = action[:, :1], action[: self.speakers, 1:]
            else:
                move, word = action[:, None], action[: self.speakers, None]
                if both:
                    move, word = move % MOVES, word // MOVES
            push = (move == MOVE_PLUS).astype(jnp.float32) - (move == MOVE_MINUS).astype(jnp.float32)
            if self.speakers:
                comm = (word == np.arange(self.words)).astype(jnp.float32)
        return push * (self.world.accel * self.world.movable)[:, None], comm

    def restore(self, pos: Any, vel: Any = None, comm: Any = None, goal: Any = None) -> State:
        """The state with these positions ``[A + L, 2]``, agents first, at rest and silent unless said otherwise.

        ``vel`` is ``[A, 2]`` or ``[A + L, 2]``, ``comm`` has a row per speaker or per agent.
        """
        agents, bodies = self.world.agents, self.world.agents + self.world.landmarks
        pos = given_array("pos", pos, (bodies, 2))
        vel = jnp.zeros((agents, 2)) if vel is None else _first_rows("vel", vel, (agents, 2), bodies)
        if self.speakers:
            shape = (self.speakers, self.words)
            comm = jnp.zeros(shape) if comm is None else _first_rows("comm", comm, shape, agents)
        elif comm is not None:
            raise UserError(f"restore(comm=...): nobody speaks in {type(self).__name__}")
        if self.goals is not None:
            if goal is None:
                raise UserError(f"restore(goal=None): {type(self).__name__} has a goal, of shape {self.goals}")
            goal = given_array("goal", goal, self.goals, jnp.int32)
        elif goal is not None:
            raise UserError(f"restore(goal=...): {type(self).__name__} has no goal")
        return State(pos[:agents], vel, pos[agents:], comm, goal)

    def render(self, states: State, size: int = 400) -> np.ndarray:
        """Pictures of the states ``[T, ...]`` of one environment: trails, a colour per team."""
        states, world = jax.device_get(states), self.world
        pos = np.concatenate([states.pos, states.landmarks], axis=1)
        teams = [drawing.GROUPS[i % len(drawing.GROUPS)] for i in self.group_ids]
        solid = np.arange(world.agents + world.landmarks) < world.solid
        bodies = [
            drawing.Body(
                colour=teams[i] if i < world.agents else "grey" if solid[i] else "light_green",
                radius=float(world.radius[i]),
                solid=bool(solid[i]) or i < world.agents,
                agent=i < world.agents,
            )
            for i in range(world.agents + world.landmarks)
        ]
        steps, count = pos.shape[:2]
        shown, rays = np.ones((steps, count), bool), np.zeros((steps, 0, 2, 2))
        return drawing.animate(drawing.Scene(bodies, pos, np.zeros((steps, count)), shown, rays, title=self.name), size)

    def _timestep(self, state: State, reward: chex.Array) -> TimeStep:
        obs = self.observe(state)
        return TimeStep(
            obs=obs,
            state=obs.reshape(-1),  # MPE has no global state of its own
            action_mask=jnp.asarray(self.action_mask),
            reward=reward,
            terminated=jnp.bool_(False),
            truncated=jnp.bool_(False),
            alive=jnp.ones(self.num_agents, bool),
            info={},
        )

    def _action_space(self, continuous: bool, multi_discrete: bool) -> ActionSpace:
        if continuous and multi_discrete:
            raise UserError("env.kwargs.multi_discrete=True: must be False if continuous=True")
        moves = MOVES * self.world.movable.astype(int)  # [A]
        words = self.words * (np.arange(self.num_agents) < self.speakers)  # [A]
        if continuous:
            return Continuous.box(tuple((moves + words).tolist()), 0.0, 1.0)
        choices = np.maximum(np.stack([moves, words], axis=1), 1)  # [A, 2]
        if multi_discrete:
            return MultiDiscrete(tuple(map(tuple, choices.tolist())))
        return Discrete(tuple(choices.prod(axis=1).tolist()))


def numbered(name: str, count: int) -> list[str]:
    """``name_0``, ``name_1``, ..."""
    return [f"{name}_{i}" for i in range(count)]


def _first_rows(name: str, value: Any, shape: tuple[int, ...], rows: int) -> chex.Array:
    """What ``restore`` was given for ``name``: of this shape, or with more ``rows``, of which the first count."""
    many = hasattr(value, "__len__") and len(value) == rows
    return given_array(name, value, (rows, *shape[1:]) if many else shape)[: shape[0]]
