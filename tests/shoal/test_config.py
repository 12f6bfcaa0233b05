"""A mistake in the configuration is one clear line before anything compiles."""

from __future__ import annotations

import shlex
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from shoal.config import compose
from shoal.config.named import CONFIG_DIR
from shoal.config.words import as_text, pasted
from tests import made
from tests.conftest import SCRIPT


@pytest.fixture
def complaint(monkeypatch, capsys):
    """``complaint(*words)``: the one line that the command line answers."""
    from shoal.baselines.ippo import ippo_ff_mpe
    from shoal.cli import main
    from shoal.run import loop

    def never(*_):
        raise AssertionError("a bad configuration was compiled")

    monkeypatch.setattr(loop, "compile_programs", never)

    def call(*words: str, code: int = 2) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
        with pytest.raises(SystemExit) as stop:
            main(ippo_ff_mpe.IPPO)
        assert stop.value.code == code
        printed = capsys.readouterr()
        assert printed.out == ""
        lines = printed.err.strip().splitlines()
        assert len(lines) == 1, printed.err
        return lines[0]

    return call


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("algo.num_env=3", "did you mean algo.num_envs?"),
        ("env=mpe/simple_sprea", "did you mean mpe/simple_spread"),
        ("algo.num_envs=many", "algo.num_envs=many: must be a whole number"),
        ("algo.clip_value=maybe", "algo.clip_value=maybe: must be true or false"),
        ("hypers.lr=fast", "hypers.lr=fast: must be a number"),
        ("hypers.gamma=1.2", "hypers.gamma=1.2: must be in [0, 1]"),
        ("hypers.lr=nan", "hypers.lr=nan: must be a finite number"),
        ("algo.num_envs=0", "algo.num_envs=0: must be at least 1"),
        ("algo.actor.widths=[64,0]", "algo.actor.widths=0: must be at least 1"),
        ("algo.actor.widths=64", "algo.actor.widths=64: must be a list, [a,b]"),
        ("algo.minibatches=7", "algo.minibatches=7: must divide"),
        ("algo.actor.network=cnn", "algo.actor.network=cnn"),
        ("algo.critic.activation=sine", "must be one of tanh, relu"),
        ("algo.num_envs=16,64", "need -m"),
        ("sweep.num_envs=[16,64]", "-m algo.num_envs=a,b"),
        ("sweep.lr=[a]", "must be a list of numbers"),
        ("sweep.gamma=[0.9,2]", "sweep.gamma=2: must be in [0, 1]"),
        ("sweep.mode=diagonal", "must be one of grid, zip, random"),
        ("logger=printer", "must be one of none, wandb"),
        ("seeds=0", "seeds=0: must be at least 1"),
        ("runs_per_batch=0", "runs_per_batch=0: must be at least 1"),
        ("checkpoint.every=0", "checkpoint.every=0: must be at least 1"),
        ("resume=nowhere", "no config.yaml there"),
        ("env.kwargs.wind=3", "mpe/simple_spread takes"),
        ("env.kwargs.num_agents=0", "num_agents"),
        (
            "env.kwargs.horizon=1e30",
            "env.kwargs.horizon=1e+30: must be a whole number of steps, at least 1, at most 2147483647",
        ),
        ("env.kwargs.horizon=2147483648", "must be a whole number of steps, at least 1, at most 2147483647"),
        ("env.kwargs.num_agents=100000000", "env.kwargs.num_agents=100000000: must be at most 1000"),
        ("env.kwargs.num_agents=1e8", "env.kwargs.num_agents=100000000.0: must be at most 1000"),
        ("env.kwargs.num_landmarks=.inf", "env.kwargs.num_landmarks"),
        ("seeds=1000000000", "seeds=1000000000: makes 1000000000 runs; a training has 1000000 at most"),
        ("hydra/launcher=64", "hydra/launcher=64: must be a name"),
        ("algo.num_envs=[", "cannot be read"),
        ("speed=9", "speed: no such setting"),
        ("hypers.batch_share=0.5", "hypers.batch_share=0.5: counts only with algo.elastic_batches=true"),
        ("sweep.epoch_share=[0.5,1]", "sweep.epoch_share=[0.5, 1]: counts only with algo.elastic_batches=true"),
        ("hypers.vf_coef=???", "hypers.vf_coef=???: needs a value"),
        ("total_steps=1e30", "total_steps=1e+30: must be in [1, 1e+15]"),
        (f"total_steps={'9' * 400}", f"total_steps={'9' * 400}: is too large a number"),
        (f"sweep.lr=[0.1,{'9' * 400}]", "must be numbers in [-3.40282e+38, 3.40282e+38]"),
        (f"hypers.lr={'9' * 400}", f"hypers.lr={'9' * 400}: is too large a number"),
        (f"hypers.lr=-1e{'9' * 400}", "hypers.lr=-inf: must be a finite number"),
        (f"algo.num_envs={'9' * 400}", "algo.num_envs=9999999999... (400 digits): must be in [1, 2147483647]"),
        ("++sweep=1.5", "sweep=1.5: has settings; sweep.<setting>=<value> changes one"),
        ("+algorithm=inf", "algorithm=inf: this file has ippo"),
        ("hydra.mode=-1e30", "hydra.mode=-1e30: "),
        ("--resolve", "--resolve: goes with --cfg or --help only"),
        ("evolve.hypers.lr=1", "evolve.hypers: needs evolution; evolve is one of tournament"),
        ("hyper.lr=1", "hyper.lr: no such setting; did you mean hypers.lr? top level has algo"),
        ("algo.actor.mutable_activation=true", "algo.actor.mutable_activation=true: needs algo.actor.elastic=true"),
    ],
)
def test_the_line_names_the_field_and_what_is_allowed(complaint, word, answer):
    line = complaint(word)
    assert line.startswith("error: ")
    assert answer in line


def test_of_a_name_given_twice_the_last_counts(complaint):
    assert complaint("seeds=4", "seeds=abc") == "error: seeds=abc: must be a whole number"


def test_a_recipe_that_is_missing_or_another_file_s_is_named(complaint, tmp_path):
    answer = complaint("--config-dir", str(tmp_path), "--config-name", "winner")
    assert answer == f"error: --config-name winner: no winner.yaml in {tmp_path}"
    recipe = "defaults: [schema, hydra_defaults, {env: mpe/simple_spread}, {logger: none}, {algorithm: qmix}, _self_]"
    (tmp_path / "winner.yaml").write_text(recipe)
    answer = complaint("--config-dir", str(tmp_path), "--config-name", "winner")
    assert f"{tmp_path}/winner.yaml: is no recipe for this file" in answer
    assert "not in" in answer  # and why


RECIPES = {
    "broken": (b"a: [1,\n", "no YAML that can be read"),
    "tag": (b"a: !!python/object/apply:os.system [ls]\n", "no YAML that can be read"),
    "binary": (bytes(range(256)), "is no text"),
    "brackets": (b"[" * 100_000, "nested too deeply"),
    "list": (b"[1, 2]", "is no recipe"),
    "large": (b"# \n" * 400_000, "bytes, and at most 1048576 are read"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_that_a_stranger_wrote_is_one_line(complaint, tmp_path, name):
    text, answer = RECIPES[name]
    (tmp_path / "winner.yaml").write_bytes(text)
    line = complaint("--config-dir", str(tmp_path), "--config-name", "winner")
    assert str(tmp_path / "winner.yaml") in line and answer in line


def test_the_name_of_a_recipe_is_one_line(complaint, tmp_path):
    """Too long for the system, a folder, in a folder that is none."""
    assert "no nnn" in complaint("--config-name", "n" * 300)
    (tmp_path / "winner.yaml").mkdir()
    assert "is no regular file" in complaint("--config-dir", str(tmp_path), "--config-name", "winner")
    assert str(SCRIPT) in complaint("--config-dir", str(SCRIPT), "--config-name", "winner")


@pytest.mark.parametrize(
    "words", [["hydra.run.dir={}/x"], ["hydra.output_subdir={}/y"], ["-m", "hydra.sweep.dir={}/x", "seeds=1,2"]]
)
def test_a_folder_that_hydra_cannot_make_is_one_line(complaint, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    line = complaint(*(word.format(tmp_path / "file") for word in words), code=1)
    assert str(tmp_path / "file") in line and "Not a directory" in line


def test_flags_that_do_not_go_together_are_refused(complaint):
    assert complaint("-m", "--info", "all", "seeds=1,2") == "error: --info --multirun: only one of these at a time"


ODD = [
    "two words",
    "it's",
    'a "b"',
    "back\\slash\\",
    "${seed}",
    "$HOME",
    "a,b",
    "[2026] é鱼",
    "null",
    " x ",
    "a=b",
    "{a: 1}",
]


@pytest.mark.parametrize("name", ODD)
def test_a_hint_can_be_pasted_into_a_shell(name):
    (word,) = shlex.split(pasted("resume", name))
    cfg = OmegaConf.create({"resume": compose.parsed(as_text(word)).value()})
    assert cfg.resume == name


def test_bytes_that_are_no_text_are_refused_by_name(complaint):
    answer = complaint("run.dir=a\udcff")
    assert answer.startswith("error: run.dir=a\\udcff: is no text in this locale (utf-8)")


def test_several_schemes_of_evolution_may_share_their_settings(complaint):
    from shoal.baselines.ippo import ippo_ff_mpe as ippo
    from shoal.config import compose

    words = ["evolve=pbt,tournament", "evolve.rounds=4"]
    compose.register(ippo.Config, ippo.Hypers, name="ippo_ff_mpe")
    checked = compose.check(["-m", *words], "ippo_ff_mpe", ippo.Config, ippo.Hypers, CONFIG_DIR)
    assert (checked.flags, checked.words, checked.by_hydra) == (["-m"], words, True)
    assert "need -m" in complaint(*words)
    assert "evolve.size" in complaint("-m", *words, "evolve.size=3")  # of a tournament alone


numbers = st.one_of(st.integers(-(10**6), 0), st.floats(-1e6, -1e-3), st.just("abc"), st.just("[1,2]"), st.just("null"))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.sampled_from(
        ["algo.num_envs", "algo.epochs", "hypers.lr", "hypers.gae_lambda", "seeds", "chunks", "total_steps"]
    ),
    value=numbers,
)
def test_bad_values_get_one_line(complaint, field, value):
    if field in ("hypers.lr", "hypers.gae_lambda") and value == 0:
        return  # allowed
    assert field in complaint(f"{field}={value}")


def test_an_existing_training_is_not_overwritten(complaint, tmp_path):
    (tmp_path / "metrics.csv").write_text("run\n")
    assert f"resume={tmp_path} goes on with it" in complaint(f"run.dir={tmp_path}")
    folder = tmp_path / "two words"
    folder.mkdir()
    (folder / "metrics.csv").write_text("run\n")
    assert f"; 'resume={folder}' goes on with it" in complaint(f"run.dir={folder}")


def test_a_second_interrupt_ends_at_once_and_in_one_line(monkeypatch, capsys, tmp_path):
    """Not by an ordinary exit, for which JAX would finish the chunk under way."""
    from shoal import cli, training
    from shoal.baselines.ippo import ippo_ff_mpe as ippo

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "run", interrupted)
    monkeypatch.setattr(cli.os, "_exit", sys.exit)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), f"run.dir={tmp_path}"])
    with pytest.raises(SystemExit) as stop:
        cli.main(ippo.IPPO)
    assert stop.value.code == 130
    assert capsys.readouterr().err.splitlines() == [
        f"stopped at once; resume={tmp_path} goes on from the last checkpoint, if there is one"
    ]


@pytest.mark.parametrize("word", ["evolve.rounds=64", "population=8"])
def test_a_resumed_evolution_stays_as_it_was(complaint, tmp_path, word):
    assert complaint(f"resume={tmp_path}", word).startswith(f"error: {word}: a resumed training cannot change this")


def test_a_training_of_another_file_is_not_resumed(complaint, tmp_path):
    folder = made.training(tmp_path / "qmix", file="qmix/qmix_rnn_mpe")
    answer = complaint(f"resume={folder}")
    assert answer == f"error: resume={folder}: is a training of baselines/qmix/qmix_rnn_mpe.py, not of this file"


def test_hydras_own_flags_keep_their_values():
    from shoal.baselines.ippo import ippo_ff_mpe as ippo
    from shoal.config import compose

    compose.register(ippo.Config, ippo.Hypers, name="ippo_ff_mpe")
    words = ["--cfg", "job", "seeds=2"]
    checked = compose.check(words, "ippo_ff_mpe", ippo.Config, ippo.Hypers, CONFIG_DIR)
    assert (checked.flags, checked.words, checked.by_hydra) == (words[:2], words[2:], True)
