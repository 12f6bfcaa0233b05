"""What masks cost: time of an update with elastic networks, against plain ones of the same living size.

    python tools/speed_elastic.py

IPPO on simple_spread with its default sizes, ``--runs`` runs side by side on one core. The variants take turns, and of
each the fastest of ``--repeats`` passes counts.
"""

from __future__ import annotations

import dataclasses
import os
import time

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import jax
import jax.numpy as jnp

from shoal import envs
from shoal.baselines.ippo import ippo_ff_mpe as ippo
from shoal.config.words import Parser
from shoal.nn import elastic
from shoal.nn.models import Model

VARIANTS = {
    "plain 64x64": Model(),
    "elastic, max 64x64": Model(elastic=True, max_width=64, max_depth=2),
    "elastic, max 64x64, mutable activation": Model(
        elastic=True, max_width=64, max_depth=2, mutable_activation=True, activation="relu"
    ),
    "elastic, max 128x128x128": Model(elastic=True),
    "plain 128x128x128": Model(widths=(128, 128, 128)),
}
UPDATES = 2


def program(model: Model, shares: bool, runs: int):
    """A function that makes ``UPDATES`` updates of all runs; the time to compile it; its state."""
    config = dataclasses.replace(ippo.Config(), actor=model, critic=model, elastic_batches=shares)
    algorithm = ippo.make(config, envs.make("mpe/simple_spread"))
    keys = jax.random.split(jax.random.PRNGKey(0), runs)
    hypers = jax.tree.map(lambda x: jnp.full(runs, x), ippo.Hypers())
    state = jax.jit(lambda k, h: jax.lax.map(lambda x: algorithm.init(*x), (k, h)))(keys, hypers)

    def updates(state, hypers):
        return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=UPDATES)[0]

    begin = time.perf_counter()
    compiled = jax.jit(jax.vmap(updates)).lower(state, hypers).compile()
    return lambda: jax.block_until_ready(compiled(state, hypers)), time.perf_counter() - begin, state


def mutation(state, runs: int) -> float:
    """Seconds in which the architecture of all runs mutates."""
    keys = jax.random.split(jax.random.PRNGKey(0), runs)
    mutate = jax.jit(jax.vmap(elastic.mutate_architecture)).lower(keys, state.params).compile()
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        jax.block_until_ready(mutate(keys, state.params))
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    made = {name: program(model, False, arguments.runs) for name, model in VARIANTS.items()}
    made["plain 64x64, elastic_batches"] = program(Model(), True, arguments.runs)
    best = dict.fromkeys(made, float("inf"))
    for _ in range(arguments.repeats):
        for name, (run, _, _) in made.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - begin) / UPDATES)
    print("| networks | ms per update | of the plain | compiled in s |\n|---|---|---|---|")
    for name, (_, seconds, _) in made.items():
        print(f"| {name} | {1e3 * best[name]:.0f} | {best[name] / best['plain 64x64']:.2f} | {seconds:.1f} |")
    seconds = mutation(made["elastic, max 128x128x128"][2], arguments.runs)
    print(f"\nA mutation of {arguments.runs} runs at 128x128x128: {1e3 * seconds:.0f} ms")


if __name__ == "__main__":
    main()
