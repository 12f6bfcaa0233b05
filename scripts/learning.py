"""What the recipes learn, recorded: ``python scripts/learning.py`` trains them all and rewrites docs/learning.md.

    python scripts/learning.py --only smax/3m,matrix      # some environments; the table keeps what other folders hold
    python scripts/learning.py --only none                # nothing is trained: the table of the folders that there are

A training that has ended is not run again, one that was stopped goes on. Every row is the command line's own, with the
recipe of its environment (config/recipes/) and no word more than the table says. Returns are per agent, undiscounted.
``--reference`` adds JaxMARL's IPPO on simple_spread, re-created (scripts/reference_ippo.py), at its hyperparameters.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

from shoal.report import bootstrap, iqm

matplotlib.use("agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Training:
    """A row of the table."""

    file: str  # the algorithm file, without its folder
    env: str
    steps: float
    seeds: int = 6  # even: a device per core trains half of them
    words: tuple[str, ...] = ()  # further words of the command line
    measure: str = "episode_return"  # or win_rate
    others: str = ""  # what is known of others, and their convention

    @property
    def name(self) -> str:
        """Of the folder."""
        return "_".join([self.file, self.env.replace("/", "."), *self.words]).replace("=", ".")

    @property
    def command(self) -> list[str]:
        script = ROOT / "baselines" / self.file.split("_")[0] / f"{self.file}.py"
        return [str(script), f"env={self.env}", f"seeds={self.seeds}", f"total_steps={self.steps:g}", *self.words]


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
SPEAKER = "published about -11 for MAPPO, EPyMARL's sum over both agents; see below"
TRAININGS = (
    Training("ippo_ff_mpe", "mpe/simple_spread", 1e6, seeds=10),
    Training("mappo_ff_vmas", "mpe/simple_spread", 1e6),
    Training("mappo_ff_vmas", "mpe/simple_speaker_listener", 1e6, others=SPEAKER),
    Training("mappo_ff_vmas", "mpe/simple_reference", 2e6),
    Training("ippo_ff_mpe", "mpe/simple_tag", 1e6, measure="episode_return/adversary"),
    Training("ippo_ff_mpe", "matrix/climbing", 1e5, others="optimum 11, or what independent greedy play finds: 5 or 7"),
    Training("mappo_rnn_smax", "smax/3m", 2e6, measure="win_rate"),
    Training("mappo_rnn_smax", "smax/2s3z", 1.5e6, seeds=5, measure="win_rate"),
    Training("ippo_rnn_smax", "smax/2s3z", 1e6, seeds=2, measure="win_rate"),
    Training("mappo_rnn_smax", "smax/5m_vs_6m", 5e5, seeds=2, measure="win_rate"),
    Training("mappo_rnn_smax", "smax/smacv2_5_units", 5e5, seeds=2, measure="win_rate"),
    Training("ippo_ff_mpe", "overcooked/cramped_room", 1e6),
    Training("ippo_ff_mpe", "mabrax/ant_4x2", 2e5, seeds=2),
    Training("ippo_ff_mpe", "mabrax/halfcheetah_6x1", 2e5, seeds=2),
    Training("ippo_ff_mpe", "hanabi/two_players", 5e5, seeds=2, others="a perfect game is 25"),
)


def train(training: Training, folder: Path) -> None:
    """Run it, go on with it, or leave it as it is."""
    if (folder / "curves.png").exists():
        return
    words = [f"resume={folder}"] if (folder / "checkpoints").exists() else [*training.command[1:], f"run.dir={folder}"]
    subprocess.run([sys.executable, training.command[0], *words], check=True)


def curves(folder: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[chunks]`` and a column of metrics.csv, ``[seeds, chunks]``."""
    table = pd.read_csv(folder / "metrics.csv").pivot(index="run", columns="env_steps", values=column)
    return table.columns.to_numpy(), table.to_numpy()


def interval(values: np.ndarray) -> str:
    """IQM and 95 % bootstrap interval over seeds; all of them if there are few."""
    if len(values) < 3:
        return f"{iqm(values):.2f} ({', '.join(f'{v:.2f}' for v in values)})"
    low, high = bootstrap(values)
    return f"{iqm(values):.2f} ({low:.2f} .. {high:.2f})"


def row(training: Training, folder: Path) -> str:
    """One line of the table; the last figures are means over the last tenth of the chunks."""
    steps, sampled = curves(folder, training.measure)
    _, greedy = curves(folder, f"evaluation/{training.measure}")
    last = max(1, len(steps) // 10)
    facts = json.loads((folder / "provenance.json").read_text())
    cells = [
        f"`{training.env}`",
        " ".join([f"`{training.file}`", *(f"`{word}`" for word in training.words)]),
        f"{len(sampled)} x {human_steps(steps[-1])}",
        training.measure.replace("_", " "),
        f"{iqm(sampled[:, 0]):.2f}",
        interval(sampled[:, -last:].mean(axis=1)),
        interval(greedy[:, -last:].mean(axis=1)),
        f"{facts['session']['seconds'] / 60:.0f} min",
        training.others,
    ]
    return f"| {' | '.join(cells)} |"


def human_steps(steps: float) -> str:
    """``1.0M``."""
    return f"{steps / 1e6:.1f}M" if steps >= 1e6 else f"{steps / 1e3:.0f}k"


def draw(done: list[tuple[Training, Path]], out: Path) -> None:
    """A panel per environment, a line per file: IQM over seeds, and the range of the single runs."""
    tasks = list(dict.fromkeys((t.env, t.measure) for t, _ in done))
    columns = min(4, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.7 * rows), squeeze=False)
    colours = {file: f"C{i}" for i, file in enumerate(dict.fromkeys(t.file for t, _ in done))}
    for axis, (env, measure) in zip(axes.flat, tasks, strict=False):
        for training, folder in done:
            if (training.env, training.measure) != (env, measure) or training.words:
                continue
            steps, values = curves(folder, measure)
            middle = [iqm(column) for column in values.T]
            axis.plot(steps / 1e6, middle, color=colours[training.file], label=training.file)
            axis.fill_between(steps / 1e6, values.min(0), values.max(0), color=colours[training.file], alpha=0.2, lw=0)
        axis.set_title(f"{env}: {measure.replace('_', ' ')}", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6, frameon=False)
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    figure.supxlabel("million environment steps of a run", fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def reference_rows(folder: Path, seeds: int, steps: float) -> list[str]:
    """JaxMARL's hyperparameters on simple_spread: here, and in the reference trainer on jaxmarl's environment."""
    import jax
    import reference_ippo

    same = Training("ippo_ff_mpe", "mpe/simple_spread", steps, seeds, JAXMARL)
    train(same, folder / "jaxmarl_hyperparameters")
    _, ours = curves(folder / "jaxmarl_hyperparameters", "episode_return")
    function = reference_ippo.make_train(reference_ippo.Config(total_steps=steps))
    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    metrics = jax.jit(lambda keys: jax.lax.map(lambda key: function(key)[1], keys))(keys)
    theirs = np.asarray(metrics["episode_return"]) * 25 / 26  # a jaxmarl episode has 26 steps
    theirs = np.stack([part.mean(axis=1) for part in np.array_split(theirs, 20, axis=1)], axis=1)
    names = {"Shoal, JaxMARL's hyperparameters": ours, "reference in JaxMARL's manner": theirs}
    return [f"| {name} | {iqm(values[:, 0]):.2f} | {interval(values[:, -1])} |" for name, values in names.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    parser.add_argument(
        "--only", default="", help="environments (or their families), comma-separated; none for no training"
    )
    parser.add_argument("--reference", action="store_true", help="JaxMARL's hyperparameters and the reference too")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else []
    options.folder.mkdir(parents=True, exist_ok=True)
    for training in TRAININGS:
        if not only or training.env in only or training.env.split("/")[0] in only:
            train(training, options.folder / training.name)
    kept = options.folder / "reference.md"
    if options.reference:
        kept.write_text("\n".join(reference_rows(options.folder, 5, 1e6)) + "\n")

    done = [(t, options.folder / t.name) for t in TRAININGS if (options.folder / t.name / "curves.png").exists()]
    facts = json.loads((done[0][1] / "provenance.json").read_text())
    versions = ", ".join(f"{name} {facts['packages'][name]}" for name in ("jax", "flax", "optax", "jaxmarl"))
    text = (
        "# Learning\n\nWritten by `python scripts/learning.py`. Every line is a command of the README's kind with the "
        f"recipe that ships; {facts['cores']} CPU cores, Python {facts['python']}, {versions}. *Sampled* are training "
        "episodes (of the first chunk and of the last tenth of the chunks), *greedy* the evaluation episodes of that "
        "time. Other jobs used the machine meanwhile, so that the times are too long. "
        "Returns are per agent; IQM over seeds with a 95 % bootstrap interval, or all seeds where there are two.\n\n"
        "| environment | file | seeds x steps | measure | sampled, first | sampled, last | greedy, last | time "
        "| others |\n"
        f"|{'---|' * 9}\n" + "\n".join(row(*pair) for pair in done) + "\n\n![learning curves](images/learning.png)\n\n"
        "**speaker_listener**: EPyMARL sums the reward over both agents, which doubles the figures above. "
        "`python scripts/speaker_bound.py` plans the listener's moves with the goal known after the one step that a "
        "word needs, and gets about -7.6 per agent (-15 summed), so that -11 summed cannot be had in this version of "
        "the environment (mpe2's and jaxmarl's, step for step).\n"
    )
    if kept.exists():
        text += (
            "\n## simple_spread at JaxMARL's hyperparameters\n\nFive seeds, a million steps, sampled episodes, return "
            "per agent. The reference (scripts/reference_ippo.py) plays the jaxmarl package's environment, its returns "
            "scaled from 26 steps to 25.\n\n| training | first | last |\n|---|---|---|\n" + kept.read_text()
        )
    (options.out / "images").mkdir(parents=True, exist_ok=True)
    (options.out / "learning.md").write_text(text)
    draw(done, options.out / "images" / "learning.png")
    spread = options.folder / TRAININGS[0].name / "curves.png"
    if spread.exists():
        shutil.copy(spread, options.out / "images" / "curves.png")
    print(text)


if __name__ == "__main__":
    main()
