"""Evolution through the command line: what is left behind, one program or many chunks, through stops and NaN."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import yaml
from flax import struct
from omegaconf import OmegaConf
from safetensors.numpy import load_file

import shoal
from shoal import envs
from shoal.algorithm import TrainState, algorithm_in
from shoal.baselines.ippo import ippo_ff_mpe, ippo_rnn_smax
from shoal.baselines.maddpg import maddpg_ff_mpe
from shoal.baselines.mappo import mappo_ff_vmas, mappo_rnn_smax
from shoal.baselines.masac import masac_ff_vmas
from shoal.baselines.qmix import pqn_rnn_smax, qmix_rnn_mpe
from shoal.config import compose
from shoal.config.named import CONFIG_DIR
from shoal.config.schemes import Tournament
from shoal.config.settings import build
from shoal.errors import UserError
from shoal.evolve import rounds as generations
from shoal.evolve import winner
from shoal.evolve.population import NOBODY, Kind
from shoal.evolve.rules import Range, Rules
from shoal.folder import lineage, policies
from shoal.nn import elastic
from shoal.report.lineage import returns_of
from shoal.report.read import read
from shoal.rl.metrics import Table
from shoal.run.memory import check_memory
from shoal.run.placement import place
from shoal.run.plan import Plan
from shoal.run.state import RunState, all_finite, first_state, train_chunk
from shoal.training import make_plan

# Two populations of four, four rounds of two updates of 4 x 8 steps.
EVOLUTION = ["env=matrix/climbing", "seeds=2", "population=4", "evolve.rounds=4", "algo.minibatches=1"]
TOURNAMENT = ["evolve=tournament", *EVOLUTION]


def metrics(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metrics.csv")


@pytest.fixture(scope="module")
def memory() -> dict:
    return {}


@pytest.fixture
def folder(train, memory, tmp_path_factory) -> Path:
    """One evolution, chunk by chunk, for all tests of what it leaves behind."""
    if "folder" not in memory:
        memory["folder"] = train(*TOURNAMENT, folder=tmp_path_factory.mktemp("evolution") / "run")
    return memory["folder"]


def test_lineage_tells_where_every_member_comes_from(folder):
    table = shoal.load(folder).lineage
    assert list(table)[:8] == ["run", "population", "env_steps", "round", "member", "parent", "mutation", "changed"]
    assert list(table)[8:] == ["lr", "ent_coef", "fitness"]
    assert len(table) == 2 * 4 * 4
    assert (table.run == 4 * table.population + table.member).all()
    first = table[table["round"] == 0]
    assert (first.mutation == "start").all()
    assert first.parent.isna().all()
    assert (first.lr == first.lr.iloc[0]).all()  # a tournament begins with the recipe
    rows = table.set_index(["population", "round", "member"])
    for (population, number, member), row in rows[rows.parent.notna()].iterrows():
        parent = rows.loc[(population, number - 1, int(row.parent))]
        before = rows.loc[(population, number - 1)]
        if member == 0:
            assert row.mutation == "elite"
            assert parent.fitness == before.fitness.max()
        for name in ("lr", "ent_coef"):
            if row.changed == name:
                assert any(np.isclose(row[name] / parent[name], factor) for factor in (0.8, 1.2))
            else:
                assert row[name] == parent[name]
        assert (row.changed != "") == (row.mutation == "hyper")
    # The fitness is what metrics.csv says of the same run and round, and so are the hyperparameters.
    joined = table.merge(metrics(folder), on=["run", "env_steps"])
    assert len(joined) == len(table)
    np.testing.assert_allclose(joined.fitness, joined["evaluation/episode_return"], rtol=1e-6)
    np.testing.assert_array_equal(joined.lr, joined["hypers/lr"])
    assert (metrics(folder).groupby("env_steps").loss.nunique() == 8).all()  # clones go ways of their own


def test_what_is_left_behind(folder):
    runs = shoal.load(folder)
    assert len(runs) == 8
    assert runs.table.to_dict("list") == {"member": [0, 1, 2, 3] * 2, "seed": [0] * 4 + [1] * 4}
    assert runs.policy(runs.best) is not None
    assert {"curves.png", "lineage.png", "winner.yaml", "lineage.csv"} <= {path.name for path in folder.iterdir()}
    assert len({path.stat().st_mode for path in folder.iterdir() if path.is_file()}) == 1  # whoever reads one reads all
    record = json.loads((folder / "evaluations.json").read_text())["matrix"]["climbing"]["ippo"]
    assert list(record) == ["seed_0", "seed_1"]  # a population is a seed
    table = runs.lineage
    best = table.groupby(["population", "round"]).fitness.max()
    for seed in (0, 1):
        steps = [record[f"seed_{seed}"][f"step_{number}"]["mean_episode_return"] for number in range(1, 5)]
        np.testing.assert_allclose(np.mean(steps, axis=1), best[seed], rtol=1e-5)
        assert len(record[f"seed_{seed}"]["absolute_metrics"]["mean_episode_return"]) == 20
    (cell,) = read([folder]).cells
    assert len(cell.runs) == 2
    np.testing.assert_allclose(cell.metrics["episode_return"], best.to_numpy().reshape(2, 4), rtol=1e-5)


def test_one_program_in_batches_of_populations_is_the_same_evolution(folder, train):
    whole = train(*TOURNAMENT, "chunks=1", "runs_per_batch=4")
    for name in ("lineage.csv", "metrics.csv"):
        one, other = (sorted((place / name).read_text().splitlines()) for place in (folder, whole))
        assert one == other, name
    one, other = (load_file(place / policies.FILE) for place in (whole, folder))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def stop(context) -> None:
    """A callback that ends a training half-way."""
    if context.chunk == 2:
        context.stop()


def test_a_stopped_evolution_resumes_to_the_bit(folder, train, capsys):
    stopped = train(*TOURNAMENT, callbacks=[stop])
    assert len(shoal.load(stopped).lineage) == 2 * 2 * 4
    with (stopped / "lineage.csv").open("a") as file:  # as a killed process may leave it
        file.write("0,0,192,2,0,0,elite,,1,1,")
    with pytest.raises(SystemExit):
        train(f"resume={stopped}", "evolve=pbt", small=False)
    assert "evolve=pbt: a resumed training cannot change this (it was tournament)" in capsys.readouterr().err
    train(f"resume={stopped}", "evolve=tournament", small=False)  # its other settings stay as they were
    assert (stopped / "lineage.csv").read_bytes() == (folder / "lineage.csv").read_bytes()
    one, other = (load_file(place / policies.FILE) for place in (stopped, folder))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    saved = shoal.load(stopped).config
    assert (saved.updates_per_chunk, saved.rounds_per_chunk) == (2, 1)
    straight, resumed = metrics(folder), metrics(stopped)
    np.testing.assert_array_equal(straight.loss, resumed.loss)


def test_an_extended_evolution_is_one_that_was_longer_from_the_start(train):
    """With rounds as long as its own, and nothing that falls over the whole training."""
    words = ["evolve=pbt", *EVOLUTION, "seeds=1", "hypers.lr_end=1", "hypers.ent_coef_end=1"]
    longer, extended = train(*words), train(*words, "evolve.rounds=2", "total_steps=128")
    assert len(shoal.load(extended).lineage) == 2 * 4
    train(f"resume={extended}", "total_steps=256", small=False)
    assert (extended / "lineage.csv").read_bytes() == (longer / "lineage.csv").read_bytes()
    one, other = (load_file(place / policies.FILE) for place in (extended, longer))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_the_winner_is_a_recipe(folder, train, monkeypatch):
    table = shoal.load(folder).lineage
    last = table[table["round"] == 3]
    best = last.loc[last.fitness.idxmax()]
    recipe = yaml.safe_load((folder / "winner.yaml").read_text())
    np.testing.assert_allclose(
        [recipe["hypers"]["lr"], recipe["hypers"]["ent_coef"]], [best.lr, best.ent_coef], rtol=1e-5
    )
    again = train("--config-dir", str(folder), "--config-name", "winner", "seeds=1", small=False)
    saved = shoal.load(again).config
    assert saved.evolve.scheme == "none"
    assert saved.env.name == "matrix/climbing"
    assert saved.hypers.lr == recipe["hypers"]["lr"]
    assert list(saved.algo.actor.widths) == [8]
    assert saved.algo.total_steps == 256


def test_the_winner_computes_as_it_was_trained(folder, tmp_path):
    trained = OmegaConf.to_container(shoal.load(folder).config)
    trained["precision"] = {"activations": "bfloat16", "matmul": "highest"}
    winner.write_winner(tmp_path / "winner.yaml", trained, lineage.winner(shoal.load(folder).lineage))
    assert compose.compose("winner", [], str(tmp_path)).precision == trained["precision"]


def test_halving_hands_slots_to_fresh_draws(train):
    words = ["evolve=halving", *EVOLUTION, "evolve.reduction=2"]
    whole, stopped = train(*words), train(*words, callbacks=[stop])
    train(f"resume={stopped}", small=False)  # with the scores of the rungs
    assert (whole / "lineage.csv").read_bytes() == (stopped / "lineage.csv").read_bytes()
    table = shoal.load(whole).lineage
    fresh = table[table.mutation == "fresh"]
    assert set(table.mutation) == {"start", "kept", "fresh"}
    assert fresh.parent.isna().all()
    assert fresh[fresh["round"] == 1].groupby("population").size().between(1, 2).all()  # half of four; equals pass
    rows = table.set_index(["run", "round"])
    for _, row in fresh.iterrows():
        assert row.lr != rows.loc[(row.run, row["round"] - 1)].lr
    # A slot's best policy outlives the member that ended: nothing that a search has found is lost.
    best = metrics(whole).pivot(index="run", columns="env_steps", values="best_return").to_numpy()
    fitness = table.pivot(index="run", columns="round", values="fitness").to_numpy()
    np.testing.assert_allclose(best, np.maximum.accumulate(fitness, axis=1), rtol=1e-5)


def test_members_begin_with_the_recipe_or_with_draws():
    for scheme, drawn in (("tournament", 1), ("pbt", 7), ("mf_pbt", 7), ("halving", 7)):
        plan = plan_of(ippo_ff_mpe, f"evolve={scheme}", "population=4", "seeds=2", "seed=5")
        keys, hypers = plan.runs.select(np.arange(8))
        assert len(np.unique(hypers.lr)) == drawn  # the first of each population keeps the recipe's
        assert (np.abs(np.log10(hypers.lr / hypers.lr[0])) <= 1.0 + 1e-6).all()
        np.testing.assert_array_equal(keys[[0, 4]], [jax.random.PRNGKey(5), jax.random.PRNGKey(6)])  # as the plain runs
        assert len(np.unique(keys, axis=0)) == 8


class ToyLearnt(struct.PyTreeNode):
    """What a training that learns nothing has learnt."""

    params: dict[str, jax.Array]
    opt_state: dict[str, jax.Array]


class ToySlot(struct.PyTreeNode):
    """Where it stands."""

    key: jax.Array
    script: jax.Array  # [rounds], what its evaluations come to
    number: jax.Array  # NaN in the second round
    done: jax.Array
    envs: tuple = ()


class ToyHypers(struct.PyTreeNode):
    lr: jax.Array


def toy_round(run: RunState, hypers: ToyHypers):
    """Evaluates to what the script says; 100 means that the run diverges."""
    learnt, slot = run.train.learnt, run.train.slot
    fitness = slot.script[slot.done]
    weight, moments = learnt.params["w"], learnt.opt_state["w"]
    figures = Table.of({"lr": hypers.lr, "member": weight, "slot": slot.number, "moments": moments})
    slot = slot.replace(number=jnp.where(slot.done == 1, jnp.nan, slot.number), done=slot.done + 1)
    run = run.replace(train=run.train.replace(slot=slot), diverged=run.diverged | (fitness == 100))
    return run, figures, {"episode_return": jnp.stack([fitness - 1, fitness + 1])}


def toy(scheme, scripts, population=4):
    """The rounds of a toy with a script ``[R, rounds]``, and two runs more than the populations have."""
    made = SimpleNamespace(
        head="", learning_rates={}, init_optimiser=lambda params, hypers: jax.tree.map(jnp.zeros_like, params)
    )
    weights = (1.0, 0.0, 0.0, 0.0, 0.0) if isinstance(scheme, Tournament) else ()
    rules = Rules(scheme, {"lr": Range(1e-4, 1e-2, True)}, made, population, weights)
    runs, rounds = scripts.shape

    def start(key, script, number):
        w = {"w": number}
        learnt = ToyLearnt(w, jax.tree.map(jnp.ones_like, w))
        train = TrainState(learnt, ToySlot(key, script, number, jnp.int32(0)))
        run = RunState(train, w, jnp.float32(0), jnp.bool_(False), key)
        return generations.start(run, key, ToyHypers(1e-3 * (1 + number / 100)), rules)

    @jax.jit
    def program(keys, scripts):
        number = jnp.arange(runs + 2, dtype=jnp.float32)
        state = jax.vmap(start)(keys, jnp.concatenate([scripts, scripts[:2]]), number)
        return generations.train_rounds(state, toy_round, rules, runs, rounds, place())

    keys = jax.random.split(jax.random.PRNGKey(5), runs + 2)
    return jax.device_get(program(keys, jnp.float32(scripts)))


@pytest.mark.parametrize("every", [1, 2])
def test_rounds_of_a_toy(every):
    """Two populations of four: parents, hyperparameters and slots of eight rounds, followed one by one."""
    scripts = np.random.default_rng(0).normal(size=(8, 8))
    scripts[1, 2], scripts[5, 2], scripts[6, 4], scripts[2, 5] = np.nan, 100, np.inf, 100
    scripts[0, 3], scripts[4, 2] = 1e6, -1e6
    scheme = Tournament(every=every, elitism=True, size=2)
    state, told = toy(scheme, scripts)
    figures = told.metrics
    lost = ~np.isfinite(scripts) | (scripts == 100)
    lost[5, 3] = every == 2  # diverged until it is replaced
    np.testing.assert_allclose(told.fitness[:, :8].T, np.where(lost, -np.inf, scripts), rtol=1e-6)
    assert (told.kind[0] == Kind.START).all() and (told.parent[0] == NOBODY).all()
    member, own = np.tile(np.arange(4), 2), np.arange(8) // 4 * 4
    assert (figures["member"][0, :8] == np.arange(8)).all()
    assert (figures["member"][:, 8:] == [8, 9]).all()  # the runs that fill up the devices do not evolve
    for number in range(1, 8):
        kind, parent = told.kind[number, :8], told.parent[number, :8]
        if number % every:
            assert (kind == Kind.KEPT).all() and (parent == member).all()
        else:
            assert kind.tolist() == [Kind.ELITE, *3 * [Kind.NONE]] * 2
            best = told.fitness[number - 1, :8].reshape(2, 4).argmax(axis=1)
            assert (parent[[0, 4]] == best).all()
            assert not lost[own + parent, number - 1].any()
        assert (figures["member"][number, :8] == figures["member"][number - 1][own + parent]).all()
        assert (figures["lr"][number, :8] == figures["lr"][number - 1][own + parent]).all()
        assert (told.hypers["lr"][number] == figures["lr"][number]).all()
        assert (told.changed[number] == NOBODY).all()
    assert (figures["moments"] == 1).all()
    # NaN in a slot stays, but for members without a fitness: theirs becomes 0 with the selection.
    nan = np.zeros(8, bool)
    for number in range(8):
        nan = (nan | (number == 2)) & ~(lost[:, number - 1] & (number % every == 0))
        assert (np.isnan(figures["slot"][number, :8]) == nan).all(), number
    assert state.round.tolist() == 10 * [8]


def test_selections_of_a_toy_are_by_luck_of_their_own():
    """Among equals: another draw in every round and in every population, and not the luck of the training."""
    state, told = toy(Tournament(elitism=False, size=1), np.zeros((32, 4)), population=16)
    drawn = told.parent[1:, :32].reshape(6, 16)
    assert len(np.unique(drawn, axis=0)) == 6
    assert (state.key != state.train.slot.key).any(axis=1).all()


def test_no_setting_but_the_evolution_s_may_change_its_hyperparameters(train):
    with pytest.raises(SystemExit):
        train(*TOURNAMENT, callbacks=[lambda context: {"lr": 1e-3}])


FILES = {
    ippo_ff_mpe: ["algo.actor.elastic=true", "algo.critic.elastic=true", "algo.actor.mutable_activation=true"],
    ippo_rnn_smax: [],
    mappo_ff_vmas: ["env.kwargs.continuous=false"],
    mappo_rnn_smax: [],
    maddpg_ff_mpe: ["algo.learning_starts=0", "algo.buffer_size=256", "algo.batch_size=8"],
    masac_ff_vmas: ["algo.learning_starts=0", "algo.buffer_size=256", "algo.batch_size=8"],
    qmix_rnn_mpe: ["algo.learning_starts=0", "algo.buffer_size=256", "algo.batch_size=2"],
    pqn_rnn_smax: [],
}


def plan_of(module: ModuleType, *words: str) -> Plan:
    """What a file's command line would train, at its smallest."""
    name = Path(str(module.__file__)).stem
    compose.register(module.Config, module.Hypers, name=name)
    small = [
        "env=matrix/climbing", "total_steps=64", "algo.num_envs=4", "algo.rollout_length=8", "seeds=1", "population=4",
        "evolve.rounds=2", "evaluation.episodes=2",
    ]  # fmt: skip
    extra = [word for word in FILES[module] if not word.startswith("env.kwargs")]
    cfg = compose.check([*small, *extra, *words], name, module.Config, module.Hypers, CONFIG_DIR).config
    return make_plan(algorithm_in(module), cfg, Path("nowhere"))


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def started(plan: Plan, members: int = 4):
    """``(keys, hypers) -> state`` of a plan's members, and the round that trains one of them."""

    def start(key, values):
        return generations.start(first_state(plan.algorithm, key, values), key, values, plan.rules)

    one = partial(train_chunk, plan.algorithm, updates=1, episodes=2, greedy=True)
    return jax.vmap(start), one, plan.runs.select(np.arange(members))


# Files with the scheme that they are trained by below; IPPO, feed-forward, is everywhere else.
TRAINED = {
    ippo_rnn_smax: "halving", mappo_ff_vmas: "pbt", mappo_rnn_smax: "tournament", maddpg_ff_mpe: "halving",
    masac_ff_vmas: "mf_pbt", qmix_rnn_mpe: "pbt", pqn_rnn_smax: "mf_pbt",
}  # fmt: skip


@pytest.mark.parametrize("module", TRAINED, ids=lambda module: module.__name__.split(".")[-1])
def test_every_file_evolves(module):
    """Three rounds of four members, of whom a higher learning rate is fitter (in so small a game they play alike)."""
    plan = plan_of(module, f"evolve={TRAINED[module]}", "evolve.start=random")
    rules, (start, train, (keys, hypers)) = plan.rules, started(plan)

    def one(run, values):
        run, table, episodes = train(run, values)
        return run, table, episodes | {"episode_return": episodes["episode_return"] + 1e6 * values.lr}

    @jax.jit
    def program(keys, hypers):
        before = start(keys, hypers)
        return before, *generations.train_rounds(before, one, rules, 4, 3, place())

    before, after, told = jax.device_get(program(keys, jax.tree.map(jnp.asarray, hypers)))
    assert shapes(after) == shapes(before)
    assert not told.diverged.any()
    assert (told.kind[0] == Kind.START).all()
    assert (told.parent[1] == told.fitness[0].argmax()).any()
    assert (told.parent[1] != np.arange(4)).any()  # somebody is an heir, or fresh
    first, last = (jax.tree.leaves(state.train.learnt.params) for state in (before, after))
    assert all(np.isfinite(leaf).all() for leaf in last)
    assert not all(map(np.array_equal, first, last))  # they learn
    for name, (low, high, _) in rules.ranges.items():
        assert (told.hypers[name] >= low * (1 - 1e-6)).all()
        assert (told.hypers[name] <= high * (1 + 1e-6)).all()


@pytest.mark.parametrize("module", FILES, ids=lambda module: module.__name__.split(".")[-1])
def test_what_a_clone_copies(module):
    """Traced, not compiled: what rounds and selections make of a state has the state's own shapes."""
    for scheme in ("tournament", "pbt", "mf_pbt", "halving") if module is pqn_rnn_smax else ("tournament",):
        plan = plan_of(module, f"evolve={scheme}")
        start, one, (keys, hypers) = started(plan)
        state = jax.eval_shape(start, keys, hypers)
        after, told = jax.eval_shape(
            lambda s, f=one, r=plan.rules: generations.train_rounds(s, f, r, 4, 2, place()), state
        )
        assert shapes(after) == shapes(state)
        assert told.fitness.shape == (2, 4)
        learnt, slot = vars(state.train.learnt), vars(state.train.slot)
        assert {"params", "opt_state", "updates"} <= set(learnt) and {"key", "envs"} <= set(slot)
        assert not {"key", "envs", "buffer"} & set(learnt)
        assert shapes(generations.population_of(state, plan.rules).learnt) == shapes(state.train.learnt)
        parts = {part for parts in plan.algorithm.learning_rates.values() for part in parts}
        assert parts <= {*state.train.learnt.opt_state, "log_alpha"} if parts else True


def test_members_play_the_same_episodes_with_weights_and_luck_of_their_own():
    """So that the fitness of members differs by what they do."""
    plan = plan_of(ippo_ff_mpe, "evolve=pbt", "seeds=2")
    start, _, (keys, hypers) = started(plan, 8)
    state = jax.jit(start)(keys, jax.tree.map(jnp.asarray, hypers))
    assert len(np.unique(state.evaluation_key[:4], axis=0)) == 1
    assert len(np.unique(state.evaluation_key, axis=0)) == 2  # populations have their own
    assert len(np.unique(state.train.slot.key, axis=0)) == 8
    np.testing.assert_array_equal(state.evaluation_key[:, 1], [0] * 4 + [1] * 4)


def test_selections_every_second_round():
    """Before rounds 2 and 4, by the fitness of rounds 1 and 3; the slow half at the second selection alone."""
    plan = plan_of(
        ippo_ff_mpe, "evolve=mf_pbt", "evolve.every=2", "evolve.frequencies=[1,2]", "evolve.rounds=5", "total_steps=160"
    )
    start, train, (keys, hypers) = started(plan)

    def one(run, values):  # a higher learning rate is fitter in odd rounds, and less fit in even ones
        run, table, episodes = train(run, values)
        sign = jnp.where(run.train.learnt.updates % 2 == 0, 1e6, -1e6)
        return run, table, episodes | {"episode_return": episodes["episode_return"] + sign * values.lr}

    @jax.jit
    def program(keys, hypers):
        return generations.train_rounds(start(keys, hypers), one, plan.rules, 4, 5, place())[1]

    told = program(keys, jax.tree.map(jnp.asarray, hypers))
    assert (told.kind[0] == Kind.START).all() and (told.kind[jnp.array([1, 3])] == Kind.KEPT).all()
    for number, halves in ((2, (0,)), (4, (0, 1))):
        for half in (0, 1):
            own = slice(2 * half, 2 * half + 2)
            kind, parent, lr = told.kind[number, own], told.parent[number, own], told.hypers["lr"][number - 1, own]
            assert ((kind == Kind.EXPLORE).sum() == 1) == (half in halves)
            if half in halves:
                assert (parent == 2 * half + lr.argmax()).all()


def test_who_never_selects_is_told(capsys):
    plan_of(ippo_ff_mpe, "evolve=tournament", "evolve.every=2")
    assert capsys.readouterr().err == "warning: evolve.every=2: nobody is selected in 2 rounds\n"
    plan_of(ippo_ff_mpe, "evolve=tournament")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("diverged", [True, False])
def test_replay_of_a_lost_member_does_not_poison_its_heir(diverged):
    """MADDPG, where one member's slot is full of NaN: it is replaced, and learns on; its parameters may be finite."""
    words = ["population=2", "evolve.weights.hyper=0", "evolve.weights.parameters=0"]
    plan = plan_of(maddpg_ff_mpe, "evolve=tournament", *words)
    rules, (start, one, (keys, hypers)) = plan.rules, started(plan, 2)

    def poisoned(state):
        def bad(x):
            return x.at[1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

        slot = state.train.slot
        envs = slot.envs.replace(timestep=jax.tree.map(bad, slot.envs.timestep))
        train = state.train.replace(slot=slot.replace(buffer=jax.tree.map(bad, slot.buffer), envs=envs))
        return state.replace(
            run=state.run.replace(train=train, diverged=jnp.array([False, diverged])),
            fitness=jnp.array([1.0, -jnp.inf]),
            round=jnp.ones(2, jnp.int32),
        )

    @jax.jit
    def program(keys, hypers):
        before = poisoned(start(keys, jax.tree.map(jnp.asarray, hypers)))
        after, told = generations.train_rounds(before, one, rules, 2, 2, place())
        return before.train.slot.key, after, told

    first_keys, after, told = program(keys, hypers)
    assert told.kind[0].tolist() == [Kind.ELITE, Kind.NONE]
    assert told.parent[0].tolist() == [0, 0]
    assert not told.diverged.any()
    assert jnp.isfinite(told.fitness).all()
    assert all_finite(after.train.learnt.params)
    # A clone learns from its own slot, with its own key.
    assert (first_keys[0] != first_keys[1]).any()
    assert (after.train.slot.key[0] != after.train.slot.key[1]).any()
    assert any((leaf[0] != leaf[1]).any() for leaf in jax.tree.leaves(after.train.learnt.params))


def test_a_population_that_has_diverged_learns_again():
    """MADDPG, where all members diverge by what is in their replay: targets too stay as they were before."""
    words = ["population=2", "evolve.weights.hyper=0", "evolve.weights.parameters=0", "algo.normalise_obs=true"]
    plan = plan_of(maddpg_ff_mpe, "evolve=tournament", *words)
    start, one, (keys, hypers) = started(plan, 2)

    def bad(x):
        return jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x

    first = jax.jit(start)(keys, jax.tree.map(jnp.asarray, hypers))
    before, slot = first.train.learnt, first.train.slot
    envs_of_nan = slot.envs.replace(timestep=jax.tree.map(bad, slot.envs.timestep))
    train = first.train.replace(slot=slot.replace(buffer=jax.tree.map(bad, slot.buffer), envs=envs_of_nan))
    a_round = jax.jit(lambda state: generations.train_rounds(state, one, plan.rules, 2, 1, place()))
    diverged, told = a_round(first.replace(run=first.run.replace(train=train)))
    assert told.diverged.all()
    jax.tree.map(np.testing.assert_array_equal, before, diverged.train.learnt)
    after, told = a_round(diverged)
    assert not told.diverged.any()
    assert all_finite(after.train.learnt)
    assert any(
        (x != y).any() for x, y in zip(*map(jax.tree.leaves, (before.target, after.train.learnt.target)), strict=True)
    )


def test_whoever_diverges_counts_for_nothing(train, capsys):
    """All do, round after round: each time it is said, and nobody wins."""
    words = [
        "evolve=pbt",
        "evolve.hypers={lr: {min: 1e36, max: 1e38, log: true}}",
        "hypers.lr=1e37",
        "evolve.factors=[2]",
    ]
    folder = train(*EVOLUTION, *words)
    said = capsys.readouterr()
    table = shoal.load(folder).lineage
    assert (table.fitness == -np.inf).all()
    warnings = [line for line in said.err.splitlines() if "warning: run 0, 1, 2, 3, 4, 5, 6, 7 diverged" in line]
    assert len(warnings) == table["round"].nunique() == 4
    assert "(2 diverged)" in said.out and "no winner: all members have diverged" in said.out
    assert not (folder / "winner.yaml").exists()
    entries = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert all(entry["diverged"] == [*range(8)] for entry in entries if "absolute" not in entry)


def test_a_fresh_draw_begins_anew():
    """Halving: the slot of a member that ended is exactly what the algorithm begins with, at its new values."""
    plan = plan_of(ippo_ff_mpe, "evolve=halving")
    keys, hypers = plan.runs.select(np.arange(2))
    one = jax.tree.map(lambda x: x[0], (keys, hypers))

    @jax.jit
    def program(key, values):
        run = first_state(plan.algorithm, key, values)
        worked = run.replace(train=jax.tree.map(lambda x: (x + 1).astype(x.dtype), run.train))
        told = lambda run, values: run.train  # noqa: E731
        renewed = [
            generations.train_slot(worked, values, jnp.int32(kind), jnp.bool_(False), told, plan.rules)
            for kind in (Kind.FRESH, Kind.KEPT)
        ]
        return worked.train, plan.algorithm.init(worked.train.slot.key, values), *renewed

    worked, begun, fresh, kept = program(*one)
    jax.tree.map(np.testing.assert_array_equal, begun, fresh)
    jax.tree.map(np.testing.assert_array_equal, worked, kept)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["evolve=annealing"], "evolve=annealing: must be one of none, tournament, pbt, mf_pbt, halving"),
        (["population=8"], "population=8: needs evolution"),
        (["evolve=tournament", "evolve.size=0"], "evolve.size=0: must be at least 1"),
        (["evolve=tournament", "evolve.sise=3"], "did you mean evolve.size?"),
        (["evolve=pbt", "evolve.size=3"], "evolve.size: no such setting"),
        (["evolve=tournament", "evolve.weights.hyper=-1"], "evolve.weights.hyper=-1: must be at least 0"),
        (["evolve=tournament", "evolve.every=often"], "evolve.every=often: must be a whole number"),
        (["evolve=pbt", "evolve.exploit=0.7"], "evolve.exploit=0.7: must be in [0, 0.5]"),
        (["evolve=pbt", "evolve.start=late"], "evolve.start=late: must be one of recipe, random"),
        (["evolve.scheme=pbt"], "is chosen by evolve=pbt"),
        (["evolve=tournament", "population=1"], "needs 2 members"),
        (["evolve=tournament", "sweep.lr=[1e-3]"], "evolve.hypers.lr={min: a, max: b}"),
        (["evolve=tournament", "population=4", "runs_per_batch=6"], "must be a multiple of population=4"),
        (["evolve=tournament", "evolve.hypers={gama: null}"], "evolve.hypers.gama: not a hyperparameter"),
        (["evolve=tournament", "evolve.hypers.gama=null"], "evolve.hypers.gama: not a hyperparameter"),
        (["evolve=tournament", "evolve.hypers=[batch_share]"], "algo.elastic_batches=true"),
        (["evolve=tournament", "evolve.weights.architecture=0.2"], "no network is elastic"),
    ],
)
def test_a_mistake_is_one_line(words, answer):
    with pytest.raises(UserError) as error:
        made = ["total_steps=64"]
        name, module = "ippo_ff_mpe", ippo_ff_mpe
        compose.register(module.Config, module.Hypers, name=name)
        cfg = compose.check([*words, *made], name, module.Config, module.Hypers, CONFIG_DIR).config
        make_plan(algorithm_in(module), cfg, Path("nowhere"))
    assert answer in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_say_what_evolves():
    plan = plan_of(ippo_ff_mpe, "evolve=pbt", "hypers.lr=5e-3", "evolve.hypers={gamma: {min: 0.5, max: 0.9}, lr: null}")
    assert plan.rules.ranges == {"gamma": Range(0.5, 0.9, False), "lr": Range(5e-4, 5e-2, True)}
    plan = plan_of(ippo_ff_mpe, "evolve=pbt", "evolve.hypers.clip_eps={min: 0.1, max: 0.3}")
    assert list(plan.rules.ranges) == ["clip_eps"]
    plan = plan_of(ippo_ff_mpe, "evolve=tournament", "evolve.start=random", "population=6", "seeds=2")
    assert len(plan.runs) == 12
    assert len(np.unique(plan.runs.hypers.lr)) == 11  # the first of each keeps the recipe's
    for start in ("recipe", "random"):
        words = [f"evolve.start={start}", "hypers.lr=3e-3", "evolve.hypers={lr: {min: 1e-6, max: 1e-5, log: true}}"]
        lr = plan_of(ippo_ff_mpe, "evolve=pbt", *words).runs.hypers.lr
        assert lr[0] == np.float32(1e-5) and (lr <= np.float32(1e-5)).all() and (lr >= np.float32(1e-6)).all()
    shares = plan_of(ippo_ff_mpe, "evolve=pbt", "algo.elastic_batches=true")
    assert {"batch_share", "epoch_share"} <= set(shares.rules.ranges)


def test_rounds_and_chunks():
    for words, expected in (
        (["evolve.rounds=6", "chunks=3", "total_steps=1920"], (2, 3, 10)),  # rounds per chunk, chunks, updates
        (["evolve.rounds=6", "chunks=1", "total_steps=1920"], (6, 1, 10)),
        (["evolve.rounds=6", "chunks=20", "total_steps=1920"], (1, 6, 10)),
    ):
        plan = plan_of(ippo_ff_mpe, "evolve=pbt", *words)
        assert (plan.rounds_per_chunk, plan.chunks, plan.updates_per_round) == expected


@pytest.mark.parametrize(("updates", "rounds", "per_round"), [(30, 15, 2), (61, 16, 4), (40, 20, 2), (19, 19, 1)])
def test_chunks_do_not_change_the_rounds(updates, rounds, per_round):
    for chunks in (1, 3, 20):
        plan = plan_of(ippo_ff_mpe, "evolve=pbt", "evolve.rounds=20", f"total_steps={32 * updates}", f"chunks={chunks}")
        assert (plan.updates_per_round, plan.chunks * plan.rounds_per_chunk) == (per_round, rounds)
        assert plan.chunks >= min(chunks, rounds)  # progress and checkpoints as often as was asked, or more
        assert 0 <= plan.chunks * plan.updates_per_chunk - updates < per_round  # no round for nothing


def test_an_evolution_that_goes_on_keeps_its_chunks():
    """Though it is longer now, and its rounds would be cut otherwise; folders of before do not say their rounds."""
    words = ["evolve=pbt", "evolve.rounds=20", "chunks=3", f"total_steps={32 * 61}"]
    plan = plan_of(ippo_ff_mpe, *words)
    cfg = plan.settings.copy()
    OmegaConf.set_struct(cfg, False)
    cfg.updates_per_chunk, cfg.rounds_per_chunk = plan.updates_per_chunk, plan.rounds_per_chunk
    cfg.total_steps = cfg.algo.total_steps = 32 * 127
    longer = make_plan(ippo_ff_mpe.IPPO, cfg, Path("nowhere"))
    assert (longer.updates_per_round, longer.rounds_per_chunk, longer.chunks) == (4, 4, 8)
    cfg.updates_per_chunk = 21
    del cfg.rounds_per_chunk  # it was 7, of 3 updates
    old = make_plan(ippo_ff_mpe.IPPO, cfg, Path("nowhere"))
    assert (old.updates_per_round, old.rounds_per_chunk, old.chunks) == (3, 7, 7)


@pytest.mark.parametrize(("available", "advice"), [(500, "runs_per_batch=8 "), (170, "population=3 ")])
def test_what_does_not_fit_is_cut_to_whole_populations(available, advice):
    """Five populations of four, of whose runs nine fit, or three, with a tenth to spare."""
    plan = plan_of(ippo_ff_mpe, "evolve=pbt", "seeds=5")
    with pytest.raises(UserError, match=advice):
        check_memory(1000, available, plan)


def test_the_best_of_a_population_counts():
    def entry(returns, **more):
        return {"batch": 0, "env_steps": 10, "runs": [0, 1, 2, 3], "metrics": {"episode_return": returns}, **more}

    entries = [
        entry([[1.0, 3.0], [0.0, 0.0], [float("nan")] * 2, [5.0, 5.0]]),
        entry([[0.0, 0.0], [1.0, 1.0], [float("nan")] * 2, [float("nan")] * 2]),
        entry([[7.0], [9.0], [1.0], [2.0]], absolute=True),
    ]
    first, second, last = lineage.best_of_populations(entries, 2)
    assert first["runs"] == [0, 1]
    assert first["metrics"]["episode_return"] == [[1.0, 3.0], [5.0, 5.0]]
    assert second["metrics"]["episode_return"][0] == [1.0, 1.0]
    assert last["metrics"]["episode_return"] == [[7.0], [2.0]]  # of those that were best before
    entries = [entry([[1.0], [5.0], [2.0], [3.0]], diverged=[1]), entry([[1.0], [4.0], [2.0], [9.0]], diverged=[3])]
    first, second = lineage.best_of_populations(entries, 2)
    assert first["metrics"]["episode_return"] == [[1.0], [3.0]]
    assert second["metrics"]["episode_return"] == [[4.0], [2.0]]
    _, returns = returns_of([entries[0], entries[1] | {"env_steps": 20}], 2)
    np.testing.assert_array_equal(returns, [[[1.0, 1.0], [np.nan, 4.0]], [[2.0, 2.0], [3.0, np.nan]]])


def test_the_winner_s_networks_are_cut_to_what_lives():
    row = pd.Series(
        {"actor/width_0": 48, "actor/width_1": 0, "actor/depth": 1, "actor/activation": "gelu", "critic/width_0": 64,
         "critic/width_1": 96, "critic/depth": 2, "fitness": 1.0}
    )  # fmt: skip
    models = {"widths": [64, 64], "activation": "relu", "elastic": True, "mutable_activation": True, "hidden": 3}
    cut = winner.living_networks(row, {"actor": models, "critic": "central", "q": models})
    assert cut["actor"] == {
        **models,
        "widths": [48],
        "activation": "gelu",
        "elastic": False,
        "mutable_activation": False,
    }
    assert cut["q"]["widths"] == [64, 96]


def test_optimisers_begin_anew_with_an_architecture():
    """MADDPG's: those of the elite work on; targets get the very architecture and weights of their networks."""
    words = ["algo.actor.widths=[8]", "algo.actor.max_width=16", "algo.q.widths=[8]", "algo.q.max_width=16"]
    words += ["algo.actor.elastic=true", "algo.q.elastic=true", "evolve.architecture.min_width=4"]
    words += ["evolve.architecture.nodes=[4]", "evolve.weights={none: 0, parameters: 0, hyper: 0, architecture: 1}"]
    plan = plan_of(maddpg_ff_mpe, "evolve=tournament", *words)
    rules, (start, _, (keys, hypers)) = plan.rules, started(plan)

    @jax.jit
    def program(keys, hypers):
        before = generations.population_of(start(keys, jax.tree.map(jnp.asarray, hypers)), rules)
        at_work = jax.tree.map(lambda x: x + 1, before.learnt.opt_state)
        before = before.replace(learnt=before.learnt.replace(opt_state=at_work))
        return before, generations.select(keys, before, jnp.arange(4.0), rules, 4)

    before, new = jax.device_get(program(keys, hypers))
    assert new.kind.tolist() == [Kind.ELITE] + 3 * [Kind.ARCHITECTURE]
    for was, now in zip(*(jax.tree.leaves(p.learnt.opt_state) for p in (before, new)), strict=True):
        np.testing.assert_array_equal(now[0], was[3])
        assert (now[0] == 1).all()
        assert (now[1:] == 0).all()
    jax.tree.map(np.testing.assert_array_equal, new.learnt.target, new.learnt.params)
    widths, wide = (jax.vmap(elastic.describe)(p.learnt.params) for p in (before, new))
    for member in (1, 2, 3):
        assert any(wide[name][member] != widths[name][new.parent[member]] for name in wide)


def test_architectures_evolve_and_the_winner_s_is_plain(train):
    words = ["algo.actor.elastic=true", "algo.actor.max_width=32", "algo.actor.mutable_activation=true"]
    words += ["evolve.weights={none: 0, parameters: 0, hyper: 0, architecture: 1, activation: 1}"]
    place = train(*TOURNAMENT, *words, "seeds=1", "evolve.architecture.min_width=4", "evolve.architecture.nodes=[4]")
    table = shoal.load(place).lineage
    assert set(table.mutation) == {"start", "elite", "architecture", "activation"}
    assert (table[table["round"] == 0]["actor/width_0"] == 8).all()
    assert table["actor/width_0"].isin([4, 8, 12, 16, 20]).all()
    assert table["actor/width_0"].nunique() > 1
    assert table["actor/activation"].isin(["tanh", "relu", "elu", "gelu"]).all()
    assert table["actor/activation"].nunique() > 1
    best = table[table["round"] == 3].set_index("member").fitness.idxmax()
    row = table[(table["round"] == 3) & (table.member == best)].iloc[0]
    network = yaml.safe_load((place / "winner.yaml").read_text())["algo"]["actor"]
    assert network["widths"] == [row[f"actor/width_{layer}"] for layer in range(row["actor/depth"])]
    assert network["activation"] == row["actor/activation"]
    cfg = compose.compose("winner", [], str(place))
    plain = ippo_ff_mpe.IPPO(build(cfg.algo, "algo.", ippo_ff_mpe.Config), envs.make("matrix/climbing"))
    policy = jax.eval_shape(lambda: plain.init(jax.random.PRNGKey(0), ippo_ff_mpe.Hypers())).learnt.params["actor"]
    layers = [policy["MLP_0"][f"Dense_{layer}"]["kernel"].shape[-1] for layer in range(row["actor/depth"])]
    assert layers == network["widths"]
    assert not elastic.has(policy)
