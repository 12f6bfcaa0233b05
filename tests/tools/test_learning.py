"""The page of what was learnt: whose hyperparameters are the same, what a line says, and what --only means."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from tests.conftest import ROOT

RESULTS = ROOT / "results"
OURS = {  # BenchMARL's names, and ours for the same
    "envs": "algo.num_envs",
    "optimiser_steps": "algo.gradient_steps",
    "memory": "algo.buffer_size",
    "epochs": "algo.epochs",
    "lr": "hypers.lr",
    "gamma": "hypers.gamma",
    "tau": "hypers.tau",
    "clip_grad_val": "hypers.max_grad_norm",
    "lmbda": "hypers.gae_lambda",
    "clip_epsilon": "hypers.clip_eps",
    "entropy_coef": "hypers.ent_coef",
    "mixing_embed_dim": "algo.mixer_width",
    "alpha_init": "hypers.alpha",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))  # as if it were called there
    spec = importlib.util.spec_from_file_location("learning_script", ROOT / "tools" / "learning.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "tools"))
    return module


def test_ours_are_trained_at_benchmarls_hyperparameters(script):
    pairs = [(t, theirs) for t in script.AT_BENCHMARL if (theirs := script.benchmarls(t, RESULTS))]
    assert {training.algorithm for training, _ in pairs} >= {"qmix", "masac"}
    for training, theirs in pairs:
        ours = {name: yaml.safe_load(value) for name, value in (word.split("=") for word in training.words)}
        known = theirs["hyperparameters"]
        for name in OURS.keys() & known.keys():
            assert float(known[name]) == float(ours[OURS[name]]), (training.name, name)
        batch = known["envs"] * 100
        rows = ours["algo.batch_size"] if "optimiser_steps" in known else batch / ours["algo.minibatches"]
        assert rows == pytest.approx(known["minibatch"], rel=0.03)  # 4096 does not divide a rollout
        assert theirs["steps"] == list(range(batch, int(training.steps) + 1, batch))
        widths = [value for name, value in ours.items() if name.endswith(".widths")]
        assert widths and all(width == [known["width"]] * 2 for width in widths)
        recorded = json.loads((RESULTS / f"{training.name}.json").read_text())
        assert recorded["steps"] == theirs["steps"]
        parts = [command.split()[3:] for command in recorded["command"].split("; ")]
        others = [word for word in training.command if not word.startswith("seeds=")]
        without = ("seed=", "seeds=", "algo.normalise_state=false")  # the last is all that there is by now
        assert all([word for word in part if not word.startswith(without)] == others for part in parts)
        firsts = [int(dict(word.split("=") for word in part[1:]).get("seed", 0)) for part in parts]
        counts = [int(dict(word.split("=") for word in part[1:])["seeds"]) for part in parts]
        assert firsts == [sum(counts[:i]) for i in range(len(parts))]  # no seed twice
        assert len(recorded["sampled"]) == sum(counts) == training.seeds


def test_a_line_has_both_sides(script):
    training = script.Training("qmix", "vmas/balance", 2e5, words=("a=1",), tag="at_benchmarl")
    assert training.name == "qmix_vmas.balance_at_benchmarl"
    steps = list(range(10_000, 210_000, 10_000))
    ours = {"steps": steps, "sampled": [list(np.arange(20.0)), list(np.arange(20.0) + 1)]}
    line = script.beside(training, ours, {"steps": steps, "sampled": [[0.0] * 18 + [3.0, 4.0]]})
    assert line == ("| `vmas/balance` | `qmix` | 2 x 200k | 0.50 | 19.00 (18.50, 19.50) | 1 x 200k | 0.00 | 3.50 |")


def test_only_names_what_is_trained(script):
    plain = script.Training("qmix", "vmas/balance", 1)
    tagged = script.Training("qmix", "vmas/balance", 1, tag="at_benchmarl")
    assert plain.chosen([]) and tagged.chosen([])
    assert plain.chosen(["vmas"]) and plain.chosen(["qmix"]) and not plain.chosen(["none"])
    assert tagged.chosen(["at_benchmarl"]) and tagged.chosen([tagged.name])
    assert not tagged.chosen(["qmix", "vmas/balance"]) and not plain.chosen(["at_benchmarl"])


def test_seeds_are_added_to_a_record(script, tmp_path, monkeypatch):
    training = script.Training("ippo", "vmas/balance", 100, seeds=5, tag="at_benchmarl")
    assert [(part.first, part.seeds) for part in script.missing(training, 0)] == [(0, 4), (4, 1)]
    assert [(part.first, part.seeds) for part in script.missing(training, 2)] == [(2, 2), (4, 1)]
    assert script.missing(training, 5) == []

    def record(part, folder, out):
        curves = [[float(part.first + i)] for i in range(part.seeds)]
        text = {"command": " ".join(part.command), "steps": [100], "sampled": curves, "greedy": curves}
        out.write_text(json.dumps(text))

    trained, out = [], tmp_path / "record.json"
    monkeypatch.setattr(script, "train", lambda part, folder: trained.append((part.command[2:4], folder.name)))
    monkeypatch.setattr(script, "record", record)
    monkeypatch.setattr(script, "ended", lambda part, folder: True)
    record(script.replace(training, seeds=2), tmp_path, out)
    script.add_seeds(training, tmp_path, out)
    name = "ippo_vmas.balance_at_benchmarl_from_seed"
    assert trained == [(["seeds=2", "seed=2"], f"{name}_2"), (["seeds=1", "seed=4"], f"{name}_4")]
    joined = json.loads(out.read_text())
    assert joined["sampled"] == joined["greedy"] == [[0.0], [1.0], [2.0], [3.0], [4.0]]
    assert joined["command"].count("; ") == 2
    script.add_seeds(training, tmp_path, out)
    assert len(trained) == 2  # nothing is missing
    record(script.replace(training, seeds=2), tmp_path, out)
    monkeypatch.setattr(script, "ended", lambda part, folder: False)
    with pytest.raises(SystemExit, match="from_seed_2: stopped"):
        script.add_seeds(training, tmp_path, out)
    assert len(json.loads(out.read_text())["sampled"]) == 2  # no curve that is too short


def test_a_stopped_training_has_not_ended(script, tmp_path):
    training = script.Training("ippo", "vmas/balance", 200)
    assert not script.ended(training, tmp_path)
    (tmp_path / "curves.png").touch()
    (tmp_path / "metrics.csv").write_text("run,env_steps,episode_return\n0,100,1.0\n")
    assert not script.ended(training, tmp_path)
    (tmp_path / "metrics.csv").write_text("run,env_steps,episode_return\n0,100,1.0\n0,200,2.0\n")
    assert script.ended(training, tmp_path)


def row_of(script, training, **facts) -> str:
    """The line of a record with three seeds, the last of which came to most."""
    curves = [[0.0, 1.0], [0.0, 2.0], [0.0, 90.0]]
    provenance = {"session": {"seconds": 60}}
    known = {"command": "x", "steps": [100, 200], "sampled": curves, "greedy": curves, "provenance": provenance}
    return script.row(training, known | facts)


def test_seeds_that_diverged_are_in_no_figure_and_are_counted(script, tmp_path):
    training = script.Training("ippo", "vmas/balance", 200, seeds=3)
    assert "| 3 x 0k |" in row_of(script, training)
    line = row_of(script, training, diverged=[2])
    assert "| 3 x 0k (1 diverged) |" in line and line.count("1.50 (1.00, 2.00)") == 2
    nan = [[0.0, 1.0], [0.0, 2.0], [0.0, float("nan")]]
    line = row_of(script, training, greedy=nan)
    assert "| 3 x 0k (1 NaN) |" in line and line.count("1.50 (1.00, 2.00)") == 2
    line = row_of(script, training, diverged=[0, 1, 2])
    assert "| 3 x 0k (3 diverged) | episode return | - | - | - |" in line
    ours = {"steps": [100, 200], "sampled": [[0.0, 1.0], [0.0, 2.0]], "diverged": [1]}
    assert "| 2 x 0k (1 diverged) | 0.00 | 1.00 |" in script.beside(training, ours, ours)
    script.draw([(training, ours | {"greedy": ours["sampled"]})], tmp_path / "x.png")


def folder_of(place, algo: dict, diverged: tuple[int, ...] = ()) -> Path:
    """What a training of two seeds leaves behind, as far as a record needs it."""
    place.mkdir()
    lines = ["run,seed,env_steps,episode_return,evaluation/episode_return,diverged"]
    lines += [f"{run},{run},{step},{run},1,{int(run in diverged)}" for step in (100, 200) for run in range(2)]
    (place / "metrics.csv").write_text("\n".join([*lines, ""]))
    facts = {"python": "3", "packages": {}, "cores": 2, "session": {"seconds": 60}}
    (place / "provenance.json").write_text(json.dumps(facts))
    (place / "config.yaml").write_text(yaml.safe_dump({"algo": algo}))
    return place


def test_a_record_says_who_diverged_and_what_its_objective_was(script, tmp_path):
    """Whether a row is marked depends on its record alone."""
    smax, qmix = script.Training("mappo_rnn", "smax/3m", 200, 2), script.Training("qmix", "mpe/simple_spread", 200, 2)
    out, today = tmp_path / "record.json", {"death": "keeps_return"}
    for training, mark in ((smax, script.OWN_RETURN), (qmix, script.OLD_MIXER)):
        assert row_of(script, training).endswith(f"| {mark} |")  # a record of before
        script.record(training, folder_of(tmp_path / f"new_{training.name}", today, (1,)), out)
        made = json.loads(out.read_text())
        assert (made["death"], made["diverged"]) == ("keeps_return", [1])
        assert script.row(training, made).endswith("|  |")
        script.record(training, folder_of(tmp_path / f"old_{training.name}", {"normalise_state": True}), out)
        assert script.row(training, json.loads(out.read_text())).endswith(f"| {mark} |")
    plain = script.replace(qmix, words=("algo.normalise_state=false",))
    assert row_of(script, plain, command=" ".join(plain.command)).endswith("|  |")
    chosen = script.replace(smax, words=("algo.death=ends_return",), others="published")
    asked = {"death": "ends_return", "command": " ".join(chosen.command)}
    assert row_of(script, chosen, **asked).endswith("| published |")  # its own line says so
    assert row_of(script, script.Training("ippo", "vmas/balance", 200)).endswith("|  |")
    assert row_of(script, script.replace(smax, others="published")).endswith(f"| published; {script.OWN_RETURN} |")
    assert all(mark not in t.others for t in script.TRAININGS for mark in (script.OWN_RETURN, script.OLD_MIXER))


def test_joined_records_know_who_diverged(script, tmp_path, monkeypatch):
    training, out = script.Training("ippo", "vmas/balance", 200, seeds=4), tmp_path / "record.json"
    script.record(script.replace(training, seeds=2), folder_of(tmp_path / "first", {}, (0,)), out)
    monkeypatch.setattr(script, "train", lambda part, folder: folder_of(folder, {}, (1,)))
    monkeypatch.setattr(script, "ended", lambda part, folder: True)
    script.add_seeds(training, tmp_path, out)
    joined = json.loads(out.read_text())
    assert (len(joined["sampled"]), joined["diverged"]) == (4, [0, 3])
    smax = script.replace(training, env="smax/3m")
    script.record(script.replace(smax, seeds=2), folder_of(tmp_path / "old", {}), out)
    monkeypatch.setattr(script, "train", lambda part, folder: folder_of(folder, {"death": "keeps_return"}))
    with pytest.raises(SystemExit, match="trained otherwise"):  # seeds of two objectives are no row
        script.add_seeds(smax, tmp_path, out)
    assert len(json.loads(out.read_text())["sampled"]) == 2


def test_time_to_return_leaves_out_who_diverged(script, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("time_to_return_script", ROOT / "tools" / "time_to_return.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    place = folder_of(tmp_path / "x", {}, (1,))
    text = (place / "metrics.csv").read_text().replace("1,1,200,1,", "1,1,200,99,")
    (place / "metrics.csv").write_text(text)
    facts = json.loads((place / "provenance.json").read_text())
    facts["session"] |= {"steps_per_second": 1000, "compile_seconds": 1}
    (place / "provenance.json").write_text(json.dumps(facts))
    line = module.row("balance", "shipped", place)
    assert "| 2 (1 diverged) | 20.6 | 0.00 | not reached in 0k |" in line
    (place / "metrics.csv").write_text(text.replace(",1,0\n", ",1,1\n"))
    assert "| 2 (2 diverged) | 20.6 | - | not reached in 0k |" in module.row("balance", "shipped", place)
