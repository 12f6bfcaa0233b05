"""What an evolution leaves behind: ``lineage.csv``, its picture, and the winner as a recipe.

A population counts as one seed wherever seeds are compared: by the best of its members at every evaluation, and by the
absolute metric of that member which was the best before. The winner is the member with the highest fitness in the last
round, of all populations. Nothing here needs JAX.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from shoal.folder import reading, writing
from shoal.folder.records import LINEAGE, RETURN, figure, whole_lines
from shoal.report.report import others, words, write_evaluations
from shoal.report.statistics import bootstrap, iqm

if TYPE_CHECKING:
    import pandas as pd

    from shoal.evolve.generations import Round
    from shoal.evolve.schemes import Rules
    from shoal.run.runner import Plan

WINNER, PICTURE = "winner.yaml", "lineage.png"
ABOUT = ("run", "population", "env_steps", "round", "member", "parent", "mutation", "changed")
PANELS = 8  # of hyperparameters and architectures in the picture


def members_of(config: Mapping[str, Any]) -> int:
    """How many members a population of a saved training has; 1 without evolution."""
    scheme = (config.get("evolve") or {}).get("scheme", "none")
    return 1 if scheme == "none" else int(config["population"])


def rows(told: Round, runs: np.ndarray, rules: Rules, number: int, env_steps: int) -> list[dict[str, str]]:
    """The rows of ``lineage.csv`` for one round, the ``number``-th; ``told`` is on the host."""
    from shoal.evolve.evolve import Kind
    from shoal.nn.elastic import ACTIVATION_NAMES

    names, members = list(rules.ranges), rules.population  # a program's results are sorted, ranges are not
    lines = []
    for position, run in enumerate(runs):
        parent, changed = int(told.parent[position]), int(told.changed[position])
        line = {
            "run": str(run),
            "population": str(run // members),
            "env_steps": str(env_steps),
            "round": str(number),
            "member": str(run % members),
            "parent": str(parent) if parent >= 0 else "",
            "mutation": Kind(int(told.kind[position])).name.lower(),
            "changed": names[changed] if changed >= 0 else "",
        }
        line |= {name: figure(np.float32(told.hypers[name][position])) for name in names}
        for name, values in told.architecture.items():
            value = int(values[position])
            line[name] = ACTIVATION_NAMES[value] if name.endswith("/activation") else str(value)
        line["fitness"] = figure(np.float32(told.fitness[position]))
        lines.append(line)
    return lines


def read(folder: Path) -> pd.DataFrame:
    """``lineage.csv`` as a table; a fitness of minus infinity is that of a member that diverged."""
    kinds = dict.fromkeys(ABOUT, int) | {"parent": float, "mutation": str, "changed": str, "fitness": float}
    lines = whole_lines(folder / LINEAGE)
    if not lines:
        raise reading.mistake(f"{folder / LINEAGE}: there is no round in it yet")
    empty = {"parent": [""], "fitness": [""]}
    return reading.table(folder / LINEAGE, lines, kinds, keep_default_na=False, na_values=empty)


def evolved(table: pd.DataFrame) -> list[str]:
    """The columns of hyperparameters and architectures."""
    return [str(name) for name in table if name not in (*ABOUT, "fitness")]


def winner(table: pd.DataFrame) -> pd.Series:
    """The row of the best member of the last round."""
    last = table[table["round"] == table["round"].max()]
    return last.loc[last["fitness"].idxmax()]


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


def best_of_populations(
    entries: Sequence[dict[str, Any]], members: int, objective: str = RETURN
) -> list[dict[str, Any]]:
    """Evaluations of runs as evaluations of populations: the best member's at each step, by the objective.

    The absolute metric is that of the slot with the best evaluation before, whichever plays best in it.
    """
    best: dict[int, float] = {}  # of each run
    reduced = []
    for entry in entries:
        returns = np.asarray(entry["metrics"][objective], float).mean(axis=-1)
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


def curves(entries: Sequence[dict[str, Any]], members: int, metric: str = RETURN) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[C]`` and a metric of all members, ``[S, M, C]``; NaN where one was not evaluated, or diverged."""
    entries = [entry for entry in entries if "absolute" not in entry]
    steps = sorted({entry["env_steps"] for entry in entries})
    count = 1 + max((max(entry["runs"]) for entry in entries), default=-1)
    returns = np.full((count, len(steps)), np.nan)
    for entry in entries:
        values = np.asarray(entry["metrics"][metric], float).mean(axis=-1)
        returns[entry["runs"], steps.index(entry["env_steps"])] = values
        returns[entry.get("diverged", []), steps.index(entry["env_steps"])] = np.nan
    returns[~np.isfinite(returns)] = np.nan
    return np.array(steps), returns.reshape(-1, members, len(steps))


def _whole(returns: np.ndarray) -> np.ndarray:
    """Which populations had somebody to evaluate at every step, ``[S]``."""
    return np.isfinite(returns).any(axis=1).all(axis=-1)


def _reduced(returns: np.ndarray) -> dict[str, np.ndarray]:
    """The best and the mean of each population that is whole, ``[S, C]``."""
    whole = returns[_whole(returns)]
    return {"best of a population": np.nanmax(whole, axis=1), "its mean": np.nanmean(whole, axis=1)}


def draw_curves(
    path: Path, entries: Sequence[dict[str, Any]], members: int, title: str, objective: str = RETURN
) -> None:
    """``curves.png``: the best and the mean of the populations, IQM and 95 % band over them, and each one thin."""
    plt = _pyplot()
    steps, returns = curves(entries, members, objective)
    if not len(steps):
        return
    figure_, axes = plt.subplots(figsize=(8, 4.8), dpi=150)
    for (name, values), colour in zip(_reduced(returns).items(), ("#31688e", "#f08a24"), strict=True):
        if not len(values):
            continue
        axes.plot(steps, values.T, color=colour, linewidth=0.6, alpha=0.5)
        axes.plot(steps, iqm(values), color=colour, linewidth=2, label=name)
        if len(values) > 1:
            axes.fill_between(steps, *bootstrap(values), color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="environment steps of a member", ylabel=f"{words(objective)} (greedy evaluation)", title=title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    if axes.lines:
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    living = _whole(returns)
    lost = f" ({(~living).sum()} of them diverged, left out)" if not living.all() else ""
    note = f"IQM over {len(returns)} populations of {members} members{lost}, 95 % bootstrap interval; thin: each one"
    note += "; means are of members that live" if not np.isfinite(returns[living]).all() else ""
    axes.text(0.01, 0.99, note, transform=axes.transAxes, fontsize=7, va="top", alpha=0.6)
    _save(figure_, path)


def closing_table(entries: Sequence[dict[str, Any]], members: int, objective: str = RETURN) -> list[list[str]]:
    """Rows of ``what, populations, first, last (95 % interval), best population, absolute``, under a header.

    All figures are of the objective; the other returns of the last evaluation stand in columns of their own.
    """
    _, returns = curves(entries, members, objective)
    whole = _whole(returns)
    lost = f" ({(~whole).sum()} diverged)" if not whole.all() else ""
    dead = int((~np.isfinite(returns[whole][..., -1:])).sum())  # members that are in no mean of the last evaluation
    absolute = [
        np.mean(values)
        for entry in best_of_populations(entries, members, objective)
        if "absolute" in entry
        for population, values in zip(entry["runs"], entry["metrics"][objective], strict=True)
        if whole[population]
    ]
    more = {title: _last(entries, members, objective, metric) for metric, title in others(entries, objective).items()}
    table = [["", "populations", "first", "last", "95 %", "best", "absolute", *more]]
    for name, values in _reduced(returns).items():
        if not len(values):
            table.append([name, f"{len(returns)} of {members}{lost}", *["-"] * (5 + len(more))])
            continue
        low, high = bootstrap(values[:, -1])
        left_out = f" ({dead} members diverged)" if dead and name == "its mean" else ""
        score = f"{iqm(np.array(absolute)):.2f}" if absolute and name.startswith("best") else "-"
        table.append(
            [
                name,
                f"{len(returns)} of {members}{lost}{left_out}",
                f"{iqm(values[:, 0]):.2f}",
                f"{iqm(values[:, -1]):.2f}",
                f"{low:.2f} .. {high:.2f}",
                f"{values[:, -1].max():.2f}",
                score,
                *(f"{iqm(columns[name]):.2f}" for columns in more.values()),
            ]
        )
    return table


def _last(entries: Sequence[dict[str, Any]], members: int, objective: str, metric: str) -> dict[str, np.ndarray]:
    """A metric in the last evaluation of each population that is whole, ``[S]``: of the best member, and the mean."""
    returns = curves(entries, members, objective)[1]
    whole = _whole(returns)
    scores, values = returns[whole][..., -1], curves(entries, members, metric)[1][whole][..., -1]  # [S, M]
    best = np.where(np.isfinite(scores), scores, -np.inf).argmax(axis=1)
    return {"best of a population": values[np.arange(len(best)), best], "its mean": np.nanmean(values, axis=1)}


def draw(path: Path, table: pd.DataFrame, title: str) -> None:
    """``lineage.png``: hyperparameters over the rounds, and the family tree of the winner's population."""
    plt = _pyplot()
    first = winner(table)
    line = ancestry(table, first)
    own = table[table["population"] == first["population"]].copy()
    names = [name for name in evolved(table) if not name.endswith("/activation")]
    names = sorted(names, key=lambda name: own[name].nunique() == 1)[:PANELS]  # what has changed, above all
    finite = own["fitness"][np.isfinite(own["fitness"])]
    low, high = (finite.quantile(0.05), finite.quantile(0.95)) if len(finite) else (0.0, 1.0)
    shades = plt.Normalize(low, high if high > low else low + 1.0)
    figure_ = plt.figure(figsize=(13, max(5.0, 1.7 * len(names))), dpi=130, layout="constrained")
    grid = figure_.add_gridspec(max(1, len(names)), 2, width_ratios=(1, 1.3))
    bounded = own["fitness"].clip(lower=low)
    for index, name in enumerate(names):
        axes = figure_.add_subplot(grid[index, 0])
        jitter = (own["member"] / max(1, own["member"].max()) - 0.5) * 0.6
        axes.scatter(own["round"] + jitter, own[name], c=bounded, norm=shades, cmap="viridis", s=9, linewidths=0)
        axes.plot(line["round"], line[name], color="#d62728", linewidth=1.5)
        if (own[name] > 0).all() and "/" not in name:
            axes.set_yscale("log")
        axes.set_ylabel(name)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if index == 0:
            axes.set_title("hyperparameters; red: the winner's line", fontsize=10)
        if index + 1 == len(names):
            axes.set_xlabel("round")
    _draw_tree(figure_.add_subplot(grid[:, 1]), own, line, shades, bounded)
    who = f"in which member {first['member']} won" if np.isfinite(first["fitness"]) else "in which nobody was left"
    figure_.suptitle(f"{title}: population {first['population']}, {who}", fontsize=11)
    bar = figure_.colorbar(plt.cm.ScalarMappable(shades, "viridis"), ax=figure_.axes, shrink=0.6, pad=0.01)
    bar.set_label("fitness")
    for axes in figure_.axes[:-1]:
        axes.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    _save(figure_, path)


def _draw_tree(axes: Any, own: pd.DataFrame, line: pd.DataFrame, shades: Any, bounded: pd.Series) -> None:
    """Members by rank, round after round, each joined to its parent."""
    from matplotlib.collections import LineCollection

    own["rank"] = own.groupby("round")["fitness"].rank(ascending=False, method="first")
    place = {(r, m): rank for r, m, rank in zip(own["round"], own["member"], own["rank"], strict=True)}
    joined = own[own["parent"].notna()]
    segments = [
        [(r - 1, place[r - 1, int(p)]), (r, rank)]
        for r, p, rank in zip(joined["round"], joined["parent"], joined["rank"], strict=True)
        if (r - 1, int(p)) in place
    ]
    axes.add_collection(LineCollection(segments, colors="0.6", linewidths=0.5, alpha=0.6))
    axes.scatter(own["round"], own["rank"], c=bounded, norm=shades, cmap="viridis", s=16, linewidths=0, zorder=3)
    ranks = [place[r, m] for r, m in zip(line["round"], line["member"], strict=True)]
    axes.plot(line["round"], ranks, color="#d62728", linewidth=2, zorder=4)
    crowded = len(line) > 25
    for r, rank, kind, changed in zip(line["round"], ranks, line["mutation"], line["changed"], strict=True):
        if kind not in ("start", "kept", "none", "elite") and not crowded:
            text = changed or kind
            style = {"fontsize": 7, "color": "#d62728", "rotation": 35, "zorder": 5}
            axes.annotate(text, (r, rank), xytext=(2, 4), textcoords="offset points", **style)
    axes.set_ylim(own["rank"].max() + 0.5, 0.25)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="round", ylabel="rank in the population")
    axes.set_title("family tree; red: the winner's line and its mutations", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


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


def report(plan: Plan, config: Mapping[str, Any], entries: Sequence[dict[str, Any]], algorithm: str) -> None:
    """All that a folder gets in the end: evaluations and curves of populations, the family tree, the winner."""
    assert plan.rules is not None
    folder, members, env, objective = plan.folder, plan.rules.population, config["env"]["name"], plan.objective
    populations = dataclasses.replace(plan.runs, seed=plan.runs.seed[::members], point=plan.runs.point[::members])
    best = best_of_populations(entries, members, objective)
    write_evaluations(folder / "evaluations.json", best, populations, env, algorithm)
    title = f"{algorithm} on {env}, evolve={config['evolve']['scheme']}"
    draw_curves(folder / "curves.png", entries, members, title, objective)
    table = read(folder)
    if len(table):
        draw(folder / PICTURE, table, f"{algorithm} on {env}")
        if np.isfinite(winner(table)["fitness"]):
            write_winner(folder / WINNER, config, winner(table))
        else:
            (folder / WINNER).unlink(missing_ok=True)  # of a shorter training


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


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure_: Any, path: Path) -> None:
    picture = io.BytesIO()
    figure_.savefig(picture, format="png")
    _pyplot().close(figure_)
    writing.write(path, picture.getvalue())
