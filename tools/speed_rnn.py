"""How fast the recurrent files are against JaxMARL's: ``python tools/speed_rnn.py [--json figures.json]``.

JaxMARL's sizes and its own way of doing it, re-created, take turns with ours in one process; the best of several calls
counts.

- MAPPO and IPPO on SMAX (2s3z, 128 environments x 128 steps, 4 epochs x 4 minibatches, a dense layer and a GRU of 128
  units; tools/reference_rnn.py). Networks have the same layers (IPPO one memory with two heads, by ``share_torso``),
  but for our central critic, which reads a row per environment where JaxMARL's reads one per agent.
- QMIX on simple_spread (8 environments x 26 steps, 32 sequences per gradient step, a GRU of 64 units, hypernetworks of
  128; tools/reference_qmix.py). Timed with learning under way.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from speed import Program, numbers, prepare, race, training

from shoal import envs
from shoal.baselines.ippo import ippo_rnn_smax as ippo
from shoal.baselines.mappo import mappo_rnn_smax as mappo
from shoal.baselines.qmix import qmix_rnn_mpe as qmix
from shoal.cli import cores_as_devices
from shoal.config.words import Parser, some_of
from shoal.nn.models import Model
from shoal.run.progress import human, show_table

SIZES = {"num_envs": 128, "rollout_length": 128, "epochs": 4, "minibatches": 4}
QMIX = {"num_envs": 8, "rollout_length": 26, "batch_size": 32}


def ours(name: str, task: str, runs: int, updates: int, count: int = 1) -> Program:
    """The same sizes here, shared by ``count`` learners."""
    if name == "qmix":
        network = Model("gru", widths=(64,), hidden=64, activation="relu")
        sizes = {"buffer_size": 130_000, "learning_starts": 0, "mixer_width": 32, "hyper_width": 128}
        config = qmix.Config(q=network, target_interval=200, **QMIX, **sizes)
        env = envs.make("mpe/simple_spread", horizon=26)  # as long as the jaxmarl package's episodes are
        return training(qmix, config, env, runs, updates, count)
    network = Model("gru", widths=(128,), hidden=128, after=(128,), activation="relu")
    if name == "mappo":
        config = mappo.Config(actor=network, critic=network, **SIZES)
        return training(mappo, config, envs.make(f"smax/{task}"), runs, updates, count)
    config = ippo.Config(actor=network, critic=network, share_torso=True, **SIZES)
    return training(ippo, config, envs.make(f"smax/{task}"), runs, updates, count)


def reference(name: str, task: str, runs: int, updates: int) -> Program:
    """JaxMARL's manner: one run as ``jit(train)``, several as ``jit(vmap(train))``."""
    import reference_qmix  # here: they import jaxmarl, which looks for devices before the cores are some
    import reference_rnn

    if name == "qmix":
        init, update = reference_qmix.make(reference_qmix.Config(learning_starts=0))
        sizes = QMIX
    else:
        preset = reference_rnn.MAPPO if name == "mappo" else reference_rnn.IPPO
        init, update = reference_rnn.make(replace(preset, env=task, **SIZES))
        sizes = SIZES
    keys = jax.random.split(jax.random.PRNGKey(0), runs)
    state = jax.jit(lambda keys: jax.lax.map(init, keys))(keys)

    def chunk(state: Any) -> Any:
        return jax.lax.scan(update, state, length=updates)

    if runs == 1:
        state = jax.tree.map(lambda x: x[0], state)
    steps = runs * updates * sizes["num_envs"] * sizes["rollout_length"]
    return prepare("reference", chunk if runs == 1 else jax.vmap(chunk), state, steps=steps, carries=True)


def main() -> None:
    """Measure what the command line asks for."""
    parser = Parser(__doc__)
    parser.add_argument("--task", default="2s3z")
    parser.add_argument("--runs", type=numbers, default="1", help="numbers of runs, comma-separated")
    parser.add_argument("--algorithms", type=some_of(("mappo", "ippo", "qmix")), default="mappo,ippo,qmix")
    parser.add_argument("--learners", type=numbers, default="1", help="that a run of ours has, comma-separated")
    parser.add_argument("--reference-runs", type=int, default=1, help="the most that the reference is asked for")
    parser.add_argument("--updates", type=int, default=1, help="in one timed call; of QMIX 200 times as many")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, help="store the figures here")
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    cores_as_devices()
    figures = []
    for name in options.algorithms.split(","):
        for runs in options.runs:
            updates = options.updates * (200 if name == "qmix" else 1)
            programs = [ours(name, options.task, runs, updates, count) for count in options.learners]
            if runs <= options.reference_runs:
                programs.append(reference(name, options.task, runs, updates))
            race(programs, options.repetitions)
            for program in programs:
                ratio = programs[0].speed / program.speed
                costs = {"lower_seconds": program.lower_seconds, "compile_seconds": program.compile_seconds}
                figures.append(
                    {"algorithm": name, "name": program.name, "runs": runs, "speed": program.speed, "ours": ratio}
                    | costs
                )
    rows = [["algorithm", "program", "runs", "steps/s", "ours / this", "lowering s", "compiling s"]]
    for f in figures:
        seconds = [f"{f['lower_seconds']:.1f}", f"{f['compile_seconds']:.1f}"]
        rows.append([f["algorithm"], f["name"], str(f["runs"]), human(f["speed"]), f"{f['ours']:.2f}x", *seconds])
    show_table(rows, f"Recurrent, smax/{options.task} (QMIX: mpe/simple_spread), JaxMARL's sizes")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
