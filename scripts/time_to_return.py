"""Time to BenchMARL's returns: how long MAPPO trains until its training return is what BenchMARL's was at the end.

    python scripts/time_to_return.py                              # all trainings, then the table; the machine to itself
    python scripts/time_to_return.py --tasks balance --seeds 1    # one of them
    python scripts/time_to_return.py --settings benchmarl --seeds 1 --learners 2  # a core for each half

Each task is trained with the recipe that ships (``shipped``) and at BenchMARL's own sizes and hyperparameters
(``benchmarl``). A training that has ended is not run again. The return is the IQM over seeds of the training episodes
of a chunk; the first one at or above BenchMARL's, rounded to as many digits, counts, and its steps are those at the
chunk's end. Seconds are that many steps of every seed at the training's own speed (steps per second in
provenance.json, without compiling); seeds train side by side, so that one seed alone would need less. Compiling is told
apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from at_benchmarl import PPO_FRAMES, PPO_HYPERS, PPO_SIZES

from shoal.report import iqm

ROOT = Path(__file__).parent.parent


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


def train(task: str, words: tuple[str, ...], seeds: int, steps: float, folder: Path) -> None:
    """Run it unless it has ended."""
    if (folder / "curves.png").exists():
        return
    words = (f"env=vmas/{task}", f"seeds={seeds}", f"total_steps={steps:g}", *words, f"run.dir={folder}")
    subprocess.run([sys.executable, "-m", "baselines", "mappo", *words], check=True, cwd=ROOT)


def row(task: str, setting: str, folder: Path) -> str:
    """A line of the table."""
    table = pd.read_csv(folder / "metrics.csv").pivot(index="run", columns="env_steps", values="episode_return")
    steps, values = table.columns.to_numpy(), iqm(table.to_numpy())
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
        str(len(table)),
        f"{asked.value:g}",
        f"{np.nanmax(values):.2f}",
        took,
        f"{speed / 1e3:.1f}k",
        f"{compiling:.0f} s",
        f"{asked.seconds:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/time_to_return"))
    parser.add_argument("--tasks", default=",".join(BENCHMARL))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=float, default=PPO_FRAMES)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--learners", type=int, default=1, help="that share the environments and batches of a run")
    options = parser.parse_args()
    if unknown := set(options.settings.split(",")) - set(SETTINGS):
        parser.error(f"--settings {','.join(unknown)}: choose from {', '.join(SETTINGS)}")
    rows = []
    for task in options.tasks.split(","):
        for setting in options.settings.split(","):
            name = setting if options.learners == 1 else f"{setting}_{options.learners}_learners"
            folder = (options.folder / f"{task}_{name}").absolute()
            words = (*SETTINGS[setting], f"learners={options.learners}")
            train(task, words, options.seeds, options.steps, folder)
            rows.append(row(task, name.replace("_", " "), folder))
    print(
        "| task | settings | seeds | return asked | best IQM | environment steps of a run | seconds, all seeds "
        f"| steps/s, all seeds | compiling | BenchMARL, one seed, {PPO_FRAMES / 1e3:.0f}k frames |\n|{'---|' * 10}\n"
        + "\n".join(rows)
    )


if __name__ == "__main__":
    main()
