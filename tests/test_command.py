"""The command ``shoal``: what it lists, copies and refuses."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from shoal.__main__ import COMMANDS, run
from shoal.config.named import algorithms
from tests.conftest import ROOT


def test_help_comes_at_once_and_lists_commands_and_algorithms():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import sys, shoal.__main__ as m; m.run(['--help']); assert not {'jax', 'hydra', 'numpy'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"shoal {name} " in done.stdout
    for name, file in algorithms().items():
        assert f"  {name} " in done.stdout and f"baselines/{file}.py" in done.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0  # seconds


@pytest.mark.parametrize("words", [["--help"], ["list", "algorithms"]])
def test_a_full_disk_behind_standard_output_is_one_line(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "shoal", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr == "error: standard output: cannot be written (No space left on device); all files are whole\n"


def test_lists(capsys):
    assert run(["list", "algorithms"]) == 0
    assert capsys.readouterr().out.split() == list(algorithms())
    assert run(["list", "envs", "matrix"]) == 0
    assert "matrix/climbing" in (names := capsys.readouterr().out.split())
    assert all(name.startswith("matrix/") for name in names)
    assert run(["list", "commands"]) == 0
    assert capsys.readouterr().out.split() == [*COMMANDS, *algorithms()]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["vnd"], "error: vnd: no such command; did you mean vdn? there are list, new, report,"),
        (["repot", "runs/mine"], "error: repot: no such command; did you mean report?"),
        (["list"], "error: list : must be one of algorithms, envs, commands"),
        (["list", "env"], "error: list env: did you mean envs? must be one of algorithms, envs, commands"),
        (["list", "envs", "vmaz"], "error: vmaz: no such family; did you mean vmas? there are "),
        (["list", "envs", "vmas", "mpe"], "error: list envs vmas mpe: mpe is one word too many"),
        (["new"], "error: the following arguments are required: name"),
        (["new", "my-idea"], "error: my-idea: must be a Python name, such as my_idea"),
        (["new", "jax"], "error: jax: is the name of an installed Python module; choose another one"),
        (["new", "my_idea", "--from", "ipo"], "error: argument --from: ipo: no such name; did you mean ippo?"),
        (["vdn", "algorithm=mappo"], "error: algorithm=mappo: this file has iql, qmix, vdn; shoal mappo runs that"),
        (["vdn", "env.kwargs.continuous=true"], "error: env=mpe/simple_spread: its actions are continuous"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_word(words, line, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # which a named algorithm changes
    with pytest.raises(SystemExit):
        run(words)
    said = capsys.readouterr().err
    assert said.startswith(line) and len(said.splitlines()) == 1


def test_a_new_algorithm_is_a_copy_that_trains(tmp_path, monkeypatch, capsys, shell):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_idea", raising=False)  # of another test
    assert run(["new", "my_idea", "--from", "vdn"]) == 0
    assert "python my_idea.py" in capsys.readouterr().out
    code, recipe = ((tmp_path / f"my_idea.{end}").read_text() for end in ("py", "yaml"))
    original = (ROOT / "baselines" / "qmix" / "qmix_rnn_mpe.py").read_text()
    assert code == original.replace("baselines/qmix/qmix_rnn_mpe.py", "my_idea.py") != original
    assert "- algorithm: vdn" in recipe
    with pytest.raises(SystemExit):
        run(["new", "my_idea"])
    assert capsys.readouterr().err == "error: my_idea.py: is there already, and nothing is overwritten\n"
    shown = shell(tmp_path / "my_idea.py", "--cfg", "job", cwd=tmp_path)
    assert "mixer: vdn" in shown.stdout and "recipe: my_idea" in shown.stdout, shown.stderr


def test_scripts_are_the_commands(shell):
    texts = {(ROOT / "scripts" / f"{name}.py").read_text().replace(name, "") for name in list(COMMANDS)[2:]}
    assert len(texts) == 1
    refused = shell(ROOT / "scripts" / "report.py", "--outt=x")
    assert refused.stderr.startswith("error: --outt=x: no such word; did you mean --out?")


def test_the_package_finds_its_names_when_they_are_used():
    code = """
import sys, shoal
assert not [name for name in sys.modules if name.startswith("shoal.")] and "numpy" not in sys.modules
assert set(dir(shoal)) == set(shoal.__all__) > set(shoal.MODULES)
assert shoal.UserError.__module__ == "shoal.errors" and "jax" not in sys.modules
for name in shoal.__all__:
    assert getattr(shoal, name) is getattr(shoal, name), name
assert "mpe/simple_tag" in shoal.list("mpe") and shoal.make("matrix/climbing").name == "matrix/climbing"
try:
    shoal.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "module 'shoal' has no attribute 'nothing'\n", done.stderr
