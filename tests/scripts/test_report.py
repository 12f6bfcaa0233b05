"""Reports: what is read, refused and said, the page in a browser, marl-eval's layout, and how long it takes."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shoal.folder.marl_eval import our_name
from shoal.report import animation, summary
from shoal.report.command import write_scores
from shoal.report.merge import merge
from shoal.report.page import embedded
from shoal.report.read import read
from tests import made
from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "report.py"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def report():
    """``report(*words)``: the command line, without episodes of policies."""

    def call(*words: str | Path, animations: int = 0) -> subprocess.CompletedProcess:
        command = [sys.executable, str(SCRIPT), *map(str, words), "--animations", str(animations)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    return call


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory, report) -> Path:
    """Two algorithms on two tasks, one sweep each of one, two and three hyperparameters; reported on."""
    folder = tmp_path_factory.mktemp("reports") / "benchmark"
    metrics = ("episode_return", "episode_length", "win_rate")
    for name, skill in (("mappo", 1.0), ("ippo", 0.7)):
        for task in ("mpe/simple_spread", "vmas/balance"):
            place = folder / name / task.replace("/", ".")
            made.training(place, name, task, skill=skill, metrics=metrics)
    made.training(folder / "one", "vdn", "mpe/simple_spread", sweep={"lr": [1e-3, 1e-2]})
    made.training(folder / "two", "qmix", "mpe/simple_spread", sweep={"lr": [1e-3, 1e-2], "tau": [0.1, 0.2]})
    three = {"lr": [1e-3, 1e-1], "tau": [0.1, 0.2], "gamma": [0.9, 0.99]}
    made.training(folder / "three", "iql", "mpe/simple_spread", sweep=three)
    done = report(folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return folder


def data_of(folder: Path) -> dict:
    """The numbers inside a page."""
    text = (folder / "report.html").read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def test_everything_is_written(benchmark):
    for name in ("report.html", "evaluations.json", "scores.csv"):
        assert (benchmark / name).stat().st_size > 500, name
    names = {path.name for path in (benchmark / "figures").iterdir()}
    kinds = ("sample_efficiency", "profiles", "aggregates", "improvement", "tasks", "runs", "speed", "sensitivity_2")
    for kind in kinds:
        assert {f"{kind}.png", f"{kind}.svg"} <= names
    data = data_of(benchmark)
    assert {"mappo", "ippo", "vdn lr=0.001", "qmix lr=0.01 tau=0.2"} <= set(data["ranked"])
    assert [metric["name"] for metric in data["metrics"]] == ["episode_return", "episode_length", "win_rate"]
    main = data["metrics"][0]
    assert main["score"] == "absolute metric"
    assert [len(one["names"]) for one in main["sensitivity"]] == [1, 3, 2]
    text = (benchmark / "report.html").read_text()
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text and " src=" not in text.replace('src="data:', "")
    with (benchmark / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["algorithm"] for row in rows} == set(data["ranked"])


def test_a_page_of_its_own_is_not_read_as_results(benchmark, report):
    before = data_of(benchmark)
    assert report(benchmark).returncode == 0
    assert data_of(benchmark) == before


def test_figures_agree_with_marl_evals(tmp_path):
    """Scores, curves and what is made of them, from its own file: the matrices that its own loader makes."""
    recorded = json.loads((ROOT / "tests" / "data" / "statistics.json").read_text())
    (tmp_path / "any.json").write_text(json.dumps(recorded["evaluations"]))
    data = summary.summarise(read([tmp_path]), "x")
    together = data["metrics"][0]["together"]
    assert not data["notes"]
    for number, name in enumerate(data["algorithms"]):
        aggregate = next(one for one in together["aggregates"] if one["algorithm"] == number)["values"]
        theirs = recorded["aggregates"][name]
        np.testing.assert_allclose([one[0] for one in aggregate.values()], theirs["value"], rtol=2e-5)
        intervals = np.array([one[1:] for one in aggregate.values()]).T
        width = np.ptp(theirs["interval"], axis=0)
        assert (np.abs(intervals - theirs["interval"]) < 0.12 * width).all()
        curve = next(one for one in together["efficiency"] if one["algorithm"] == number)
        np.testing.assert_allclose(curve["y"], recorded["efficiency"][name]["value"], rtol=2e-5)
    for pair in together["improvement"]:
        x, y = (data["algorithms"][pair[key]] for key in "xy")
        assert pair["p"][0] == pytest.approx(recorded["improvement"][f"{x} {y}"]["value"][0], rel=2e-5)


def even(merged: dict) -> None:
    """What marl-eval's loader takes for granted: the first task's algorithms, runs, steps and metrics are all's."""
    for tasks in merged.values():
        first = next(iter(tasks.values()))
        for algorithms in tasks.values():
            assert list(algorithms) == list(first)
            assert not any("," in name for name in algorithms)
            for runs in algorithms.values():
                example = next(iter(first.values()))
                assert list(runs) == list(example)
                for record in runs.values():
                    steps = next(iter(example.values()))
                    assert list(record) == list(steps)
                    assert list(record)[-1] == "absolute_metrics"
                    for name, fields in record.items():
                        assert set(fields) - {"step_count"} == set(record["absolute_metrics"])
                        assert ("step_count" in fields) == name.startswith("step_")


def test_the_merged_file_is_as_marl_eval_wants_it(benchmark, tmp_path):
    merged = json.loads((benchmark / "evaluations.json").read_text())
    even(merged)
    assert set(merged) == {"mpe", "vmas"}
    assert set(merged["vmas"]["balance"]) == {"mappo", "ippo"}
    record = merged["vmas"]["balance"]["mappo"]["seed_3"]
    assert record["step_2"]["step_count"] == 2000
    assert len(record["step_2"]["mean_episode_return"]) == 4
    assert len(record["absolute_metrics"]["mean_episode_return"]) == 40
    # and it reads back as the same scores
    (tmp_path / "merged.json").write_text(json.dumps(merged))
    again = {(cell.algorithm, cell.place): cell for cell in read([tmp_path]).cells}
    for cell in read([benchmark / "mappo", benchmark / "ippo"]).cells:
        np.testing.assert_allclose(
            again[cell.algorithm, cell.place].absolute["episode_return"], cell.absolute["episode_return"]
        )


def test_uneven_results_are_made_even_and_said(tmp_path):
    made.training(tmp_path / "a", "mappo", "mpe/simple_spread", seeds=5)
    made.training(tmp_path / "b", "ippo", "mpe/simple_spread", seeds=3, chunks=4, steps=1500)
    made.training(tmp_path / "c", "mappo", "mpe/simple_tag", seeds=2)
    found = read([tmp_path])
    merged = merge(found.cells, found.notes)
    even(merged)
    assert list(merged["mpe"]) == ["simple_spread"] or list(merged["mpe"]["simple_spread"]) == ["mappo"]
    data = summary.summarise(found, "x")
    said = "\n".join(data["notes"])
    for words in ("marl-eval wants all pairs", "do without the", "wants equal counts"):
        assert words in said, said
    assert len(data["metrics"][0]["tasks"]) == 2
    assert sum(len(task["rows"]) for task in data["metrics"][0]["tasks"]) == 3


def test_other_steps_are_interpolated_and_said(tmp_path):
    made.training(tmp_path / "a", "mappo", chunks=6, steps=1000)
    made.training(tmp_path / "b", "ippo", chunks=5, steps=1190)
    data = summary.summarise(read([tmp_path]), "x")
    curves = data["metrics"][0]["together"]["efficiency"]
    assert curves[0]["x"] == curves[1]["x"]
    assert (curves[0]["x"][0], curves[0]["x"][-1]) == (1190, 5950)
    assert any("interpolates" in note for note in data["notes"])


def test_plain_files_of_other_programs(tmp_path):
    made.marl_eval(tmp_path / "benchmarl" / "run.json", "mappo", "vmas/balance", key="return")
    made.marl_eval(
        tmp_path / "mava" / "metrics.json", "ff_ippo", "vmas/balance", key="mean_episode_return", elapsed=2.5
    )
    made.training(tmp_path / "ours", "mappo", "vmas/balance")
    found = read([tmp_path / "benchmarl", tmp_path / "mava", tmp_path / "ours"])
    cells = {cell.algorithm: cell for cell in found.cells}
    assert set(cells) == {"mappo", "mappo (benchmarl)", "ff_ippo"}  # the same name of another program is another thing
    assert cells["ff_ippo"].seconds.tolist() == [0, 2.5, 5, 7.5, 10, 12.5]
    assert cells["mappo (benchmarl)"].seconds is None
    assert not cells["mappo (benchmarl)"].absolute  # a best episode is no absolute metric
    assert cells["ff_ippo"].absolute["episode_return"].shape == (4,)
    data = summary.summarise(found, "x")
    assert data["metrics"][0]["score"] == "last evaluation"
    assert any("best episode" in note for note in data["notes"])
    assert our_name("adversary_return") == "episode_return/adversary"


def test_variants_are_told_apart_and_seeds_put_together(tmp_path):
    made.training(tmp_path / "0", "ippo", algo__num_envs=16)
    made.training(tmp_path / "1", "ippo", algo__num_envs=64)
    made.training(tmp_path / "2", "ippo", algo__num_envs=64, seed=10)
    made.training(tmp_path / "3", "vdn")
    shutil.copytree(tmp_path / "3", tmp_path / "4")
    found = read([tmp_path])
    runs = {cell.algorithm: [run.seed for run in cell.runs] for cell in found.cells}
    assert runs == {
        "ippo num_envs=16": [0, 1, 2, 3],
        "ippo num_envs=64": [0, 1, 2, 3, 10, 11, 12, 13],
        "vdn": [0, 1, 2, 3],
    }
    assert found.notes == ["vdn on mpe/simple_spread: 4 runs were found twice; used once"]
    (sensitivity,) = summary.summarise(found, "x")["metrics"][0]["sensitivity"]
    assert sensitivity["names"] == ["num_envs"]


def broken_folders(root: Path) -> dict[str, str]:
    """Folders with something wrong, and what is to be said about each."""
    made.training(root / "good" / "ippo")
    made.training(root / "cut" / "ippo", "vdn")
    path = root / "cut" / "ippo" / "evaluations.jsonl"
    path.write_text(path.read_text()[:-200])
    (root / "empty").mkdir()
    begun = made.training(root / "begun" / "x")
    (begun / "evaluations.jsonl").unlink()
    garbled = made.training(root / "garbled" / "x")
    (garbled / "evaluations.jsonl").write_text("no\nJSON\n")
    (made.training(root / "bare") / "config.yaml").unlink()
    (root / "wrong").mkdir()
    (root / "wrong" / "metrics.json").write_text('{"mpe": {')
    (root / "other").mkdir()
    (root / "other" / "package.json").write_text('{"name": "x", "scripts": {"a": "b"}}')
    (root / "other" / "notes.txt").write_text("hello")
    late = made.training(root / "late", "iql")
    lines = [json.loads(line) for line in (late / "evaluations.jsonl").read_text().splitlines()]
    for line in lines[-2:]:  # the last runs have not come to the end
        line["runs"] = line["runs"][:2]
        line["metrics"] = {name: values[:2] for name, values in line["metrics"].items()}
    lines[2]["metrics"]["episode_return"][1] = [float("nan")] * 4
    (late / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {
        "cut": "the last line of evaluations.jsonl is cut off",
        "empty": "nothing that a training or marl-eval left behind",
        "begun": "has not been evaluated yet",
        "garbled": "no line that can be read",
        "bare": "no config.yaml that can be read",
        "wrong": "no JSON that can be read",
        "other": "nothing that a training or marl-eval left behind",
        "missing": "no such file or folder",
    }


def test_what_cannot_be_read_gets_a_line_and_the_rest_a_report(tmp_path, report):
    expected = broken_folders(tmp_path)
    out = tmp_path / "out"
    done = report(*(tmp_path / name for name in ("good", "late", *expected)), "--out", out)
    assert done.returncode == 1  # some arguments had nothing to use
    lines = done.stderr.splitlines()
    for name, words in expected.items():
        assert sum(name in line.split(":")[0] and words in line for line in lines) == 1, (name, done.stderr)
    assert any("iql" in line and "2 of 4 runs have not come as far" in line for line in lines)
    assert any("iql" in line and "1 of 2 runs have returns that are no numbers" in line for line in lines)
    assert len(lines) == len(set(lines)) and "Traceback" not in done.stderr
    data = data_of(out)
    assert set(data["ranked"]) == {"ippo", "vdn", "iql"}
    text = html.unescape((out / "report.html").read_text())
    for words in expected.values():
        assert words in text
    # the same from above, where nothing was asked for that is not there
    assert report(tmp_path, "--out", tmp_path / "again").returncode == 0
    assert set(data_of(tmp_path / "again")["ranked"]) == {"ippo", "vdn", "iql"}


def test_nothing_to_report_on_is_one_line(tmp_path, report):
    for path in (tmp_path, tmp_path / "missing"):
        done = report(path)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: nothing to report on")
    assert not list(tmp_path.iterdir())


def test_a_single_training_keeps_its_own_file(tmp_path, report):
    folder = made.training(tmp_path / "one", absolute=False)
    (folder / "evaluations.json").write_text("its own")
    assert report(folder).returncode == 0
    assert (folder / "evaluations.json").read_text() == "its own"
    data = data_of(folder)
    assert data["metrics"][0]["score"] == "last evaluation"
    assert data["metrics"][0]["together"]["improvement"] == []


def test_names_are_printed_not_obeyed(tmp_path, report):
    raw = json.loads(made.marl_eval(tmp_path / "x.json", NASTY, "a/b").read_text())
    tasks = {"\"quoted\" 'task' & </script><b>": raw["a"]["b"]}
    (tmp_path / "x.json").write_text(json.dumps({"$env": tasks}))
    assert report(tmp_path / "x.json", "--out", tmp_path / "out", "--title", "<i>title</i>").returncode == 0
    text = (tmp_path / "out" / "report.html").read_text()
    assert NASTY not in text and "<i>title" not in text and "</script><b>" not in text
    assert html.escape(NASTY) in text
    assert data_of(tmp_path / "out")["algorithms"] == [NASTY]
    assert "<" not in embedded({"a": "</script>"})
    if CHROMIUM:
        dom = in_browser(tmp_path / "out" / "report.html")
        assert "data-error" not in dom and 'data-ready="true"' in dom


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "@SUM(1)", "-1"])
def test_no_spreadsheet_takes_a_name_for_a_formula(tmp_path, name):
    found = read([made.marl_eval(tmp_path / "x.json", name, f"{name.replace('/', '')}/b")])
    write_scores(tmp_path / "scores.csv", summary.summarise(found, "title"))
    rows = list(csv.DictReader((tmp_path / "scores.csv").open(newline="")))
    assert {row["algorithm"] for row in rows} == {f"'{name}"}
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())


def in_browser(page: Path, *flags: str) -> str:
    """The document after its scripts have run."""
    assert CHROMIUM is not None
    profile = page.parent / "profile"
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *quiet, *flags]
    command += [f"--user-data-dir={profile}", "--window-size=1300,900", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    shutil.rmtree(profile, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures_of(dom: str) -> dict[str, list[int]]:
    """Marks in every figure of a page that is shown, by kind."""
    found: dict[str, list[int]] = {}
    for figure in re.findall(r"<figure(?! [^>]*hidden)[^>]*>.*?</figure>", dom, re.S):
        for kind, body in re.findall(r'<svg data-figure="(\w+)"[^>]*>(.*?)</svg>', figure, re.S):
            found.setdefault(kind, []).append(len(re.findall(r'class="[^"]*\bmark\b', body)))
    return found


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium to look at the page with")
# Presses what a reader can press, one after the other; any error of the page's own script is noted by the page.
PRESS = """<script>
const press = (id, value, event) => {
  const input = document.getElementById(id);
  if (typeof value === "boolean") input.checked = value; else input.value = value;
  input.dispatchEvent(new Event(event));
};
press("smooth", 0.6, "input");
press("seeds", true, "change");
press("axis", "t", "change");
press("metric", METRIC, "change");
document.querySelector("#legend button").click();
for (const svg of document.querySelectorAll("figure:not([hidden]) svg[data-figure]")) {
  const at = { clientX: 300, clientY: 100, bubbles: true };
  const move = () => new PointerEvent("pointermove", at);
  for (const node of svg.querySelectorAll("rect, circle, path")) node.dispatchEvent(move());
}
document.documentElement.dataset.tip = document.getElementById("tip").textContent;
</script></body>"""


@needs_browser
def test_the_page_draws_every_figure(benchmark):
    dom = in_browser(benchmark / "report.html")
    assert "data-error" not in dom and 'data-ready="true"' in dom
    found = figures_of(dom)
    everything = {"efficiency", "profiles", "aggregates", "improvement", "task", "runs", "sensitivity", "speed"}
    assert set(found) == everything
    assert all(marks > 0 for counts in found.values() for marks in counts), found
    assert len(found["task"]) == 2 and len(found["sensitivity"]) == 3
    assert "NaN" not in re.sub(r"<script.*?</script>", "", dom, flags=re.S)


@needs_browser
@pytest.mark.parametrize("metric", [0, 2])
def test_the_page_does_what_its_controls_say(benchmark, metric):
    pressed = benchmark.parent / f"pressed_{metric}.html"
    text = (benchmark / "report.html").read_text().replace("</body>", PRESS.replace("METRIC", str(metric)))
    pressed.write_text(text)
    dom = in_browser(pressed)
    assert "data-error" not in dom, re.search(r'data-error="[^"]*"', dom)
    found = figures_of(dom)
    assert all(marks > 0 for counts in found.values() for marks in counts), found
    assert re.search(r'data-tip="[^"]+"', dom)
    assert len(re.findall('<button[^>]*aria-pressed="false"', dom)) == 1


@needs_browser
def test_a_broken_script_would_be_seen(benchmark):
    broken = benchmark.parent / "broken.html"
    broken.write_text(
        (benchmark / "report.html").read_text().replace("const draw = {", "const draw = nothing.at.all && {")
    )
    dom = in_browser(broken)
    assert "data-error" in dom and "data-ready" not in dom


def test_a_thousand_runs_on_three_tasks_take_seconds(tmp_path, report):
    for number, name in enumerate(("mappo", "ippo", "qmix", "vdn")):
        for task in ("mpe/simple_spread", "mpe/simple_tag", "vmas/balance"):
            place = tmp_path / "many" / name / task.replace("/", ".")
            made.training(place, name, task, seeds=250, chunks=20, episodes=10, skill=1 - 0.1 * number)
    begin = time.perf_counter()
    done = report(tmp_path / "many")
    seconds = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr
    assert seconds < 60  # about ten on two busy cores
    assert (tmp_path / "many" / "report.html").stat().st_size < 2e6
    assert any("the first 20 of each" in note for note in data_of(tmp_path / "many")["notes"])


def test_the_best_policy_is_shown_where_there_are_pictures(train, report, tmp_path):
    shown = train("env=vmas/simple", "env.kwargs.horizon=6")
    made.training(tmp_path / "made", "mappo", "matrix/climbing")
    found = read([shown, tmp_path / "made"])
    notes: list[str] = []
    ((title, caption, uri),) = animation.best_policies(found, 3, notes)
    assert title.endswith("on vmas/simple") and "return" in caption and uri.startswith("data:image/gif;base64,")
    assert notes == []
    (shown / "policies.safetensors").write_bytes(b"not a policy")
    assert animation.best_policies(found, 3, notes) == []
    (note,) = notes
    assert "cannot be shown" in note and "\n" not in note
    assert not animation.pictured({"env": {"name": "matrix/climbing"}})
