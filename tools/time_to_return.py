"""Time to BenchMARL's returns: how long MAPPO trains until its training return is what BenchMARL's was at the end.

    python tools/time_to_return.py                              # all trainings, then the table; the machine to itself
    python tools/time_to_return.py --tasks balance --seeds 1    # one of them
    python tools/time_to_return.py --settings benchmarl --seeds 1 --learners 2  # a core for each half

Each task is trained with the recipe that ships (``shipped``) and at BenchMARL's own sizes and hyperparameters
(``benchmarl``). A training that has ended is not run again, one that was stopped goes on. The return is the IQM over
seeds of the training episodes of a chunk, without seeds that diverged; the table has the number of these. The first
return at or above BenchMARL's, rounded to as many digits, counts, and its steps are those at the chunk's end. Seconds
are that many steps of every seed at the training's own speed (steps per second in provenance.json, without compiling);
seeds train side by side, so that one seed alone would need less. Compiling is told apart.

``--beside other/bin/python`` trains BenchMARL itself, as long as ours, before and after every training of ``benchmarl``
with one seed, by an interpreter that has it (tools/reference_benchmarl.py says how); a second table has both speeds.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from at_benchmarl import PPO_FRAMES, PPO_HYPERS, PPO_SIZES
from learning import ROOT, Training, train

from shoal.config.words import Parser, some_of
from shoal.folder.tables import diverged_runs, left_out
from shoal.report.statistics import iqm


@dataclass(frozen=True)
class Theirs:
    """BenchMARL's MAPPO after 900k frames, one seed, on a faster machine: what the issue states."""

    value: float
    digits: int  # that it is known to
    seconds: float


BENCHMARL = {
    "balance": Theirs(20.6, 1, 193.0),
    "navigation": Theirs(0.98, 2, 152.0),
    "sampling": Theirs(16.1, 1, 181.0),
}
# How often the return is looked at: chunks, in which some episodes of 100 steps must end.
SETTINGS = {"shipped": ("chunks=50",), "benchmarl": ("chunks=15", *PPO_SIZES, *PPO_HYPERS)}


def benchmarls_speed(python: Path, task: str, steps: float) -> float:
    """Steps per second of BenchMARL's own MAPPO in a training of as many frames, its first batch left out."""
    words = dict(word.split("=") for word in PPO_SIZES)
    epochs, batch = words["algo.epochs"], int(words["algo.num_envs"]) * int(words["algo.rollout_length"])
    iterations = max(2, round(steps / batch))
    command = [python, ROOT / "tools" / "reference_benchmarl.py", "--task", task, "--epochs", epochs]
    command += ["--iterations", str(iterations)]
    told = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    found = re.search(r"(\d+) steps/s", told)
    if not found:
        raise SystemExit(f"{command[1]}: told no steps/s: {told}")
    return float(found[1])


def beside_row(task: str, folder: Path, before: float, after: float) -> str:
    """A line of the table of both: the share of BenchMARL's time that ours takes for as many steps."""
    facts = json.loads((folder / "provenance.json").read_text())
    speed = facts["session"]["steps_per_second"]
    shares = " and ".join(f"{theirs / speed:.1%}" for theirs in (before, after))
    return f"| `{task}` | {folder.name} | {before:.0f}, {after:.0f} | {speed:.0f} | {shares} |"


def row(task: str, setting: str, folder: Path) -> str:
    """A line of the table."""
    table = pd.read_csv(folder / "metrics.csv").pivot(index="run", columns="env_steps", values="episode_return")
    lost = diverged_runs(folder)
    living = table.drop(index=sorted(lost)).to_numpy()
    steps, values = table.columns.to_numpy(), iqm(living) if len(living) else np.full(table.shape[1], np.nan)
    facts = json.loads((folder / "provenance.json").read_text())
    speed, compiling = facts["session"]["steps_per_second"], facts["session"]["compile_seconds"]
    asked = BENCHMARL[task]
    passed = np.flatnonzero(np.round(values, asked.digits) >= asked.value)
    took = f"not reached in {steps[-1] / 1e3:.0f}k | "
    if len(passed):
        at = steps[passed[0]]
        took = f"{at / 1e3:.0f}k | {at * len(table) / speed:.1f} s"
    cells = [
        f"`{task}`",
        setting,
        f"{len(table)} ({left_out(len(lost), 0)})" if lost else str(len(table)),
        f"{asked.value:g}",
        f"{np.nanmax(values):.2f}" if len(living) else "-",
        took,
        f"{speed / 1e3:.1f}k",
        f"{compiling:.0f} s",
        f"{asked.seconds:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/time_to_return"))
    parser.add_argument("--tasks", type=some_of(BENCHMARL), default=",".join(BENCHMARL))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=float, default=PPO_FRAMES)
    parser.add_argument("--settings", type=some_of(SETTINGS), default=",".join(SETTINGS))
    parser.add_argument("--learners", type=int, default=1, help="that share the environments and batches of a run")
    parser.add_argument("--beside", type=Path, help="the interpreter of a virtual environment that has BenchMARL")
    options = parser.parse_args()
    rows, both = [], []
    for task in options.tasks.split(","):
        for setting in options.settings.split(","):
            name = setting if options.learners == 1 else f"{setting}_{options.learners}_learners"
            folder = (options.folder / f"{task}_{name}").absolute()
            words = (*SETTINGS[setting], f"learners={options.learners}")
            training = Training("mappo", f"vmas/{task}", options.steps, options.seeds, words)
            compared = options.beside and setting == "benchmarl" and options.seeds == 1
            before = benchmarls_speed(options.beside, task, options.steps) if compared else 0.0
            train(training, folder)
            if compared:
                both.append(beside_row(task, folder, before, benchmarls_speed(options.beside, task, options.steps)))
            rows.append(row(task, name.replace("_", " "), folder))
    print(
        "| task | settings | seeds | return asked | best IQM | environment steps of a run | seconds, all seeds "
        f"| steps/s, all seeds | compiling | BenchMARL, one seed, {PPO_FRAMES / 1e3:.0f}k frames |\n|{'---|' * 10}\n"
        + "\n".join(rows)
    )
    if both:
        print(
            "\n| task | training | BenchMARL steps/s, before and after | Shoal steps/s | Shoal's time, of BenchMARL's |"
            f"\n|{'---|' * 5}\n" + "\n".join(both)
        )


if __name__ == "__main__":
    main()
