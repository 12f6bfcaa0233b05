"""The page "where is what" names files and functions that are there."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGES = ("where", "origins")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_the_page_exists(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    paths = re.findall(r"`((?:baselines|envs|config|shoal|scripts|tools|results|examples|tests)/[\w./]*)`", text)
    assert len(paths) > 10
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_functions_named_on_the_page_are_in_their_files():
    state = (ROOT / "shoal" / "run" / "state.py").read_text()
    assert "def train_chunk(" in state and "objective" in state
    assert "LOGGERS" in (ROOT / "shoal" / "config" / "settings.py").read_text()
    assert "def optimiser(" in (ROOT / "baselines" / "ippo" / "ippo_ff_mpe.py").read_text()
    wrappers = (ROOT / "envs" / "wrappers.py").read_text()
    assert "class TimeLimit(" in wrappers and "class AutoReset" in wrappers
