"""Architectures that change inside a compiled program: masks over networks of the largest size.

``algo.actor.elastic=true`` builds an MLP of ``max_depth`` layers of ``max_width`` units. Which of them live stands
among its parameters (``arch_...``), read without a gradient: whatever carries the parameters, a target, a checkpoint, a
clone, carries the architecture. A unit that is dead is zero and gets no gradient; a layer that is off hands on its
input. The living units of a layer are its first ones, and so are the living layers of a network.

Functions here take any tree that holds such networks (the ``params``, a target, a whole training state) with any
leading axes, of policies or twin critics, which have one architecture. They are pure, and for one run: ``vmap`` or
``lax.map`` them over the run axis. With one key they do the same to all networks of the tree; the random numbers
of fresh weights are the same in parameters and their target, which share the network's name.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.nn.models import Model
from shoal.nn.networks import ACTIVATION, ACTIVATIONS, ELASTIC_ACTIVATIONS, LAYER_ON, LIVING, is_architecture

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


DEFAULT = Settings()


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


def mutate_architecture(key: chex.PRNGKey, params: Any, settings: Settings = DEFAULT) -> Any:
    """A layer more or less (chance ``new_layer``), or some units of one layer, the same in every network of the tree.

    What cannot grow shrinks, and the reverse. Weights between units that live before and after are kept. New units and
    layers are drawn with the variance that first weights have; the weights by which the next part reads them, with that
    of their living neighbours.
    """
    kind_key, grow_key, layer_key, nodes_key, fresh_key = jax.random.split(key, 5)
    draw = Draw(
        layer=jax.random.uniform(kind_key) < settings.new_layer,
        grow=jax.random.bernoulli(grow_key),
        at=jax.random.uniform(layer_key),
        nodes=jax.random.choice(nodes_key, jnp.array(settings.nodes)),
    )

    def mutate(path: tuple[Any, ...], node: Any) -> Any:
        if not _is_network(node):
            return node
        before = _shape(node)
        own_key = jax.random.fold_in(fresh_key, zlib.crc32(_name(path[-1]).encode()) if path else 0)
        return _reshaped(own_key, node, before, _mutated(draw, before, settings, node[TORSO][LIVING].shape[-1]))

    return jax.tree_util.tree_map_with_path(mutate, params, is_leaf=_is_network)


def mutate_activation(key: chex.PRNGKey, params: Any) -> Any:
    """Another of relu, elu and gelu, in every network of the tree whose activation may change."""
    score = jax.random.uniform(key, (len(ELASTIC_ACTIVATIONS),))

    def mutate(node: Any) -> Any:
        if not _is_network(node) or not _activations(node):
            return node
        torso = node[TORSO]
        old = jnp.stack([_one(torso[ACTIVATION + name]) for name in ELASTIC_ACTIVATIONS]) > 0.5
        new = dict.fromkeys(_activations(node), jnp.bool_(False))
        new |= dict(zip(ELASTIC_ACTIVATIONS, jnp.arange(len(old)) == jnp.where(old, -1.0, score).argmax(), strict=True))
        flags = {ACTIVATION + n: jnp.broadcast_to(jnp.float32(v), torso[ACTIVATION + n].shape) for n, v in new.items()}
        return node | {TORSO: torso | flags}

    return jax.tree.map(mutate, params, is_leaf=_is_network)


def describe(params: Any) -> dict[str, chex.Array]:
    """``actor/width_0``, ..., ``actor/depth``, ``actor/activation`` (into ``ACTIVATION_NAMES``): numbers ``[]`` int32.

    The width of a layer that is off is 0.
    """
    columns: dict[str, chex.Array] = {}
    for name, network in _networks(params).items():
        shape = _shape(network)
        columns |= {f"{name}/width_{layer}": width for layer, width in enumerate(shape.widths)}
        columns[f"{name}/depth"] = shape.depth
        if known := _activations(network):
            flags = jnp.stack([_one(network[TORSO][ACTIVATION + n]) for n in known])
            columns[f"{name}/activation"] = jnp.array([ACTIVATION_NAMES.index(n) for n in known])[flags.argmax()]
    return columns


def living(params: Any) -> dict[str, Living]:
    """The networks of one run by their place in the tree, such as ``actor``, on the host."""
    return {name: _living(network) for name, network in _networks(jax.device_get(params)).items()}


def _living(network: dict[str, Any]) -> Living:
    shape = _shape(network)
    flags = {name: float(_one(network[TORSO][ACTIVATION + name])) for name in _activations(network)}
    widths = np.asarray(shape.widths)[: int(shape.depth)]
    return Living(tuple(int(w) for w in widths), max(flags, key=lambda n: flags[n]) if flags else None)


def cut(params: Any) -> Any:
    """The tree of one run with plain networks of the living size, on the host; the activation is :func:`living`'s."""
    nodes = jax.device_get(params)
    return jax.tree.map(lambda node: _cut(node) if _is_network(node) else node, nodes, is_leaf=_is_network)


def _cut(network: dict[str, Any]) -> dict[str, Any]:
    widths, torso = _living(network).widths, {}
    for layer, (inputs, width) in enumerate(zip((None, *widths), widths, strict=False)):
        dense = network[TORSO][f"Dense_{layer}"]
        torso[f"Dense_{layer}"] = {"kernel": dense["kernel"][..., :inputs, :width], "bias": dense["bias"][..., :width]}
        if norm := network[TORSO].get(f"LayerNorm_{layer}"):
            torso[f"LayerNorm_{layer}"] = {name: leaf[..., :width] for name, leaf in norm.items()}
    return _read_by(network, lambda kernel, _: kernel[..., : widths[-1], :]) | {TORSO: torso}


def recipe(params: Any, config: Any) -> dict[str, dict[str, Any]]:
    """Settings under ``algo`` that make the plain networks of :func:`cut`: ``{"actor": {"widths": [48, 64], ...}}``."""
    changed = {}
    for name, (widths, activation) in living(params).items():
        # A file whose `algo.critic` is a choice of inputs calls the critic's network `algo.q`.
        where = name if isinstance(getattr(config, name, None), Model) else "q"
        activation = activation or getattr(config, where).activation
        changed[where] = {
            "widths": list(widths), "activation": activation, "elastic": False, "mutable_activation": False
        }  # fmt: skip
    return changed


def enable(config: Any, activation: bool = False) -> Any:
    """A ``config`` whose networks that can be are elastic, with a mutable activation if asked."""
    made = {}
    for field in dataclasses.fields(config):
        model = getattr(config, field.name)
        if isinstance(model, Model) and model.reads == "mlp":
            made[field.name] = dataclasses.replace(model, elastic=True, mutable_activation=activation)
    return dataclasses.replace(config, **made)


class Shape(NamedTuple):
    """How large a network is."""

    widths: chex.Array  # [L] int32, 0 where a layer is off
    depth: chex.Array  # [] int32


class Draw(NamedTuple):
    """What a mutation wants, before a network's limits are known."""

    layer: chex.Array  # [] bool, a layer rather than units
    grow: chex.Array  # [] bool
    at: chex.Array  # [] of [0, 1), which layer
    nodes: chex.Array  # [] int32


def _one(leaf: chex.Array, axes: int = 0) -> chex.Array:
    """The last ``axes`` of a leaf whose leading ones, of policies, all hold the same."""
    return leaf.reshape(-1, *leaf.shape[leaf.ndim - axes :])[0]


def _shape(network: dict[str, Any]) -> Shape:
    on = _one(network[TORSO][LAYER_ON], 1) > 0.5
    widths = (_one(network[TORSO][LIVING], 2) > 0.5).sum(axis=-1, dtype=np.int32)
    return Shape(jnp.where(on, widths, 0), on.sum(dtype=np.int32))


def _mutated(draw: Draw, old: Shape, settings: Settings, width: int) -> Shape:
    """The next size of a network whose layers have ``width`` units at most."""
    layers = len(old.widths)
    index = jnp.arange(layers)
    add = ((draw.grow | (old.depth == 1)) & (old.depth < layers)).astype(jnp.int32)
    # A new layer is as wide as the last one.
    longer = jnp.where(index == old.depth, old.widths[old.depth - 1], old.widths)
    shorter = jnp.where(index == old.depth - 1, 0, old.widths)

    at = jnp.minimum((draw.at * old.depth).astype(jnp.int32), old.depth - 1)
    now = old.widths[at]
    more = (draw.grow | (now <= settings.min_width)) & (now < width)
    least = jnp.minimum(settings.min_width, now)
    wider = jnp.where(index == at, jnp.clip(now + jnp.where(more, 1, -1) * draw.nodes, least, width), old.widths)

    by_layer = draw.layer & (layers > 1)
    widths = jnp.where(by_layer, jnp.where(add, longer, shorter), wider)
    return Shape(widths, (widths > 0).sum(dtype=jnp.int32))


def _reshaped(key: chex.PRNGKey, network: dict[str, Any], old: Shape, new: Shape) -> dict[str, Any]:
    """A network of the ``new`` size with the weights of the ``old`` where both live, and fresh ones elsewhere."""
    torso = dict(network[TORSO])
    largest = torso[LIVING].shape[-1]
    units = jnp.arange(largest)

    def features(shape: Shape, layer: chex.Numeric) -> chex.Array:
        return units < shape.widths[layer]  # [W]

    for layer in range(len(old.widths)):
        kernel = torso[f"Dense_{layer}"]["kernel"]
        every = jnp.ones(kernel.shape[-2], bool)
        kept_in, need_in = (features(shape, layer - 1) if layer else every for shape in (old, new))
        kept_out, need_out = (features(shape, layer) for shape in (old, new))
        scale = jnp.sqrt(2.0 / jnp.maximum(jnp.maximum(need_in.sum(), need_out.sum()), 1))
        fresh = scale * jax.random.normal(jax.random.fold_in(key, layer), kernel.shape)
        kept, need = kept_in[:, None] & kept_out, need_in[:, None] & need_out
        born = need_out & ~kept_out  # [W]
        bias = jnp.where(born, 0.0, torso[f"Dense_{layer}"]["bias"])
        torso[f"Dense_{layer}"] = {"kernel": jnp.where(need & ~kept, fresh, kernel), "bias": bias}
        if norm := torso.get(f"LayerNorm_{layer}"):
            norm = {name: jnp.where(born, float(name == "scale"), leaf) for name, leaf in norm.items()}
            torso[f"LayerNorm_{layer}"] = norm

    kept_rows, need_rows = (features(shape, shape.depth - 1)[:, None] for shape in (old, new))

    def read(kernel: chex.Array, number: int) -> chex.Array:
        power = jnp.where(kept_rows, jnp.square(kernel), 0.0).sum(axis=(-1, -2), keepdims=True)
        scale = jnp.sqrt(power / (kernel.shape[-1] * jnp.maximum(kept_rows.sum(), 1)))
        fresh = scale * jax.random.normal(jax.random.fold_in(key, len(old.widths) + number), kernel.shape)
        return jnp.where(need_rows & ~kept_rows, fresh, kernel)

    masks = {LIVING: units < new.widths[:, None], LAYER_ON: new.widths > 0}
    torso |= {name: jnp.broadcast_to(mask.astype(jnp.float32), torso[name].shape) for name, mask in masks.items()}
    return _read_by(network, read) | {TORSO: torso}


def _read_by(network: dict[str, Any], change: Callable[[chex.Array, int], chex.Array]) -> dict[str, Any]:
    """The network with the kernels ``[..., W, O]`` that read its torso's features changed; each gets a number."""
    made, number = dict(network), 0
    recurrent = [name for name in MEMORY_INPUTS if name in network]
    width = network[TORSO][LIVING].shape[-1]
    for name in recurrent or sorted(network):  # what stands behind a memory reads that
        for part in MEMORY_INPUTS[name] if recurrent else ("",):
            layer = made[name][part] if part else made[name]
            if not isinstance(layer, dict) or "kernel" not in layer or layer["kernel"].shape[-2] != width:
                continue
            layer = layer | {"kernel": change(layer["kernel"], number)}
            made[name] = made[name] | {part: layer} if part else layer
            number += 1
    return made


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
