"""MADDPG, MATD3 and IDDPG: what their targets and losses see, what their options do, and that they train."""

from __future__ import annotations

import dataclasses
import re
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.baselines.maddpg.mad4pg_ff_mpe import MAD4PG
from shoal.baselines.maddpg.maddpg_ff_mpe import MADDPG, Config, Hypers
from shoal.envs.base import Continuous, Discrete, MultiDiscrete, size_mask
from shoal.envs.wrappers import TimeLimit
from shoal.errors import UserError
from shoal.nn.models import Model
from shoal.rl import distributions
from shoal.rl.critics import Observation
from shoal.run.evaluate import evaluate
from tests.baselines.toy import Toy, differ, finite, params_of, toy, unmoved, wavy, with_params

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
SMALL = {"total_steps": 192, "num_envs": 4, "rollout_length": 12, "gradient_steps": 2, "batch_size": 16}
SMALL |= {"buffer_size": 96, "learning_starts": 0, "actor": Model(widths=(8,)), "q": Model(widths=(8,))}


class Steered(Toy):
    """The toy with continuous actions, two numbers of two agents and one of the third."""

    action_space = Continuous.box((2, 2, 1), -1.0, 3.0)

    def reset(self, key):
        state, timestep = super().reset(key)
        return state, timestep.replace(action_mask=jnp.asarray(size_mask((2, 2, 1))))

    def _mask(self, state):
        return size_mask(Toy.action_space.sizes)

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action.mean(axis=-1))
        return state, timestep.replace(action_mask=jnp.asarray(size_mask((2, 2, 1))))


ENVS = {"discrete": toy, "continuous": lambda poison=0.0, pay=0.0: TimeLimit(Steered(poison, pay))}
each_kind = pytest.mark.parametrize("kind", ENVS)


def made(kind: str, algorithm: type = MADDPG, **changes: Any) -> Any:
    return algorithm(algorithm.Config(**SMALL | changes), ENVS[kind]())


def train(algorithm, hypers=None, updates=2, key=None):
    """State and metrics after some updates of parameters that need not be drawn."""
    hypers = algorithm.Hypers(lr=0.02, critic_lr=0.02, tau=0.1) if hypers is None else hypers
    state = algorithm.init(jax.random.PRNGKey(0) if key is None else key, hypers)
    learnt = state.learnt.replace(params=wavy(state.learnt.params), target=wavy(state.learnt.target))
    return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state.replace(learnt=learnt), length=updates)


@cache
def prepare(kind: str, algorithm: type = MADDPG, **changes: Any) -> SimpleNamespace:
    """A second rollout, which starts in the middle of episodes: transitions for replay, and what environments gave."""
    algorithm = made(kind, algorithm, **changes)
    hypers = algorithm.Hypers(gamma=0.9)
    more = (hypers,) if isinstance(algorithm, MAD4PG) else ()

    @jax.jit
    def run(key):
        state = algorithm.init(key, hypers)
        params = wavy(state.learnt.params)
        learnt = state.learnt.replace(params=params, target=jax.tree.map(lambda x: -0.8 * x, params))

        def collect(envs, key):
            envs, *both = algorithm.rollout(learnt, envs, jax.random.split(key, 4), *more)
            return envs, both

        envs, both = jax.lax.scan(collect, state.slot.envs, jax.random.split(key, 2))
        state = state.replace(learnt=learnt, slot=state.slot.replace(envs=envs))
        return state, *jax.tree.map(lambda x: x[1], both)

    state, items, step = run(jax.random.PRNGKey(3))
    learnt, buffer = state.learnt, state.slot.buffer
    names = {"algorithm": algorithm, "hypers": hypers, "state": state, "learnt": learnt, "buffer": buffer}
    return SimpleNamespace(**names, items=items, step=step)


# What targets are.


def plain_targets(prepared: SimpleNamespace, value: np.ndarray) -> np.ndarray:
    """``[T, E, A]`` by loops over steps, from the ``value [T, E, A]`` of every true successor."""
    step, config = prepared.step, prepared.algorithm.config
    reward, terminated, truncated = (np.asarray(x) for x in (step.reward, step.terminated, step.truncated))
    alive = np.asarray(step.final_alive)
    expected = np.zeros_like(reward)
    for t, e, a in np.ndindex(reward.shape):
        scale = 1.0
        for k in range(t, min(t + getattr(config, "n_step", 1), len(reward))):
            expected[t, e, a] += scale * reward[k, e, a]
            dead = config.death == "ends_return" and not alive[k, e, a]
            scale *= 0.0 if terminated[k, e] or dead else 0.9
            if terminated[k, e] or truncated[k, e]:
                break
        expected[t, e, a] += scale * value[k, e, a]
    assert terminated.any() and truncated.any() and (~alive).any()
    return expected


@pytest.mark.parametrize("death", ["keeps_return", "ends_return"])
@each_kind
def test_targets_are_those_of_a_plain_loop_with_deaths_and_endings(kind, death):
    prepared = prepare(kind, **{"death": death} if death == "ends_return" else {})
    algorithm, learnt, items = prepared.algorithm, prepared.learnt, prepared.items
    final = algorithm.critic.successor(prepared.step)  # [T, E, ...]
    action = algorithm.choose(algorithm.outputs(learnt.target, final), final.action_mask, 0.0)
    value = np.asarray(algorithm.q(learnt.target["critic"], final, action))[0]
    y = algorithm.targets(learnt.target, items, jnp.zeros_like(items.action), prepared.hypers)
    earning, expected = items.earning.reshape(value.shape), plain_targets(prepared, value)
    close(np.asarray(y).reshape(value.shape)[earning], expected[earning])
    living = np.asarray(items.seen.alive).reshape(value.shape)
    np.testing.assert_array_equal(earning, living if death == "ends_return" else np.ones_like(living))


def test_a_successor_is_the_true_one_and_not_the_next_episodes():
    prepared = prepare("discrete")
    step = prepared.step
    truncated = np.asarray(step.truncated).reshape(-1)
    kept = np.asarray(prepared.items.next.obs)[truncated]
    close(kept, np.asarray(step.final_obs).reshape(48, 3, -1)[truncated])
    assert differ(kept, np.asarray(step.obs).reshape(48, 3, -1)[truncated])
    assert (np.asarray(prepared.items.discount)[truncated][:, 0] == 1).all()  # the first never dies


def test_what_replay_holds_is_discounted_as_it_is_drawn():
    """Evolution and callbacks may change gamma."""
    prepared = prepare("discrete")
    noise, target = jnp.zeros_like(prepared.items.action), prepared.learnt.target
    y = partial(prepared.algorithm.targets, target, prepared.items, noise)
    assert differ(y(hypers=prepared.hypers.replace(gamma=0.5)), y(hypers=prepared.hypers))


@each_kind
def test_the_target_takes_the_lower_of_two_critics(kind):
    prepared = prepare(kind, twin=True)
    algorithm, batch, target = prepared.algorithm, prepared.items, prepared.learnt.target
    action = algorithm.choose(algorithm.outputs(target, batch.next), batch.next.action_mask, 0.0)
    q = algorithm.q(target["critic"], batch.next, action)  # [2, B, A]
    noise = jnp.zeros_like(batch.action)
    y = algorithm.targets(target, batch, noise, prepared.hypers)
    close(y, batch.reward + 0.9 * batch.discount * np.minimum(*q))
    assert (q[0] < q[1]).any() and (q[1] < q[0]).any()
    # The first critic alone gives its value.
    first = target | {"critic": jax.tree.map(lambda x: x[:1], target["critic"])}
    assert differ(made(kind).targets(first, batch, noise, prepared.hypers), y)


@each_kind
def test_smoothing_moves_the_target_policies_actions_no_further_than_the_clip(kind):
    prepared = prepare(kind)
    algorithm, batch, target = prepared.algorithm, prepared.items, prepared.learnt.target
    noise = distributions.noise(jax.random.PRNGKey(0), algorithm.env.action_space, batch.reward.shape[:1])
    y = partial(algorithm.targets, target, batch, noise)
    outputs = algorithm.outputs(target, batch.next)
    clipped = np.clip(0.7 * noise, -0.4, 0.4)
    if kind == "continuous":
        mask = np.asarray(batch.next.action_mask)
        action = np.where(mask, np.clip(np.tanh(outputs) + clipped, -1.0, 1.0), 0.0)
    else:
        best = np.where(batch.next.action_mask, outputs + clipped, -np.inf).argmax(-1)
        action = np.eye(4)[best]
    q = algorithm.q(target["critic"], batch.next, action)[0]
    smooth = Hypers(gamma=0.9, target_noise=0.7, target_noise_clip=0.4)
    close(y(hypers=smooth), batch.reward + 0.9 * batch.discount * q)
    off = y(hypers=Hypers(target_noise=0.0))
    assert differ(y(hypers=Hypers(target_noise=0.7, target_noise_clip=0.4)), off)
    assert not differ(y(hypers=Hypers(target_noise=0.7, target_noise_clip=0.0)), off)


@pytest.mark.parametrize("delay", [1, 2])
def test_the_policy_waits_for_the_critic(delay):
    """And the targets with it: they have moved once for each of its steps."""
    algorithm, prepared, hypers = made("continuous", policy_delay=delay), prepare("continuous"), Hypers(tau=0.25)
    buffer = algorithm.replay.add(prepared.buffer, prepared.items)
    new = jax.jit(lambda learnt: algorithm.learn(learnt, buffer, jax.random.PRNGKey(0), hypers)[0])(prepared.learnt)
    counts = {
        name: {int(x.max()) for x in jax.tree.leaves(new.opt_state[name]) if x.dtype == jnp.int32}
        for name in ("actor", "critic")
    }
    assert counts == {"actor": {2 // delay}, "critic": {2}}
    if delay == 2:
        jax.tree.map(lambda t, p, old: close(t, 0.25 * p + 0.75 * old), new.target, new.params, prepared.learnt.target)


# What losses see.


@pytest.mark.parametrize("sharing", ["shared", "independent"])
@pytest.mark.parametrize("critic", ["central", "local"])
def test_a_central_critic_sees_all_actions_and_a_local_one_its_own(critic, sharing):
    algorithm = made("continuous", sharing=sharing, critic=critic)
    params, env = params_of(algorithm)["critic"], algorithm.env
    obs = jnp.sin(jnp.arange(3.0 * env.obs_size)).reshape(3, -1)
    seen = Observation(obs, None, jnp.ones((3, 2), bool), jnp.ones(3, bool))
    grads = jax.jacrev(lambda action: algorithm.q(params, seen, action)[0])(jnp.full((3, 2), 0.1))  # [A, A, N]
    sees = np.abs(grads).sum(-1) > 0
    np.testing.assert_array_equal(sees, np.eye(3, dtype=bool) if critic == "local" else np.ones((3, 3), bool))


@pytest.mark.parametrize("critic", ["central", "local"])
@each_kind
def test_in_the_policys_loss_the_others_do_as_they_did(kind, critic):
    """Agent ``i``'s value has its own policy's action and the others' from replay."""
    prepared = prepare(kind, critic=critic)
    algorithm, batch, params = prepared.algorithm, prepared.items, prepared.learnt.params
    noise = distributions.noise(jax.random.PRNGKey(0), algorithm.env.action_space, batch.reward.shape[:1])
    total, _ = algorithm.actor_loss(params["actor"], params["critic"], batch, noise, Hypers(action_reg=0.0))
    outputs = algorithm.outputs(params, batch.seen)
    own = algorithm.choose(outputs, batch.seen.action_mask, 0.0 if kind == "continuous" else noise)
    values = []
    for agent in range(3):
        joint = np.array(batch.action)
        joint[:, agent] = own[:, agent]
        values.append(algorithm.q(params["critic"], batch.seen, joint)[0, :, agent])
    alive = np.asarray(batch.seen.alive)
    close(total, -np.stack(values, -1)[alive].mean())
    everyone = np.asarray(algorithm.q(params["critic"], batch.seen, own))[0]
    assert np.isclose(total, -everyone[alive].mean()) == (critic == "local")


def test_the_policys_loss_has_a_gradient_of_the_policy_and_weighs_its_outputs():
    prepared = prepare("discrete")
    params, noise, items = prepared.learnt.params, jnp.zeros_like(prepared.items.action), prepared.items

    def loss(actor, reg):
        return prepared.algorithm.actor_loss(actor, params["critic"], items, noise, Hypers(action_reg=reg))

    grads = jax.grad(loss, has_aux=True)(params["actor"], 0.0)[0]
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))
    outputs, mask = prepared.algorithm.outputs(params, items.seen), items.seen.action_mask
    size = (np.where(mask, outputs, 0.0) ** 2).sum(-1) / np.asarray(mask).sum(-1)
    grown = loss(params["actor"], 2.0)[0] - loss(params["actor"], 0.0)[0]
    close(grown, 2.0 * size[np.asarray(items.seen.alive)].mean())


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("discrete", {"twin": True}),
        ("continuous", {"critic": "local", "death": "ends_return"}),
        ("discrete", {"sharing": "group", "replay": "prioritised", "death": "ends_return"}),
    ],
    ids=str,
)
def test_what_dead_agents_see_and_get_changes_nothing(kind, case):
    """What they get counts, unless death ends their return."""
    config = Config(**SMALL | {"normalise_obs": True} | case)

    def learn(poison):
        env = ENVS[kind](poison, poison if "death" in case else 0.0)
        state, metrics = train(MADDPG(config, env))
        return (state.learnt.params, state.learnt.target, state.learnt.obs_stats), metrics["critic_loss"]

    learnt = jax.jit(jax.vmap(learn))(jnp.array([0.0, 1e3, -1e5, jnp.nan]))
    assert finite(learnt)
    jax.tree.map(lambda x: [close(x[0], x[i]) for i in (1, 2, 3)], learnt)


@pytest.mark.parametrize("critic", ["central", "local"])
def test_independent_parameters_do_not_mix(critic):
    """One agent's rewards change its own policy and critic, and its target, not another's."""
    prepared = prepare("continuous", sharing="independent", critic=critic, twin=True)
    algorithm, hypers = prepared.algorithm, Hypers(lr=0.01)

    @jax.jit
    @jax.vmap
    def learnt(scale):
        items = prepared.items.replace(reward=prepared.items.reward.at[:, 0].multiply(scale))
        buffer = algorithm.replay.add(prepared.buffer, items)
        return algorithm.learn(prepared.learnt, buffer, jax.random.PRNGKey(0), hypers)[0].params

    params = learnt(jnp.array([1.0, 50.0]))
    jax.tree.map(lambda x: close(x[0, 1:], x[1, 1:]), params["actor"])
    jax.tree.map(lambda x: close(x[0, :, 1:], x[1, :, 1:]), params["critic"])
    assert differ(*(jax.tree.map(lambda x, i=i: x[i, 0], params["actor"]) for i in (0, 1)))
    assert differ(*(jax.tree.map(lambda x, i=i: x[i, :, 0], params["critic"]) for i in (0, 1)))


# What actions are.

MULTI = MultiDiscrete(((3, 2), (3, 1)))
SPACES = {"discrete": Discrete((4, 4)), "multi": MULTI}
LEGAL = np.array([[True, False, True, True, True], [False, True, True, True, False]])


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_straight_through_choice_is_one_hot_and_has_the_gradient_of_a_softmax_of_what_is_legal(space):
    mask = LEGAL[:, : space.size]
    edges = np.cumsum(getattr(space, "parts", (4,)))[:-1]
    scores = jax.random.normal(jax.random.PRNGKey(0), (50, 2, space.size)) * 3.0
    chosen = np.asarray(distributions.straight_through(space, scores, mask, 0.7))
    np.testing.assert_array_equal(chosen, distributions.one_hot(space, scores, mask))
    assert all((part.sum(-1) == 1).all() for part in np.split(chosen, edges, axis=-1))
    assert set(np.unique(chosen)) == {0.0, 1.0} and not (chosen * ~mask).any()
    weights = jnp.arange(1.0, space.size + 1)

    def relaxed(scores):
        parts = jnp.split(jnp.where(mask, scores, -1e30) / 0.7, edges, axis=-1)
        return (jnp.concatenate([jax.nn.softmax(part) for part in parts], axis=-1) * weights).sum()

    grad = jax.grad(lambda x: (distributions.straight_through(space, x, mask, 0.7) * weights).sum())(scores)
    close(grad, jax.grad(relaxed)(scores))
    assert (np.abs(grad).max(0) > 0.1)[0, mask[0, :3].nonzero()].all() and (np.asarray(grad) * ~mask == 0).all()


def test_vectors_become_the_environments_actions():
    np.testing.assert_array_equal(
        distributions.from_vector(MULTI, np.array([[0, 0, 1, 0, 1], [1, 0, 0, 1, 0]])), [[2, 1], [0, 0]]
    )
    np.testing.assert_array_equal(distributions.from_vector(Discrete((3, 3)), np.eye(3)[[2, 0]]), [2, 0])
    close(distributions.from_vector(Continuous.box((2,), -1.0, 3.0), np.array([[-1.0, 0.5]])), [[-1.0, 2.0]])


def test_illegal_actions_are_never_taken():
    """In rollouts, in evaluation with and without noise, and with extreme logits; an illegal one loses."""
    algorithm, prepared = made("discrete"), prepare("discrete")

    @jax.jit
    @jax.vmap
    def plays(scale, noise):
        keys = jax.random.split(jax.random.PRNGKey(0), 6)
        actor = jax.tree.map(lambda x: scale * x, prepared.learnt.params["actor"])
        learnt = prepared.learnt.replace(params=prepared.learnt.params | {"actor": actor}, noise_scale=noise)
        _, items, step = algorithm.rollout(learnt, prepared.state.slot.envs, keys[:4])
        played = [evaluate(algorithm, algorithm.policy(learnt), keys[i], 16, i == 4)[1]["win_rate"] for i in (4, 5)]
        return step.info["won"][5:], *played, items.action

    *won, action = plays(jnp.array([0.0, 1.0, 1e3, -1e12]), jnp.array([0.0, 0.5, 0.0, 1.0]))
    assert all(np.asarray(x).all() for x in won)
    assert (np.asarray(action).sum(-1) == 1).all()


def test_noise_explores_as_far_as_its_scale():
    algorithm, discrete = made("continuous"), made("discrete")
    outputs, mask = jnp.full((1000, 3, 2), 0.3), jnp.asarray(size_mask((2, 2, 1)))
    noise = jax.random.normal(jax.random.PRNGKey(0), outputs.shape)
    chance = jax.random.uniform(jax.random.PRNGKey(1), (1000, 3, 1))
    action = np.asarray(algorithm.explore(outputs, mask, noise, chance, 0.1))
    close([action[:, 0].mean(), action[:, 0].std()], [np.tanh(0.3), 0.1], atol=0.01)
    assert (action[:, 2, 1] == 0).all()  # a dimension that this agent does not have
    assert np.abs(algorithm.explore(outputs, mask, noise, chance, 5.0)).max() == 1.0
    logits, gumbel = (
        jnp.tile(jnp.array([9.0, 0.0, 0.0, 9.0]), (1000, 3, 1)),
        jax.random.gumbel(jax.random.PRNGKey(2), (1000, 3, 4)),
    )
    legal = jnp.array([True, True, True, False])
    share = [np.asarray(discrete.explore(logits, legal, gumbel, chance, eps)).mean((0, 1)) for eps in (0.0, 0.6)]
    close(share, [[1.0, 0.0, 0.0, 0.0], [0.6, 0.2, 0.2, 0.0]], atol=0.03)


@each_kind
def test_acting_is_deterministic_if_greedy_and_noisy_if_not(kind):
    prepared = prepare(kind)
    algorithm, timestep = prepared.algorithm, prepared.state.slot.envs.timestep
    played, keys = algorithm.policy(prepared.learnt), jax.random.split(jax.random.PRNGKey(0), 2)
    act = jax.jit(algorithm.act, static_argnums=4)
    greedy, noisy = ([act(played, (), timestep, key, mode)[1] for key in keys] for mode in (True, False))
    np.testing.assert_array_equal(*greedy)
    assert differ(*noisy)
    outputs = algorithm.outputs(prepared.learnt.params, algorithm.critic.observation(timestep))
    expected = algorithm.choose(outputs, timestep.action_mask, 0.0)
    close(greedy[0], distributions.from_vector(algorithm.env.action_space, expected))


# What options do.

OPTIONS = {
    "total_steps": [97],
    "num_envs": [2],
    "rollout_length": [6],
    "gradient_steps": [4],
    "batch_size": [8],
    "buffer_size": [60],
    "learning_starts": [60],
    "replay": ["prioritised"],
    "critic": ["local"],
    "twin": [True],
    "policy_delay": [2],
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
    algorithm = made("continuous", **changes)
    state = jax.eval_shape(algorithm.init, jax.random.PRNGKey(0), Hypers())
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(algorithm.update)(state, Hypers())))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_changes_the_program(option):
    assert all(program() != program(**{option: choice}) for choice in OPTIONS[option])


def moved_by_each(algorithm, hypers, others) -> set[str]:
    """The hyperparameters of which another value (half, or that of ``others``) makes other parameters."""
    fields = [field.name for field in dataclasses.fields(hypers)]
    runs = [hypers, *(hypers.replace(**{f: others.get(f, getattr(hypers, f) / 2)}) for f in fields)]
    together = jax.tree.map(lambda *numbers: jnp.array(numbers, jnp.float32), *runs)
    params = jax.jit(jax.vmap(lambda h: train(algorithm, h, updates=3)[0].learnt.params))(together)
    assert finite(params)
    return {
        field
        for run, field in enumerate(fields, start=1)
        if any(not np.array_equal(leaf[0], leaf[run]) for leaf in jax.tree.leaves(params))
    }


@each_kind
def test_every_hyperparameter_does_something(kind):
    hypers = Hypers(lr=0.01, critic_lr=0.01, lr_end=0.5, noise_start=0.9, noise_end=0.1, noise_fraction=0.6)
    hypers = hypers.replace(target_noise=0.5, action_reg=0.1, max_grad_norm=0.1, tau=0.1, target_noise_clip=2.0)
    moved = moved_by_each(made(kind, replay="prioritised", elastic_batches=True), hypers, {"noise_end": 0.9})
    everything = {field.name for field in dataclasses.fields(hypers)}
    assert everything - moved == ({"temperature"} if kind == "continuous" else set())


TASKS = {
    "continuous": ("mpe/simple_spread", {"continuous": True}, {"twin": True, "policy_delay": 2}),
    "discrete": ("mpe/simple_spread", {}, {"replay": "prioritised"}),
    "two teams": ("mpe/simple_tag", {"continuous": True}, {"sharing": "group"}),
    "two sub-actions": (
        "mpe/simple_reference",
        {"multi_discrete": True},
        {"sharing": "independent", "critic": "local"},
    ),
    "masks and deaths": ("smax/3m", {}, {"normalise_obs": True}),
}


@pytest.mark.parametrize("task", TASKS)
def test_two_updates_are_finite(task):
    name, kwargs, changes = TASKS[task]
    env = envs.make(name, horizon=5, **kwargs)
    state, metrics = jax.jit(lambda: train(MADDPG(Config(**SMALL | changes), env)))()
    learnt = state.learnt
    assert finite((learnt.params, learnt.target, learnt.opt_state, metrics))
    assert {"critic_loss", "actor_loss", "q_value", "td_error", "noise", "episode_return"} <= set(metrics)
    assert (metrics["critic_loss"] > 0).all()
    assert ("actor_loss/adversary" in metrics) == (task == "two teams")
    assert all(np.any(leaf) for name in learnt.opt_state for leaf in jax.tree.leaves(learnt.opt_state[name])[:1])
    assert unmoved(learnt.params) == []  # no layer is passed by


def test_nothing_is_learnt_before_learning_starts():
    algorithm = made("discrete", learning_starts=100)  # of 48 an update

    def run(key):
        first = algorithm.init(key, Hypers())
        first = with_params(first, wavy(first.learnt.params))
        return jax.lax.scan(lambda s, _: (algorithm.update(s, Hypers())[0], s.learnt.params), first, length=4)[1]

    history = jax.jit(run)(jax.random.PRNGKey(0))
    params = [jax.tree.map(lambda x, i=i: x[i], history) for i in range(4)]
    assert not differ(params[0], params[2])
    assert differ(params[2], params[3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy_delay": 3}, "algo.policy_delay=3: must divide algo.gradient_steps = 2"),
        ({"q": Model("gnn")}, "algo.q.network=gnn: reads agents"),
        ({"q": Model("cnn")}, "algo.q.network=cnn: test/toy has no image observations"),
        ({"actor": Model("gru")}, "algo.actor.network=gru: this file has no memory"),
        ({"buffer_size": 40}, "algo.buffer_size=40: must hold"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_is_said(changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        made("discrete", **changes)


def test_a_central_critic_reads_no_images():
    env = envs.make("coin_game/coin_game")
    with pytest.raises(UserError, match=r"algo.q.network=cnn: a row of a central critic is no image"):
        MADDPG(Config(**SMALL | {"q": Model("cnn")}), env)
    assert MADDPG(Config(**SMALL | {"q": Model("cnn", channels=(4,)), "critic": "local"}), env).critic.values == 1
