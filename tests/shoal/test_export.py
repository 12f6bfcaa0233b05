"""An exported policy plays by numpy as by JAX: every network, head and algorithm file, and what can go wrong."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from safetensors.numpy import load_file

import shoal
from shoal.algorithm import algorithm_in
from shoal.baselines.ippo import ippo_ff_mpe, ippo_rnn_smax
from shoal.baselines.maddpg import maddpg_ff_mpe
from shoal.baselines.mappo import mappo_ff_vmas, mappo_rnn_smax
from shoal.baselines.masac import masac_ff_vmas
from shoal.baselines.qmix import pqn_rnn_smax, qmix_rnn_mpe
from shoal.envs.base import Continuous, Discrete, Env, MultiDiscrete, TimeStep, size_mask
from shoal.envs.wrappers import TimeLimit
from shoal.errors import UserError
from shoal.export import deploy, export
from shoal.export.compiled import load_compiled
from shoal.export.deploy import Policy, PolicyError, load_policy
from shoal.nn import models, networks
from shoal.nn.models import Inputs, Model
from tests.baselines.toy import toy, with_methods
from tests.conftest import ROOT

STEPS, ENVS, AGENTS, SIZE = 4, 3, 3, 14
SPACES = {
    "discrete": Discrete((4, 4, 3)),
    "multi_discrete": MultiDiscrete(((3, 2), (3, 2), (1, 2))),
    "continuous": Continuous((2, 2, 1), np.array([[-1, -2], [0, -1], [-3, -1]], np.float32), np.full((3, 2), 1.5, "f")),
}


class Still(Env):
    """Three agents of two teams, of unequal observations and actions; nothing ever happens."""

    name = "test/still"
    agents, groups = ("red_0", "red_1", "blue_0"), ("red", "red", "blue")
    obs_sizes, obs_shape, state_size, position = (SIZE, SIZE, SIZE - 2), (2, 3, 2), 4, (0, 2)
    horizon = 5

    def __init__(self, kind: str):
        self.action_space = SPACES[kind]

    def reset(self, key):
        mask, nobody = jnp.asarray(size_mask(self.action_space.sizes)), jnp.zeros(3)
        never = jnp.bool_(False)
        step = TimeStep(jnp.zeros((3, SIZE)), jnp.zeros(4), mask, nobody, never, never, jnp.ones(3, bool), {})
        return jnp.int32(0), step

    def step(self, key, state, action):
        return self.reset(key)


def drawn(like):
    """Numbers of these shapes of which none is zero, and variances above it, without compiling anything."""
    rng = np.random.default_rng(0)

    def draw(path, x):
        values = rng.normal(0.0, 0.6, x.shape).astype(np.float32)
        return jnp.asarray(np.abs(values) + 0.05 if "variance" in jax.tree_util.keystr(path) else values)

    return jax.tree_util.tree_map_with_path(draw, like)


def policy_like(algorithm, hypers):
    """A policy of the algorithm's shapes."""
    return drawn(jax.eval_shape(lambda: algorithm.policy(algorithm.init(jax.random.PRNGKey(0), hypers).learnt)))


def steps_of(space, seed: int = 0) -> dict[str, np.ndarray]:
    """What ``ENVS`` environments show: some actions are illegal (once all), some agents dead, some episodes new."""
    rng = np.random.default_rng(seed)
    shape = (STEPS, ENVS, AGENTS)
    obs = 2.0 * rng.normal(size=(*shape, SIZE)).astype(np.float32)
    mask = np.broadcast_to(size_mask(space.sizes), (*shape, space.size)).copy()
    if not isinstance(space, Continuous):
        mask &= rng.random(mask.shape) < 0.8
        mask[1, 0, 0] = False
    alive, first = rng.random(shape) < 0.7, rng.random((STEPS, ENVS)) < 0.3
    alive[2, 1] = False
    return {"obs": obs, "mask": mask, "alive": alive, "first": first}


def one_by_one(steps) -> list[dict[str, np.ndarray]]:
    return [{name: array[t] for name, array in steps.items()} for t in range(STEPS)]


def by_jax(algorithm, policy, steps, agent_id: bool) -> np.ndarray:
    """``[T, E, ...]``: the actions of the algorithm's own ``act``."""
    ids = np.broadcast_to(np.eye(AGENTS, dtype=np.float32), (STEPS, ENVS, AGENTS, AGENTS))
    steps = steps | {"obs": np.concatenate([steps["obs"], ids], axis=-1)} if agent_id else steps

    def act(carry, x):
        never, state = jnp.zeros(ENVS, bool), jnp.zeros((ENVS, 4))
        seen = TimeStep(x["obs"], state, x["mask"], x["obs"][..., 0], never, never, x["alive"], {})
        carry = jax.tree.map(lambda leaf: jnp.where(x["first"][:, None, None], 0.0, leaf), carry)
        return algorithm.act(policy, carry, seen, jax.random.PRNGKey(0), True)

    return np.asarray(jax.jit(lambda x: jax.lax.scan(act, algorithm.initial_memory(ENVS), x)[1])(steps))


def exported(config, algorithm, policy, base: Env) -> Policy:
    """As ``export.save`` describes it, through JSON."""
    description, arrays = export.describe(export.as_dict(config), algorithm, policy)
    facts = {"algorithm": "test", "environment": base.name}
    return Policy(json.loads(json.dumps(facts | export.spaces(base) | description)), arrays)


FF, RNN = Model(widths=(6,)), Model("gru", widths=(6,), hidden=5, after=(4,), layer_norm=True)
PPO = {
    "ippo_ff": (ippo_ff_mpe, {"actor": FF, "critic": FF}),
    "ippo_rnn": (ippo_rnn_smax, {"actor": RNN, "critic": FF}),
    "mappo_ff": (mappo_ff_vmas, {"actor": FF, "critic": FF}),
    "mappo_rnn": (mappo_rnn_smax, {"actor": RNN, "critic": FF}),
}
FILES = PPO | {
    "maddpg": (maddpg_ff_mpe, {"actor": FF, "q": FF, "batch_size": 8}),
    "masac": (masac_ff_vmas, {"actor": FF, "q": FF, "batch_size": 8}),
    "qmix": (qmix_rnn_mpe, {"q": RNN, "buffer_size": 64, "batch_size": 2}),
    "pqn": (pqn_rnn_smax, {"q": FF}),
}
CASES = [  # file, action space, what else: every file, and every space and option in some of them
    ("ippo_ff", "discrete", {"normalise_obs": True, "agent_id": True}),
    ("ippo_ff", "multi_discrete", {"sharing": "independent"}),
    ("ippo_rnn", "discrete", {"sharing": "independent", "normalise_obs": True}),
    ("ippo_rnn", "continuous", {"sharing": "group", "agent_id": True}),
    ("mappo_ff", "continuous", {"normalise_obs": True, "agent_id": True}),
    ("mappo_rnn", "multi_discrete", {"agent_id": True}),
    ("mappo_rnn", "continuous", {"continuous_policy": "clipped_normal", "normalise_obs": True}),
    ("maddpg", "discrete", {"normalise_obs": True}),
    ("maddpg", "multi_discrete", {"sharing": "group"}),
    ("maddpg", "continuous", {"sharing": "independent"}),
    ("masac", "discrete", {"sharing": "group"}),
    ("masac", "continuous", {}),
    ("qmix", "discrete", {}),
    ("pqn", "discrete", {"sharing": "independent", "agent_id": False}),
]


@pytest.mark.parametrize(("name", "kind", "changes"), CASES)
def test_every_file_acts_by_numpy_as_by_jax(name, kind, changes):
    module, small = FILES[name]
    config = module.Config(**{"total_steps": 64, "num_envs": 4, "rollout_length": 8} | small | changes)
    base = TimeLimit(Still(kind))
    algorithm = algorithm_in(module)(config, base)
    policy = policy_like(algorithm, module.Hypers())
    steps = steps_of(base.action_space)
    played = exported(config, algorithm, policy, base)
    assert played.head in export.HEADS and ("q" in policy) == (played.head == "values")
    expected = by_jax(algorithm, policy, steps, config.agent_id)
    actions = np.stack([played.act(**x) for x in one_by_one(steps)])
    assert actions.shape == expected.shape and actions.dtype == expected.dtype
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-5)
    assert len(np.unique(expected)) > 1  # not one action for all


class Network(nn.Module):
    """A policy network with a memory, as in the algorithm files."""

    model: Model
    inputs: Inputs = Inputs((2, 3, 2), (0, 2))

    @property
    def mixes(self):
        return self.model.mixes

    @nn.compact
    def __call__(self, memory, x, is_first, alive):
        features = models.torso(self.model, self.inputs, x, alive)
        memories, features = models.remember(self.model, memory, features, is_first)
        return memories, networks.Dense(5, name="head")(features)


def compare(model: Model, policy_of: list[int], inputs: Inputs = Network.inputs) -> None:
    """Outputs and memories of some steps, by flax and by numpy."""
    network, policy_of = Network(model, inputs), np.array(policy_of)
    env = TimeLimit(Still("discrete"))
    env.position = inputs.position
    steps, nothing = steps_of(env.action_space), models.initial_memory(model, (ENVS, AGENTS))
    is_first = np.broadcast_to(steps["first"][..., None, None], (STEPS, ENVS, AGENTS, 1))
    seen = (nothing, steps["obs"], is_first, steps["alive"][..., None])
    init = lambda *x: networks.init_policies(network, jax.random.PRNGKey(0), policy_of.max() + 1, *x)  # noqa: E731
    params = drawn(jax.eval_shape(init, *seen))
    memories, outputs = jax.jit(lambda *x: networks.apply_policies(network, params, policy_of, *x))(*seen)

    arrays = {}
    for module, part in params.items():
        arrays |= export.policies.flatten(part, export._part(module, model.reads))
    description = {"algorithm": "test", "environment": "test", "head": "values", "agent_id": False, "obs_limit": None}
    description |= export.spaces(env) | {"network": export.network_of(model, env), "policy_of": policy_of.tolist()}
    policy = Policy(description, arrays)
    for t, x in enumerate(one_by_one(steps)):
        ours, _, _ = policy._step(**x)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, outputs[t], rtol=1e-5, atol=1e-5)
        for kept, theirs in zip(policy._memory, jax.tree.leaves(memories), strict=True):
            np.testing.assert_allclose(kept, theirs[t], rtol=1e-5, atol=1e-5)


SMALL = {"activation": "tanh", "widths": (6, 4), "channels": (3, 2), "hidden": 5}
NETWORKS = {
    **{name: Model(name, **SMALL) for name in deploy.TORSOS},
    "gnn with a radius": Model("gnn", radius=3.0, **SMALL),
    "gru": Model("gru", **SMALL),
    "lstm behind cnn without layers": Model("lstm", torso="cnn", channels=(3,), widths=(), hidden=5),
    "gru behind deepsets": Model("gru", torso="deepsets", **SMALL),
    "gru and layers": Model("gru", after=(4, 3), layer_norm=True, **SMALL),
    "lstm and layers behind gnn": Model("lstm", torso="gnn", after=(4,), **SMALL),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_says_the_same_by_numpy(name):
    compare(NETWORKS[name], [0, 0, 0])


@pytest.mark.parametrize("name", ["mlp", "gnn", "lstm behind cnn without layers", "gru behind deepsets"])
def test_two_parameter_sets(name):
    compare(NETWORKS[name], [1, 0, 1])


@pytest.mark.parametrize("activation", sorted({*networks.ACTIVATIONS} - {SMALL["activation"]}))
def test_every_activation(activation):
    compare(Model(**SMALL | {"activation": activation}), [0, 0, 0])


@pytest.mark.parametrize("name", ["cnn", "deepsets", "gnn"])  # mlp has it above
def test_layer_norm(name):
    compare(Model(name, layer_norm=True, **SMALL), [0, 0, 0])


def test_a_graph_without_positions():
    compare(Model("gnn", **SMALL), [0, 0, 0], Inputs())


def test_numpy_knows_whatever_the_library_has():
    shipped = {name for name, entry in models.TORSOS.items() if entry.make.__module__ == models.__name__}
    assert shipped == set(deploy.TORSOS) and set(models.memory.MEMORIES) == set(deploy.MEMORIES)
    assert {name for name in shipped if models.TORSOS[name].mixes} == set(deploy.MIXING)
    assert set(networks.ACTIVATIONS) == set(deploy.ACTIVATIONS)


FACTS = {"algorithm": "ippo_rnn", "environment": "test/toy"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The toy's policy with a memory and ids, as numpy and as JAX play it."""
    config = ippo_rnn_smax.Config(num_envs=4, rollout_length=8, actor=RNN, critic=RNN, agent_id=True, sharing="group")
    algorithm = ippo_rnn_smax.IPPO(config, toy())
    policy = policy_like(algorithm, ippo_rnn_smax.Hypers())
    out = tmp_path_factory.mktemp("saved") / "team"
    return export.save(out, config, algorithm, policy, FACTS, with_jax=True), (config, algorithm, policy)


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved[0].folder, tmp_path / "copy")


def seen_by_toy(num_envs: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = (rng.random((num_envs, 3, 4)) < 0.7) & size_mask((4, 4, 3))
    return {"obs": rng.normal(size=(num_envs, 3, 6)), "mask": mask, "alive": np.ones((num_envs, 3), bool)}


def test_a_saved_policy_passes_its_own_check(saved):
    made, _ = saved
    assert sorted(os.listdir(made.folder)) == ["deploy.py", "policy.jax", "policy.json", "policy.safetensors"]
    policy = load_policy(made.folder)
    assert 0 <= policy.check() == made.difference <= 1e-5 and made.steps == 2 * 5  # two episodes of the toy
    assert repr(policy) == "<ippo_rnn on test/toy: 3 agents, discrete actions>"
    facts = policy.description
    assert facts["obs_size"] == 6 and facts["obs_sizes"] == [6, 6, 5]  # without ids
    assert facts["policy_of"] == [0, 0, 1] and facts["network"]["memory"] == "gru"
    recorded = deploy.read_safetensors((made.folder / "policy.safetensors").read_bytes())
    assert (
        not recorded["check/alive"].all() and recorded["check/alive"].any(axis=-1).all()
    )  # real steps, with their dead
    theirs = load_file(made.folder / "policy.safetensors")
    assert recorded.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(recorded[name], array)


def test_nothing_is_exported_through_a_symbolic_link(saved, tmp_path):
    _, (config, algorithm, policy) = saved
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "deploy.py").write_text("precious")
    (tmp_path / "link").symlink_to(theirs)
    with pytest.raises(UserError, match="symbolic link"):
        export.save(tmp_path / "link", config, algorithm, policy, FACTS)
    assert (theirs / "deploy.py").read_text() == "precious" and len(os.listdir(theirs)) == 1


def test_a_check_finds_what_has_changed(saved):
    policy = load_policy(saved[0].folder)
    bias = policy._arrays["head/bias"]
    for other in (bias + np.arange(4), bias * np.nan):
        policy._arrays["head/bias"] = other
        with pytest.raises(PolicyError, match="differs by"):
            policy.check()
    policy._arrays["head/bias"] = bias + np.float32(1)  # the same to all choices
    assert policy.check() == 0


def test_memory_lasts_until_it_is_reset(saved):
    policy, x = load_policy(saved[0].folder), seen_by_toy(3)
    policy._step(**x, first=None)
    (once,) = policy._memory
    policy._step(**x, first=None)
    (twice,) = policy._memory
    assert not np.allclose(once, twice)
    policy.check()  # which leaves alone what is remembered
    policy._step(**x, first=[True, False, True])
    (thrice,) = policy._memory
    np.testing.assert_array_equal(thrice[[0, 2]], once[[0, 2]])
    assert not np.allclose(thrice[1], once[1])
    with pytest.raises(PolicyError, match=r"has 1 environments, and the memory is of 3; call reset\(\)"):
        policy.act(x["obs"][0])
    policy.reset()
    assert policy.act(x["obs"][0]).shape == (3,)


def test_one_team_and_several_act_alike(saved):
    policy, x = load_policy(saved[0].folder), seen_by_toy(3)
    together = policy.act(**x)
    for e in range(3):
        policy.reset()
        np.testing.assert_array_equal(policy.act(**{name: array[e] for name, array in x.items()}), together[e])


def test_an_agent_acts_alone(saved):
    policy, x = load_policy(saved[0].folder), seen_by_toy(40)
    for agents in (["blue_0"], ["blue_0", "red_0"]):
        some, rows = load_policy(saved[0].folder, agents), [policy.agents.index(name) for name in agents]
        policy.reset()
        np.testing.assert_array_equal(some.act(**{n: a[:, rows] for n, a in x.items()}), policy.act(**x)[:, rows])
        some.check()
    with pytest.raises(PolicyError, match="green: these are red_0, red_1, blue_0".replace("green", r"\['green'\]")):
        load_policy(saved[0].folder, ["green"])
    description = policy.description | {"network": policy.network | {"torso": "gnn"}}
    with pytest.raises(PolicyError, match="a gnn needs the observations of all"):
        Policy(description, policy._arrays, ["red_0"])


def test_wrong_shapes_get_one_line(saved):
    policy, x = load_policy(saved[0].folder), seen_by_toy(2)
    for words, message in (
        ({"obs": x["obs"][..., :5]}, r"obs: has shape \(2, 3, 5\), and this policy reads \(3, 6\) or \(E, 3, 6\)"),
        ({"obs": [[1, 2], [3]]}, "obs: must be an array of numbers"),
        (x | {"mask": np.ones((2, 3, 5), bool)}, r"mask: has shape \(2, 3, 5\), and must be \(2, 3, 4\)"),
        (x | {"alive": np.ones(4)}, r"alive: has shape \(4,\), and must be \(2, 3\)"),
        (x | {"first": np.ones(3)}, r"first: has shape \(3,\), and must be \(2,\)"),
    ):
        with pytest.raises(PolicyError, match=message):
            policy.act(**words)


def rewrite(folder, **changes) -> None:
    description = json.loads((folder / "policy.json").read_text()) | changes | {deploy.CHECKSUM: "gone"}
    (folder / "policy.json").write_text(json.dumps({k: v for k, v in description.items() if v != "gone"}))


def test_damaged_files_get_one_line(copy, tmp_path):
    weights, description = copy / "policy.safetensors", copy / "policy.json"
    whole, text = weights.read_bytes(), description.read_text()

    def refused(path=copy) -> str:
        with pytest.raises(PolicyError) as error:
            load_policy(path)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "policy.json: cannot be read (No such file" in refused(tmp_path)
    for damaged in (whole[:-1], whole[:100], b"", bytes([whole[0] ^ 1]) + whole[1:]):
        weights.write_bytes(damaged)
        assert "policy.safetensors: is damaged" in refused()
        # Even if the description says so.
        rewrite(copy, weights={"file": weights.name, "sha256": hashlib.sha256(damaged).hexdigest()})
        assert "does not fit its weights" in refused()
        description.write_text(text)
    weights.write_bytes(whole)
    for broken in (text[:-10], "", "\xff", "[" * 10):
        description.write_text(broken, encoding="latin-1")
        assert "is damaged, or no policy.json" in refused()
    for other in ("[]", "{}", '{"format": "other"}'):
        description.write_text(other)
        assert "does not describe a policy" in refused()
    description.write_text(text)
    rewrite(copy, version=2)
    assert "is of format version 2, and this file reads version 1" in refused()
    for changes in ({"network": "gone"}, {"agents": 3}, {"obs_size": 7}, {"policy_of": [0, 0, 5]}, {"actions": {}}):
        description.write_text(text)
        rewrite(copy, **changes)
        assert "does not fit its weights" in refused()
    description.write_text(text)
    rewrite(copy, weights={"file": "elsewhere"})
    assert "does not say where its weights are" in refused()
    description.write_text(text.replace('"tanh"', '"relu"'))
    assert "policy.json: has changed since it was exported (checksum)" in refused()
    description.write_text(text)
    assert load_policy(description).check() <= 1e-5


def test_nothing_is_exported_that_plays_differently(saved, tmp_path):
    _, (config, algorithm, policy) = saved

    def contrary(self, *arguments):
        carry, action = algorithm.act(*arguments)
        return carry, 1 - action

    other = with_methods(algorithm, act=contrary)
    with pytest.raises(UserError, match="numpy does not play this policy as JAX does"):
        export.save(tmp_path / "out", config, other, policy, FACTS)
    assert not list((tmp_path / "out").iterdir())
    silent = with_methods(algorithm, head="")
    with pytest.raises(UserError, match=r"does not say how outputs become actions .* jax=true"):
        export.save(tmp_path / "out", config, silent, policy, FACTS)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/deeper: cannot be written \(Not a directory\)"):
        export.save(tmp_path / "file" / "deeper", config, algorithm, policy, FACTS)


class Mine(nn.Module):
    """A module of a user's own."""

    @nn.compact
    def __call__(self, x):
        return jnp.sin(nn.Dense(7)(x))


def test_a_network_of_ones_own_needs_jax(monkeypatch, tmp_path):
    monkeypatch.setitem(models.TORSOS, "mine", models.Entry(lambda model, inputs: Mine(), mixes=False))
    config = ippo_ff_mpe.Config(num_envs=4, rollout_length=8, actor=Model("mine"))
    algorithm = ippo_ff_mpe.IPPO(config, toy())
    policy = policy_like(algorithm, ippo_ff_mpe.Hypers())
    with pytest.raises(UserError, match=r"algo.actor.network=mine: a module of your own.* jax=true writes policy.jax"):
        export.save(tmp_path, config, algorithm, policy, FACTS)
    made = export.save(tmp_path, config, algorithm, policy, FACTS, with_jax=True)
    assert sorted(os.listdir(tmp_path)) == ["policy.jax", "policy.json"] and made.difference is None
    with pytest.raises(PolicyError, match=r"has no weights for numpy.*use policy.jax"):
        load_policy(tmp_path)
    assert load_compiled(tmp_path).act(**seen_by_toy(5)).shape == (5, 3)


def test_the_compiled_policy_plays_as_numpy_does(saved, copy):
    policy, compiled = load_policy(copy), load_compiled(copy)
    for first in (None, None, np.arange(6) % 2 == 0, None):
        x = seen_by_toy(6, seed=0 if first is None else 1)
        np.testing.assert_array_equal(compiled.act(**x, first=first), policy.act(**x, first=first))
        (carry,) = policy._memory
        np.testing.assert_allclose(compiled._carry, carry, rtol=1e-5, atol=1e-5)
    compiled.reset()
    assert compiled.act(**seen_by_toy(1)).shape == (1, 3)  # of any number of environments
    assert policy.description["jax"]["platforms"] == ["cpu", "cuda", "tpu"]
    (copy / "policy.jax").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"policy.jax: is damaged, or belongs to another policy.json"):
        load_compiled(copy)
    (copy / "policy.json").unlink()
    with pytest.raises(UserError, match=r"policy.jax: is damaged, or of another version"):
        load_compiled(copy)
    with pytest.raises(UserError, match=r"cannot be read"):
        load_compiled(copy / "elsewhere")


def test_the_compiled_policy_needs_nothing_of_shoal(saved):
    """As docs/deploy.md says."""
    exported = jax_export.deserialize(bytearray((saved[0].folder / "policy.jax").read_bytes()))
    (carry_like, *_), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    carry = jax.tree.map(lambda leaf: np.zeros((2, *leaf.shape[1:]), leaf.dtype), carry_like)
    x = seen_by_toy(2)
    obs = x["obs"].astype(np.float32)
    carry, action = exported.call(carry, obs, x["mask"], x["alive"], np.ones(2, bool))
    np.testing.assert_array_equal(action, load_policy(saved[0].folder).act(**x))


def still(kind: str, **changes) -> Policy:
    """An IPPO policy of one layer."""
    config = ippo_ff_mpe.Config(num_envs=4, rollout_length=8, actor=FF, critic=FF, **changes)
    base = TimeLimit(Still(kind))
    algorithm = ippo_ff_mpe.IPPO(config, base)
    return exported(config, algorithm, policy_like(algorithm, ippo_ff_mpe.Hypers()), base)


def test_without_a_mask_an_agent_has_all_its_actions_and_no_other():
    policy, obs = still("discrete"), np.random.default_rng(0).normal(size=(400, AGENTS, SIZE))
    actions = policy.act(obs)
    assert set(actions[:, 2].tolist()) == {0, 1, 2} and set(actions[:, 0].tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(actions, policy.act(obs, size_mask((4, 4, 3)), [True] * 3, False))
    only = np.arange(4) == 1
    assert (policy.act(obs, np.broadcast_to(only, (AGENTS, 4))) == 1).all()


def test_samples_are_the_policys():
    rng, draws = np.random.default_rng(0), 20_000
    obs = np.broadcast_to(0.3 * rng.normal(size=(AGENTS, SIZE)), (draws, AGENTS, SIZE))
    for kind, parts in (("discrete", [4]), ("multi_discrete", [3, 2])):
        policy = still(kind)
        logits, legal, _ = policy._step(obs[0], None, None, None)
        drawn_actions = policy.sample(rng, obs).reshape(draws, AGENTS, -1)
        chances = np.where(legal[0], np.exp(logits[0]), 0.0)
        for d, part in enumerate(np.split(chances, np.cumsum(parts)[:-1], axis=-1)):
            share = (drawn_actions[..., d, None] == np.arange(parts[d])).mean(axis=0)
            np.testing.assert_allclose(share, part / part.sum(-1, keepdims=True), atol=0.02)
    policy = still("continuous")
    mean, log_std = np.split(policy._step(obs[0], None, None, None)[0][0], 2, axis=-1)
    assert log_std.max() < 2.0
    raw = np.arctanh((policy.sample(rng, obs) - policy._centre) / policy._half * (1 - 1e-6))
    np.testing.assert_allclose(np.median(raw, axis=0), mean, atol=0.1)
    spread = np.quantile(raw, 0.75, axis=0) - np.quantile(raw, 0.25, axis=0)
    np.testing.assert_allclose(spread, 1.349 * np.exp(log_std), rtol=0.06)
    policy.head = "values"
    with pytest.raises(PolicyError, match="the policy of test is deterministic; use act"):
        policy.sample(rng, obs)


ALONE = """
import sys
for name in ("jax", "jaxlib", "flax", "safetensors", "omegaconf", "shoal.envs", "shoal.baselines"{others}):
    sys.modules[name] = None  # an import of it fails
sys.path.insert(0, {place!r})
from {module} import load_policy
import numpy as np
policy = load_policy({folder!r})
print(policy.check(), policy.act(np.zeros(({agents}, policy.obs_size))).shape)
"""


def test_numpy_is_all_that_a_robot_needs(saved):
    folder = str(saved[0].folder)
    for module, place, others in (("deploy", folder, ', "shoal"'), ("shoal.export.deploy", str(ROOT), "")):
        code = ALONE.format(module=module, place=place, others=others, folder=folder, agents=3)
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0 and done.stdout.endswith("(3,)\n"), done.stderr


def test_the_command(train, shell, tmp_path, capsys):
    from shoal.export.command import main

    folder = train("env=matrix/hidden", "algo.sharing=independent", "algo.normalise_obs=true", "sweep.lr=[0,1e-3]")
    script = ROOT / "scripts" / "export.py"
    done = shell(script, str(folder), "run=2", "which=last")
    assert done.returncode == 0, done.stderr
    out = folder / "export" / "run_2_last"
    assert done.stdout.splitlines()[0] == "ippo on matrix/hidden: run 2, last policy"
    assert (
        done.stdout.splitlines()[-1] == str(out) and "numpy acts as JAX did in 4 recorded steps, exactly" in done.stdout
    )
    policy = load_policy(out)
    assert policy.check() <= 1e-5 and policy.agents == ("agent_0", "agent_1")
    facts = policy.description
    assert (facts["run"], facts["seed"], facts["which"]) == (2, 0, "last") and facts["swept"] == {"lr": 1e-3}
    assert facts["config_sha256"] == hashlib.sha256((folder / "config.yaml").read_bytes()).hexdigest()
    weights = load_file(folder / "policies.safetensors")
    kernel = weights["last/actor/head/kernel"]
    np.testing.assert_array_equal(policy._arrays["head/kernel"], kernel[2])

    def call(*words: str) -> str:
        with contextlib.suppress(SystemExit):
            main([*words])
        said = capsys.readouterr()
        return said.err or said.out

    os.rename(folder / "export", folder / "theirs")
    (folder / "export").symlink_to("theirs")
    assert "export: cannot be written (is a symbolic link" in call(str(folder))
    assert os.listdir(folder / "theirs") == ["run_2_last"]
    assert call(str(folder), f"out={tmp_path / 'best'}").splitlines()[-1] == str(tmp_path / "best")
    best = load_policy(tmp_path / "best")
    run, training = best.description["run"], shoal.load(folder)
    assert run == training.best and best.description["which"] == "best"
    np.testing.assert_array_equal(best._arrays["head/kernel"], weights["best/actor/head/kernel"][run])
    again = export.export(training, out=tmp_path / "again")
    assert again.description == best.description and again.difference <= 1e-5
    for words, line in (
        ([], "error: no folder: name one folder that a training left behind"),
        ([str(folder), "run=9"], f"error: run 9: {folder} has runs 0 to 3"),
        ([str(folder), "run=worst"], "error: run=worst: must be best, or the number of a run"),
        ([str(folder), "which=first"], "error: which=first: must be one of best, last"),
        ([str(folder), "jax=yes"], "error: jax=yes: must be true or false"),
        (
            [str(folder), "ran=1"],
            "error: ran=1: no such word; did you mean run? these are folder, run, which, out, jax, import",
        ),
        ([str(folder), "import=no.py"], "error: import=no.py: no such Python file"),
        ([str(out)], f"error: {out}: no config.yaml there; name the folder that a training left behind"),
    ):
        assert call(*words) == line + "\n"
    config = folder / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("network: mlp", "network: theirs"))
    assert "algo.actor.network=theirs: not known here; import the file that registers it" in call(str(folder))
    config.write_text(text.replace("name: matrix/hidden", "name: my/env"))
    assert "env=my/env: not known here; import the file that registers it" in call(str(folder))
    config.write_text(text.replace("file: ippo/ippo_ff_mpe", "file: ''"))
    assert "was made by ippo_ff_mpe.py, which is not one of baselines" in call(str(folder))
    config.write_text(text)
    (folder / "policies.safetensors").unlink()
    assert "no policies.safetensors there, which a training writes at its end" in call(str(folder))
