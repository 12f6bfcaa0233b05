"""What a critic may look at: the global state, all observations, the state beside the own observation, or that alone.

A central critic reads one row per policy and says a value for *every* agent, because rewards may differ between them;
this costs a fraction of a row per agent. The others read a row per agent and say one value.
"""

from __future__ import annotations

from dataclasses import dataclass

import chex
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import Env
from shoal.errors import UserError
from shoal.nn.models import Inputs, Model

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


CENTRAL_INPUTS = ("state", "observations")


@dataclass(frozen=True, eq=False)
class ActionView:
    """How a critic of *actions* sees an environment step: who reads what, and which action is whose.

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
    env: Env
    policy_of: np.ndarray  # [A]

    @property
    def central(self) -> bool:
        """Everyone's action is seen."""
        return self.kind != "local"

    @property
    def policy_of_row(self) -> np.ndarray:
        """``[K]``: the parameters that read each row of :meth:`__call__`; those of :meth:`own` are ``policy_of``."""
        return np.arange(self.policy_of.max() + 1) if self.central else self.policy_of

    @property
    def values(self) -> int:
        """How many values a row gets."""
        return self.env.num_agents if self.central else 1

    @property
    def size(self) -> int:
        """``C``: the length of a row."""
        agents, obs, actions = self.env.num_agents, self.env.obs_size, self.env.action_space.size
        if not self.central:
            return obs + actions
        return agents * actions + (self.env.state_size if self.kind == "state" else agents * obs)

    def __call__(self, obs: chex.Array, state: chex.Array, alive: chex.Array, action: chex.Array) -> chex.Array:
        """Rows ``[..., K, C]`` of the joint ``action [..., A, N]``."""
        joint = jnp.where(alive[..., None], action, 0.0)
        if not self.central:
            return jnp.concatenate([obs, joint], axis=-1)
        row = jnp.concatenate([self._seen(obs, state, alive), joint.reshape(*joint.shape[:-2], -1)], axis=-1)
        return jnp.broadcast_to(row[..., None, :], (*row.shape[:-1], len(self.policy_of_row), row.shape[-1]))

    def own(
        self, obs: chex.Array, state: chex.Array, alive: chex.Array, action: chex.Array, own: chex.Array
    ) -> chex.Array:
        """Rows ``[..., A, C]``: agent ``i`` reads ``own_i`` as its own action and ``action_j`` as the others'."""
        if not self.central:
            return jnp.concatenate([obs, own], axis=-1)
        agents = self.env.num_agents
        mine = np.eye(agents, dtype=bool)[..., None]  # [A, A, 1]
        joint = jnp.where(mine, own[..., None, :, :], action[..., None, :, :])  # [..., A, A, N]
        joint = jnp.where(alive[..., None, :, None], joint, 0.0)
        seen = self._seen(obs, state, alive)
        seen = jnp.broadcast_to(seen[..., None, :], (*seen.shape[:-1], agents, seen.shape[-1]))
        return jnp.concatenate([seen, joint.reshape(*joint.shape[:-2], -1)], axis=-1)

    def _seen(self, obs: chex.Array, state: chex.Array, alive: chex.Array) -> chex.Array:
        if self.kind == "state":
            return state
        return jnp.where(alive[..., None], obs, 0.0).reshape(*obs.shape[:-2], -1)

    def of_agents(self, values: chex.Array) -> chex.Array:
        """What the rows of :meth:`__call__` say, ``[..., K, V * Z]``, for each agent: ``[..., A, Z]``.

        ``Z`` is what one value consists of: 1, or the atoms of a distribution.
        """
        agents = np.arange(self.env.num_agents)
        rows = self.policy_of if self.central else agents
        return self._pick(values, rows)

    def of_own(self, values: chex.Array) -> chex.Array:
        """The same of the rows of :meth:`own`, ``[..., A, V * Z]``."""
        return self._pick(values, np.arange(self.env.num_agents))

    def _pick(self, values: chex.Array, rows: np.ndarray) -> chex.Array:
        parts = values.reshape(*values.shape[:-1], self.values, -1)  # [..., rows, V, atoms]
        column = np.arange(self.env.num_agents) if self.central else np.zeros(self.env.num_agents, int)
        return parts[..., rows, column, :]  # [..., A, atoms]
