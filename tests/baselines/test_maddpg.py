"""MADDPG and its kin: what their targets and losses see, what their options do, and that they train."""

from __future__ import annotations

import dataclasses
import re
from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.baselines.maddpg import maddpg_ff_mpe as maddpg
from shoal.envs.base import Continuous, Discrete, MultiDiscrete, size_mask
from shoal.envs.wrappers import TimeLimit
from shoal.errors import UserError
from shoal.nn.models import Model
from shoal.rl import distributions
from shoal.rl.exploration import ornstein_uhlenbeck
from shoal.rl.returns import project
from shoal.run.evaluate import evaluate
from tests.baselines.toy import Toy, differ, finite, toy, unmoved, wavy

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


def setup_of(kind: str, **changes) -> maddpg.Setup:
    return maddpg.make(maddpg.Config(**SMALL | changes), ENVS[kind]()).update.keywords["setup"]


def train(config, env, hypers=None, updates=2, key=None):
    """State and metrics after some updates of parameters that need not be drawn."""
    algorithm = maddpg.make(config, env)
    hypers = maddpg.Hypers(lr=0.02, critic_lr=0.02, tau=0.1) if hypers is None else hypers
    state = algorithm.init(jax.random.PRNGKey(0) if key is None else key, hypers)
    state = state.replace(params=wavy(state.params), target=wavy(state.target))
    return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=updates)


@cache
def prepare(kind: str, **changes) -> SimpleNamespace:
    """A second rollout, which starts in the middle of episodes, and what replay would keep of it."""
    setup, hypers = setup_of(kind, **changes), maddpg.Hypers(gamma=0.9)

    @jax.jit
    def run(key):
        state = maddpg.init(key, hypers, setup)
        state = state.replace(params=wavy(state.params), target=jax.tree.map(lambda x: -0.8 * x, wavy(state.params)))

        def collect(state, key):
            state, *seen = maddpg.collect(state, jax.random.split(key, 4), hypers, setup)
            return state, seen

        state, both = jax.lax.scan(collect, state, jax.random.split(key, 2))
        return state, *jax.tree.map(lambda x: x[1], both)

    state, items, transitions = run(jax.random.PRNGKey(3))
    return SimpleNamespace(setup=setup, hypers=hypers, state=state, items=items, transitions=transitions)


# What targets are.


@pytest.mark.parametrize("n_step", [1, 3])
@each_kind
def test_targets_are_those_of_a_plain_loop_with_deaths_and_endings(kind, n_step):
    """With one step deaths end nothing, with three they end the return."""
    prepared = prepare(kind, **{"n_step": n_step, "death": "ends_return"} if n_step > 1 else {})
    setup, hypers, state, step = prepared.setup, prepared.hypers, prepared.state, prepared.transitions.next
    final = setup.final(step)  # [T, E, ...]
    outputs = setup.policy(state.target, final)
    action = maddpg.choose(outputs, final.action_mask, 0.0, setup)
    value = np.asarray(setup.q(state.target, final, action))[0, ..., 0]  # [T, E, A], of every true successor
    reward, terminated, truncated = (np.asarray(x) for x in (step.reward, step.terminated, step.truncated))
    alive = np.asarray(step.final_alive)
    steps, num_envs, agents = reward.shape
    expected = np.zeros_like(reward)
    for t, e, a in np.ndindex(reward.shape):
        scale = 1.0
        for k in range(t, min(t + n_step, steps)):
            expected[t, e, a] += scale * reward[k, e, a]
            scale *= 0.0 if terminated[k, e] or (n_step > 1 and not alive[k, e, a]) else 0.9
            if terminated[k, e] or truncated[k, e]:
                break
        expected[t, e, a] += scale * value[k, e, a]
    noise = jnp.zeros_like(prepared.items.action)
    y = maddpg.targets(state.target, prepared.items, noise, hypers, setup)
    living, earning = np.asarray(prepared.transitions.seen.alive), prepared.items.earning.reshape(reward.shape)
    close(np.asarray(y).reshape(steps, num_envs, agents)[earning], expected[earning])
    np.testing.assert_array_equal(earning, living if n_step > 1 else np.ones_like(living))
    assert terminated.any() and truncated.any() and (living & ~alive).any()


def test_a_successor_is_the_true_one_and_not_the_next_episodes():
    prepared = prepare("discrete")
    step = prepared.transitions.next
    truncated = np.asarray(step.truncated).reshape(-1)
    kept = np.asarray(prepared.items.next.obs)[truncated]
    close(kept, np.asarray(step.final_obs).reshape(48, 3, -1)[truncated])
    assert differ(kept, np.asarray(step.obs).reshape(48, 3, -1)[truncated])
    assert (np.asarray(prepared.items.future)[truncated][:, 0] == 1).all()  # the first never dies


@pytest.mark.parametrize("n_step", [1, 3])
def test_what_replay_holds_is_discounted_as_it_is_drawn(n_step):
    """Evolution and callbacks may change gamma; of several steps all but the last gamma are in the item."""
    prepared = prepare("discrete", **{"n_step": n_step} if n_step > 1 else {})
    setup, target, changed = prepared.setup, prepared.state.target, prepared.hypers.replace(gamma=0.5)
    items = maddpg.experience(prepared.transitions, changed, setup)
    y = partial(maddpg.targets, target, noise=jnp.zeros_like(items.action), setup=setup)
    assert differ(y(prepared.items, hypers=changed), y(prepared.items, hypers=prepared.hypers))
    assert differ(y(prepared.items, hypers=changed), y(items, hypers=changed)) == (n_step > 1)


@each_kind
def test_the_target_believes_the_lower_of_two_critics(kind):
    prepared = prepare(kind, twin=True)
    setup, batch = prepared.setup, prepared.items
    action = maddpg.choose(setup.policy(prepared.state.target, batch.next), batch.next.action_mask, 0.0, setup)
    q = setup.q(prepared.state.target, batch.next, action)[..., 0]  # [2, B, A]
    y = maddpg.targets(prepared.state.target, batch, jnp.zeros_like(batch.action), prepared.hypers, setup)[..., 0]
    close(y, batch.reward + 0.9 * batch.future * np.minimum(*q))
    assert (q[0] < q[1]).any() and (q[1] < q[0]).any()
    # The first critic alone would believe itself.
    alone = dataclasses.replace(setup, config=dataclasses.replace(setup.config, twin=False))
    target = prepared.state.target | {"critic": jax.tree.map(lambda x: x[:1], prepared.state.target["critic"])}
    assert differ(maddpg.targets(target, batch, jnp.zeros_like(batch.action), prepared.hypers, alone)[..., 0], y)


@each_kind
def test_smoothing_moves_the_target_policies_actions_no_further_than_the_clip(kind):
    prepared = prepare(kind)
    setup, batch, target = prepared.setup, prepared.items, prepared.state.target
    noise = distributions.noise(jax.random.PRNGKey(0), setup.env.action_space, batch.reward.shape[:1])
    y = partial(maddpg.targets, target, batch, noise, setup=setup)
    outputs = setup.policy(target, batch.next)
    clipped = np.clip(0.7 * noise, -0.4, 0.4)
    if kind == "continuous":
        mask = np.asarray(batch.next.action_mask)
        action = np.where(mask, np.clip(np.tanh(outputs) + clipped, -1.0, 1.0), 0.0)
    else:
        best = np.where(batch.next.action_mask, outputs + clipped, -np.inf).argmax(-1)
        action = np.eye(4)[best]
    q = setup.q(target, batch.next, action)[0, ..., 0]
    smooth = maddpg.Hypers(gamma=0.9, target_noise=0.7, target_noise_clip=0.4)
    close(y(hypers=smooth)[..., 0], batch.reward + 0.9 * batch.future * q)
    off = y(hypers=maddpg.Hypers(target_noise=0.0))
    assert differ(y(hypers=maddpg.Hypers(target_noise=0.7, target_noise_clip=0.4)), off)
    assert not differ(y(hypers=maddpg.Hypers(target_noise=0.7, target_noise_clip=0.0)), off)


@pytest.mark.parametrize("delay", [1, 2])
def test_the_policy_waits_for_the_critic(delay):
    """And the targets with it: they have moved once for each of its steps."""
    setup = setup_of("continuous", policy_delay=delay)
    prepared, hypers = prepare("continuous"), maddpg.Hypers(tau=0.25)
    state = prepared.state.replace(buffer=setup.replay.add(prepared.state.buffer, prepared.items))
    new, _ = jax.jit(lambda state: maddpg.learn(state, jax.random.PRNGKey(0), hypers, setup))(state)
    counts = {
        name: {int(x.max()) for x in jax.tree.leaves(new.opt_state[name]) if x.dtype == jnp.int32}
        for name in ("actor", "critic")
    }
    assert counts == {"actor": {2 // delay}, "critic": {2}}
    if delay == 2:
        jax.tree.map(lambda t, p, old: close(t, 0.25 * p + 0.75 * old), new.target, new.params, state.target)


# What losses see.


def params_of(setup) -> dict:
    """Parameters of which none is zero, without compiling anything."""
    return wavy(jax.eval_shape(lambda key: maddpg.init(key, maddpg.Hypers(), setup).params, jax.random.PRNGKey(0)))


@pytest.mark.parametrize("sharing", ["shared", "independent"])
@pytest.mark.parametrize(
    "changes", [{"central_input": "state"}, {"central_input": "observations"}, {"critic": "local"}], ids=str
)
def test_a_central_critic_sees_all_actions_and_a_local_one_its_own(changes, sharing):
    setup = setup_of("continuous", sharing=sharing, **changes)
    params, env = params_of(setup), setup.env
    obs = jnp.sin(jnp.arange(3.0 * env.obs_size)).reshape(3, -1)
    seen = maddpg.Seen(obs, jnp.ones(env.state_size), jnp.ones((3, 2), bool), jnp.ones(3, bool))
    grads = jax.jacrev(lambda action: setup.q(params, seen, action)[0, :, 0])(jnp.full((3, 2), 0.1))  # [A, A, N]
    sees = np.abs(grads).sum(-1) > 0
    np.testing.assert_array_equal(sees, np.eye(3, dtype=bool) if "critic" in changes else np.ones((3, 3), bool))


@pytest.mark.parametrize("critic", ["central", "local"])
@each_kind
def test_in_the_policys_loss_the_others_do_as_they_did(kind, critic):
    """Agent ``i``'s value has its own policy's action and the others' from replay."""
    prepared = prepare(kind, critic=critic)
    setup, batch, params = prepared.setup, prepared.items, prepared.state.params
    noise = distributions.noise(jax.random.PRNGKey(0), setup.env.action_space, batch.reward.shape[:1])
    hypers = maddpg.Hypers(action_reg=0.0)
    total, _ = maddpg.actor_loss(params["actor"], params["critic"], batch, noise, hypers, setup)
    outputs = setup.policy(params, batch.seen)
    own = maddpg.choose(outputs, batch.seen.action_mask, 0.0 if kind == "continuous" else noise, setup)
    values = []
    for agent in range(3):
        joint = np.array(batch.action)
        joint[:, agent] = own[:, agent]
        values.append(setup.q(params, batch.seen, joint)[0, :, agent, 0])
    alive = np.asarray(batch.seen.alive)
    close(total, -np.stack(values, -1)[alive].mean())
    everyone = np.asarray(setup.q(params, batch.seen, own))[0, ..., 0]
    assert np.isclose(total, -everyone[alive].mean()) == (critic == "local")


def test_the_policys_loss_has_a_gradient_of_the_policy_and_weighs_its_outputs():
    prepared = prepare("discrete")
    params, noise = prepared.state.params, jnp.zeros_like(prepared.items.action)

    def loss(actor, reg):
        hypers = maddpg.Hypers(action_reg=reg)
        return maddpg.actor_loss(actor, params["critic"], prepared.items, noise, hypers, prepared.setup)

    grads = jax.grad(loss, has_aux=True)(params["actor"], 0.0)[0]
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))
    outputs, mask = prepared.setup.policy(params, prepared.items.seen), prepared.items.seen.action_mask
    size = (np.where(mask, outputs, 0.0) ** 2).sum(-1) / np.asarray(mask).sum(-1)
    grown = loss(params["actor"], 2.0)[0] - loss(params["actor"], 0.0)[0]
    close(grown, 2.0 * size[np.asarray(prepared.items.seen.alive)].mean())


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("discrete", {"central_input": "state"}),
        ("continuous", {"critic": "local", "n_step": 3, "death": "ends_return"}),
        ("discrete", {"sharing": "group", "replay": "prioritised", "n_step": 3, "death": "ends_return"}),
    ],
    ids=str,
)
def test_what_dead_agents_see_and_get_changes_nothing(kind, case):
    """What they get counts, unless death ends their return."""
    config = maddpg.Config(**SMALL | {"normalise_obs": True} | case)

    def learn(poison):
        state, metrics = train(config, ENVS[kind](poison, poison if "death" in case else 0.0))
        return (state.params, state.target, state.obs_stats), metrics["critic_loss"]

    learnt = jax.jit(jax.vmap(learn))(jnp.array([0.0, 1e3, -1e5, jnp.nan]))
    assert finite(learnt)
    jax.tree.map(lambda x: [close(x[0], x[i]) for i in (1, 2, 3)], learnt)


@pytest.mark.parametrize("critic", ["central", "local"])
def test_independent_parameters_do_not_mix(critic):
    """One agent's rewards change its own policy and critic, and its target, not another's."""
    setup = setup_of("continuous", sharing="independent", critic=critic, twin=True)
    prepared, hypers = prepare("continuous", sharing="independent", critic=critic, twin=True), maddpg.Hypers(lr=0.01)

    @jax.jit
    @jax.vmap
    def learnt(scale):
        items = prepared.items.replace(reward=prepared.items.reward.at[:, 0].multiply(scale))
        state = prepared.state.replace(buffer=setup.replay.add(prepared.state.buffer, items))
        return maddpg.learn(state, jax.random.PRNGKey(0), hypers, setup)[0].params

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
    setup = setup_of("discrete")
    algorithm = maddpg.make(setup.config, toy())
    prepared = prepare("discrete").state  # not inside the traced function: what is prepared is kept

    @jax.jit
    @jax.vmap
    def plays(scale, noise):
        keys = jax.random.split(jax.random.PRNGKey(0), 6)
        state = prepared
        actor = jax.tree.map(lambda x: scale * x, state.params["actor"])
        state = state.replace(params=state.params | {"actor": actor}, noise_scale=noise)
        _, transitions = maddpg.rollout(state, keys[:4], setup)
        played = [evaluate(algorithm, algorithm.policy(state), keys[i], 16, i == 4)[1]["win_rate"] for i in (4, 5)]
        return transitions.next.info["won"][5:], *played, transitions.action

    *won, action = plays(jnp.array([0.0, 1.0, 1e3, -1e12]), jnp.array([0.0, 0.5, 0.0, 1.0]))
    assert all(np.asarray(x).all() for x in won)
    assert (np.asarray(action).sum(-1) == 1).all()


def test_noise_explores_as_far_as_its_scale():
    setup = setup_of("continuous")
    outputs, mask = jnp.full((1000, 3, 2), 0.3), jnp.asarray(size_mask((2, 2, 1)))
    noise = jax.random.normal(jax.random.PRNGKey(0), outputs.shape)
    chance = jax.random.uniform(jax.random.PRNGKey(1), (1000, 3, 1))
    action = np.asarray(maddpg.explore(outputs, mask, noise, chance, 0.1, setup))
    close([action[:, 0].mean(), action[:, 0].std()], [np.tanh(0.3), 0.1], atol=0.01)
    assert (action[:, 2, 1] == 0).all()  # a dimension that this agent does not have
    assert np.abs(maddpg.explore(outputs, mask, noise, chance, 5.0, setup)).max() == 1.0
    discrete = setup_of("discrete")
    logits, gumbel = (
        jnp.tile(jnp.array([9.0, 0.0, 0.0, 9.0]), (1000, 3, 1)),
        jax.random.gumbel(jax.random.PRNGKey(2), (1000, 3, 4)),
    )
    legal = jnp.array([True, True, True, False])
    share = [
        np.asarray(maddpg.explore(logits, legal, gumbel, chance, eps, discrete)).mean((0, 1)) for eps in (0.0, 0.6)
    ]
    close(share, [[1.0, 0.0, 0.0, 0.0], [0.6, 0.2, 0.2, 0.0]], atol=0.03)


def test_ornstein_uhlenbeck_remembers_until_an_episode_starts():
    noise = jax.random.normal(jax.random.PRNGKey(0), (200, 50, 3, 2))
    is_first = jnp.zeros((200, 50), bool).at[100, :25].set(True)

    def step(before, inputs):
        after = ornstein_uhlenbeck(before, *inputs, theta=0.15)
        return after, after

    _, x = jax.lax.scan(step, jnp.zeros((50, 3, 2)), (is_first, noise))
    x, late = np.asarray(x), np.asarray(x)[50:100]
    close(late.std(), 1.0, atol=0.06)
    close(np.corrcoef(late[:-1].ravel(), late[1:].ravel())[0, 1], 0.85, atol=0.03)
    start = np.sqrt(0.15 * 1.85)
    close(x[100, :25], start * noise[100, :25])
    close(x[100, 25:], 0.85 * x[99, 25:] + start * noise[100, 25:])
    np.testing.assert_array_equal(ornstein_uhlenbeck(x[0], is_first[0], noise[1], 1.0), noise[1])  # gaussian


def test_a_rollouts_noise_is_reset_where_an_episode_starts():
    prepared = prepare("continuous", noise="ou")
    setup, state = prepared.setup, prepared.state
    big = state.replace(noise=jnp.full_like(state.noise, 50.0), noise_scale=jnp.float32(1.0))
    first = big.timestep.replace(is_first=jnp.array([True, False, True, False]))
    _, transitions = maddpg.rollout(big.replace(timestep=first), jax.random.split(jax.random.PRNGKey(0), 4), setup)
    saturated = (np.asarray(transitions.action)[0, :, :2] == 1.0).all(axis=(1, 2))
    np.testing.assert_array_equal(saturated, [False, True, False, True])


@pytest.mark.parametrize(
    ("kind", "noise"), [("continuous", "gaussian"), ("continuous", "ou"), ("discrete", "gaussian")]
)
def test_acting_is_deterministic_if_greedy_and_noisy_if_not(kind, noise):
    prepared = prepare(kind, **{"noise": noise} if noise == "ou" else {})
    algorithm = maddpg.make(prepared.setup.config, ENVS[kind]())
    played, carry = algorithm.policy(prepared.state), algorithm.acting.initial_carry(4)
    timestep, keys = prepared.state.timestep, jax.random.split(jax.random.PRNGKey(0), 2)
    act = jax.jit(algorithm.acting.act, static_argnums=4)
    greedy = [act(played, carry, timestep, key, True)[1] for key in keys]
    np.testing.assert_array_equal(*greedy)
    carries, noisy = zip(*(act(played, carry, timestep, key, False) for key in keys), strict=True)
    assert differ(*noisy)
    again = act(played, carries[0], timestep, keys[0], False)[1]
    assert differ(again, noisy[0]) == (noise == "ou")
    outputs = prepared.setup.policy(prepared.state.params, prepared.setup.seen(timestep))
    expected = maddpg.choose(outputs, timestep.action_mask, 0.0, prepared.setup)
    close(greedy[0], distributions.from_vector(prepared.setup.env.action_space, expected))


# Distributions of returns.


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


@pytest.mark.parametrize("twin", [False, True])
def test_a_distributional_critic_has_the_mean_of_the_projected_target(twin):
    prepared = prepare("discrete", distributional=True, atoms=101, twin=twin)
    setup, batch, target = prepared.setup, prepared.items, prepared.state.target
    hypers, noise = maddpg.Hypers(gamma=0.9, v_min=-30.0, v_max=30.0), jnp.zeros_like(batch.action)
    y = maddpg.targets(target, batch, noise, hypers, setup)  # [B, A, Z]
    close(y.sum(-1), 1.0, rtol=1e-3)
    action = maddpg.choose(setup.policy(target, batch.next), batch.next.action_mask, 0.0, setup)
    value = setup.value(setup.q(target, batch.next, action), hypers)  # [C, B, A]
    close((y * setup.returns(hypers)).sum(-1), batch.reward + 0.9 * batch.future * value.min(0), rtol=1e-2, atol=2e-2)

    def loss(critic):
        weight = jnp.ones(len(batch.reward))
        return maddpg.critic_loss(critic, target, batch, weight, noise, hypers, setup)[0]

    said = setup.q(prepared.state.params, batch.seen, batch.action)
    entropy = -(np.asarray(y) * np.asarray(jax.nn.log_softmax(said))).sum(-1).sum(0)
    close(loss(prepared.state.params["critic"]), entropy.mean(), rtol=1e-3)


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
    "central_input": ["state"],
    "twin": [True],
    "policy_delay": [2],
    "distributional": [True],
    "atoms": [7],
    "n_step": [3],
    "death": ["ends_return"],
    "noise": ["ou"],
    "sharing": ["group", "independent"],
    "agent_id": [False],
    "actor": [Model("deepsets", (8,))],
    "q": [Model("mlp", (8, 8))],
    "normalise_obs": [True],
}


def test_no_option_is_forgotten():
    assert {*OPTIONS} == {field.name for field in dataclasses.fields(maddpg.Config)} - {"elastic_batches"}


@cache
def program(**changes) -> str:
    """One update, as JAX has traced it."""
    algorithm = maddpg.make(maddpg.Config(**SMALL | changes), ENVS["continuous"]())
    state = jax.eval_shape(algorithm.init, jax.random.PRNGKey(0), maddpg.Hypers())
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(algorithm.update)(state, maddpg.Hypers())))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_changes_the_program(option):
    base = {"distributional": True} if option == "atoms" else {}
    assert all(program(**base) != program(**base, **{option: choice}) for choice in OPTIONS[option])


@each_kind
def test_every_hyperparameter_does_something(kind):
    hypers = maddpg.Hypers(lr=0.01, critic_lr=0.01, lr_end=0.5, noise_start=0.9, noise_end=0.1, noise_fraction=0.6)
    hypers = hypers.replace(target_noise=0.5, action_reg=0.1, max_grad_norm=0.1, tau=0.1, target_noise_clip=2.0)
    fields = [field.name for field in dataclasses.fields(hypers)]
    changed = {"noise_end": 0.9}
    runs = [hypers, *(hypers.replace(**{f: changed.get(f, getattr(hypers, f) / 2)}) for f in fields)]
    together = jax.tree.map(lambda *numbers: jnp.array(numbers, jnp.float32), *runs)
    config = maddpg.Config(**SMALL | {"distributional": True, "replay": "prioritised", "elastic_batches": True})
    params = jax.jit(jax.vmap(lambda h: train(config, ENVS[kind](), h, updates=3)[0].params))(together)
    assert finite(params)
    moved = {
        field
        for run, field in enumerate(fields, start=1)
        if any(not np.array_equal(leaf[0], leaf[run]) for leaf in jax.tree.leaves(params))
    }
    assert {*fields} - moved == ({"temperature"} if kind == "continuous" else set())


TASKS = {
    "continuous": ("mpe/simple_spread", {"continuous": True}, {"twin": True, "policy_delay": 2, "noise": "ou"}),
    "discrete": ("mpe/simple_spread", {}, {"replay": "prioritised", "n_step": 3}),
    "two teams": ("mpe/simple_tag", {"continuous": True}, {"sharing": "group", "distributional": True}),
    "two sub-actions": (
        "mpe/simple_reference",
        {"multi_discrete": True},
        {"sharing": "independent", "critic": "local"},
    ),
    "masks and deaths": ("smax/3m", {}, {"central_input": "state", "normalise_obs": True}),
}


@pytest.mark.parametrize("task", TASKS)
def test_two_updates_are_finite(task):
    name, kwargs, changes = TASKS[task]
    env = envs.make(name, horizon=5, **kwargs)
    state, metrics = jax.jit(lambda: train(maddpg.Config(**SMALL | changes), env))()
    assert finite((state.params, state.target, state.opt_state, metrics))
    assert {"critic_loss", "actor_loss", "q_value", "td_error", "noise", "episode_return"} <= set(metrics)
    assert (metrics["critic_loss"] > 0).all()
    assert ("actor_loss/adversary" in metrics) == (task == "two teams")
    assert all(np.any(leaf) for name in state.opt_state for leaf in jax.tree.leaves(state.opt_state[name])[:1])
    assert unmoved(state.params) == []  # no layer is passed by


def test_nothing_is_learnt_before_learning_starts():
    config = maddpg.Config(**SMALL | {"learning_starts": 100})  # of 48 an update
    algorithm = maddpg.make(config, toy())

    def run(key):
        first = algorithm.init(key, maddpg.Hypers())
        first = first.replace(params=wavy(first.params))
        return jax.lax.scan(lambda s, _: (algorithm.update(s, maddpg.Hypers())[0], s.params), first, length=4)[1]

    history = jax.jit(run)(jax.random.PRNGKey(0))
    params = [jax.tree.map(lambda x, i=i: x[i], history) for i in range(4)]
    assert not differ(params[0], params[2])
    assert differ(params[2], params[3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy_delay": 3}, "algo.policy_delay=3: must divide algo.gradient_steps=2"),
        ({"n_step": 13}, "algo.n_step=13: must be at most algo.rollout_length=12"),
        ({"noise": "ou"}, "algo.noise=ou: a process for continuous actions, and test/toy has discrete ones"),
        ({"q": Model("gnn")}, "algo.q.network=gnn: reads agents"),
        ({"q": Model("cnn")}, "algo.q.network=cnn: a row of a central critic is no image"),
        ({"actor": Model("gru")}, "algo.actor.network=gru: this file has no memory"),
        ({"buffer_size": 40}, "algo.buffer_size=40: must hold"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_is_said(changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        maddpg.make(maddpg.Config(**SMALL | changes), toy())
