"""What is drawn and told at the end of an evolution: curves of populations, the family tree, the closing table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.evolve.winner import WINNER, write_winner
from shoal.folder.layout import CURVES, MARL_EVAL, RETURN
from shoal.folder.lineage import ancestry, best_of_populations, evolved, lost_populations, read, winner
from shoal.folder.marl_eval import write_evaluations
from shoal.folder.tables import Entry
from shoal.report import canvas
from shoal.report.curves import FIGURES, Line, curves, draw_lines, figures_of, other_returns, words

if TYPE_CHECKING:
    import pandas as pd

    from shoal.run.plan import Plan

PICTURE = "lineage.png"


BEST, MEAN = "best of a population", "its mean"
PANELS = 8  # of hyperparameters and architectures in the picture


def returns_of(entries: Sequence[Entry], members: int, metric: str = RETURN) -> tuple[np.ndarray, np.ndarray]:
    """Steps ``[C]`` and a metric of all members, ``[S, M, C]``; NaN where one was not evaluated, or diverged."""
    steps, means = curves(entries, metric)
    return steps, means.reshape(-1, members, len(steps))


def _whole(returns: np.ndarray) -> np.ndarray:
    """Which populations had somebody to evaluate at every step, ``[S]``; a stopped training has not come so far."""
    return np.isfinite(returns).any(axis=1).all(axis=-1)


def _reduced(returns: np.ndarray) -> dict[str, np.ndarray]:
    """The best and the mean of each population that is whole, ``[S, C]``."""
    whole = returns[_whole(returns)]
    return {BEST: np.nanmax(whole, axis=1), MEAN: np.nanmean(whole, axis=1)}


def draw_curves(path: Path, entries: Sequence[Entry], members: int, title: str, objective: str = RETURN) -> None:
    """``curves.png``: the best and the mean of the populations, IQM and 95 % band over them, and each one thin."""
    steps, returns = returns_of(entries, members, objective)
    if not len(steps):
        return
    colours = ("#31688e", "#f08a24")
    pairs = zip(_reduced(returns).items(), colours, strict=True)
    lines = [Line(name, values, colour, each=True) for (name, values), colour in pairs if len(values)]
    living, gone = _whole(returns), lost_populations(entries, members, objective)
    lost = f" ({len(gone)} of them diverged, left out)" if gone else ""
    note = f"IQM over {len(returns)} populations of {members} members{lost}, 95 % bootstrap interval; thin: each one"
    note += "; means are of members that live" if not np.isfinite(returns[living]).all() else ""
    texts = {"xlabel": "environment steps of a member", "ylabel": f"{words(objective)} (greedy evaluation)"}
    draw_lines(path, steps, lines, note, title=title, **texts)


def closing_table(entries: Sequence[Entry], members: int, objective: str = RETURN) -> list[list[str]]:
    """Rows of ``what, populations, first, last (95 % interval), best population, absolute``, under a header.

    All figures are of the objective; the other returns of the last evaluation stand in columns of their own.
    """
    _, returns = returns_of(entries, members, objective)
    whole = _whole(returns)
    gone = lost_populations(entries, members, objective)
    lost = f" ({len(gone)} diverged)" if gone else ""
    dead = int((~np.isfinite(returns[whole][..., -1:])).sum())  # members that are in no mean of the last evaluation
    absolute = [
        np.mean(values)
        for entry in best_of_populations(entries, members, objective)
        if "absolute" in entry
        for population, values in zip(entry["runs"], entry["metrics"][objective], strict=True)
        if whole[population]
    ]
    others = {
        title: _last(entries, members, objective, name) for name, title in other_returns(entries, objective).items()
    }
    table = [["", "populations", *(name.removesuffix(" run") for name in FIGURES), *others]]
    for name, values in _reduced(returns).items():
        left_out = f" ({dead} members diverged)" if dead and name == MEAN else ""
        scores = np.array(absolute if name == BEST else [])
        figures = figures_of(values, scores, [columns[name] for columns in others.values()])
        table.append([name, f"{len(returns)} of {members}{lost}{left_out}", *figures])
    return table


def _last(entries: Sequence[Entry], members: int, objective: str, metric: str) -> dict[str, np.ndarray]:
    """A metric in the last evaluation of each population that is whole, ``[S]``: of the best member, and the mean."""
    returns = returns_of(entries, members, objective)[1]
    whole = _whole(returns)
    scores, values = returns[whole][..., -1], returns_of(entries, members, metric)[1][whole][..., -1]  # [S, M]
    best = np.where(np.isfinite(scores), scores, -np.inf).argmax(axis=1)
    return {BEST: values[np.arange(len(best)), best], MEAN: np.nanmean(values, axis=1)}


def draw(path: Path, table: pd.DataFrame, title: str) -> None:
    """``lineage.png``: hyperparameters over the rounds, and the family tree of the winner's population."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    first = winner(table)
    line = ancestry(table, first)
    own = table[table["population"] == first["population"]].copy()
    names = [name for name in evolved(table) if not name.endswith("/activation")]
    names = sorted(names, key=lambda name: own[name].nunique() == 1)[:PANELS]  # what has changed, above all
    finite = own["fitness"][np.isfinite(own["fitness"])]
    low, high = (finite.quantile(0.05), finite.quantile(0.95)) if len(finite) else (0.0, 1.0)
    shades = Normalize(low, high if high > low else low + 1.0)
    figure = canvas.figure(figsize=(13, max(5.0, 1.7 * len(names))), dpi=130, layout="constrained")
    grid = figure.add_gridspec(max(1, len(names)), 2, width_ratios=(1, 1.3))
    bounded = own["fitness"].clip(lower=low)
    for index, name in enumerate(names):
        axes = figure.add_subplot(grid[index, 0])
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
    _draw_tree(figure.add_subplot(grid[:, 1]), own, line, shades, bounded)
    who = f"in which member {first['member']} won" if np.isfinite(first["fitness"]) else "in which nobody was left"
    figure.suptitle(f"{title}: population {first['population']}, {who}", fontsize=11)
    bar = figure.colorbar(ScalarMappable(shades, "viridis"), ax=figure.axes, shrink=0.6, pad=0.01)
    bar.set_label("fitness")
    for axes in figure.axes[:-1]:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    canvas.save(figure, path)


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


def report(plan: Plan, config: Mapping[str, Any], entries: Sequence[Entry], algorithm: str) -> None:
    """All that a folder gets in the end: evaluations and curves of populations, the family tree, the winner."""
    assert plan.rules is not None
    folder, members, env, objective = plan.folder, plan.rules.population, config["env"]["name"], plan.objective
    populations = dataclasses.replace(plan.runs, seed=plan.runs.seed[::members], point=plan.runs.point[::members])
    best = best_of_populations(entries, members, objective)
    lost = np.isin(np.arange(len(populations.seed)), list(lost_populations(entries, members, objective)))
    write_evaluations(folder / MARL_EVAL, best, populations, env, algorithm, lost)
    title = f"{algorithm} on {env}, evolve={config['evolve']['scheme']}"
    draw_curves(folder / CURVES, entries, members, title, objective)
    table = read(folder)
    if len(table):
        draw(folder / PICTURE, table, f"{algorithm} on {env}")
        if np.isfinite(winner(table)["fitness"]):
            write_winner(folder / WINNER, config, winner(table))
        else:
            (folder / WINNER).unlink(missing_ok=True)  # of a shorter training
