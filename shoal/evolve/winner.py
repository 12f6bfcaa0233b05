"""The winner of an evolution as a recipe: the member with the highest fitness in the last round, of all populations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from shoal.folder import writing
from shoal.folder.lineage import evolved, read, winner

if TYPE_CHECKING:
    import pandas as pd

WINNER = "winner.yaml"


def living_networks(row: pd.Series, algo: Mapping[str, Any]) -> dict[str, Any]:
    """Plain networks of the size that lives in the elastic ones of a member, as settings under ``algo``."""
    networks = {}
    for column in row.index:
        name, _, what = str(column).rpartition("/")
        if what != "depth":
            continue
        where = name if isinstance(algo.get(name), Mapping) else "q"  # a critic whose inputs `algo.critic` chooses
        activation = row.get(f"{name}/activation", algo[where]["activation"])
        networks[where] = dict(algo[where]) | {
            "widths": [int(row[f"{name}/width_{layer}"]) for layer in range(int(row[column]))],
            "activation": activation,
            "elastic": False,
            "mutable_activation": False,
        }
    return networks


def write_winner(path: Path, config: Mapping[str, Any], row: pd.Series) -> None:
    """``winner.yaml``: the training's configuration as a recipe, with the winner's hyperparameters and architecture."""
    hypers = {name: float(f"{row.get(name, value):.6g}") for name, value in config["hypers"].items()}
    networks = living_networks(row, config["algo"])
    named = [{"algorithm": config["algorithm"]}] if config["algorithm"] else []
    recipe = {
        "defaults": ["schema", "hydra_defaults", {"env": config["env"]["name"]}, {"logger": "none"}, *named, "_self_"],
        "env": {"kwargs": config["env"]["kwargs"]},
        "seeds": int(config["seeds"]),
        "total_steps": float(config["total_steps"]),
        "evaluation": config["evaluation"],
        "precision": config["precision"],
        "algo": {k: v for k, v in config["algo"].items() if k != "total_steps"} | networks,
        "hypers": hypers,
    }
    about = (
        f"# The winner of {config['evolve']['scheme']}: population {row['population']}, member {row['member']},"
        f" fitness {row['fitness']:.6g} in round {row['round']}.\n"
        f"# python <algorithm file> --config-dir <this folder> --config-name {path.stem}\n"
    )
    writing.write(path, about + yaml.safe_dump(recipe, sort_keys=False))


def said(folder: Path) -> str:
    """One line about the winner."""
    table = read(folder)
    row = winner(table)
    if not np.isfinite(row["fitness"]):
        return "no winner: all members have diverged, or play without a finite return, in the last round"
    shown = {name: f"{row[name]:.4g}" if isinstance(row[name], float) else row[name] for name in evolved(table)}
    values = " ".join(f"{name}={value}" for name, value in shown.items())
    return (
        f"winner: run {row['run']} (population {row['population']}, member {row['member']}), fitness "
        f"{row['fitness']:.2f}, {values}; as a recipe: --config-dir {folder} --config-name {Path(WINNER).stem}"
    )
