"""What a critic may look at: the global state, all observations, the state beside the own observation, or that alone.

A central critic reads one row per policy and says a value for *every* agent, because rewards may differ between them;
this costs a fraction of a row per agent. The others read a row per agent and say one value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import chex
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs.base import Env, TimeStep
from shoal.envs.wrappers import VecTimeStep
from shoal.errors import UserError
from shoal.nn.models import Inputs, Model
from shoal.nn.policies import Policies

CRITICS = ("state", "observations", "agent_state", "local")


@dataclass(frozen=True, eq=False)
class CriticView:
    """How a critic sees an environment step.

    =============  ======================================================  ===================================
    kind           what a row is                                           rows
    =============  ======================================================  ===================================
    state          the environment's global state                          one per policy; a value per agent
    observations   the observations of all living agents, side by side     one per policy; a value per agent
    agent_state    the agent's observation and the global state            one per agent
    local          the agent's observation                                 one per agent
    =============  ======================================================  ===================================

    A network that mixes agents (deepsets, gnn) reads ``observations`` as they are: a row per agent.
    """

    kind: str
    model: Model
    env: Env
    policy_of: np.ndarray  # [A]

    @property
    def central(self) -> bool:
        """One row per policy, rather than per agent."""
        return self.kind in ("state", "observations") and not self.model.mixes

    @property
    def policy_of_row(self) -> np.ndarray:
        """``[K]``: the parameters that read each row."""
        return np.arange(self.policy_of.max() + 1) if self.central else self.policy_of

    @property
    def values(self) -> int:
        """How many values a row gets."""
        return self.env.num_agents if self.central else 1

    @property
    def size(self) -> int:
        """``C``: the length of a row."""
        obs, state = self.env.obs_size, self.env.state_size
        if self.central:
            return state if self.kind == "state" else self.env.num_agents * obs
        return obs + state if self.kind == "agent_state" else obs

    @property
    def inputs(self) -> Inputs:
        """What is known of a row."""
        shape, agents = self.env.obs_shape, self.env.num_agents
        if not self.central:
            return Inputs(shape, self.env.position)
        if self.kind == "observations" and self.model.reads == "cnn":
            return Inputs((*shape[:-1], shape[-1] * agents))
        if self.kind == "observations" and len(shape) == 2 and self.env.obs_size == np.prod(shape):
            return Inputs((shape[0] * agents, shape[1]))  # the entities of all agents, one table
        return Inputs()

    def __call__(self, obs: chex.Array, state: chex.Array, alive: chex.Array) -> chex.Array:
        """``obs [..., A, O]``, ``state [..., S]`` and ``alive [..., A]`` to the rows ``[..., K, C]``."""
        if self.kind == "agent_state":
            state = jnp.broadcast_to(state[..., None, :], (*obs.shape[:-1], state.shape[-1]))
            return jnp.concatenate([obs, state], axis=-1)
        if not self.central:
            return obs
        row = state if self.kind == "state" else self._side_by_side(jnp.where(alive[..., None], obs, 0.0))
        return jnp.broadcast_to(row[..., None, :], (*row.shape[:-1], len(self.policy_of_row), row.shape[-1]))

    def _side_by_side(self, obs: chex.Array) -> chex.Array:
        """``[..., A, O]`` to ``[..., A * O]``; images lie over each other as channels, what stands behind follows."""
        shape, lead = self.env.obs_shape, obs.shape[:-2]
        if self.model.reads != "cnn":
            return obs.reshape(*lead, -1)
        size = int(np.prod(shape))
        image = obs[..., :size].reshape(*lead, obs.shape[-2], -1, shape[-1])
        image = jnp.moveaxis(image, -3, -2).reshape(*lead, -1)  # [..., H * W * (A * channels)]
        return jnp.concatenate([image, obs[..., size:].reshape(*lead, -1)], axis=-1)

    def of_agents(self, values: chex.Array) -> chex.Array:
        """What the rows say, ``[..., K, V]``, as a value per agent ``[..., A]``."""
        if not self.central:
            return values.squeeze(-1)
        return values[..., self.policy_of, np.arange(self.env.num_agents)]

    def alive(self, alive: chex.Array) -> chex.Array:
        """``[..., A]`` to ``[..., K]``: the rows that count."""
        if not self.central:
            return alive
        return jnp.ones((*alive.shape[:-1], len(self.policy_of_row)), bool)

    def check(self) -> None:
        """Raise a :class:`UserError` for what cannot be."""
        if self.model.mixes and self.kind in ("state", "local"):
            reason = "has no agents in it" if self.kind == "state" else "is one agent's own"
            raise UserError(
                f"algo.critic_input={self.kind}: {self.model.reads} reads all agents, and this {reason}; "
                "use observations or agent_state"
            )
        if self.kind == "state" and self.model.reads == "cnn":
            raise UserError("algo.critic_input=state: a state is no image, as cnn needs; use observations")


class Observation(struct.PyTreeNode):
    """What is known of a step before anyone acts, as replay keeps it."""

    obs: chex.Array  # [..., A, O]
    state: chex.Array | None  # [..., S] if the critic reads it; not an empty array, which devices cannot share
    action_mask: chex.Array  # [..., A, N]
    alive: chex.Array  # [..., A]


@dataclass(frozen=True, eq=False)
class ActionCritic:
    """A critic of actions: one network, the rows that it reads, and which of its outputs are an agent's value.

    =============  ==============================================  =====================================
    kind           what a row is                                   rows
    =============  ==============================================  =====================================
    state          the global state and everyone's action          one per policy; a value per agent
    observations   all observations and everyone's action          one per policy; a value per agent
    local          the agent's observation and its own action      one per agent
    =============  ==============================================  =====================================

    Actions are vectors ``[..., A, N]``: one-hot or relaxed if discrete. The dead have observed and done nothing.
    """

    kind: str
    model: Model
    env: Env
    policy_of: np.ndarray  # [A]
    size: int = 1  # Z: how many numbers a value consists of

    @property
    def central(self) -> bool:
        """Everyone's action is seen."""
        return self.kind != "local"

    @property
    def values(self) -> int:
        """How many values a row gets."""
        return self.env.num_agents if self.central else 1

    @property
    def row_size(self) -> int:
        """``C``: the length of a row."""
        agents, obs, actions = self.env.num_agents, self.env.obs_size, self.env.action_space.size
        if not self.central:
            return obs + actions
        return agents * actions + (self.env.state_size if self.kind == "state" else agents * obs)

    def network(self, policy_of_row: np.ndarray) -> Policies:
        """The network for rows that are read by these parameter sets."""
        inputs = Inputs() if self.central else Inputs(self.env.obs_shape, self.env.position)
        return Policies(self.model, inputs, self.row_size, self.values * self.size, policy_of_row)

    @property
    def joint(self) -> Policies:
        """The network for the rows of a joint action: one per policy if central, else one per agent."""
        return self.network(np.arange(self.policy_of.max() + 1) if self.central else self.policy_of)

    def check(self, where: str) -> None:
        """Raise a :class:`UserError` for a network that cannot read the rows; ``where`` names it."""
        if self.model.mixes:
            raise UserError(
                f"{where}.network={self.model.reads}: reads agents, and a row of this critic is none; use mlp"
            )
        if self.model.reads == "cnn" and self.central:
            raise UserError(f"{where}.network=cnn: a row of a central critic is no image; use mlp, or a local critic")

    def init(self, key: chex.PRNGKey) -> Any:
        """First parameters ``[P, ...]``."""
        return self.joint.init(key)

    def __call__(self, params: Any, x: Observation, action: chex.Array) -> chex.Array:
        """The values ``[..., A, Z]`` of the joint ``action [..., A, N]`` to all agents."""
        done = jnp.where(x.alive[..., None], action, 0.0)
        if self.central:
            row = jnp.concatenate([self._seen(x), done.reshape(*done.shape[:-2], -1)], axis=-1)
            rows = jnp.broadcast_to(row[..., None, :], (*row.shape[:-1], self.policy_of.max() + 1, row.shape[-1]))
        else:
            rows = jnp.concatenate([x.obs, done], axis=-1)
        return self._apply(self.joint, params, rows, self.policy_of if self.central else np.arange(self.env.num_agents))

    def of_own(self, params: Any, x: Observation, action: chex.Array, own: chex.Array) -> chex.Array:
        """The value ``[..., A, Z]`` to each agent of its ``own`` action beside the others' part of ``action``."""
        agents = self.env.num_agents
        if self.central:
            mine = np.eye(agents, dtype=bool)[..., None]  # [A, A, 1]
            done = jnp.where(mine, own[..., None, :, :], action[..., None, :, :])  # [..., A, A, N]
            done = jnp.where(x.alive[..., None, :, None], done, 0.0)
            seen = self._seen(x)
            seen = jnp.broadcast_to(seen[..., None, :], (*seen.shape[:-1], agents, seen.shape[-1]))
            rows = jnp.concatenate([seen, done.reshape(*done.shape[:-2], -1)], axis=-1)
        else:
            rows = jnp.concatenate([x.obs, own], axis=-1)
        return self._apply(self.network(self.policy_of), params, rows, np.arange(agents))

    def observation(self, timestep: TimeStep) -> Observation:
        """What is known of a step."""
        return Observation(timestep.obs, self._kept(timestep.state), timestep.action_mask, timestep.alive)

    def successor(self, timestep: VecTimeStep) -> Observation:
        """What is known after a step: of its own episode, even if that has ended."""
        state = self._kept(timestep.final_state)
        return Observation(timestep.final_obs, state, timestep.final_action_mask, timestep.final_alive)

    def _kept(self, state: chex.Array) -> chex.Array | None:
        return state if self.kind == "state" else None  # replay need not keep it

    def _seen(self, x: Observation) -> chex.Array:
        """What a central row holds beside the actions, ``[..., F]``."""
        if x.state is not None:
            return x.state
        return jnp.where(x.alive[..., None], x.obs, 0.0).reshape(*x.obs.shape[:-2], -1)

    def _apply(self, network: Policies, params: Any, rows: chex.Array, row_of: np.ndarray) -> chex.Array:
        """``rows [..., K, C]`` to ``[..., A, Z]``, where ``row_of [A]`` is the row in which an agent's value stands."""
        outputs = network(params, rows, jnp.ones(rows.shape[:-1], bool))
        parts = outputs.reshape(*outputs.shape[:-1], self.values, self.size)  # [..., K, V, Z]
        column = np.arange(self.env.num_agents) if self.central else np.zeros(self.env.num_agents, int)
        return parts[..., row_of, column, :]
