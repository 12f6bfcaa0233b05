"""What evolution costs: a generation of a population against the same number of plain runs, in one process.

    python tools/speed_evolve.py                                       tournament, IPPO's recipe, 32 members
    python tools/speed_evolve.py --algorithm maddpg --schemes pbt,halving --population 16
    python tools/speed_evolve.py --words algo.actor.elastic=true algo.critic.elastic=true

Both train the same rounds of the same recipe, each compiled as the runner does it, and take turns; a round with its
selection is compared with the plain round beside it. What is told is the median over the turns, with its quartiles, in
wall-clock seconds and in seconds of all cores together: these hold on a machine that does other things, too.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.algorithm import algorithm_in
from shoal.cli import cores_as_devices, enable_compilation_cache
from shoal.config import compose
from shoal.config.named import algorithms
from shoal.config.words import Parser, some_of
from shoal.errors import UserError
from shoal.run.compile import compile_programs
from shoal.run.progress import Display, human, show_table
from shoal.training import make_plan


class Training:
    """A compiled training and its state between two chunks."""

    def __init__(self, algorithm: str, words: list[str]):
        module, cfg = compose.composed(algorithm, words)
        self.plan = make_plan(algorithm_in(module), cfg, Path("nowhere"))
        self.programs = compile_programs(self.plan, Display(1, len(self.plan.runs)))
        start = np.resize(np.arange(len(self.plan.runs)), self.plan.width)
        keys, self.hypers = self.plan.placement.put(self.plan.runs.select(start), self.plan.width)
        self.state = self.programs.start(keys, self.hypers)

    def chunk(self) -> tuple[float, float]:
        """One more: its seconds, and those of all cores."""
        tick, cpu = time.perf_counter(), time.process_time()
        self.state, *told = self.programs.chunk(self.state, self.hypers)
        jax.block_until_ready((self.state, told))
        return time.perf_counter() - tick, time.process_time() - cpu


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The ratio of each scheme's generation to a plain round of as many runs."""
    shared = [f"total_steps={options.steps}", f"chunks={options.rounds}", *options.words]
    plain = Training(options.algorithm, [f"seeds={options.population}", *shared])
    figures = []
    for scheme in options.schemes.split(","):
        evolution = [f"evolve={scheme}", f"population={options.population}", "seeds=1"]
        evolving = Training(options.algorithm, [*evolution, f"evolve.rounds={options.rounds}", *shared])
        assert evolving.plan.updates_per_chunk == plain.plan.updates_per_chunk
        plain.chunk(), evolving.chunk()  # the first warms up, and selects nobody
        pairs = np.array([(plain.chunk(), evolving.chunk()) for _ in range(options.turns)])  # [turns, 2, 2]
        ratios = pairs[:, 1] / pairs[:, 0] - 1
        figures.append(
            {
                "scheme": scheme,
                "plain_seconds": float(np.median(pairs[:, 0, 0])),
                "evolving_seconds": float(np.median(pairs[:, 1, 0])),
                "more_seconds": np.quantile(ratios[:, 0], [0.25, 0.5, 0.75]).tolist(),
                "more_core_seconds": np.quantile(ratios[:, 1], [0.25, 0.5, 0.75]).tolist(),
                "compile_seconds": {"plain": plain.programs.seconds, "evolving": evolving.programs.seconds},
            }
        )
    return figures


def main() -> None:
    """Measure what the command line asks for."""
    parser = Parser(__doc__)
    parser.add_argument("--algorithm", default="ippo", choices=sorted(algorithms()))
    parser.add_argument(
        "--schemes",
        type=some_of(("tournament", "pbt", "mf_pbt", "halving")),
        default="tournament",
        help="some of tournament,pbt,mf_pbt,halving",
    )
    parser.add_argument("--population", type=int, default=32)
    parser.add_argument("--steps", type=float, default=1e6, help="environment steps of a member's whole training")
    parser.add_argument("--rounds", type=int, default=20, help="that these are cut into")
    parser.add_argument("--turns", type=int, default=9, help="rounds that are timed")
    parser.add_argument("--words", nargs="*", default=[], help="more settings, for both")
    parser.add_argument("--json", type=Path, help="store the figures here")
    options = parser.parse_args()
    cores_as_devices()
    enable_compilation_cache()
    figures = measure(options)
    rows = [["scheme", "plain round", "a generation", "more", "more core seconds", "compiling"]]
    for one in figures:
        compiling = one["compile_seconds"]
        more = [
            "{1:+.1f} % ({0:+.1f} .. {2:+.1f})".format(*(100 * value for value in one[key]))
            for key in ("more_seconds", "more_core_seconds")
        ]
        rows.append(
            [
                one["scheme"],
                f"{one['plain_seconds']:.3f} s",
                f"{one['evolving_seconds']:.3f} s",
                *more,
                f"{compiling['evolving']:.1f} s ({compiling['plain']:.1f} s plain)",
            ]
        )
    steps = human(options.steps / options.rounds)
    show_table(rows, f"{options.algorithm}: {options.population} members, {steps} steps each in a generation")
    if options.json is not None:
        facts = {"algorithm": options.algorithm, "population": options.population, "steps": options.steps}
        options.json.write_text(json.dumps(facts | {"rounds": options.rounds, "schemes": figures}, indent=2))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
