"""``import=meet.py``: a user's own module that registers environments or networks, for every command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import shoal
from shoal.__main__ import run
from shoal.benchmark.settings import read
from shoal.config.files import imported
from tests.conftest import ROOT, SMALL

MEET = ROOT / "examples" / "meet.py"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Two modules of a user's own, which nobody has imported."""
    text = MEET.read_text()
    for name in ("mine", "yours"):
        (tmp_path / f"{name}.py").write_text(text.replace("my/meet", f"{name}/meet"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "mine.py"
    for name in ("mine", "yours"):
        sys.modules.pop(name, None)


def test_the_words(mine):
    yours = mine.with_name("yours.py")
    assert imported(["seeds=2", "env=a/b"]) == ["seeds=2", "env=a/b"]
    assert imported(["import=mine.py", "seeds=2"]) == ["seeds=2", f"imports=['{mine}']"]
    for words in (["import=[mine.py,yours.py]"], ["import=mine.py", "import='yours.py'"]):
        assert imported(words) == [f"imports=['{mine}','{yours}']"]
    assert imported(imported(["import=[mine.py, yours.py]"])) == [f"imports=['{mine}','{yours}']"]
    assert imported(["import=[]"]) == ["imports=[]"] and imported(["import=json"]) == ["imports=['json']"]
    assert {"mine/meet", "yours/meet"} < {*shoal.list()}


def test_a_training_names_its_modules_and_a_folder_does_not_run_them(train, mine, capsys):
    folder = train("import=mine.py", "env=mine/meet", "chunks=2")
    assert list(shoal.load(folder).config.imports) == [str(mine)]
    mine.write_text(mine.read_text() + "\nPath = 1 / 0\n")  # what a stranger may have put there
    del sys.modules["mine"]
    with pytest.raises(SystemExit):
        train(f"resume={folder}", "total_steps=512", small=False)
    said = capsys.readouterr().err
    assert f"resume={folder}: was trained with import=[{mine}], and a folder runs no code by itself" in said
    train(f"resume={folder}", "total_steps=512", "import=yours.py", small=False)  # another place of the same
    assert shoal.load(folder).metrics.env_steps.max() == 512
    train(f"resume={folder}", "total_steps=768", "import=[]", small=False)
    assert shoal.load(folder).metrics.env_steps.max() == 768


def test_commands_import_too(mine, shell, tmp_path):
    listed = shell(Path("-m"), "shoal", "list", "envs", "mine", "import=mine.py", cwd=tmp_path)
    assert listed.stdout == "mine/meet\n", listed.stderr
    words = ["ippo", *SMALL, "import=mine.py", "env=mine/meet", "chunks=2", "-m", "seed=0,1", "hydra.sweep.dir=both"]
    done = shell(Path("-m"), "shoal", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = sorted(path.parent for path in (tmp_path / "both").rglob("metrics.csv"))
    assert len(folders) == 2 and all("imports" not in str(folder) for folder in folders)
    run(["export", str(folders[0]), "import=mine.py", "out=team"])
    assert (tmp_path / "team" / "policy.json").exists()


def test_mistakes(mine, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    for words, line in (
        (["ippo", "env=my/meat"], "error: env=my/meat: no such environment; "),
        (["ippo", "import=nowhere.py"], "error: import=nowhere.py: no such Python file"),
        (["report", "import=no_such_module", "runs"], "error: import=no_such_module: no module no_such_module"),
    ):
        with pytest.raises(SystemExit):
            run(words)
        said = capsys.readouterr().err
        assert said.startswith(line) and len(said.splitlines()) == 1
        assert "my/meat" not in said or "import the module that registers it (import=<file.py>)" in said


def test_a_benchmark_hands_it_to_every_training(mine):
    settings, others = read(["algorithms=[ippo]", "tasks=[mine/meet]", "import=mine.py", "seeds=2"])
    assert settings.tasks == ["mine/meet"] and others == [f"imports=['{mine}']"]
