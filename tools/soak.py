"""Long trainings of every off-policy file, and PQN, on a tiny task: they stay finite, and memory does not grow.

    python tools/soak.py                 # all; results/soak.json
    python tools/soak.py --only qmix     # one file; the record keeps the others
    python tools/soak.py --only recipe --steps 1.5e5

Each file has the smallest buffer that it takes and an odd one, uniform and prioritised. After every chunk of a trial
the whole training state must be finite, replay and environments too. ``recipe`` is MADDPG with the sizes that it ships
with, a training in which flashbax's sum tree made NaN of the parameters.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import platform
import time
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal import envs
from shoal.algorithm import Algorithm, algorithm_in
from shoal.baselines.maddpg import maddpg_ff_mpe
from shoal.baselines.masac import masac_ff_vmas
from shoal.baselines.qmix import pqn_rnn_smax, qmix_rnn_mpe
from shoal.config.compose import composed
from shoal.config.settings import build
from shoal.config.words import Parser
from shoal.nn.models import Model
from shoal.rl import replay
from shoal.run.compile import RUN_LONG

RECORD = Path(__file__).parent.parent / "results" / "soak.json"
FILES: dict[str, ModuleType] = {
    "maddpg": maddpg_ff_mpe,
    "matd3": maddpg_ff_mpe,
    "masac": masac_ff_vmas,
    "qmix": qmix_rnn_mpe,
    "pqn": pqn_rnn_smax,
}
SWITCHES: dict[str, dict[str, Any]] = {"matd3": {"twin": True, "policy_delay": 2}}
NUMBERS: dict[str, dict[str, float]] = {"matd3": {"target_noise": 0.2}}
CONTINUOUS = ("maddpg", "matd3", "masac")
SEEDS = 2
BUFFERS = {"smallest": 256, "odd": 5003}  # environment steps; an update adds 256 of them
SIZES = {
    "num_envs": 32,
    "rollout_length": 8,
    "gradient_steps": 2,
    "learning_starts": 0,
    "batch_size": 256,
    "epochs": 1,
    "minibatches": 2,
}
RECIPE = ("env=mpe/simple", "algo.replay=prioritised", "algo.buffer_size=20000", "seeds=4")  # of maddpg
CHUNKS = 20
WARM = 5  # chunks until memory may no longer grow
MOST_GROWTH = 8e6  # bytes, of the process over all chunks after these


class Trial(NamedTuple):
    """One training; without replay where ``kind`` is empty."""

    file: str
    kind: str
    buffer: str

    @property
    def name(self) -> str:
        return " ".join(filter(None, self))


def trials() -> Iterator[Trial]:
    """All of them."""
    for file in FILES:
        if file == "pqn":
            yield Trial(file, "", "")
        else:
            yield from (Trial(file, kind, buffer) for kind in replay.KINDS for buffer in BUFFERS)
    yield Trial("recipe", "", "")


def settings(trial: Trial, steps: float) -> Any:
    """The configuration of a trial: tiny networks and the sizes above, as far as the file has them."""
    base = FILES[trial.file].Config()
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    small = {
        name: dataclasses.replace(value, widths=(16,), hidden=16)
        for name, value in fields.items()
        if isinstance(value, Model)
    }
    sizes = SIZES | {"total_steps": steps} | SWITCHES.get(trial.file, {})
    if trial.kind:
        sizes |= {"replay": trial.kind, "buffer_size": BUFFERS[trial.buffer]}
    if trial.file == "qmix":
        sizes |= {"batch_size": SIZES["num_envs"]}  # sequences: as many as an update adds
    return dataclasses.replace(base, **small, **{name: value for name, value in sizes.items() if name in fields})


def resident() -> int:
    """Bytes of memory that this process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def prepared(trial: Trial, steps: float) -> tuple[Algorithm, Any, int]:
    """The algorithm of a trial, its hyperparameters, and how many runs it trains."""
    if trial.file == "recipe":
        module, cfg = composed("maddpg", [*RECIPE, f"total_steps={steps}"])
        config, hypers = build(cfg.algo, "algo.", module.Config), build(cfg.hypers, "hypers.", module.Hypers)
        return algorithm_in(module)(config, envs.make(cfg.env.name)), hypers, cfg.seeds
    module = FILES[trial.file]
    env = envs.make("mpe/simple", **({"continuous": True} if trial.file in CONTINUOUS else {}))
    return algorithm_in(module)(settings(trial, steps), env), module.Hypers(**NUMBERS.get(trial.file, {})), SEEDS


def soak(trial: Trial, steps: float, chunks: int) -> dict[str, Any]:
    """Train the runs of a trial side by side for about ``steps`` each; what came of it."""
    algorithm, hypers, seeds = prepared(trial, steps)
    updates = -(-algorithm.num_updates // chunks)

    def chunk(state: Any) -> tuple[Any, dict[str, Any], Any]:
        state, metrics = jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=updates)
        known = {name: jnp.nanmean(metrics[name]) for name in ("loss", "episode_return")}
        tree = [x for x in jax.tree.leaves((state, metrics["loss"])) if jnp.issubdtype(x.dtype, jnp.floating)]
        return state, known, jnp.stack([jnp.isfinite(x).all() for x in tree]).all()

    begin = time.perf_counter()
    state = jax.jit(partial(jax.lax.map, lambda key: algorithm.init(key, hypers)))(
        jax.random.split(jax.random.PRNGKey(0), seeds)
    )
    run = jax.jit(jax.vmap(chunk), donate_argnums=0).lower(state).compile(RUN_LONG)
    history, memory = [], []
    for i in range(chunks):
        state, known, finite = run(state)
        if not finite.all():
            raise SystemExit(f"{trial.name}: not finite after {(i + 1) * updates * algorithm.steps_per_update} steps")
        history.append({name: x.tolist() for name, x in jax.device_get(known).items()})
        memory.append(resident())
    return {
        "steps": chunks * updates * algorithm.steps_per_update,
        "updates": chunks * updates,
        "seeds": list(range(seeds)),
        **({"words": ["maddpg", *RECIPE]} if trial.file == "recipe" else {"buffer_size": BUFFERS.get(trial.buffer)}),
        "finite": True,
        "returns": [history[0]["episode_return"], history[-1]["episode_return"]],
        "memory_bytes": memory,
        "memory_growth_bytes": growth(memory),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def growth(memory: list[int]) -> int:
    """Bytes that the later chunks have above the first of the warm ones; a leak is more than ``MOST_GROWTH``."""
    warm = memory[min(WARM, len(memory) - 1) :]
    return max(warm) - warm[0]


def processor() -> str:
    """The name of the processor, where the system knows it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--only", choices=[*FILES, "recipe"], action="append", help="these files; the record keeps the others"
    )
    parser.add_argument("--steps", type=float, default=1e6, help="environment steps of each run")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    packages = ("jax", "jaxlib", "flax", "optax", "flashbax")
    facts = {
        "env": "mpe/simple",
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
    }
    for trial in trials():
        if options.only and trial.file not in options.only:
            continue
        found = soak(trial, options.steps, CHUNKS)
        print(trial.name, json.dumps(found), flush=True)
        if found["memory_growth_bytes"] > MOST_GROWTH:
            raise SystemExit(f"{trial.name}: memory grew by {found['memory_growth_bytes']} bytes")
        record = json.loads(options.out.read_text()) if options.out.exists() else {}
        record = facts | {"trials": record.get("trials", {}) | {trial.name: found}}
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
