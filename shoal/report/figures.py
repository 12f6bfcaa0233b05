"""The figures of a report as pictures: PNG and SVG of everything that the page draws, for papers and slides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.folder import writing
from shoal.report import canvas
from shoal.report.summary import Json

# Told apart also by readers who see few colours; from the seventh on lines are dashed.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#c0569a", "#b8860b", "#3f9fd8"),
    *("#4b3fa0", "#8f2a56", "#7d7d22", "#8b5a2b", "#3a8f84", "#6b7480"),
)
PAIRS = 15  # that are drawn of all
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "shoal",
    "figure.constrained_layout.use": True,
}


def save(data: Json, folder: Path) -> list[Path]:
    """Draw everything into ``folder``."""
    from matplotlib import rc_context

    writing.make_folder(folder)
    written = []
    with rc_context(STYLE):
        for name, figure in _every(data):
            for path in (folder / f"{name}.png", folder / f"{name}.svg"):
                stamp: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
                canvas.save(figure, path, dpi=150, metadata=stamp)
                written.append(path)
    return written


def _every(data: Json) -> Iterator[tuple[str, Any]]:
    block = data["metrics"][0]
    together = block["together"]
    scale = f"{'normalised ' if block['normalised'] else ''}{_plain(block['name'].replace('_', ' '))}"
    if together:
        if together["efficiency"]:
            yield "sample_efficiency", _efficiency(data, together, scale)
        yield "profiles", _profiles(data, together)
        yield "aggregates", _aggregates(data, together, scale)
        if together["improvement"]:
            yield "improvement", _improvement(data, together)
    yield "tasks", _tasks(data, block, single=False)
    yield "runs", _tasks(data, block, single=True)
    for number, one in enumerate(block["sensitivity"][:24]):
        yield f"sensitivity_{number}", _sensitivity(one, scale.removeprefix("normalised "))
    if any(row["rate"] for row in data["speed"]):
        yield "speed", _speed(data)


def _plain(text: str) -> str:
    """A name as it is: dollars would be formulas."""
    return text.replace("$", r"\$")


def _short(text: str, most: int = 40) -> str:
    return _plain(text if len(text) <= most else f"{text[: most - 1]}…")


def _name(data: Json, number: int) -> str:
    """An algorithm, and how many of its runs are in no figure."""
    lost = data["diverged"][number]
    return _short(data["algorithms"][number]) + (f" ({lost} diverged)" if lost else "")


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": "--" if number >= 6 else "-"}


def _steps(axes: Any) -> None:
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _curve(axes: Any, data: Json, one: Json) -> None:
    look = _look(one["algorithm"])
    marker = "o" if len(one["x"]) == 1 else None
    axes.plot(one["x"], one["y"], linewidth=1.8, marker=marker, label=_name(data, one["algorithm"]), **look)
    axes.fill_between(one["x"], one["low"], one["high"], color=look["color"], alpha=0.16, linewidth=0)


def _efficiency(data: Json, together: Json, scale: str) -> Any:

    figure, axes = canvas.subplots(figsize=(6.4, 3.9))
    for one in together["efficiency"]:
        _curve(axes, data, one)
    axes.set(
        xlabel="environment steps", ylabel=f"{scale} (IQM)", title=f"sample efficiency, {len(together['tasks'])} tasks"
    )
    _steps(axes)
    axes.legend(fontsize=8)
    return figure


def _profiles(data: Json, together: Json) -> Any:

    figure, axes = canvas.subplots(figsize=(5.2, 3.9))
    for one in together["profiles"]:
        _curve(axes, data, one)
    axes.set(
        xlabel=r"score $\tau$", ylabel=r"share of runs above $\tau$", ylim=(-0.02, 1.02), title="performance profiles"
    )
    axes.legend(fontsize=8)
    return figure


def _interval(axes: Any, row: int, estimate: list[float], number: int) -> None:
    value, low, high = estimate
    colour = COLOURS[number % len(COLOURS)]
    axes.barh(row, high - low, left=low, height=0.55, color=colour, alpha=0.35, linewidth=0)
    axes.plot([value, value], [row - 0.36, row + 0.36], color=colour, linewidth=2.4)


def _aggregates(data: Json, together: Json, scale: str) -> Any:

    rows = together["aggregates"]
    names = list(rows[0]["values"])
    height = 1.3 + 0.34 * len(rows)
    figure, panels = canvas.subplots(1, len(names), figsize=(9.5, height), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        for position, row in enumerate(rows):
            _interval(axes, position, row["values"][name], row["algorithm"])
        axes.set_title(name if name == "IQM" else name.capitalize())
        axes.grid(axis="y", visible=False)
    labels = [_name(data, row["algorithm"]) for row in rows]
    panels[0].set_yticks(range(len(rows)), labels)
    panels[0].invert_yaxis()
    figure.supxlabel(scale, fontsize=9)
    return figure


def _improvement(data: Json, together: Json) -> Any:

    rows = together["improvement"]
    if len(rows) > PAIRS:  # the best with each other
        rows = [row for row in rows if row["x"] == rows[0]["x"]]
    figure, axes = canvas.subplots(figsize=(6, 1.2 + 0.32 * len(rows)))
    for position, row in enumerate(rows):
        _interval(axes, position, row["p"], row["x"])
    axes.axvline(0.5, color="0.4", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(rows)), [_short(data["algorithms"][row["x"]], 24) for row in rows])
    axes.set(xlim=(0, 1), xlabel="P(X > Y)", ylim=(len(rows) - 0.4, -0.6))
    right = axes.twinx()
    right.set(ylim=axes.get_ylim())
    right.set_yticks(range(len(rows)), [_short(data["algorithms"][row["y"]], 24) for row in rows])
    for one in (axes, right):
        one.grid(axis="y", visible=False)
    axes.set_title("probability of improvement")
    return figure


def _tasks(data: Json, block: Json, single: bool) -> Any:

    tasks = block["tasks"]
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, grid = canvas.subplots(rows, columns, figsize=(max(5.6, 3.8 * columns), 2.9 * rows), squeeze=False)
    for axes in grid.flat[len(tasks) :]:
        axes.set_visible(False)
    for axes, task in zip(grid.flat, tasks, strict=False):
        for one in task["curves"]:
            if single:
                for run in one["seeds"]:
                    axes.plot(one["x"], run["y"], linewidth=0.6, alpha=0.35, **_look(one["algorithm"]))
                axes.plot(
                    one["x"],
                    one["y"],
                    linewidth=1.6,
                    label=_name(data, one["algorithm"]),
                    **_look(one["algorithm"]),
                )
            else:
                _curve(axes, data, one)
        axes.set_title(_short(task["task"]))
        _steps(axes)
    for axes in grid[:, 0]:
        axes.set_ylabel(_plain(block["name"].replace("_", " ")))
    figure.supxlabel("environment steps", fontsize=9)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), fontsize=8)
    return figure


def _sensitivity(one: Json, scale: str) -> Any:

    names, points = one["names"], one["points"]
    levels = [
        sorted({point["values"][i] for point in points}, key=lambda v: (isinstance(v, str), v))
        for i in range(len(names))
    ]
    scores = np.array([point["score"][0] for point in points])
    figure, axes = canvas.subplots(figsize=(5.6, 3.6))
    axes.set_title(_short(f"{one['algorithm']} on {one['task']}", 60))
    if len(names) == 1:
        at = [levels[0].index(point["values"][0]) for point in points]
        low, high = (np.array([point["score"][i] for point in points]) for i in (1, 2))
        order = np.argsort(at)
        axes.vlines(at, low, high, color=COLOURS[0], alpha=0.35, linewidth=4)
        axes.plot(np.array(at)[order], scores[order], color=COLOURS[0], marker="o", linewidth=1)
        axes.set_xticks(range(len(levels[0])), [_level(value) for value in levels[0]])
        axes.set(xlabel=_plain(names[0]), ylabel=scale)
    elif len(names) == 2 and len(levels[0]) * len(levels[1]) == len(points):
        table = np.zeros((len(levels[1]), len(levels[0])))
        for point, score in zip(points, scores, strict=True):
            table[levels[1].index(point["values"][1]), levels[0].index(point["values"][0])] = score
        shown = axes.imshow(table, origin="lower", cmap="Blues", aspect="auto")
        axes.set_xticks(range(len(levels[0])), [_level(value) for value in levels[0]])
        axes.set_yticks(range(len(levels[1])), [_level(value) for value in levels[1]])
        axes.set(xlabel=_plain(names[0]), ylabel=_plain(names[1]))
        axes.grid(visible=False)
        figure.colorbar(shown, label=scale)
    else:
        _parallel(axes, names, levels, points, scores, scale)
    return figure


def _level(value: Any) -> str:
    return _short(value, 12) if isinstance(value, str) else f"{value:.3g}"


def _parallel(
    axes: Any, names: list[str], levels: list[list], points: list[Json], scores: np.ndarray, scale: str
) -> None:

    from matplotlib import colormaps

    share = (scores - scores.min()) / (np.ptp(scores) or 1.0)
    columns = []
    for i, values in enumerate(levels):
        own = [point["values"][i] for point in points]
        if any(isinstance(value, str) for value in values):
            columns.append([(values.index(value) + 0.5) / len(values) for value in own])
            continue
        numbers = np.array(own, float)
        if values[0] > 0 and values[-1] / values[0] >= 20:  # spans decades
            numbers = np.log(numbers)
        columns.append((numbers - numbers.min()) / (np.ptp(numbers) or 1.0))
    columns.append(share)
    for position in np.argsort(share):
        colour = colormaps["Blues"](0.2 + 0.8 * share[position])
        axes.plot([column[position] for column in columns], color=colour, linewidth=0.8 + share[position])
    ends = [f"{name}\n{_level(values[0])} to {_level(values[-1])}" for name, values in zip(names, levels, strict=True)]
    axes.set_xticks(
        range(len(columns)), [*map(_plain, ends), f"{scale}\n{scores.min():.3g} to {scores.max():.3g}"], fontsize=8
    )
    axes.set_yticks([])


def _speed(data: Json) -> Any:
    from matplotlib.ticker import EngFormatter

    rows = [row for row in data["speed"] if row["rate"]][:24]
    figure, axes = canvas.subplots(figsize=(7, 1.0 + 0.28 * len(rows)))
    for position, row in enumerate(rows):
        known = row["algorithm"] in data["algorithms"]
        colour = COLOURS[data["algorithms"].index(row["algorithm"]) % len(COLOURS)] if known else "#8e99a6"
        axes.barh(position, row["rate"], color=colour, alpha=0.85, height=0.65)
    axes.set_yticks(range(len(rows)), [_short(f"{row['algorithm']} · {row['task']}") for row in rows])
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="environment steps per second, all runs of a training together")
    axes.grid(axis="y", visible=False)
    axes.invert_yaxis()
    return figure
