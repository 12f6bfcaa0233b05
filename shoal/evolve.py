"""Evolution: who goes on and how it changes, as one pure function of a population.

    evolve(key, population, fitness, rules) -> population

The members are the runs of the run axis. A clone copies what its parent has learnt (``Algorithm.inherited``:
parameters, optimiser, targets, normalisation) and its hyperparameters. What belongs to the slot stays there: its random
key, environments, replay and the best policy that it ever held; so a clone explores for itself. Nothing here changes
a shape or leaves the device: populations evolve side by side under ``vmap``, inside the compiled training.

Shapes: M members, H hyperparameters that evolve, P policies.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal import elastic
from shoal.algorithm import HEADS
from shoal.schemes import Halving, MfPbt, Noise, Pbt, Rules, Tournament


class Kind(enum.IntEnum):
    """How a member came about."""

    START = 0  # at the beginning
    KEPT = 1  # the same as before
    ELITE = 2  # a clone of the best, as it was
    NONE = 3  # a clone, not mutated
    ARCHITECTURE = 4
    PARAMETERS = 5
    ACTIVATION = 6
    HYPER = 7  # one hyperparameter
    EXPLORE = 8  # a clone whose hyperparameters all were perturbed or drawn
    MIGRANT = 9  # a clone from another sub-population
    FRESH = 10  # begins anew, with hyperparameters that were drawn; its slot's training state is to be initialised


MUTATIONS = (Kind.NONE, Kind.ARCHITECTURE, Kind.PARAMETERS, Kind.ACTIVATION, Kind.HYPER)  # as Rules.weights
NOBODY = -1  # the parent of a fresh member; the hyperparameter that changed if it was not one


class Trial(struct.PyTreeNode):
    """What successive halving remembers of a slot."""

    age: chex.Array  # [M] int32, selections since its member was fresh
    scores: chex.Array  # [M, rungs] of the last member of the slot that came to each rung; NaN if none has


class Population(struct.PyTreeNode):
    """The members of one population."""

    inherited: dict[str, Any]  # what a clone copies, [M, ...]
    hypers: Any  # [M]
    diverged: chex.Array  # [M] bool
    generation: chex.Array  # [M] int32, selections before this one; the same for all
    parent: chex.Array  # [M] int32, the member that it is a clone of
    kind: chex.Array  # [M] int32, a Kind
    changed: chex.Array  # [M] int32, the hyperparameter that was mutated, as an index into Rules.ranges
    memory: Trial | None  # of the scheme


class Offspring(NamedTuple):
    """The next generation, before it is made."""

    parent: chex.Array  # [M] int32, whom it learns from
    donor: chex.Array  # [M] int32, whose hyperparameters it has
    kind: chex.Array  # [M] int32


def first_memory(rules: Rules) -> Trial | None:
    """What one slot remembers before the first selection."""
    if not isinstance(rules.scheme, Halving):
        return None
    return Trial(jnp.int32(0), jnp.full(len(rungs(rules.scheme)), jnp.nan))


def rungs(scheme: Halving) -> np.ndarray:
    """The ages, in selections, at which members are compared."""
    last = max(1, (scheme.rounds - 1) // scheme.every)
    return np.array([age for k in range(32) if (age := scheme.reduction**k) <= last])


def evolve(key: chex.PRNGKey, population: Population, fitness: chex.Array, rules: Rules) -> Population:
    """The next generation of a population, given the fitness ``[M]`` of this one: what a round's evaluation came to.

    Whoever has diverged, or has a fitness that is no number, has none at all.
    """
    select_key, hyper_key, member_key = jax.random.split(key, 3)
    lost = population.diverged | ~jnp.isfinite(fitness)
    fitness = jnp.where(lost, -jnp.inf, fitness)
    offspring, memory = SELECTIONS[type(rules.scheme)](select_key, population, fitness, rules)
    members = jnp.arange(len(fitness), dtype=jnp.int32)
    alive = ~lost.all()  # if nobody is left, all go on as they are, but for their mutations
    parent = jnp.where(alive | (offspring.kind == Kind.FRESH), offspring.parent, members)
    donor = jnp.where(alive, offspring.donor, members)
    kind = offspring.kind

    source = jnp.where(parent == NOBODY, members, parent)
    inherited = jax.tree.map(lambda x: x[source], population.inherited)
    hypers = jax.tree.map(lambda x: x[donor], population.hypers)
    hypers, changed, differs = mutate_hypers(hyper_key, hypers, kind, rules)
    keys = jax.random.split(member_key, len(fitness))
    inherited = jax.vmap(partial(mutate_learnt, rules=rules))(keys, inherited, hypers, kind, differs)
    return population.replace(
        inherited=inherited,
        hypers=hypers,
        diverged=jnp.zeros_like(population.diverged),
        generation=population.generation + 1,
        parent=parent.astype(jnp.int32),
        kind=kind.astype(jnp.int32),
        changed=changed,
        memory=memory,
    )


def by_tournament(key: chex.PRNGKey, population: Population, fitness: chex.Array, rules: Rules):
    """Each slot clones the best of a few members, drawn with replacement, and draws the kind of its mutation."""
    scheme, count = rules.scheme, len(fitness)
    draw_key, kind_key = jax.random.split(key)
    drawn = jax.random.randint(draw_key, (count, scheme.size), 0, count)
    parent = drawn[jnp.arange(count), fitness[drawn].argmax(axis=1)]
    best = fitness.argmax()
    parent = jnp.where(jnp.isfinite(fitness[parent]), parent, best)
    choice = jax.random.choice(kind_key, len(MUTATIONS), (count,), p=jnp.array(rules.weights))
    kind = jnp.array(MUTATIONS)[choice]
    if scheme.elitism:
        parent, kind = parent.at[0].set(best), kind.at[0].set(Kind.ELITE)
    return Offspring(parent, parent, kind), population.memory


def by_truncation(key: chex.PRNGKey, population: Population, fitness: chex.Array, rules: Rules):
    """The worst become clones of the best; before the burn-in is over, the lost ones alone."""
    scheme, count = rules.scheme, len(fitness)
    parent, replaced = replace_losers(key, fitness, share_of(scheme.exploit, count))
    early = (population.generation[0] + 1) * scheme.every < scheme.burn_in
    replaced &= ~early | ~jnp.isfinite(fitness)
    parent = jnp.where(replaced, parent, jnp.arange(count))
    kind = jnp.where(replaced, Kind.EXPLORE, Kind.KEPT)
    return Offspring(parent, parent, kind), population.memory


def share_of(share: float, count: int) -> int:
    """How many of ``count`` a share is: one at least, unless it is 0."""
    return max(1, int(share * count)) if share > 0 else 0


def replace_losers(key: chex.PRNGKey, fitness: chex.Array, number: int) -> tuple[chex.Array, chex.Array]:
    """Parents ``[M]`` after the ``number`` worst, and all that are lost, became clones of the ``number`` best."""
    count = len(fitness)
    order = jnp.argsort(-fitness, stable=True)
    rank = jnp.argsort(order)
    finite = jnp.isfinite(fitness)
    winners = jnp.clip(finite.sum(), 1, max(1, number))
    pick = (jax.random.uniform(key, (count,)) * winners).astype(jnp.int32)
    replaced = (rank >= count - number) | ~finite
    return jnp.where(replaced, order[pick], jnp.arange(count)), replaced


def by_frequencies(key: chex.PRNGKey, population: Population, fitness: chex.Array, rules: Rules):
    """Truncation in every sub-population whose turn it is; then migrants, who replace the worst that are left.

    A migrant is the best of another sub-population, if that is better than whom it replaces. Its hyperparameters come
    with it from a slower sub-population only: what pays in the short run must not spread to those that wait.
    """
    scheme = rules.scheme
    frequencies = np.array(scheme.frequencies)
    subs, count = len(frequencies), len(fitness) // len(frequencies)
    losers_key, source_key = jax.random.split(key)
    fit = fitness.reshape(subs, count)
    number = share_of(scheme.winners, count)
    migrants = min(share_of(scheme.migrants, count), count - number - 1)  # the best of a sub-population stays
    keys = jax.random.split(losers_key, subs)
    parent, replaced = jax.vmap(lambda k, f: replace_losers(k, f, number))(keys, fit)
    first = jnp.arange(subs)[:, None] * count  # [F, 1], where a sub-population begins
    parent = parent + first

    source = (jnp.arange(subs) + jax.random.randint(source_key, (subs,), 1, subs)) % subs  # another one, for each
    order = jnp.argsort(-fit, axis=1, stable=True)
    rank = jnp.argsort(order, axis=1)
    seat = rank - (count - number - migrants)  # the first migrant is the best, the second the next, ...
    guest = jnp.take_along_axis(order[source], jnp.maximum(seat, 0), axis=1) + first[source]  # [F, M / F]
    comes = (seat >= 0) & ~replaced & (fitness[guest] > fit)
    own = first + jnp.arange(count)
    slower = (jnp.array(frequencies)[source] > frequencies)[:, None]
    donor = jnp.where(comes, jnp.where(slower, guest, own), parent)
    parent = jnp.where(comes, guest, parent)
    kind = jnp.where(replaced, Kind.EXPLORE, jnp.where(comes, Kind.MIGRANT, Kind.KEPT))

    turn = ((population.generation[0] + 1) % frequencies == 0)[:, None]
    # A lost member waits for no turn.
    turn |= ~jnp.isfinite(fit) & jnp.isfinite(fit).any(axis=1, keepdims=True)
    parent, donor = jnp.where(turn, parent, own).ravel(), jnp.where(turn, donor, own).ravel()
    kind = jnp.where(turn, kind, Kind.KEPT).ravel()
    # A sub-population of which nobody is left starts again from the best of all.
    dead = jnp.repeat(~jnp.isfinite(fit).any(axis=1), count)
    best = fitness.argmax()
    parent, donor = jnp.where(dead, best, parent), jnp.where(dead, best, donor)
    return Offspring(parent, donor, jnp.where(dead, Kind.EXPLORE, kind)), population.memory


def by_halving(key: chex.PRNGKey, population: Population, fitness: chex.Array, rules: Rules):
    """At each rung a member goes on if it is among the best ``1 / reduction`` that came there; else it ends.

    It is compared with the last member of every slot that came to the same rung, as in ASHA without waiting for any.
    """
    memory = population.memory
    assert memory is not None
    ages = rungs(rules.scheme)
    age = memory.age + 1
    at = age[:, None] == ages  # [M, rungs]
    scores = jnp.where(at, fitness[:, None], memory.scores)
    better = (scores[None] > fitness[:, None, None]).sum(axis=1)  # [M, rungs]
    passing = jnp.maximum(1, jnp.ceil((~jnp.isnan(scores)).sum(axis=0) / rules.scheme.reduction))  # [rungs]
    ends = (at & (better >= passing)).any(axis=1) | ~jnp.isfinite(fitness)
    members = jnp.arange(len(fitness))
    kind = jnp.where(ends, Kind.FRESH, Kind.KEPT)
    memory = Trial(jnp.where(ends, 0, age).astype(jnp.int32), scores)
    return Offspring(jnp.where(ends, NOBODY, members), members, kind), memory


SELECTIONS = {Tournament: by_tournament, Pbt: by_truncation, MfPbt: by_frequencies, Halving: by_halving}


def mutate_hypers(
    key: chex.PRNGKey, hypers: Any, kind: chex.Array, rules: Rules
) -> tuple[Any, chex.Array, dict[str, chex.Array]]:
    """New values where the kind says so, inside their ranges; which one changed ``[M]``, and what differs ``[M]``."""
    names, count = list(rules.ranges), len(kind)
    nothing = jnp.full(count, NOBODY, jnp.int32)
    if not names:
        return hypers, nothing, {}
    which_key, factor_key, chance_key, draw_key = jax.random.split(key, 4)
    shape = (count, len(names))
    one = jax.random.randint(which_key, (count,), 0, len(names))  # [M]
    factors = jnp.array(getattr(rules.scheme, "factors", (1.0,)), jnp.float32)
    factor = factors[jax.random.randint(factor_key, shape, 0, len(factors))]  # [M, H]
    anew = jax.random.uniform(chance_key, shape) < getattr(rules.scheme, "resample", 0.0)
    place = jax.random.uniform(draw_key, shape)
    differs = {}
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
        differs[name] = new != value
        hypers = hypers.replace(**{name: new})
    return hypers, jnp.where(kind == Kind.HYPER, one, nothing).astype(jnp.int32), differs


def mutate_learnt(
    key: chex.PRNGKey,
    inherited: dict[str, Any],
    hypers: Any,
    kind: chex.Array,
    differs: dict[str, chex.Array],
    rules: Rules,
) -> dict[str, Any]:
    """What one member has learnt, mutated as its kind says: parameters, architecture, activation, optimiser."""
    chance = dict(zip(MUTATIONS, rules.weights, strict=False))
    noise_key, grow_key, activation_key = jax.random.split(key, 3)
    networks = {name: part for name, part in inherited.items() if name != "opt_state"}
    reset = jnp.bool_(False)
    if chance.get(Kind.PARAMETERS):
        params = networks["params"]
        policy = HEADS.get(rules.algorithm.acting.head)
        if policy in params:
            noisy = params | {policy: add_noise(noise_key, params[policy], rules.scheme.noise)}
        else:
            noisy = add_noise(noise_key, params, rules.scheme.noise)
        networks = networks | {"params": choose(kind == Kind.PARAMETERS, noisy, params)}
        reset |= kind == Kind.PARAMETERS
    if chance.get(Kind.ARCHITECTURE):
        grown = elastic.mutate_architecture(grow_key, networks, rules.growth)
        networks = choose(kind == Kind.ARCHITECTURE, grown, networks)
        reset |= kind == Kind.ARCHITECTURE
    if chance.get(Kind.ACTIVATION):
        networks = choose(kind == Kind.ACTIVATION, elastic.mutate_activation(activation_key, networks), networks)
    return networks | {"opt_state": forget(inherited["opt_state"], networks["params"], hypers, reset, differs, rules)}


def forget(
    opt_state: Any, params: Any, hypers: Any, reset: chex.Array, differs: dict[str, chex.Array], rules: Rules
) -> Any:
    """The optimiser's state, begun anew: all of it if ``reset``, else those parts whose learning rate differs."""
    fresh = rules.algorithm.init_optimiser(params, hypers)  # type: ignore[misc]
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
