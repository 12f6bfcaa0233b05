"""How well a trace foretells the time of a training: fits the constants of ``shoal.run.cost.Rates`` on this machine.

    python tools/calibrate.py            # prints the fit, and what it says of each program beside what was measured

Every program is one chunk of one run on one core. Seconds are the processor's, so that other jobs disturb little.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1 --xla_cpu_multi_thread_eigen=false"

import jax
import numpy as np
from scipy.optimize import nnls

from shoal.algorithm import algorithm_in
from shoal.config import compose
from shoal.config.words import Parser
from shoal.run import cost
from shoal.run.compile import RUN_LONG, memory_of
from shoal.run.state import first_state, train_chunk
from shoal.training import make_plan

PROGRAMS = (
    ("ippo", "mpe/simple_spread"),
    ("mappo", "mpe/simple_tag"),
    ("mappo", "vmas/balance"),
    ("ippo", "vmas/navigation"),
    ("mappo_rnn", "smax/3m"),
    ("pqn_vdn", "smax/2s3z"),
    ("vdn", "mpe/simple_spread"),
    ("qmix", "vmas/balance"),
    ("matd3", "mpe/simple_speaker_listener"),
    ("masac", "vmas/navigation"),
    ("ippo", "overcooked/cramped_room"),
    ("ippo", "matrix/climbing"),
)


def measure(algorithm: str, env: str, updates: int = 3) -> tuple[cost.Cost, int, float, float, float]:
    """Cost, equations, processor seconds of a call and of compiling, and bytes, of a few updates and an evaluation."""
    module, cfg = compose.composed(algorithm, [f"env={env}"])
    made = make_plan(algorithm_in(module), cfg, Path())
    key, hypers = jax.tree.map(lambda leaf: leaf[0], made.runs.select(np.array([0])))
    started = jax.jit(lambda k, h: first_state(made.algorithm, made.key(k), h))(key, hypers)

    def chunk(state, hypers):
        return train_chunk(made.algorithm, state, hypers, updates, episodes=8, greedy=True)[0]

    jaxpr = jax.make_jaxpr(chunk)(started, hypers).jaxpr
    begin = time.process_time()
    program = jax.jit(chunk, donate_argnums=0).lower(started, hypers).compile(RUN_LONG)
    compiling = time.process_time() - begin
    # Off-policy files learn from their first update on only in the estimate: past learning_starts in truth.
    warm = int(np.ceil(getattr(cfg.algo, "learning_starts", 0) / made.algorithm.steps_per_update / updates))
    for _ in range(1 + warm):
        started = program(started, hypers)
    jax.block_until_ready(started)
    times = []
    for _ in range(3):
        begin = time.process_time()
        started = jax.block_until_ready(program(started, hypers))
        times.append(time.process_time() - begin)
    return cost.walk(jaxpr), cost.equations(jaxpr), min(times), compiling, memory_of(program, 1)


def main() -> None:
    Parser(__doc__).parse_args()
    rows = []
    for algorithm, env in PROGRAMS:
        rows.append(measure(algorithm, env))
        print(f"{algorithm} on {env}: {rows[-1]}", flush=True)
    features = np.array([row[0][:3] for row in rows])
    seconds = np.array([row[2] for row in rows])
    rates, _ = nnls(features / seconds[:, None], np.ones(len(rows)))  # relative errors count alike
    per_equation = np.median([row[3] / row[1] for row in rows])
    print(f"flop 1 / {1 / max(rates[0], 1e-15):.3g}, element 1 / {1 / max(rates[1], 1e-15):.3g}, ", end="")
    print(f"operation {rates[2]:.2g}, compile {per_equation:.2g}\n")
    print("| program | measured ms | foretold ms | ratio | compiling s | foretold s | memory MiB | foretold MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for (algorithm, env), row in zip(PROGRAMS, rows, strict=True):
        told = float(np.dot(rates, row[0][:3]))
        figures = [f"{1e3 * row[2]:.0f}", f"{1e3 * told:.0f}", f"{told / row[2]:.2f}", f"{row[3]:.1f}"]
        figures += [f"{per_equation * row[1]:.1f}", f"{row[4] / 2**20:.0f}", f"{row[0].peak / 2**20:.0f}"]
        print(f"| {algorithm} on `{env}` | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
