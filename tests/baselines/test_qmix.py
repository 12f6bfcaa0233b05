"""Q-learning: its targets against plain loops, its options, and the game that QMIX solves and VDN cannot."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.baselines.qmix import pqn_rnn_smax as pqn
from shoal.baselines.qmix import qmix_rnn_mpe as qmix
from shoal.errors import UserError
from shoal.nn.memory import one_step
from shoal.nn.models import Model
from shoal.rl import sequences
from tests.baselines.toy import differ, finite, toy, unmoved, wavy

SMALL = {"total_steps": 288, "num_envs": 4, "rollout_length": 12, "q": Model("gru", widths=(8,), hidden=6)}
REPLAY = {"batch_size": 4, "buffer_size": 240, "learning_starts": 0, "target_interval": 3, "gradient_steps": 2}
MIXER = {"mixer_width": 4, "hyper_width": 5}
HYPERS = {"gamma": 0.9, "eps_start": 0.5, "reward_scale": 1.5}


def config_of(module, **changes) -> Any:
    own = REPLAY if module is qmix else {"epochs": 2, "minibatches": 2}
    return module.Config(**SMALL | MIXER | own | changes)


def setup_of(module, **changes) -> Any:
    return module.make(config_of(module, **changes), toy()).init.keywords["setup"]


def first(tree):
    return jax.tree.map(lambda x: x[0], tree)


@cache
def collected(**changes):
    """The state before the toy's second rollout, that after it, its sequences and its transitions."""
    setup = setup_of(qmix, **changes)
    hypers = qmix.Hypers(**HYPERS)

    @jax.jit
    def run(key):
        keys = jax.random.split(key, 3)
        state = qmix.init(keys[0], hypers, setup)
        state = state.replace(params=wavy(state.params))
        before, _, _ = qmix.collect(state, jax.random.split(keys[1], 3), hypers, setup)
        after, items, transitions = qmix.collect(before, jax.random.split(keys[2], 3), hypers, setup)
        return before, after, sequences.swap(items), transitions

    return setup, hypers, *run(jax.random.PRNGKey(3))


def step_by_step(setup, params, memory, transitions, last):
    """``(next q [T, E, A, N], next state, mask, alive)`` of every step's successor, one application after the other."""
    apply = jax.jit(partial(one_step, partial(setup.q, params)))
    found = []
    steps = len(transitions.action)
    for t in range(steps):
        seen = jax.tree.map(lambda x: x[t], transitions.step)  # noqa: B023
        memory, _ = apply(memory, seen)
        nxt = jax.tree.map(lambda x: x[t], transitions.next)  # noqa: B023
        final = qmix.Step.final(nxt)
        _, q = apply(memory, final)  # the true successor, whether the episode goes on or not
        found.append((q, final.state, final.action_mask, final.alive))
    return jax.tree.map(lambda *x: np.stack(x), *found)


def plain_targets(setup, hypers, target, online_next, target_next, state, mask, alive, transitions):
    """``[T, E, M]`` by loops over environments, teams and steps; TD(0) unless ``n_step`` says otherwise."""
    config, step = setup.config, transitions.next
    teams = [[i] for i in range(3)] if config.mixer == "none" else [[0, 1], [2]]
    steps, num_envs = step.reward.shape[:2]
    choose = online_next if config.double else target_next
    legal = np.where(mask, choose, -np.inf).argmax(-1)
    ends = config.death == "ends_return"
    value = np.take_along_axis(target_next, legal[..., None], -1)[..., 0]  # [T, E, A]
    value = value * alive if ends else value
    out = np.zeros((steps, num_envs, len(teams)))
    for e in range(num_envs):
        for m, team in enumerate(teams):

            def mixed(t):
                if config.mixer != "qmix":
                    return sum(value[t, e, i] for i in team)  # noqa: B023
                own = jnp.array([value[t, e, i] if i in team else 0.0 for i in range(3)])  # noqa: B023
                return setup.mixing.module.apply(
                    {"params": jax.tree.map(lambda p: p[m], target["mixer"])},  # noqa: B023
                    own,
                    state[t, e],  # noqa: B023
                )

            def from_step(t, left):
                reward = hypers.reward_scale * np.mean([step.reward[t, e, i] for i in team])  # noqa: B023
                if step.terminated[t, e] or (ends and not any(alive[t, e, i] for i in team)):  # noqa: B023
                    return reward
                broken_off = step.truncated[t, e] or t + 1 == steps  # noqa: B023
                future = mixed(t) if left == 1 or broken_off else from_step(t + 1, left - 1)
                return reward + hypers.gamma * future

            for t in range(steps):
                out[t, e, m] = from_step(t, config.n_step or 1)
    return out


@pytest.mark.parametrize(
    "options",
    [
        {"mixer": "vdn"},
        {"mixer": "none", "double": False},
        {"mixer": "qmix", "death": "ends_return"},
        {"mixer": "vdn", "n_step": 3, "death": "ends_return"},
    ],
)
def test_targets_equal_plain_loops(options):
    """With terminations, truncations, deaths and resets inside the sequence, from a memory in mid-episode."""
    setup, hypers, before, after, batch, transitions = collected(**options)
    assert transitions.next.terminated.any() and transitions.next.truncated.any()
    assert transitions.step.is_first[1:].any() and not transitions.step.is_first[0].all()
    target = jax.tree.map(lambda x: jnp.cos(3.0 * x), before.params)
    online = step_by_step(setup, before.params, before.memory, transitions, after.timestep)
    frozen = step_by_step(setup, target, before.memory, transitions, after.timestep)
    expected = plain_targets(setup, hypers, target, online[0], *frozen, transitions)

    @jax.jit
    def ours(params, target, batch):
        memories, q = setup.q(params, first(batch.memory), batch.steps)
        next_q = qmix.successor_q(params, memories, q, batch, setup)
        return next_q, qmix.targets(target, q, next_q, batch, hypers, setup)

    next_q, y = ours(before.params, target, batch)
    goes_on = ~np.asarray(transitions.next.terminated)
    np.testing.assert_allclose(np.asarray(next_q)[goes_on], online[0][goes_on], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(y, expected, rtol=5e-4, atol=5e-4)


@cache
def target_function(**options):
    setup, hypers, before, _, batch, _ = collected(**options)

    @jax.jit
    def y(batch):
        memories, q = setup.q(before.params, first(batch.memory), batch.steps)
        next_q = qmix.successor_q(before.params, memories, q, batch, setup)
        return qmix.targets(before.params, q, next_q, batch, hypers, setup)

    return y, batch


def test_the_done_flag_belongs_to_its_own_step():
    """The classic off-by-one: a terminated step does not see the next row; the one before sees its own."""
    y, batch = target_function(mixer="none")
    t, e = np.argwhere(batch.terminated[1:-1])[0] + [1, 0]
    changed = {
        row: np.asarray(
            y(batch.replace(steps=batch.steps.replace(obs=batch.steps.obs.at[row, e].add(0.5)))) != y(batch)
        )
        for row in (t, t + 1)
    }
    assert not changed[t + 1][t, e].any() and changed[t + 1][t + 1 :, e].any()
    assert changed[t][t - 1, e, 0]  # agent 0 never dies
    others = np.arange(batch.terminated.shape[1]) != e
    assert not changed[t][:, others].any()


def test_a_truncated_step_sees_the_last_observation_and_a_terminated_one_does_not():
    y, batch = target_function(mixer="none")
    moved = y(batch.replace(final=batch.final.replace(obs=batch.final.obs + 0.5))) != y(batch)
    cut = np.array(batch.ended & ~batch.terminated)
    cut[-1] = ~np.asarray(batch.terminated[-1])  # the sequence breaks off, whether the episode goes on or not
    assert np.asarray(moved)[cut][:, 0].all() and cut[:-1].any()
    assert not np.asarray(moved)[~cut].any()


def test_sequences_are_the_rollout_cut_to_pieces():
    """Pieces start from the memory that the rollout had there, and know what follows them."""
    whole, pieces = collected(mixer="vdn"), collected(mixer="vdn", chunk_length=4)
    np.testing.assert_array_equal(whole[4].action[:4], pieces[4].action[:, :4])  # the first pieces of all environments
    np.testing.assert_array_equal(whole[4].steps.obs[4:8], pieces[4].steps.obs[:, 4:8])
    follows, goes_on = pieces[4].final.obs[-1, 4:8], ~np.asarray(whole[4].ended[7])
    np.testing.assert_array_equal(whole[4].steps.obs[8][goes_on], follows[goes_on])
    assert goes_on.any()
    memory = whole[5].memory[3]  # after the fourth step
    np.testing.assert_allclose(pieces[4].memory[0, 4:8], memory, rtol=1e-5)
    assert pieces[4].action.shape == (4, 12, 3) and pieces[4].final_at.shape == (2, 12)


@cache
def trained(module, updates: int = 3, hypers: tuple = (), **changes):
    """State and metrics after some updates on the toy."""
    setup = setup_of(module, **changes)
    numbers = module.Hypers(**{"lr": 0.02, "lr_end": 1.0} | HYPERS | dict(hypers))

    @jax.jit
    def run(key):
        state = module.init(key, numbers, setup)
        params = wavy(state.params)
        state = state.replace(params=params) if module is pqn else state.replace(params=params, target=params)
        return jax.lax.scan(lambda s, _: module.update(s, numbers, setup), state, length=updates)

    return run(jax.random.PRNGKey(0))


OPTIONS = [
    (qmix, {"mixer": "vdn"}),
    (qmix, {"mixer": "none"}),
    (qmix, {"agent_id": False}),
    (qmix, {"sharing": "independent"}),
    (qmix, {"chunk_length": 6}),
    (qmix, {"q": Model("mlp", widths=(8,))}),
    (qmix, {"replay": "prioritised"}),
    (qmix, {"double": False}),
    (qmix, {"n_step": 3}),
    (qmix, {"death": "ends_return"}),
    (pqn, {"death": "ends_return"}),
    (pqn, {"mixer": "none"}),
    (pqn, {"chunk_length": 6, "sharing": "group"}),
]
NUMBERS = {
    "lr_end": 0.5,
    "gamma": 0.5,
    "td_lambda": 0.3,
    "eps_start": 0.9,
    "eps_end": 0.5,
    "eps_fraction": 0.5,
    "max_grad_norm": 0.01,
    "reward_scale": 0.5,
}


@pytest.mark.parametrize(("module", "option"), OPTIONS, ids=lambda x: getattr(x, "__name__", str(x))[-30:])
def test_every_option_does_something(module, option):
    base = {"mixer": "qmix"}
    plain, metrics = trained(module, **base)
    state, changed = trained(module, **base | option)
    assert finite((state.params, changed["loss"])) and (metrics["loss"] > 0).all()
    assert differ(plain.params, state.params)
    assert unmoved(state.params) == []  # no layer is passed by
    assert (metrics["win_rate"] == 1).all()  # nobody has done anything illegal


REPLAYED = {"tau": 0.3, "learn_share": 0.5, "batch_share": 0.5}
OWN = {  # the numbers of each file; priorities, too, change with the shares, so that replay is uniform once
    "uniform": (qmix, REPLAYED),
    "prioritised": (qmix, REPLAYED | {"priority_beta": 1.0}),
    "none": (pqn, {"epoch_share": 0.5, "batch_share": 0.5}),
}


@pytest.mark.parametrize("replay", OWN)
def test_every_number_does_something_and_may_differ_between_runs(replay):
    """All at once, on the run axis."""
    module, own = OWN[replay]
    setup = setup_of(module, mixer="vdn", elastic_batches=True, **({"replay": replay} if module is qmix else {}))
    numbers = NUMBERS | own
    base = module.Hypers(**{"lr": 0.02, "lr_end": 1.0} | HYPERS)
    every = [base, base.replace(lr=0.01), *(base.replace(**{name: value}) for name, value in numbers.items())]
    hypers = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *every)

    @jax.jit
    @jax.vmap
    def run(hypers):
        state = module.init(jax.random.PRNGKey(0), hypers, setup)
        return jax.lax.scan(lambda s, _: module.update(s, hypers, setup), state, length=5)[0].params

    params = run(hypers)
    for i, name in enumerate(["lr", *numbers], start=1):
        assert differ(*(jax.tree.map(lambda x: x[j], params) for j in (0, i))), name  # noqa: B023


def test_nothing_is_learnt_before_learning_starts():
    state, metrics = trained(qmix, updates=4, learning_starts=145)  # three updates are 144 steps
    assert state.gradient_steps == 2 and (metrics["loss"] > 0).tolist() == [False, False, False, True]
    assert (metrics["q_value"] == 0).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("interval", "tau"), [(3, 1.0), (1, 0.1)])
def test_the_target_moves_when_it_is_due(interval, tau):
    """Three updates of two gradient steps: hard moves after the third and the sixth, or a soft one after each."""
    state, _ = trained(qmix, hypers=(("tau", tau),), target_interval=interval)
    assert state.gradient_steps == 6
    start = wavy(state.params)
    if tau == 1.0:
        assert not differ(state.target, state.params)  # the sixth step was its last move
        early, _ = trained(qmix, updates=1, hypers=(("tau", tau),), target_interval=interval)
        assert not differ(early.target, start)  # two steps: not yet
    else:
        assert differ(state.target, start) and differ(state.target, state.params)


@pytest.mark.parametrize("module", [qmix, pqn])
def test_agents_for_themselves_do_not_mix(module):
    """Without a mixture and with parameters of its own an agent learns nothing from another's reward."""
    setup = setup_of(module, mixer="none", sharing="independent")
    hypers = module.Hypers(**HYPERS)

    @jax.jit
    def gradient(scale):
        state = module.init(jax.random.PRNGKey(0), hypers, setup)
        state = state.replace(params=wavy(state.params))
        keys = jax.random.split(jax.random.PRNGKey(1), 3)
        if module is qmix:
            _, items, _ = qmix.collect(state, keys, hypers, setup)
            batch = sequences.swap(items.replace(reward=items.reward * scale))
            arguments = (state.params, state.params, batch, jnp.ones(4), hypers, setup)
        else:
            state, transitions = pqn.rollout(state, keys, setup)
            reward = transitions.next.reward * scale
            transitions = transitions.replace(next=transitions.next.replace(reward=reward))
            arguments = (state.params, pqn.make_batch(state, transitions, hypers, setup)[1], setup)
        return jax.grad(module.loss, has_aux=True)(*arguments)[0]["q"]

    plain, scaled = gradient(jnp.ones(3)), gradient(jnp.array([1.0, 1.0, 3.0]))
    for agent, same in enumerate((True, True, False)):
        assert differ(*(jax.tree.map(lambda x: x[agent], g) for g in (plain, scaled))) != same  # noqa: B023


@pytest.mark.parametrize("mixer", ["qmix", "none"])
def test_where_death_ends_the_return_dead_agents_weigh_nothing(mixer):
    setup, hypers, before, _, batch, _ = collected(mixer=mixer, death="ends_return")

    @jax.jit
    def gradient(batch):
        return jax.grad(qmix.loss, has_aux=True)(before.params, before.params, batch, jnp.ones(4), hypers, setup)

    alive = batch.steps.alive[..., None]
    poisoned = batch.replace(steps=batch.steps.replace(obs=jnp.where(alive, batch.steps.obs, 50.0)))
    reward = batch.reward if mixer == "qmix" else jnp.where(alive[..., 0], batch.reward, 50.0)
    (plain, _), (same, _) = gradient(batch), gradient(poisoned.replace(reward=reward))
    assert not differ(plain, same)
    assert differ(plain, gradient(batch.replace(steps=batch.steps.replace(obs=batch.steps.obs + 1.0)))[0])


def test_pqn_targets_are_qmix_targets_of_the_rollout_itself():
    """The two files agree where they should: the whole rollout as one sequence, the online network as the target."""
    setup, hypers, before, after, batch, transitions = collected(mixer="qmix")
    other = setup_of(pqn, mixer="qmix")
    numbers = pqn.Hypers(**HYPERS | {"td_lambda": 0.7})
    state = pqn.TrainState(
        params=before.params,
        opt_state={},
        env_state=None,
        timestep=after.timestep,
        memory=before.memory,
        updates=0,
        epsilon=0.0,
        key=None,
    )
    transitions = pqn.Transition(pqn.Step(**vars(transitions.step)), *list(vars(transitions).values())[1:])
    theirs = jax.jit(lambda: pqn.targets(state, transitions, numbers, other))()

    @jax.jit
    def ours():
        memories, q = setup.q(before.params, first(batch.memory), batch.steps)
        next_q = qmix.successor_q(before.params, memories, q, batch, setup)
        return qmix.targets(before.params, q, next_q, batch, hypers.replace(td_lambda=0.7), setup)

    np.testing.assert_allclose(theirs, ours(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("module", [qmix, pqn])
def test_continuous_actions_are_refused_in_one_line(module):
    with pytest.raises(UserError, match=r"env=mpe/simple_spread: its actions are continuous.*maddpg or masac"):
        module.make(module.Config(), envs.make("mpe/simple_spread", continuous=True))


@pytest.mark.parametrize(("mixer", "expected"), [("qmix", 8.0), ("vdn", 7.0)])
def test_the_two_step_game_needs_a_monotonic_mixture(mixer, expected):
    """Rashid et al. 2018, section 5: all actions tried alike, QMIX finds 8, the sum of two values cannot."""
    model = Model("mlp", widths=(32,), activation="relu")
    sizes = {"num_envs": 16, "rollout_length": 2, "total_steps": 32 * 1500, "gradient_steps": 1, "batch_size": 64}
    replay = {"buffer_size": 2000, "learning_starts": 200, "target_interval": 50}
    config = qmix.Config(mixer=mixer, q=model, mixer_width=8, hyper_width=16, **sizes, **replay)
    algorithm = qmix.make(config, envs.make("matrix/two_step"))
    hypers = qmix.Hypers(lr=5e-3, eps_end=1.0, max_grad_norm=10.0)

    @jax.jit
    def solve(key):
        state = algorithm.init(key, hypers)
        state, _ = jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=1500)
        policy = algorithm.policy(state)
        env_state, step = algorithm.env.reset(key)
        carry, total = algorithm.acting.initial_carry(1), 0.0
        for _ in range(2):
            carry, action = algorithm.acting.act(policy, carry, jax.tree.map(lambda x: x[None], step), key, True)
            env_state, step = algorithm.env.step(key, env_state, action[0])
            total += step.reward[0]
        return total

    returns = [float(solve(jax.random.PRNGKey(seed))) for seed in range(2)]
    assert returns == [expected] * 2
