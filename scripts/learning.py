"""What IPPO learns on mpe/simple_spread, recorded: ``python scripts/learning.py`` rewrites docs/learning.md.

Three trainings of a million steps with several seeds each: the shipped recipe, JaxMARL's hyperparameters, and the
reference trainer (``scripts/reference_ippo.py``) at the same hyperparameters on the jaxmarl package's environment.
Returns are per agent and of training (sampled) episodes, so that all three mean the same; a jaxmarl episode has 26
steps, and its return is scaled to 25.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.report import bootstrap, iqm

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "baselines" / "ippo" / "ippo_ff_mpe.py"
JAXMARL = [
    "algo.clip_value=true",
    "hypers.lr=2.5e-4",
    "hypers.gamma=0.99",
    "hypers.gae_lambda=0.95",
    "hypers.clip_eps=0.2",
    "hypers.ent_coef=0.01",
    "hypers.vf_coef=0.5",
    "hypers.max_grad_norm=0.5",
]


def shoal_returns(folder: Path, words: list[str]) -> tuple[np.ndarray, dict]:
    """Training returns ``[seeds, chunks]`` of the command line with ``words``, and what it says of itself."""
    subprocess.run([sys.executable, str(SCRIPT), *words, f"run.dir={folder}"], check=True)
    table = pd.read_csv(folder / "metrics.csv").pivot(index="run", columns="env_steps", values="episode_return")
    return table.to_numpy(), json.loads((folder / "provenance.json").read_text())


def reference_returns(seeds: int, steps: float) -> np.ndarray:
    """The same of the reference trainer, ``[seeds, updates]``, in episodes of 25 steps."""
    import jax
    import reference_ippo

    train = reference_ippo.make_train(reference_ippo.Config(total_steps=steps))
    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    metrics = jax.jit(lambda keys: jax.lax.map(lambda key: train(key)[1], keys))(keys)
    return np.asarray(metrics["episode_return"]) * 25 / 26


def row(name: str, returns: np.ndarray, first: int, last: int) -> str:
    """One line of the table: means of the ``first`` and ``last`` entries, IQM and interval over seeds."""
    start, end = returns[:, :first].mean(axis=1), returns[:, -last:].mean(axis=1)
    low, high = bootstrap(end)
    return (
        f"| {name} | {len(returns)} | {iqm(start):.2f} | {iqm(end):.2f} | {low:.2f} .. {high:.2f} | {end.max():.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    parser.add_argument("--steps", type=float, default=1e6)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--reference-seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    options = parser.parse_args()

    sizes = [f"total_steps={options.steps}", f"seeds={options.seeds}"]
    tuned, facts = shoal_returns(options.folder / "recipe", sizes)
    same, _ = shoal_returns(options.folder / "jaxmarl_hyperparameters", [*sizes, *JAXMARL])
    reference = reference_returns(options.reference_seeds, options.steps)
    rows = [
        row("Shoal, the shipped recipe", tuned, 1, 1),
        row("Shoal, JaxMARL's hyperparameters", same, 1, 1),
        row("reference in JaxMARL's manner", reference, reference.shape[1] // 20, reference.shape[1] // 20),
    ]
    versions = ", ".join(f"{name} {facts['packages'][name]}" for name in ("jax", "flax", "optax", "jaxmarl"))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "learning.md").write_text(
        "# Learning\n\nWritten by `python scripts/learning.py`.\n\n"
        f"IPPO, feed-forward, on `mpe/simple_spread`: {facts['env_steps_per_run']:,} steps a run, "
        f"{facts['cores']} CPU cores, Python {facts['python']}, {versions}. Mean return per agent of training episodes "
        "in the first and the last twentieth of training; IQM over seeds, 95 % bootstrap interval. The reference plays "
        "the jaxmarl package's environment, its returns scaled from 26 steps to 25.\n\n"
        "| training | seeds | first | last | 95 % | best seed |\n|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "![curves of the recipe](images/curves.png)\n"
    )
    (options.out / "images").mkdir(exist_ok=True)
    shutil.copy(options.folder / "recipe" / "curves.png", options.out / "images" / "curves.png")
    print((options.out / "learning.md").read_text())


if __name__ == "__main__":
    main()
