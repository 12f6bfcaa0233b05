"""Evolution: who goes on and how it changes, as one pure function of a population.

    evolve(key, population, fitness, rules) -> population

The members are the runs of the run axis. A clone copies what its parent has learnt (its ``learnt``:
parameters, optimiser, targets, normalisation) and its hyperparameters. What belongs to the slot stays there: its random
key, environments, replay and the best policy that it ever held; so a clone explores for itself. Nothing here changes
a shape or leaves the device: populations evolve side by side under ``vmap``, inside the compiled training.

Shapes: M members, F sub-populations.
"""

from __future__ import annotations

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.config.schemes import Halving, MfPbt, Pbt, Tournament
from shoal.evolve.mutate import mutate_hypers, mutate_learnt
from shoal.evolve.population import MUTATIONS, NOBODY, Kind, Offspring, Population, Trial
from shoal.evolve.rules import Rules


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
    learnt = jax.tree.map(lambda x: x[source], population.learnt)
    hypers = jax.tree.map(lambda x: x[donor], population.hypers)
    hypers, changed = mutate_hypers(hyper_key, hypers, kind, rules)
    differs = {name: getattr(hypers, name) != getattr(population.hypers, name)[source] for name in rules.ranges}
    keys = jax.random.split(member_key, len(fitness))
    learnt = jax.vmap(partial(mutate_learnt, rules=rules))(keys, learnt, hypers, kind, differs)
    return population.replace(
        learnt=learnt,
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
