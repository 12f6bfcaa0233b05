"""The real BenchMARL on a VMAS task, for comparison: its steps per second, and what it learns.

    python -m venv other && other/bin/pip install benchmarl vmas && other/bin/python tools/reference_benchmarl.py
    other/bin/python tools/reference_benchmarl.py --algorithm qmix --task sampling --record results
    other/bin/python tools/reference_benchmarl.py --algorithm ippo --epochs 10 --iterations 15 --record results

It needs an environment of its own, because BenchMARL's torch is not ours. Collection and learning count, evaluation and
logging are off. The first iteration is left out of the speed. Returns are of the training episodes that end in a batch:
undiscounted, the mean over agents. ``--record`` writes them to ``<folder>/benchmarl_<algorithm>_vmas.<task>.json``,
where tools/learning.py looks for them; tools/at_benchmarl.py has the same hyperparameters for ours. Where other
jobs use the cores, ``--threads 1`` is many times as fast as two threads that wait for each other.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from benchmarl.algorithms import IppoConfig, MappoConfig, MasacConfig, QmixConfig
from benchmarl.environments import VmasTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.experiment.callback import Callback
from benchmarl.models.mlp import MlpConfig

ALGORITHMS = {"mappo": MappoConfig, "ippo": IppoConfig, "masac": MasacConfig, "qmix": QmixConfig}
ROLLOUT = 100  # steps of each environment in a batch
# What a batch is and what is learnt from it; options of the same names go over it.
ON_POLICY = {"envs": 600, "minibatch": 4096, "epochs": 4, "iterations": 4, "lr": 3e-4, "width": 256}
OFF_POLICY = {"envs": 60, "minibatch": 256, "optimiser_steps": 200, "iterations": 50, "lr": 1e-3, "width": 64}
OFF_POLICY |= {"tau": 0.01, "memory": 100_000}


class Clock(Callback):
    """When each iteration ended, and the mean return of the episodes that ended in it."""

    def __init__(self):
        super().__init__()
        self.times, self.returns = [], []

    def on_batch_collected(self, batch):
        done = batch.get(("next", "done")).flatten()
        reward = batch.get(("next", "agents", "episode_reward")).mean(-2).flatten()
        self.returns.append(reward[done].mean().item() if done.any() else float("nan"))
        self.times.append(time.perf_counter())


def products(size: int = 4096, repeats: int = 8) -> float:
    """The machine's peak: GFLOP/s of torch's largest products."""
    a, b = torch.ones(size, size), torch.ones(size, size)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - begin)
    return 2 * size**3 / min(times) / 1e9


def settings(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """What this algorithm trains with: the options that were given, and the defaults of its kind."""
    defaults = (ON_POLICY if ALGORITHMS[algorithm].on_policy() else OFF_POLICY) | {"gamma": 0.9, "adam_eps": 1e-5}
    unknown = {name for name, value in options.items() if value is not None} - set(defaults)
    if unknown:
        raise SystemExit(f"--{' --'.join(sorted(unknown))}: {algorithm} has no such thing")
    return {name: value if options.get(name) is None else options[name] for name, value in defaults.items()}


def configure(values: dict[str, Any]) -> ExperimentConfig:
    """BenchMARL's own defaults, but for ``values``."""
    config = ExperimentConfig.get_from_yaml()
    config.sampling_device = config.train_device = config.buffer_device = "cpu"
    frames = values["envs"] * ROLLOUT
    if "epochs" in values:
        config.on_policy_collected_frames_per_batch = frames
        config.on_policy_n_envs_per_worker = values["envs"]
        config.on_policy_n_minibatch_iters = values["epochs"]
        config.on_policy_minibatch_size = values["minibatch"]
    else:
        config.off_policy_collected_frames_per_batch = frames
        config.off_policy_n_envs_per_worker = values["envs"]
        config.off_policy_n_optimizer_steps = values["optimiser_steps"]
        config.off_policy_train_batch_size = values["minibatch"]
        config.off_policy_memory_size = values["memory"]
        config.polyak_tau = values["tau"]
        config.exploration_anneal_frames = values["iterations"] * frames // 3
    config.max_n_frames, config.max_n_iters = None, values["iterations"]
    config.lr, config.gamma, config.adam_eps = values["lr"], values["gamma"], values["adam_eps"]
    config.evaluation, config.render, config.loggers, config.create_json = False, False, [], False
    config.save_folder = tempfile.mkdtemp()
    return config


def train(algorithm: str, task: str, values: dict[str, Any], seed: int) -> tuple[Clock, dict[str, Any]]:
    """One training, and all that BenchMARL's configuration says of it."""
    clock, config = Clock(), configure(values)
    network = MlpConfig.get_from_yaml()
    network.num_cells = [values["width"]] * 2
    learner = ALGORITHMS[algorithm].get_from_yaml()
    experiment = Experiment(
        task=VmasTask[task.upper()].get_from_yaml(),
        algorithm_config=learner,
        model_config=network,
        critic_model_config=network,
        seed=seed,
        config=config,
        callbacks=[clock],
    )
    experiment.run()
    names = ("clip_grad_val", "soft_target_update", "exploration_eps_init", "exploration_eps_end")
    known = {name: getattr(config, name) for name in names} | {"activation": network.activation_class.__name__}
    return clock, values | known | vars(learner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="mappo")
    parser.add_argument("--task", default="balance")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path, help="a folder for the record of the returns")
    parser.add_argument("--products", action="store_true", help="only measure torch's largest products")
    names = dict.fromkeys((*ON_POLICY, *OFF_POLICY, "gamma", "adam_eps"))
    for name in names:
        kind = float if name in ("lr", "tau", "gamma", "adam_eps") else int
        shown = [f"{kind(values[name]):g}" for values in (ON_POLICY, OFF_POLICY) if name in values]
        text = f"{' or '.join(dict.fromkeys(shown))} by default" if shown else ""
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.products:
        print(f"products: {products():.0f} GFLOP/s")
        return
    logging.disable(logging.WARNING)
    values = settings(options.algorithm, {name: getattr(options, name) for name in names})
    frames, returns, speeds = values["envs"] * ROLLOUT, [], []
    for seed in range(options.seeds):
        clock, known = train(options.algorithm, options.task, values, seed)
        returns.append([round(value, 4) for value in clock.returns])
        speeds.append(frames * (len(clock.times) - 1) / (clock.times[-1] - clock.times[0]))
    print(f"BenchMARL on {options.task}: {sum(speeds) / len(speeds):.0f} steps/s, returns {returns}")
    if options.record:
        packages = ("benchmarl", "vmas", "torch", "torchrl", "tensordict")
        given = [word for word in sys.argv[1:] if word not in ("--record", str(options.record))]
        record = {
            "command": " ".join(["python tools/reference_benchmarl.py", *given]),
            "hyperparameters": known,
            "steps": [frames * (i + 1) for i in range(len(returns[0]))],
            "sampled": returns,
            "steps_per_second": [round(speed) for speed in speeds],
            "python": platform.python_version(),
            "packages": {name: metadata.version(name) for name in packages},
            "cores": os.cpu_count(),
        }
        options.record.mkdir(parents=True, exist_ok=True)
        path = options.record / f"benchmarl_{options.algorithm}_vmas.{options.task}.json"
        path.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
