"""Networks by name: what each sees of whom, what every field does, and a user's own."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.errors import UserError
from shoal.nn import models, networks
from shoal.nn.models import Inputs, Model
from tests.baselines.toy import wavy

AGENTS, SIZE = 4, 6
IMAGE = Inputs(shape=(2, 3, 1), position=(0, 2))


class Network(nn.Module):
    """A torso and a memory, as in the algorithm files."""

    model: Model
    inputs: Inputs = IMAGE

    @nn.compact
    def __call__(self, x, alive):
        """``x [T, E, A, O]``."""
        features = models.torso(self.model, self.inputs, x, alive)
        memory = models.initial_memory(self.model, x.shape[1:-1])
        return models.remember(self.model, memory, features, jnp.zeros((*x.shape[:-1], 1), bool))[1]


def rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 3, AGENTS, SIZE)).astype(np.float32)


EVERYONE = np.ones((2, 3, AGENTS, 1), bool)


def apply(model: Model, x, alive=EVERYONE, inputs: Inputs = IMAGE):
    network = Network(model, inputs)
    params = wavy(jax.eval_shape(network.init, jax.random.PRNGKey(0), x, alive))
    return network.apply(params, x, alive)


SMALL = {"widths": (5, 7), "channels": (3,), "hidden": 4}
BASES = {name: Model(name, **SMALL) for name in (*models.TORSOS, "gru", "lstm")}
FIELDS = {
    "widths": ((5, 8), tuple(BASES)),
    "activation": ("relu", tuple(BASES)),
    "layer_norm": (True, tuple(BASES)),
    "channels": ((4,), ("cnn",)),
    "radius": (1.0, ("gnn",)),
    "torso": ("deepsets", ("gru", "lstm")),
    "hidden": (3, ("gru", "lstm")),
    "after": ((4,), ("gru", "lstm")),
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_does_something_where_it_says_so_and_nothing_elsewhere(field):
    choice, where = FIELDS[field]
    for name, base in BASES.items():
        before, after = (apply(model, rows()) for model in (base, dataclasses.replace(base, **{field: choice})))
        same = before.shape == after.shape and np.allclose(before, after, atol=1e-6)
        assert same == (name not in where), name


def test_no_field_and_no_network_is_forgotten():
    masks = {"elastic", "max_width", "max_depth", "mutable_activation"}  # tests/shoal/test_elastic.py
    assert {field.name for field in dataclasses.fields(Model)} == {*FIELDS, *masks, "network"}
    assert {*models._names()} == {*BASES}
    outputs = [apply(model, rows()) for model in BASES.values()]
    for i, one in enumerate(outputs):
        assert all(one.shape != other.shape or not np.allclose(one, other) for other in outputs[:i])


@pytest.mark.parametrize("activation", networks.ACTIVATIONS)
def test_every_activation_is_another(activation):
    outputs = {name: apply(Model(widths=(5,), activation=name), rows()) for name in ("elu", activation)}
    assert np.allclose(*([*outputs.values()] * 2)[:2]) == (activation == "elu")


def influence(model: Model, x, alive, inputs=IMAGE) -> np.ndarray:
    """``[A, A]``: whether agent i's features depend on agent j's row, in the first environment and step."""

    def features(row):
        return apply(model, row[None, None], alive[None, None], inputs)[0, 0].sum(axis=-1)

    by_row = np.abs(jax.jit(jax.jacrev(features))(x)).sum(axis=-1)
    assert np.isfinite(by_row).all()
    return by_row > 0


@pytest.mark.parametrize("name", ["mlp", "cnn", "deepsets", "gnn"])
def test_agents_see_each_other_only_where_networks_mix_and_never_the_dead(name):
    alive = np.array([True, False, True, True])[:, None]
    seen = influence(BASES[name], rows()[0, 0], alive)
    expected = np.eye(AGENTS, dtype=bool)
    if BASES[name].mixes:
        expected = expected | alive[:, 0]  # a dead one sees itself, and others see it no more
    np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("name", ["deepsets", "gnn"])
@pytest.mark.parametrize("poison", [1e6, np.nan])
def test_nothing_of_a_dead_agent_is_heard(name, poison):
    alive = EVERYONE.copy()
    alive[:, :, 1] = False
    clean, poisoned = rows(), rows()
    poisoned[:, :, 1] = poison
    living = [0, 2, 3]
    outputs = [np.asarray(apply(BASES[name], x, alive))[:, :, living] for x in (clean, poisoned)]
    np.testing.assert_array_equal(*outputs)
    without = apply(BASES[name], clean[:, :, living], alive[:, :, living])  # as if it had never been
    np.testing.assert_allclose(outputs[0], without, rtol=1e-5, atol=1e-6)
    assert not np.allclose(outputs[0], np.asarray(apply(BASES[name], clean))[:, :, living])


@pytest.mark.parametrize("name", ["mlp", "cnn", "deepsets", "gnn", "gru", "lstm"])
def test_the_order_of_agents_does_not_matter(name):
    order = np.array([2, 0, 3, 1])
    alive = np.random.default_rng(1).random(EVERYONE.shape) < 0.7
    straight, shuffled = apply(BASES[name], rows(), alive), apply(BASES[name], rows()[:, :, order], alive[:, :, order])
    np.testing.assert_allclose(straight[:, :, order], shuffled, rtol=1e-5, atol=1e-5)


def test_a_graphs_neighbours_are_within_the_radius():
    x = rows()[0, 0]
    x[:, :2] = [[0.0, 0.0], [0.9, 0.0], [1.8, 0.0], [0.0, 5.0]]  # a chain of three, and one far away
    alive = EVERYONE[0, 0]
    one_round = Model("gnn", (5,), radius=1.0)
    expected = np.eye(AGENTS, dtype=bool)
    expected[[0, 1, 1, 2], [1, 0, 2, 1]] = True
    np.testing.assert_array_equal(influence(one_round, x, alive), expected)
    two_rounds = influence(dataclasses.replace(one_round, widths=(5, 5)), x, alive)
    expected[[0, 2], [2, 0]] = True  # what neighbours heard of theirs
    np.testing.assert_array_equal(two_rounds, expected)
    x[3, :2] = [0.0, 0.5]  # comes near agent 0
    seen = influence(one_round, x, alive)
    assert seen[0, 3] and seen[3, 0] and not seen[3, 2]
    assert influence(dataclasses.replace(one_round, radius=0.0), x, alive).all()


def test_a_graph_knows_where_its_neighbours_are():
    moved = rows()
    moved[..., :2] += 3.0  # all together: what lies between them is unchanged, what each sees of itself is not
    known, unknown = (Inputs((), (0, 2)), Inputs((), None))
    model = Model("gnn", (5,))
    params = [jax.eval_shape(Network(model, i).init, jax.random.PRNGKey(0), rows(), EVERYONE) for i in (known, unknown)]
    assert jax.tree.structure(params[0]) != jax.tree.structure(params[1])
    assert not np.allclose(apply(model, rows(), inputs=known), apply(model, moved, inputs=known))


class Attend(nn.Module):
    """Attention of an agent over the entities that it sees: a user's own network."""

    width: int
    shape: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        entities = x[..., : int(np.prod(self.shape))].reshape(*x.shape[:-1], *self.shape)  # [..., A, N, F]
        hidden = nn.Dense(self.width)(entities)
        weights = jax.nn.softmax(nn.Dense(1)(hidden), axis=-2)
        return (weights * hidden).sum(axis=-2)


class Listen(nn.Module):
    """What living agents say together: one that mixes."""

    @nn.compact
    def __call__(self, x, alive):
        said = jnp.where(alive, nn.Dense(3)(x), 0.0)
        return jnp.broadcast_to(jnp.square(said).sum(axis=-2, keepdims=True), said.shape)


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(models, "TORSOS", dict(models.TORSOS))


def test_a_users_own_network_reads_entities_alone_and_before_a_memory(registry):
    models.register("attend", lambda model, inputs: Attend(model.widths[-1], inputs.shape))
    inputs = Inputs(shape=(3, 2))
    out = np.asarray(apply(Model("attend", (5,)), rows(), inputs=inputs))
    assert out.shape == (2, 3, AGENTS, 5)
    swapped = rows().reshape(2, 3, AGENTS, 3, 2)[..., [2, 0, 1], :].reshape(rows().shape)
    np.testing.assert_allclose(out, apply(Model("attend", (5,)), swapped, inputs=inputs), rtol=1e-5, atol=1e-6)
    assert apply(Model("gru", (5,), torso="attend", hidden=4), rows(), inputs=inputs).shape == (2, 3, AGENTS, 4)
    assert "attend" in models._names() and not Model("attend").mixes


def test_a_users_own_network_may_mix(registry):
    models.register("listen", lambda model, inputs: Listen(), mixes=True)
    assert Model("listen").mixes and Model("lstm", torso="listen").mixes
    alive = np.array([True, False, True, True])
    heard = influence(Model("listen"), rows()[0, 0], alive[:, None])
    np.testing.assert_array_equal(heard, np.broadcast_to(alive, (AGENTS, AGENTS)))


@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_a_name_is_taken_once(registry, name):
    with pytest.raises(UserError, match="there is a network of this name already"):
        models.register(name, lambda model, inputs: Listen())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Model("gru"), "algo.actor.network=gru: this file has no memory"),
        (Model("cnn"), "algo.actor.network=cnn: test/env has no image observations"),
        (Model("gru", torso="cnn"), "algo.actor.torso=cnn: test/env has no image observations"),
        (Model("gnn", radius=0.5), "algo.actor.radius=0.5: test/env does not show positions"),
        (Model("gru", torso="gnn", radius=0.5), "algo.actor.radius=0.5: test/env does not show positions"),
    ],
)
def test_what_an_environment_cannot_feed_is_said(model, message):
    blind = SimpleNamespace(name="test/env", obs_shape=(3, 2), position=None)
    recurrent = model.network in ("gru", "lstm") and "memory" not in message
    with pytest.raises(UserError, match=message):
        models.check("algo.actor", model, blind, recurrent)
    models.check("algo.actor", model, SimpleNamespace(name="x", obs_shape=(2, 3, 1), position=(0, 2)), recurrent=True)
    models.check("algo.actor", Model("gnn"), blind, recurrent=False)
    models.check("algo.actor", Model("mlp", radius=0.5), blind, recurrent=False)


def test_a_radius_needs_true_distances():
    seeing = SimpleNamespace(name="test/env", obs_shape=(), position=(0, 2))
    models.check("algo.actor", Model("gnn", radius=0.5), seeing, recurrent=False)
    with pytest.raises(UserError, match="hides distances"):
        models.check("algo.actor", Model("gnn", radius=0.5), seeing, recurrent=False, normalised=True)
