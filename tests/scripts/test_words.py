"""A word that a command does not know is refused by name, with the nearest word: every command, and the trainings."""

from __future__ import annotations

import sys

import pytest

from shoal.__main__ import COMMANDS, run
from shoal.baselines.ippo import ippo_ff_mpe
from shoal.benchmark.settings import read
from shoal.cli import main
from shoal.errors import UserError
from tests.conftest import ROOT

UNKNOWN = {  # what each does not know, and the nearest word
    "benchmark": {"--plan": "plan", "algoritms=[ippo]": "algorithms", "seds=3": "seeds", "hyper.lr=1": "hypers"},
    "export": {"--jax": "jax", "whihc=last": "which", "imprt=x.py": "import"},
    "render": {"--epsiodes=2": "--episodes", "size=40": "--size=40", "vmas/balanse": "vmas/balance"},
    "report": {"--animation-s=0": "--animations", "title=mine": "--title=mine"},
    "list": {"evns": "envs"},
    "new": {"--form": "--from"},
    "": {"ipo": "ippo", "reprot": "report"},
    "ippo": {"--multirn": "--multirun", "sedes=3": "seeds", "algo.num_env=3": "algo.num_envs"},
    "baselines/ippo/ippo_ff_mpe.py": {"--multirn": "--multirun", "hyper.lr=1": "hypers.lr", "evolve=pbd": "pbt"},
}


def call(name: str, word: str, monkeypatch) -> None:
    """The command line as a function."""
    if name.startswith("baselines"):
        monkeypatch.setattr(sys, "argv", [name, word])
        main(ippo_ff_mpe.IPPO)
    else:
        monkeypatch.setattr(sys, "argv", [])
        sys.exit(run([*name.split(), word]))


def test_every_command_and_script_is_here():
    assert {*COMMANDS, *(path.stem for path in (ROOT / "scripts").glob("*.py"))} < set(UNKNOWN)


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in UNKNOWN.items() for word in words])
def test_an_unknown_word_is_refused_by_name_with_the_nearest(name, word, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        call(name, word, monkeypatch)
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == ""
    (line,) = said.err.splitlines()
    key = word.partition("=")[0]
    assert line.startswith("error: ") and key in line
    assert UNKNOWN[name][word] in line.partition(key)[2]


def test_a_folder_whose_name_reads_like_a_word(tmp_path, monkeypatch, capsys):
    """A path with ``=`` is a folder where it exists; ``folder=`` names one that reads like a word of the script."""
    monkeypatch.chdir(tmp_path)
    for name, word in (("a=b", "a=b"), ("a=b", "a=b/"), ("run=3", "folder=run=3")):
        (tmp_path / name).mkdir(exist_ok=True)
        with pytest.raises(SystemExit):
            call("export", word, monkeypatch)
        assert capsys.readouterr().err.startswith(f"error: {name}: no config.yaml there")


def test_a_benchmark_names_the_folder_of_its_trainings():
    with pytest.raises(UserError, match=r"run\.dir=X: a benchmark sets this .*; dir=<folder> is that of all"):
        read(["benchmark=quick", "run.dir=X"])
