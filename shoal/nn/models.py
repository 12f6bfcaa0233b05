"""Networks by name: what ``algo.actor`` and ``algo.critic`` choose, and where a user's own goes in.

    models.register("attend", lambda model, inputs: Attend(model.widths, inputs.shape))
    python my_idea.py algo.actor.network=attend

A torso reads ``x [..., A, O]`` and gives features ``[..., A, F]``. Most treat every agent's row by itself; ``deepsets``
and ``gnn`` see the agents as a set or a graph, and get ``alive [..., A, 1]`` to leave out those that are dead.
``gru`` and ``lstm`` put a memory behind the torso that ``model.torso`` names (``shoal.nn.memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from shoal.config.fields import setting
from shoal.envs.base import Env
from shoal.errors import UserError
from shoal.nn import memory
from shoal.nn.networks import ACTIVATIONS, CNN, ELASTIC_ACTIVATIONS, MLP, Dense, Elastic


class Inputs(NamedTuple):
    """What is known of the rows that a torso reads."""

    shape: tuple[int, ...] = ()  # of an image or of a table of entities, which stands flattened at a row's start
    position: tuple[int, int] | None = None  # where in a row its agent's position stands


class Entry(NamedTuple):
    make: Callable[[Any, Inputs], nn.Module]  # (model, inputs) -> torso
    mixes: bool  # whether agents see each other: the torso is called with (x, alive)


def _names() -> tuple[str, ...]:
    return (*TORSOS, *memory.MEMORIES)


def _torso_names() -> tuple[str, ...]:
    return tuple(TORSOS)


@dataclass(frozen=True)
class Model:
    """One network: of the actor or of the critic."""

    network: str = setting("mlp", choices=_names)  # what reads the observation
    widths: tuple[int, ...] = setting((64, 64), low=1)  # units of the hidden layers
    activation: str = setting("tanh", choices=tuple(ACTIVATIONS))  # of the hidden layers
    layer_norm: bool = setting(False)  # before the activation of a hidden layer
    channels: tuple[int, ...] = setting((32, 32), low=1)  # cnn: of the convolutions
    radius: float = setting(0.0, low=0.0)  # gnn: neighbours are nearer than this; 0 for all agents
    torso: str = setting("mlp", choices=_torso_names)  # gru, lstm: what reads the observation before the memory
    hidden: int = setting(64, low=1)  # gru, lstm: units of the memory
    after: tuple[int, ...] = setting((), low=1)  # gru, lstm: units of hidden layers behind it
    elastic: bool = setting(False)  # widths and depth are masks, which evolution may change (shoal.nn.elastic)
    max_width: int = setting(128, low=1)  # elastic: units that a hidden layer may grow to
    max_depth: int = setting(3, low=1)  # elastic: hidden layers that there may be
    mutable_activation: bool = setting(False)  # elastic: it may become another of relu, elu and gelu

    @property
    def reads(self) -> str:
        """The torso's name, with or without a memory behind it."""
        return self.torso if self.remembers else self.network

    @property
    def remembers(self) -> bool:
        """Whether a step knows the steps before it."""
        return self.network in memory.MEMORIES

    @property
    def mixes(self) -> bool:
        """Whether agents see each other."""
        return TORSOS[self.reads].mixes

    @property
    def largest(self) -> Elastic | None:
        """What an elastic network may become."""
        if not self.elastic:
            return None
        others = ELASTIC_ACTIVATIONS if self.mutable_activation else ()
        return Elastic(self.max_width, self.max_depth, tuple(sorted({self.activation, *others})))


class DeepSets(nn.Module):
    """Agents as a set (Zaheer et al. 2017): ``rho(phi(x_i), mean_j phi(x_j))`` over the living ``j``."""

    widths: Sequence[int]
    activation: str
    layer_norm: bool

    @nn.compact
    def __call__(self, x: chex.Array, alive: chex.Array) -> chex.Array:
        own = MLP(self.widths, self.activation, self.layer_norm)(x)
        living = jnp.where(alive, own, 0.0).sum(axis=-2, keepdims=True)
        mean = living / jnp.maximum(alive.sum(axis=-2, keepdims=True), 1)
        both = jnp.concatenate([own, jnp.broadcast_to(mean, own.shape)], axis=-1)
        return MLP(self.widths[-1:], self.activation, self.layer_norm)(both)


class GNN(nn.Module):
    """Agents as a graph: every width is a round of messages between living neighbours.

    .. math:: h_i' = \\phi(W h_i + \\mathrm{mean}_{j \\in N(i)}\\, \\phi(M h_j + R h_i + D (p_j - p_i)))

    Neighbours are all others, or those nearer than ``radius``; the term in ``D`` is there where positions are known.
    """

    widths: Sequence[int]
    activation: str
    layer_norm: bool
    position: tuple[int, int] | None
    radius: float

    @nn.compact
    def __call__(self, x: chex.Array, alive: chex.Array) -> chex.Array:
        agents = x.shape[-2]
        activate = ACTIVATIONS[self.activation]
        near = jnp.swapaxes(alive, -1, -2) & ~np.eye(agents, dtype=bool)  # [..., A, A]: i hears j
        away = None
        if self.position is not None:
            position = x[..., slice(*self.position)]
            away = position[..., None, :, :] - position[..., :, None, :]  # [..., A, A, 2]
            if self.radius > 0:
                near &= jnp.square(away).sum(-1) < self.radius**2
        for width in self.widths:
            message = Dense(width)(x)[..., None, :, :] + Dense(width)(x)[..., :, None, :]  # [..., A, A, F]
            if away is not None:
                message += Dense(width)(away)
            heard = jnp.where(near[..., None], activate(message), 0.0).sum(axis=-2)
            x = Dense(width)(x) + heard / jnp.maximum(near.sum(axis=-1), 1)[..., None]
            x = activate(nn.LayerNorm()(x) if self.layer_norm else x)
        return x


TORSOS: dict[str, Entry] = {
    "mlp": Entry(lambda m, inputs: MLP(m.widths, m.activation, m.layer_norm, m.largest), mixes=False),
    "cnn": Entry(lambda m, inputs: CNN(inputs.shape, m.channels, m.widths, m.activation, m.layer_norm), mixes=False),
    "deepsets": Entry(lambda m, inputs: DeepSets(m.widths, m.activation, m.layer_norm), mixes=True),
    "gnn": Entry(lambda m, inputs: GNN(m.widths, m.activation, m.layer_norm, inputs.position, m.radius), mixes=True),
}


def register(name: str, make: Callable[[Model, Inputs], nn.Module], mixes: bool = False) -> None:
    """Make a torso known as ``network=<name>``: a flax module ``x [..., A, O] -> [..., A, F]``.

    One that ``mixes`` is called with ``(x, alive)`` and may let agents see each other.
    """
    if name in (*memory.MEMORIES, *TORSOS):
        raise UserError(f"models.register({name!r}): there is a network of this name already")
    TORSOS[name] = Entry(make, mixes)


def torso(model: Model, inputs: Inputs, x: chex.Array, alive: chex.Array) -> chex.Array:
    """Features ``[..., A, F]`` of the rows ``x [..., A, O]``; call it inside a flax module."""
    entry = TORSOS[model.reads]
    module = entry.make(model, inputs)
    return module(x, alive) if entry.mixes else module(x)


def remember(model: Model, before: Any, x: chex.Array, is_first: chex.Array) -> tuple[Any, chex.Array]:
    """The memory after every step, and features ``[T, ..., A, F]`` that know the past; inside a flax module."""
    if not model.remembers:
        return before, x
    memories, x = memory.MEMORIES[model.network](model.hidden)(before, x, is_first)
    return memories, MLP(model.after, model.activation, model.layer_norm)(x)


def initial_memory(model: Model, shape: tuple[int, ...]) -> Any:
    """What a network remembers at the start: nothing."""
    return memory.initial(model.network, model.hidden, shape)


def own_head(actor: Model, critic: Model, recurrent: bool) -> Model:
    """What remains of the ``critic`` where it shares the torso and the memory of the ``actor``: layers behind them."""
    for field in fields(Model):
        shared, other = getattr(actor, field.name), getattr(critic, field.name)
        if shared != other:
            where = f"algo.critic.{field.name}={other}"
            raise UserError(f"algo.share_torso=true: {where} must be the actor's, {shared}: they are one network")
    if actor.elastic:
        raise UserError("algo.share_torso=true: an elastic network shares no torso; set algo.actor.elastic=false")
    if recurrent and not actor.remembers:
        raise UserError(
            f"algo.share_torso=true: algo.actor.network={actor.network} has no memory; use the sibling *_ff_*.py"
        )
    return Model("mlp", actor.after if recurrent else (), actor.activation, actor.layer_norm)


def check(where: str, model: Model, env: Env, recurrent: bool, normalised: bool = False) -> None:
    """Raise a :class:`UserError` if ``env`` cannot feed ``model``; ``where`` is ``algo.actor`` or ``algo.critic``."""
    if model.remembers and not recurrent:
        raise UserError(f"{where}.network={model.network}: this file has no memory; use its sibling *_rnn_*.py")
    _check_elastic(where, model)
    if model.reads == "cnn" and len(env.obs_shape) != 3:
        field = "network" if model.network == "cnn" else "torso"
        raise UserError(f"{where}.{field}=cnn: {env.name} has no image observations; use mlp")
    if model.radius > 0 and model.reads == "gnn" and env.position is None:
        raise UserError(f"{where}.radius={model.radius:g}: {env.name} does not show positions; use 0, all agents")
    if model.radius > 0 and model.reads == "gnn" and normalised:
        raise UserError(
            f"{where}.radius={model.radius:g}: algo.normalise_obs=true hides distances; choose one of the two"
        )


def _check_elastic(where: str, model: Model) -> None:
    if not model.elastic:
        if model.mutable_activation:
            raise UserError(f"{where}.mutable_activation=true: needs {where}.elastic=true")
        return
    if model.mutable_activation and model.remembers and model.after:
        after = list(model.after)
        raise UserError(f"{where}.mutable_activation=true: not with layers behind the memory, {where}.after={after}")
    if model.reads != "mlp":
        raise UserError(f"{where}.elastic=true: {model.reads} has no masks; use mlp")
    if not model.widths or max(model.widths) > model.max_width:
        widths = list(model.widths)
        raise UserError(f"{where}.widths={widths}: elastic, so from 1 to {where}.max_width={model.max_width} each")
    if len(model.widths) > model.max_depth:
        raise UserError(f"{where}.widths={list(model.widths)}: more than {where}.max_depth={model.max_depth} layers")
