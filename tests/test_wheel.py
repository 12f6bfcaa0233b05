"""The wheel: one name, everything that a training needs, from any folder, whatever lies beside a user's file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import ROOT, SMALL

SOURCES = ("baselines", "config", "envs", "shoal", "LICENSE", "README.md", "pyproject.toml")
TRAIN_AND_REPORT = """
import sys, shoal, shoal.__main__ as command
assert shoal.__file__.startswith(sys.argv[1]), shoal.__file__
command.run(["list", "algorithms"])
folder, words = sys.argv[2], sys.argv[3:]
command.run(["ippo", *words, "run.dir=" + folder])
assert command.run(["report", folder, "--animations", "0"]) == 0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of the sources, built beside them."""
    pytest.importorskip("build")
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, source)
    here = int(version("setuptools").partition(".")[0]) >= 77  # else a newer one is fetched
    command = [sys.executable, "-m", "build", "--wheel", *["--no-isolation"] * here, str(source)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """The wheel, unpacked as pip would."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def python(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess:
    """Python with the wheel, run from ``folder``."""
    environment = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_one_name_and_all_files(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"shoal"} and len(tops) == 2
    for folder, inside, pattern in (
        ("config", "recipes", "*.yaml"),
        ("baselines", "baselines", "*.py"),
        ("envs", "envs", "*.py"),
        ("shoal/report/web", "report/web", "*.*"),
    ):
        shipped = {f"shoal/{inside}/{path.relative_to(ROOT / folder)}" for path in (ROOT / folder).rglob(pattern)}
        assert shipped and shipped <= names, sorted(shipped - names)
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    assert "shoal = shoal.__main__:main" in zipfile.ZipFile(wheel).read(entry).decode()


def test_it_trains_and_reports_from_any_folder(site, tmp_path):
    done = python(site, tmp_path, "-c", TRAIN_AND_REPORT, str(site), "mine", *SMALL, "chunks=2", "env=mpe/simple_tag")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("iddpg\n") and (tmp_path / "mine" / "report.html").exists()
    for name in ("envs", "config", "baselines", "recipes"):
        alone = python(site, tmp_path, "-S", "-c", f"import shoal, {name}")  # without what else is installed here
        assert f"No module named '{name}'" in alone.stderr


def test_what_lies_beside_a_copy_does_no_harm(site, tmp_path):
    """A user's own ``config.py``, ``envs/``, ``baselines/``, ``scripts/`` are not ours."""
    (tmp_path / "config.py").write_text("1 / 0\n")
    for name in ("envs", "baselines", "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("1 / 0\n")
    made = python(site, tmp_path, "-m", "shoal", "new", "my_idea", "--from", "ippo")
    assert made.returncode == 0 and "python my_idea.py" in made.stdout, made.stderr
    words = [*SMALL, "chunks=2", "env=mpe/simple_tag", "run.dir=mine"]
    done = python(site, tmp_path, "my_idea.py", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "recipe: my_idea" in (tmp_path / "mine" / "config.yaml").read_text()
