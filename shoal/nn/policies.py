"""One network for the agents of every policy: a torso, a memory if it has one, and a linear head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import chex
import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from shoal.nn import models, networks
from shoal.nn.models import Inputs, Model


class Network(nn.Module):
    """``x [..., A, I]`` and ``alive [..., A, 1]`` to ``[..., A, outputs]``.

    A recurrent model also reads the memory before and ``is_first [T, ..., A, 1]``, all others have a leading time axis
    then, and the memory after every step comes first in the result.
    """

    model: Model
    inputs: Inputs
    outputs: int
    scale: float  # of the head's first weights

    @property
    def mixes(self) -> bool:
        """Whether agents see each other."""
        return self.model.mixes

    @nn.compact
    def __call__(self, x: chex.Array, alive: chex.Array, is_first: chex.Array | None = None, memory: Any = ()) -> Any:
        features = models.torso(self.model, self.inputs, x, alive)
        memories = memory
        if is_first is not None:
            memories, features = models.remember(self.model, memory, features, is_first)
        outputs = networks.Dense(self.outputs, scale=self.scale, name="head")(features)
        return outputs if is_first is None else (memories, outputs)


@dataclass(frozen=True, eq=False)
class Policies:
    """A parameter set ``[P, ...]`` per policy for one network; ``policy_of`` says which one reads each row.

    The rows are agents, ``[..., A, I]``, unless a critic has others (``shoal.rl.critics``).
    """

    model: Model
    inputs: Inputs  # what is known of a row
    size: int  # I: the length of a row
    outputs: int
    policy_of: np.ndarray  # [A]: the parameter set that reads each row
    scale: float = 1.0  # of the head's first weights

    @property
    def network(self) -> Network:
        """The network of one policy."""
        return Network(self.model, self.inputs, self.outputs, self.scale)

    def init(self, key: chex.PRNGKey) -> Any:
        """First parameters ``[P, ...]``."""
        rows = len(self.policy_of)
        x, flags = jnp.zeros((rows, self.size)), jnp.ones((rows, 1), bool)
        arguments: tuple[Any, ...] = (x, flags)
        if self.model.remembers:
            arguments = (x[None], flags[None], flags[None], models.initial_memory(self.model, (rows,)))
        return networks.init_policies(self.network, key, int(self.policy_of.max()) + 1, *arguments)

    def __call__(self, params: Any, rows: chex.Array, alive: chex.Array) -> chex.Array:
        """``rows [..., A, I]`` and ``alive [..., A]`` to ``[..., A, outputs]``."""
        return networks.apply_policies(self.network, params, self.policy_of, rows, alive[..., None])

    def over_time(
        self, params: Any, rows: chex.Array, alive: chex.Array, is_first: chex.Array, memory: Any
    ) -> tuple[Any, chex.Array]:
        """Steps ``[T, ...]`` with ``is_first [T, ...]`` of environments, from the ``memory [..., A, H]`` before them.

        Gives the memory after every step and ``[T, ..., A, outputs]``.
        """
        inputs = (rows, alive[..., None], networks.per_row(is_first, rows), memory)
        return networks.apply_policies(self.network, params, self.policy_of, *inputs)

    def initial_memory(self, *shape: int) -> Any:
        """What the network remembers before anything has happened, for ``shape`` environments."""
        return models.initial_memory(self.model, (*shape, len(self.policy_of)))
