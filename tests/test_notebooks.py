"""The notebooks run from top to bottom, at a small size; what is committed shows its pictures and no machine."""

from __future__ import annotations

import os
import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL = "TOTAL_STEPS, SEEDS = 4096, 2"  # in place of the notebook's own sizes
LARGEST = 200_000  # bytes of a committed notebook


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["new_environment", "quickstart", "sweep_analysis"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    position = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    assert {"TOTAL_STEPS", "SEEDS"} <= set(re.findall(r"^(\w+) =", notebook.cells[position].source, re.MULTILINE))
    notebook.cells.insert(position + 1, nbformat.v4.new_code_cell(SMALL))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pictures = [o for cell in notebook.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) >= 3
    if path.stem != "new_environment":  # and the folder that it talks of is there
        assert (tmp_path / "runs" / path.stem / "metrics.csv").exists()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed(path):
    text = path.read_text()
    assert len(text) < LARGEST
    for place in ("/root", "/home", "/tmp", "/work", "site-packages", str(ROOT)):
        assert place not in text, place
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))  # run in order, from a new kernel
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
