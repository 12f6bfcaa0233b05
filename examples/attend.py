"""A network of your own: attention over a table of entities, on an environment of your own.

Many environments show each agent a table ``[N, F]``: a row per entity, as knights_archers_zombies does. Its rows have
no order, so that a network should not care for it. ``env.obs_shape = (N, F)`` says that an observation is such a table,
flattened; ``mlp`` reads the flat numbers, ``attend`` (below, one registered name) the rows:

    python examples/attend.py                              # attend
    python examples/attend.py algo.actor.network=mlp       # flatten, for comparison

Shapes: A agents, N entities, F features of an entity.
"""

from __future__ import annotations

from collections.abc import Sequence

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

import shoal
from shoal import envs
from shoal.baselines.ippo.ippo_ff_mpe import IPPO
from shoal.envs.base import Discrete, Env, TimeStep
from shoal.nn import models
from shoal.nn.networks import MLP, Dense


class Attend(nn.Module):
    """Each entity by the same MLP; a learnt query picks among them: ``[..., N * F]`` to ``[..., widths[-1]]``."""

    widths: Sequence[int]
    activation: str
    shape: tuple[int, int]

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        rows, features = self.shape
        table = x[..., : rows * features].reshape(*x.shape[:-1], rows, features)
        entities = MLP(self.widths, self.activation)(table)  # [..., N, width]
        weights = nn.softmax(Dense(1)(entities), axis=-2)
        return (weights * entities).sum(axis=-2)


models.register("attend", lambda model, inputs: Attend(model.widths, model.activation, inputs.shape))


class State(struct.PyTreeNode):
    agents: chex.Array  # [A, 2]
    entities: chex.Array  # [N, 2]
    edible: chex.Array  # [N] bool, one of them


class Forage(Env):
    """Two agents look for the one edible of eight entities, and lose their distance to it at every step."""

    name = "example/forage"
    agents = ("agent_0", "agent_1")
    groups = ("team", "team")
    obs_shape = (8, 3)  # direction to an entity, and whether it is edible
    obs_sizes = (24, 24)
    state_size = 48
    action_space = Discrete((5, 5))
    horizon = 25
    terminates = False

    def reset(self, key: chex.PRNGKey) -> tuple[State, TimeStep]:
        place_key, choice_key = jax.random.split(key)
        places = jax.random.uniform(place_key, (20,), minval=-1.0, maxval=1.0).reshape(10, 2)
        edible = jnp.arange(8) == jax.random.randint(choice_key, (), 0, 8)
        state = State(places[:2], places[2:], edible)
        return state, self.look(state)

    def step(self, key: chex.PRNGKey, state: State, action: chex.Array) -> tuple[State, TimeStep]:
        moves = jnp.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], jnp.float32)
        chosen = (action[:, None] == jnp.arange(5)).astype(jnp.float32) @ moves
        state = state.replace(agents=state.agents + 0.15 * chosen)
        return state, self.look(state)

    def look(self, state: State) -> TimeStep:
        """What is seen of ``state``."""
        away = state.entities - state.agents[:, None]  # [A, N, 2]
        edible = jnp.broadcast_to(state.edible[:, None], (2, 8, 1))
        obs = jnp.concatenate([away, edible], axis=-1).reshape(2, -1)
        distance = jnp.sqrt(jnp.square(away).sum(-1) + 1e-8)  # [A, N]
        return TimeStep(
            obs=obs,
            state=obs.reshape(-1),
            action_mask=jnp.ones((2, 5), bool),
            reward=-jnp.where(state.edible, distance, 0.0).sum(-1),
            terminated=jnp.bool_(False),
            truncated=jnp.bool_(False),
            alive=jnp.ones(2, bool),
            info={},
        )


envs.register("example/forage", Forage)

if __name__ == "__main__":
    shoal.main(IPPO)
