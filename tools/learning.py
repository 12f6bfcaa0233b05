"""What the recipes learn, recorded: ``python tools/learning.py`` trains them all and rewrites results/learning.md.

    python tools/learning.py --only smax/3m,matrix,vdn   # some environments or algorithms; all else stays as recorded
    python tools/learning.py --only none                 # nothing is trained: the table and curves of the records
    python tools/learning.py --only at_benchmarl         # what BenchMARL has a record of too
    python tools/learning.py --only ippo --add-seeds     # the seeds that a record has fewer than the table says

Each training leaves its curves and provenance in results/<name>.json, from which table and pictures are made; a
row of the table without such a record stays as it is. A training that has ended is not run again, one that was stopped
goes on. Every row is the command line's own, with the recipe of its environment (config/recipes/) and no word more than
the table says. Returns are per agent, undiscounted.
``--reference`` adds JaxMARL's IPPO on simple_spread, re-created (tools/reference_ippo.py), at its hyperparameters.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import at_benchmarl
import matplotlib
import numpy as np
import pandas as pd
import yaml

from shoal.folder.tables import diverged_runs, left_out
from shoal.report.statistics import bootstrap, iqm

matplotlib.use("agg")
import matplotlib.pyplot as plt

from shoal.config.words import Parser, some_of

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Training:
    """A row of the table."""

    algorithm: str  # config/algorithm/<name>.yaml
    env: str
    steps: float
    seeds: int = 6  # even: a device per core trains half of them
    words: tuple[str, ...] = ()  # further words of the command line
    measure: str = "episode_return"  # or win_rate
    others: str = ""  # what is known of others, and their convention
    tag: str = ""  # a name for many words
    first: int = 0  # the first seed; others than 0 are added to a record

    @property
    def name(self) -> str:
        """Of the folder and of the record."""
        words = (self.tag,) if self.tag else self.words
        seeds = (f"from_seed_{self.first}",) if self.first else ()
        return "_".join([self.algorithm, self.env.replace("/", "."), *words, *seeds]).replace("=", ".")

    @property
    def command(self) -> list[str]:
        seeds = [f"seeds={self.seeds}", *([f"seed={self.first}"] if self.first else [])]
        return [self.algorithm, f"env={self.env}", *seeds, f"total_steps={self.steps:g}", *self.words]

    @property
    def title(self) -> str:
        """The first cells of its row."""
        return f"| `{self.env}` | {' '.join(f'`{word}`' for word in (self.algorithm, *self.words))} |"

    def chosen(self, only: list[str]) -> bool:
        """Whether ``--only`` names it; what has a tag is not meant by the names of others."""
        return not only or bool(self.names & set(only))

    @property
    def names(self) -> set[str]:
        """What ``--only`` may call it."""
        return {self.name, self.tag} if self.tag else {self.name, self.env, self.env.split("/")[0], self.algorithm}


JAXMARL = (
    "algo.clip_value=true",
    "hypers.lr=2.5e-4",
    "hypers.gamma=0.99",
    "hypers.gae_lambda=0.95",
    "hypers.clip_eps=0.2",
    "hypers.ent_coef=0.01",
    "hypers.vf_coef=0.5",
    "hypers.max_grad_norm=0.5",
)
MOVES = "continuous actions"
PUBLISHED = f"{MOVES}; published about -13 for MADDPG, EPyMARL's sum over both agents"
SPEAKER = "published about -11 for MAPPO, EPyMARL's sum over both agents; see below"
OWN_RETURN = "trained with what is now `algo.death=ends_return`"  # see `marks`
OLD_MIXER = "trained with a normalised state in the mixer, since removed"
MORTAL = ("smax",)  # families of environments in which an agent may die while its team plays on
MAVA = "published 9 % for MAPPO and 6 % for IPPO after 10M steps (Mava; its version of SMAX may differ)"
ON_POLICY = (
    Training("ippo", "mpe/simple_spread", 1e6, seeds=10),
    Training("mappo", "mpe/simple_spread", 1e6),
    Training("mappo", "mpe/simple_speaker_listener", 1e6, others=SPEAKER),
    Training("mappo", "mpe/simple_reference", 2e6),
    Training("ippo", "mpe/simple_tag", 1e6, measure="episode_return/adversary"),
    Training("ippo", "matrix/climbing", 1e5, others="optimum 11, or what independent greedy play finds: 5 or 7"),
    Training("mappo_rnn", "smax/3m", 2e6, measure="win_rate"),
    Training("mappo_rnn", "smax/2s3z", 1.5e6, seeds=5, measure="win_rate"),
    Training("ippo_rnn", "smax/2s3z", 1e6, seeds=2, measure="win_rate"),
    Training("mappo_rnn", "smax/5m_vs_6m", 1e6, seeds=2, measure="win_rate", others=MAVA),
    Training("mappo_rnn", "smax/smacv2_5_units", 4e5, seeds=2, measure="win_rate"),
    Training("ippo", "overcooked/cramped_room", 1e6),
    Training("ippo", "mabrax/ant_4x2", 3e5, seeds=2),
    Training("ippo", "mabrax/halfcheetah_6x1", 4e5, seeds=2),
    Training("ippo", "hanabi/two_players", 2e6, seeds=2, others="a perfect game is 25"),
)
OFF_POLICY = (
    Training("qmix", "mpe/simple_spread", 5e5),
    Training("vdn", "mpe/simple_spread", 5e5),
    Training("iql", "mpe/simple_spread", 5e5),
    Training("maddpg", "mpe/simple_spread", 1e6, others=MOVES),
    Training("matd3", "mpe/simple_spread", 1e6, others=MOVES),
    Training("mad4pg", "mpe/simple_spread", 4e5, others=MOVES),
    Training("masac", "mpe/simple_spread", 5e5, others=MOVES),
    Training("qmix", "mpe/simple_speaker_listener", 2.5e5),
    Training("vdn", "mpe/simple_speaker_listener", 2.5e5),
    Training("maddpg", "mpe/simple_speaker_listener", 6e5, others=PUBLISHED),
    Training("matd3", "mpe/simple_speaker_listener", 6e5, others=PUBLISHED),
    Training("masac", "mpe/simple_speaker_listener", 3e5, others=MOVES),
    Training("pqn_vdn", "smax/3m", 1e6, measure="win_rate"),
    Training("pqn_vdn", "smax/2s3z", 2e6, measure="win_rate"),
)
BENCHMARL = {  # its MAPPO's training return after 900k frames, one seed: what issue 5 asks for
    "balance": "BenchMARL's MAPPO 20.6 after 900k",
    "navigation": "BenchMARL's MAPPO 0.98 after 900k",
    "sampling": "BenchMARL's MAPPO 16.1 after 900k",
    "transport": "BenchMARL's MAPPO 0.0 after 900k",
}
ON_VMAS = (
    *(Training("mappo", f"vmas/{task}", 9e5, others=others) for task, others in BENCHMARL.items()),
    *(Training("ippo", f"vmas/{task}", 9e5, others=others) for task, others in BENCHMARL.items()),
    *(Training("qmix", f"vmas/{task}", 3e5, others="discrete actions") for task in ("balance", "navigation")),
    *(Training("qmix", f"vmas/{task}", 1.5e5, others="discrete actions") for task in ("sampling", "transport")),
    *(Training("masac", f"vmas/{task}", 3e5) for task in ("balance", "sampling", "transport")),
    *(Training(name, "vmas/navigation", 9e5, others="MAPPO 0.98 after 900k, above") for name in ("masac", "maddpg")),
)
FALLS = "-100 for all when one falls; about 0 is not to fall and hardly to move"
ON_HOST = (Training("ippo", "pettingzoo/sisl.multiwalker_v9", 1e5, seeds=2, others=FALLS),)
SEEDS = {"mappo": 5, "ippo": 5}  # a seed of which takes minutes at this size; else six
AT_BENCHMARL = tuple(
    Training(name, f"vmas/{task}", at_benchmarl.FRAMES[name], SEEDS.get(name, 6), words, tag="at_benchmarl")
    for name, words in at_benchmarl.WORDS.items()
    for task in at_benchmarl.TASKS
)
TRAININGS = ON_POLICY + OFF_POLICY + ON_VMAS + ON_HOST + AT_BENCHMARL


def train(training: Training, folder: Path) -> None:
    """Run it, go on with it, or leave it as it is."""
    if ended(training, folder):
        return
    words = training.command[1:]
    words = [f"resume={folder}"] if (folder / "checkpoints").exists() else [*words, f"run.dir={folder}"]
    subprocess.run([sys.executable, "-m", "shoal", training.algorithm, *words], check=True, cwd=ROOT)


def ended(training: Training, folder: Path) -> bool:
    """Whether it was trained to the end; one that was stopped leaves curves, too."""
    return (folder / "curves.png").exists() and curves(folder, training.measure)[0][-1] >= training.steps


def missing(training: Training, known: int) -> list[Training]:
    """What trains the seeds that a record of ``known`` seeds lacks: an even number, then the one that is left."""
    count = max(0, training.seeds - known)
    even = count - count % 2
    return [replace(training, seeds=n, first=i) for i, n in ((known, even), (known + even, count % 2)) if n]


def add_seeds(training: Training, folder: Path, out: Path) -> None:
    """Train the missing seeds, and put their curves below those of the record; its provenance is the last one's."""
    for part in missing(training, len(json.loads(out.read_text())["sampled"]) if out.exists() else 0):
        train(part, (folder / part.name).absolute())
        if not ended(part, folder / part.name):
            raise SystemExit(f"{folder / part.name}: stopped; the same command goes on")
        old = json.loads(out.read_text()) if part.first else None
        record(part, folder / part.name, out)
        if old is not None:
            new = json.loads(out.read_text())
            for differ, what in (
                (old["steps"] != new["steps"], "evaluated at other steps"),
                (marks(training, old) != marks(training, new), "trained otherwise"),
            ):
                if differ:
                    out.write_text(json.dumps(old) + "\n")
                    raise SystemExit(f"{out}: {what} than {folder / part.name}")
            joined = {name: old[name] + new[name] for name in ("sampled", "greedy")}
            joined["diverged"] = old.get("diverged", []) + [
                len(old["sampled"]) + run for run in new.get("diverged", [])
            ]
            out.write_text(json.dumps(new | joined | {"command": f"{old['command']}; {new['command']}"}) + "\n")


def record(training: Training, folder: Path, out: Path) -> None:
    """The curves and the provenance of a training that has ended, as a small file."""
    steps, sampled = curves(folder, training.measure)
    _, greedy = curves(folder, f"evaluation/{training.measure}")
    facts = json.loads((folder / "provenance.json").read_text())
    facts = {name: facts[name] for name in ("python", "packages", "cores", "session")}
    rounded = {"sampled": sampled.round(4).tolist(), "greedy": greedy.round(4).tolist()}
    algo = yaml.safe_load((folder / "config.yaml").read_text())["algo"]
    text = {
        "command": " ".join(["python -m shoal", *training.command]),
        "measure": training.measure,
        "death": algo.get("death", "ends_return"),  # before there was a choice
        "normalise_state": algo.get("normalise_state", False),  # in QMIX's mixer, since removed
        "diverged": sorted(diverged_runs(folder)),  # places in the curves
        "steps": steps.tolist(),
        **rounded,
        "provenance": facts,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(text) + "\n")


def curves(folder: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[chunks]`` and a column of metrics.csv, ``[seeds, chunks]``."""
    table = pd.read_csv(folder / "metrics.csv").pivot(index="run", columns="env_steps", values=column)
    return table.columns.to_numpy(), table.to_numpy()


def living(result: dict[str, Any]) -> tuple[dict[str, np.ndarray], str]:
    """The curves of the seeds of a record that live; and the number of all, with that of the others in brackets.

    Lost are those that diverged or have a greedy evaluation that is no number. A chunk in which no training episode
    ended has no number either, which is no fault.
    """
    count = len(result["sampled"])
    diverged = np.isin(np.arange(count), result.get("diverged", []))
    nan = np.zeros(count, bool) if "greedy" not in result else ~np.isfinite(result["greedy"]).all(axis=1) & ~diverged
    curves = {name: np.array(result[name])[~(diverged | nan)] for name in ("sampled", "greedy") if name in result}
    said = left_out(int(diverged.sum()), int(nan.sum()))
    return curves, f"{count} x {human_steps(result['steps'][-1])}" + (f" ({said})" if said else "")


def marks(training: Training, result: dict[str, Any]) -> list[str]:
    """What a record was trained with that its line does not say and recipes of today do not have.

    Records without `death` were made before there was a choice.
    """
    told, words = [], result["command"].split()
    ends = result.get("death", "ends_return") == "ends_return" and "algo.death=ends_return" not in words
    if ends and training.env.split("/")[0] in MORTAL:
        told.append(OWN_RETURN)
    normalised = result.get("normalise_state", "death" not in result and "algo.normalise_state=false" not in words)
    if normalised and training.algorithm == "qmix":
        told.append(OLD_MIXER)
    return told


def interval(values: np.ndarray) -> str:
    """IQM and 95 % bootstrap interval over seeds; all of them if there are few."""
    if not len(values):
        return "-"
    if len(values) < 3:
        return f"{iqm(values):.2f} ({', '.join(f'{v:.2f}' for v in values)})"
    low, high = bootstrap(values)
    return f"{iqm(values):.2f} ({low:.2f} .. {high:.2f})"


def row(training: Training, result: dict[str, Any]) -> str:
    """One line of the table; the last figures are means over the last tenth of the chunks."""
    curves, count = living(result)
    last = max(1, len(result["steps"]) // 10)
    cells = [
        count,
        training.measure.replace("_", " "),
        first(curves["sampled"]),
        interval(curves["sampled"][:, -last:].mean(axis=1)),
        interval(curves["greedy"][:, -last:].mean(axis=1)),
        f"{result['provenance']['session']['seconds'] / 60:.0f} min",
        "; ".join(filter(None, (training.others, *marks(training, result)))),
    ]
    return f"{training.title} {' | '.join(cells)} |"


def first(curves: np.ndarray) -> str:
    """The IQM of the first chunk."""
    return f"{iqm(curves[:, 0]):.2f}" if len(curves) else "-"


def human_steps(steps: float) -> str:
    """``1.0M``."""
    return f"{steps / 1e6:.1f}M" if steps >= 1e6 else f"{steps / 1e3:.0f}k"


def draw(done: list[tuple[Training, dict[str, Any]]], out: Path) -> None:
    """A panel per environment, a line per algorithm: IQM over seeds, and the range of the single runs."""
    tasks = list(dict.fromkeys((t.env, t.measure) for t, _ in done))
    columns = min(4, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.7 * rows), squeeze=False)
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(t.algorithm for t, _ in done))}
    for axis, (env, measure) in zip(axes.flat, tasks, strict=False):
        for training, result in done:
            if (training.env, training.measure) != (env, measure) or training.words:
                continue
            steps, values = np.array(result["steps"]), living(result)[0]["sampled"]
            if not len(values):
                continue
            middle, colour = [iqm(column) for column in values.T], colours[training.algorithm]
            axis.plot(
                steps / 1e6,
                middle,
                color=colour,
                label=training.algorithm + (" (continuous)" if MOVES in training.others else ""),
            )
            axis.fill_between(steps / 1e6, values.min(0), values.max(0), color=colour, alpha=0.2, lw=0)
        axis.set_title(f"{env}: {measure.replace('_', ' ')}", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6, frameon=False)
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    figure.supxlabel("million environment steps of a run", fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def benchmarls(training: Training, results: Path) -> dict[str, Any] | None:
    """BenchMARL's record of the same training, if there is one."""
    path = results / f"benchmarl_{training.algorithm}_{training.env.replace('/', '.')}.json"
    return json.loads(path.read_text()) if path.exists() else None


def beside(training: Training, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """A line with both; the last figures are means over the last tenth of the batches."""
    cells = []
    for result in (ours, theirs):
        (curves, count), ends = living(result), last_tenth(result)
        cells += [count, first(curves["sampled"]), f"{ends[0]:.2f}" if len(ends) == 1 else interval(ends)]
    return f"| `{training.env}` | `{training.algorithm}` | {' | '.join(cells)} |"


def draw_beside(pairs: list[tuple[Training, dict[str, Any], dict[str, Any]]], out: Path) -> None:
    """A row of panels per algorithm, a column per environment: our IQM and range over seeds, BenchMARL's runs."""
    names, tasks = (list(dict.fromkeys(getattr(t, field) for t, *_ in pairs)) for field in ("algorithm", "env"))
    figure, axes = plt.subplots(
        len(names), len(tasks), figsize=(3.4 * len(tasks), 2.3 * len(names)), squeeze=False, sharex="row"
    )
    for axis in axes.flat:
        axis.axis("off")
    for training, ours, theirs in pairs:
        axis = axes[names.index(training.algorithm), tasks.index(training.env)]
        axis.axis("on")
        steps, values = np.array(ours["steps"]) / 1e6, living(ours)[0]["sampled"]
        if len(values):
            axis.plot(steps, [iqm(column) for column in values.T], color="C0", label=f"Shoal, {len(values)} seeds")
            axis.fill_between(steps, values.min(0), values.max(0), color="C0", alpha=0.2, lw=0)
        number = len(theirs["sampled"])
        for i, run in enumerate(theirs["sampled"]):
            label = None if i else f"BenchMARL, {number} seed{'s' * (number > 1)}"
            axis.plot(np.array(theirs["steps"]) / 1e6, run, color="C1", label=label)
        axis.set_title(f"{training.algorithm}, {training.env}", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6, frameon=False)
    figure.supxlabel("million environment steps of a run", fontsize=9)
    figure.supylabel("return of training episodes", fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def reference_rows(folder: Path, seeds: int, steps: float) -> list[str]:
    """JaxMARL's hyperparameters on simple_spread: here, and in the reference trainer on jaxmarl's environment."""
    import jax
    import reference_ippo

    same = Training("ippo", "mpe/simple_spread", steps, seeds, JAXMARL)
    train(same, folder / "jaxmarl_hyperparameters")
    _, ours = curves(folder / "jaxmarl_hyperparameters", "episode_return")
    lost = diverged_runs(folder / "jaxmarl_hyperparameters")
    ours = np.delete(ours, sorted(lost), axis=0)
    function = reference_ippo.make_train(reference_ippo.Config(total_steps=steps))
    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    metrics = jax.jit(lambda keys: jax.lax.map(lambda key: function(key)[1], keys))(keys)
    theirs = np.asarray(metrics["episode_return"]) * 25 / 26  # a jaxmarl episode has 26 steps
    theirs = np.stack([part.mean(axis=1) for part in np.array_split(theirs, 20, axis=1)], axis=1)
    said = f" ({left_out(len(lost), 0)})" if lost else ""
    names = {f"Shoal, JaxMARL's hyperparameters{said}": ours, "reference in JaxMARL's manner": theirs}
    return [f"| {name} | {first(values)} | {interval(values[:, -1])} |" for name, values in names.items()]


MPE = {"mpe/simple_spread": "MPE_simple_spread_v3", "mpe/simple_speaker_listener": "MPE_simple_speaker_listener_v4"}


def reference_qmix_row(training: Training) -> str:
    """JaxMARL's QMIX or VDN at its hyperparameters on jaxmarl's environment, as long and with as many seeds as ours."""
    import jax
    import reference_qmix

    seeds, steps = training.seeds, training.steps
    config = reference_qmix.Config(MPE[training.env], training.algorithm, steps)
    init, update = reference_qmix.make(config)
    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    train = jax.jit(
        lambda keys: jax.lax.map(lambda k: jax.lax.scan(update, init(k), length=config.num_updates)[1], keys)
    )
    returns = np.asarray(train(keys)) * 25 / 26  # [seeds, updates], from 26 steps to 25
    returns = np.stack([part.mean(axis=1) for part in np.array_split(returns, 20, axis=1)], axis=1)
    last = returns[:, -2:].mean(axis=1)  # a tenth, as of ours
    cells = [f"`{training.env}`", f"reference {training.algorithm}", f"{seeds} x {human_steps(steps)}"]
    return f"| {' | '.join(cells)} | {iqm(returns[:, 0]):.2f} | {interval(last)} |"


def last_tenth(result: dict[str, Any]) -> np.ndarray:
    """The mean return of each seed that lives over the last tenth of the chunks."""
    return living(result)[0]["sampled"][:, -max(1, len(result["steps"]) // 10) :].mean(axis=1)


def benchmarl_section(done: dict[Training, dict[str, Any]], results: Path, picture: Path) -> str:
    """What is written of the trainings that BenchMARL has a record of too; draws their curves."""
    found = [(t, done[t], theirs) for t in AT_BENCHMARL if t in done and (theirs := benchmarls(t, results))]
    if not found:
        return ""
    draw_beside(found, picture)
    packages = found[0][2]["packages"]
    missing = [
        f"{t.algorithm} on {t.env}"
        + (f", ours {interval(ends)} with {len(ends)} seeds" if t in done and len(ends := last_tenth(done[t])) else "")
        for t in AT_BENCHMARL
        if t not in [each[0] for each in found]
    ]
    versions = ", ".join(f"{name} {packages[name]}" for name in ("vmas", "torch", "torchrl"))
    return (
        f"\n## At BenchMARL's hyperparameters\n\nBenchMARL {packages['benchmarl']} ({versions}; "
        "`tools/reference_benchmarl.py --algorithm <name> --task <task> --record results`) beside ours "
        "(`tools/learning.py --only at_benchmarl`) with the same frames, batches and hyperparameters, which "
        "`tools/at_benchmarl.py` puts into words. Returns of both are of the training episodes that end in a batch, "
        "undiscounted, the mean over agents: in the first batch and in the last tenth of the batches. "
        f"{at_benchmarl.DIFFERENCES} Seconds in these records compare nothing: the machine was busy, and some of the "
        "trainings were paused.\n\n"
        "| environment | algorithm | Shoal: seeds x steps | first | last | BenchMARL: seeds x steps | first | last |\n"
        f"|{'---|' * 8}\n" + "\n".join(beside(*each) for each in found) + "\n"
        f"\n![learning curves beside BenchMARL's](../docs/images/{picture.name})\n\n{at_benchmarl.FINDINGS}\n"
        + (f"\nWithout a record of BenchMARL's: {'; '.join(missing)}.\n" if missing else "")
    )


INTRO = """\
# Learning

Written by `python tools/learning.py`. A line is `python -m shoal <algorithm> env=...` with the recipe that \
ships; {cores} CPU cores, Python {python}, {versions}. *Sampled* are training episodes (of the first chunk and of \
the last tenth of the chunks), *greedy* the evaluation episodes of that time. Other jobs used the machine meanwhile, \
so that the times are too long. Returns are per agent; IQM over seeds with a 95 % bootstrap interval, or all seeds \
where there are two. Curves and provenance: `results/`. Seeds are 0 and up. Recipes were tuned on some of these \
same seeds (the off-policy ones mostly on seed 0), so that no row is a test on seeds unseen. PQN's rows are of its \
second recipe: the first (lr 5e-4, td_lambda 0.8, eps_end 0.05, 512k steps, 6 seeds) won 54 % of 3m sampled and 71 % \
greedy. Rows with continuous actions are another task than discrete rows of the same environment. Seeds that \
diverged are counted and are in no figure; records without `diverged` in them do not tell.
"""
ABOUT = {  # what a mark of the rows means
    OWN_RETURN: """\
With what is now `algo.death=ends_return` the objective is another one than the recipes have today: in PPO's rows an \
agent's return ended with its own death, while JaxMARL's, Mava's and today's ends with the episode; PQN's sum left out \
the dead.
""",
    OLD_MIXER: """\
QMIX's normalised state was a layer norm on what the mixer reads, which is no part of the paper.
""",
}
NOTES = """
**speaker_listener**: EPyMARL sums the reward over both agents, which doubles the figures above. `python \
tools/speaker_bound.py` plans the listener's moves with the goal known after the one step that a word needs, and \
gets about -7.6 per agent (-15 summed), so that -11 summed cannot be had in this version of the environment (mpe2's \
and jaxmarl's, step for step). That plan is for discrete actions; with continuous ones a word may say more, and \
MADDPG, MATD3 and MASAC go beyond it. Summed, they get twice the figures of the table: MATD3 and MASAC pass the \
published -13, MADDPG's greedy episodes come within one of it. (Before, replay held 20,000 steps: MADDPG had -7.3 \
sampled and -7.4 greedy after 400k steps, so that its intervals overlap with today's, and MATD3 -6.4 after 2M. A \
training of MADDPG for 2M steps with the short replay, seeds 0 to 5, sampled about -8 and was not kept. The longer \
replay was chosen on seeds 100 to 103.)

**Short trainings**: SMAX 5m_vs_6m and smacv2_5_units, MABrax and Hanabi have two seeds and minutes of two shared \
cores, a tenth or less of the steps that others publish. smacv2's win rate and MABrax's returns were still rising at \
the end of the schedule: they say that the recipes learn, not where they would end. Hanabi's score rises fast and \
then stays far below what is known from billions of steps. QMIX on VMAS has a third (sampling and transport: a \
sixth) of MAPPO's steps. On transport, whose reward is rare, nothing was learnt.
"""
JAXMARLS = """
## simple_spread at JaxMARL's hyperparameters

Five seeds, a million steps, sampled episodes, return per agent. The reference (tools/reference_ippo.py) plays the \
jaxmarl package's environment, its returns scaled from 26 steps to 25.

| training | first | last |
|---|---|---|
"""
JAXMARLS_QMIX = """
## JaxMARL's QMIX and VDN on MPE

tools/reference_qmix.py at its `ql_rnn_mpe` hyperparameters on the jaxmarl package's environment: sampled \
episodes, return per agent, scaled from 26 steps to 25; first twentieth and last tenth of the training; to be \
compared with the rows of QMIX and VDN above, of as many steps and seeds.

| environment | training | seeds x steps | first | last |
|---|---|---|---|---|
"""
SECTIONS = (
    ("On-policy", ON_POLICY, "learning.png"),
    ("Off-policy", OFF_POLICY, "learning_off_policy.png"),
    ("VMAS", ON_VMAS, "learning_vmas.png"),
    ("PettingZoo, on the host", ON_HOST, "learning_host.png"),
)


def intro(facts: dict[str, Any]) -> str:
    """What the page is, from the provenance of a training."""
    versions = ", ".join(f"{name} {facts['packages'][name]}" for name in ("jax", "flax", "optax", "jaxmarl"))
    return INTRO.format(cores=facts["cores"], python=facts["python"], versions=versions)


def section(
    title: str, rows: list[str], here: list[tuple[Training, dict[str, Any]]], images: Path, picture: str
) -> str:
    """A table and its curves, which are drawn if some of its trainings are ``here``."""
    pictures = [picture]
    if len(here) < len(rows):  # the picture has curves that have no record: it stays
        pictures += [picture.replace(".png", "_recorded.png")] if here else []
    if here:
        draw(here, images / pictures[-1])
    return (
        f"\n## {title}\n\n| environment | algorithm | seeds x steps | measure | sampled, first | sampled, last "
        f"| greedy, last | time | others |\n|{'---|' * 9}\n"
        + "\n".join(rows)
        + "\n"
        + "".join(f"\n![learning curves](../docs/images/{name})\n" for name in pictures)
    )


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    names = ["none", *(name for training in TRAININGS for name in training.names)]
    parser.add_argument(
        "--only",
        type=some_of(dict.fromkeys(names)),
        default="",
        help="environments, families or algorithms, comma-separated; none for no training",
    )
    parser.add_argument("--add-seeds", action="store_true", help="train only the seeds that records lack")
    parser.add_argument("--reference", action="store_true", help="JaxMARL's hyperparameters and the reference too")
    parser.add_argument("--reference-qmix", action="store_true", help="JaxMARL's QMIX and VDN on MPE too")
    parser.add_argument("--out", type=Path, default=ROOT)
    options = parser.parse_args()
    only = options.only.split(",") if options.only else []
    options.folder.mkdir(parents=True, exist_ok=True)
    docs = options.out / "docs"
    results, images = options.out / "results", docs / "images"
    table = results / "learning.md"
    for training in TRAININGS:
        folder, out = options.folder / training.name, results / f"{training.name}.json"
        if options.add_seeds:
            if training.chosen(only):
                add_seeds(training, options.folder, out)
            continue
        if training.chosen(only):
            train(training, folder.absolute())
        if ended(training, folder):
            record(training, folder, out)
    lines = table.read_text().splitlines() if table.exists() else []
    kept = {line[: line.index(" |", line.index(" | ") + 3) + 2]: line for line in lines if line.count(" | ") > 5}
    reference = "\n".join(line for line in lines if line.startswith(("| Shoal", "| reference in")))
    if options.reference:
        reference = "\n".join(reference_rows(options.folder, 5, 1e6))
    reference_qmix = "\n".join(line for line in lines if "| reference " in line and "mpe/" in line)
    if options.reference_qmix:
        peers = [t for t in OFF_POLICY if t.algorithm in ("qmix", "vdn") and t.env in MPE]
        reference_qmix = "\n".join(map(reference_qmix_row, peers))

    done = {t: json.loads((results / f"{t.name}.json").read_text()) for t in TRAININGS if recorded(t, results)}
    text = ""
    for title, group, picture in SECTIONS:
        rows = [row(t, done[t]) if t in done else kept.get(t.title) for t in group]
        text += section(title, list(filter(None, rows)), [(t, done[t]) for t in group if t in done], images, picture)
    about = "".join(f"\n{said}" for mark, said in ABOUT.items() if mark in text)
    text = intro(list(done.values())[-1]["provenance"]) + about + text
    text += NOTES + benchmarl_section(done, results, images / "learning_at_benchmarl.png")
    text += JAXMARLS + reference + "\n" if reference else ""
    text += JAXMARLS_QMIX + reference_qmix + "\n" if reference_qmix else ""
    table.write_text(text)
    spread = options.folder / TRAININGS[0].name / "curves.png"
    if spread.exists():
        shutil.copy(spread, images / "curves.png")
    print(text)


def recorded(training: Training, results: Path) -> bool:
    """Whether there is a record of it."""
    return (results / f"{training.name}.json").exists()


if __name__ == "__main__":
    main()
