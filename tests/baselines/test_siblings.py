"""The four PPO files stay siblings: between IPPO and MAPPO the critic differs, between ff and rnn the memory."""

from __future__ import annotations

import ast
import difflib

import pytest

from tests.conftest import ROOT

FILES = {
    name: ROOT / "baselines" / name.split("_")[0] / f"{name}.py"
    for name in ("ippo_ff_mpe", "ippo_rnn_smax", "mappo_ff_vmas", "mappo_rnn_smax")
}
CRITIC = [("ippo_ff_mpe", "mappo_ff_vmas"), ("ippo_rnn_smax", "mappo_rnn_smax")]
MEMORY = [("ippo_ff_mpe", "ippo_rnn_smax"), ("mappo_ff_vmas", "mappo_rnn_smax")]


def parts(name: str) -> dict[str, str]:
    """The file's classes, and the methods of the last one (the algorithm), by name, without docstrings and comments."""
    found = {}
    classes = [node for node in ast.parse(FILES[name].read_text()).body if isinstance(node, ast.ClassDef)]
    for node in [*classes[:-1], *(part for part in classes[-1].body if isinstance(part, ast.FunctionDef))]:
        if isinstance(node.body[0], ast.Expr):
            node.body = node.body[1:] or [ast.Pass()]
        found[node.name] = ast.unparse(node)
    return found


def changed(one: str, other: str) -> list[str]:
    """The lines that stand in one of two texts only."""
    lines = difflib.ndiff(one.splitlines(), other.splitlines())
    return [line[2:].strip() for line in lines if line[:1] in "+-"]


@pytest.mark.parametrize(("one", "other"), CRITIC)
def test_ippo_and_mappo_differ_in_the_critic(one, other):
    ours, theirs = parts(one), parts(other)
    assert set(theirs) - set(ours) == {"follow_inputs"} and set(ours) <= set(theirs)
    same = {name for name in ours if ours[name] == theirs[name]}
    assert {"Hypers", "Envs", "Slot", "distribution", "scale_values", "learn", "loss", "act"} <= same
    for name in ("Config", "Transition", "Batch", "rollout", "targets", "update"):
        assert len(changed(ours[name], theirs[name])) <= 3, name


@pytest.mark.parametrize(("one", "other"), MEMORY)
def test_ff_and_rnn_differ_in_the_memory(one, other):
    ours, theirs = parts(one), parts(other)
    assert set(theirs) - set(ours) == {"memories", "initial_memory"} and set(ours) <= set(theirs)
    same = {name for name in ours if ours[name] == theirs[name]}
    assert {"Hypers", "Learnt", "Slot", "distribution", "scale_values", "init_optimiser", "policy"} <= same
    memory = ("memor", "is_first", "length", "outputs", "value", "batch", "Model", "axis=1", "envs")
    for name in ("Config", "loss", "learn", "update"):
        for line in changed(ours[name], theirs[name]):
            assert any(word in line for word in memory), (name, line)
