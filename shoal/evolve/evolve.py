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

from shoal.algorithm import HEADS
from shoal.evolve.schemes import Halving, MfPbt, Noise, Pbt, Rules, Tournament
from shoal.nn import elastic


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
    hypers, changed = mutate_hypers(hyper_key, hypers, kind, rules)
    differs = {name: getattr(hypers, name) != getattr(population.hypers, name)[source] for name in rules.ranges}
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
    return max(1, int(share * count + 1e-9)) if share > 0 else 0  # so that 0.29 of 100 is 29


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
    """Algorithm 2 of MF-PBT: truncation where a sub-population has its turn, then migrants for those above its losers.

    A migrant from a faster sub-population takes the hyperparameters of the best member where it arrives, others bring
    theirs: what pays in the short run must not spread to those that wait. Lost members count as the worst. Those that
    no migrant replaces become clones of winners at once, without waiting for a turn.
    """
    scheme = rules.scheme
    frequencies = np.array(scheme.frequencies)[:, None]  # [F, 1]
    subs, count = len(frequencies), len(fitness) // len(frequencies)
    members = jnp.arange(len(fitness)).reshape(subs, count)
    fit = fitness.reshape(subs, count)
    finite = jnp.isfinite(fit)
    turn = (population.generation[0] + 1) % frequencies == 0  # [F, 1]
    number = share_of(scheme.winners, count)
    migrants = min(share_of(scheme.migrants, count), count - number - 1)  # the best of a sub-population stays
    winner, replaced = jax.vmap(partial(replace_losers, number=number))(jax.random.split(key, subs), fit)
    replaced &= turn | ~finite
    parent = jnp.where(replaced, winner + members[:, :1], members).ravel()
    kind = jnp.where(replaced, Kind.EXPLORE, Kind.KEPT).ravel()

    order = jnp.take_along_axis(members, jnp.argsort(-fit, axis=1, stable=True), axis=1)  # [F, M / F], best first
    open_slots = order[:, count - number - migrants : count - number]
    home = members // count
    external = jnp.where(home.ravel() == jnp.arange(subs)[:, None], -jnp.inf, fitness)  # [F, M]
    guest = jax.vmap(choose_guests)(external, fitness[open_slots])
    comes = turn & (guest != NOBODY)
    faster = jnp.array(frequencies.ravel())[guest // count] < frequencies
    donor = jnp.where(faster, order[:, :1], guest)
    donor = parent.at[open_slots].set(jnp.where(comes, donor, parent[open_slots]))
    parent = parent.at[open_slots].set(jnp.where(comes, guest, parent[open_slots]))
    kind = kind.at[open_slots].set(jnp.where(comes, Kind.MIGRANT, kind[open_slots]))

    # A sub-population of which nobody is left starts again from the best of all.
    dead = jnp.repeat(~finite.any(axis=1), count)
    best = fitness.argmax()
    parent, donor = jnp.where(dead, best, parent), jnp.where(dead, best, donor)
    return Offspring(parent, donor, jnp.where(dead, Kind.EXPLORE, kind)), population.memory


def choose_guests(external: chex.Array, scores: chex.Array) -> chex.Array:
    """The member that takes each open slot, or ``NOBODY``, given the ``scores`` in the slots, best first.

    ``external`` ``[M]`` has the fitness of members of other sub-populations, and ``-inf`` for the rest. The best of
    them is offered to slot after slot until it is better than a score; then the next best is.
    """
    ranked = jnp.argsort(-external, stable=True)

    def offer(taken: chex.Array, score: chex.Array) -> tuple[chex.Array, chex.Array]:
        guest = ranked[taken]
        comes = external[guest] > score
        return taken + comes, jnp.where(comes, guest, NOBODY)

    return jax.lax.scan(offer, jnp.int32(0), scores)[1]


def by_halving(key: chex.PRNGKey, population: Population, fitness: chex.Array, rules: Rules):
    """At each rung the best ``floor(n / reduction)`` of ``n`` members go on, one at least, and all ties; others end.

    The ``n`` are the last members of every slot that came to this rung: ASHA compares with all that ever came. None
    waits for more to come, where ASHA promotes nobody among fewer than ``reduction``.
    """
    memory = population.memory
    assert memory is not None
    ages = rungs(rules.scheme)
    age = memory.age + 1
    at = age[:, None] == ages  # [M, rungs]
    scores = jnp.where(at, fitness[:, None], memory.scores)
    better = (scores[None] > fitness[:, None, None]).sum(axis=1)  # [M, rungs]
    passing = jnp.maximum(1, (~jnp.isnan(scores)).sum(axis=0) // rules.scheme.reduction)  # [rungs]
    ends = (at & (better >= passing)).any(axis=1) | ~jnp.isfinite(fitness)
    members = jnp.arange(len(fitness))
    kind = jnp.where(ends, Kind.FRESH, Kind.KEPT)
    memory = Trial(jnp.where(ends, 0, age).astype(jnp.int32), scores)
    return Offspring(jnp.where(ends, NOBODY, members), members, kind), memory


SELECTIONS = {Tournament: by_tournament, Pbt: by_truncation, MfPbt: by_frequencies, Halving: by_halving}


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
    inherited: dict[str, Any],
    hypers: Any,
    kind: chex.Array,
    differs: dict[str, chex.Array],
    rules: Rules,
) -> dict[str, Any]:
    """What one member has learnt, mutated as its kind says, with the optimisers begun anew: as in AgileRL.

    The targets of a policy become the policy whose parameters mutated. AgileRL loads all targets after the other two
    mutations, because it builds the networks again; here targets mutate alike, and go on from what they were.
    """
    chance = dict(zip(MUTATIONS, rules.weights, strict=False))
    noise_key, grow_key, activation_key = jax.random.split(key, 3)
    networks = {name: part for name, part in inherited.items() if name != "opt_state"}
    if chance.get(Kind.PARAMETERS):
        noisy = mutate_parameters(noise_key, networks, rules)
        networks = choose(kind == Kind.PARAMETERS, noisy, networks)
    if chance.get(Kind.ARCHITECTURE):
        grown = elastic.mutate_architecture(grow_key, networks, rules.growth)
        networks = choose(kind == Kind.ARCHITECTURE, grown, networks)
    if chance.get(Kind.ACTIVATION):
        networks = choose(kind == Kind.ACTIVATION, elastic.mutate_activation(activation_key, networks), networks)
    reset = (kind == Kind.PARAMETERS) | (kind == Kind.ARCHITECTURE) | (kind == Kind.ACTIVATION)
    return networks | {"opt_state": forget(inherited["opt_state"], networks["params"], hypers, reset, differs, rules)}


def mutate_parameters(key: chex.PRNGKey, networks: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """Noise on the policy, or on all parameters if none of them is known to be the policy; its target is a copy."""
    params, target = networks["params"], networks.get("target")
    policy = HEADS.get(rules.algorithm.acting.head)
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
