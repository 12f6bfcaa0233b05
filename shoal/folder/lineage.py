"""``lineage.csv``, which an evolution leaves behind: a row per run and round, how it came about and what it came to.

A population counts as one seed wherever seeds are compared: by the best of its members at every evaluation, and by the
absolute metric of that member which was the best before. Nothing here needs JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import UserError
from shoal.folder.layout import ENV_STEPS, LINEAGE, RETURN, RUN
from shoal.folder.tables import csv_table, means_of, whole_lines

if TYPE_CHECKING:
    import pandas as pd


ABOUT = (RUN, "population", ENV_STEPS, "round", "member", "parent", "mutation", "changed")
FITNESS = "fitness"  # the last column; between these and it the hyperparameters and architectures that evolve


def read(folder: Path) -> pd.DataFrame:
    """``lineage.csv`` as a table; a fitness of minus infinity is that of a member that diverged."""
    kinds = dict.fromkeys(ABOUT, int) | {"parent": float, "mutation": str, "changed": str, FITNESS: float}
    lines = whole_lines(folder / LINEAGE)
    if not lines:
        raise UserError(f"{folder / LINEAGE}: there is no round in it yet")
    empty = {"parent": [""], FITNESS: [""]}
    return csv_table(folder / LINEAGE, lines, kinds, keep_default_na=False, na_values=empty)


def evolved(table: pd.DataFrame) -> list[str]:
    """The columns of hyperparameters and architectures."""
    return [str(name) for name in table if name not in (*ABOUT, FITNESS)]


def winner(table: pd.DataFrame) -> pd.Series:
    """The row of the best member of the last round."""
    last = table[table["round"] == table["round"].max()]
    return last.loc[last[FITNESS].idxmax()]


def ancestry(table: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    """The rows from a member back to the one that its line began with, the oldest first."""
    own = table[table["population"] == row["population"]].set_index(["round", "member"])
    number, member, line = int(row["round"]), int(row["member"]), []
    while (number, member) in own.index:
        found = own.loc[(number, member)]
        line.append({"round": number, "member": member, **found})
        if np.isnan(found["parent"]):
            break
        number, member = number - 1, int(found["parent"])
    import pandas as pd

    return pd.DataFrame(line[::-1])


def lost_populations(entries: Sequence[dict[str, Any]], members: int, objective: str = RETURN) -> set[int]:
    """The populations of which nobody was left at an evaluation."""
    lost: set[int] = set()
    for entry in entries:
        if "absolute" not in entry:
            living = np.isfinite(means_of(entry, objective)) & ~np.isin(entry["runs"], entry.get("diverged", []))
            population = np.asarray(entry["runs"]) // members
            lost |= {*population.tolist()} - {*population[living].tolist()}
    return lost


def best_of_populations(
    entries: Sequence[dict[str, Any]], members: int, objective: str = RETURN
) -> list[dict[str, Any]]:
    """Evaluations of runs as evaluations of populations: the best member's at each step, by the objective.

    The absolute metric is that of the slot with the best evaluation before, whichever plays best in it.
    """
    best: dict[int, float] = {}  # of each run
    reduced = []
    for entry in entries:
        returns = means_of(entry, objective)
        returns = np.where(np.isfinite(returns) & ~np.isin(entry["runs"], entry.get("diverged", [])), returns, -np.inf)
        if "absolute" in entry:
            returns = np.array([best.get(run, -np.inf) for run in entry["runs"]])
        else:
            best |= {run: max(best.get(run, -np.inf), value) for run, value in zip(entry["runs"], returns, strict=True)}
        population = np.asarray(entry["runs"]) // members
        chosen = [int(np.where(population == p, returns, -np.inf).argmax()) for p in dict.fromkeys(population.tolist())]
        chosen = [
            position if population[position] == p else int(np.argmax(population == p))  # nobody is left
            for position, p in zip(chosen, dict.fromkeys(population.tolist()), strict=True)
        ]
        metrics = {name: [values[position] for position in chosen] for name, values in entry["metrics"].items()}
        reduced.append(entry | {"runs": [int(population[position]) for position in chosen], "metrics": metrics})
    return reduced
