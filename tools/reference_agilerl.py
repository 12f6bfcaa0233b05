"""AgileRL's own demonstration on simple_speaker_listener: a population under tournament and mutation, for comparison.

    python -m venv other && other/bin/pip install agilerl mpe2 && other/bin/python tools/reference_agilerl.py

It needs an environment of its own, because AgileRL's torch is not ours, and nothing of shoal. Training is AgileRL's
``train_multi_agent_off_policy`` at the settings that its documentation trains this task with: MATD3 those of the
tutorial, MADDPG those of the multi-agent demonstration; population 4, 8 environments, a generation of 10,000 steps of
every member. Only the length is ours: ``--steps`` counts the environment steps of all members together.

AgileRL's fitness is the sum over both agents, who are rewarded alike, of one episode in each of the 8 environments.
What is written is the mean over agents (half of it), comparable with an ``episode_return`` here: ``fitness`` of every
member as AgileRL saw it, and ``return`` of the fittest in fresh episodes without noise (``--episodes``). Neither
seconds nor CPU seconds (of all processes) count these episodes, nor the imports; seconds leave out whenever all
processes were stopped for more than two seconds. A row of ``generations`` is a generation; the last one's fittest is
what AgileRL would hand over. torch has one thread: with two, a generation took twice the CPU time and was no faster.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import random
import threading
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from agilerl.algorithms import MADDPG, MATD3
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.utils.utils import make_multi_agent_vect_envs
from mpe2 import simple_speaker_listener_v4

AGENTS = 2
ENVS = 8
EVERY = 10_000  # environment steps of a member in a generation
NOISE = {"O_U_noise": True, "expl_noise": 0.1, "mean_noise": 0.0, "theta": 0.15, "dt": 0.01}
COMMON = {"gamma": 0.95, "tau": 0.01, "learn_step": 100, "vect_noise_dim": ENVS, **NOISE}
MUTABLE = {
    "lr_actor": RLParameter(min=1e-4, max=1e-2),
    "lr_critic": RLParameter(min=1e-4, max=1e-2),
    "batch_size": RLParameter(min=8, max=512, dtype=int),
    "learn_step": RLParameter(min=20, max=200, dtype=int, grow_factor=1.5, shrink_factor=0.75),
}
NETWORK = {"latent_dim": 64, "encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}}
SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "matd3": (
        MATD3,
        {
            **COMMON,
            "batch_size": 128,
            "lr_actor": 1e-4,
            "lr_critic": 1e-3,
            "policy_freq": 2,
            "net_config": NETWORK,
            "hp_config": HyperparameterConfig(**MUTABLE),
        },
    ),
    # The demonstration names no hyperparameters that mutate: AgileRL's defaults for MADDPG hold.
    "maddpg": (
        MADDPG,
        {
            **COMMON,
            "batch_size": 32,
            "lr_actor": 1e-3,
            "lr_critic": 1e-3,
            "net_config": {"encoder_config": {"hidden_size": [32, 32]}},
        },
    ),
}
HYPERS = ("lr_actor", "lr_critic", "batch_size", "learn_step")


class Stops(threading.Thread):
    """How long this process was stopped, as far as longer than two seconds at a time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0

    def run(self) -> None:
        while True:
            before = time.perf_counter()
            time.sleep(0.2)
            gap = time.perf_counter() - before
            self.seconds += gap if gap > 2 else 0.0


def processor() -> float:
    """CPU seconds so far, of this process and of the environments'."""
    this = psutil.Process()
    times = [one.cpu_times() for one in (this, *this.children(recursive=True))]
    return sum(one.user + one.system for one in times)


class Clock(TournamentSelection):
    """Tournament selection that writes down what it is shown, and when."""

    def __init__(self, env: Any, episodes: int, **arguments: Any):
        super().__init__(**arguments)
        self.env, self.loops = env, max(1, episodes // ENVS)
        self.rows: list[dict[str, Any]] = []
        self.stops = Stops()
        self.stops.start()
        self.begin = self.now()

    def now(self) -> np.ndarray:
        return np.array([time.perf_counter() - self.stops.seconds, processor()])

    def select(self, population: list[Any]) -> Any:
        now = self.now()
        seconds, cpu = np.round(now - self.begin, 2).tolist()
        fitness = [agent.fitness[-1] for agent in population]
        best = population[int(np.argmax(fitness))]
        value = best.test(self.env, loop=self.loops)
        best.metrics.fitness.pop()  # the tournament sees what it would have seen
        row = {
            "env_steps": sum(agent.metrics.steps for agent in population),
            "seconds": seconds,
            "cpu_seconds": cpu,
            "load": round(os.getloadavg()[0], 1),
            "fitness": [round(one / AGENTS, 4) for one in fitness],
            "return": round(value / AGENTS, 4),
            "mutation": [str(agent.mut) for agent in population],
            "hypers": {name: [getattr(agent, name) for agent in population] for name in HYPERS},
        }
        self.rows.append(row)
        print(f"{row['env_steps']} steps, {seconds} s, return {row['return']}", flush=True)
        self.begin += self.now() - now
        return super().select(population)


def train(name: str, steps: int, population: int, seed: int, episodes: int) -> dict[str, Any]:
    """One population: what it scored, and when."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (what its tournament draws from)
    torch.manual_seed(seed)
    make, settings = SETTINGS[name]
    env = make_multi_agent_vect_envs(lambda: simple_speaker_listener_v4.parallel_env(continuous_actions=True), ENVS)
    ids = list(env.agents)
    spaces = ([env.single_observation_space(agent) for agent in ids], [env.single_action_space(agent) for agent in ids])
    members = make.population(population, *spaces, agent_ids=ids, **settings)
    clock = Clock(env, episodes, tournament_size=2, elitism=True, population_size=population)
    mutations = Mutations(0.2, 0.2, 0.2, 0.2, 0.0, 0.2, mutation_sd=0.1, rand_seed=seed)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        train_multi_agent_off_policy(
            env,
            "simple_speaker_listener_v4",
            make.__name__,
            members,
            ReplayBuffer(100_000),
            max_steps=steps // population,
            evo_steps=EVERY,
            eval_loop=1,
            selection_strategy=clock,
            mutation=mutations,
            verbose=False,
        )
    return {"seed": seed, "generations": clock.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=tuple(SETTINGS), default="matd3")
    parser.add_argument("--steps", type=float, default=8e5, help="environment steps of all members together")
    parser.add_argument("--population", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1, help="populations, one after the other")
    parser.add_argument("--episodes", type=int, default=96, help="that the fittest is measured in, per generation")
    parser.add_argument("--out", type=Path, help="default: results/agilerl_<algorithm>.json")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    packages = ("agilerl", "torch", "mpe2", "pettingzoo", "numpy")
    record = {
        "command": f"python tools/reference_agilerl.py --algorithm {options.algorithm} --steps {options.steps:g} "
        f"--population {options.population} --seeds {options.seeds} --episodes {options.episodes}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "cores": os.cpu_count(),
        "populations": [],
    }
    out = options.out or Path(__file__).parent.parent / "results" / f"agilerl_{options.algorithm}.json"
    for seed in range(options.seeds):
        done = train(options.algorithm, int(options.steps), options.population, seed, options.episodes)
        record["populations"].append(done)
        out.write_text(json.dumps(record) + "\n")
    print(out)


if __name__ == "__main__":
    main()
