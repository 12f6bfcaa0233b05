"""Folders as trainings leave them behind, without the training: for tests of what reads them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml


def training(
    folder: Path,
    name: str = "ippo",
    env: str = "mpe/simple_spread",
    seeds: int = 4,
    chunks: int = 6,
    episodes: int = 4,
    steps: int = 1000,
    skill: float = 1.0,
    sweep: dict[str, list[float]] | None = None,
    metrics: tuple[str, ...] = ("episode_return", "episode_length"),
    absolute: bool = True,
    seed: int = 0,
    **settings: Any,
) -> Path:
    """Runs that learn towards ``skill``, more noisily the worse they are."""
    folder.mkdir(parents=True)
    points: list[dict[str, float]] = [{}]
    for key, values in (sweep or {}).items():
        points = [point | {key: value} for point in points for value in values]
    runs = len(points) * seeds
    config = {
        "file": f"{name}/{name}_ff",
        "recipe": f"{name}_ff",
        "algorithm": name,
        "env": {"name": env, "kwargs": {}},
        "seeds": seeds,
        "seed": seed,
        "total_steps": steps * chunks,
        "algo": {"num_envs": 16, "total_steps": steps * chunks},
        "hypers": {"lr": 0.001},
        "sweep": {"mode": "grid", "num": 10, "seed": 0, **(sweep or {})},
        "run": {"dir": str(folder)},
    }
    for key, value in settings.items():
        *path, last = key.split("__")
        place = config
        for part in path:
            place = place[part]  # type: ignore[assignment]
        place[last] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    rng = np.random.default_rng([len(name), len(env), seed, int(100 * skill)])
    best = skill + 0.15 * rng.normal(size=runs) - 0.1 * np.repeat(np.arange(len(points)), seeds)
    pace = rng.uniform(2, 5, runs)

    def played(progress: float, count: int) -> dict[str, list]:
        mean = best * (1 - np.exp(-pace * progress)) - 1
        values = mean[:, None] + 0.1 * rng.normal(size=(runs, count))
        tables = {"episode_return": values, "episode_length": np.full((runs, count), 25.0)}
        tables |= {metric: np.clip(values + 1, 0, 1) for metric in metrics if metric not in tables}
        return {metric: tables[metric].round(5).tolist() for metric in metrics}

    rows, lines = [], []
    for chunk in range(1, chunks + 1):
        env_steps = chunk * steps
        lines.append(
            {"batch": 0, "env_steps": env_steps, "runs": list(range(runs)), "metrics": played(chunk / chunks, episodes)}
        )
        for run in range(runs):
            rows.append({"run": run, "seed": seed + run % seeds, "env_steps": env_steps, **points[run // seeds]})
    if absolute:
        last = {"batch": 0, "env_steps": steps * chunks, "runs": list(range(runs))}
        lines.append({"absolute": True, **last, "metrics": played(1.0, 10 * episodes)})
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    facts = {
        "command": ["python", "x.py"],
        "packages": {"jax": "0.10.2"},
        "devices": ["cpu:0"],
        "runs": runs,
        "env_steps_per_run": steps * chunks,
        "session": {"seconds": 12.5, "compile_seconds": 6.25, "memory_bytes": 2**26, "steps_per_second": 50_000},
    }
    (folder / "provenance.json").write_text(json.dumps(facts))
    return folder


def marl_eval(
    path: Path, name: str, task: str, seeds: int = 4, chunks: int = 6, key: str = "return", **extra: Any
) -> Path:
    """A file in marl-eval's layout, as BenchMARL (lists of episodes) or Mava (means, ``elapsed_time``) write it."""
    rng = np.random.default_rng(len(name))
    environment, task = task.split("/")
    runs: dict[str, Any] = {}
    for seed in range(seeds):
        record: dict[str, Any] = {"absolute_metrics": {}}
        for chunk in range(chunks):
            values = (rng.normal(size=4) * 0.1 - np.exp(-chunk / 2)).tolist()
            listed = [float(np.mean(values))] if "elapsed" in extra else values
            record[f"step_{chunk}"] = {"step_count": 1000 * (chunk + 1), key: listed}
            if "elapsed" in extra:
                record[f"step_{chunk}"]["elapsed_time"] = chunk * extra["elapsed"]
        record["absolute_metrics"] = {key: [max(listed)]}
        runs[f"seed_{seed}"] = record
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({environment: {task: {name: runs}}}))
    return path
