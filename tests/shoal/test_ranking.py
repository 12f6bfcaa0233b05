"""What ranks: the objective, and never a run that has diverged. On folders made by hand; nothing trains but once."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

import shoal
from shoal.baselines.ippo.ippo_ff_mpe import Config, Hypers
from shoal.benchmark.train import reached
from shoal.config.settings import Settings, complete, saved_settings
from shoal.folder.layout import objective_of
from shoal.folder.lineage import best_of_populations, lost_populations
from shoal.folder.marl_eval import write_evaluations
from shoal.folder.tables import diverged_runs
from shoal.report import closing, lineage, page, statistics, summary
from shoal.report.merge import merge
from shoal.report.read import read
from shoal.report.table import OBJECTIVE
from shoal.run import loggers, sweep
from tests import made

TEAMS = ("episode_return", "episode_return/adversary", "episode_return/agent")


def axis(rates: list[float], seeds: int) -> sweep.Runs:
    """The runs of a sweep of ``lr``, with some seeds each."""
    return sweep.expand(Hypers(), {"lr": rates} if rates else {}, seeds)


def entry(env_steps: int, values, absolute: bool = False, **metrics) -> dict:
    """An evaluation of all runs, each of whose episodes came to the same."""
    named = {"episode_return": values} | metrics
    tables = {name: [[float(value)] * 3 for value in column] for name, column in named.items()}
    made = {"batch": 0, "env_steps": env_steps, "runs": list(range(len(values))), "metrics": tables}
    return ({"absolute": True} if absolute else {}) | made


def folder_of(
    folder: Path, entries: list[dict], diverged: list[int], objective: str | None = None, seeds: int = 1, **settings
) -> Path:
    """A folder as a training leaves it, with given evaluations; ``diverged`` runs have been so since the last one."""
    made.training(folder, seeds=seeds, chunks=1, absolute=False, env="mpe/simple_tag", **settings)
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    steps = [one["env_steps"] for one in entries if "absolute" not in one]
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["run", "seed", "env_steps", "lr", "diverged"])
        for step in steps:
            for run in entries[0]["runs"]:
                writer.writerow([run, run % seeds, step, run // seeds, int(run in diverged and step == steps[-1])])
    if objective is not None:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"evaluation": {"objective": objective}}))
    return folder


def column(table: list[list[str]], title: str) -> list[str]:
    return [row[table[0].index(title)] for row in table[1:]]


def test_the_fraction_of_runs_that_live_ranks_first():
    rank = statistics.rank
    assert rank(np.array([8.0, 9.0, 10.0]), 1) == (0.75, 9.0)
    assert rank(np.array([]), 2) == rank(np.array([]), 0) == (0.0, -np.inf)
    assert rank(np.array([1.0]), 0) == (1.0, 1.0)
    assert rank(np.array([5.0] * 4), 0) > rank(np.array([9.0] * 3), 1) > rank(np.array([9.0] * 2), 2)
    assert rank(np.array([6.0] * 4), 0) > rank(np.array([5.0] * 4), 0)


@pytest.fixture
def one_of_four() -> tuple[list[dict], np.ndarray]:
    """Two points of four seeds: of the first one run diverged while the others came to 9, the second lives with 5."""
    return [entry(10, [9, 9, 9, 99, 5, 5, 5, 5])], np.arange(8) == 3


def test_a_point_with_one_diverged_run_is_not_above_one_that_lives(one_of_four, monkeypatch, tmp_path):
    """An IQM cuts a quarter off at either end: one lost run of four once cost a point nothing."""
    (evaluations, diverged), runs = one_of_four, axis([0.1, 0.2], 4)
    table = closing.closing_table(evaluations, runs, diverged)
    assert column(table, "sweep point") == ["lr=0.2", "lr=0.1"]
    assert column(table, "last") == ["5.00", "9.00"]
    shown = drawn(monkeypatch, lambda: closing.draw(tmp_path / "c.png", evaluations, runs, diverged, "x"))
    assert shown["legend"] == ["lr=0.2", "lr=0.1 (1 of 4 diverged)"]
    for name, values, lost in (("vdn", [9, 9, 9, 99], [3]), ("ippo", [5, 5, 5, 5], [])):
        folder_of(tmp_path / name, [entry(10, values)], lost, name=name, seeds=4)
    found = read([tmp_path])
    data = summary.summarise(found, "x")
    assert data["ranked"] == ["ippo", "vdn"]
    assert [row["algorithm"] for row in data["metrics"][0]["tasks"][0]["rows"]] == ["ippo", "vdn"]
    scores = page.page(data, found).split("<h2>Scores")[1].split("</table>")[0]
    best = scores.split('<td class="best">')
    assert len(best) == 2 and best[1].startswith("5<")  # the other's 9 is not bold
    assert shoal.load(tmp_path / "vdn").best in (0, 1, 2)


def test_an_algorithm_that_is_dead_on_a_task_is_below_one_that_lives_on_all(tmp_path):
    """vdn has no figure on the second task, which must not leave it with its best ones alone."""
    for name, task, values, lost in (
        ("vdn", "mpe/simple_tag", [9, 9], []),
        ("vdn", "mpe/simple_spread", [9, 9], [0, 1]),
        ("ippo", "mpe/simple_tag", [1, 1], []),
        ("ippo", "mpe/simple_spread", [1, 1], []),
    ):
        folder_of(tmp_path / f"{name}_{task[-3:]}", [entry(10, values)], lost, name=name, seeds=2, env__name=task)
    data = summary.summarise(read([tmp_path]), "x")
    assert data["ranked"] == ["ippo", "vdn"]
    assert data["diverged"] == [0, 2]


def test_the_closing_table_ranks_the_living_and_counts_the_diverged():
    """Point 1 came to most and both its runs diverged, of point 2 one did: only point 0 is whole."""
    runs = axis([0.1, 0.2, 0.3], 2)
    entries = [
        entry(10, [0, 1, 50, 50, 2, 90]),
        entry(20, [3, 5, 50, 50, 4, 90]),
        entry(20, [6, 8, 60, 60, 7, 99], absolute=True),
    ]
    diverged = np.array([0, 0, 1, 1, 0, 1], bool)
    table = closing.closing_table(entries, runs, diverged)
    assert column(table, "sweep point") == ["lr=0.1", "lr=0.3", "lr=0.2"]
    assert column(table, "seeds") == ["2", "2 (1 diverged)", "2 (2 diverged)"]
    assert column(table, "first") == ["0.50", "2.00", "-"]
    assert column(table, "last") == ["4.00", "4.00", "-"]
    assert column(table, "95 %") == ["3.00 .. 5.00", "4.00 .. 4.00", "-"]
    assert column(table, "best run") == ["5.00", "4.00", "-"]
    assert column(table, "absolute") == ["7.00", "7.00", "-"]
    calm = closing.closing_table(entries, runs, np.zeros(6, bool))
    assert column(calm, "sweep point") == ["lr=0.2", "lr=0.3", "lr=0.1"]
    many = axis(list(np.arange(1, 21) / 100), 1)
    assert len(closing.closing_table([entry(10, range(20))], many, np.zeros(20, bool))) == 1 + closing.SHOWN


def test_points_are_ranked_by_the_last_evaluation_of_runs_with_every_evaluation():
    """The first run of lr=0.3 has a NaN in its first evaluation, and came to most: it is lost, and that is said."""
    entries = [entry(10, [5, 5, 1, 1, np.nan, 0]), entry(20, [1, 1, 5, 5, 99, 0])]
    table = closing.closing_table(entries, axis([0.1, 0.2, 0.3], 2), np.zeros(6, bool))
    assert column(table, "sweep point") == ["lr=0.2", "lr=0.1", "lr=0.3"]
    assert column(table, "last") == column(table, "best run") == ["5.00", "1.00", "0.00"]
    assert column(table, "seeds") == ["2", "2", "2 (1 NaN)"]


def test_runs_with_a_nan_are_lost_and_said_to_be(monkeypatch, tmp_path):
    """None of them is marked as diverged; one has only some episodes without a number, one no absolute metric."""
    entries = [entry(10, [7, 7, 7, np.inf, 5, 5, 5, 5]), entry(10, [7, np.nan, 7, 7, 5, 5, 5, 5], absolute=True)]
    entries[0]["metrics"]["episode_return"][0] = [99.0, np.nan, 99.0]
    runs, calm = axis([0.1, 0.2], 4), np.zeros(8, bool)
    diverged = np.arange(8) == 1
    table = closing.closing_table(entries, runs, diverged)
    assert column(table, "sweep point") == ["lr=0.2", "lr=0.1"]
    assert column(table, "seeds") == ["4", "4 (1 diverged, 2 NaN)"]
    assert column(table, "last") == column(table, "absolute") == ["5.00", "7.00"]
    assert column(closing.closing_table(entries, runs, calm), "seeds") == ["4", "4 (3 NaN)"]
    shown = drawn(monkeypatch, lambda: closing.draw(tmp_path / "c.png", entries, runs, calm, "x"))
    assert shown["legend"] == ["lr=0.2", "lr=0.1 (3 of 4 NaN)"]
    assert "without runs that diverged or have a NaN" in shown["note"]
    write_evaluations(tmp_path / "evaluations.json", entries, runs, "mpe/simple_tag", "ippo", diverged)
    (first, second) = sorted(read([tmp_path / "evaluations.json"]).cells, key=lambda cell: cell.algorithm)
    assert [run.seed for run in first.runs] == [2] and len(second.runs) == 4
    folder = folder_of(tmp_path / "a", [one | {"runs": [0, 1, 2, 3]} | half(one) for one in entries], [], seeds=4)
    assert (shoal.load(folder).best, shoal.load(folder).lost) == (2, [0, 1, 3])
    assert reached(folder).text == "return 7.00 (7.00 .. 7.00), 3 NaN"
    (cell,) = read([folder]).cells
    assert (len(cell.runs), cell.diverged) == (1, 3)


def half(one: dict) -> dict:
    """The first four runs of an evaluation."""
    return {"metrics": {name: values[:4] for name, values in one["metrics"].items()}}


def test_evaluations_json_has_no_run_that_diverged(tmp_path):
    entries, diverged = [entry(10, [1, 2, 60]), entry(20, [3, 5, 60]), entry(20, [3, 4, 9], absolute=True)], [2]
    folder_of(tmp_path / "a", entries, diverged, seeds=3)
    path, lost = tmp_path / "evaluations.json", np.arange(3) == 2
    write_evaluations(path, entries, axis([], 3), "mpe/simple_tag", "ippo", lost)
    for found in (read([path]), read([tmp_path / "a"])):
        (cell,) = found.cells
        assert cell.metrics["episode_return"].tolist() == [[1, 3], [2, 5]]
    write_evaluations(path, entries, axis([], 3), "mpe/simple_tag", "ippo", np.ones(3, bool))
    assert not read([path]).cells and "no evaluation in it" in read([path]).notes[0]


def test_the_closing_table_is_of_the_objective_and_shows_every_team():
    runs = axis([0.1, 0.2], 1)
    teams = {"episode_return/adversary": [1, 2], "episode_return/agent": [-7, -9], "win_rate": [0.5, 0.25]}
    entries = [entry(10, [8, 4], **teams), entry(10, [6, 5], absolute=True, **teams)]
    no = np.zeros(2, bool)
    table = closing.closing_table(entries, runs, no, "episode_return/adversary")
    assert table[0][2:] == ["first", "last", "95 %", "best run", "absolute", "return", "agent"]
    assert table[1] == ["lr=0.2", "1", "2.00", "2.00", "2.00 .. 2.00", "2.00", "2.00", "4.00", "-9.00"]
    mean = closing.closing_table(entries, runs, no)
    assert mean[0][-2:] == ["adversary", "agent"]
    assert mean[1] == ["lr=0.1", "1", "8.00", "8.00", "8.00 .. 8.00", "8.00", "6.00", "1.00", "-7.00"]
    won = closing.closing_table(entries, runs, no, "win_rate")
    assert won[0][-3:] == ["return", "adversary", "agent"]
    assert column(won, "sweep point") == ["lr=0.1", "lr=0.2"]
    alone = closing.closing_table([entry(10, [1, 2])], runs, no)
    assert alone[0][-1] == "absolute"
    assert column(alone, "absolute") == ["-", "-"]


def drawn(monkeypatch, call) -> dict:
    """What a picture shows: its legend, its lines by name, its axis, its note."""
    import matplotlib.pyplot as plt

    shown: dict = {}

    def keep(figure, target, **kwargs):
        (axes,) = figure.axes
        shown.update(
            legend=[text.get_text() for text in axes.get_legend().get_texts()] if axes.get_legend() else [],
            lines={line.get_label(): line.get_ydata() for line in axes.lines},
            axis=axes.get_ylabel(),
            note=axes.texts[0].get_text(),
        )

    monkeypatch.setattr(plt.Figure, "savefig", keep)
    call()
    return shown


def test_the_curves_are_of_those_that_live(monkeypatch, tmp_path):
    runs = axis([0.1, 0.2, 0.3], 2)
    teams = {"episode_return/adversary": [0, 1, 50, 50, 2, 90]}
    entries = [entry(10, range(6), **teams), entry(20, range(6), **teams)]
    diverged = np.array([0, 0, 1, 1, 0, 1], bool)
    objective = "episode_return/adversary"
    shown = drawn(monkeypatch, lambda: closing.draw(tmp_path / "c.png", entries, runs, diverged, "x", objective))
    assert shown["legend"] == ["lr=0.1", "lr=0.3 (1 of 2 diverged)", "lr=0.2 (2 of 2 diverged)"]
    np.testing.assert_array_equal(shown["lines"]["lr=0.3 (1 of 2 diverged)"], [2, 2])
    assert np.isnan(shown["lines"]["lr=0.2 (2 of 2 diverged)"]).all()
    assert shown["axis"] == "episode return: adversary (greedy evaluation)"
    assert "without runs that diverged or have a NaN" in shown["note"]
    calm = drawn(monkeypatch, lambda: closing.draw(tmp_path / "c.png", entries, axis([], 6), diverged & False, "x"))
    assert calm["legend"] == ["6 seeds"]
    assert "diverged" not in calm["note"]


def evolved() -> list[dict]:
    """Two populations of three: who has the most return is not who has the most for the adversaries."""
    first = {"episode_return/adversary": [1, 2, 3, 9, 8, 7]}
    second = {"episode_return/adversary": [4, 5, 6, 6, 9, 5]}
    last = {"episode_return/adversary": [10, 11, 12, 13, 14, 16]}
    return [
        entry(10, [9, 8, 7, 1, 2, 3], **first),
        entry(20, [6, 5, 4, 1, 0, 2], **second) | {"diverged": [4]},
        entry(20, [30, 31, 32, 33, 34, 35], absolute=True, **last),
    ]


def test_populations_are_judged_by_the_objective(monkeypatch, tmp_path):
    objective = "episode_return/adversary"
    first, second, last = best_of_populations(evolved(), 3, objective)
    assert [values[0] for values in first["metrics"][objective]] == [3, 9]
    assert [values[0] for values in second["metrics"][objective]] == [6, 6]
    assert [values[0] for values in second["metrics"]["episode_return"]] == [4, 1]
    assert [values[0] for values in last["metrics"][objective]] == [12, 13]  # of those that were best before
    table = lineage.closing_table(evolved(), 3, objective)
    assert table[0] == ["", "populations", "first", "last", "95 %", "best", "absolute", "return"]
    best, mean = table[1:]
    assert best == ["best of a population", "2 of 3", "6.00", "6.00", "6.00 .. 6.00", "6.00", "12.50", "2.50"]
    assert mean[1:4] == ["2 of 3 (1 members diverged)", "5.00", "5.25"]
    assert mean[6:] == ["-", "3.25"]  # the diverged member is in no mean: (6 + 5 + 4) / 3 and (1 + 2) / 2
    assert lineage.closing_table(evolved(), 3)[1][2] == "6.00"  # of the returns: 9 and 3
    lost = [one | {"diverged": [3, 4, 5]} for one in evolved()]
    table = lineage.closing_table(lost, 3, objective)
    assert column(table, "populations") == ["2 of 3 (1 diverged)"] * 2
    assert column(table, "last") == ["6.00", "5.00"]
    shown = drawn(monkeypatch, lambda: lineage.draw_curves(tmp_path / "c.png", lost, 3, "x", objective))
    assert shown["axis"] == "episode return: adversary (greedy evaluation)"
    assert "2 populations of 3 members (1 of them diverged, left out)" in shown["note"]
    np.testing.assert_array_equal(shown["lines"]["best of a population"], [3, 6])
    assert "members that live" not in shown["note"]
    shown = drawn(monkeypatch, lambda: lineage.draw_curves(tmp_path / "c.png", evolved(), 3, "x", objective))
    assert shown["note"].endswith("; means are of members that live")


def test_the_best_run_lives_and_has_the_most_of_the_objective(tmp_path):
    teams = {"episode_return/adversary": [1, 3, 2, 9], "episode_return/agent": [0, 0, 0, 0]}
    entries = [entry(10, [7, 5, 6, 8], **teams)]
    old = shoal.load(folder_of(tmp_path / "old", entries, [3], seeds=4))
    assert (old.objective, old.best) == ("episode_return", 0)  # 3 has diverged
    new = shoal.load(folder_of(tmp_path / "new", entries, [3], "episode_return/adversary", seeds=4))
    living = new.metrics[~new.metrics.run.isin(new.lost)]  # as in docs/guide.md
    assert (new.lost, sorted(set(living.run))) == ([3], [0, 1, 2])
    assert (new.objective, new.best) == ("episode_return/adversary", 1)
    assert diverged_runs(tmp_path / "new") == {3}
    assert shoal.load(folder_of(tmp_path / "all", entries, [0, 1, 2, 3], seeds=4)).best == 3  # nobody is left
    path = tmp_path / "new" / "metrics.csv"
    path.write_text(path.read_text() + "1,1,20,0,1\nx,1,20,0,1\n2\n0,0,20,0,1")  # junk, and half a line at the end
    assert diverged_runs(tmp_path / "new") == {1, 3}
    path.unlink()
    assert diverged_runs(tmp_path / "new") == set()


def test_a_report_leaves_out_the_diverged_and_says_so(tmp_path):
    """vdn came to most with half its runs; iql's have all diverged."""
    folder_of(tmp_path / "a", [entry(10, [1, 2, 3, 4])], [], name="ippo", seeds=4)
    folder_of(tmp_path / "b", [entry(10, [8, 9, 100, 100])], [2, 3], name="vdn", seeds=4)
    folder_of(tmp_path / "c", [entry(10, [50, 50])], [0, 1], name="iql", seeds=2)
    found = read([tmp_path])
    data = summary.summarise(found, "x")
    assert data["ranked"] == ["ippo", "vdn"]
    assert data["diverged"] == [0, 2]
    said = "\n".join(data["notes"])
    assert "vdn on mpe/simple_tag: 2 of 4 runs diverged; left out" in said
    assert "iql on mpe/simple_tag: 2 of 2 runs diverged; left out" in said
    rows = {row["algorithm"]: row for row in data["metrics"][0]["tasks"][0]["rows"]}
    assert (rows["vdn"]["runs"], rows["vdn"]["diverged"], rows["vdn"]["mean"]) == (2, 2, 8.5)
    text = page.page(data, found)
    assert "2 (2 more diverged)" in text  # the table's runs
    assert "; 2 diverged</small>" in text
    assert "as they were scored; band: 95 % bootstrap. 2 more diverged." in text
    assert "2 runs, 2 more diverged; thick" in text
    folder_of(tmp_path / "d", [entry(10, [7, np.nan, 7, np.nan])], [3], name="qmix", seeds=4)
    (cell,) = read([tmp_path / "d"]).cells
    assert (len(cell.runs), cell.diverged) == (2, 2)  # one of them without having been marked
    calm = read([tmp_path / "a"])
    assert "diverged" not in page.page(summary.summarise(calm, "x"), calm).split("<script")[0]


def test_a_population_has_diverged_when_all_its_members_have(tmp_path):
    settings = {"evolve": {"scheme": "pbt"}, "population": 3, "seeds": 2}
    folder_of(tmp_path / "one", evolved(), [1, 3, 4, 5], "episode_return/adversary", **settings)
    found = read([tmp_path])
    (cell,) = found.cells
    assert (len(cell.runs), cell.diverged) == (1, 1)
    assert cell.metrics["episode_return/adversary"].tolist() == [[3, 6]]
    assert "1 of 2 runs diverged" in found.notes[0]
    # Nobody of the second population was left in the first round; selection filled it with frozen ones.
    dead = [evolved()[0] | {"diverged": [3, 4, 5]}, *evolved()[1:]]
    assert lost_populations(dead, 3) == {1}
    folder_of(tmp_path / "two", dead, [], "episode_return/adversary", name="vdn", **settings)
    (cell,) = read([tmp_path / "two"]).cells
    assert (len(cell.runs), cell.diverged) == (1, 1)


def test_a_population_that_has_not_come_so_far_has_not_diverged():
    """A training of two batches that was stopped in the second."""
    first, second, last = evolved()
    first |= {"runs": [0, 1, 2], "metrics": {name: values[:3] for name, values in first["metrics"].items()}}
    assert lost_populations([first, second, last], 3) == set()
    table = lineage.closing_table([second | {"env_steps": 10}, first | {"env_steps": 20}], 3)
    assert column(table, "populations") == ["2 of 3"] * 2


def teams(low: float, high: float) -> dict:
    return {"episode_return/adversary": [low, low + 0.5], "episode_return/agent": [high, high]}


def test_a_report_is_ranked_by_the_objective(tmp_path):
    """mappo has more for the adversaries, ippo more in the mean."""
    folder_of(tmp_path / "a", [entry(10, [5, 5], **teams(1, 9))], [], "episode_return/adversary", seeds=2)
    folder_of(tmp_path / "b", [entry(10, [2, 2], **teams(3, 0))], [], "episode_return/adversary", 2, name="mappo")
    found = read([tmp_path])
    assert found.objective == "episode_return/adversary" and not found.notes
    data = summary.summarise(found, "x")
    assert data["ranked"] == ["mappo", "ippo"]
    assert [metric["name"] for metric in data["metrics"]] == [TEAMS[1], TEAMS[0], TEAMS[2]]  # every team's is there
    # A task of another kind beside it: each is ranked by its own.
    made.training(tmp_path / "c", "mappo", "mpe/simple_spread", skill=1.0)
    made.training(tmp_path / "d", "ippo", "mpe/simple_spread", skill=0.9)
    both = read([tmp_path])
    assert both.objective == both.metrics[0] == OBJECTIVE
    assert "objective is each task's own: episode_return/adversary on mpe/simple_tag" in both.notes[0]
    together = summary.summarise(both, "x")
    assert together["ranked"] == ["mappo", "ippo"]
    assert len(together["metrics"][0]["together"]["tasks"]) == 2
    cell = next(cell for cell in both.cells if cell.task == "simple_tag" and cell.algorithm == "ippo")
    np.testing.assert_array_equal(cell.metrics[OBJECTIVE], cell.metrics["episode_return/adversary"])
    assert cell.extremes(OBJECTIVE) == (1.0, 1.5)
    merged = json.dumps(merge(both.cells, []))
    assert "objective" not in merged and "mean_episode_return" in merged


def test_folders_without_an_objective_are_ranked_by_the_mean_return(tmp_path):
    folder_of(tmp_path / "a", [entry(10, [5, 5], **teams(1, 9))], [], seeds=2)
    folder_of(tmp_path / "b", [entry(10, [2, 2], **teams(3, 0))], [], "episode_return", 2, name="ippo", seed=7)
    found = read([tmp_path])
    assert [(cell.algorithm, len(cell.runs)) for cell in found.cells] == [("ippo", 4)]  # the same thing, other seeds
    folder_of(tmp_path / "c", [entry(10, [2, 2], **teams(3, 0))], [], "episode_return/agent", 2, name="vdn")
    mixed = read([tmp_path])
    assert mixed.objective == "episode_return"
    assert "ranked by episode_return" in mixed.notes[0]
    folder_of(tmp_path / "d", [entry(10, [2, 2], **teams(3, 0))], [], "episode_return/adversary", 2, name="qmix")
    assert read([tmp_path / "c", tmp_path / "d"]).objective == "episode_return"  # two that do not agree
    folder_of(tmp_path / "e", [entry(10, [2, 2])], [], "win_rate", 2, name="iql")
    strange = read([tmp_path / "e"])
    assert strange.objective == "episode_return"
    assert "evaluation.objective=win_rate is no metric of its evaluations" in strange.notes[0]
    saved = saved_settings(tmp_path / "a")
    saved.evaluation = {"episodes": 4}
    whole = complete(tmp_path / "a", saved, Config, Hypers).evaluation
    assert whole == {"episodes": 4, "greedy": True, "objective": "episode_return"}
    saved.evaluation.objective = "win_rate"
    assert complete(tmp_path / "a", saved, Config, Hypers).evaluation.objective == "win_rate"
    assert OmegaConf.structured(Settings).evaluation.objective == "auto"


def test_what_a_benchmark_says_of_a_cell(tmp_path):
    teams = {"episode_return/adversary": [2, 4, 9]}
    entries = [entry(10, [1, 1, 9], **teams), entry(10, [5, 5, 5], absolute=True, **teams)]
    folder_of(tmp_path / "a", entries, [2], "episode_return/adversary", seeds=3)
    assert reached(tmp_path / "a").text == "episode_return/adversary 3.00 (2.00 .. 4.00), 1 diverged"
    folder_of(tmp_path / "b", entries, [], seeds=3)
    assert reached(tmp_path / "b").text.startswith("return 3.67 (1.00 .. ")
    folder_of(tmp_path / "c", entries, [0, 1, 2], seeds=3)
    assert reached(tmp_path / "c").text == "no score, 3 diverged"


def test_an_objective_that_nothing_recorded_is_the_return(tmp_path, capsys):
    folder_of(tmp_path / "a", [entry(10, [1, 3, 9])], [2], "win_rate", seeds=3)
    assert shoal.load(tmp_path / "a").best == 1
    line = capsys.readouterr().err
    assert "warning" in line and "evaluation.objective=win_rate is no metric of its evaluations" in line
    assert reached(tmp_path / "a").text == "return 2.00 (1.00 .. 3.00), 1 diverged"
    (tmp_path / "a" / "evaluations.jsonl").write_text("")
    assert reached(tmp_path / "a") is None
    assert reached(tmp_path / "nothing") is None  # stopped before it wrote its configuration


def test_loggers_leave_the_diverged_out_of_means(tmp_path):
    rows = [
        {"run": 0, "episode_return": 1.0, "loss": 2.0, "diverged": False},
        {"run": 1, "episode_return": 3.0, "loss": np.nan, "diverged": False},
        {"run": 2, "episode_return": 80.0, "loss": 90.0, "diverged": np.True_},
    ]
    values = loggers.summary(rows, 2)
    assert values["mean/episode_return"] == 2.0 and values["mean/loss"] == 2.0
    assert values["best/episode_return"] == 3.0
    assert values["mean/diverged"] == pytest.approx(1 / 3)
    assert {"run_0/loss", "run_1/episode_return"} <= set(values) and "run_2/loss" not in values
    objective = "evaluation/episode_return/adversary"
    for row, score in zip(rows, (4.0, np.nan, 70.0), strict=True):
        row |= {"evaluation/episode_return": 6.0, objective: score}
    assert loggers.summary(rows, 2, "episode_return/adversary")[f"best/{objective}"] == 4.0
    assert loggers.summary(rows, 2)["best/evaluation/episode_return"] == 6.0
    settings, config = SimpleNamespace(name="tensorboard", runs=2), {"evaluation": {"objective": "win_rate"}}
    assert loggers.make(settings, tmp_path, config, axis([], 3), "ippo").objective == "win_rate"


def test_a_sweep_with_a_point_that_diverges(train, capsys):
    """A training of its own: lr=1e36 is frozen at once, and once ranked first with the luck of its first weights."""
    folder = train("env=mpe/simple_tag", "sweep.lr=[1e-3,1e36]", "hypers.max_grad_norm=1e36", "evaluation.episodes=4")
    printed = capsys.readouterr().out
    assert "episode_return/adversary of 4 greedy episodes" in printed
    lines = [line.split() for line in printed.splitlines() if "lr=" in line]
    assert [line[0] for line in lines] == ["lr=0.001", "lr=1e+36"]
    assert lines[1][1:] == ["2", "(2", "diverged)", *["-"] * 7]
    runs = shoal.load(folder)
    assert runs.objective == "episode_return/adversary"
    assert runs.config.evaluation.objective == objective_of(runs.config)
    assert runs.best < 2
    whole = runs.metrics.groupby("run")["evaluation/episode_return/adversary"].cummax()
    np.testing.assert_allclose(runs.metrics.best_return[runs.metrics.run < 2], whole[runs.metrics.run < 2], rtol=1e-5)
    assert runs.metrics[runs.metrics.run > 1].groupby("run").best_return.nunique().tolist() == [1, 1]
    found = read([folder])
    assert [cell.algorithm for cell in found.cells] == ["ippo lr=0.001"]
    with pytest.raises(SystemExit):
        train(f"resume={folder}", "evaluation.objective=episode_return", small=False)
    train(f"resume={folder}", "evaluation.objective=auto", small=False)
