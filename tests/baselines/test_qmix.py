"""Q-learning: its targets against plain loops, its options, and the game that QMIX solves and VDN cannot."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.algorithm import algorithm_in
from shoal.baselines.qmix import pqn_rnn_smax as pqn
from shoal.baselines.qmix import qmix_rnn_mpe as qmix
from shoal.errors import UserError
from shoal.nn.memory import one_step
from shoal.nn.models import Model
from shoal.rl import sequences
from tests.baselines.toy import differ, finite, toy, unmoved, wavy, with_params

SMALL = {"total_steps": 288, "num_envs": 4, "rollout_length": 12, "q": Model("gru", widths=(8,), hidden=6)}
REPLAY = {"batch_size": 4, "buffer_size": 240, "learning_starts": 0, "target_interval": 3, "gradient_steps": 2}
MIXER = {"mixer_width": 4, "hyper_width": 5}
HYPERS = {"gamma": 0.9, "eps_start": 0.5}


def config_of(module, **changes) -> Any:
    own = REPLAY if module is qmix else {"epochs": 2, "minibatches": 2}
    return module.Config(**SMALL | MIXER | own | changes)


def made(module, **changes) -> Any:
    return algorithm_in(module)(config_of(module, **changes), toy())


def first(tree):
    return jax.tree.map(lambda x: x[0], tree)


@cache
def collected(**changes):
    """What was learnt, the environments before and after the toy's second rollout, its sequences, its transitions."""
    algorithm = made(qmix, **changes)
    hypers = qmix.Hypers(**HYPERS)

    @jax.jit
    def run(key):
        keys = jax.random.split(key, 3)
        state = algorithm.init(keys[0], hypers)
        learnt = with_params(state, wavy(state.learnt.params)).learnt
        before, _, _ = algorithm.collect(learnt, state.slot.envs, jax.random.split(keys[1], 3))
        after, items, transitions = algorithm.collect(learnt, before, jax.random.split(keys[2], 3))
        return learnt, before, after, sequences.swap(items), transitions

    return algorithm, hypers, *run(jax.random.PRNGKey(3))


def step_by_step(algorithm, params, memory, transitions):
    """``(next q [T, E, A, N], next state, mask, alive)`` of every step's successor, one application after the other."""
    apply = jax.jit(partial(one_step, partial(algorithm.q, params)))
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


def plain_targets(algorithm, hypers, target, online_next, target_next, state, mask, alive, transitions):
    """``[T, E, M]`` by loops over environments, teams and steps, TD(0)."""
    config, step = algorithm.config, transitions.next
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
                return algorithm.mixing.module.apply(
                    {"params": jax.tree.map(lambda p: p[m], target["mixer"])},  # noqa: B023
                    own,
                    state[t, e],  # noqa: B023
                )

            def from_step(t):
                reward = np.mean([step.reward[t, e, i] for i in team])  # noqa: B023
                if step.terminated[t, e] or (ends and not any(alive[t, e, i] for i in team)):  # noqa: B023
                    return reward
                return reward + hypers.gamma * mixed(t)

            for t in range(steps):
                out[t, e, m] = from_step(t)
    return out


@pytest.mark.parametrize(
    "options",
    [
        {"mixer": "vdn"},
        {"mixer": "none", "double": False},
        {"mixer": "qmix", "death": "ends_return"},
        {"mixer": "vdn", "death": "ends_return"},
    ],
)
def test_targets_equal_plain_loops(options):
    """With terminations, truncations, deaths and resets inside the sequence, from a memory in mid-episode."""
    algorithm, hypers, learnt, before, _, batch, transitions = collected(**options)
    assert transitions.next.terminated.any() and transitions.next.truncated.any()
    assert transitions.step.is_first[1:].any() and not transitions.step.is_first[0].all()
    target = jax.tree.map(lambda x: jnp.cos(3.0 * x), learnt.params)
    online = step_by_step(algorithm, learnt.params, before.memory, transitions)
    frozen = step_by_step(algorithm, target, before.memory, transitions)
    expected = plain_targets(algorithm, hypers, target, online[0], *frozen, transitions)

    @jax.jit
    def ours(params, target, batch):
        memories, q = algorithm.q(params, first(batch.memory), batch.steps)
        next_q = algorithm.successor_q(params, memories, q, batch)
        return next_q, algorithm.targets(target, next_q, batch, hypers)

    next_q, y = ours(learnt.params, target, batch)
    goes_on = ~np.asarray(transitions.next.terminated)
    np.testing.assert_allclose(np.asarray(next_q)[goes_on], online[0][goes_on], rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(y, expected, rtol=5e-4, atol=5e-4)


@cache
def target_function(**options):
    algorithm, hypers, learnt, _, _, batch, _ = collected(**options)

    @jax.jit
    def y(batch):
        memories, q = algorithm.q(learnt.params, first(batch.memory), batch.steps)
        next_q = algorithm.successor_q(learnt.params, memories, q, batch)
        return algorithm.targets(learnt.params, next_q, batch, hypers)

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
    np.testing.assert_array_equal(whole[5].action[:4], pieces[5].action[:, :4])  # the first pieces of all environments
    np.testing.assert_array_equal(whole[5].steps.obs[4:8], pieces[5].steps.obs[:, 4:8])
    follows, goes_on = pieces[5].final.obs[-1, 4:8], ~np.asarray(whole[5].ended[7])
    np.testing.assert_array_equal(whole[5].steps.obs[8][goes_on], follows[goes_on])
    assert goes_on.any()
    memory = whole[6].memory[3]  # after the fourth step
    np.testing.assert_allclose(pieces[5].memory[0, 4:8], memory, rtol=1e-5)
    assert pieces[5].action.shape == (4, 12, 3) and pieces[5].final_at.shape == (2, 12)


@cache
def trained(module, updates: int = 3, hypers: tuple = (), **changes):
    """State and metrics after some updates on the toy."""
    algorithm = made(module, **changes)
    numbers = module.Hypers(**{"lr": 0.02, "lr_end": 1.0} | HYPERS | dict(hypers))

    @jax.jit
    def run(key):
        state = algorithm.init(key, numbers)
        params = wavy(state.learnt.params)
        changed = {"params": params} if module is pqn else {"params": params, "target": params}
        state = state.replace(learnt=state.learnt.replace(**changed))
        return jax.lax.scan(lambda s, _: algorithm.update(s, numbers), state, length=updates)

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
}


@pytest.mark.parametrize(("module", "option"), OPTIONS, ids=lambda x: getattr(x, "__name__", str(x))[-30:])
def test_every_option_does_something(module, option):
    base = {"mixer": "qmix"}
    plain, metrics = trained(module, **base)
    state, changed = trained(module, **base | option)
    assert finite((state.learnt.params, changed["loss"])) and (metrics["loss"] > 0).all()
    assert differ(plain.learnt.params, state.learnt.params)
    assert unmoved(state.learnt.params) == []  # no layer is passed by
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
    algorithm = made(module, mixer="vdn", elastic_batches=True, **({"replay": replay} if module is qmix else {}))
    numbers = NUMBERS | own
    base = module.Hypers(**{"lr": 0.02, "lr_end": 1.0} | HYPERS)
    every = [base, base.replace(lr=0.01), *(base.replace(**{name: value}) for name, value in numbers.items())]
    hypers = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *every)

    @jax.jit
    @jax.vmap
    def run(hypers):
        state = algorithm.init(jax.random.PRNGKey(0), hypers)
        return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=5)[0].learnt.params

    params = run(hypers)
    for i, name in enumerate(["lr", *numbers], start=1):
        assert differ(*(jax.tree.map(lambda x: x[j], params) for j in (0, i))), name  # noqa: B023


def test_nothing_is_learnt_before_learning_starts():
    state, metrics = trained(qmix, updates=4, learning_starts=145)  # three updates are 144 steps
    assert state.learnt.gradient_steps == 2 and (metrics["loss"] > 0).tolist() == [False, False, False, True]
    assert (metrics["q_value"] == 0).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("interval", "tau"), [(3, 1.0), (1, 0.1)])
def test_the_target_moves_when_it_is_due(interval, tau):
    """Three updates of two gradient steps: hard moves after the third and the sixth, or a soft one after each."""
    state, _ = trained(qmix, hypers=(("tau", tau),), target_interval=interval)
    learnt = state.learnt
    assert learnt.gradient_steps == 6
    start = wavy(learnt.params)
    if tau == 1.0:
        assert not differ(learnt.target, learnt.params)  # the sixth step was its last move
        early, _ = trained(qmix, updates=1, hypers=(("tau", tau),), target_interval=interval)
        assert not differ(early.learnt.target, start)  # two steps: not yet
    else:
        assert differ(learnt.target, start) and differ(learnt.target, learnt.params)


@pytest.mark.parametrize("module", [qmix, pqn])
def test_agents_for_themselves_do_not_mix(module):
    """Without a mixture and with parameters of its own an agent learns nothing from another's reward."""
    algorithm = made(module, mixer="none", sharing="independent")
    hypers = module.Hypers(**HYPERS)

    @jax.jit
    def gradient(scale):
        state = algorithm.init(jax.random.PRNGKey(0), hypers)
        learnt, envs_before = with_params(state, wavy(state.learnt.params)).learnt, state.slot.envs
        keys = jax.random.split(jax.random.PRNGKey(1), 3)
        if module is qmix:
            _, items, _ = algorithm.collect(learnt, envs_before, keys)
            batch = sequences.swap(items.replace(reward=items.reward * scale))
            arguments = (learnt.params, learnt.params, batch, jnp.ones(4), hypers)
        else:
            _, transitions = algorithm.rollout(learnt, envs_before, keys)
            reward = transitions.next.reward * scale
            transitions = transitions.replace(next=transitions.next.replace(reward=reward))
            arguments = (learnt.params, algorithm.targets(learnt, envs_before.memory, transitions, hypers))
        return jax.grad(algorithm.loss, has_aux=True)(*arguments)[0]["q"]

    plain, scaled = gradient(jnp.ones(3)), gradient(jnp.array([1.0, 1.0, 3.0]))
    for agent, same in enumerate((True, True, False)):
        assert differ(*(jax.tree.map(lambda x: x[agent], g) for g in (plain, scaled))) != same  # noqa: B023


@pytest.mark.parametrize("mixer", ["qmix", "none"])
def test_where_death_ends_the_return_dead_agents_weigh_nothing(mixer):
    algorithm, hypers, learnt, _, _, batch, _ = collected(mixer=mixer, death="ends_return")

    @jax.jit
    def gradient(batch):
        return jax.grad(algorithm.loss, has_aux=True)(learnt.params, learnt.params, batch, jnp.ones(4), hypers)

    alive = batch.steps.alive[..., None]
    poisoned = batch.replace(steps=batch.steps.replace(obs=jnp.where(alive, batch.steps.obs, 50.0)))
    reward = batch.reward if mixer == "qmix" else jnp.where(alive[..., 0], batch.reward, 50.0)
    (plain, _), (same, _) = gradient(batch), gradient(poisoned.replace(reward=reward))
    assert not differ(plain, same)
    assert differ(plain, gradient(batch.replace(steps=batch.steps.replace(obs=batch.steps.obs + 1.0)))[0])


def test_pqn_targets_are_qmix_targets_of_the_rollout_itself():
    """The two files agree where they should: the whole rollout as one sequence, the online network as the target."""
    algorithm, hypers, learnt, before, _, batch, transitions = collected(mixer="qmix")
    other = made(pqn, mixer="qmix")
    numbers = pqn.Hypers(**HYPERS | {"td_lambda": 0.7})
    parts = {"params": learnt.params, "opt_state": {}, "updates": learnt.updates, "epsilon": learnt.epsilon}
    transitions = pqn.Transition(pqn.Step(**vars(transitions.step)), *list(vars(transitions).values())[1:])
    theirs = jax.jit(lambda: other.targets(pqn.Learnt(**parts), before.memory, transitions, numbers).target)()

    @jax.jit
    def ours():
        memories, q = algorithm.q(learnt.params, first(batch.memory), batch.steps)
        next_q = algorithm.successor_q(learnt.params, memories, q, batch)
        return algorithm.targets(learnt.params, next_q, batch, hypers.replace(td_lambda=0.7))

    np.testing.assert_allclose(theirs, ours(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("module", [qmix, pqn])
def test_continuous_actions_are_refused_in_one_line(module):
    with pytest.raises(UserError, match=r"env=mpe/simple_spread: its actions are continuous.*maddpg or masac"):
        algorithm_in(module)(module.Config(), envs.make("mpe/simple_spread", continuous=True))


@pytest.mark.parametrize(("mixer", "expected"), [("qmix", 8.0), ("vdn", 7.0)])
def test_the_two_step_game_needs_a_monotonic_mixture(mixer, expected):
    """Rashid et al. 2018, section 5: all actions tried alike, QMIX finds 8, the sum of two values cannot."""
    model = Model("mlp", widths=(32,), activation="relu")
    sizes = {"num_envs": 16, "rollout_length": 2, "total_steps": 32 * 1500, "gradient_steps": 1, "batch_size": 64}
    replay = {"buffer_size": 2000, "learning_starts": 200, "target_interval": 50}
    config = qmix.Config(mixer=mixer, q=model, mixer_width=8, hyper_width=16, **sizes, **replay)
    algorithm = qmix.QMIX(config, envs.make("matrix/two_step"))
    hypers = qmix.Hypers(lr=5e-3, eps_end=1.0, max_grad_norm=10.0)

    @jax.jit
    def solve(key):
        state = algorithm.init(key, hypers)
        state, _ = jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=1500)
        policy = algorithm.policy(state.learnt)
        env_state, step = algorithm.env.reset(key)
        carry, total = algorithm.initial_memory(1), 0.0
        for _ in range(2):
            carry, action = algorithm.act(policy, carry, jax.tree.map(lambda x: x[None], step), key, True)
            env_state, step = algorithm.env.step(key, env_state, action[0])
            total += step.reward[0]
        return total

    returns = [float(solve(jax.random.PRNGKey(seed))) for seed in range(2)]
    assert returns == [expected] * 2
