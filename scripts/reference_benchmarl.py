"""Steps per second of the real BenchMARL: MAPPO on a VMAS task, for comparison on the same machine.

    python -m venv other && other/bin/pip install benchmarl vmas && other/bin/python scripts/reference_benchmarl.py

It needs an environment of its own, because BenchMARL's torch is not ours. Collection and learning count, evaluation and
logging are off. The first iteration is left out.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time

import torch
from benchmarl.algorithms import MappoConfig
from benchmarl.environments import VmasTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.experiment.callback import Callback
from benchmarl.models.mlp import MlpConfig


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="balance")
    parser.add_argument("--envs", type=int, default=600)
    parser.add_argument("--minibatch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--products", action="store_true", help="only measure torch's largest products")
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.products:
        print(f"products: {products():.0f} GFLOP/s")
        return
    logging.disable(logging.WARNING)
    frames = options.envs * 100
    config = ExperimentConfig.get_from_yaml()
    config.sampling_device = config.train_device = config.buffer_device = "cpu"
    config.on_policy_collected_frames_per_batch = frames
    config.on_policy_n_envs_per_worker = options.envs
    config.on_policy_n_minibatch_iters = options.epochs
    config.on_policy_minibatch_size = options.minibatch
    config.max_n_frames, config.max_n_iters = None, options.iterations
    config.lr, config.gamma = options.lr, 0.9
    config.evaluation, config.render, config.loggers, config.create_json = False, False, [], False
    config.save_folder = tempfile.mkdtemp()
    clock = Clock()
    experiment = Experiment(
        task=VmasTask[options.task.upper()].get_from_yaml(),
        algorithm_config=MappoConfig.get_from_yaml(),
        model_config=MlpConfig.get_from_yaml(),
        critic_model_config=MlpConfig.get_from_yaml(),
        seed=0,
        config=config,
        callbacks=[clock],
    )
    experiment.run()
    seconds = clock.times[-1] - clock.times[0]
    steps = frames * (len(clock.times) - 1)
    print(f"BenchMARL on {options.task}: {steps / seconds:.0f} steps/s, returns {clock.returns}")


if __name__ == "__main__":
    main()
