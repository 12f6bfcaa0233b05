"""Architectures that change inside a compiled program: masks over networks of the largest size.

``algo.actor.elastic=true`` builds an MLP of ``max_depth`` layers of ``max_width`` units. Which of them live stands among
its parameters (``arch_...``), read without a gradient: whatever carries the parameters, a target, a checkpoint, a clone,
carries the architecture. A unit that is dead is zero and gets no gradient; a layer that is off hands on its input.
The living units of a layer are its first ones, the living layers of a network as well.

Functions here take any tree that holds such networks (the ``params``, a target, a whole training state) with any
leading axes, of policies or twin critics, which have one architecture. They are pure, and for one run: ``vmap`` or
``lax.map`` them over the run axis. Called with the same key on parameters and on their target, they do the same to both,
fresh weights included.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.models import Model
from shoal.networks import (
    ACTIVATION,
    ACTIVATIONS,
    ELASTIC_ACTIVATIONS,
    LAYER_ON,
    LIVING,
    is_architecture,
)

__all__ = [
    "ACTIVATION_NAMES",
    "Living",
    "Settings",
    "cut",
    "describe",
    "enable",
    "has",
    "has_activation",
    "is_architecture",
    "living",
    "mutate_activation",
    "mutate_architecture",
    "recipe",
]

ACTIVATION_NAMES = tuple(ACTIVATIONS)  # what the numbers in the column `activation` of `describe` mean
TORSO = "MLP_0"  # flax's name of the MLP that reads a network's input
MEMORY_INPUTS = {"GRU_0": ("input_r", "input_z", "input_n"), "LSTM_0": ("input",)}  # what reads it if there is a memory


class Settings(NamedTuple):
    """How architectures mutate; the largest width and depth are those that the networks were built with."""

    new_layer: float = 0.2  # chance of a layer more or less, rather than units of a layer
    min_width: int = 32  # a layer does not shrink below it
    nodes: tuple[int, ...] = (16, 32, 64)  # how many units come or go


class Living(NamedTuple):
    """What of a network lives."""

    widths: tuple[int, ...]
    activation: str | None  # None if it cannot change: the configuration says it


def has(params: Any) -> bool:
    """Whether there is an elastic network in the tree."""
    return bool(_networks(params))


def has_activation(params: Any) -> bool:
    """Whether the activation of a network in the tree may change."""
    return any(_activations(network) for network in _networks(params).values())


def mutate_architecture(key: chex.PRNGKey, params: Any, settings: Settings = Settings()) -> Any:
    """A layer more or less (chance ``new_layer``), or some units of one layer, the same in every network of the tree.

    What cannot grow shrinks, and the reverse. Weights between units that live before and after are kept. New units and
    layers are drawn with the variance that first weights have; the weights by which the next part reads them, with that
    of their living neighbours.
    """
    raise NotImplementedError


def mutate_activation(key: chex.PRNGKey, params: Any) -> Any:
    """Another of relu, elu and gelu, in every network of the tree whose activation may change."""
    raise NotImplementedError


def describe(params: Any) -> dict[str, chex.Array]:
    """``actor/width_0``, ..., ``actor/depth``, ``actor/activation`` (into ``ACTIVATION_NAMES``): numbers ``[]`` int32.

    The width of a layer that is off is 0.
    """
    raise NotImplementedError


def living(params: Any) -> dict[str, Living]:
    """The networks of one run by their place in the tree, such as ``actor``, on the host."""
    raise NotImplementedError


def cut(params: Any) -> Any:
    """The tree of one run with plain networks of the living size, on the host; the activation is :func:`living`'s."""
    raise NotImplementedError


def recipe(params: Any, config: Any) -> dict[str, dict[str, Any]]:
    """Settings under ``algo`` that make the plain networks of :func:`cut`: ``{"actor": {"widths": [48, 64], ...}}``."""
    raise NotImplementedError


def enable(config: Any, activation: bool = False) -> Any:
    """A ``config`` whose networks that can be are elastic, with a mutable activation if asked."""
    raise NotImplementedError


def _is_network(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get(TORSO), dict) and LIVING in node[TORSO]


def _networks(tree: Any) -> dict[str, dict[str, Any]]:
    """The elastic networks of a tree by their place in it."""
    nodes = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_network)
    return {"/".join(_name(k) for k in path): node for path, node in nodes if _is_network(node)}


def _name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))


def _activations(network: dict[str, Any]) -> list[str]:
    return [name.removeprefix(ACTIVATION) for name in network[TORSO] if name.startswith(ACTIVATION)]
