"""The speed comparison runs from end to end; its figures mean nothing at this size."""

from __future__ import annotations

import json
import os

from tests.conftest import ROOT

# A third less to compile in this XLA; one that no longer knows the flag says so.
FLAGS = "--xla_cpu_use_fusion_emitters=false"


def test_measures_training_environment_reference_and_products(shell, tmp_path):
    figures_file = tmp_path / "speed.json"
    words = ("--quick", "--updates", "1", "--runs", "1", "--json", figures_file)
    environment = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {FLAGS}"}
    done = shell(ROOT / "tools" / "speed.py", *words, env=environment)
    assert done.returncode == 0, done.stderr
    assert "as fast as the reference" in done.stdout.splitlines()[-1]
    figures = json.loads(figures_file.read_text())
    names = [row["name"] for row in figures["trainings"]]
    assert names == ["shoal", "reference", "products", "products, transposed"]
    assert all(row["speed"] > 0 and row["compile_seconds"] > 0 for row in figures["trainings"])
    # The first two updates of both learners: a random policy in the same game, 25 steps here and 26 there.
    ours, reference = (row["episode_return"] for row in figures["trainings"][:2])
    assert abs(ours - reference) < 0.3 * abs(ours)
    assert [row["name"] for row in figures["random_play"]][1:] == ["jaxmarl_mpe/simple_spread", "jaxmarl's step"]
    assert figures["breakdown_ms"]["rollout: environment and policy"] > figures["breakdown_ms"]["environment alone"]
