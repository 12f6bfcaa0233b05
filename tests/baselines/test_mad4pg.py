"""MAD4PG: distributions of returns, rewards of several steps, what its options do, and that it trains.

What it has in common with MADDPG is tested in test_maddpg.py.
"""

from __future__ import annotations

import dataclasses
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.baselines.maddpg.mad4pg_ff_mpe import MAD4PG, Config, Hypers
from shoal.errors import UserError
from shoal.nn.models import Model
from shoal.rl.returns import project
from tests.baselines.test_maddpg import ENVS, SMALL, each_kind, made, moved_by_each, plain_targets, prepare, train
from tests.baselines.toy import differ, finite, unmoved

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
WIDE = Hypers(gamma=0.9, v_min=-30.0, v_max=30.0)  # what the toy can return


def plain_project(probs, atoms, reward, discount):
    out, gap = np.zeros_like(probs), atoms[1] - atoms[0]
    for index in np.ndindex(reward.shape):
        for j, z in enumerate(atoms):
            b = (np.clip(reward[index] + discount[index] * z, atoms[0], atoms[-1]) - atoms[0]) / gap
            low, high = int(np.floor(b)), int(np.ceil(b))
            if low == high:
                out[(*index, low)] += probs[(*index, j)]
            else:
                out[(*index, low)] += probs[(*index, j)] * (high - b)
                out[(*index, high)] += probs[(*index, j)] * (b - low)
    return out


def test_a_projection_is_that_of_a_plain_loop_and_loses_no_mass():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(11), size=(20, 3))
    atoms, reward = np.linspace(-2.0, 3.0, 11), rng.normal(size=(20, 3)) * 2.0
    discount = rng.choice([0.0, 0.5, 0.95], size=(20, 3))
    moved = np.asarray(project(*map(jnp.float32, (probs, atoms, reward, discount))))
    close(moved, plain_project(probs, atoms, reward, discount), atol=1e-4)
    close(moved.sum(-1), 1.0)
    ended = project(jnp.float32(probs), jnp.float32(atoms), jnp.full((20, 3), 1.25), jnp.zeros((20, 3)))
    close(ended[..., 6:8], 0.5, atol=1e-4)  # between 1.0 and 1.5, whatever came after
    close((ended * atoms).sum(-1), 1.25, atol=1e-4)


@pytest.mark.parametrize("n_step", [1, 3])
@each_kind
def test_the_mean_of_a_target_is_that_of_a_plain_loop_with_deaths_and_endings(kind, n_step):
    """With one step deaths end nothing, with three they end the return."""
    prepared = prepare(kind, MAD4PG, atoms=101, n_step=n_step, **{"death": "ends_return"} if n_step > 1 else {})
    algorithm, target, items = prepared.algorithm, prepared.learnt.target, prepared.items
    final = algorithm.critic.successor(prepared.step)  # [T, E, ...]
    action = algorithm.choose(algorithm.outputs(target, final), final.action_mask, 0.0)
    value = np.asarray(algorithm.value(algorithm.critic(target["critic"], final, action), WIDE))  # [T, E, A]
    y = algorithm.targets(target, items, WIDE)  # [B, A, Z]
    close(y.sum(-1), 1.0, rtol=1e-3)
    earning, expected = items.earning.reshape(value.shape), plain_targets(prepared, value)
    mean = np.asarray((y * algorithm.returns(WIDE)).sum(-1)).reshape(value.shape)
    close(mean[earning], expected[earning], rtol=1e-2, atol=2e-2)
    living = np.asarray(items.seen.alive).reshape(value.shape)
    np.testing.assert_array_equal(earning, living if n_step > 1 else np.ones_like(living))


@pytest.mark.parametrize("n_step", [1, 3])
def test_what_replay_holds_is_discounted_as_it_is_drawn(n_step):
    """Evolution and callbacks may change gamma; of several steps all but the last gamma are in the item."""
    prepared = prepare("discrete", MAD4PG, n_step=n_step)
    algorithm, target, changed = prepared.algorithm, prepared.learnt.target, WIDE.replace(gamma=0.5)
    steps = prepare("discrete", MAD4PG, n_step=1).items  # of the same rollout
    steps = jax.tree.map(lambda x: x.reshape(12, 4, *x.shape[1:]), steps)
    items = algorithm.over_n_steps(steps, prepared.step.ended, changed)
    assert differ(algorithm.targets(target, prepared.items, changed), algorithm.targets(target, prepared.items, WIDE))
    later = algorithm.targets(target, items, changed)
    assert differ(algorithm.targets(target, prepared.items, changed), later) == (n_step > 1)


def test_the_critics_loss_is_the_cross_entropy_of_its_target():
    prepared = prepare("discrete", MAD4PG, atoms=101)
    algorithm, batch, learnt = prepared.algorithm, prepared.items, prepared.learnt
    y, weight = algorithm.targets(learnt.target, batch, WIDE), jnp.ones(len(batch.reward))
    logits = algorithm.critic(learnt.params["critic"], batch.seen, batch.action)
    entropy = -(np.asarray(y) * np.asarray(jax.nn.log_softmax(logits))).sum(-1)
    total, (metrics, priority) = algorithm.critic_loss(learnt.params["critic"], learnt.target, batch, weight, WIDE)
    close(total, entropy.mean(), rtol=1e-3)
    wrong = np.abs(algorithm.value(logits, WIDE) - (y * algorithm.returns(WIDE)).sum(-1))
    close(priority, wrong.mean(-1), rtol=1e-3)
    close(metrics["td_error"], wrong.mean(), rtol=1e-3)


def test_the_policy_climbs_the_expected_return():
    """A critic whose likely returns are higher has a lower policy loss, by as much."""
    prepared = prepare("continuous", MAD4PG, atoms=101)
    algorithm, batch, params = prepared.algorithm, prepared.items, prepared.learnt.params
    hypers, noise = WIDE.replace(action_reg=0.0), jnp.zeros_like(batch.action)

    def loss(shift):
        moved = hypers.replace(v_min=hypers.v_min + shift, v_max=hypers.v_max + shift)
        return algorithm.actor_loss(params["actor"], params["critic"], batch, noise, moved)[0]

    close(loss(5.0), loss(0.0) - 5.0, rtol=1e-3)


@pytest.mark.parametrize("poison", [1e3, np.nan])
def test_what_dead_agents_see_and_get_changes_nothing(poison):
    """What they get counts, unless death ends their return."""
    config = Config(**SMALL | {"normalise_obs": True, "death": "ends_return", "sharing": "group"})

    def learn(poison):
        state, metrics = train(MAD4PG(config, ENVS["discrete"](poison, poison)))
        return (state.learnt.params, state.learnt.target, state.learnt.obs_stats), metrics["critic_loss"]

    learnt = jax.jit(jax.vmap(learn))(jnp.array([0.0, poison]))
    assert finite(learnt)
    jax.tree.map(lambda x: close(x[0], x[1]), learnt)


OPTIONS = {
    "total_steps": [97],
    "num_envs": [2],
    "rollout_length": [6],
    "n_step": [1],
    "gradient_steps": [4],
    "batch_size": [8],
    "buffer_size": [60],
    "learning_starts": [60],
    "replay": ["prioritised"],
    "atoms": [7],
    "death": ["ends_return"],
    "sharing": ["group", "independent"],
    "agent_id": [False],
    "actor": [Model("deepsets", (8,))],
    "q": [Model("mlp", (8, 8))],
    "normalise_obs": [True],
}


def test_no_option_is_forgotten():
    assert {*OPTIONS} == {field.name for field in dataclasses.fields(Config)} - {"elastic_batches"}


@cache
def program(**changes) -> str:
    """One update, as JAX has traced it."""
    algorithm = made("continuous", MAD4PG, **changes)
    state = jax.eval_shape(algorithm.init, jax.random.PRNGKey(0), Hypers())
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(algorithm.update)(state, Hypers())))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_changes_the_program(option):
    assert all(program() != program(**{option: choice}) for choice in OPTIONS[option])


def test_every_hyperparameter_does_something():
    hypers = Hypers(lr=0.01, critic_lr=0.01, lr_end=0.5, noise_start=0.9, noise_end=0.1, noise_fraction=0.6)
    hypers = hypers.replace(action_reg=0.1, max_grad_norm=0.1, tau=0.1)
    moved = moved_by_each(
        made("discrete", MAD4PG, replay="prioritised", elastic_batches=True), hypers, {"noise_end": 0.9}
    )
    assert {field.name for field in dataclasses.fields(hypers)} == moved


def test_two_updates_of_two_teams_are_finite():
    env = envs.make("mpe/simple_tag", horizon=5, continuous=True)
    state, metrics = jax.jit(lambda: train(MAD4PG(Config(**SMALL | {"sharing": "group"}), env)))()
    assert finite((state.learnt, metrics))
    names = {"critic_loss", "actor_loss", "actor_loss/adversary", "q_value", "td_error", "noise", "episode_return"}
    assert names <= set(metrics)
    assert unmoved(state.learnt.params) == []  # no layer is passed by


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_step": 13}, "algo.n_step=13: must be at most algo.rollout_length=12"),
        ({"q": Model("gnn")}, "algo.q.network=gnn: reads agents"),
        ({"buffer_size": 40}, "algo.buffer_size=40: must hold"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_is_said(changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        made("discrete", MAD4PG, **changes)
