"""``report.html``: one file that needs nothing else, drawn by ``web/report.js`` from the numbers inside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from shoal.folder.provenance import version_of
from shoal.report.read import MARK
from shoal.report.summary import Json
from shoal.report.table import Results, Training
from shoal.run.progress import human

WEB = Path(__file__).parent / "web"
CONFIGURATIONS = 60  # trainings whose settings are printed
ROWS = 60  # of a table; scores.csv has all
RUN_FIGURES = 48  # cells whose single runs are drawn


def page(data: Json, results: Results, animations: Sequence[tuple[str, str, str]] = ()) -> str:
    """The whole page; ``animations`` are titles, captions and GIFs as data URIs."""
    made_by = f"Made by shoal {escape(version_of('shoal') or '')}, `shoal report`."
    parts = {
        "mark": MARK,
        "title": escape(data["title"]),
        "css": (WEB / "report.css").read_text(),
        "js": (WEB / "report.js").read_text(),
        "facts": _facts(data),
        "notes": _notes(data["notes"]),
        "sections": "\n".join(
            section
            for section in (
                _together(data),
                _tasks(data),
                _sensitivity(data),
                _tables(data),
                _runs(data),
                _animations(animations),
                _speed(data),
                _configurations(results.trainings),
            )
            if section
        ),
        "footer": f"{made_by} What each figure means: docs/reports.md.",
        "data": embedded(data),
    }
    # In one pass: what is put in is never searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], (WEB / "report.html").read_text())


def embedded(data: Any) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _facts(data: Json) -> str:
    facts = {
        "algorithm": len(data["ranked"]),
        "task": len(data["tasks"]),
        "run": data["runs"],
        "evaluation": data["evaluations"],
    }
    shown = [(name + "s" * (count != 1), human(count)) for name, count in facts.items()]
    shown.append(("environment steps per run", human(data["steps"])))
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown)


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _section(title: str, about: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n<p>{about}</p>\n{body}\n</section>"


def _figure(kind: str, title: str, caption: str, size: str, **data: Any) -> str:
    fields = "".join(f' data-{name}="{escape(str(value))}"' for name, value in data.items() if value is not None)
    label = escape(f"{kind}: {title}")
    return (
        f'<figure class="{size} {kind}"><h3>{escape(title)}</h3>'
        f'<svg data-figure="{kind}"{fields} role="img" aria-label="{label}"></svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _together(data: Json) -> str:
    blocks = [block for block in data["metrics"] if block["together"]]
    if not blocks:
        return ""
    first = blocks[0]["together"]
    tasks = len(first["tasks"])
    scaled = (
        "Returns are normalised per task: 0 is the lowest and 1 the highest of any episode of any algorithm in this "
        "report, at any time. They compare what is on this page and nothing else."
    )
    runs = sorted(set(first["runs"]))
    count = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    figures = []
    if any(block["together"]["efficiency"] for block in blocks):
        caption = f"IQM over {count} runs of {tasks} task{'s' * (tasks > 1)}; band: 95 % stratified bootstrap."
        figures.append(_figure("efficiency", "Sample efficiency", caption, "wide"))
    figures += [
        _figure("profiles", "Performance profiles", "Share of runs, over all tasks, that score more than τ.", "narrow"),
        _figure(
            "aggregates",
            "Aggregate scores",
            "Line: the figure; bar: its 95 % interval. Median is that of the tasks' means; the optimality gap is what "
            "runs lack to 1: less is better.",
            "wide",
        ),
    ]
    if first["improvement"]:
        caption = "How probably a run of X beats one of Y on a task; right of ½ is for X. Of many, the best with each."
        figures.append(_figure("improvement", "Probability of improvement", caption, "narrow"))
    body = f'<div class="grid">{"".join(figures)}</div>'
    return _section(
        "All tasks together" if tasks > 1 else "At a glance", scaled + f" Scores: {_scores(blocks[0])}.", body
    )


def _scores(block: Json) -> str:
    if block["score"] == "absolute metric":
        return "the absolute metric (the best parameters of a run, in ten times the episodes of an evaluation)"
    return "the last evaluation"


def _tasks(data: Json) -> str:
    alone = len(data["tasks"]) == 1
    size = "whole" if alone else "half" if len(data["tasks"]) in (2, 4) else "third"
    figures = []
    for task in data["tasks"]:
        runs = {
            curve["runs"]
            for block in data["metrics"]
            for t in block["tasks"]
            if t["task"] == task
            for curve in t["curves"]
        }
        count = f"{min(runs)}" if len(runs) == 1 else f"{min(runs)} to {max(runs)}"
        caption = f"IQM of {count} runs, as they were scored; band: 95 % bootstrap.{_lost(data['metrics'][0], task)}"
        figures.append(_figure("task", task, caption, size, task=task, wide=1 if alone else None))
    return _section(
        "Task by task",
        "Greedy evaluations during training, not normalised.",
        f'<div class="grid">{"".join(figures)}</div>',
    )


def _tables(data: Json) -> str:
    body = "".join(
        f'<div data-metric="{number}">{_table(data, block)}</div>' for number, block in enumerate(data["metrics"])
    )
    about = (
        f"IQM over runs and its 95 % interval: {_scores(data['metrics'][0])}. The best of a task is bold: the highest "
        "of those whose largest fraction of runs lives; "
        "<code>scores.csv</code> has all figures."
    )
    return _section("Scores", about, body)


def _table(data: Json, block: Json) -> str:
    tasks = [task["task"] for task in block["tasks"]]
    rows = {(task["task"], row["algorithm"]): row for task in block["tasks"] for row in task["rows"]}
    best = {task["task"]: max(map(_standing, task["rows"])) for task in block["tasks"]}
    head = "".join(f"<th>{escape(task)}</th>" for task in tasks)
    lines = []
    for name in data["ranked"][:ROWS]:
        cells = []
        for task in tasks:
            row = rows.get((task, name))
            if row is None:
                cells.append("<td>-</td>")
                continue
            value, low, high = row["iqm"]
            kind = ' class="best"' if _standing(row) == best[task] and len(data["ranked"]) > 1 else ""
            lost = f"; {row['diverged']} diverged" if row["diverged"] else ""
            cells.append(f"<td{kind}>{_text(value)}<small>{_text(low)} … {_text(high)}{lost}</small></td>")
        lines.append(f"<tr><th>{_swatch(data, name)}{escape(name)}</th>{''.join(cells)}</tr>")
    head = f"<th>{escape(_words(block['name']))}</th>{head}"
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll">{table}</div>' + "".join(_details(data, task) for task in block["tasks"])


def _standing(row: Json) -> tuple[float, float]:
    """What a row is ranked by: the fraction of runs that live, then their score."""
    return row["runs"] / (row["runs"] + row["diverged"]), row["iqm"][0]


def _counted(row: Json) -> str:
    """How many runs a figure is of, and how many it is not of."""
    return f"{row['runs']} ({row['diverged']} more diverged)" if row["diverged"] else str(row["runs"])


def _lost(block: Json, task: str) -> str:
    """A sentence on the runs of a task that are in no figure."""
    lost = sum(row["diverged"] for one in block["tasks"] if one["task"] == task for row in one["rows"])
    return f" {lost} more diverged." if lost else ""


def _details(data: Json, task: Json) -> str:
    titles = ("algorithm", "runs", "steps", "first", "last", "score (IQM)", "95 %", "mean", "std", "best run")
    head = "".join(f"<th>{title}</th>" for title in titles)
    lines = []
    for row in task["rows"][:ROWS]:
        value, low, high = row["iqm"]
        figures = [_counted(row), human(row["steps"]), *(_text(row[key]) for key in ("first", "last"))]
        figures += [
            _text(value),
            f"{_text(low)} … {_text(high)}",
            _text(row["mean"]),
            _text(row["std"]),
            _text(row["best"]),
        ]
        cells = "".join(f"<td>{figure}</td>" for figure in figures)
        lines.append(f"<tr><th>{_swatch(data, row['algorithm'])}{escape(row['algorithm'])}</th>{cells}</tr>")
    more = f" <span>(the first {ROWS} of {len(task['rows'])})</span>" if len(task["rows"]) > ROWS else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<details><summary>{escape(task["task"])}{more}</summary><div class="scroll">{table}</div></details>'


def _swatch(data: Json, name: str) -> str:
    if name not in data["algorithms"]:
        return ""
    return f'<span class="swatch" style="background:var(--a{data["algorithms"].index(name) % 12})"></span>'


def _sensitivity(data: Json) -> str:
    blocks = [block["sensitivity"] for block in data["metrics"]]
    longest = max(blocks, key=len)
    if not longest:
        return ""
    figures = []
    for number, one in enumerate(longest[:24]):
        caption = f"{len(one['points'])} settings of {escape(', '.join(one['names']))}: IQM over the runs of each."
        figures.append(_figure("sensitivity", f"{one['algorithm']} on {one['task']}", caption, "half", number=number))
    about = "What the hyperparameters that vary make of the score. Darker is better."
    return _section("Hyperparameter sensitivity", about, f'<div class="grid">{"".join(figures)}</div>')


def _runs(data: Json) -> str:
    cells = [
        (task["task"], curve["algorithm"], curve) for task in data["metrics"][0]["tasks"] for curve in task["curves"]
    ]
    size = {1: "half", 2: "half", 3: "third"}.get(len(data["algorithms"]), "quarter")
    figures = []
    for task, number, curve in cells[:RUN_FIGURES]:
        shown, runs = len(curve["seeds"]), curve["runs"]
        caption = f"{runs} run{'s' * (runs > 1)}" if shown == runs else f"the first {shown} of {runs} runs"
        caption += f", {curve['diverged']} more diverged" if curve["diverged"] else ""
        title = f"{data['algorithms'][number]} on {task}"
        figures.append(
            _figure("runs", title, f"{caption}; thick: IQM of all.", f"{size} seeds", task=task, number=number)
        )
    more = f" The first {RUN_FIGURES} of {len(cells)} pairs." if len(cells) > RUN_FIGURES else ""
    return _section(
        "Every run",
        f"Each seed's own curve; the same scale for a task.{more}",
        f'<div class="grid">{"".join(figures)}</div>',
    )


def _animations(animations: Sequence[tuple[str, str, str]]) -> str:
    if not animations:
        return ""
    figures = "".join(
        f'<figure class="third"><h3>{escape(title)}</h3><img alt="{escape(title)}" src="{uri}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for title, caption, uri in animations
    )
    return _section(
        "What was learnt", "One greedy episode of the best run's best policy.", f'<div class="grid">{figures}</div>'
    )


def _speed(data: Json) -> str:
    rows = data["speed"]
    if not rows:
        return ""
    head = "".join(
        f"<th>{title}</th>"
        for title in (
            "training",
            "task",
            "runs",
            "steps each",
            "steps/s",
            "wall-clock",
            "compiling",
            "memory",
            "device",
        )
    )
    lines = []
    for row in rows[:ROWS]:
        figures = [
            escape(row["task"]),
            _text(row["runs"]),
            human(row["steps"] or 0),
            human(row["rate"]) if row["rate"] else "-",
            f"{_text(row['seconds'])} s",
            f"{_text(row['compile'])} s",
            f"{row['memory'] / 2**20:.0f} MiB" if row["memory"] else "-",
            escape(row["device"]),
        ]
        lines.append(
            f"<tr><th>{escape(row['algorithm'])}</th>{''.join(f'<td>{figure}</td>' for figure in figures)}</tr>"
        )
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    caption = "Evaluations included, compiling not."
    figure = _figure("speed", "Steps per second", caption, "whole") if any(row["rate"] for row in rows) else ""
    about = "All runs of a training together, in its last session; a resumed one shows that session only."
    return _section("Wall-clock and speed", about, f'<div class="grid">{figure}</div><br>{table}')


def _configurations(trainings: Sequence[Training]) -> str:
    if not trainings:
        return ""
    parts = []
    for training in trainings[:CONFIGURATIONS]:
        name = escape(f"{training.label} on {training.environment}/{training.task}")
        summary = f"{name} <span>{escape(str(training.folder))}</span>"
        text = training.text + "\n# provenance.json\n" + "\n".join(_yaml_lines(training.provenance))
        parts.append(f"<details><summary>{summary}</summary><pre>{escape(text)}</pre></details>")
    more = f" The first {CONFIGURATIONS} of {len(trainings)}." if len(trainings) > CONFIGURATIONS else ""
    versions = {json.dumps(t.provenance.get("packages", {}), sort_keys=True) for t in trainings if t.provenance}
    same = " All were made with the same versions." if len(versions) == 1 else ""
    mixed = " <b>They were made with different versions of the packages.</b>" if len(versions) > 1 else ""
    return _section(
        "Configuration and versions",
        f"The exact settings of every training, and what it ran on.{same}{mixed}{more}",
        "".join(parts),
    )


def _yaml_lines(tree: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", *_yaml_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {' '.join(map(str, value)) if isinstance(value, list) else value}")
    return lines


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _text(value: Any) -> str:
    """A number for a table."""
    if value is None:
        return "-"
    size = abs(value)
    return f"{value:.0f}" if size >= 1000 or value == int(value) else f"{value:.1f}" if size >= 100 else f"{value:.3g}"
