"""What evolution finds, recorded: against grid, random search and the tuned recipe, and against AgileRL.

    python tools/evolution.py                             # what has not been trained yet, then records and page
    python tools/evolution.py --only random,grid,tuned    # some of them; the page shows what is recorded
    python tools/evolution.py --only none                 # nothing is trained: the page of the records
    python tools/evolution.py --quick --folder quick      # the searches on one task at a size that means nothing
    python tools/evolution.py --seed 100 --folder trial   # a trial on other seeds; the page goes there too
    python tools/evolution.py --seed 200 --folder again --keep  # once more, on other seeds, beside the first record

*Search* (``TASKS``): an algorithm starts from learning rates thirty times too low and from ten times too much entropy,
or a tenth of the exploration noise. Evolution may move them within ranges; grid and random search draw from the same
ranges, with as many runs as a population has members, and each run is as long as a member's life: the same environment
steps. ``tuned`` is the recipe that ships, cut to that length (or to ``tuned_steps``). A search hands over the policy
with the best greedy evaluation of the runs that have not diverged; what counts is that policy's return in fresh greedy
episodes (the absolute metric). Five populations, five random searches, one grid.

*Peer*: populations of four on simple_speaker_listener at as many environment steps, all members together, as AgileRL's
record has (results/agilerl_*.json, by tools/reference_agilerl.py): from the recipe that ships and from AgileRL's
own first hyperparameters and learning frequency. Seconds are of one population, compiling and evaluation included.

Records are results/evolution_<task>.json (and ..._seed<N>.json of other seeds), from which the part of
results/evolution.md between two marks and docs/images/evolution.png are made. Returns are per agent, undiscounted.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from omegaconf import OmegaConf
from scipy import stats

matplotlib.use("agg")
import matplotlib.pyplot as plt

from shoal.config.words import Parser, some_of
from shoal.folder.tables import diverged_runs

ROOT = Path(__file__).parent.parent


class Searched(NamedTuple):
    """A hyperparameter that is searched for."""

    bad: float  # times the tuned value: where evolution starts
    low: float  # of its range, log-uniform
    high: float
    points: int  # of the grid


class Task(NamedTuple):
    """What is searched for, and where."""

    algorithm: str
    env: str
    recipe: str
    steps: int  # of a member
    searched: dict[str, Searched]
    fixed: tuple[str, ...] = ()  # what all searches have besides
    tuned_steps: int = 0  # of the tuned recipe, if not as long as a member


PPO = {"lr": Searched(1 / 30, 1e-5, 3e-2, 8), "ent_coef": Searched(10.0, 1e-3, 0.3, 4)}
DDPG = {
    "lr": Searched(1 / 30, 1e-5, 3e-2, 4),
    "critic_lr": Searched(1 / 30, 1e-5, 3e-2, 4),
    "noise_start": Searched(1 / 10, 0.03, 3.0, 2),
}
SAC = {
    "lr": Searched(1 / 30, 1e-5, 3e-2, 4),
    "critic_lr": Searched(1 / 30, 1e-5, 3e-2, 4),
    "alpha": Searched(10.0, 1e-3, 0.3, 2),  # the entropy's weight
}
PEER_TASK = "mpe/simple_speaker_listener"
TASKS = {
    "spread": Task("ippo", "mpe/simple_spread", "ippo_ff_mpe", 196_608, PPO),
    "spread_long": Task("ippo", "mpe/simple_spread", "ippo_ff_mpe", 1_000_000, PPO),  # as long as the recipe ships
    "speaker": Task("maddpg", PEER_TASK, "maddpg_ff_mpe", 98_304, DDPG),
    "speaker_entropy": Task("masac", PEER_TASK, "masac_ff_vmas", 49_152, SAC),
    "speaker_discrete": Task("mappo", PEER_TASK, "mappo_ff_vmas", 393_216, PPO),  # a long plateau
    "speaker_short": Task("mappo", PEER_TASK, "mappo_ff_vmas", 262_144, PPO),  # nobody has arrived yet
    # No search is told that learning rates should fall, as the recipe knows; the long one is judged by all of it.
    "speaker_constant": Task("mappo", PEER_TASK, "mappo_ff_vmas", 393_216, PPO, ("hypers.lr_end=1",)),
    "speaker_constant_long": Task("mappo", PEER_TASK, "mappo_ff_vmas", 524_288, PPO, ("hypers.lr_end=1",), 1_000_000),
}
EVOLUTION = {  # settings beside the defaults
    "tournament": (
        "evolve.size=4",
        "evolve.factors=[0.33,3.0]",
        "evolve.weights.none=0.2",
        "evolve.weights.hyper=1.0",
        "evolve.weights.parameters=0",
    ),
    "pbt": (),  # all members but the first begin with draws from the ranges
    "patient": ("evolve.burn_in=12",),  # pbt that lets three quarters of a life pass before it selects
    "keen": (  # as patient, but then nearly half make room for the best, with values twice or half as large
        "evolve.burn_in=12",
        "evolve.exploit=0.45",
        "evolve.resample=0",
        "evolve.factors=[0.5,2.0]",
    ),
    "midway": (  # the same from five eighths of a life on
        "evolve.burn_in=10",
        "evolve.exploit=0.4",
        "evolve.resample=0",
        "evolve.factors=[0.5,2.0]",
    ),
    "alone": ("evolve.burn_in=16",),  # its members with the same first weights, values and luck, never selected
}
SCHEMES = dict.fromkeys(("patient", "keen", "midway", "alone"), "pbt")  # where a method is not named as its scheme
METHODS = ("tuned", "grid", "random", "falling", *EVOLUTION)  # falling: random search without what a task has fixed
COLOURS = {name: f"C{number}" for number, name in enumerate(METHODS)}  # the same in every panel


@dataclass(frozen=True)
class Size:
    """How large the experiment is."""

    population: int = 32
    populations: int = 5
    shorter: int = 1  # a member's life is this many times shorter than its task says
    rounds: int = 16
    seeds: int = 10  # of the tuned recipe
    most_points: int = 8  # of the grid, per hyperparameter
    peer_steps: float = 8e5  # of all members together
    peer_population: int = 4
    peers: int = 3  # populations, one after the other
    episodes: int = 256
    seed: int = 0  # of the first


SEARCH_TEXT = f"""\
Written by `python tools/evolution.py`, whose docstring says how. In `tournament` all members begin with the bad
values, in `pbt` all but one with draws from the ranges, as it ships. `patient` is `pbt` with `evolve.burn_in=12` of 16
rounds; `keen` besides replaces 45 % of the members at each selection and doubles or halves their values
(`evolve.exploit=0.45 evolve.factors=[0.5,2.0] evolve.resample=0`); `midway` does so with 40 % from `evolve.burn_in=10`
on. `alone` are the very members of these three, from the same draws, weights and luck, of whom nobody is ever replaced:
a random search that differs from them by selection alone. Where all searches have something fixed, `falling` is random
search without it. A search hands over its best evaluated policy; *handed over* is what that policy returns in
{10 * Size.episodes} fresh greedy episodes,
*first evaluated* when the median search's best evaluation ({Size.episodes} episodes, the best of all runs, so too good)
passed the tuned recipe's median. `tuned` is single runs of the shipped recipe, cut to the same length unless the table
has another. All runs of a search have first weights and luck of their own and are evaluated on the same episodes.
Returns are per agent.
"""
SUMMARY_TEXT = """\
Every evolution beside random search with the same environment steps and beside the tuned recipe's single runs, one
series of five populations after the other; p is a one-sided rank test of all populations against all random searches.
With * no search has falling learning rates (`hypers.lr_end=1`); the recipe has.
"""
CURVES_TEXT = """\
The best evaluation of a search's runs: the median of all searches of all series, and as a band the half of them around
it; in brackets how many there are.
"""
PEER_TEXT = """\
`simple_speaker_listener` with continuous actions, populations of 4, generations of 10,000 environment steps of each
member. AgileRL (`tools/reference_agilerl.py`): its `train_multi_agent_off_policy` at its tutorial's settings;
return of the last generation's fittest in 96 fresh episodes without noise, mean over agents (AgileRL's own score is
the sum, twice that), time without these episodes. shoal: `evolve=tournament` as it ships (learning rates and
parameters mutate, architectures do not); return of the best evaluated policy in 320 fresh greedy episodes; time of
the whole command, first with an empty compilation cache, then with a filled one. Both ran beside other jobs on 2
cores, so that wall-clock seconds are too long and CPU seconds are the fairer measure. Shoal's noise at AgileRL's first
values was an Ornstein-Uhlenbeck process, as AgileRL's is, when this was recorded; today it is drawn anew at every step.
"""
MARKS = ("<!-- written by tools/evolution.py: from here -->", "<!-- to here -->")
QUICK = Size(4, 2, 48, 2, 2, 2, 16_000, 4, 2, 4)


def tuned(task: Task) -> dict[str, float]:
    """The shipped recipe's values of what is searched for."""
    hypers = OmegaConf.load(ROOT / "config" / f"{task.recipe}.yaml").hypers
    own = ROOT / "config" / "recipes" / task.recipe / f"{task.env}.yaml"
    if own.exists():
        hypers = OmegaConf.merge(hypers, OmegaConf.load(own).hypers)
    return {name: float(hypers[name]) for name in task.searched}


def start(task: Task) -> str:
    """Where evolution begins, for a reader: ``lr / 30, ent_coef x 10``."""
    factors = {name: one.bad for name, one in task.searched.items()}
    return ", ".join(f"{name} {f'x {bad:g}' if bad >= 1 else f'/ {1 / bad:g}'}" for name, bad in factors.items())


def grid(task: Task, size: Size) -> dict[str, list[float]]:
    """Evenly spaced points of each range, ends included, on the logarithmic scale."""
    return {
        name: [float(f"{value:.3g}") for value in np.geomspace(one.low, one.high, min(one.points, size.most_points))]
        for name, one in task.searched.items()
    }


def intervals(task: Task) -> dict[str, str]:
    return {name: f"{{min: {one.low:g}, max: {one.high:g}, log: true}}" for name, one in task.searched.items()}


def trainings(method: str, task: Task, size: Size) -> list[list[str]]:
    """The command lines of a method, without their folders."""
    life = (task.tuned_steps if method == "tuned" else 0) or task.steps
    common = [task.algorithm, f"env={task.env}", f"total_steps={life // size.shorter}"]
    common += [f"evaluation.episodes={size.episodes}", *(() if method in ("tuned", "falling") else task.fixed)]
    plain = [*common, f"chunks={size.rounds}"]
    if method == "tuned":
        return [[*plain, f"seeds={size.seeds}", f"seed={size.seed}"]]
    own = ["sweep.paired=false"]  # first weights and luck, as members have
    if method == "grid":
        values = grid(task, size)
        points = [f"sweep.{name}=[{','.join(f'{v:g}' for v in each)}]" for name, each in values.items()]
        return [[*plain, "seeds=1", f"seed={size.seed}", *own, *points]]
    ranges = intervals(task)
    if method in ("random", "falling"):
        draws = ["sweep.mode=random", f"sweep.num={size.population}", *(f"sweep.{n}={r}" for n, r in ranges.items())]
        numbers = range(size.seed, size.seed + size.populations)
        return [[*plain, "seeds=1", f"seed={i}", f"sweep.seed={i}", *own, *draws] for i in numbers]
    bad = [f"hypers.{name}={value * task.searched[name].bad:.4g}" for name, value in tuned(task).items()]
    limits = [f"evolve.hypers.{name}={interval}" for name, interval in ranges.items()]
    count = [f"population={size.population}", f"seeds={size.populations}", f"seed={size.seed}"]
    scheme = f"evolve={SCHEMES.get(method, method)}"
    return [[*common, scheme, *count, f"evolve.rounds={size.rounds}", *bad, *limits, *EVOLUTION[method]]]


# As AgileRL's demonstrations have it: a gradient step per 100 environment steps, batch, size of noise, first values.
THEIRS = (
    "algo.gradient_steps=4",
    "algo.buffer_size=100000",
    "algo.learning_starts=0",
    "hypers.lr_end=1",
    "hypers.gamma=0.95",
    "hypers.tau=0.01",
    "hypers.noise_start=0.1",
    "hypers.noise_end=0.1",
)
MATD3 = ("algo.batch_size=128", "hypers.lr=1e-4", "hypers.critic_lr=1e-3")
MADDPG = ("algo.batch_size=32", "hypers.lr=1e-3", "hypers.critic_lr=1e-3")
PEER_HYPERS = ("lr", "critic_lr")  # that evolve there
PEERS = {"matd3": {"shipped": (), "theirs": THEIRS + MATD3}, "maddpg": {"shipped": (), "theirs": THEIRS + MADDPG}}


def peer_training(algorithm: str, setting: str, seed: int, size: Size) -> list[str]:
    """A generation is as long as AgileRL's: 10,000 environment steps of every member."""
    steps = size.peer_steps / size.peer_population
    rounds = max(2, round(steps / 10_000))
    own = [f"population={size.peer_population}", "seeds=1", f"seed={seed}", f"evolve.rounds={rounds}"]
    words = [f"total_steps={steps:g}", "evolve=tournament", *own, *PEERS[algorithm][setting]]
    return [algorithm, f"env={PEER_TASK}", *words]


def train(words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a training unless it has ended; what it took."""
    done = folder / "took.json"
    if not done.exists():
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "shoal", *words, f"run.dir={folder}"], check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        facts = {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu, "load": os.getloadavg()[1]}
        done.write_text(json.dumps({name: round(value, 1) for name, value in facts.items()}))
    return json.loads(done.read_text())


def outcome(folder: Path, members: int, searched: Sequence[str]) -> dict[str, Any]:
    """Of every ``members`` consecutive runs: the best evaluation over time, and what is handed over at the end.

    A run that diverged is neither: ``diverged`` has the number of these, and where nobody lives there is minus
    infinity. In a population another member takes the place of one that diverged, so that its evaluations before and
    after count.
    """
    table, lost = pd.read_csv(folder / "metrics.csv"), diverged_runs(folder)
    table["gone"] = table["run"].isin(lost)
    if (folder / "lineage.csv").exists():  # where hyperparameters change
        table["gone"] = table["diverged"] == 1
        history = pd.read_csv(folder / "lineage.csv")
        names = [name for name in searched if name in history]
        table = table.drop(columns=names, errors="ignore").merge(history[["run", "env_steps", *names]])
    table["score"] = table["evaluation/episode_return"].mask(table["gone"]).fillna(-np.inf)
    curve = table.pivot(index="run", columns="env_steps", values="score")
    last = table[table["env_steps"] == table["env_steps"].max()].set_index("run")["best_return"]
    final: dict[int, float] = {}
    for entry in map(json.loads, (folder / "evaluations.jsonl").read_text().splitlines()):
        if entry.get("absolute"):
            final |= dict(zip(entry["runs"], np.mean(entry["metrics"]["episode_return"], axis=1).tolist(), strict=True))
    best, handed, hypers, diverged = [], [], [], []
    for runs in np.split(curve.index.to_numpy(), len(curve) // members):
        living = [run for run in runs if run not in lost]
        best.append(np.round(curve.loc[runs].to_numpy().max(axis=0), 4).tolist())
        handed.append(round(final[int(last.loc[living].idxmax())], 4) if living else -np.inf)
        diverged.append(len(runs) - len(living))
        rows = table[table["run"].isin(living)]
        at = rows.loc[rows["score"].idxmax()] if living else dict.fromkeys(searched, np.nan)
        hypers.append({name: float(f"{at[name]:.4g}") for name in searched if name in table})
    steps = [int(step) for step in curve.columns]
    return {"steps": steps, "best": best, "absolute": handed, "hypers": hypers, "diverged": diverged}


def merged(outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several trainings of one method as one record."""
    lists = {name: [one for each in outcomes for one in each[name]] for name in ("best", "absolute", "hypers")}
    lists["diverged"] = [one for each in outcomes for one in each.get("diverged", [0] * len(each["best"]))]
    return {"steps": outcomes[0]["steps"], **lists}


def lost_in(record: dict[str, Any]) -> str:
    """How many runs of a method diverged, in brackets; empty if none did, or if the record is of before."""
    count = sum(record.get("diverged", []))
    return f" ({count} diverged)" if count else ""


def search(method: str, task: Task, size: Size, folder: Path) -> dict[str, Any]:
    """Train what a method needs, and its record."""
    members = {"tuned": 1, "grid": math.prod(map(len, grid(task, size).values()))}.get(method, size.population)
    took, outcomes, commands = [], [], trainings(method, task, size)
    for number, words in enumerate(commands):
        place = folder / f"{method}_{number}"
        took.append(train(words, place))
        outcomes.append(outcome(place, members, [*task.searched]))
    record = {"command": [" ".join(words) for words in commands], "members": members, **merged(outcomes)}
    record |= {name: round(sum(one[name] for one in took), 1) for name in ("seconds", "cpu_seconds")}
    return record


def against(algorithm: str, setting: str, size: Size, folder: Path) -> dict[str, Any]:
    """Populations of one setting, each by itself for its time."""
    outcomes, took, compiling = [], [], []
    commands = [peer_training(algorithm, setting, size.seed + number, size) for number in range(size.peers)]
    for number, words in enumerate(commands):
        place = folder / f"{algorithm}_{setting}_{number}"
        took.append(train(words, place))
        compiling.append(json.loads((place / "provenance.json").read_text())["session"]["compile_seconds"])
        outcomes.append(outcome(place, size.peer_population, PEER_HYPERS))
    times = {name: [one[name] for one in took] for name in ("seconds", "cpu_seconds", "load")}
    command = [" ".join(words) for words in commands]
    return {"command": command, "members": size.peer_population, "compiling": compiling, **times, **merged(outcomes)}


def at_level(record: dict[str, Any], level: float) -> str:
    """Environment steps, all members together, after which half of the searches had evaluated so well."""
    curve = np.median(np.maximum.accumulate(record["best"], axis=1), axis=0)
    passed = np.flatnonzero(curve >= level)
    return f"{record['steps'][passed[0]] * record['members'] / 1e6:.2f}M" if len(passed) else "never"


def lives(task: Task, methods: dict[str, Any]) -> str:
    """How long a run of a search is, for a reader; a task's steps are rounded up to whole rounds."""
    record = next((one for name, one in methods.items() if name != "tuned"), methods.get("tuned"))
    return f"lives of {record['steps'][-1] / 1e3:.0f}k steps{' *' if task.fixed else ''}"


def search_table(task: Task, methods: dict[str, Any], seed: int = 0) -> list[str]:
    """What each method handed over, and how soon; seeds are ``seed`` and up."""
    goal = float(np.median(methods["tuned"]["absolute"])) if "tuned" in methods else np.nan
    ranges = [f"{name} in {one.low:g} .. {one.high:g}" for name, one in task.searched.items()]
    fixed = f", all but `falling` with `{' '.join(task.fixed)}`" if task.fixed else ""
    lines = [
        f"### `{task.algorithm}` on `{task.env}`, {lives(task, methods)}{f', seeds from {seed}' if seed else ''}\n",
        f"From {start(task)}; all searches have {', '.join(ranges)}, logarithmic{fixed}.\n",
        "| method | searches x runs x steps | steps of a search | return handed over: median (all) "
        f"| {' | '.join(f'{name}, median' for name in task.searched)} "
        "| tuned return first evaluated after | CPU time |",
        f"|{'---|' * (6 + len(task.searched))}",
    ]
    for name, record in methods.items():
        values = sorted(record["absolute"])
        found = record["hypers"]
        chosen = {key: np.median([one[key] for one in found]) for key in task.searched} if found[0] else tuned(task)
        each = record["steps"][-1]
        shown = ", ".join(f"{value:.2f}" for value in values)
        cells = [
            f"`{name}`" if name in EVOLUTION else name,
            f"{len(values)} x {record['members']} x {each / 1e3:.0f}k{lost_in(record)}",
            f"{record['members'] * each / 1e6:.2f}M",
            f"**{np.median(values):.2f}** ({shown})",
            *(f"{value:.2g}" for value in chosen.values()),
            at_level(record, goal),
            f"{record['cpu_seconds'] / 60:.1f} min",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def series_of(name: str, results: Path) -> dict[int, dict[str, Any]]:
    """What is recorded of a task, by the first seed of each series."""
    series = {0: load(results, f"evolution_{name}.json")}
    for path in results.glob(f"evolution_{name}_seed*.json"):
        series[int(path.stem.rpartition("seed")[2])] = load(results, path.name)
    return {seed: methods for seed, methods in sorted(series.items()) if methods}


def handed_over(records: Sequence[dict[str, Any]], name: str, *beside: str) -> list[list[float]]:
    """What ``name`` handed over, series by series; of those alone that have all of ``beside`` too."""
    return [one[name]["absolute"] for one in records if {name, *beside} <= {*one}]


def summary(results: Path) -> list[str]:
    """A row for every evolution beside random search and the recipe: who is above whom, series by series."""
    lines = [
        "| | `evolve` | median of each series | random search | tuned | above random search | above tuned | p |",
        f"|{'---|' * 8}",
    ]
    for task, name in product(TASKS, EVOLUTION):
        records = list(series_of(task, results).values())
        needed = (name, "random", "tuned")
        evolved, drawn, recipe = (handed_over(records, one, *needed) for one in needed)
        if name == "alone" or not evolved:
            continue
        medians = [[float(np.median(values)) for values in each] for each in (evolved, drawn, recipe)]
        chance = stats.mannwhitneyu(np.concatenate(evolved), np.concatenate(drawn), alternative="greater").pvalue
        life = lives(TASKS[task], next(one for one in records if name in one))
        cells = [
            f"{TASKS[task].algorithm}, {TASKS[task].env.partition('/')[2]}, {life}",
            f"`{name}`",
            *(", ".join(f"{value:.2f}" for value in each) for each in medians),
            *(f"{np.greater(medians[0], each).sum()} of {len(each)}" for each in medians[1:]),
            f"{chance:.2g}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def gains(task: Task, records: Sequence[dict[str, Any]]) -> list[str]:
    """Selection by itself: populations less the very same members left alone."""
    lines = []
    for name in ("patient", "keen", "midway"):
        pairs = [
            np.subtract(*both)
            for both in zip(handed_over(records, name, "alone"), handed_over(records, "alone", name), strict=True)
        ]
        if pairs:
            each = sorted(np.concatenate(pairs))
            shown = ", ".join(f"{gain:+.2f}" for gain in each)
            chance = stats.wilcoxon(each, alternative="greater").pvalue if np.any(each) else 1.0
            lines.append(f"- `{name}` less `alone`, population by population: {shown};")
            lines.append(f"  signed-rank test, one-sided: p = {chance:.2g}.")
    return [f"All seeds of `{task.algorithm}` in these lives:\n", *lines, ""] if lines else []


def pooled(name: str, results: Path) -> dict[str, Any]:
    """The records of a task's methods, all series as one."""
    series = series_of(name, results).values()
    methods = {method: [one[method] for one in series if method in one] for method in METHODS}
    return {method: {"members": each[0]["members"]} | merged(each) for method, each in methods.items() if each}


def task_lines(name: str, results: Path) -> list[str]:
    """All that is recorded of a task: a table for each series of seeds, and what selection did in all of them."""
    series = series_of(name, results)
    tables = [line for seed, methods in series.items() for line in search_table(TASKS[name], methods, seed)]
    return tables + gains(TASKS[name], list(series.values()))


def peer_table(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """AgileRL's population and ours at the same environment steps."""
    lines = [
        "| algorithm | who | populations | steps of all members | return: median (all) | seconds | CPU seconds |",
        f"|{'---|' * 7}",
    ]
    ratios = []
    for algorithm, record in theirs.items():
        last = [one["generations"][-1] for one in record["populations"]]
        best = [max(row["return"] for row in one["generations"]) for one in record["populations"]]
        shown = ", ".join(f"{one['return']:.2f}" for one in last)
        cells = [
            f"`{algorithm}`",
            f"AgileRL {record['versions']['agilerl']}, its settings",
            str(len(last)),
            f"{last[0]['env_steps'] / 1e3:.0f}k",
            f"{np.median([one['return'] for one in last]):.2f} ({shown}); best generation {max(best):.2f}",
            f"{np.median([one['seconds'] for one in last]):.0f}",
            f"{np.median([one['cpu_seconds'] for one in last]):.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        for setting, one in ours.get(algorithm, {}).items():
            shown = ", ".join(f"{value:.2f}" for value in sorted(one["absolute"]))
            who = {"shipped": "shoal, the recipe that ships", "theirs": "shoal, AgileRL's first values"}[setting]
            cells = [
                f"`{algorithm}`",
                who,
                f"{len(one['best'])}{lost_in(one)}",
                f"{one['steps'][-1] * one['members'] / 1e3:.0f}k",
                f"{np.median(one['absolute']):.2f} ({shown})",
                *(f"{one[name][0]:.0f}, then {_shown(one[name][1:])}" for name in ("seconds", "cpu_seconds")),
            ]
            lines.append(f"| {' | '.join(cells)} |")
            parts = []
            for name, what in (("seconds", "wall-clock time"), ("cpu_seconds", "CPU time")):
                whole, first, later = np.median([row[name] for row in last]), one[name][0], np.median(one[name][1:])
                parts.append(
                    f"{whole / first:.1f} times the {what} of the first run and {whole / later:.1f} of later ones"
                )
            ratios.append(f"- `{algorithm}`, {who}: AgileRL takes {', '.join(parts)}.")
    return [*lines, "", *ratios, ""]


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def picture(records: dict[str, dict[str, Any]], ours: dict[str, Any], theirs: dict[str, Any], out: Path) -> None:
    """The best evaluation of a search against the environment steps of all its runs, and AgileRL's beside ours."""
    panels = [*records, *(name for name in theirs if ours.get(name))]
    rows = (len(panels) + 1) // 2
    figure, axes = plt.subplots(rows, 2, figsize=(10, 3.8 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, panel in zip(axes.flat, panels, strict=False):
        axis.set_xlabel("environment steps of all members, millions")
        if panel in records:
            task = TASKS[panel]
            life = f"{lives(task, records[panel])} from {start(task)}"
            axis.set_title(f"{task.algorithm.upper()}, {task.env}\n{life}", fontsize=10)
            axis.set_ylabel("best greedy evaluation of the runs")
            for name, record in records[panel].items():
                if name == "tuned":
                    level = np.median(record["absolute"])
                    axis.axhline(
                        level,
                        color="black",
                        linestyle=":",
                        label=f"tuned recipe, one run's end ({len(record['absolute'])})",
                    )
                    continue
                _draw(axis, np.array(record["steps"]) * record["members"], record["best"], name, COLOURS[name])
        else:
            axis.set_title(f"{panel.upper()}, {PEER_TASK}\npopulations of 4", fontsize=10)
            axis.set_ylabel("return of the fittest")
            curves = [[row["return"] for row in one["generations"]] for one in theirs[panel]["populations"]]
            steps = [row["env_steps"] for row in theirs[panel]["populations"][0]["generations"]]
            _draw(axis, np.array(steps), curves, "AgileRL", "C0")
            for number, (setting, record) in enumerate(ours[panel].items(), 1):
                label = {"shipped": "shoal, shipped recipe", "theirs": "shoal, AgileRL's first values"}[setting]
                _draw(axis, np.array(record["steps"]) * record["members"], record["best"], label, f"C{number}")
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(out, dpi=110)
    plt.close(figure)


def _draw(axis: Any, steps: np.ndarray, curves: Sequence[Sequence[float]], label: str, colour: str) -> None:
    """The median of all searches as a line, the half of them around it as a band."""
    values = np.array(curves)
    axis.plot(steps / 1e6, np.median(values, axis=0), color=colour, label=f"{label} ({len(values)})")
    low, high = np.quantile(values, [0.25, 0.75], axis=0)
    axis.fill_between(steps / 1e6, low, high, color=colour, alpha=0.15, linewidth=0)


def page(text: str, lines: Sequence[str]) -> str:
    """``text`` with ``lines`` between the marks, which are appended if it has none."""
    before, mark, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2] if mark else "\n"
    before = before if mark or not before else before.rstrip() + "\n\n"
    return before + "\n".join([MARKS[0], *lines, MARKS[1]]) + after


def load(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else {}


def ordered(methods: dict[str, Any]) -> dict[str, Any]:
    return {name: methods[name] for name in METHODS if name in methods}


def main() -> None:
    parser = Parser(__doc__)
    names = (*METHODS, *PEERS)
    parser.add_argument(
        "--only", type=some_of((*names, "none")), help=f"of {', '.join(names)}; none for the page alone; default: all"
    )
    parser.add_argument("--tasks", type=some_of(TASKS), help=f"default: {','.join(TASKS)}")
    parser.add_argument("--folder", type=Path, default=Path("runs/evolution"))
    parser.add_argument("--quick", action="store_true", help="tiny sizes; records and page go to --folder too")
    parser.add_argument("--seed", type=int, default=0, help="of the first; with another, all goes to --folder too")
    parser.add_argument("--keep", action="store_true", help="but results/ keeps the record of those seeds, too")
    options = parser.parse_args()
    size, folder = replace(QUICK if options.quick else Size(), seed=options.seed), options.folder.absolute()
    place = folder if options.quick or (options.seed and not options.keep) else ROOT
    docs = place / "docs"
    series = f"_seed{options.seed}" if options.seed and options.keep else ""
    results = place / "results"
    for place in (results, docs / "images"):
        place.mkdir(parents=True, exist_ok=True)
    only = options.only.split(",") if options.only else METHODS if options.quick else names
    tasks = options.tasks.split(",") if options.tasks else [*TASKS][: 1 if options.quick else None]
    for name, method in product(tasks, METHODS):
        if method in only and (method != "falling" or TASKS[name].fixed):
            record = search(method, TASKS[name], size, folder / name)
            path = results / f"evolution_{name}{series}.json"
            path.write_text(json.dumps(ordered(load(results, path.name) | {method: record})) + "\n")
    for algorithm, settings in PEERS.items():
        for setting in settings if algorithm in only else ():
            ours = load(results, "evolution_peer.json")
            ours.setdefault(algorithm, {})[setting] = against(algorithm, setting, size, folder / "peer")
            (results / "evolution_peer.json").write_text(json.dumps(ours) + "\n")
    records = {name: methods for name in TASKS if (methods := pooled(name, results))}
    theirs = {name: load(ROOT / "results", f"agilerl_{name}.json") for name in PEERS}
    theirs = {name: record for name, record in theirs.items() if record}
    ours = load(results, "evolution_peer.json")
    lines = [
        "## Measured\n",
        SEARCH_TEXT,
        "### All series of seeds\n",
        SUMMARY_TEXT,
        *summary(results),
        *(line for name in records for line in task_lines(name, results)),
    ]
    lines += ["### Against AgileRL\n", PEER_TEXT, *peer_table(ours, theirs)]
    lines += ["### Curves\n", CURVES_TEXT, "![curves](../docs/images/evolution.png)"]
    picture(records, ours, theirs, docs / "images" / "evolution.png")
    path = results / "evolution.md"
    path.write_text(page(path.read_text() if path.exists() else "", lines))
    print(path)


if __name__ == "__main__":
    main()
