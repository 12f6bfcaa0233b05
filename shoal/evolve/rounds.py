"""Evolution inside the compiled training: rounds of all runs, and a selection between them.

A round is ``K`` updates and one evaluation of every run, exactly a chunk of a plain training. Before the rounds whose
turn it is, populations evolve, by what the round before came to. So the state between two rounds is what was
evaluated last: its hyperparameters, its policy, its fitness; and a training that is extended selects as one that was
longer from the start. Run ``r`` is member ``r % M`` of population ``r // M``; all leaves of the state are ``[R, ...]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.algorithm import Hypers, Metrics, Params, TrainState
from shoal.config.schemes import Halving
from shoal.evolve.population import NOBODY, Kind, Population, Trial
from shoal.evolve.rules import Rules
from shoal.evolve.select import evolve, first_memory
from shoal.folder.layout import RETURN
from shoal.folder.lineage import ABOUT, FITNESS
from shoal.folder.records import figure
from shoal.nn import elastic
from shoal.rl.metrics import Table
from shoal.run.placement import Placement

if TYPE_CHECKING:
    from shoal.run.state import RunState

EVOLUTION_STREAM = 0x65766F  # folded into a run's key: evolution never shares random numbers with training


class Evolving(struct.PyTreeNode):
    """All runs between two rounds; ``[R, ...]``, or one of them."""

    run: RunState
    hypers: Hypers
    fitness: chex.Array  # of the round before
    round: chex.Array  # int32, rounds done
    key: chex.PRNGKey  # a population's is that of its first member
    parent: chex.Array  # int32, in its own population, of the round before
    kind: chex.Array  # int32
    changed: chex.Array  # int32
    memory: Trial | None

    @property
    def train(self) -> TrainState:
        return self.run.train

    @property
    def best_policy(self) -> Params:
        return self.run.best_policy

    @property
    def best_return(self) -> chex.Array:
        return self.run.best_return

    @property
    def diverged(self) -> chex.Array:
        return self.run.diverged

    @property
    def evaluation_key(self) -> chex.PRNGKey:
        return self.run.evaluation_key


class Round(struct.PyTreeNode):
    """What the host is told of a round, ``[R, ...]``."""

    metrics: Table
    episodes: Metrics
    fitness: chex.Array
    parent: chex.Array
    kind: chex.Array
    changed: chex.Array
    hypers: dict[str, chex.Array]  # those that evolve
    architecture: dict[str, chex.Array]  # of elastic networks
    best_return: chex.Array
    diverged: chex.Array


def lineage_rows(told: Round, runs: np.ndarray, rules: Rules, number: int, env_steps: int) -> list[dict[str, str]]:
    """The rows of ``lineage.csv`` for round ``number`` of some runs; ``told`` is in numpy."""
    names, members = list(rules.ranges), rules.population  # a program's results are sorted, ranges are not
    lines = []
    for position, run in enumerate(runs):
        parent, changed = int(told.parent[position]), int(told.changed[position])
        member = [str(run), str(run // members), str(env_steps), str(number), str(run % members)]
        origin = [
            str(parent) if parent >= 0 else "",
            Kind(int(told.kind[position])).name.lower(),
            names[changed] if changed >= 0 else "",
        ]
        line = dict(zip(ABOUT, member + origin, strict=True))
        line |= {name: figure(np.float32(told.hypers[name][position])) for name in names}
        for name, values in told.architecture.items():
            value = int(values[position])
            line[name] = elastic.ACTIVATION_NAMES[value] if name.endswith("/activation") else str(value)
        line[FITNESS] = figure(np.float32(told.fitness[position]))
        lines.append(line)
    return lines


def start(run: RunState, key: chex.PRNGKey, hypers: Hypers, rules: Rules) -> Evolving:
    """One run before its first round."""
    return Evolving(
        run=run,
        hypers=jax.tree.map(jnp.float32, hypers),
        fitness=jnp.float32(-jnp.inf),
        round=jnp.int32(0),
        key=jax.random.fold_in(key, EVOLUTION_STREAM),
        parent=jnp.int32(NOBODY),
        kind=jnp.int32(Kind.START),
        changed=jnp.int32(NOBODY),
        memory=first_memory(rules),
    )


def train_rounds(
    state: Evolving,
    train_round: Callable[..., Any],
    rules: Rules,
    runs: int,
    rounds: int,
    placement: Placement,
    objective: str = RETURN,
) -> tuple[Evolving, Round]:
    """``rounds`` rounds as one scan; those of the result have a leading axis.

    ``train_round(run, hypers) -> run, metrics, episodes`` is for one run. Of the (padded) run axis the first ``runs``
    evolve, by the mean of ``objective`` over the episodes of their evaluations.
    """
    width = len(state.fitness)
    train = placement.over_runs(partial(train_slot, train_round=train_round, rules=rules), width, in_place=True)

    def one_round(state: Evolving, _: None) -> tuple[Evolving, Round]:
        number = state.round[0]
        due = (number > 0) & (number % rules.scheme.every == 0)
        before = population_of(state, rules)
        keys = jax.vmap(jax.random.fold_in)(state.key, state.round)
        population = jax.lax.cond(
            due,
            lambda: select(keys, before, state.fitness, rules, runs),
            lambda: kept(before, number == 0, rules),
        )
        state = with_population(state, population)
        # Whoever was lost: a member whose parameters are finite may yet have no fitness for what is in its slot.
        needs_cleaning = (before.diverged | (due & ~jnp.isfinite(state.fitness))) & ~population.diverged
        run, metrics, episodes = train(state.run, state.hypers, state.kind, needs_cleaning)
        mean = episodes[objective].mean(axis=-1)
        fitness = jnp.where(run.diverged | ~jnp.isfinite(mean), -jnp.inf, mean)
        state = state.replace(run=run, fitness=fitness, round=state.round + 1)
        told = Round(
            metrics=metrics,
            episodes=episodes,
            fitness=fitness,
            parent=state.parent,
            kind=state.kind,
            changed=state.changed,
            hypers={name: getattr(state.hypers, name) for name in rules.ranges},
            architecture=jax.vmap(elastic.describe)(run.train.learnt.params),
            best_return=run.best_return,
            diverged=run.diverged,
        )
        return placement.spread((state, told), width)

    return jax.lax.scan(one_round, state, length=rounds)


def population_of(state: Evolving, rules: Rules) -> Population:
    """What selection reads and writes, ``[R, ...]``: neither replay nor environments."""
    return Population(
        learnt=state.train.learnt,
        hypers=state.hypers,
        diverged=state.diverged,
        generation=state.round // rules.scheme.every - 1,
        parent=state.parent,
        kind=state.kind,
        changed=state.changed,
        memory=state.memory,
    )


def with_population(state: Evolving, population: Population) -> Evolving:
    """The state after a selection."""
    run = state.run.replace(train=state.train.replace(learnt=population.learnt), diverged=population.diverged)
    names = ("hypers", "parent", "kind", "changed", "memory")
    return state.replace(run=run, **{name: getattr(population, name) for name in names})


def kept(population: Population, first: chex.Array, rules: Rules) -> Population:
    """Nobody is selected: every member begins, or goes on."""
    width = len(population.parent)
    return population.replace(
        generation=population.generation + 1,
        parent=jnp.where(first, NOBODY, jnp.arange(width, dtype=jnp.int32) % rules.population),
        kind=jnp.where(first, jnp.full(width, Kind.START, jnp.int32), Kind.KEPT),
        changed=jnp.full(width, NOBODY, jnp.int32),
    )


def select(keys: chex.PRNGKey, population: Population, fitness: chex.Array, rules: Rules, runs: int) -> Population:
    """All populations evolve, ``[R, ...]``, and none knows of the others; each by its first member's key."""
    members = rules.population

    def by_population(x: chex.Array) -> chex.Array:
        return x[:runs].reshape(runs // members, members, *x.shape[1:])

    def by_run(new: chex.Array, old: chex.Array) -> chex.Array:
        return jnp.concatenate([new.reshape(runs, *new.shape[2:]), old[runs:]])

    arguments = jax.tree.map(by_population, (keys, population, fitness))
    new = jax.vmap(lambda key, members, score: evolve(key[0], members, score, rules))(*arguments)
    return jax.tree.map(by_run, new, population)


def train_slot(
    run: RunState,
    hypers: Hypers,
    kind: chex.Array,
    needs_cleaning: chex.Array,
    train_round: Callable[..., Any],
    rules: Rules,
) -> tuple[RunState, Table, Metrics]:
    """One slot's round, after what a new member needs: a training begun anew, or a slot without NaN."""
    train = run.train
    if isinstance(rules.scheme, Halving):
        fresh = kind == Kind.FRESH
        train = jax.lax.cond(fresh, lambda: rules.algorithm.init(run.train.slot.key, hypers), lambda: run.train)
    slot = jax.lax.cond(needs_cleaning, lambda s: jax.tree.map(_finite, s), lambda s: s, train.slot)
    return train_round(run.replace(train=train.replace(slot=slot)), hypers)


def _finite(x: chex.Array) -> chex.Array:
    """Zero in place of what is no number: a slot's replay and environments outlive a member that diverged."""
    return jnp.where(jnp.isfinite(x), x, 0) if jnp.issubdtype(x.dtype, np.floating) else x
