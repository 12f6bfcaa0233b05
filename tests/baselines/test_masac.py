"""MASAC and ISAC, continuous and discrete: what their losses see, what their options do, and that they learn."""

from __future__ import annotations

import dataclasses
import re
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from shoal import envs
from shoal.baselines.masac.masac_ff_vmas import MASAC, Config, Hypers, Transition
from shoal.envs.base import Continuous, Env, TimeStep, size_mask
from shoal.envs.wrappers import TimeLimit, Wrapper
from shoal.errors import UserError
from shoal.nn.models import Model
from shoal.rl import distributions
from shoal.run.evaluate import evaluate
from tests.baselines.toy import State, Toy, differ, finite, toy, unmoved, wavy, with_params

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
KINDS = ("continuous", "discrete")
each_kind = pytest.mark.parametrize("kind", KINDS)
SMALL = {"total_steps": 192, "num_envs": 4, "rollout_length": 12, "gradient_steps": 2, "batch_size": 16}
SMALL |= {"buffer_size": 96, "learning_starts": 0, "actor": Model(widths=(8,)), "q": Model(widths=(8,))}


class Smooth(Toy):
    """The toy with continuous actions: the blue agent has one dimension, the others two."""

    name = "test/smooth"
    action_space = Continuous.box((2, 2, 1), -1.0, 3.0)

    def step(self, key, state, action):
        inside = state.legal & ((action >= -1.0) & (action <= 3.0)).all()
        push = action[:, 0] + np.array([0.5, 0.5, 0.0]) * action[:, 1]
        alive = self._alive(state)
        reward = jnp.sin(state.phase + push + 2.0 * np.arange(3)) + state.drift
        state = State(state.step + 1, state.phase, state.drift + 0.3 * jnp.where(alive, push, 0.0), inside)
        return state, self._timestep(state, jnp.where(alive, reward, jnp.nan_to_num(self.pay)))

    def _mask(self, state):
        return jnp.asarray(size_mask(self.action_space.sizes))


class Point(Env):
    """One step: the first of two agents shall go where both see, the second where it would be in a mirror."""

    name, agents, groups = "test/point", ("a", "b"), ("team", "team")
    obs_sizes, state_size, action_space, horizon = (1, 1), 1, Continuous.box((1, 1), -2.0, 2.0), 1

    def reset(self, key):
        place = jax.random.uniform(key, (1,), minval=-1.5, maxval=1.5)
        return place, self._timestep(place, jnp.float32(0.0), jnp.bool_(False))

    def step(self, key, state, action):
        reward = -jnp.square(action[0, 0] - state[0]) - jnp.square(action[1, 0] + state[0])
        return state, self._timestep(state, reward, jnp.bool_(True))

    def _timestep(self, place, reward, ended):
        seen = jnp.broadcast_to(place, (2, 1))
        alive = jnp.ones(2, bool)
        return TimeStep(seen, place, alive[:, None], jnp.full(2, reward), ended, jnp.bool_(False), alive, {})


def make_toy(kind: str, poison: Any = 0.0, pay: Any = 0.0):
    return TimeLimit(Smooth(poison, pay)) if kind == "continuous" else toy(poison, pay)


def made(kind: str, **changes) -> MASAC:
    return MASAC(Config(**SMALL | changes), make_toy(kind))


class Prepared(NamedTuple):
    """A rollout of the toy in the middle of episodes, which is the batch, and parameters of which none is zero."""

    algorithm: MASAC
    state: Any
    target: Any
    batch: Transition  # [48, ...]
    timesteps: Any  # [12, 4, ...]
    noise: Any  # [2, 48, A, N]

    @property
    def params(self):
        return self.state.learnt.params

    def loss(self, params=None, batch=None, target=None, **hypers):
        """``(loss, (metrics, priority))``."""
        params, batch = self.params if params is None else params, self.batch if batch is None else batch
        target, weight = self.target if target is None else target, jnp.ones(len(batch.reward))
        return self.algorithm.loss(params, target, batch, weight, self.noise, Hypers(**hypers))

    def learn(self, learnt, batch, hypers):
        """What an update learns from a replay that holds the ``batch`` alone."""
        replay = self.algorithm.replay
        buffer = replay.add(replay.init(batch), batch)
        return self.algorithm.learn(learnt, buffer, jax.random.PRNGKey(0), hypers)[0]


@cache
def prepare(kind: str, **changes) -> Prepared:
    algorithm = made(kind, **changes)

    @jax.jit
    def run(key):
        keys = jax.random.split(key, 4)
        state = algorithm.init(keys[0], Hypers())
        state = with_params(state, wavy(state.learnt.params))
        envs = state.slot.envs
        for rollout_key in keys[1:3]:
            envs, batch, timesteps = algorithm.rollout(state.learnt, envs, jax.random.split(rollout_key, 3))
        state = state.replace(slot=state.slot.replace(envs=envs))
        noise = distributions.noise(keys[3], algorithm.env.action_space, (2, len(batch.reward)))
        return state, jax.tree.map(jnp.cos, state.learnt.params["q"]), batch, timesteps, noise

    return Prepared(algorithm, *run(jax.random.PRNGKey(3)))


def train(algorithm, hypers=None, updates: int = 2, start=wavy):
    """State and metrics after some updates."""
    hypers = Hypers(lr=0.02, critic_lr=0.02, alpha_lr=0.02) if hypers is None else hypers
    state = algorithm.init(jax.random.PRNGKey(0), hypers)
    state = with_params(state, start(state.learnt.params))
    return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=updates)


@cache
def trained(kind: str, **changes):
    return jax.jit(lambda: train(made(kind, **changes)))()


# What the targets and losses are.


class ByHand:
    """Everything for one agent of one transition at a time."""

    def __init__(self, prepared: Prepared):
        self.algorithm, self.of = prepared.algorithm, prepared.algorithm.policies.ids
        networks = {"actor": self.algorithm.actor.network, "q": self.algorithm.critic.joint.network}
        self.networks = {
            name: jax.jit(lambda p, x, n=network: n.apply({"params": p}, x[None], None)[0])
            for name, network in networks.items()
        }

    def policy(self, params, x, i, noise):
        """The action drawn, and lists of probabilities and log-probabilities."""
        outputs = np.asarray(self.networks["actor"](jax.tree.map(lambda p: p[self.of[i]], params["actor"]), x.obs[i]))
        mask = np.asarray(x.action_mask[i])
        if self.algorithm.discrete:
            logits = np.where(mask, outputs, -np.inf)
            log_prob = logits - special.logsumexp(logits)
            return np.eye(len(mask))[np.argmax(logits + noise[i])], np.exp(log_prob), np.where(mask, log_prob, 0.0)
        mean, std = outputs[: len(mask)], np.exp(np.clip(outputs[len(mask) :], -5.0, 2.0))
        raw = mean + std * np.asarray(noise[i])
        log_prob = stats.norm.logpdf(raw, mean, std) - np.log(1.0 - np.tanh(raw) ** 2)
        return np.where(mask, np.tanh(raw), 0.0), np.ones(1), np.array([log_prob[mask].sum()])

    def q(self, critics, x, actions, i):
        """The lower of two critics' values, of every own action if discrete."""
        actions = [np.zeros_like(a) if self.algorithm.discrete and j == i else a for j, a in enumerate(actions)]
        actions = [a if x.alive[j] else np.zeros_like(a) for j, a in enumerate(actions)]
        if self.algorithm.critic.central:
            row, column = np.concatenate([x.state, *actions]), i
        else:
            row, column = np.concatenate([x.obs[i], actions[i]]), 0
        values = []
        for k in range(1 + self.algorithm.config.twin):
            params = jax.tree.map(lambda p, k=k: p[k, self.of[i]], critics)
            outputs = np.asarray(self.networks["q"](params, row.astype(np.float32)))
            values.append(outputs.reshape(self.algorithm.critic.values, -1)[column])
        return np.min(values, axis=0)

    def target(self, prepared, b, i, alpha, gamma):
        item = jax.tree.map(lambda x: np.asarray(x[b]), prepared.batch)
        reward = item.reward[i]
        ends = self.algorithm.config.death == "ends_return" and not item.next.alive[i]
        if item.terminated or ends:
            return reward
        params, noise = prepared.params, np.asarray(prepared.noise[1, b])
        chosen = [self.policy(params, item.next, j, noise) for j in range(3)]
        values = self.q(prepared.target, item.next, [c[0] for c in chosen], i)
        _, prob, log_prob = chosen[i]
        return reward + gamma * (prob * (values - item.next.alive[i] * alpha[i] * log_prob)).sum()

    def policy_loss(self, prepared, b, i, alpha):
        item = jax.tree.map(lambda x: np.asarray(x[b]), prepared.batch)
        action, prob, log_prob = self.policy(prepared.params, item.seen, i, np.asarray(prepared.noise[0, b]))
        actions = [action if j == i else item.action[j] for j in range(3)]
        values = self.q(prepared.params["q"], item.seen, actions, i)
        return (prob * (alpha[i] * log_prob - values)).sum(), -(prob * log_prob).sum()


CASES = {
    "MASAC": ("continuous", {"sharing": "group"}),
    "ISAC": ("continuous", {"critic": "local", "sharing": "independent", "twin": False}),
    "discrete MASAC": ("discrete", {"sharing": "independent", "death": "ends_return"}),
    "discrete ISAC": ("discrete", {"critic": "local"}),
}


@pytest.mark.parametrize("case", CASES)
def test_targets_and_policy_losses_are_those_of_a_plain_loop(case):
    """With terminations, truncations and deaths; the discrete expectation is a sum over all legal actions."""
    kind, changes = CASES[case]
    prepared = prepare(kind, **changes, agent_id=False)
    algorithm, batch, hand = prepared.algorithm, prepared.batch, ByHand(prepared)
    alpha = np.exp(np.asarray(prepared.params["log_alpha"]))[algorithm.temperatures.ids]
    y = jax.jit(partial(algorithm.targets, hypers=Hypers(gamma=0.9)))(
        prepared.params, prepared.target, batch, prepared.noise[1]
    )
    living, earning = (list(zip(*np.nonzero(np.asarray(x)), strict=True)) for x in (batch.seen.alive, batch.earning))
    expected = [hand.target(prepared, b, i, alpha, 0.9) for b, i in earning]
    close([y[b, i] for b, i in earning], expected, rtol=1e-3, atol=1e-4)
    assert len(earning) > len(living) or algorithm.config.death == "ends_return"
    ends = np.asarray(batch.terminated[:, None] | ~batch.next.alive)
    assert ends.any() and 0.2 < ends[np.asarray(batch.seen.alive)].mean() < 0.8
    metrics = jax.jit(prepared.loss)()[1][0]
    losses, entropies = np.transpose([hand.policy_loss(prepared, b, i, alpha) for b, i in living])
    close(metrics["policy_loss"], losses.mean(), rtol=1e-3)
    close(metrics["entropy"], entropies.mean(), rtol=1e-3)


@each_kind
def test_replay_keeps_the_last_observation_of_a_truncated_episode(kind):
    prepared = prepare(kind)
    step = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), prepared.timesteps)
    assert step.truncated.sum() > 2 and step.terminated.sum() > 2
    np.testing.assert_array_equal(prepared.batch.next.obs, step.final_obs)
    np.testing.assert_array_equal(prepared.batch.next.state, step.final_state)
    np.testing.assert_array_equal(prepared.batch.terminated, step.terminated)
    assert (np.abs(step.final_obs - step.obs)[step.truncated].max(axis=(1, 2)) > 1e-3).all()


@each_kind
def test_the_lower_twin_counts(kind):
    """A constant on one critic is felt as far as it makes that one the lower: in targets and in the policy's loss."""
    prepared = prepare(kind, agent_id=False)
    batch, noise, hypers = prepared.batch, prepared.noise, Hypers(gamma=0.9)

    def measure(algorithm, shift):
        critics = prepared.target
        head = critics["head"] | {"bias": critics["head"]["bias"] + shift[:, None, None]}
        critics = critics | {"head": head}
        params = prepared.params | {"q": critics}
        y = algorithm.targets(params, critics, batch, noise[1], hypers)
        metrics = algorithm.loss(params, critics, batch, jnp.ones(48), noise, hypers)[1][0]
        goes_on = jnp.broadcast_to(~batch.terminated[:, None], y.shape)
        return jnp.where(goes_on, y, 0.0).sum() / goes_on.sum(), metrics["policy_loss"]

    shifts = jnp.array([(0.0, 99.0), (0.0, 199.0), (99.0, 0.0), (-99.0, 0.0), (0.0, 0.0)])
    of_both = jax.jit(partial(measure, prepared.algorithm))
    shifted = [of_both(shift) for shift in shifts]
    jax.tree.map(partial(close, atol=1e-3), shifted[0], shifted[1])
    assert differ(shifted[0], shifted[2])
    close(shifted[3][0], shifted[0][0] - 0.9 * 99.0, rtol=1e-3)
    close(shifted[3][1], shifted[0][1] + 99.0, rtol=1e-3)
    single = made(kind, agent_id=False, twin=False)
    jax.tree.map(partial(close, atol=1e-3), jax.jit(partial(measure, single))(shifts[0]), shifted[0])
    assert differ(shifted[4], shifted[0])  # the minimum is of either by turns


@pytest.mark.parametrize("critic", ["central", "local"])
@each_kind
def test_a_central_critic_sees_all_actions_and_a_local_one_its_own(kind, critic):
    """A discrete one says a value for each own action instead."""
    prepared = prepare(kind, critic=critic, agent_id=False)
    values, q, action = prepared.algorithm.values, prepared.params["q"], prepared.batch.action[:1]
    x = jax.tree.map(lambda leaf: leaf[:1], prepared.batch.seen)
    x = x.replace(alive=jnp.ones_like(x.alive))

    @jax.jit
    def jacobians(action):  # [twins, 1, A, Z, 1, A, N] each
        joint = jax.jacrev(lambda a: values(q, x, a))(action)
        return joint, *jax.jacrev(lambda a, own: values(q, x, a, own), argnums=(0, 1))(action, action)

    seen = [np.abs(by_action).sum(axis=(0, 1, 3, 4, 6)) > 0 for by_action in jacobians(action)]
    mine, no_other = np.eye(3, dtype=bool), np.full((3, 3), critic == "local")
    np.testing.assert_array_equal(seen[0], (mine & (kind == "continuous")) | ~(mine | no_other))
    np.testing.assert_array_equal(seen[1], ~(mine | no_other))
    np.testing.assert_array_equal(seen[2], mine & (kind == "continuous"))
    assert values(q, x, action).shape == (2, 1, 3, 4 if kind == "discrete" else 1)


@each_kind
def test_the_policy_learns_from_its_own_action_and_the_critic_from_its_error(kind):
    """No gradient of the policy's loss reaches the critics, the temperature's no policy."""
    prepared = prepare(kind)
    q_grad, without = (
        jax.jit(jax.grad(lambda p, h=h: prepared.loss(p, **h)[0]))(prepared.params)
        for h in ({}, {"target_entropy": 9.0})
    )
    jax.tree.map(close, q_grad["q"], without["q"])
    jax.tree.map(close, q_grad["actor"], without["actor"])
    assert differ(q_grad["log_alpha"], without["log_alpha"])

    def error(q):
        x, action = prepared.batch.seen, prepared.batch.action
        values = prepared.algorithm.values(q, x, action)
        value = (values * action).sum(-1) if kind == "discrete" else values.squeeze(-1)
        y = prepared.algorithm.targets(prepared.params, prepared.target, prepared.batch, prepared.noise[1], Hypers())
        return jnp.square(value - y).sum(0).mean()

    jax.tree.map(close, q_grad["q"], jax.jit(jax.grad(error))(prepared.params["q"]))


# The temperature.


@each_kind
def test_the_temperature_rises_below_the_target_entropy_and_falls_above(kind):
    """For each team by its own entropy; the targets are by dimensions, or by the number of legal actions."""
    prepared = prepare(kind)
    mask = np.asarray(prepared.batch.seen.action_mask)
    expected = 0.4 * np.log(mask.sum(-1)) if kind == "discrete" else -0.4 * mask.sum(-1)
    close(prepared.algorithm.target_entropy(mask, Hypers(target_entropy=0.4)), expected)

    @jax.jit
    def slope(scale):
        grads, (metrics, _) = jax.grad(lambda p: prepared.loss(p, target_entropy=scale), has_aux=True)(prepared.params)
        return grads["log_alpha"], jnp.stack([metrics["entropy/red"], metrics["entropy/blue"]])

    alive = np.asarray(prepared.batch.seen.alive)
    for scale in (0.0, 0.5, 3.0):
        found, entropy = slope(scale)
        per_agent = scale / 0.4 * expected
        target = [per_agent[:, team][alive[:, team]].mean() for team in ([0, 1], [2])]
        close(found, entropy - np.array(target), rtol=1e-3, atol=1e-4)
    high, low = slope(0.0)[0], slope(3.0)[0]
    assert (high > 0).all() and (low < 0).all() if kind == "discrete" else (low > 0).all()


class Quieter(Wrapper):
    """Rewards of three tenths."""

    def step(self, key, state, action):
        state, timestep = self.env.step(key, state, action)
        return state, timestep.replace(reward=0.3 * timestep.reward)


@cache
def tempered(kind: str):
    """Entropies and greedy returns after some training, for two target entropies in one program."""
    env = envs.make("matrix/climbing") if kind == "discrete" else TimeLimit(Point())
    sizes = {"total_steps": 4800, "num_envs": 8, "rollout_length": 4, "batch_size": 64, "buffer_size": 4000}
    networks = {"actor": Model(widths=(32,)), "q": Model(widths=(32, 32), activation="relu")}
    algorithm = MASAC(Config(**SMALL | sizes | networks | {"gradient_steps": 4}), Quieter(env))
    rates = {"lr": 5e-3, "critic_lr": 1e-2, "alpha_lr": 3e-2, "gamma": 0.0, "alpha": 0.3}

    @jax.jit
    @jax.vmap
    def run(scale):
        state, metrics = train(algorithm, Hypers(**rates, target_entropy=scale), 150, lambda params: params)
        _, played = evaluate(algorithm, algorithm.policy(state.learnt), state.slot.key, 32, greedy=True)
        return metrics["entropy"][-30:].mean(), played["episode_return"].mean() / 0.3

    return run(jnp.array([0.4, 0.8]))


@each_kind
def test_entropy_comes_to_its_target(kind):
    wanted = np.array([0.4, 0.8]) * (np.log(3) if kind == "discrete" else -1.0)
    np.testing.assert_allclose(tempered(kind)[0], wanted, atol=0.1)


def test_continuous_agents_learn_where_to_go():
    assert (np.asarray(tempered("continuous")[1]) > -0.1).all()  # about -4 by chance, -1.5 by staying


# What belongs to whom, and what must not matter.


@each_kind
def test_one_policys_rewards_do_not_touch_anothers_update(kind):
    prepared = prepare(kind, sharing="independent")
    hypers = Hypers(lr=0.02, critic_lr=0.02, max_grad_norm=0.1)

    @jax.jit
    @jax.vmap
    def learnt(scale):
        batch = prepared.batch.replace(reward=prepared.batch.reward * jnp.array([scale, 1.0, 1.0]))
        return prepared.learn(prepared.state.learnt, batch, hypers).params

    params = learnt(jnp.array([1.0, 1000.0]))
    for name, axis in (("actor", 0), ("q", 1), ("log_alpha", 0)):
        first, second = (
            jax.tree.map(lambda x, i=i, axis=axis: jnp.moveaxis(x[i], axis, 0), params[name]) for i in (0, 1)
        )
        jax.tree.map(lambda x, y: close(x[1:], y[1:], rtol=1e-5), first, second)
        if name != "log_alpha":  # entropies follow the rewards a step later than two
            assert differ(*(jax.tree.map(lambda x: x[0], side) for side in (first, second)))


DEADLY = {
    "continuous": ("continuous", {"sharing": "group"}),
    "discrete, its return ends": ("discrete", {"death": "ends_return", "sharing": "independent"}),
    "discrete local": (
        "discrete",
        {"death": "ends_return", "critic": "local", "replay": "prioritised", "actor": Model("gnn", (8,))},
    ),
    "continuous local, normalised": ("continuous", {"critic": "local", "normalise_obs": True}),
}


@pytest.mark.parametrize("case", DEADLY)
def test_what_dead_agents_see_and_get_changes_nothing(case):
    """What they get counts, unless death ends their return."""
    kind, changes = DEADLY[case]

    def learn(poison):
        pay = poison if "death" in changes else 0.0
        state, metrics = train(MASAC(Config(**SMALL | changes), make_toy(kind, poison, pay)))
        learnt = (state.learnt.params, state.learnt.target, state.learnt.opt_state, state.learnt.obs_stats)
        return learnt, {key: value for key, value in metrics.items() if not key.startswith("episode_return")}

    learnt, metrics = jax.jit(jax.vmap(learn))(jnp.array([0.0, 1e3, -1e6, jnp.nan]))
    assert finite(learnt) and finite(metrics)
    jax.tree.map(lambda x: [close(x[0], x[i]) for i in (1, 2, 3)], (learnt, metrics))


@each_kind
def test_dead_agents_and_padded_actions_never_reach_the_loss(kind):
    prepared = prepare(kind, agent_id=False)
    clean = prepared.batch.replace(
        seen=prepared.batch.seen.replace(alive=prepared.batch.seen.alive.at[:, 1].set(False)),
        earning=prepared.batch.earning.at[:, 1].set(False),
    )
    poisoned = clean.replace(
        seen=clean.seen.replace(obs=clean.seen.obs.at[:, 1].set(1e3)),
        action=clean.action.at[:, 1].set(-7.0),
        reward=clean.reward.at[:, 1].set(1e4),
    )
    gradient = jax.jit(jax.grad(lambda p, b: prepared.loss(p, b), has_aux=True))
    full, *results = [gradient(prepared.params, batch) for batch in (prepared.batch, clean, poisoned)]
    assert finite(results)
    jax.tree.map(close, *results)
    assert not np.isclose(full[1][0]["loss"], results[0][1][0]["loss"])  # agent 1 would have counted
    if kind == "continuous":  # the blue agent has no second dimension
        outputs = {"bias": prepared.params["actor"]["head"]["bias"]}
        assert (np.asarray(prepared.batch.action)[:, 2, 1] == 0.0).all() and outputs["bias"].shape == (1, 4)
        blue = jax.grad(lambda p: _blue_policy_loss(prepared, p))(prepared.params)["actor"]["head"]["bias"][0]
        np.testing.assert_array_equal(np.asarray(blue) != 0.0, [True, False, True, False])


def _blue_policy_loss(prepared, params):
    return prepared.loss(params)[1][0]["policy_loss/blue"]


@each_kind
def test_illegal_actions_are_never_taken(kind):
    """In rollouts, in evaluation by samples and by the mode, and with extreme outputs; an illegal one loses."""
    algorithm, prepared = made(kind, agent_id=False), prepare(kind, agent_id=False)

    @jax.jit
    @jax.vmap
    def plays(scale):
        keys = jax.random.split(jax.random.PRNGKey(0), 5)
        learnt = prepared.state.learnt.replace(params=jax.tree.map(lambda x: scale * x, prepared.params))
        _, _, timesteps = algorithm.rollout(learnt, prepared.state.slot.envs, keys[:3])
        sampled, mode = (evaluate(algorithm, algorithm.policy(learnt), keys[i], 16, i == 3)[1] for i in (3, 4))
        return timesteps.info["won"], sampled["win_rate"], mode["win_rate"]

    assert all(won.all() for won in plays(jnp.array([0.0, 1.0, 1e3, -1e12])))
    assert (trained(kind)[1]["win_rate"] == 1.0).all()


@each_kind
def test_a_greedy_agent_plays_the_mode(kind):
    prepared = prepare(kind, agent_id=False)
    algorithm, timestep = prepared.algorithm, prepared.state.slot.envs.timestep
    keys, policy = jax.random.split(jax.random.PRNGKey(0), 2), algorithm.policy(prepared.state.learnt)
    play = jax.jit(lambda key, greedy: algorithm.act(policy, (), timestep, key, greedy)[1], static_argnums=1)
    pi = algorithm.distribution(prepared.params, timestep)
    mode = pi.mode() if kind == "discrete" else 1.0 + 2.0 * np.tanh(pi.loc)
    for key in keys:
        close(play(key, True), mode, rtol=1e-5)
    assert differ(*(play(key, False) for key in keys))


# What the options do.

OPTIONS = {
    "critic": "local",
    "twin": False,
    "auto_alpha": False,
    "death": "ends_return",
    "replay": "prioritised",
    "agent_id": False,
    "normalise_obs": True,
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_changes_something_and_breaks_nothing(option):
    kind = "discrete" if option in ("critic", "replay") else "continuous"
    state, metrics = trained(kind, **{option: OPTIONS[option]})
    assert finite((state.learnt, metrics))
    assert differ(state.learnt.params, trained(kind)[0].learnt.params)


def test_normalised_observations_are_those_of_the_rollouts_and_of_the_batches():
    """Statistics follow what living agents see; the policy, a local critic and evaluation read normalised rows."""
    prepared = prepare("continuous", normalise_obs=True, critic="local", agent_id=False)
    algorithm, state, batch = prepared.algorithm, prepared.state, prepared.batch
    stats = jax.jit(lambda: algorithm.update(state, Hypers()))()[0].learnt.obs_stats
    assert stats.count > 0 and differ(stats.mean, jnp.zeros_like(stats.mean))
    learnt = state.learnt.replace(obs_stats=stats)
    plain = made("continuous", critic="local", agent_id=False)
    rows = plain.normalised(stats, batch.seen)
    close(rows.obs, np.clip((batch.seen.obs - stats.mean) / np.sqrt(stats.variance + 1e-8), -10.0, 10.0))
    # With observations that are normalised beforehand the plain algorithm learns what this one does.
    normal = batch.replace(seen=rows, next=plain.normalised(stats, batch.next))
    other = prepared._replace(algorithm=plain)
    ours = jax.jit(lambda: prepared.learn(learnt, batch, Hypers()))()
    jax.tree.map(close, ours.params, jax.jit(lambda: other.learn(state.learnt, normal, Hypers()))().params)
    timestep, key = state.slot.envs.timestep, jax.random.PRNGKey(0)
    played = algorithm.act(algorithm.policy(learnt), (), timestep, key, True)[1]
    shown = timestep.replace(obs=plain.normalised(stats, timestep).obs)
    close(played, plain.act(plain.policy(state.learnt), (), shown, key, True)[1])


@pytest.mark.parametrize("critic", ["central", "local"])
def test_a_state_has_no_empty_array(critic):
    """Devices cannot share one: several seeds on several cores would not start."""
    shapes = jax.eval_shape(made("continuous", critic=critic).init, jax.random.key(0), Hypers())
    assert all(leaf.size for leaf in jax.tree.leaves(shapes))
    assert (shapes.slot.buffer.experience.seen.state is None) == (critic == "local")


def test_every_hyperparameter_changes_something():
    """In one program: each run differs from the first in one number."""
    names = [field.name for field in dataclasses.fields(Hypers)]
    base = Hypers(lr=0.02, critic_lr=0.02, alpha_lr=0.02, max_grad_norm=0.5)
    runs = [base] + [base.replace(**{name: 0.5 * getattr(base, name) + 0.007}) for name in names]
    hypers = jax.tree.map(lambda *x: jnp.array(x), *runs)
    algorithm = made("continuous", replay="prioritised", elastic_batches=True)

    def learnt(h):
        start = lambda params: wavy(params) | {"log_alpha": params["log_alpha"]}  # noqa: E731
        return train(algorithm, h, start=start)[0].learnt.params

    params = jax.jit(jax.vmap(learnt))(hypers)
    assert finite(params)
    for i, name in enumerate(names, 1):
        assert differ(*(jax.tree.map(lambda x, i=i: x[i], params) for i in (0, i))), name


def test_nothing_is_learnt_before_learning_starts():
    state, metrics = trained("continuous", learning_starts=97)  # two updates are 96 steps
    assert not differ(state.learnt.params, wavy(state.learnt.params)) and not np.any(metrics["loss"])
    once = trained("continuous", learning_starts=60)
    assert np.asarray(once[1]["loss"])[0] == 0.0 and np.asarray(once[1]["loss"])[1] != 0.0


def test_teams_have_temperatures_and_metrics_of_their_own():
    state, metrics = trained("discrete")
    assert state.learnt.params["log_alpha"].shape == (2,)
    names = {"q_loss", "policy_loss", "q_value", "entropy_surplus", "entropy", "temperature", "episode_return"}
    assert {f"{name}{group}" for name in names for group in ("", "/red", "/blue")} <= set(metrics)
    assert not np.allclose(metrics["temperature/red"], metrics["temperature/blue"])


TASKS = {
    "mpe/simple_spread": {"continuous": True},
    "mpe/simple_tag": {},
    "mpe/simple_speaker_listener": {"continuous": True},
    "smax/3m": {},
}


@pytest.mark.parametrize("task", TASKS)
def test_two_updates_are_finite(task):
    env = envs.make(task, horizon=3, **TASKS[task])
    config = Config(**SMALL | {"num_envs": 2, "rollout_length": 6, "batch_size": 8, "sharing": "group"})
    state, metrics = jax.jit(lambda: train(MASAC(config, env)))()
    assert finite((state.learnt, metrics))
    assert (metrics["episodes"] > 0).all() and all(metrics["loss"] != 0.0)
    assert unmoved(state.learnt.params) == []  # no layer is passed by


def test_two_updates_fit():
    """A state of the same shape after the first one: otherwise no loop could hold both."""
    config = Config(**SMALL | {"num_envs": 2, "rollout_length": 6, "batch_size": 8})
    algorithm = MASAC(config, envs.make("mpe/simple_spread"))
    assert jax.eval_shape(lambda: train(algorithm))[1]["loss"].shape == (2,)


@pytest.mark.parametrize(
    ("changes", "env", "message"),
    [
        ({}, "multi", "env=mpe/simple_reference: its actions are several choices each"),
        ({"q": Model("deepsets")}, "toy", "algo.q.network=deepsets: reads agents"),
        ({"q": Model("gru")}, "toy", "algo.q.network=gru: this file has no memory"),
        ({"actor": Model("cnn")}, "toy", "algo.actor.network=cnn: test/toy has no image"),
        ({"q": Model("cnn")}, "image", "algo.q.network=cnn: a row of a central critic is no image"),
        ({"buffer_size": 15}, "toy", "algo.buffer_size=15: must hold a batch"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_is_said(changes, env, message):
    env = {
        "multi": lambda: envs.make("mpe/simple_reference", multi_discrete=True),
        "image": lambda: envs.make("coin_game/coin_game"),
        "toy": toy,
    }[env]()
    with pytest.raises(UserError, match=re.escape(message)):
        MASAC(Config(**SMALL | changes), env)
