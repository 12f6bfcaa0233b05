"""Every algorithm file's loss and targets on hand-made numbers, against plain loops over steps and agents.

Networks are replaced by tables: an algorithm's methods give numbers of the parameters or of the observations, so that
a loss is a function of these alone. Nothing here compares one file with another.
"""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal import envs
from shoal.algorithm import algorithm_in
from shoal.baselines.ippo import ippo_ff_mpe as ippo
from shoal.baselines.maddpg import mad4pg_ff_mpe as mad4pg
from shoal.baselines.maddpg import maddpg_ff_mpe as maddpg
from shoal.baselines.masac import masac_ff_vmas as masac
from shoal.baselines.qmix import pqn_rnn_smax as pqn
from shoal.baselines.qmix import qmix_rnn_mpe as qmix
from shoal.envs.base import Continuous, Discrete, Env, TimeStep
from shoal.envs.wrappers import TimeLimit, VecTimeStep
from shoal.nn.models import Model
from shoal.rl import distributions
from shoal.rl.critics import Observation
from tests.baselines.toy import ALGORITHMS, RECURRENT, Toy, made, toy, with_methods

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
each = pytest.mark.parametrize("name", ALGORITHMS)
DEATHS = ("keeps_return", "ends_return")
T, E, A, N = 6, 2, 3, 4
GROUPS = np.array([0, 0, 1])


def filled(cls: Any, **fields: Any) -> Any:
    """A ``cls`` of these fields; the others are None."""
    return cls(**{field.name: fields.get(field.name) for field in dataclasses.fields(cls)})


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers between -2 and 2, of which no two are equal."""
    return np.random.default_rng(seed).uniform(-2.0, 2.0, shape).astype(np.float32)


def slopes(function: Any, x: np.ndarray) -> np.ndarray:
    """The gradient of a plain ``function`` at ``x``, by small steps."""
    out = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        moved = np.array([x, x], np.float64)
        moved[0][index] += 1e-5
        moved[1][index] -= 1e-5
        out[index] = (function(moved[0]) - function(moved[1])) / 2e-5
    return out


# An episode that is everything at once: [T, E], [T, E, A].

TERMINATED, TRUNCATED, FINAL_ALIVE = np.zeros((T, E), bool), np.zeros((T, E), bool), np.ones((T, E, A), bool)
TERMINATED[3, 0] = TRUNCATED[2, 1] = True  # an end, and a cut, after which new episodes begin
FINAL_ALIVE[1:4, 0, 1] = False  # dies in its second step; its team wins, or not, in the fourth
FINAL_ALIVE[3, 0, 0] = False  # dies as the episode ends
FINAL_ALIVE[2, 1, 2] = False  # dies as its episode is cut off
FINAL_ALIVE[4:, 1, 0] = False  # is dead where the rollout ends
ALIVE = np.concatenate([np.ones((1, E, A), bool), FINAL_ALIVE[:-1] | (TERMINATED | TRUNCATED)[:-1, :, None]])


def timesteps(features: np.ndarray, reward: np.ndarray, final: np.ndarray) -> VecTimeStep:
    """What came of the steps; their true successors show ``final``."""
    return filled(
        VecTimeStep,
        reward=jnp.asarray(reward),
        terminated=jnp.asarray(TERMINATED),
        truncated=jnp.asarray(TRUNCATED),
        is_first=jnp.asarray(TERMINATED | TRUNCATED),
        final_obs=jnp.asarray(final),
        final_state=jnp.zeros((T, E, 1)),
        final_alive=jnp.asarray(FINAL_ALIVE),
        final_action_mask=jnp.ones((T, E, A, N), bool),
        obs=jnp.asarray(features),
        info={},
    )


def ends(t: int, e: int, a: int, death: str) -> bool:
    """Whether nothing counts that comes after this step."""
    return bool(TERMINATED[t, e] or (death == "ends_return" and not FINAL_ALIVE[t, e, a]))


# The PPO family.


def ppo_on_tables(name: str, **changes: Any) -> Any:
    """Outputs and values stand in the parameters; where there are none, the value is an observation's first number."""

    def outputs(self, params, *rest):
        return ((), params["outputs"]) if name in RECURRENT else params["outputs"]

    def value(self, params, *rest):
        found = params["value"] if "value" in params else rest[-1].obs[..., 0]
        return ((), found) if name in RECURRENT else found

    algorithm = made(name, num_envs=E, rollout_length=T, minibatches=1, **changes)
    return with_methods(algorithm, outputs=outputs, value=value)


def targets_of(name: str, algorithm: Any, transitions: Any, last: Any, hypers: Any) -> Any:
    """The batch that a file makes of ``transitions``, after which the environments show ``last``."""
    module = sys.modules[type(algorithm).__mro__[1].__module__]
    envs_after = filled(module.Envs, timestep=last, memory={"actor": (), "critic": ()}) if name in RECURRENT else None
    envs_after = envs_after or filled(module.Envs, timestep=last)
    learnt = filled(module.Learnt, params={}, updates=jnp.int32(0))
    if name in RECURRENT:
        return jax.jit(partial(algorithm.targets, hypers=hypers))(learnt, envs_after, envs_after, transitions)[1]
    return jax.jit(partial(algorithm.targets, hypers=hypers))(learnt, envs_after, transitions)


@pytest.mark.parametrize("death", DEATHS)
@each
def test_ppos_targets_are_those_of_a_plain_loop(name, death):
    """With deaths, one termination, one truncation, and a rollout that ends in the middle of two episodes."""
    algorithm = ppo_on_tables(name, death=death)
    module = sys.modules[ALGORITHMS[name].__module__]
    features, final, reward = numbers(T + 1, E, A, 1), numbers(T, E, A, 1, seed=1), numbers(T, E, A, seed=2)
    outputs, action = numbers(T, E, A, N, seed=3), np.arange(T * E * A).reshape(T, E, A) % 3
    transitions = filled(
        module.Transition,
        obs=jnp.asarray(features[:-1]),
        state=jnp.zeros((T, E, 1)),
        action_mask=jnp.ones((T, E, A, N), bool).at[..., 3].set(False),
        alive=jnp.asarray(ALIVE),
        is_first=jnp.zeros((T, E), bool),
        memory=(),
        outputs=jnp.asarray(outputs),
        action=jnp.asarray(action),
        next=timesteps(features[1:], reward, final),
    )
    last = filled(VecTimeStep, obs=jnp.asarray(features[-1]))
    batch = targets_of(name, algorithm, transitions, last, algorithm.Hypers(gamma=0.9, gae_lambda=0.7))
    value, successor = features[..., 0], final[..., 0]

    def advantage(t: int, e: int, a: int) -> float:
        if ends(t, e, a, death):
            return reward[t, e, a] - value[t, e, a]
        if TRUNCATED[t, e]:
            return reward[t, e, a] + 0.9 * successor[t, e, a] - value[t, e, a]
        now = reward[t, e, a] + 0.9 * value[t + 1, e, a] - value[t, e, a]
        return now if t + 1 == T else now + 0.9 * 0.7 * advantage(t + 1, e, a)

    expected = np.array([advantage(*index) for index in np.ndindex(T, E, A)]).reshape(T, E, A)
    log_prob = outputs[..., :3] - np.log(np.exp(outputs[..., :3]).sum(-1, keepdims=True))
    log_prob = np.take_along_axis(log_prob, action[..., None], -1)[..., 0]
    made = (batch.advantage, batch.target, batch.value, batch.log_prob, batch.earning, batch.alive)
    made = [np.asarray(x).reshape(T, E, A) for x in made]
    close(made[0], expected)
    close(made[1], expected + value[:-1])
    close(made[2], value[:-1])
    close(made[3], log_prob)
    np.testing.assert_array_equal(made[4], ALIVE if death == "ends_return" else np.ones_like(ALIVE))
    np.testing.assert_array_equal(made[5], ALIVE)


def ppo_rows(name: str) -> tuple[dict[str, np.ndarray], Any]:
    """Parameters and a batch: every ratio with either sign, values on all sides of the clip and of the target."""
    rows = 24
    ratio = np.resize([0.5, 1.0, 2.0, 1.1], (rows, A)) * np.linspace(0.97, 1.03, rows * A).reshape(rows, A)
    params = {"outputs": numbers(rows, A, N, seed=4), "value": numbers(rows, A, seed=5)}
    action, old = np.arange(rows * A).reshape(rows, A) % N, numbers(rows, A, seed=6)
    log_prob = params["outputs"] - np.log(np.exp(params["outputs"]).sum(-1, keepdims=True))
    alive = np.arange(rows * A).reshape(rows, A) % 5 > 0
    rows_made = {
        "action_mask": np.ones((rows, A, N), bool),
        "alive": alive,
        "earning": alive | (np.arange(rows) % 3 > 0)[:, None],
        "action": action,
        "log_prob": np.take_along_axis(log_prob, action[..., None], -1)[..., 0] - np.log(ratio),
        "value": old,
        "advantage": numbers(rows, A, seed=7),
        "target": old + numbers(rows, A, seed=8),
        "is_first": np.zeros(rows, bool),
    }
    if name in RECURRENT:
        sequences = lambda x: x.reshape(2, rows // 2, *x.shape[1:])  # noqa: E731
        rows_made, params = jax.tree.map(sequences, rows_made), jax.tree.map(sequences, params)
    batch_type = sys.modules[ALGORITHMS[name].__module__].Batch
    return params, filled(batch_type, **rows_made, memory={"actor": (), "critic": ()})


def plain_ppo(params: dict[str, np.ndarray], batch: Any, hypers: Any, ent_coef: float, config: Any) -> float:
    """The sum over two policies, of agents 0 and 1 and of agent 2, of their mean losses."""
    outputs, value = params["outputs"].reshape(-1, A, N), params["value"].reshape(-1, A)
    one = SimpleNamespace(
        **{
            name: np.asarray(getattr(batch, name), np.float64).reshape(-1, A)
            for name in ("alive", "earning", "action", "log_prob", "value", "advantage", "target")
        }
    )
    total = 0.0
    for team in ([0, 1], [2]):
        living = [(b, a) for b in range(len(value)) for a in team if one.alive[b, a]]
        earning = [(b, a) for b in range(len(value)) for a in team if one.earning[b, a]]
        given = np.array([one.advantage[i] for i in living])
        for (b, a), advantage in zip(living, given, strict=True):
            if config.normalise_advantages:
                advantage = (advantage - given.mean()) / given.std()
            prob = np.exp(outputs[b, a]) / np.exp(outputs[b, a]).sum()
            ratio = prob[int(one.action[b, a])] / np.exp(one.log_prob[b, a])
            clipped = min(max(ratio, 1 - hypers.clip_eps), 1 + hypers.clip_eps)
            gain = min(ratio * advantage, clipped * advantage)
            total += (-gain + ent_coef * (prob * np.log(prob)).sum()) / len(living)
        errors = [plain_value_error(value[i], one.value[i], one.target[i], hypers, config) for i in earning]
        total += hypers.vf_coef * np.mean(errors)
    return total


def plain_value_error(value: float, before: float, target: float, hypers: Any, config: Any) -> float:
    """The loss of one value."""

    def error(v: float) -> float:
        return 0.5 * (v - target) ** 2

    worst = error(value)
    if config.clip_value:
        worst = max(worst, error(min(max(value, before - hypers.clip_eps), before + hypers.clip_eps)))
    return worst


@pytest.mark.parametrize("clipped", [True, False], ids=["clipped", "normalised"])
@each
def test_ppos_loss_and_its_gradient_are_those_of_a_plain_loop(name, clipped):
    """Clipped ratios and values, the dead; then normalised advantages and unclipped values."""
    algorithm = ppo_on_tables(name, sharing="group", normalise_advantages=not clipped, clip_value=clipped)
    hypers = algorithm.Hypers(clip_eps=0.2, vf_coef=0.7, ent_coef=0.3)
    params, batch = ppo_rows(name)
    learnt = SimpleNamespace(obs_stats=None)
    function = jax.jit(jax.value_and_grad(lambda p: algorithm.loss(p, batch, learnt, hypers), has_aux=True))
    (total, metrics), grads = function(params)
    expected = partial(plain_ppo, batch=batch, hypers=hypers, ent_coef=0.3, config=algorithm.config)
    close(total, expected(params))
    close(metrics["loss"], total)
    for part in params:
        by_steps = slopes(lambda x, part=part: expected(params | {part: x}), params[part])
        close(grads[part], by_steps, atol=1e-4)
        assert (by_steps == 0).any() and (by_steps != 0).any()
    alive = np.asarray(batch.alive)
    far = np.resize([True, False, True, False], alive.size).reshape(alive.shape)
    close(metrics["clip_fraction"], far[alive].mean())
    told, before, target, earning = (
        np.asarray(x).reshape(-1, A) for x in (params["value"], batch.value, batch.target, batch.earning)
    )
    errors = np.vectorize(partial(plain_value_error, hypers=hypers, config=algorithm.config))(told, before, target)
    close(metrics["value_loss"], errors[earning].mean())  # of the dead too whose return goes on
    close(metrics["value_loss/blue"], errors[:, 2][earning[:, 2]].mean())
    assert (earning & ~alive.reshape(-1, A)).any()


# Q-learning: an observation is the values of its actions, and parameters are weights of these.

ONLINE, FROZEN = np.array([1.0, 0.9, 1.1, 0.8], np.float32), np.array([0.7, -0.5, 1.3, 0.9], np.float32)
WORLD = 4  # numbers of the global state


def q_on_tables(module: Any, **changes: Any) -> Any:
    sizes = {"num_envs": E, "rollout_length": T, "q": Model(widths=(4,)), "mixer_width": 3, "hyper_width": 2}
    sizes |= {"batch_size": 2, "buffer_size": 24} if module is qmix else {"minibatches": 1}
    algorithm = algorithm_in(module)(module.Config(**sizes | changes), toy())
    return with_methods(algorithm, q=lambda self, params, memory, x: (memory, params["q"] * x.obs))


def q_rollout(module: Any) -> Any:
    """Transitions, and the state of an on-policy file after them."""
    features, final = numbers(T + 1, E, A, N), numbers(T, E, A, N, seed=1)
    world, final_world = numbers(T + 1, E, WORLD, seed=17), numbers(T, E, WORLD, seed=18)
    mask = np.arange(T * E * A * N).reshape(T, E, A, N) % 7 > 0
    first = np.concatenate([np.zeros((1, E), bool), (TERMINATED | TRUNCATED)[:-1]])
    step = module.Step(*map(jnp.asarray, (features[:-1], world[:-1], mask, ALIVE, first)))
    next_mask = np.concatenate([mask[1:], mask[:1]])
    breaks_off = TRUNCATED | (np.arange(T) == T - 1)[:, None]
    final = np.where(breaks_off[..., None, None], final, features[1:])
    final_world = np.where(breaks_off[..., None], final_world, world[1:])
    after = timesteps(features[1:], numbers(T, E, A, seed=2), final)
    after = after.replace(final_action_mask=jnp.asarray(next_mask), final_state=jnp.asarray(final_world))
    action = np.arange(T * E * A).reshape(T, E, A) % N
    return module.Transition(step, (), jnp.asarray(action), after)


def q_params(algorithm: Any, weights: np.ndarray, seed: int) -> dict[str, Any]:
    """An agent's weights, and a mixer if there is one, of which no parameter is zero."""
    shapes = jax.eval_shape(lambda: algorithm.mixing.init(jax.random.PRNGKey(0), WORLD))
    return {"q": weights} | jax.tree.map(lambda x: 0.5 * numbers(*x.shape, seed=seed), shapes)


def teams_of(config: Any) -> list[list[int]]:
    """Whose values are one."""
    return [[0], [1], [2]] if config.mixer == "none" else [[0, 1], [2]]


def mixed(params: dict[str, Any], values: dict[int, float], world: np.ndarray, m: int) -> float:
    """The value of team ``m`` from its members' ``values``: their sum, or QMIX's mixture, to which others are zero."""
    if "mixer" not in params:
        return sum(values.values())

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ params["mixer"][name]["kernel"][m] + params["mixer"][name]["bias"][m]

    w_1, w_2 = (np.abs(dense(name, np.maximum(dense(f"{name}_hidden", world), 0.0))) for name in ("w_1", "w_2"))
    hidden = dense("b_1", world)
    for a, value in values.items():
        hidden = hidden + value * w_1.reshape(A, -1)[a]
    hidden = np.where(hidden > 0.0, hidden, np.expm1(np.minimum(hidden, 0.0)))
    return float(hidden @ w_2 + dense("b_2", np.maximum(dense("b_2_hidden", world), 0.0))[0])


def plain_q_targets(transitions, online, target, hypers, config):
    """``[T, E, M]`` by recursion; the values of the dead count unless their return has ended."""
    after = transitions.next
    online, target = (jax.tree.map(np.float64, x) for x in (online, target))
    obs, world, reward = (np.asarray(x, np.float64) for x in (after.final_obs, after.final_state, after.reward))
    mask = np.asarray(after.final_action_mask)

    def value(t, e, a):
        if config.death == "ends_return" and not FINAL_ALIVE[t, e, a]:
            return 0.0
        chosen = np.where(mask[t, e, a], online["q"] * obs[t, e, a], -np.inf).argmax()
        return target["q"][chosen] * obs[t, e, a, chosen]

    def target_of(t, e, m, team):
        own = np.mean([reward[t, e, a] for a in team])
        if all(ends(t, e, a, config.death) for a in team):
            return own
        bootstrap = mixed(target, {a: value(t, e, a) for a in team}, world[t, e], m)
        if TRUNCATED[t, e] or t + 1 == T:
            return own + hypers.gamma * bootstrap
        further = target_of(t + 1, e, m, team)
        return own + hypers.gamma * ((1 - hypers.td_lambda) * bootstrap + hypers.td_lambda * further)

    teams = list(enumerate(teams_of(config)))
    return np.array([[[target_of(t, e, *team) for team in teams] for e in range(E)] for t in range(T)])


Q_CASES = [(mixer, death) for mixer in ("qmix", "vdn", "none") for death in DEATHS]


def plain_q_loss(params, transitions, y, earning, sample_weight, config):
    """The sum over teams (or over agents' policies) of the mean squared errors, and each row's mean error."""
    obs, world = (np.asarray(x, np.float64) for x in (transitions.step.obs, transitions.step.state))
    params, action = jax.tree.map(np.float64, params), np.asarray(transitions.action)
    total, errors = 0.0, [[] for _ in range(E)]
    for m, team in enumerate(teams_of(config)):
        found = []
        for t, e in np.ndindex(T, E):
            members = [a for a in team if earning[t, e, a]]
            if members:
                each = {a: params["q"][action[t, e, a]] * obs[t, e, a, action[t, e, a]] for a in members}
                wrong = mixed(params, each, world[t, e], m) - y[t, e, m]
                found.append(float(sample_weight[e]) * wrong**2)
                errors[e].append(abs(wrong))
        total += np.mean(found)
    return total, np.array([np.mean(x) for x in errors])


def check_q_gradient(grads, params, plain) -> None:
    """Every part of the gradient is that of the ``plain`` loss, by small steps."""
    for path, found in jax.tree_util.tree_leaves_with_path(grads):

        def moved(x, path=path):
            return plain(jax.tree_util.tree_map_with_path(lambda p, old: x if p == path else old, params))[0]

        expected = slopes(moved, dict(jax.tree_util.tree_leaves_with_path(params))[path])
        close(found, expected, rtol=1e-3, atol=1e-4)
        assert expected.any()


@pytest.mark.parametrize(("mixer", "death"), Q_CASES)
def test_qmixs_targets_and_loss_are_those_of_plain_loops(mixer, death):
    """Chosen by the online network, valued by the target; lambda returns; weights and priorities of sequences."""
    algorithm = q_on_tables(qmix, mixer=mixer, death=death, sharing="independent")
    hypers = qmix.Hypers(gamma=0.9, td_lambda=0.6)
    made, weight = q_rollout(qmix), np.array([1.0, 0.3], np.float32)
    earning = ALIVE if death == "ends_return" else np.ones_like(ALIVE)
    at = np.array([[T, 2], [T - 1, T - 1]])
    last = jax.tree.map(lambda x: x[np.minimum(at, T - 1), np.arange(E)], qmix.Step.final(made.next))
    ended = jnp.asarray(TERMINATED | TRUNCATED)
    batch = qmix.Sequence(
        made.step, jnp.asarray(earning), (), made.action, made.next.reward, made.next.terminated, ended, last, at
    )
    params, target = q_params(algorithm, ONLINE, seed=19), q_params(algorithm, FROZEN, seed=20)
    function = jax.jit(
        jax.value_and_grad(lambda p: algorithm.loss(p, target, batch, jnp.asarray(weight), hypers), has_aux=True)
    )
    (total, (_, priority)), grads = function(params)
    y = plain_q_targets(made, params, target, hypers, algorithm.config)

    @jax.jit
    def targets(q):
        return algorithm.targets(target, algorithm.successor_q(params, (), q, batch), batch, hypers)

    close(targets(params["q"] * made.step.obs), y)
    plain = partial(plain_q_loss, transitions=made, y=y, earning=earning, sample_weight=weight, config=algorithm.config)
    close(total, plain(params)[0])
    close(priority, plain(params)[1])
    check_q_gradient(grads, params, plain)


@pytest.mark.parametrize(("mixer", "death"), Q_CASES)
def test_pqns_targets_and_loss_are_those_of_plain_loops(mixer, death):
    algorithm = q_on_tables(pqn, mixer=mixer, death=death, sharing="independent")
    hypers, made = pqn.Hypers(gamma=0.9, td_lambda=0.6), q_rollout(pqn)
    params = q_params(algorithm, ONLINE, seed=19)
    y = plain_q_targets(made, params, params, hypers, algorithm.config)
    learnt = filled(pqn.Learnt, params=params)
    batch = jax.jit(lambda learnt, made: algorithm.targets(learnt, (), made, hypers))(learnt, made)
    close(batch.target, y)
    earning = ALIVE if death == "ends_return" else np.ones_like(ALIVE)
    np.testing.assert_array_equal(batch.earning, earning)
    (total, _), grads = jax.jit(jax.value_and_grad(lambda p: algorithm.loss(p, batch), has_aux=True))(params)
    plain = partial(plain_q_loss, transitions=made, y=y, earning=earning, sample_weight=[1, 1], config=algorithm.config)
    close(total, plain(params)[0])
    check_q_gradient(grads, params, plain)


# Actors and critics of actions: a critic says a weighted sum of an agent's own number and of everyone's action.

MIX = np.float64(numbers(A, A, N, seed=9))  # what agent i's critic makes of agent j's action


def q_of(critic: Any, x: Any, action: Any) -> Any:
    """``[..., A]``: the dead have done nothing."""
    action = jnp.where(x.alive[..., None], action, 0.0)
    return critic[0] * x.obs[..., 0] + critic[1] * jnp.einsum("ijn,...jn->...i", MIX[..., : action.shape[-1]], action)


class Moved(Toy):
    """The toy with two continuous numbers of every agent."""

    action_space = Continuous.box((2, 2, 2), -1.0, 1.0)


def rows_of(actions: int) -> tuple[Any, Any, Any, np.ndarray]:
    """A batch's steps and successors, rewards ``[B, A]`` and which rows terminate, all ends among them."""
    rows = 12
    alive, after = np.arange(rows * A).reshape(rows, A) % 5 > 0, np.arange(rows * A).reshape(rows, A) % 4 > 0
    mask = np.ones((rows, A, actions), bool)
    here, there = (
        Observation(jnp.asarray(numbers(rows, A, actions, seed=seed)), None, jnp.asarray(mask), jnp.asarray(living))
        for seed, living in ((10, alive), (11, after & alive))
    )
    return here, there, numbers(rows, A, seed=12), np.arange(rows) % 6 == 1


@pytest.mark.parametrize("death", DEATHS)
def test_maddpgs_targets_and_losses_are_those_of_plain_loops(death):
    """Of twins: everyone's target policy acts, the lower counts, errors are weighed, the policy does its own part."""
    config = {"num_envs": 2, "rollout_length": 6, "batch_size": 12, "buffer_size": 24, "twin": True}
    algorithm = with_methods(
        maddpg.MADDPG(maddpg.Config(**config, death=death, sharing="independent"), TimeLimit(Moved())),
        outputs=lambda self, params, x: params["actor"] * x.obs,
        q=lambda self, critic, x, action: jnp.stack([q_of(c, x, action) for c in critic]),
        own_q=lambda self, critic, x, action, own: jnp.stack(
            [q_of(critic[0], x, action.at[..., i, :].set(own[..., i, :]))[..., i] for i in range(A)], -1
        ),
    )
    here, there, reward, terminated = rows_of(2)
    earning = np.asarray(here.alive) if death == "ends_return" else np.ones((12, A), bool)
    goes_on = ~terminated[:, None] & (np.asarray(there.alive) | (death != "ends_return"))
    batch = maddpg.Transition(here, earning, jnp.tanh(numbers(12, A, 2, seed=13)), reward, goes_on * 0.5, there)
    hypers, weight = maddpg.Hypers(gamma=0.9, action_reg=0.2), np.linspace(0.4, 1.0, 12).astype(np.float32)
    critic, target_critic = numbers(2, 2, seed=14), numbers(2, 2, seed=15)
    params = {"actor": jnp.float32(0.8), "critic": jnp.asarray(critic)}
    target = {"actor": jnp.float32(-0.6), "critic": jnp.asarray(target_critic)}

    def q(critic, x, b, action, i):
        done = [action[j] if x.alive[b, j] else np.zeros(2) for j in range(A)]
        return critic[0] * float(x.obs[b, i, 0]) + critic[1] * sum((MIX[i, j, :2] * done[j]).sum() for j in range(A))

    y = np.zeros((12, A))
    for b, i in np.ndindex(12, A):
        acts = [np.tanh(-0.6 * np.asarray(there.obs[b, j])) for j in range(A)]
        y[b, i] = reward[b, i] + 0.9 * goes_on[b, i] * 0.5 * min(q(c, there, b, acts, i) for c in target_critic)

    def plain_critic(critic):
        total, errors = 0.0, np.zeros((12, A))
        for i in range(A):
            rows = [b for b in range(12) if earning[b, i]]
            for b in rows:
                wrong = [q(c, here, b, np.asarray(batch.action[b]), i) - y[b, i] for c in critic]
                total += weight[b] * sum(x**2 for x in wrong) / len(rows)
                errors[b, i] = abs(wrong[0])
        return total, errors.sum(-1) / earning.sum(-1)

    def plain_actor(scale):
        total = 0.0
        for i in range(A):
            rows = [b for b in range(12) if here.alive[b, i]]
            for b in rows:
                acts, outputs = np.array(batch.action[b], np.float64), scale * np.asarray(here.obs[b, i], np.float64)
                acts[i] = np.tanh(outputs)
                total += (0.2 * (outputs**2).mean() - q(critic[0], here, b, acts, i)) / len(rows)
        return total

    noise = jnp.zeros((12, A, 2))

    @jax.jit
    def ours(params):
        of_critic = jax.value_and_grad(algorithm.critic_loss, has_aux=True)(
            params["critic"], target, batch, weight, noise, hypers
        )
        of_actor = jax.value_and_grad(algorithm.actor_loss, has_aux=True)(
            params["actor"], params["critic"], batch, noise, hypers
        )
        return algorithm.targets(target, batch, noise, hypers), of_critic, of_actor

    found, ((total, (_, priority)), grads), ((actor_total, _), actor_grad) = ours(params)
    close(found, y)
    close(total, plain_critic(critic)[0])
    close(priority, plain_critic(critic)[1])
    close(grads, slopes(lambda c: plain_critic(c)[0], critic), rtol=1e-3)
    close(actor_total, plain_actor(0.8))
    close(actor_grad, (plain_actor(0.80001) - plain_actor(0.79999)) / 2e-5, rtol=1e-3)


@pytest.mark.parametrize("death", DEATHS)
def test_what_mad4pg_keeps_of_three_steps_is_that_of_a_plain_loop(death):
    """Rewards while they count, whether anything comes after, and what is seen then."""
    config = mad4pg.Config(num_envs=E, rollout_length=T, batch_size=2, buffer_size=24, n_step=3, death=death)
    algorithm = mad4pg.MAD4PG(config, toy())
    final, reward, mask = numbers(T, E, A, N, seed=1), numbers(T, E, A, seed=2), jnp.ones((T, E, A, N), bool)
    seen = Observation(jnp.zeros((T, E, A, N)), None, mask, jnp.asarray(ALIVE))
    successor = Observation(jnp.asarray(final), None, mask, jnp.asarray(FINAL_ALIVE))
    counts, goes_on = algorithm.earning(seen.alive), ~TERMINATED[..., None] & algorithm.earning(successor.alive)
    made = mad4pg.Transition(seen, counts, jnp.zeros((T, E, A, N)), jnp.asarray(reward), 1.0 * goes_on, successor)
    items = jax.jit(partial(algorithm.over_n_steps, hypers=mad4pg.Hypers(gamma=0.9)))(made, TERMINATED | TRUNCATED)
    for t, e, a in np.ndindex(T, E, A):
        total, scale, k = 0.0, 1.0, t
        while True:
            total += scale * reward[k, e, a]
            scale *= 0.0 if ends(k, e, a, death) else 1.0
            if k == min(t + 2, T - 1) or TERMINATED[k, e] or TRUNCATED[k, e]:
                break
            k, scale = k + 1, 0.9 * scale
        row = t * E + e
        close(items.reward[row, a], total)
        close(items.discount[row, a], scale)
        close(items.next.obs[row, a], final[k, e, a])
        assert items.earning[row, a] == (ALIVE[t, e, a] or death == "keeps_return")


@pytest.mark.parametrize("death", DEATHS)
def test_masacs_targets_and_loss_are_those_of_plain_loops(death):
    """Discrete: exact expectations over legal actions, entropies of the living alone, twins, temperatures of teams."""
    config = {"num_envs": 2, "rollout_length": 6, "batch_size": 12, "buffer_size": 24, "sharing": "independent"}

    def values(self, q, x, action, own=None):
        """Of every own action, ``[twins, B, A, N]``: it moves the value by its place in ``MIX``."""
        others = jnp.where(x.alive[..., None], action, 0.0)[..., None, :, :] * (1.0 - jnp.eye(A))[..., None]
        return jnp.stack(
            [
                c[0] * x.obs[..., :1]
                + c[1] * (jnp.einsum("ijn,...ijn->...i", MIX, others)[..., None] + MIX[np.arange(A), np.arange(A)])
                for c in q
            ]
        )

    def distribution(self, params, x):
        return distributions.policy(self.env.action_space, params["actor"] * x.obs, x.action_mask)

    algorithm = masac.MASAC(masac.Config(**config, death=death), toy())
    algorithm = with_methods(algorithm, values=values, distribution=distribution)
    here, there, reward, terminated = rows_of(N)
    legal = np.arange(12 * A * N).reshape(12, A, N) % 5 > 0
    here, there = here.replace(action_mask=jnp.asarray(legal)), there.replace(action_mask=jnp.asarray(legal[::-1]))
    earning = np.asarray(here.alive) if death == "ends_return" else np.ones((12, A), bool)
    action = np.eye(N, dtype=np.float32)[np.arange(12 * A).reshape(12, A) % N]
    batch = masac.Transition(here, earning, action, reward, terminated, there)
    hypers = masac.Hypers(gamma=0.9, target_entropy=0.4)
    weight, noise = np.linspace(0.4, 1.0, 12).astype(np.float32), numbers(2, 12, A, N, seed=16)
    q, frozen, alpha = numbers(2, 2, seed=14), numbers(2, 2, seed=15), np.array([0.3, 0.5, 0.2], np.float32)
    fixed, start = q, np.log(alpha)
    params = {"actor": jnp.float32(0.8), "q": jnp.asarray(q), "log_alpha": jnp.asarray(start)}

    def choice(x, b, i, noise, scale=0.8):
        outputs = np.where(x.action_mask[b, i], scale * np.asarray(x.obs[b, i], np.float64), -np.inf)
        log_prob = outputs - np.log(np.exp(outputs).sum())
        return np.eye(N)[(log_prob + noise[b, i]).argmax()], np.exp(log_prob), np.where(np.isinf(log_prob), 0, log_prob)

    def value(critic, x, b, acts, i):
        others = sum((MIX[i, j] * acts[j]).sum() for j in range(A) if j != i and x.alive[b, j])
        return critic[0] * float(x.obs[b, i, 0]) + critic[1] * (others + MIX[i, i])

    y = np.zeros((12, A))
    for b, i in np.ndindex(12, A):
        chosen = [choice(there, b, j, noise[1]) for j in range(A)]
        lower = np.min([value(c, there, b, [x[0] for x in chosen], i) for c in frozen], axis=0)
        price = alpha[i] * chosen[i][2] if there.alive[b, i] else 0.0
        over = terminated[b] or (death == "ends_return" and not there.alive[b, i])
        y[b, i] = reward[b, i] + (0.0 if over else 0.9 * (chosen[i][1] * (lower - price)).sum())

    def plain(q=q, scale=0.8, log_alpha=start):
        total, errors, losses, means = 0.0, np.zeros((12, A)), [], []
        for i in range(A):
            rows, living = ([b for b in range(12) if mask[b, i]] for mask in (earning, np.asarray(here.alive)))
            for b in rows:
                told = [(value(c, here, b, action[b], i) * action[b, i]).sum() for c in q]
                wrong = [x - y[b, i] for x in told]
                losses.append(weight[b] * sum(x**2 for x in wrong))
                means.append(np.mean(told))
                total += losses[-1] / len(rows)
                errors[b, i] = np.mean(np.abs(wrong))
            for b in living:
                _, prob, log_prob = choice(here, b, i, noise[0], scale)
                lower = np.min([value(c, here, b, action[b], i) for c in fixed], axis=0)
                total += (prob * (alpha[i] * log_prob - lower)).sum() / len(living)
                _, prob, log_prob = choice(here, b, i, noise[0])
                surplus = -(prob * log_prob).sum() - 0.4 * np.log(legal[b, i].sum())
                total += log_alpha[i] * surplus / len(living)
        figures = {"q_loss": np.mean(losses), "q_value": np.mean(means), "td_error": errors[earning].mean()}
        return total, errors.sum(-1) / earning.sum(-1), figures

    @jax.jit
    def ours(params):
        loss = jax.value_and_grad(algorithm.loss, has_aux=True)
        of_all = loss(params, jnp.asarray(frozen), batch, weight, noise, hypers)
        return algorithm.targets(params, jnp.asarray(frozen), batch, noise[1], hypers), of_all

    found, ((total, (metrics, priority)), grads) = ours(params)
    close(found, y)
    close(total, plain()[0])
    close(priority, plain()[1])
    for name, figure in plain()[2].items():  # of the dead too whose return goes on
        close(metrics[name], figure)
    close(grads["q"], slopes(lambda x: plain(q=x)[0], q), rtol=1e-3)
    close(grads["actor"], (plain(scale=0.80001)[0] - plain(scale=0.79999)[0]) / 2e-5, rtol=1e-3)
    close(grads["log_alpha"], slopes(lambda x: plain(log_alpha=x)[0], start), rtol=1e-3)


# A sacrifice: an agent dies in its second step, the team wins in its fifth.


class Sacrifice(Env):
    """Two agents, who see the step that they are in, as the state does; it is not played."""

    name, agents, groups = "test/sacrifice", ("brave", "wise"), ("team", "team")
    obs_sizes, state_size, action_space, horizon = (6, 6), 6, Discrete((2, 2)), 8

    def reset(self, key):
        no, yes = jnp.bool_(False), jnp.ones((2, 2), bool)
        return (), TimeStep(jnp.zeros((2, 6)), jnp.zeros(6), yes, jnp.zeros(2), no, no, yes[0], {})

    def step(self, key, state, action):
        return self.reset(key)


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("module", [maddpg, masac])
def test_critics_learn_what_a_sacrifice_is_worth(module, death):
    """Of one-step targets: a critic values the dead by the rows in which they were dead."""
    sizes = {"num_envs": 1, "rollout_length": 5, "batch_size": 5, "buffer_size": 10}
    sizes |= {"agent_id": False, "twin": False, "death": death, "q": Model(widths=(32,))}
    config = module.Config(**sizes) if module is maddpg else module.Config(**sizes, auto_alpha=False)
    algorithm = algorithm_in(module)(config, Sacrifice())
    alive = np.array([[True, True], [True, True], [False, True], [False, True], [False, True], [False, True]])
    only = jnp.broadcast_to(jnp.array([True, False]), (6, 2, 2))  # one action is legal
    number = jnp.eye(6)  # of the step
    shown = jnp.broadcast_to(number[:, None], (6, 2, 6))
    seen = Observation(shown, None if module is maddpg else number, only, jnp.asarray(alive))
    here, there = (jax.tree.map(lambda x, part=part: x[part], seen) for part in (slice(0, 5), slice(1, 6)))
    earning = alive[:5] | (death == "keeps_return")
    reward, terminated = np.zeros((5, 2), np.float32), np.arange(5) == 4
    reward[4] = 1.0
    action, ones, hypers = jnp.eye(2)[jnp.zeros((5, 2), int)], jnp.ones(5), module.Hypers(gamma=0.9)
    if module is maddpg:
        goes_on = ~terminated[:, None] & (alive[1:] | (death == "keeps_return"))
        batch = module.Transition(here, earning, action, reward, goes_on.astype(np.float32), there)
        loss = lambda c, params: algorithm.critic_loss(  # noqa: E731
            c, params | {"critic": c}, batch, ones, jnp.zeros((5, 2, 2)), hypers
        )[0]
    else:
        batch = module.Transition(here, earning, action, reward, terminated, there)
        loss = lambda c, params: algorithm.loss(  # noqa: E731
            params | {"q": c}, jax.lax.stop_gradient(c), batch, ones, jnp.zeros((2, 5, 2, 2)), hypers.replace(alpha=0.0)
        )[0]

    @jax.jit
    def learn(key):
        params = algorithm.init(key, module.Hypers()).learnt.params
        name = "critic" if module is maddpg else "q"
        optimiser = optax.adam(1e-2)

        def gradient_step(carry, _):
            critic, moments = carry
            updates, moments = optimiser.update(jax.grad(loss)(critic, params), moments)
            return (optax.apply_updates(critic, updates), moments), None

        start = (params[name], optimiser.init(params[name]))
        (critic, _), _ = jax.lax.scan(gradient_step, start, length=1000)
        if module is maddpg:
            return algorithm.q(critic, here, action)[0]
        return algorithm.values(critic, here, action)[0, ..., 0]

    value = np.asarray(learn(jax.random.PRNGKey(0)))
    close(value[:, 1], 0.9 ** np.arange(4, -1, -1), atol=0.05)
    close(value[:2, 0], 0.9 ** np.array([4, 3]) if death == "keeps_return" else [0.0, 0.0], atol=0.05)


@pytest.mark.parametrize("death", DEATHS)
def test_in_smax_the_return_at_the_step_of_death_is_the_teams(death):
    """Three marines go east and attack; the critic says zero, so that targets are the discounted rewards to come."""
    env = envs.make("smax/3m")

    @jax.jit
    @jax.vmap
    def play(key):
        def step(carry, key):
            state, timestep = carry
            last = env.action_space.size - 1 - jnp.argmax(timestep.action_mask[:, ::-1], axis=-1)
            action = jnp.where(last > 4, last, 1)  # attack, else east
            state, after = env.step(key, state, jnp.where(timestep.action_mask[jnp.arange(3), action], action, 4))
            return (state, after), (timestep.alive, after)

        return jax.lax.scan(step, env.reset(key), jax.random.split(key, 60))[1]

    alive, after = play(jax.random.split(jax.random.PRNGKey(0), 16))
    alive, after = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), (alive, after))
    steps, plays = after.terminated.shape
    zeros = jnp.zeros((steps, plays, A, 1))
    step = filled(
        VecTimeStep,
        reward=after.reward,
        terminated=after.terminated,
        truncated=jnp.zeros_like(after.terminated),
        is_first=after.terminated,
        final_obs=zeros,
        final_state=zeros[..., 0],
        final_alive=after.alive,
    )
    transitions = filled(
        ippo.Transition,
        obs=zeros,
        action_mask=jnp.ones((steps, plays, A, N), bool),
        alive=alive,
        outputs=jnp.zeros((steps, plays, A, N)),
        action=jnp.zeros((steps, plays, A), int),
        next=step,
    )
    algorithm = ppo_on_tables("ippo_ff", death=death)
    algorithm.vec = SimpleNamespace(max_truncations=1)
    last = filled(VecTimeStep, obs=zeros[0])
    batch = targets_of("ippo_ff", algorithm, transitions, last, algorithm.Hypers(gae_lambda=1.0))
    target = batch.target.reshape(steps, plays, A)
    reward, over = np.asarray(after.reward), np.asarray(after.terminated)
    expected = []
    for t, e, a in zip(*np.nonzero(np.asarray(alive & ~after.alive)), strict=True):
        if over[: t + 1, e].any():
            continue  # with the last of its team, or after the end
        end = over[:, e].argmax() if over[:, e].any() else steps - 1
        to_come = sum(0.99 ** (k - t) * reward[k, e, a] for k in range(t, end + 1))
        expected.append((t, e, a, to_come, reward[t, e, a]))
    t, e, a, shared, own = np.array(expected).T
    at = tuple(x.astype(int) for x in (t, e, a))
    close(np.asarray(target)[at], shared if death == "keeps_return" else own)
    assert len(t) > 5 and shared.mean() > 3 * own.mean()


# Random numbers.


class Told(Env):
    """Episodes of four steps whose return says which actions were taken; nothing in it is random."""

    name, agents, groups = "test/told", ("a", "b"), ("team", "team")
    obs_sizes, state_size, action_space, horizon, terminates = (1, 1), 1, Discrete((3, 3)), 4, False

    def reset(self, key):
        return jnp.float32(1.0), self._timestep(jnp.float32(0.0))

    def step(self, key, state, action):
        return 1.37 * state, self._timestep(state * (action[0] + 4.1 * action[1]))

    def _timestep(self, reward):
        no, yes = jnp.bool_(False), jnp.ones((2, 3), bool)
        return TimeStep(jnp.zeros((2, 1)), jnp.zeros(1), yes, jnp.full(2, reward), no, no, yes[:, 0], {})


FILES = ALGORITHMS | {
    module.__name__.split(".")[-1]: algorithm_in(module) for module in (qmix, pqn, maddpg, mad4pg, masac)
}


@pytest.mark.parametrize("name", FILES)
def test_two_updates_of_the_same_parameters_draw_other_actions(name):
    kind = FILES[name]
    sizes = {"num_envs": 2, "rollout_length": 4, "batch_size": 2, "buffer_size": 32, "minibatches": 1}
    options = {field.name for field in dataclasses.fields(kind.Config)}
    config = kind.Config(**{key: size for key, size in sizes.items() if key in options})
    algorithm = kind(config, TimeLimit(Told()))
    hypers = kind.Hypers(**({"eps_end": 1.0, "eps_start": 1.0} if hasattr(kind.Hypers, "eps_end") else {}))

    @jax.jit
    def update(state):
        after, metrics = algorithm.update(state, hypers)
        learnt = state.learnt.replace(updates=after.learnt.updates)
        return after.replace(learnt=learnt), metrics["episode_return"]

    state, returns = jax.jit(algorithm.init)(jax.random.PRNGKey(0), hypers), []
    for _ in range(3):
        state, played = update(state)
        returns.append(float(played))
    assert len(set(returns)) == 3
