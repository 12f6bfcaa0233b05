"""The examples run, and what they show is so."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import shoal
from tests.conftest import ROOT, SMALL

SIZES = [word for word in SMALL if not word.startswith("env")]


@pytest.mark.parametrize("network", ["attend", "mlp"])
def test_a_network_and_an_environment_of_ones_own(shell, tmp_path, network):
    result = shell(ROOT / "examples" / "attend.py", *SIZES, f"algo.actor.network={network}", f"run.dir={tmp_path}")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "example/forage" in result.stdout
    kernels = [x.shape[-2:] for name, x in load_file(tmp_path / "policies.safetensors").items() if "kernel" in name]
    assert ((3, 8) in kernels) == (network == "attend")  # rows of three features, or 24 numbers
    assert ((24, 8) in kernels) == (network == "mlp")


def test_attention_does_not_care_for_the_order_of_entities():
    from examples.attend import Attend

    module = Attend((8,), "tanh", (5, 3))
    table = jax.random.normal(jax.random.PRNGKey(0), (4, 5, 3))
    params = module.init(jax.random.PRNGKey(1), table.reshape(4, -1))
    shuffled = module.apply(params, table[:, ::-1].reshape(4, -1))
    np.testing.assert_allclose(module.apply(params, table.reshape(4, -1)), shuffled, rtol=1e-5, atol=1e-6)
    assert not np.allclose(shuffled, module.apply(params, 2 * table[:, ::-1].reshape(4, -1)))


def test_a_callback_anneals_the_clip_range_and_another_stops(shell, tmp_path):
    script = ROOT / "examples" / "anneal_clip.py"
    words = [
        *SIZES,
        "env=matrix/climbing",
        f"callbacks=[{script}:stop_when_it_stands_still]",
        "chunks=8",
        "hypers.lr=0",
    ]
    result = shell(script, *words, f"run.dir={tmp_path}")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "callback stop_when_it_stands_still asked to stop" in result.stderr and "goes on" in result.stdout
    table = shoal.load(tmp_path).metrics
    clip = table[table.run == 0].sort_values("env_steps")["hypers/clip_eps"].to_numpy()
    assert 6 <= len(clip) < 8 and (np.diff(clip) < 0).all()


def test_an_environment_of_twenty_five_lines(train):
    import examples.meet

    code = Path(examples.meet.__file__).read_text().split('"""\n', 1)[1].strip()
    assert sum(bool(line) for line in code.splitlines()) <= 25
    assert f"```python\n{code}\n```" in (ROOT / "CONTRIBUTING.md").read_text()
    assert len(shoal.load(train(f"import={examples.meet.__file__}", "env=my/meet")).metrics) == 8
