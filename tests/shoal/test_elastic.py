"""Masked networks: equal to plain ones of the living size, dead units without effect, and how they mutate."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithm import algorithm_in
from shoal.baselines.ippo import ippo_ff_mpe, ippo_rnn_smax
from shoal.baselines.maddpg import maddpg_ff_mpe
from shoal.errors import UserError
from shoal.export import export
from shoal.export.deploy import load_policy
from shoal.nn import elastic, models, networks
from shoal.nn.elastic import Settings
from shoal.nn.models import Inputs, Model
from tests.baselines.toy import toy

close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
POLICY_OF = np.array([0, 1, 1])
FINE = Settings(new_layer=0.4, min_width=2, nodes=(1, 2, 3))
SMALL = Model(widths=(5,), activation="tanh", elastic=True, max_width=8, max_depth=3, mutable_activation=True)


def network(model: Model):
    """A torso, a memory if the model has one, and a head; and inputs to it."""
    x = jax.random.normal(jax.random.PRNGKey(1), (6, 3, 7))  # [T, A, O]
    alive = jnp.ones((6, 3, 1), bool)
    if model.network == "mlp":
        return ippo_ff_mpe.Network(model, Inputs(), 4, 1.0), (x, alive)
    nothing = models.initial_memory(model, (3,))
    module = ippo_rnn_smax.Network(model, Inputs(), 4, 1.0)
    return module, (nothing, x, alive & (jnp.arange(6) % 4 == 0)[:, None, None], alive)


def start(module, inputs, policies: int = 2):
    return jax.jit(lambda *x: networks.init_policies(module, jax.random.PRNGKey(0), policies, *x))(*inputs)


@jax.jit
def mutate(key, params):
    return elastic.mutate_activation(key, elastic.mutate_architecture(key, params, FINE))


def grown(params, seed: int, times: int = 6):
    """Parameters of some random architecture, none of their living weights zero."""
    for key in jax.random.split(jax.random.PRNGKey(seed), times):
        params = mutate(key, params)
    return masks_of(
        params, jax.tree.map(lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params)
    )


def loss(params, module, inputs):
    return jnp.sin(networks.apply_policies(module, params, POLICY_OF, *inputs)[1]).sum()


def masks_of(params, other):
    """``other`` with the masks of ``params``."""
    return jax.tree_util.tree_map_with_path(lambda path, a, b: a if elastic.is_architecture(path) else b, params, other)


def plain_of(module, params):
    """The plain network of the living size, and its parameters."""
    (alive,) = elastic.living(params).values()
    changes = {"widths": alive.widths, "activation": alive.activation or module.model.activation}
    model = dataclasses.replace(module.model, elastic=False, **changes)
    return module.clone(model=model), elastic.cut(params)


def poisoned(params, value: float):
    """The tree with every dead weight set to ``value``."""
    # What a cut drops is dead: mark the rest by cutting a tree of positions.
    positions = jax.tree.map(lambda leaf: np.arange(leaf.size).reshape(leaf.shape), params)
    kept = jax.tree_util.tree_leaves_with_path(elastic.cut(masks_of(params, positions)))
    kept = {jax.tree_util.keystr(path): np.asarray(leaf).reshape(-1) for path, leaf in kept}

    def poison(path, leaf):
        if elastic.is_architecture(path):
            return leaf
        flat = np.full(leaf.size, value, np.float32)
        index = kept.get(jax.tree_util.keystr(path), np.array([], int)).astype(int)
        flat[index] = np.asarray(leaf).reshape(-1)[index]
        return jnp.asarray(flat.reshape(leaf.shape))

    return jax.tree_util.tree_map_with_path(poison, params)


@pytest.mark.parametrize(
    ("memory", "layer_norm", "seeds"), [("mlp", False, 6), ("mlp", True, 4), ("gru", True, 2), ("lstm", False, 2)]
)
def test_a_masked_network_equals_a_plain_one(memory, layer_norm, seeds):
    """Values, and gradients; those of dead weights are zero, whatever they are."""
    model = dataclasses.replace(SMALL, network=memory, layer_norm=layer_norm, hidden=6)
    module, inputs = network(model)
    first = start(module, inputs)
    value_and_grad = jax.jit(jax.value_and_grad(partial(loss, module=module, inputs=inputs)))
    seen = set()
    for seed in range(seeds):
        params = grown(first, seed)
        plain, small = plain_of(module, params)
        value, grads = value_and_grad(params)
        expected, expected_grads = jax.jit(jax.value_and_grad(partial(loss, module=plain, inputs=inputs)))(small)
        close(value, expected)
        # A norm over two units has a gradient that is almost nothing but rounding.
        near = partial(close, atol=1e-3 if layer_norm else 1e-5)
        jax.tree.map(near, elastic.cut(masks_of(params, grads)), expected_grads)
        for path, grad in jax.tree_util.tree_leaves_with_path(grads):
            assert not elastic.is_architecture(path) or not np.any(grad)
        jax.tree.map(np.testing.assert_array_equal, grads, masks_of(grads, poisoned(masks_of(params, grads), 0.0)))
        worse, worse_grads = value_and_grad(poisoned(params, 1e6))
        assert worse == value
        jax.tree.map(np.testing.assert_array_equal, worse_grads, grads)
        seen.add((len(plain.model.widths), plain.model.activation))
    depths, activations = ({part[i] for part in seen} for i in range(2))
    assert len(depths) > 1 and len(activations) > 1
    assert memory != "mlp" or (depths == {1, 2, 3} and activations == {"relu", "elu", "gelu"})


def test_width_48_of_64():
    """The sizes of a recipe: 48 units of 64 in both layers of the largest three."""
    model = Model(widths=(48, 48), elastic=True, max_width=64)
    module, inputs = network(model)
    params = start(module, inputs)
    plain, small = plain_of(module, params)
    assert plain.model.widths == (48, 48) and small["MLP_0"]["Dense_1"]["kernel"].shape == (2, 48, 48)
    close(loss(params, module, inputs), loss(small, plain, inputs))


@pytest.mark.parametrize("memory", ["mlp", "gru"])
def test_it_starts_as_a_plain_network_does(memory):
    """To the bit, so that orthogonality too is that of the living size; without masks there is nothing new at all."""
    model = dataclasses.replace(SMALL, network=memory, widths=(5, 6))
    module, inputs = network(model)
    plain = module.clone(model=dataclasses.replace(model, elastic=False, mutable_activation=False))
    params, expected = (start(m, inputs) for m in (module, plain))
    jax.tree.map(np.testing.assert_array_equal, elastic.cut(params), expected)
    assert elastic.has(params) and elastic.has_activation(params)
    assert not elastic.has(expected) and not elastic.has_activation(expected)
    assert elastic.living(params) == {"": elastic.Living((5, 6), "tanh")}
    jax.tree.map(np.testing.assert_array_equal, params, poisoned(params, 0.0))


def test_how_architectures_mutate():
    """Chances, limits, the same change in every network, and only one at a time."""
    trees = {}
    for name, widths in {"actor": (64, 64), "critic": (128,)}.items():
        module, inputs = network(Model(widths=widths, elastic=True, max_width=128, max_depth=3))
        trees[name] = start(module, inputs)
    keys = jax.random.split(jax.random.PRNGKey(0), 1000)
    after = jax.jit(jax.vmap(lambda key: elastic.describe(elastic.mutate_architecture(key, trees))))(keys)
    after = jax.tree.map(np.asarray, after)
    depth, widths = after["actor/depth"], np.stack([after[f"actor/width_{i}"] for i in range(3)], axis=-1)
    by_layer = depth != 2
    assert abs(by_layer.mean() - 0.2) < 0.04 and abs((depth == 3).mean() - 0.1) < 0.03
    np.testing.assert_array_equal(widths[depth == 3], [[64, 64, 64]] * (depth == 3).sum())
    np.testing.assert_array_equal(widths[depth == 1], [[64, 0, 0]] * (depth == 1).sum())
    units = widths[~by_layer] - [64, 64, 0]
    assert ((units != 0).sum(axis=1) == 1).all() and abs((units[:, 0] != 0).mean() - 0.5) < 0.05
    change, count = np.unique(units.sum(axis=1), return_counts=True)
    # 64 less is clipped to the smallest width.
    np.testing.assert_array_equal(change, [-32, -16, 16, 32, 64])
    np.testing.assert_allclose(count / count.sum(), [2 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6], atol=0.05)
    # A network of one full layer can only shrink, or get another.
    np.testing.assert_array_equal(after["critic/depth"], np.where(by_layer, 2, 1))
    assert set(after["critic/width_0"][~by_layer]) == {112, 96, 64}


def test_mutations_respect_limits_for_ever():
    module, inputs = network(SMALL)
    params = start(module, inputs)

    def step(params, key):
        params = elastic.mutate_architecture(key, params, FINE)
        return params, elastic.describe(params)

    _, seen = jax.jit(lambda keys: jax.lax.scan(step, params, keys))(jax.random.split(jax.random.PRNGKey(0), 300))
    widths = np.stack([seen[f"/width_{i}"] for i in range(3)], axis=-1)
    on = np.arange(3) < np.asarray(seen["/depth"])[:, None]
    assert set(np.asarray(seen["/depth"])) == {1, 2, 3}
    assert not widths[~on].any() and set(widths[on]) == set(range(2, 9))
    assert (np.diff(widths, axis=0) != 0).any(axis=1).all()  # every mutation does something


def test_mutations_keep_what_overlaps():
    """Old weights stay, new units read and are read, new layers are drawn; twins, policies, networks are apart."""
    module, inputs = network(dataclasses.replace(SMALL, widths=(5, 6), layer_norm=True))
    init = jax.jit(jax.vmap(lambda key: networks.init_policies(module, key, 2, *inputs)))
    twins = init(jax.random.split(jax.random.PRNGKey(0)))
    mutate = jax.jit(partial(elastic.mutate_architecture, settings=FINE))
    checked, apart = set(), 0
    for key in jax.random.split(jax.random.PRNGKey(1), 30):
        both = mutate(key, {"params": {"q": twins, "actor": twins}, "target": {"q": twins}})
        after, other = both["params"]["q"], both["params"]["actor"]
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), after, both["target"]["q"])  # as its target
        assert [*elastic.living(after).values()] == [*elastic.living(other).values()]
        apart += any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (after, other)), strict=True))
        before_cut, after_cut = elastic.cut(twins), elastic.cut(after)
        (old,), (new,) = elastic.living(twins).values(), elastic.living(after).values()
        for layer in range(min(len(old.widths), len(new.widths))):
            name = f"Dense_{layer}"
            was, now = before_cut["MLP_0"][name]["kernel"], after_cut["MLP_0"][name]["kernel"]
            rows, columns = np.minimum(was.shape[-2:], now.shape[-2:])
            np.testing.assert_array_equal(was[..., :rows, :columns], now[..., :rows, :columns])
            fresh = np.concatenate(
                [now[..., rows:, :].reshape(2, 2, -1), now[..., columns:].reshape(2, 2, -1)], axis=-1
            )
            assert (fresh != 0).all() and len(np.unique(fresh)) >= fresh.size * (rows == now.shape[-2] or 0.5)
            np.testing.assert_array_equal(after_cut["MLP_0"][f"LayerNorm_{layer}"]["scale"], 1.0)
        if len(new.widths) > len(old.widths):
            kernel = after_cut["MLP_0"][f"Dense_{len(old.widths)}"]["kernel"]
            assert kernel.shape[-2:] == (6, 6) and (kernel != 0).all()
            assert 0.5 < kernel.std() / np.sqrt(2 / 6) < 1.5
        was, now = before_cut["head"]["kernel"], after_cut["head"]["kernel"]
        rows = min(was.shape[-2], now.shape[-2])
        np.testing.assert_array_equal(was[..., :rows, :], now[..., :rows, :])
        assert (now != 0).all() and len(np.unique(now)) == now.size
        checked.add((len(new.widths) - len(old.widths), np.sign(sum(new.widths[:2]) - sum(old.widths))))
    assert checked >= {(1, 0), (-1, -1), (0, 1), (0, -1)}
    assert apart > 10  # whenever something was drawn


def test_activations_mutate():
    module, inputs = network(SMALL)
    params = start(module, inputs)
    keys = jax.random.split(jax.random.PRNGKey(0), 600)
    mutate = jax.jit(jax.vmap(elastic.mutate_activation, in_axes=(0, None)))
    names = [elastic.ACTIVATION_NAMES[i] for i in jax.vmap(elastic.describe)(mutate(keys, params))["/activation"]]
    np.testing.assert_allclose(
        [names.count(n) / 600 for n in ("relu", "elu", "gelu", "tanh")], [1 / 3] * 3 + [0], atol=0.06
    )
    relu = next(elastic.mutate_activation(k, params) for k, name in zip(keys, names, strict=True) if name == "relu")
    others = [elastic.ACTIVATION_NAMES[i] for i in jax.vmap(elastic.describe)(mutate(keys, relu))["/activation"]]
    np.testing.assert_allclose([others.count(n) / 600 for n in ("relu", "elu", "gelu")], [0, 0.5, 0.5], atol=0.06)
    fixed, inputs = network(dataclasses.replace(SMALL, mutable_activation=False))
    params = start(fixed, inputs)
    assert not elastic.has_activation(params) and elastic.mutate_activation(keys[0], params) == params


TINY = {"total_steps": 64, "num_envs": 4, "rollout_length": 8}


def trained(module, config, updates: int = 3, change=lambda state: state):
    """The state after some updates, ``change`` applied to the first."""
    algorithm = algorithm_in(module)(config, toy())
    hypers = module.Hypers(lr=0.02)

    @jax.jit
    def run(key):
        state = change(algorithm.init(key, hypers))
        return state, jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=updates)[0]

    return run(jax.random.PRNGKey(0))


def test_a_training_is_that_of_the_plain_network():
    """The same parameters after updates, with room around them; masks stay where they were and dead weights zero."""
    model = Model(widths=(5, 6))
    wide = dataclasses.replace(model, elastic=True, max_width=8)
    small = TINY | {"epochs": 2, "minibatches": 2}
    _, plain = trained(ippo_ff_mpe, ippo_ff_mpe.Config(**small, actor=model, critic=model))
    first, last = trained(ippo_ff_mpe, ippo_ff_mpe.Config(**small, actor=wide, critic=wide))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), elastic.cut(last.params), plain.params)
    jax.tree.map(np.testing.assert_array_equal, masks_of(last.params, first.params), first.params)
    jax.tree.map(np.testing.assert_array_equal, poisoned(last.params["actor"], 0.0), last.params["actor"])
    assert elastic.recipe(last.params, ippo_ff_mpe.Config(actor=wide, critic=wide))["actor"]["widths"] == [5, 6]


def test_targets_keep_the_architecture():
    """One call changes a whole training state alike, twin critics and targets included, and it trains on."""
    config = maddpg_ff_mpe.Config(
        **TINY, batch_size=8, buffer_size=96, learning_starts=0, twin=True, actor=SMALL, q=SMALL, sharing="group"
    )

    def mutate(state):
        for key in jax.random.split(jax.random.PRNGKey(1), 3):
            state = elastic.mutate_activation(key, elastic.mutate_architecture(key, state, FINE))
        return state

    first, last = trained(maddpg_ff_mpe, config, change=mutate)
    assert elastic.living(first.params) == elastic.living(first.target) != {}
    jax.tree.map(np.testing.assert_array_equal, first.params, first.target)  # these were equal before
    for tree in (last.params, last.target):
        jax.tree.map(np.testing.assert_array_equal, masks_of(tree, first.params), masks_of(first.params, first.params))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((last.params, last.target)))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), elastic.cut(first.params), elastic.cut(last.params))
    assert all(jax.tree.leaves(moved))
    found = elastic.recipe(last.params, config)
    assert set(found) == {"actor", "q"} and found["q"]["widths"] == list(elastic.living(last.params)["critic"].widths)
    assert found["actor"]["activation"] == elastic.living(first.params)["actor"].activation != "tanh"
    assert found["q"]["elastic"] is False


def test_an_elastic_policy_is_exported_as_what_lives(tmp_path):
    """Numpy plays the cut network as JAX plays the masked one."""
    config = ippo_rnn_smax.Config(**TINY, actor=dataclasses.replace(SMALL, network="gru", hidden=5), sharing="group")
    algorithm = ippo_rnn_smax.IPPO(config, toy())
    draw = jax.jit(lambda key: algorithm.policy(algorithm.init(key, ippo_rnn_smax.Hypers()).learnt))
    policy = draw(jax.random.PRNGKey(0))
    policy = policy | {"actor": grown(policy["actor"], seed=5)}
    facts = {"algorithm": "test", "environment": "test/toy"}
    saved = export.save(tmp_path, config, algorithm, policy, facts)
    (alive,) = elastic.living(policy["actor"]).values()
    described = saved.description["network"]
    assert described["widths"] == list(alive.widths) != [5] and described["activation"] == alive.activation != "tanh"
    assert load_policy(tmp_path).check() < 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "deepsets"}, "algo.actor.elastic=true: deepsets has no masks; use mlp"),
        ({"network": "gru", "torso": "gnn"}, "algo.actor.elastic=true: gnn has no masks; use mlp"),
        ({"widths": (16,)}, r"algo.actor.widths=\[16\]: elastic, so from 1 to algo.actor.max_width=8 each"),
        ({"widths": ()}, r"algo.actor.widths=\[\]: elastic, so from 1"),
        ({"widths": (4,) * 4}, r"algo.actor.widths=.*: more than algo.actor.max_depth=3 layers"),
        ({"elastic": False}, "algo.actor.mutable_activation=true: needs algo.actor.elastic=true"),
        ({"network": "gru", "after": (4,)}, "algo.actor.mutable_activation=true: not with layers behind the memory"),
    ],
)
def test_what_cannot_be_elastic_is_told(changes, message):
    model = dataclasses.replace(SMALL, **changes)
    with pytest.raises(UserError, match=message):
        models.check("algo.actor", model, toy(), recurrent=True)


def test_enable():
    """What evolution asks for where the user has not: every network that can be."""
    config = elastic.enable(ippo_rnn_smax.Config(critic=Model("gnn")), activation=True)
    assert config.actor == dataclasses.replace(ippo_rnn_smax.Config().actor, elastic=True, mutable_activation=True)
    assert config.critic == Model("gnn")
