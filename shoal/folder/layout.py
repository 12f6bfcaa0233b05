"""What stands in the folder of a training: the names of its files and columns, and facts of its configuration.

Nothing here needs JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = "config.yaml"
METRICS = "metrics.csv"  # a row per run and chunk
EVALUATIONS = "evaluations.jsonl"  # a line per batch and evaluation, with every episode
LINEAGE = "lineage.csv"  # of an evolution: a row per run and round
MARL_EVAL = "evaluations.json"  # the evaluations in the layout of marl-eval, once a training has ended or stopped
PROVENANCE = "provenance.json"
CURVES = "curves.png"

# The columns of METRICS, in their order: RUN, SEED, ENV_STEPS, RETURN, the swept hyperparameters, the metrics of
# training, EVALUATION + <metric> for each mean over episodes, BEST_RETURN, DIVERGED, HYPERS + <name> for each
# hyperparameter that changes while training. LINEAGE has RUN and ENV_STEPS in the first and the third column too.
RUN, SEED, ENV_STEPS = "run", "seed", "env_steps"
RETURN = "episode_return"  # of an agent, the mean over all agents
EVALUATION, HYPERS = "evaluation/", "hypers/"
BEST_RETURN, DIVERGED = "best_return", "diverged"

SWEEP_FIELDS = ("mode", "num", "seed", "paired")  # of `sweep` in the configuration; all others are hyperparameters


def algorithm_name(config: Mapping[str, Any]) -> str:
    """What reports call the algorithm: its name, or that of the user's algorithm file."""
    named = Path(config["file"]).name == config["recipe"]
    return str(config["algorithm" if named else "recipe"])


def objective_of(config: Mapping[str, Any]) -> str:
    """The metric that a training is ranked by; a folder without this setting was ranked by the mean return."""
    return str((config.get("evaluation") or {}).get("objective", RETURN))


def short_name(objective: str) -> str:
    """What a line calls figures of the objective."""
    return "return" if objective == RETURN else objective


def swept_names(config: Mapping[str, Any]) -> list[str]:
    """The names of the swept hyperparameters."""
    return list(swept_values(config.get("sweep") or {}))


def swept_values(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """The values to sweep, by hyperparameter: ``sweep`` without its other fields."""
    return {str(name): value for name, value in sweep.items() if name not in SWEEP_FIELDS and value is not None}


def members_of(config: Mapping[str, Any]) -> int:
    """How many members a population of a saved training has; 1 without evolution."""
    scheme = (config.get("evolve") or {}).get("scheme", "none")
    return 1 if scheme == "none" else int(config["population"])
