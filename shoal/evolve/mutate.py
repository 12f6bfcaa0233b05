"""Mutations of hyperparameters, parameters, architectures and activations, as in AgileRL.

Shapes: M members, H hyperparameters that evolve, P policies.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from shoal.algorithm import HEADS
from shoal.config.schemes import Noise
from shoal.evolve.population import MUTATIONS, NOBODY, Kind
from shoal.evolve.rules import Rules
from shoal.nn import elastic


def mutate_hypers(key: chex.PRNGKey, hypers: Any, kind: chex.Array, rules: Rules) -> tuple[Any, chex.Array]:
    """New values where the kind says so, inside their ranges; and which one changed ``[M]``."""
    names, count = list(rules.ranges), len(kind)
    nothing = jnp.full(count, NOBODY, jnp.int32)
    if not names:
        return hypers, nothing
    which_key, factor_key, chance_key, draw_key = jax.random.split(key, 4)
    shape = (count, len(names))
    one = jax.random.randint(which_key, (count,), 0, len(names))  # [M]
    factors = jnp.array(getattr(rules.scheme, "factors", (1.0,)), jnp.float32)
    factor = factors[jax.random.randint(factor_key, shape, 0, len(factors))]  # [M, H]
    anew = jax.random.uniform(chance_key, shape) < getattr(rules.scheme, "resample", 0.0)
    place = jax.random.uniform(draw_key, shape)
    for index, name in enumerate(names):
        low, high, log = rules.ranges[name]
        value = getattr(hypers, name)
        drawn = low * (high / low) ** place[:, index] if log else low + (high - low) * place[:, index]
        drawn = jnp.clip(drawn, low, high)
        moved = jnp.where(value == 0, drawn, jnp.clip(value * factor[:, index], low, high))  # no factor leads out of 0
        explored = jnp.where(anew[:, index], drawn, moved)
        new = jnp.where((kind == Kind.HYPER) & (one == index), moved, value)
        new = jnp.where(kind == Kind.EXPLORE, explored, new)
        new = jnp.where(kind == Kind.FRESH, drawn, new)
        hypers = hypers.replace(**{name: new})
    return hypers, jnp.where(kind == Kind.HYPER, one, nothing).astype(jnp.int32)


def mutate_learnt(
    key: chex.PRNGKey,
    learnt: Any,
    hypers: Any,
    kind: chex.Array,
    differs: dict[str, chex.Array],
    rules: Rules,
) -> Any:
    """What one member has learnt, mutated as its kind says, with the optimisers begun anew: as in AgileRL.

    The targets of a policy become the policy whose parameters mutated. AgileRL loads all targets after the other two
    mutations, because it builds the networks again; here targets mutate alike, and go on from what they were.
    """
    chance = dict(zip(MUTATIONS, rules.weights, strict=False))
    noise_key, grow_key, activation_key = jax.random.split(key, 3)
    networks = {name: part for name, part in vars(learnt).items() if name != "opt_state"}
    if chance.get(Kind.PARAMETERS):
        noisy = mutate_parameters(noise_key, networks, rules)
        networks = choose(kind == Kind.PARAMETERS, noisy, networks)
    if chance.get(Kind.ARCHITECTURE):
        grown = elastic.mutate_architecture(grow_key, networks, rules.growth)
        networks = choose(kind == Kind.ARCHITECTURE, grown, networks)
    if chance.get(Kind.ACTIVATION):
        networks = choose(kind == Kind.ACTIVATION, elastic.mutate_activation(activation_key, networks), networks)
    reset = (kind == Kind.PARAMETERS) | (kind == Kind.ARCHITECTURE) | (kind == Kind.ACTIVATION)
    opt_state = forget(learnt.opt_state, networks["params"], hypers, reset, differs, rules)
    return learnt.replace(**networks, opt_state=opt_state)


def mutate_parameters(key: chex.PRNGKey, networks: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """Noise on the policy, or on all parameters if none of them is known to be the policy; its target is a copy."""
    params, target = networks["params"], networks.get("target")
    policy = HEADS.get(rules.algorithm.head)
    if policy not in params:
        return networks | {"params": add_noise(key, params, rules.scheme.noise)}
    noisy = add_noise(key, params[policy], rules.scheme.noise)
    if isinstance(target, dict) and policy in target:
        networks = networks | {"target": target | {policy: noisy}}
    return networks | {"params": params | {policy: noisy}}


def forget(
    opt_state: Any, params: Any, hypers: Any, reset: chex.Array, differs: dict[str, chex.Array], rules: Rules
) -> Any:
    """The optimiser's state, begun anew: all of it if ``reset``, else those parts whose learning rate differs."""
    fresh = rules.algorithm.init_optimiser(params, hypers)
    if getattr(rules.scheme, "reset_optimiser", False):
        for name, parts in rules.algorithm.learning_rates.items():
            if name not in differs:
                continue
            if not parts:
                reset |= differs[name]
            else:
                begun = {part: choose(differs[name], fresh[part], opt_state[part]) for part in parts if part in fresh}
                opt_state = opt_state | begun
    return choose(reset, fresh, opt_state)


def choose(condition: chex.Array, yes: Any, no: Any) -> Any:
    """One of two trees, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def add_noise(key: chex.PRNGKey, params: Any, noise: Noise) -> Any:
    """Noise on a share of the entries of a random subset of the matrices ``[P, I, O]``, one to all of them."""
    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    leaves = [leaf for _, leaf in paths]
    matrices = [i for i, (path, leaf) in enumerate(paths) if leaf.ndim == 3 and not elastic.is_architecture(path)]
    if not matrices:
        return params
    number_key, subset_key, *keys = jax.random.split(key, 2 + 2 * len(matrices))
    number = jax.random.randint(number_key, (), 1, len(matrices) + 1)
    chosen = jnp.argsort(jnp.argsort(jax.random.uniform(subset_key, (len(matrices),)))) < number
    for position, index in enumerate(matrices):
        w = leaves[index]
        place = jax.random.uniform(keys[2 * position], (w.size,)).reshape(w.shape)
        normal = jax.random.normal(keys[2 * position + 1], (w.size,)).reshape(w.shape)
        strong, reset = noise.share * noise.strong, noise.share * (noise.strong + noise.reset)
        scale = jnp.where(place < strong, noise.much, noise.little) * jnp.abs(w)
        new = jnp.where((place >= strong) & (place < reset), normal, w + scale * normal)
        new = jnp.clip(new, -noise.limit, noise.limit)
        leaves[index] = jnp.where((place < noise.share) & chosen[position], new, w)
    return jax.tree.unflatten(tree, leaves)
