"""IPPO: what its losses see, what its options do, and that it learns."""

from __future__ import annotations

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from baselines.ippo import ippo_ff_mpe as ippo
from shoal.returns import gae

SMALL = ippo.Config(total_steps=400, num_envs=4, rollout_length=10, epochs=2, minibatches=2, widths=(8,))


def setup_of(config: ippo.Config, env) -> ippo.Setup:
    return ippo.make(config, env).update.keywords["setup"]


@cache
def two_updates(config: ippo.Config, name: str = "mpe/simple_spread", **kwargs):
    """State and metrics of a seed after two updates."""
    algorithm = ippo.make(config, envs.make(name, **kwargs))
    return run_updates(algorithm, ippo.Hypers(lr=0.02))


def run_updates(algorithm, hypers, updates: int = 2, seed: int = 0):
    @jax.jit
    def run(key, hypers):
        state = algorithm.init(key, hypers)
        return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=updates)

    return run(jax.random.PRNGKey(seed), hypers)


def batch_of(config: ippo.Config, env):
    setup = setup_of(config, env)
    state = ippo.init(jax.random.PRNGKey(0), ippo.Hypers(), setup)
    state, transitions = ippo.rollout(state, jax.random.split(jax.random.PRNGKey(1), 3), setup)
    return setup, state, transitions, ippo.make_batch(state, transitions, ippo.Hypers(), setup)


def test_dead_agents_never_reach_the_loss():
    setup, state, _, batch = batch_of(SMALL, envs.make("mpe/simple_spread"))
    weight = batch.weight.at[:, 1].set(0.0)
    clean = dataclasses.replace(batch, weight=weight)
    poisoned = dataclasses.replace(
        clean,
        obs=clean.obs.at[:, 1].set(1e3),
        log_prob=clean.log_prob.at[:, 1].set(-50.0),
        value=clean.value.at[:, 1].set(1e4),
        advantage=clean.advantage.at[:, 1].set(-1e4),
        target=clean.target.at[:, 1].set(1e4),
    )
    gradient = jax.grad(ippo.loss, has_aux=True)
    results = [gradient(state.params, b, state.obs_stats, ippo.Hypers(), 0.01, setup) for b in (clean, poisoned)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *results)
    full = gradient(state.params, batch, state.obs_stats, ippo.Hypers(), 0.01, setup)[1]["loss"]
    assert not np.isclose(full, results[0][1]["loss"])  # agent 1 would have counted


def test_illegal_and_padded_actions_never_reach_the_loss():
    setup, state, _, batch = batch_of(SMALL, envs.make("mpe/simple_adversary"))
    batch = dataclasses.replace(batch, action_mask=batch.action_mask.at[..., 4].set(False), action=batch.action % 4)

    def with_bias(shift):
        params = jax.tree.map(lambda x: x, state.params)
        params["Dense_0"]["bias"] = params["Dense_0"]["bias"].at[..., 4].add(shift)
        return ippo.loss(params, batch, state.obs_stats, ippo.Hypers(), 0.01, setup)[1]

    jax.tree.map(np.testing.assert_array_equal, with_bias(0.0), with_bias(7.0))


def test_values_bootstrap_from_the_final_observation_of_a_truncated_episode():
    config = dataclasses.replace(SMALL, rollout_length=12)
    setup, state, transitions, _ = batch_of(config, envs.make("mpe/simple_spread", horizon=5))
    value = setup.apply(state.params, state.obs_stats, transitions.obs)[1]
    successors = np.asarray(ippo.successor_values(state, transitions, value, setup))
    expected = np.asarray(setup.apply(state.params, state.obs_stats, transitions.next.final_obs)[1])
    truncated = np.asarray(transitions.next.truncated)
    assert truncated.sum() == 8  # steps 5 and 10 of four environments
    np.testing.assert_allclose(successors, expected, rtol=1e-4, atol=1e-5)
    naive = np.concatenate([value[1:], setup.apply(state.params, state.obs_stats, state.timestep.obs)[1][None]])
    assert (np.abs(successors - naive)[truncated] > 1e-4).all()  # the next episode's value is another one
    np.testing.assert_array_equal((successors == naive)[~truncated], True)


def test_an_agent_that_dies_stops_bootstrapping_and_its_team_does_not():
    setup, state, transitions, _ = batch_of(SMALL, envs.make("mpe/simple_spread"))
    step = dataclasses.replace(transitions.next, final_alive=transitions.next.final_alive.at[3, 0, 1].set(False))
    batch = ippo.make_batch(state, dataclasses.replace(transitions, next=step), ippo.Hypers(), setup)
    advantage = batch.advantage.reshape(10, 4, 3)
    value = batch.value.reshape(10, 4, 3)
    np.testing.assert_allclose(advantage[3, 0, 1], step.reward[3, 0, 1] - value[3, 0, 1], rtol=1e-5)
    untouched = ippo.make_batch(state, transitions, ippo.Hypers(), setup).advantage.reshape(10, 4, 3)
    np.testing.assert_array_equal(advantage[:, 0, 0], untouched[:, 0, 0])
    np.testing.assert_array_equal(advantage[4:, 0, 1], untouched[4:, 0, 1])


def test_batch_advantages_are_gae_of_the_rollout():
    setup, state, transitions, batch = batch_of(SMALL, envs.make("mpe/simple_spread", horizon=4))
    value = setup.apply(state.params, state.obs_stats, transitions.obs)[1]
    final = setup.apply(state.params, state.obs_stats, transitions.next.final_obs)[1]
    ended = jnp.broadcast_to(transitions.next.ended[..., None], value.shape)
    expected = gae(transitions.next.reward, value, final, jnp.zeros_like(ended), ended, 0.99, 0.95)
    np.testing.assert_allclose(batch.advantage, expected.reshape(-1, 3), rtol=1e-3, atol=1e-3)


def test_the_first_ratio_is_one():
    setup, state, _, batch = batch_of(SMALL, envs.make("mpe/simple_spread"))
    metrics = ippo.loss(state.params, batch, state.obs_stats, ippo.Hypers(), 0.0, setup)[1]
    assert abs(metrics["approx_kl"]) < 1e-6
    assert metrics["clip_fraction"] == 0.0


OPTIONS = {
    "sharing": "independent",
    "agent_id": True,
    "widths": (8, 8),
    "activation": "relu",
    "layer_norm": True,
    "normalise_advantages": False,
    "normalise_obs": True,
    "clip_value": False,
    "epochs": 1,
    "minibatches": 1,
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_does_something(option):
    base = two_updates(SMALL)[0].params
    other = two_updates(dataclasses.replace(SMALL, **{option: OPTIONS[option]}))[0].params
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(other))
    same = jax.tree.structure(base) == jax.tree.structure(other) and all(
        a.shape == b.shape and np.allclose(a, b, atol=1e-7)
        for a, b in zip(jax.tree.leaves(base), jax.tree.leaves(other), strict=True)
    )
    assert not same


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(ippo.Hypers)])
def test_every_hyperparameter_does_something(name):
    algorithm = ippo.make(SMALL, envs.make("mpe/simple_spread"))
    hypers = ippo.Hypers(ent_coef=0.1)
    changed = {"ent_coef_end": 0.0, "lr_end": 1.0, "max_grad_norm": 0.01, "clip_eps": 1e-4}.get(
        name, getattr(hypers, name) / 2
    )
    both = jax.tree.map(lambda a, b: jnp.array([a, b], jnp.float32), hypers, hypers.replace(**{name: changed}))
    state, _ = _vmapped(algorithm)(both)
    assert any(not np.array_equal(leaf[0], leaf[1]) for leaf in jax.tree.leaves(state.params))


_PROGRAMS: dict = {}


def _vmapped(algorithm):
    """One compiled program for all hyperparameters: they are traced."""

    def run(hypers):
        state = algorithm.init(jax.random.PRNGKey(0), hypers)
        return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=3)

    return _PROGRAMS.setdefault("run", jax.jit(jax.vmap(run)))


@pytest.mark.parametrize(
    ("name", "kwargs", "sharing"),
    [
        ("mpe/simple_spread", {"continuous": True}, "shared"),
        ("mpe/simple_tag", {}, "group"),
        ("matrix/climbing", {}, "independent"),
    ],
)
def test_trains_on_other_kinds_of_environment(name, kwargs, sharing):
    state, metrics = two_updates(dataclasses.replace(SMALL, sharing=sharing), name, **kwargs)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    assert np.isfinite(metrics["loss"]).all()
    if name == "mpe/simple_tag":
        assert {"episode_return/adversary", "episode_return/agent"} <= set(metrics)
    policies = jax.tree.leaves(state.params)[0].shape[0]
    assert policies == {"shared": 1, "group": 2, "independent": 2}[sharing]


def test_a_run_in_a_vmapped_sweep_is_the_run_alone():
    train = ippo.make_train(SMALL, envs.make("mpe/simple_spread"))
    keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(3))
    hypers = jax.vmap(lambda lr: ippo.Hypers(lr=lr))(jnp.array([1e-3, 3e-4, 1e-4]))
    together, _ = jax.jit(jax.vmap(train))(keys, hypers)
    alone, _ = jax.jit(train)(keys[1], ippo.Hypers(lr=jnp.float32(3e-4)))
    np.testing.assert_array_equal(together.key[1], alone.key)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, rtol=2e-3, atol=1e-5), together.params, alone.params)
    assert not np.allclose(together.params["Dense_0"]["kernel"][0], together.params["Dense_0"]["kernel"][1])


def test_greedy_acting_is_the_mode_and_sampling_is_not():
    algorithm = ippo.make(SMALL, envs.make("mpe/simple_spread"))
    state = algorithm.init(jax.random.PRNGKey(0), ippo.Hypers())
    policy, act = algorithm.policy(state), algorithm.acting.act
    greedy = [act(policy, (), state.timestep, jax.random.PRNGKey(i), True)[1] for i in range(3)]
    np.testing.assert_array_equal(greedy[0], greedy[1])
    sampled = [act(policy, (), state.timestep, jax.random.PRNGKey(i), False)[1] for i in range(3)]
    assert any(not np.array_equal(sampled[0], other) for other in sampled[1:])


def test_learns_to_speak_of_a_hidden_state():
    """One in three without communication; the optimum needs a message and its interpretation to arise together."""
    config = ippo.Config(total_steps=60_000, num_envs=32, rollout_length=16, widths=(32,), sharing="independent")
    train = jax.jit(ippo.make_train(config, envs.make("matrix/hidden")))
    _, metrics = train(jax.random.PRNGKey(0), ippo.Hypers(lr=3e-3, ent_coef=0.02, gamma=1.0))
    returns = np.asarray(metrics["episode_return"])
    assert returns[:3].mean() < 0.5
    assert returns[-10:].mean() > 0.9
