r"""From the values of agents to the values of teams: QMIX, VDN, or none.

``chosen [..., A]`` becomes ``[..., M]``: one value per team, or per agent if nothing is mixed. Teams are the groups of
the environment; each has a mixer of its own, which sees its members and the global state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from shoal.hashing import hashed
from shoal.nn import networks
from shoal.nn.networks import Dense
from shoal.rl.groups import Groups

MIXERS = ("qmix", "vdn", "none")


class QMixer(nn.Module):
    r"""A monotonic mixture (Rashid et al. 2018), its weights made from the state ``s`` by hypernetworks.

    .. math:: Q = |w_2(s)|^\top \mathrm{elu}(|W_1(s)|\, q + b_1(s)) + b_2(s), \qquad \partial Q / \partial q_i \ge 0
    """

    width: int
    hyper_width: int  # 0 for linear hypernetworks

    @nn.compact
    def __call__(self, chosen: chex.Array, state: chex.Array) -> chex.Array:
        """``chosen [..., A]`` and ``state [..., S]`` to ``[...]``."""
        agents = chosen.shape[-1]

        def hyper(size: int, name: str, scale: float) -> chex.Array:
            hidden = nn.relu(Dense(self.hyper_width, name=f"{name}_hidden")(state)) if self.hyper_width else state
            return Dense(size, scale=scale, name=name)(hidden)

        # Absolute weights add up over the units. These scales let the mixture start near the agents' sum; with plain
        # orthogonal layers values ran far above zero in trials on simple_spread, whose rewards are negative.
        w_1 = _absolute(hyper(agents * self.width, "w_1", scale=0.5)).reshape(*chosen.shape, self.width)
        b_1 = Dense(self.width, scale=0.5, name="b_1")(state)
        w_2 = _absolute(hyper(self.width, "w_2", scale=4.0 / self.width))
        b_2 = Dense(1, scale=0.1, name="b_2")(nn.relu(Dense(self.width, name="b_2_hidden")(state)))
        # Added agent by agent: of a sum over the axis XLA's CPU backend makes slow kernels with the products around it.
        hidden = nn.elu(sum(jnp.unstack(chosen[..., None] * w_1, axis=-2)) + b_1)
        return (hidden * w_2).sum(-1) + b_2.squeeze(-1)


def _absolute(x: chex.Array) -> chex.Array:
    """``jnp.abs``; of that XLA's CPU backend makes one slow kernel with the products before it and the sum after."""
    return jnp.where(x < 0.0, -x, x)


@dataclass(frozen=True, eq=False)
class Mixing:
    """How the agents' values are put together, for teams ``group_ids [A]``."""

    kind: str
    module: QMixer
    group_ids: np.ndarray  # [A]

    @property
    def members(self) -> np.ndarray:
        """``[M, A]``: which agents each value is of."""
        ids = np.arange(len(self.group_ids)) if self.kind == "none" else self.group_ids
        return np.arange(ids.max() + 1)[:, None] == ids

    def init(self, key: chex.PRNGKey, state_size: int) -> dict[str, Any]:
        """``{"mixer": parameters [M, ...]}``, or nothing for what has none."""
        if self.kind != "qmix":
            return {}
        inputs = (jnp.zeros(len(self.group_ids)), jnp.zeros(state_size))
        keys = jax.random.split(hashed(key), len(self.members))
        return {"mixer": jax.vmap(lambda k: self.module.init(k, *inputs)["params"])(keys)}

    def __call__(
        self, params: dict[str, Any], chosen: chex.Array, state: chex.Array, earning: chex.Array
    ) -> chex.Array:
        """``[..., M]`` from ``chosen`` and ``earning [..., A]``; the others add nothing."""
        chosen = jnp.where(earning, chosen, 0.0)
        if self.kind == "none":
            return chosen
        teams = [jnp.where(member, chosen, 0.0) for member in self.members]
        if self.kind == "vdn":
            return jnp.stack([team.sum(-1) for team in teams], axis=-1)
        mixers = [jax.tree.map(lambda p, m=m: p[m], params["mixer"]) for m in range(len(teams))]
        mixed: list[Any] = [networks.apply(self.module, p, team, state) for p, team in zip(mixers, teams, strict=True)]
        return jnp.stack(mixed, axis=-1)

    def reward(self, reward: chex.Array) -> chex.Array:
        """``[..., A]`` to ``[..., M]``: a team's reward is the mean of its members'."""
        share = self.members / self.members.sum(axis=1, keepdims=True)
        return reward if self.kind == "none" else (reward[..., None, :] * share).sum(-1)

    def earning(self, earning: chex.Array) -> chex.Array:
        """``[..., A]`` to ``[..., M]``: a team's return goes on while that of one of its members does."""
        return earning if self.kind == "none" else (earning[..., None, :] & self.members).any(-1)

    def mean(self, x: chex.Array, where: chex.Array, policies: Groups) -> chex.Array:
        """The sum over teams (or policies, if nothing is mixed) of the masked means of ``x [..., M]``."""
        groups = policies if self.kind == "none" else Groups(np.arange(len(self.members)), policies.axis_name)
        return groups.mean(x, where).sum()
