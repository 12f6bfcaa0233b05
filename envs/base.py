"""The environment protocol: what every environment gives, and nothing about learning.

Shapes: ``A`` agents, ``O`` observation, ``S`` global state, ``N`` actions, ``D`` sub-actions. An :class:`Env`
steps **one** environment; the library vmaps it over environments and runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.errors import UserError


class TimeStep(struct.PyTreeNode):
    """What one environment shows after a reset or a step.

    ``terminated`` and ``truncated`` are never mixed: ``terminated`` says that the future holds no more reward,
    ``truncated`` only that we stopped looking (see ``TimeLimit``).
    """

    obs: chex.Array  # [A, O] float32, padded with zeros to the largest agent's size
    state: chex.Array  # [S] float32, the environment's own global state, else all observations
    action_mask: chex.Array  # [A, N] bool: legal actions (see the spaces); if continuous the dimensions an agent has
    reward: chex.Array  # [A] float32
    terminated: chex.Array  # [] bool
    truncated: chex.Array  # [] bool
    alive: chex.Array  # [A] bool: the agents that act on this observation
    info: dict[str, chex.Array]  # scalars such as `won`; the same keys after reset and step

    @property
    def earned(self) -> chex.Array:
        """``[A]``: what counts for the return: ``info["task_reward"]`` where a shaped reward is learnt from."""
        return self.info.get("task_reward", self.reward)


@dataclass(frozen=True)
class Discrete:
    """One integer per agent; agent ``i`` has ``sizes[i]`` actions. Actions are ``[A] int32``."""

    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """``N``: the largest agent's number of actions."""
        return max(self.sizes)


@dataclass(frozen=True)
class MultiDiscrete:
    """``D`` integers per agent: its sub-action ``d`` has ``sizes[i][d]`` choices, 1 if agent ``i`` has none to make.

    Actions are ``[A, D] int32``. In a mask the sub-actions stand side by side, each ``parts[d]`` wide.
    """

    sizes: tuple[tuple[int, ...], ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """The largest agent's number of choices in each of the ``D`` sub-actions."""
        return tuple(max(column) for column in zip(*self.sizes, strict=True))

    @property
    def size(self) -> int:
        """``N``: the choices of all sub-actions together, each padded to the largest agent's."""
        return sum(self.parts)


@dataclass(frozen=True, eq=False)
class Continuous:
    """A vector per agent in ``[low, high]``; agent ``i`` has ``sizes[i]`` dimensions. Actions: ``[A, N] float32``."""

    sizes: tuple[int, ...]
    low: np.ndarray  # [A, N]
    high: np.ndarray  # [A, N]

    @classmethod
    def box(cls, sizes: tuple[int, ...], low: float, high: float) -> Continuous:
        """The same bounds for every agent and dimension."""
        shape = (len(sizes), max(sizes))
        return cls(tuple(sizes), np.full(shape, low, np.float32), np.full(shape, high, np.float32))

    @property
    def size(self) -> int:
        """``N``: the largest agent's number of dimensions."""
        return max(self.sizes)


ActionSpace: TypeAlias = Discrete | MultiDiscrete | Continuous
EnvState: TypeAlias = Any


class Env:
    """One environment: static facts as attributes, ``reset`` and ``step`` as pure functions.

    A subclass sets the attributes in ``__init__`` and implements the two functions. ``truncated`` is left False
    (unless an environment cuts its episodes itself): the time limit belongs to the ``TimeLimit`` wrapper, which
    ``shoal.envs.make`` puts around every environment.
    """

    name: str = ""  # "family/task"
    agents: tuple[str, ...]  # the agents' names, length A
    groups: tuple[str, ...]  # the group (team) of each agent, length A
    obs_sizes: tuple[int, ...]  # each agent's own observation size, before padding
    obs_shape: tuple[int, ...] = ()  # the shape of an image observation before it was flattened to [O]; () for vectors
    position: tuple[int, int] | None = None  # [start, stop) of every agent's own absolute position in its observation
    state_size: int  # S
    action_space: ActionSpace
    horizon: int  # steps after which an episode is truncated
    terminates: bool = True  # whether an episode can end before its horizon
    mortal: bool = True  # whether an agent can die before its episode ends
    checked: bool = False  # whether tests check what it returns, so that no training needs to (envs.check)
    pool: Any = None  # the processes of the host that step it (envs.pool), if it is not JAX that does

    def reset(self, key: chex.PRNGKey) -> tuple[EnvState, TimeStep]:
        """The first state of an episode."""
        raise NotImplementedError(f"{type(self).__name__}.reset")

    def step(self, key: chex.PRNGKey, state: EnvState, action: chex.Array) -> tuple[EnvState, TimeStep]:
        """One transition; ``action`` is ``[A]`` int32, ``[A, D]`` int32 or ``[A, N]`` float32, by ``action_space``."""
        raise NotImplementedError(f"{type(self).__name__}.step")

    def render(self, states: EnvState, size: int = 400) -> np.ndarray:
        """``[T, size, size, 3]`` uint8: pictures of one environment's states ``[T, ...]``, for ``drawing.save``."""
        raise UserError(f"{self.name or type(self).__name__}: has no pictures; mpe and vmas environments have")

    @property
    def host(self) -> bool:
        """Whether processes of the host step it."""
        return self.pool is not None

    @property
    def num_agents(self) -> int:
        """``A``."""
        return len(self.agents)

    @property
    def obs_size(self) -> int:
        """``O``: the largest agent's observation size."""
        return max(self.obs_sizes)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The distinct groups, in order of first appearance."""
        return tuple(dict.fromkeys(self.groups))

    @property
    def group_ids(self) -> np.ndarray:
        """``[A]``: the index of each agent's group in ``group_names``."""
        return np.array([self.group_names.index(group) for group in self.groups])


def size_mask(sizes: tuple[int, ...] | tuple[tuple[int, ...], ...]) -> np.ndarray:
    """``[A, N]`` bool: which of the padded entries an agent really has, for the ``sizes`` of any action space."""
    parts = np.array(sizes).reshape(len(sizes), -1).T  # [D, A], or one row
    return np.concatenate([np.arange(part.max()) < part[:, None] for part in parts], axis=1)


def pad_stack(rows: list[chex.Array], size: int) -> chex.Array:
    """Stack one vector per agent to ``[A, size]``, zeros behind the shorter ones."""
    return jnp.stack([jnp.pad(row, (0, size - row.shape[0])) for row in rows])


def given_array(name: str, value: Any, shape: tuple[int, ...], dtype: Any = jnp.float32) -> chex.Array:
    """What an environment's ``restore`` was given for ``name``, of this shape but for axes of length 1."""
    try:
        value = jnp.asarray(value, dtype)
    except (TypeError, ValueError):
        raise UserError(f"restore({name}=...): must be numbers of the shape {shape}") from None
    if [n for n in value.shape if n != 1] != [n for n in shape if n != 1]:
        raise UserError(f"restore({name}=...): must have the shape {shape}, not {value.shape}")
    return value.reshape(shape)


def select(condition: chex.Array, if_true: Any, if_false: Any) -> Any:
    """``where`` over two equal trees; ``condition`` holds the leading axes of every leaf."""

    def pick(a, b):
        expanded = condition.reshape(condition.shape + (1,) * (jnp.ndim(a) - condition.ndim))
        return jnp.where(expanded, a, b)

    return jax.tree.map(pick, if_true, if_false)
