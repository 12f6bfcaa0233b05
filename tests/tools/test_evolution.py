"""The evolution experiment's own arithmetic: equal budgets, who is handed over, and a page that keeps others' words."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evolution_script", ROOT / "tools" / "evolution.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


def value(words: list[str], key: str) -> str:
    (found,) = [word.partition("=")[2] for word in words if word.startswith(f"{key}=")]
    return found


def test_every_search_has_the_same_environment_steps_and_ranges(script):
    size = script.Size()
    for task in script.TASKS.values():
        lines = {method: script.trainings(method, task, size) for method in script.METHODS}
        recipe = lines.pop("tuned")
        assert {value(words, "total_steps") for each in lines.values() for words in each} == {str(task.steps)}
        assert [value(words, "total_steps") for words in recipe] == [str(task.tuned_steps or task.steps)]
        for method, each in lines.items():  # the recipe stays as it ships; all searches have what is fixed
            assert all((word in words) == (method != "falling") for word in task.fixed for words in each)
            assert not {*task.fixed} & {*recipe[0]}
        assert len(lines["random"]) == size.populations
        assert len({value(words, "sweep.seed") for words in lines["random"]}) == size.populations
        assert value(lines["random"][0], "sweep.num") == "32"
        assert {value(words, "sweep.paired") for words in lines["random"] + lines["grid"]} == {"false"}
        points = script.grid(task, size)
        assert np.prod([len(each) for each in points.values()]) == size.population == 32
        for method in script.EVOLUTION:
            (words,) = lines[method]
            assert (value(words, "population"), value(words, "seeds")) == ("32", "5")
            for name, one in task.searched.items():
                assert value(words, f"evolve.hypers.{name}") == value(lines["random"][0], f"sweep.{name}")
                first = float(value(words, f"hypers.{name}"))
                assert one.low <= first <= one.high
                assert first / script.tuned(task)[name] == pytest.approx(one.bad, rel=1e-3)
                assert one.low <= script.tuned(task)[name] <= one.high  # the searches can find it
                assert (min(points[name]), max(points[name])) == (one.low, one.high)


def test_patient_and_alone_differ_by_selection_alone(script):
    size, task = script.Size(), script.TASKS["speaker_short"]
    (patient,), (keen,), (midway,), (alone,) = (
        script.trainings(name, task, size) for name in ("patient", "keen", "midway", "alone")
    )
    assert [word for word in patient if word not in alone] == ["evolve.burn_in=12"]
    assert [word for word in keen if word not in alone] == list(script.EVOLUTION["keen"])
    assert [word for word in midway if word not in alone] == list(script.EVOLUTION["midway"])
    assert [word for word in alone if word not in patient] == [f"evolve.burn_in={size.rounds}"]
    assert (
        value(patient, "evolve") == value(keen, "evolve") == value(midway, "evolve") == value(alone, "evolve") == "pbt"
    )


def test_all_seeds_of_a_task_are_judged_together(script, tmp_path):
    shared = {"members": 32, "steps": [8, 16], "best": [[-2.0, -1.0]] * 2, "hypers": [{"lr": 1.0, "ent_coef": 1.0}] * 2}
    shared |= {"cpu_seconds": 60.0}

    def record(*absolute: float) -> dict:
        return shared | {"absolute": absolute}

    series = {
        "": {"random": record(-9.0, -8.0), "patient": record(-1.0, -3.0), "alone": record(-1.5, -2.0)},
        "_seed20": {"patient": record(-1.0, -2.0), "alone": record(-4.0, -7.0), "keen": record(-3.5, -7.0)},
        "_seed3": {"random": record(-7.0, -1.0), "patient": record(-2.5, -2.0), "alone": record(-2.5, -2.5)},
    }
    recipes = {"": record(-3.0, -3.0), "_seed20": record(-3.0, -3.0), "_seed3": record(-2.0, -2.0)}
    for name, methods in series.items():
        path = tmp_path / f"evolution_speaker_short{name}.json"
        path.write_text(json.dumps({"tuned": recipes[name]} | methods))
    text = "\n".join(script.task_lines("speaker_short", tmp_path))
    assert text.index("### `mappo`") < text.index(", seeds from 3\n") < text.index(", seeds from 20\n")
    assert "`patient` less `alone`, population by population: -1.00, +0.00, +0.50, +0.50, +3.00, +5.00" in text
    assert "`keen` less `alone`, population by population: +0.00, +0.50" in text
    pooled = script.pooled("speaker_short", tmp_path)
    assert pooled["patient"]["absolute"] == [-1.0, -3.0, -2.5, -2.0, -1.0, -2.0]
    assert {name: len(one["best"]) for name, one in pooled.items()} == {
        "tuned": 6,
        "random": 4,
        "patient": 6,
        "keen": 2,
        "alone": 6,
    }
    # The series from 20 has no random search.
    (row,) = [line for line in script.summary(tmp_path) if line.startswith("| mappo")]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        "`patient`",
        "-2.00, -2.25",
        "-8.50, -4.00",
        "-3.00, -2.00",
        "2 of 2",
        "1 of 2",
        f"{stats.mannwhitneyu([-1, -3, -2.5, -2], [-9, -8, -7, -1], alternative='greater').pvalue:.2g}",
    ]
    assert script.gains(script.TASKS["speaker_short"], [{"tuned": record(-1.0, -2.0)}]) == []


def test_the_recipes_values_are_those_that_a_training_would_have(script):
    assert script.tuned(script.TASKS["spread"]) == {"lr": 5e-3, "ent_coef": 0.02}
    assert script.tuned(script.TASKS["speaker"]) == {"lr": 2.5e-3, "critic_lr": 5e-3, "noise_start": 0.3}
    assert script.tuned(script.TASKS["speaker_discrete"]) == {"lr": 6e-3, "ent_coef": 0.03}
    assert script.start(script.TASKS["spread"]) == "lr / 30, ent_coef x 10"


def test_the_peers_population_has_agilerls_steps_and_generations(script):
    words = script.peer_training("matd3", "theirs", 0, script.Size())
    assert float(value(words, "total_steps")) * int(value(words, "population")) == 8e5
    assert int(value(words, "evolve.rounds")) == 20  # of 10,000 steps


def folder_of(
    place: Path, evaluations: list[list[float]], absolute: list[float], diverged: tuple[tuple[int, int], ...] = ()
) -> Path:
    """A training's records; ``diverged`` are runs and evaluations."""
    place.mkdir()
    rows = [
        {
            "run": run,
            "env_steps": 100 * (at + 1),
            "lr": 10.0**-run,
            "evaluation/episode_return": one,
            "best_return": max(curve[: at + 1]),
            "diverged": int((run, at) in diverged),
        }
        for run, curve in enumerate(evaluations)
        for at, one in enumerate(curve)
    ]
    pd.DataFrame(rows).to_csv(place / "metrics.csv", index=False)
    runs = list(range(len(absolute)))
    lines = [
        {"env_steps": 100, "runs": runs, "metrics": {"episode_return": [[0.0]] * len(runs)}},
        {"absolute": True, "runs": runs, "metrics": {"episode_return": [[one - 1, one + 1] for one in absolute]}},
    ]
    (place / "evaluations.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return place


def test_a_search_hands_over_its_best_evaluated_run_by_its_fresh_episodes(script, tmp_path):
    nan = float("nan")
    evaluations = [[-5.0, -3.0], [nan, nan], [-4.0, -1.0], [-9.0, -8.0]]
    place = folder_of(tmp_path / "run", evaluations, [-3.5, 0.0, -2.5, -7.0])
    found = script.outcome(place, 2, ["lr"])
    assert found["best"] == [[-5.0, -3.0], [-4.0, -1.0]]
    assert found["absolute"] == [-3.5, -2.5]  # not the evaluations' own -3 and -1, nor the NaN run's 0
    assert [one["lr"] for one in found["hypers"]] == [1.0, 0.01]
    history = [{"run": run, "env_steps": 100 * (at + 1), "lr": 0.1 * at} for run in range(4) for at in range(2)]
    pd.DataFrame(history).to_csv(place / "lineage.csv", index=False)
    assert [one["lr"] for one in script.outcome(place, 2, ["lr"])["hypers"]] == [0.1, 0.1]  # those of that time
    record = {**found, "members": 2}
    assert script.at_level(record, -2.0) == "0.00M" and script.at_level(record, -1.5) == "never"  # the median's
    both = script.merged([found, found])
    assert len(both["best"]) == len(both["absolute"]) == 4 and both["steps"] == [100, 200]


def test_who_diverged_is_not_handed_over_and_is_counted(script, tmp_path):
    """The second run came to most, and diverged after it; of the second search nobody lives."""
    evaluations = [[-5.0, -3.0], [-1.0, -1.0], [-4.0, -1.0], [-9.0, -8.0]]
    lost = ((1, 1), (2, 0), (2, 1), (3, 1))
    place = folder_of(tmp_path / "run", evaluations, [-3.5, -1.0, -2.5, -7.0], lost)
    found = script.outcome(place, 2, ["lr"])
    assert found["best"] == [[-5.0, -3.0], [-np.inf, -np.inf]]
    assert found["absolute"] == [-3.5, -np.inf] and found["diverged"] == [1, 2]
    assert found["hypers"][0]["lr"] == 1.0 and np.isnan(found["hypers"][1]["lr"])
    both = script.merged([found, {name: value for name, value in found.items() if name != "diverged"}])
    assert both["diverged"] == [1, 2, 0, 0]  # records of before do not say
    task = script.TASKS["spread"]._replace(searched={"lr": script.TASKS["spread"].searched["lr"]})
    record = {**found, "members": 2, "cpu_seconds": 60.0}
    (line,) = [one for one in script.search_table(task, {"random": record}) if one.startswith("| random")]
    assert "| 2 x 2 x 0k (3 diverged) |" in line
    # The slot of a member that diverged is taken by another: in a population its rows alone are left out.
    history = [{"run": run, "env_steps": 100 * (at + 1), "lr": 0.1} for run in range(4) for at in range(2)]
    pd.DataFrame(history).to_csv(place / "lineage.csv", index=False)
    found = script.outcome(place, 2, ["lr"])
    assert found["best"] == [[-1.0, -3.0], [-9.0, -np.inf]] and found["absolute"] == [-3.5, -np.inf]


def test_the_page_keeps_what_others_wrote(script):
    first = script.page("# Evolution\n\nText.\n", ["one"])
    assert first.startswith("# Evolution\n\nText.\n\n") and "one" in first
    second = script.page(first + "More.\n", ["two"])
    assert "one" not in second and second.startswith("# Evolution\n\nText.\n") and second.endswith("\nMore.\n")
    assert second.count(script.MARKS[0]) == 1
