"""One generation to the next, as a pure function: selection pressure, elitism, mutation rates and ranges."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from shoal.config.fields import hyper
from shoal.config.schemes import Growth, Halving, MfPbt, Noise, Pbt, Tournament, Weights
from shoal.errors import UserError
from shoal.evolve.mutate import add_noise
from shoal.evolve.population import MUTATIONS, NOBODY, Kind, Population
from shoal.evolve.rounds import select
from shoal.evolve.rules import Range, Rules, first_values, make_ranges, make_rules
from shoal.evolve.select import evolve, first_memory, rungs, share_of
from shoal.nn.networks import LIVING

MEMBERS = 40
KEYS = 300


class Hypers(struct.PyTreeNode):
    lr: float = hyper(1e-3, low=0.0)
    critic_lr: float = hyper(1e-3, low=0.0)
    ent_coef: float = hyper(0.01, low=0.0)
    gamma: float = hyper(0.99, low=0.0, high=1.0)


def optimiser(params: Any, _: Hypers) -> Any:
    """Begun anew: zeros."""
    return jax.tree.map(jnp.zeros_like, params)


class Learnt(struct.PyTreeNode):
    params: Any
    opt_state: Any
    obs_stats: Any
    target: Any = None


ALGORITHM = SimpleNamespace(
    head="vector",
    init_optimiser=optimiser,
    evolving=("lr", "critic_lr"),
    learning_rates={"lr": ("actor",), "critic_lr": ("critic",)},
)
RANGES = {"lr": Range(1e-4, 1e-2, True), "critic_lr": Range(1e-4, 1e-2, True), "ent_coef": Range(0.0, 0.1, False)}


def rules(scheme: Any, weights: tuple[float, ...] = (0.4, 0.0, 0.2, 0.0, 0.2), members: int = MEMBERS) -> Rules:
    chances = tuple(w / sum(weights) for w in weights) if isinstance(scheme, Tournament) else ()
    return Rules(scheme, RANGES, ALGORITHM, members, chances)


def population(members: int = MEMBERS, memory: Any = None) -> Population:
    """Every member can be told by its numbers; its optimiser is at work."""
    number = jnp.arange(members, dtype=jnp.float32)
    params = {
        "actor": {"a": {"kernel": jnp.ones((members, 1, 6, 8)) * (1 + number[:, None, None, None])}},
        "critic": {"b": {"kernel": jnp.ones((members, 1, 6, 8)) * (1 + number[:, None, None, None])}},
    }
    learnt = Learnt(params=params, opt_state=jax.tree.map(jnp.ones_like, params), obs_stats=number)
    ints = jnp.zeros(members, jnp.int32)
    hypers = Hypers(
        lr=1e-3 * (1 + number / members),
        critic_lr=2e-3 + 0 * number,
        ent_coef=0.01 + 0 * number,
        gamma=number / 1000,  # does not evolve: tells whose hyperparameters a member has
    )
    return Population(learnt, hypers, jnp.zeros(members, bool), ints, ints, ints, ints, memory)


def generations(scheme: Any, fitness: Any, count: int = KEYS, before: Population | None = None, **more: Any):
    """The next generation under many keys, leaves ``[count, M, ...]``."""
    before = population() if before is None else before
    keys = jax.random.split(jax.random.PRNGKey(1), count)
    fitness, how = jnp.asarray(fitness, jnp.float32), rules(scheme, members=len(fitness), **more)
    return jax.device_get(jax.jit(jax.vmap(lambda key: evolve(key, before, fitness, how)))(keys))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_larger_the_tournament_the_harder_the_selection(size):
    new = generations(Tournament(size=size, elitism=False), np.arange(MEMBERS))
    below = (np.arange(MEMBERS + 1) / MEMBERS) ** size  # the chance that the best of a draw is less than i
    expected = np.diff(below)
    share = np.bincount(new.parent.ravel(), minlength=MEMBERS) / new.parent.size
    noise = np.sqrt(expected * (1 - expected) / new.parent.size)
    assert (np.abs(share - expected) < 5 * noise + 1e-9).all()


def test_the_elite_goes_on_as_it_was_and_only_with_elitism():
    fitness = np.zeros(MEMBERS)
    fitness[7] = 1.0
    before = population()
    new = generations(Tournament(), fitness)
    assert (new.parent[:, 0] == 7).all()
    assert (new.kind[:, 0] == Kind.ELITE).all()
    assert not (new.kind[:, 1:] == Kind.ELITE).any()
    for leaf, old in zip(
        jax.tree.leaves((new.learnt, new.hypers)), jax.tree.leaves((before.learnt, before.hypers)), strict=True
    ):
        np.testing.assert_array_equal(leaf[:, 0], np.broadcast_to(old[7], leaf[:, 0].shape))
    without = generations(Tournament(elitism=False), fitness)
    assert not (without.kind == Kind.ELITE).any()
    assert len(np.unique(without.parent[:, 0])) > 10


def test_kinds_of_mutation_come_as_their_weights_say():
    new = generations(Tournament(elitism=False), np.arange(MEMBERS), weights=(0.4, 0.0, 0.1, 0.0, 0.3))
    for kind, expected in zip(MUTATIONS, (0.5, 0.0, 0.125, 0.0, 0.375), strict=True):
        share = (new.kind == kind).mean()
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / new.kind.size) + 1e-9, kind
    assert (new.changed[new.kind != Kind.HYPER] == NOBODY).all()


def test_one_hyperparameter_moves_by_a_factor_within_its_range():
    new = generations(Tournament(elitism=False), np.arange(MEMBERS), weights=(0, 0, 0, 0, 1))
    before = population().hypers
    assert (new.kind == Kind.HYPER).all()
    share = np.bincount(new.changed.ravel(), minlength=3) / new.changed.size
    np.testing.assert_allclose(share, 1 / 3, atol=0.03)
    for index, name in enumerate(RANGES):
        ratio = getattr(new.hypers, name) / np.asarray(getattr(before, name))[new.parent]
        moved = new.changed == index
        assert (ratio[~moved] == 1.0).all()
        np.testing.assert_allclose(np.sort(np.unique(ratio[moved].round(4))), [0.8, 1.2])
        assert abs((ratio[moved] > 1).mean() - 0.5) < 0.05
    np.testing.assert_array_equal(new.hypers.gamma, np.asarray(before.gamma)[new.parent])


def test_values_stop_at_the_ends_of_their_range():
    before = population()
    edge = before.replace(hypers=before.hypers.replace(lr=jnp.full(MEMBERS, 1e-4), ent_coef=jnp.full(MEMBERS, 0.1)))
    new = generations(Tournament(elitism=False), np.arange(MEMBERS), before=edge, weights=(0, 0, 0, 0, 1))
    assert new.hypers.lr.min() == np.float32(1e-4)
    np.testing.assert_allclose(new.hypers.lr.max(), 1.2e-4, rtol=1e-6)
    assert new.hypers.ent_coef.max() == np.float32(0.1)


def test_factors_are_the_scheme_s_own():
    new = generations(Tournament(elitism=False, factors=(0.5, 3.0)), np.arange(MEMBERS), weights=(0, 0, 0, 0, 1))
    moved = new.changed == list(RANGES).index("ent_coef")
    np.testing.assert_allclose(np.unique(new.hypers.ent_coef[moved]), [0.005, 0.03], rtol=1e-5)


def test_noise_on_parameters_is_as_often_and_as_strong_as_said():
    params = {name: jnp.full((1, 100, 100), 2.0) for name in "abcd"} | {"bias": jnp.ones((1, 100))}
    params[LIVING] = jnp.ones((1, 2, 100))
    keys = jax.random.split(jax.random.PRNGKey(0), 100)

    def noisy(noise: Noise) -> Any:
        return jax.device_get(jax.jit(jax.vmap(lambda key: add_noise(key, params, noise)))(keys))

    new = noisy(Noise())
    assert (new["bias"] == 1.0).all() and (new[LIVING] == 1.0).all()  # neither biases nor architectures
    matrices = np.stack([new[name] for name in "abcd"], axis=1)[:, :, 0]  # [keys, 4, 100, 100]
    touched = (matrices != 2.0).any(axis=(-1, -2))
    assert touched.any(axis=1).all()  # one at least
    np.testing.assert_allclose(np.bincount(touched.sum(axis=1), minlength=5)[1:] / 100, 0.25, atol=0.15)
    entries = matrices[touched]
    changed = entries[entries != 2.0]
    np.testing.assert_allclose(len(changed) / entries.size, 0.1, atol=0.002)
    # 90 % within a few times 0.2 of 2; of the rest, N(0, 1), and N(2, 20), of which next to nothing is that near.
    near = changed[np.abs(changed - 2.0) < 1.0]
    np.testing.assert_allclose(near.std(), 0.2, rtol=0.2)
    far = changed[np.abs(changed) > 5.0]
    np.testing.assert_allclose(len(far) / len(changed), 0.05 * 0.805, rtol=0.05)  # of N(2, 20), outside of 5
    np.testing.assert_allclose(len(near) / len(changed), 0.9 + 0.05 * 0.157 + 0.05 * 0.04, rtol=0.01)
    quiet = noisy(Noise(share=0.0))
    assert all((quiet[name] == params[name]).all() for name in params)
    tight = noisy(Noise(share=1.0, limit=3.0))
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tight)) == 3.0


def test_parameters_mutate_in_the_policy_alone_and_the_optimisers_begin_anew():
    new = generations(Tournament(elitism=False), np.arange(MEMBERS), count=20, weights=(0, 0, 1, 0, 0))
    was = 1.0 + new.parent[..., None, None, None]
    assert (new.learnt.params["critic"]["b"]["kernel"] == was).all()
    actor = new.learnt.params["actor"]["a"]["kernel"]
    assert ((actor != was).mean(axis=(-1, -2, -3)) > 0).mean() > 0.95
    assert abs((actor != was).mean() - 0.1) < 0.01
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(new.learnt.opt_state))


def test_a_learning_rate_that_changes_forgets_its_own_moments():
    new = generations(Tournament(elitism=False), np.arange(MEMBERS), count=50, weights=(1, 0, 0, 0, 3))
    names = list(RANGES)
    for part, rate in (("actor", "lr"), ("critic", "critic_lr")):
        moments = jax.tree.leaves(new.learnt.opt_state[part])[0].reshape(50, MEMBERS, -1)
        forgot = (new.kind == Kind.HYPER) & (new.changed == names.index(rate))
        assert forgot.any()
        assert (moments[forgot] == 0).all()
        assert (moments[~forgot] == 1).all()
    kept = generations(Tournament(reset_optimiser=False), np.arange(MEMBERS), count=5, weights=(1, 0, 0, 0, 3))
    assert all((leaf == 1).all() for leaf in jax.tree.leaves(kept.learnt.opt_state))


@pytest.mark.parametrize(("head", "policy"), [("vector", "actor"), ("values", "q")])
def test_targets_of_a_policy_become_what_its_parameters_mutated_to(head, policy):
    """As in AgileRL, so that the target's first actions are those of the policy that is there now."""
    before = population()
    params = {policy: before.learnt.params["actor"], "critic": before.learnt.params["critic"]}
    target = jax.tree.map(lambda x: -x, params)
    learnt = before.learnt.replace(params=params, target=target, opt_state=jax.tree.map(jnp.ones_like, params))
    algorithm = SimpleNamespace(**vars(ALGORITHM) | {"head": head})
    how = dataclasses.replace(rules(Tournament(), weights=(1, 0, 1, 0, 0)), algorithm=algorithm)
    evolved = jax.jit(lambda key: evolve(key, before.replace(learnt=learnt), jnp.arange(MEMBERS), how))
    new = jax.device_get(evolved(jax.random.PRNGKey(3)))
    was = jax.tree.map(lambda x: np.asarray(x)[new.parent], learnt)
    mutated, target = new.kind == Kind.PARAMETERS, new.learnt.target
    assert 10 < mutated.sum() < 30
    for now, then, old in zip(*map(jax.tree.leaves, (target, new.learnt.params, was.target)), strict=True):
        assert (now[~mutated] == old[~mutated]).all()
        assert then.shape == now.shape
    np.testing.assert_array_equal(
        jax.tree.leaves(target[policy])[0][mutated], jax.tree.leaves(new.learnt.params[policy])[0][mutated]
    )
    jax.tree.map(np.testing.assert_array_equal, target["critic"], was.target["critic"])


def test_optimisers_begin_anew_with_parameters_architecture_and_activation():
    new = generations(Tournament(), np.arange(MEMBERS), count=20, weights=(1, 1, 1, 1, 0))
    anew = np.isin(new.kind, [Kind.PARAMETERS, Kind.ARCHITECTURE, Kind.ACTIVATION])
    assert len(np.unique(new.kind)) == 5
    for moments in jax.tree.leaves(new.learnt.opt_state):
        assert (moments[anew] == 0).all() and (moments[~anew] == 1).all()


def test_a_learning_rate_of_the_whole_optimiser_forgets_all_of_it():
    how = rules(Tournament(elitism=False), weights=(0, 0, 0, 0, 1))
    how = dataclasses.replace(how, algorithm=SimpleNamespace(**vars(ALGORITHM) | {"learning_rates": {"lr": ()}}))
    new = jax.jit(lambda key: evolve(key, population(), jnp.arange(MEMBERS), how))(jax.random.PRNGKey(0))
    forgot = new.changed == list(RANGES).index("lr")
    assert forgot.any()
    for moments in jax.tree.leaves(new.learnt.opt_state):
        assert (moments[forgot] == 0).all() and (moments[~forgot] == 1).all()


def test_a_clone_is_a_copy_of_all_that_was_learnt():
    new = generations(Tournament(), np.arange(MEMBERS), count=5, weights=(1, 0, 0, 0, 0))
    before = population()
    for leaf, old in zip(
        jax.tree.leaves((new.learnt, new.hypers)), jax.tree.leaves((before.learnt, before.hypers)), strict=True
    ):
        np.testing.assert_array_equal(leaf, np.asarray(old)[new.parent])


SCHEMES = [Tournament(), Pbt(), MfPbt(frequencies=(1, 2)), Halving(rounds=9)]


def prepared(scheme: Any, members: int = MEMBERS) -> Population:
    memory = first_memory(rules(scheme))
    if memory is not None:
        memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *x.shape)), memory)
    return population(members, memory)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.scheme)
@pytest.mark.parametrize("lost", ["nan", "inf", "diverged"])
def test_who_is_lost_never_wins_and_is_replaced(scheme, lost):
    fitness = np.arange(MEMBERS, dtype=float)
    gone = [3, 11, 30, 39]
    before = prepared(scheme)
    if lost == "diverged":
        fitness[gone] = 1e9
        before = before.replace(diverged=before.diverged.at[jnp.array(gone)].set(True))
    else:
        fitness[gone] = {"nan": np.nan, "inf": np.inf}[lost]
    new = generations(scheme, fitness, count=50, before=before)
    assert not np.isin(new.parent, gone).any()
    assert not new.diverged.any()
    assert (new.parent[:, gone] != np.array(gone)).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.scheme)
def test_no_key_is_used_twice(scheme):
    """Traced only; JAX follows every key."""
    how, before = rules(scheme, weights=(1, 1, 1, 1, 1)), prepared(scheme)
    with jax.debug_key_reuse(True):
        jax.eval_shape(jax.jit(lambda key: evolve(key, before, jnp.arange(MEMBERS), how)), jax.random.key(0))
        matrices = {name: jnp.ones((1, 2, 3)) for name in "abc"}
        jax.eval_shape(jax.jit(lambda key: add_noise(key, matrices, Noise())), jax.random.key(0))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.scheme)
def test_if_all_are_lost_all_try_again(scheme):
    new = generations(scheme, np.full(MEMBERS, np.nan), count=5, before=prepared(scheme))
    if scheme.scheme == "halving":
        assert (new.kind == Kind.FRESH).all()
    else:
        assert (new.parent == np.arange(MEMBERS)).all()
    assert (new.learnt.obs_stats == np.arange(MEMBERS)).all()
    assert (new.hypers.gamma == population().hypers.gamma).all()
    assert not new.diverged.any()


def test_pbt_replaces_the_worst_fifth_by_the_best_fifth():
    fitness = np.random.default_rng(0).permutation(MEMBERS).astype(float)
    new = generations(Pbt(resample=0.0), fitness)
    worst, best = fitness < 8, fitness >= 32
    assert ((new.kind == Kind.EXPLORE) == worst).all()
    assert (new.parent[:, ~worst] == np.arange(MEMBERS)[~worst]).all()
    assert best[new.parent[:, worst]].all()
    assert (np.ptp(new.parent[:, worst], axis=1) > 0).mean() > 0.9  # each is drawn for itself
    share = np.bincount(new.parent[:, worst].ravel(), minlength=MEMBERS)[best] / new.parent[:, worst].size
    np.testing.assert_allclose(share, 1 / 8, atol=0.03)
    before = population().hypers
    for name in RANGES:
        ratio = getattr(new.hypers, name) / np.asarray(getattr(before, name))[new.parent]
        np.testing.assert_allclose(np.unique(ratio[:, worst].round(4)), [0.8, 1.2])
        assert (ratio[:, ~worst] == 1).all()
    assert all((leaf == 1).all() for leaf in jax.tree.leaves(new.learnt.opt_state))
    none = generations(Pbt(exploit=0.0), fitness, count=3)
    assert (none.kind == Kind.KEPT).all()


def test_before_the_burn_in_is_over_pbt_replaces_the_lost_alone():
    fitness = np.arange(MEMBERS).astype(float)
    fitness[[20, 39]] = np.nan
    for generation in range(4):  # that select after 2, 4, 6 and 8 rounds
        before = population().replace(generation=jnp.full(MEMBERS, generation, jnp.int32))
        new = generations(Pbt(every=2, burn_in=6), fitness, count=5, before=before)
        replaced = [20, 39] if generation < 2 else [*range(6), 20, 39]
        for kinds, parents in zip(new.kind, new.parent, strict=True):
            np.testing.assert_array_equal(np.flatnonzero(kinds == Kind.EXPLORE), replaced)
            assert np.isin(parents[replaced], range(31, 39)).all()  # the best eight
            np.testing.assert_array_equal(np.delete(parents, replaced), np.delete(np.arange(MEMBERS), replaced))


def test_pbt_draws_anew_from_the_ranges():
    how = rules(Pbt(resample=1.0, reset_optimiser=True))
    how = dataclasses.replace(how, ranges=RANGES | {"gamma": Range(0.5, 0.9, False)})
    evolved = jax.jit(jax.vmap(lambda key: evolve(key, population(), jnp.arange(MEMBERS), how)))
    new = jax.device_get(evolved(jax.random.split(jax.random.PRNGKey(1), KEYS)))
    drawn = new.kind == Kind.EXPLORE
    place = np.log(new.hypers.lr[drawn] / 1e-4) / np.log(100)  # uniform in the logarithm
    np.testing.assert_allclose(np.quantile(place, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.05)
    np.testing.assert_allclose(np.quantile(new.hypers.ent_coef[drawn], [0.1, 0.5, 0.9]), [0.01, 0.05, 0.09], atol=0.005)
    np.testing.assert_allclose(np.quantile(new.hypers.gamma[drawn], [0.0, 0.5, 1.0]), [0.5, 0.7, 0.9], atol=0.02)
    moments = jax.tree.leaves(new.learnt.opt_state)[0].reshape(*drawn.shape, -1)
    assert (moments[drawn] == 0).all()
    assert (moments[~drawn] == 1).all()


@pytest.mark.parametrize("generation", [0, 2])  # the slow ones' turn is after the second
def test_a_sub_population_of_which_nobody_is_left_starts_from_the_best_of_the_others(generation):
    scheme, fitness = MfPbt(frequencies=(1, 3), resample=0.0), np.arange(MEMBERS, dtype=float)
    fitness[20:] = np.nan
    before = population().replace(generation=jnp.full(MEMBERS, generation, jnp.int32))
    new = generations(scheme, fitness, count=10, before=before)
    assert (new.parent[:, 20:] == 19).all()
    assert (new.kind[:, 20:] == Kind.EXPLORE).all()
    assert (new.learnt.obs_stats[:, 20:] == 19).all()
    ratio = new.hypers.lr[:, 20:] / before.hypers.lr[19]
    np.testing.assert_allclose(np.unique(ratio.round(4)), [0.8, 1.25])
    assert (new.parent[:, :20] < 20).all()
    assert ((new.kind[:, :20] == Kind.EXPLORE).sum(axis=1) == 5).all()  # who are left go on as ever


def mf_pbt(
    fitness: list[float], frequencies: tuple[int, ...], generation: int, winners: int, migrants: int
) -> list[tuple[Kind, list[int], int | None]]:
    """Algorithm 2 of the paper with loops: of each member its kind, its possible parents, and its donor if not these.

    The paper has no lost members. Here they are the worst, never parents, and become clones if nothing replaces them.
    """
    size = len(fitness) // len(frequencies)
    ranked = sorted(range(len(fitness)), key=lambda member: -fitness[member])
    after: list[tuple[Kind, list[int], int | None]] = [(Kind.KEPT, [member], None) for member in range(len(fitness))]
    for home, frequency in enumerate(frequencies):
        internal = [member for member in ranked if member // size == home]
        external = [member for member in ranked if member // size != home]
        best = [member for member in internal[: max(1, winners)] if fitness[member] > -np.inf]
        if not best:
            for member in internal:
                after[member] = (Kind.EXPLORE, [ranked[0]], None)
            continue
        if (generation + 1) % frequency == 0:
            for member in internal[size - winners :]:
                after[member] = (Kind.EXPLORE, best, None)
            pointer = 0
            for member in internal[size - winners - migrants : size - winners]:
                migrant = external[pointer]
                if fitness[member] >= fitness[migrant]:
                    continue
                faster = frequencies[migrant // size] < frequency
                after[member] = (Kind.MIGRANT, [migrant], internal[0] if faster else migrant)
                pointer += 1
        for member in internal:
            if fitness[member] == -np.inf and after[member][0] == Kind.KEPT:
                after[member] = (Kind.EXPLORE, best, None)
    return after


def fitnesses(members: int) -> np.ndarray:
    """Random populations: all different, with ties, with lost members, sub-populations apart, and next to all lost."""
    rng = np.random.default_rng(members)
    smooth, ties = rng.normal(size=(60, members)), rng.integers(0, 4, (60, members)).astype(float)
    some, most = (np.where(rng.random((60, members)) < share, np.nan, ties) for share in (0.25, 0.85))
    apart = smooth + np.linspace(0, 6, members) * rng.choice([-1, 1], (60, 1))
    return np.concatenate([smooth, ties, some, most, apart, np.zeros((1, members))])


@pytest.mark.parametrize(
    ("frequencies", "members", "scheme", "winners", "migrants"),
    [
        ((1, 5), 16, MfPbt(), 2, 2),
        ((1, 2, 4), 24, MfPbt(), 2, 2),
        ((3, 1, 1), 24, MfPbt(winners=0.25, migrants=0.5), 2, 4),
        ((2, 1), 14, MfPbt(winners=0.0, migrants=0.3), 0, 2),
        ((1, 2), 20, MfPbt(winners=0.5, migrants=0.5), 5, 4),  # the best of a sub-population stays
        ((1, 2), 4, MfPbt(winners=0.5, migrants=0.5), 1, 0),
        ((1, 3), 16, MfPbt(migrants=0.0), 2, 0),
    ],
)
def test_mf_pbt_is_the_paper_s_algorithm(frequencies, members, scheme, winners, migrants):
    scheme.frequencies, scheme.resample = frequencies, 0.0
    before, how = population(members), rules(scheme, members=members)
    kinds = set()

    @jax.jit
    def program(key, fitness, diverged, generation):
        now = before.replace(diverged=diverged, generation=jnp.full(members, generation, jnp.int32))
        return evolve(key, now, fitness, how)

    for number, fitness in enumerate(fitnesses(members)):
        generation = number % 20
        diverged = np.random.default_rng(number).random(members) < 0.1 * (number % 3 == 0)
        new = jax.device_get(program(jax.random.PRNGKey(number), jnp.float32(fitness), diverged, generation))
        alive = np.where(np.isnan(fitness) | diverged, -np.inf, np.float32(fitness)).tolist()
        if max(alive) == -np.inf:
            continue
        for member, (kind, parents, donor) in enumerate(mf_pbt(alive, frequencies, generation, winners, migrants)):
            kinds.add(kind)
            assert new.kind[member] == kind, (number, member)
            assert new.parent[member] in parents, (number, member)
            donor = new.parent[member] if donor is None else donor
            assert new.hypers.gamma[member] == before.hypers.gamma[donor], (number, member)
        assert (new.generation == generation + 1).all()
    assert kinds == {Kind.KEPT, Kind.EXPLORE} | ({Kind.MIGRANT} if migrants else set())


def test_migrants_by_hand():
    """Twelve members in three sub-populations: who is offered next, and whose hyperparameters come along."""
    scheme = MfPbt(frequencies=(1, 2, 3), migrants=0.5, resample=0.0)
    #                   fast            middle          slow
    fitness = np.array([5, 3, 2, 0.0, 9, 8, 7, 6, 4, 3.5, 2, 1])
    before = population(12).replace(generation=jnp.full(12, 5, jnp.int32))  # all have their turn
    new = generations(scheme, fitness, count=20, before=before)
    lr = np.asarray(before.hypers.lr)
    assert (new.kind[:, [3, 7, 11]] == Kind.EXPLORE).all()  # the last of each is a clone of the first
    assert (new.parent[:, [3, 7, 11]] == [0, 4, 8]).all()
    assert (new.kind[:, [1, 2, 9, 10]] == Kind.MIGRANT).all()
    assert (new.parent[:, [1, 2, 9, 10]] == [4, 5, 4, 5]).all()  # the best two of all others, both from the middle
    assert (new.hypers.lr[:, [1, 2]] == lr[[4, 5]]).all()  # from a slower one: theirs
    assert (new.hypers.lr[:, [9, 10]] == lr[8]).all()  # from a faster one: those of the best where they arrive
    assert (new.kind[:, [0, 4, 5, 6, 8]] == Kind.KEPT).all()  # nobody outside is better than 7 and 8
    # The first external member is refused by the first open slot and comes to the second.
    fitness = np.array([5, 3, 2, 0.0, 2.5, 2.2, 1, 0, -1, -2, -3, -4])
    new = generations(scheme, fitness, count=3, before=before)
    assert (new.kind[:, 1] == Kind.KEPT).all() and (new.parent[:, 2] == 4).all()
    assert (new.parent[:, [5, 6]] == [0, 1]).all()


def test_sub_populations_draw_their_winners_apart():
    before = population().replace(generation=jnp.ones(MEMBERS, jnp.int32))
    new = generations(MfPbt(frequencies=(1, 2)), np.tile(np.arange(20), 2), count=20, before=before)
    drawn = new.parent.reshape(20, 2, 20)[:, :, :5] % 20
    assert (drawn[:, 0] != drawn[:, 1]).any(axis=1).mean() > 0.9


def test_a_migrant_s_learning_rate_that_changes_forgets_the_moments():
    """It has the moments of its parent and the values of another."""
    scheme = MfPbt(frequencies=(1, 2), winners=0.25, migrants=0.25, reset_optimiser=True)
    before = population().replace(generation=jnp.ones(MEMBERS, jnp.int32))
    new = generations(scheme, np.arange(MEMBERS)[::-1], count=3, before=before)
    came = new.kind == Kind.MIGRANT
    assert (np.nonzero(came)[1] >= 20).all() and came.any()
    actor, critic = (jax.tree.leaves(new.learnt.opt_state[part])[0] for part in ("actor", "critic"))
    assert (actor[came] == 0).all()  # lr is that of the best of the slow
    assert (critic[came] == 1).all()  # critic_lr is the same in all members


def test_a_share_is_rounded_down_whatever_floats_make_of_it():
    assert [share_of(0.29, 100), share_of(0.25, 7), share_of(0.01, 8), share_of(0.0, 8)] == [29, 1, 1, 0]


def test_a_quarter_is_drawn_anew_from_the_whole_range():
    """Whether a value is drawn, from where, and by which factor it moves else: all independent of each other."""
    new = generations(Pbt(resample=0.25, exploit=0.5), np.arange(MEMBERS))
    explored = new.kind == Kind.EXPLORE
    before, drawn, place = population().hypers, {}, {}
    for name, (low, high, log) in RANGES.items():
        value = getattr(new.hypers, name)[explored]
        ratio = value / np.asarray(getattr(before, name))[new.parent[explored]]
        drawn[name] = ~np.isclose(ratio[:, None], [0.8, 1.2], rtol=1e-5).any(axis=1)
        place[name] = np.log(value / low) / np.log(high / low) if log else (value - low) / (high - low)
        assert abs(drawn[name].mean() - 0.25) < 0.03
        assert abs((ratio[~drawn[name]] > 1).mean() - 0.5) < 0.03
        by_key = np.where(drawn[name], np.nan, ratio > 1).reshape(KEYS, -1)  # each member draws for itself
        assert (np.nanmin(by_key, axis=1) < np.nanmax(by_key, axis=1)).mean() > 0.95
        assert (np.ptp(drawn[name].reshape(KEYS, -1).astype(int), axis=1) == 1).mean() > 0.95
        assert len(np.unique(place[name][drawn[name]])) > 0.9 * drawn[name].sum()
        within = np.sort(place[name][drawn[name]])
        np.testing.assert_allclose(within, np.linspace(0, 1, len(within)), atol=0.05)  # Kolmogorov-Smirnov
    for one, other in (("lr", "critic_lr"), ("lr", "ent_coef"), ("critic_lr", "ent_coef")):
        assert abs(np.corrcoef(drawn[one], drawn[other])[0, 1]) < 0.06
        both = drawn[one] & drawn[other]
        assert abs(np.corrcoef(place[one][both], place[other][both])[0, 1]) < 0.2


def test_a_value_of_zero_is_left_by_a_draw():
    """No factor leads out of it."""
    before = population()
    before = before.replace(hypers=before.hypers.replace(ent_coef=jnp.zeros(MEMBERS)))
    for scheme, weights in ((Pbt(resample=0.0, exploit=0.5), (1.0,) * 5), (Tournament(), (0.0, 0.0, 0.0, 0.0, 1.0))):
        new = generations(scheme, np.arange(MEMBERS), before=before, weights=weights)
        mine = (new.changed == 2) | (new.kind == Kind.EXPLORE)  # the third of RANGES
        drawn = new.hypers.ent_coef[mine]
        assert len(drawn) > 100 and (drawn > 0).all() and (drawn <= 0.1).all()
        np.testing.assert_allclose(drawn.mean(), 0.05, rtol=0.1)
        assert (new.hypers.ent_coef[~mine] == 0).all()


def test_halving_ends_the_worst_at_their_rungs_and_hands_on_their_slots():
    scheme = Halving(rounds=20, reduction=3)
    assert rungs(scheme).tolist() == [1, 3, 9]
    fitness = np.random.default_rng(0).permutation(30).astype(float)
    before = prepared(scheme, 30)
    new = generations(scheme, fitness, count=50, before=before)
    ends = fitness < 20
    assert ((new.kind == Kind.FRESH) == ends).all()
    assert (new.parent[:, ends] == NOBODY).all()
    assert (new.memory.age == np.where(ends, 0, 1)).all()
    place = np.log(new.hypers.lr[:, ends] / 1e-4) / np.log(100)
    np.testing.assert_allclose(np.quantile(place, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.05)
    # One round later only the newcomers are at a rung, and are compared with those who have passed it.
    one = jax.tree.map(lambda x: jnp.asarray(x[0]), new)
    later = np.where(ends, 25.5, -5.0)  # those who passed may do badly until their next rung
    second = generations(scheme, later, count=3, before=one)
    assert (second.kind == Kind.KEPT).all()  # 25.5 is less than only four of the thirty
    worse = generations(scheme, np.where(ends, 19.5, 0.0), count=3, before=one)
    assert ((worse.kind == Kind.FRESH) == ends).all()


@pytest.mark.parametrize(
    ("members", "reduction", "pass_"), [(30, 2, 15), (32, 3, 10), (5, 2, 2), (8, 3, 2), (11, 4, 2), (2, 3, 1)]
)
def test_as_many_pass_a_rung_as_the_paper_s_say(members, reduction, pass_):
    """``floor(n / eta)`` of n, as in successive halving and ASHA; one at least."""
    scheme = Halving(reduction=reduction)
    fitness = np.random.default_rng(members).permutation(members)
    new = generations(scheme, fitness, count=2, before=prepared(scheme, members))
    assert ((new.kind == Kind.KEPT) == (fitness >= members - pass_)).all()


def test_who_is_lost_between_rungs_ends_at_once():
    scheme = Halving(rounds=20, reduction=3)
    before = prepared(scheme, 6)
    before = before.replace(memory=before.memory.replace(age=jnp.ones(6, jnp.int32)))  # the next rung is at 3
    new = generations(scheme, [0, 1, np.nan, 3, 4, 5], count=2, before=before)
    assert ((new.kind == Kind.FRESH) == (np.arange(6) == 2)).all()
    assert (new.memory.age == [2, 2, 0, 2, 2, 2]).all()


def test_rungs_are_those_that_a_training_comes_to():
    """A selection stands before every round but the first."""
    for rounds, every, ages in ((10, 1, [1, 3, 9]), (9, 1, [1, 3]), (10, 2, [1, 3]), (1, 1, [1]), (6, 2, [1])):
        assert rungs(Halving(rounds=rounds, every=every, reduction=3)).tolist() == ages


def test_all_that_tie_pass_a_rung():
    fitness = np.array([1.0, 1, 1, 0, 0, 0])
    new = generations(Halving(reduction=3), fitness, count=2, before=prepared(Halving(), 6))
    assert ((new.kind == Kind.KEPT) == (fitness == 1)).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.scheme)
def test_populations_never_mix(scheme):
    """Two populations side by side, the second of huge numbers and a fitness that no one of the first can reach."""
    how = rules(scheme, members=20)
    both = prepared(scheme, 2 * 20)
    poison = jnp.arange(40) >= 20
    mark = jnp.where(poison, 1e6, 1.0)
    both = both.replace(
        learnt=both.learnt.replace(obs_stats=mark), hypers=both.hypers.replace(gamma=jnp.where(poison, 0.5, 0.9))
    )
    fitness = jnp.where(poison, 1e6, 0.0) + jnp.arange(40) % 7
    keys = jax.random.split(jax.random.PRNGKey(0), 40)
    new = jax.jit(lambda *given: select(*given, how, runs=40))(keys, both, fitness)
    np.testing.assert_array_equal(new.learnt.obs_stats, mark)
    np.testing.assert_array_equal(new.hypers.gamma, jnp.where(poison, 0.5, 0.9))
    alone = jax.jit(lambda *given: evolve(*given, how))(keys[0], jax.tree.map(lambda x: x[:20], both), fitness[:20])
    for leaf, one in zip(jax.tree.leaves(new), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(leaf[:20], one)


def test_runs_that_fill_up_the_devices_do_not_evolve():
    how = rules(Tournament(), members=20)
    padded = population(23)
    keys = jax.random.split(jax.random.PRNGKey(0), 23)
    new = jax.jit(lambda *given: select(*given, how, runs=20))(keys, padded, jnp.arange(23.0))
    assert (new.parent[:20] < 20).all()
    np.testing.assert_array_equal(new.learnt.obs_stats[20:], padded.learnt.obs_stats[20:])


def test_the_first_values_are_the_recipe_s_and_draws_from_the_whole_range():
    ranges = RANGES | {"gamma": Range(0.5, 0.9, False)}
    how = dataclasses.replace(rules(Pbt(), members=4000), ranges=ranges)
    first = first_values(how, Hypers(ent_coef=0.5), seeds=[3, 4])
    again = first_values(how, Hypers(ent_coef=0.5), seeds=[4])
    columns = [np.array(getattr(first, name)).reshape(2, 4000) for name in ranges]
    for column, value in zip(columns, (1e-3, 1e-3, 0.1, 0.9), strict=True):
        assert (column[:, 0] == np.float32(value)).all()  # the recipe's, or the nearest end
    for name, column in zip(ranges, columns, strict=True):
        low, high, log = ranges[name]
        place = np.log(column / low) / np.log(high / low) if log else (column - low) / (high - low)
        np.testing.assert_allclose(np.sort(place[:, 1:]), [np.linspace(0, 1, 3999)] * 2, atol=0.04)
        assert len(np.unique(column[:, 1:])) > 7900  # populations of other seeds have other draws
        np.testing.assert_array_equal(column[1], getattr(again, name))  # whatever else is trained
    assert abs(np.corrcoef(columns[0][0], columns[1][0])[0, 1]) < 0.06
    recipe = first_values(rules(Pbt(start="recipe"), members=4), Hypers(ent_coef=0.5, lr=1.0), seeds=[3])
    assert (recipe.lr == np.float32(1e-2)).all() and (recipe.ent_coef == np.float32(0.1)).all()  # the nearest end


def test_ranges_around_the_recipe_s_values_and_as_they_are_said():
    base = Hypers(lr=1e-3, critic_lr=0.0, ent_coef=0.01, gamma=0.5)
    assert make_ranges(None, base, ("lr", "critic_lr")) == {"lr": Range(1e-4, 1e-2, True)}  # what is off stays off
    assert make_ranges(["gamma"], base, ()) == {"gamma": Range(0.05, 1.0, True)}  # never beyond what it may be
    given = {"lr": {"min": 1e-6, "max": 1e-2, "log": True}, "gamma": {"min": 0, "max": 1}}
    assert make_ranges(given, base, ()) == {"lr": Range(1e-6, 1e-2, True), "gamma": Range(0.0, 1.0, False)}


@pytest.mark.parametrize(
    ("scheme", "members", "answer"),
    [
        (Tournament(), 1, "population=1: evolve=tournament needs 2"),
        (MfPbt(), 33, "must be a multiple of the 2 evolve.frequencies"),
        (MfPbt(frequencies=(1,)), 32, "two sub-populations"),
        (MfPbt(), 2, "needs 4 members"),
        (Tournament(weights=Weights(architecture=0.1)), 8, "algo.actor.elastic=true"),
        (Tournament(weights=Weights(activation=0.1)), 8, "mutable_activation=true"),
        (Tournament(weights=Weights(0.0, 0.0, 0.0, 0.0, 0.0)), 8, "all are 0"),
        (Tournament(hypers={"alpha": None}), 8, "evolve.hypers.alpha: not a hyperparameter; these are: lr"),
        (Tournament(hypers={"gamma": {"min": 0.5, "max": 2.0}}), 8, "evolve.hypers.gamma=2: must be in [0, 1]"),
        (Pbt(hypers={"lr": {"min": 0.5}}), 8, "a range is {min: a, max: b}"),
        (Pbt(hypers={"lr": {"min": "a", "max": 1}}), 8, "of numbers"),
        (Pbt(hypers={"lr": {"min": 0, "max": 1, "log": True}}), 8, "min > 0 with log"),
        (Pbt(hypers={"lr": {"min": 0.1, "max": 1, "log": 3}}), 8, "log=3: must be true or false"),
        (Pbt(hypers=3), 8, "evolve.hypers=3: must be names, or ranges"),
        (Pbt(factors=()), 8, "needs a factor"),
        (Pbt(hypers={}), 8, "evolve=pbt: no hyperparameter evolves; evolve.hypers={lr: "),
        (Tournament(architecture=Growth(nodes=())), 8, "evolve.architecture.nodes=[]: needs a number"),
        (Tournament(factors=(0.0, 1.2)), 8, "evolve.factors=[0.0, 1.2]: each must be more than 0"),
    ],
)
def test_what_cannot_be_is_said(scheme, members, answer):
    with pytest.raises(UserError) as error:
        make_rules(scheme, members, ALGORITHM, Hypers(), elastic=False, mutable=False)
    assert answer in str(error.value)


def test_weights_and_members_that_are_not_said():
    made = make_rules(Tournament(), None, ALGORITHM, Hypers(), elastic=False, mutable=False)
    assert made.population == 32
    np.testing.assert_allclose(made.weights, (0.5, 0.0, 0.25, 0.0, 0.25))
    elastic = make_rules(Tournament(), None, ALGORITHM, Hypers(), elastic=True, mutable=False)
    np.testing.assert_allclose(elastic.weights, (0.4, 0.2, 0.2, 0.0, 0.2))
    for scheme, least in ((Tournament(), 2), (MfPbt(), 4)):
        assert make_rules(scheme, least, ALGORITHM, Hypers(), elastic=False, mutable=False).population == least
