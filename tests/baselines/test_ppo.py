"""IPPO and MAPPO, feed-forward and recurrent: what their losses see, what their options do, and that they learn."""

from __future__ import annotations

import dataclasses
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.envs.base import Discrete, Env, TimeStep
from shoal.envs.wrappers import TimeLimit, View
from shoal.errors import UserError
from shoal.nn.models import Model
from shoal.rl import distributions, normalisation
from shoal.run.evaluate import evaluate
from tests.baselines.toy import (
    ALGORITHMS,
    CENTRAL,
    RECURRENT,
    config_of,
    differ,
    finite,
    is_recurrent,
    made,
    make_batch,
    params_of,
    policy,
    prepare,
    rollout,
    toy,
    train,
    trained,
    value,
    wavy,
    with_config,
    with_methods,
    with_params,
)
from tests.shoal.test_returns import plain_gae

close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
each = pytest.mark.parametrize("name", ALGORITHMS)
each_recurrent = pytest.mark.parametrize("name", RECURRENT)


def seen(x, **changes) -> View:
    """What networks look at, of transitions or of a batch, without resets."""
    view = View(x.obs, getattr(x, "state", None), x.alive, jnp.zeros(x.obs.shape[:-2], bool))
    return view._replace(**changes)


def both(model: Model) -> dict[str, Model]:
    return {"actor": model, "critic": model}


def by_hand(prepared, network: str):
    """Memories after, and outputs of, every step of the rollout, ``[T, E, ...]``: one by one, resets done here."""
    learnt, transitions, algorithm = prepared.learnt, prepared.transitions, prepared.algorithm
    apply, first = policy if network == "actor" else value, prepared.first.slot.envs
    memory = first.memory[network] if prepared.name in RECURRENT else ()

    @jax.jit
    def one(memory, x, is_first):
        memory = jax.tree.map(lambda m: jnp.where(is_first[:, None, None], 0.0, m), memory)
        x = jax.tree.map(lambda y: y[None], x)
        return jax.tree.map(lambda y: y[0], apply(algorithm, learnt.params, learnt.obs_stats, x, memory))

    memories, outputs = [], []
    for t in range(algorithm.config.rollout_length):
        is_first = first.timestep.is_first if t == 0 else transitions.next.is_first[t - 1]
        memory, output = one(memory, jax.tree.map(lambda y, t=t: y[t], seen(transitions)), is_first)
        memories.append(memory)
        outputs.append(output)
    stack = partial(jax.tree.map, lambda *leaves: np.stack(leaves))
    return stack(*memories), np.stack(outputs), one


# What the rollout is.


@each
def test_the_toy_has_everything_that_can_go_wrong(name):
    prepared = prepare(name)
    step = prepared.transitions.next
    assert step.truncated.sum() > 2 and step.terminated.sum() > 2
    assert not step.truncated[-1].all() and not prepared.first.slot.envs.timestep.is_first.all()
    assert 0.2 < prepared.transitions.alive.mean() < 0.9
    assert np.unique(np.asarray(prepared.transitions.action)).size == 4


@each_recurrent
def test_a_rollout_equals_stepping_with_resets_in_the_middle(name):
    prepared = prepare(name)
    memories, outputs, _ = by_hand(prepared, "actor")
    close(prepared.transitions.outputs, outputs)
    jax.tree.map(close, prepared.transitions.memory, memories)
    jax.tree.map(lambda a, b: close(a, b[-1]), prepared.after.slot.envs.memory["actor"], memories)
    critic_memories, values, _ = by_hand(prepared, "critic")
    close(prepared.batch.value, values)  # one sequence per environment
    jax.tree.map(lambda a, b: close(a, b[-1]), prepared.after.slot.envs.memory["critic"], critic_memories)
    assert np.abs(prepared.first.slot.envs.memory["actor"]).max() > 0.1  # it did start with a memory


def successors(prepared) -> np.ndarray:
    """The value of every step's true successor, ``[T, E, A]``: what targets of one step bootstrap from."""
    hypers = prepared.algorithm.Hypers(gamma=1.0, gae_lambda=0.0)
    _, batch = make_batch(prepared.algorithm, prepared.first, prepared.state, prepared.transitions, hypers)
    reward = np.asarray(prepared.transitions.next.reward)
    return np.asarray(batch.target).reshape(reward.shape) - reward


@each
def test_values_bootstrap_from_the_final_observation_of_a_truncated_episode(name):
    """And with the memory after the step, where there is one."""
    prepared = prepare(name)
    memories, values, one = by_hand(prepared, "critic")
    step, config = prepared.transitions.next, prepared.algorithm.config
    never = jnp.zeros(config.num_envs, bool)
    expected = [
        one(*jax.tree.map(lambda x, t=t: x[t], (memories, step.final)), never)[1] for t in range(config.rollout_length)
    ]
    found = successors(prepared)
    alive = np.asarray(step.final_alive & ~step.terminated[..., None])
    close(found[alive], np.stack(expected)[alive])
    close(found[:-1][~np.asarray(step.ended)[:-1]], values[1:][~np.asarray(step.ended)[:-1]])
    naive = np.concatenate([values[1:], np.zeros_like(values[:1])])[:-1]
    truncated = np.asarray(step.truncated)[:-1]
    assert (np.abs(found[:-1] - naive)[truncated] > 1e-4).all()  # the next episode's value is another one


@each
def test_advantages_are_those_of_a_plain_loop_that_deaths_do_not_end(name):
    prepared = prepare(name)
    _, values, _ = by_hand(prepared, "critic")
    step = prepared.transitions.next
    terminated = np.broadcast_to(np.asarray(step.terminated)[..., None], step.reward.shape)
    ended = terminated | np.asarray(step.truncated)[..., None]
    arguments = (np.asarray(step.reward), values, successors(prepared), terminated, ended)
    expected = plain_gae(*arguments, 0.99, 0.95)
    batch = jax.tree.map(lambda x: x.reshape(expected.shape), (prepared.batch.advantage, prepared.batch.target))
    close(batch[0], expected)
    close(batch[1], expected + values)
    assert (~np.asarray(step.final_alive) & ~terminated).any() and prepared.batch.earning.all()


@each
def test_where_death_ends_the_return_an_agent_that_dies_stops_bootstrapping_and_its_team_does_not(name):
    prepared = prepare(name)
    transitions, algorithm = prepared.transitions, with_config(prepared.algorithm, death="ends_return")
    quiet = transitions.next.replace(
        terminated=jnp.zeros_like(transitions.next.terminated),
        truncated=jnp.zeros_like(transitions.next.truncated),
        final_alive=jnp.ones_like(transitions.next.final_alive),
    )
    deadly = quiet.replace(final_alive=quiet.final_alive.at[3, 0, 1].set(False))

    @jax.jit
    def advantage(step):
        return make_batch(algorithm, prepared.first, prepared.state, transitions.replace(next=step))[1].advantage

    without, with_death = (np.array(advantage(step)).reshape(12, 4, 3) for step in (quiet, deadly))
    value_then = prepared.batch.value.reshape(12, 4, 3)[3, 0, 1]
    close(with_death[3, 0, 1], quiet.reward[3, 0, 1] - value_then)
    assert abs(without[3, 0, 1] - with_death[3, 0, 1]) > 1e-3
    with_death[:4, 0, 1] = without[:4, 0, 1]
    np.testing.assert_array_equal(with_death, without)


# What the loss sees.


@each
def test_the_first_ratio_is_one(name):
    metrics = prepare(name).loss()[1]
    assert abs(metrics["approx_kl"]) < 1e-6
    assert metrics["clip_fraction"] == 0.0
    assert differ(prepare(name).transitions.outputs, jnp.zeros(prepare(name).transitions.outputs.shape))


@pytest.mark.parametrize("length", [0, 1, 3, 6])
@each_recurrent
def test_sequences_start_from_the_memory_that_the_rollout_had(name, length):
    prepared = prepare(name)
    algorithm, learnt = with_config(prepared.algorithm, chunk_length=length, minibatches=1), prepared.learnt
    make = jax.jit(lambda *arguments: make_batch(algorithm, *arguments)[1])
    batch = make(prepared.first, prepared.state, prepared.transitions)
    assert batch.obs.shape[:2] == (length or 12, 48 // (length or 12))

    @jax.jit
    def again(batch):
        memory = jax.tree.map(lambda x: x[0], batch.memory)
        _, outputs = algorithm.outputs(learnt.params, learnt.obs_stats, memory["actor"], batch)
        log_prob = algorithm.distribution(outputs, batch.action_mask).log_prob(batch.action)
        return log_prob, algorithm.value(learnt.params, learnt.obs_stats, memory["critic"], batch)[1]

    log_prob, values = again(batch)
    close(log_prob, batch.log_prob)
    close(values, batch.value)
    forgotten = again(batch.replace(memory=jax.tree.map(jnp.zeros_like, batch.memory)))
    assert np.abs(forgotten[0] - log_prob).max() > 1e-2
    assert np.abs(forgotten[1] - values).max() > 1e-2


@each
def test_dead_agents_never_reach_the_loss(name):
    """But that of the critic, while their return goes on."""
    prepared = prepare(name)
    dead = prepared.batch.replace(alive=prepared.batch.alive.at[..., 1].set(False))
    strange = dead.replace(log_prob=dead.log_prob.at[..., 1].set(-50.0), advantage=dead.advantage.at[..., 1].set(-1e4))
    clean = dead.replace(earning=dead.earning.at[..., 1].set(False))
    poisoned = clean.replace(
        obs=clean.obs.at[..., 1, :].set(1e3),
        log_prob=clean.log_prob.at[..., 1].set(-50.0),
        value=clean.value.at[..., 1].set(1e4),
        advantage=clean.advantage.at[..., 1].set(-1e4),
        target=clean.target.at[..., 1].set(1e4),
    )
    gradient = jax.jit(lambda batch: prepared.gradient(batch=batch))
    full, *results = [gradient(batch) for batch in (prepared.batch, dead, strange, clean, poisoned)]
    assert finite(results[0])
    jax.tree.map(close, *results[:2])
    jax.tree.map(close, *results[2:])
    losses = {round(float(metrics["loss"]), 4) for _, metrics in (full, results[0], results[2])}
    assert len(losses) == 3  # agent 1 would have counted


ENDS = {"death": "ends_return"}
DEADLY = {
    "deepsets, gnn": ("ippo_ff", {"actor": Model("deepsets", (8,)), "critic": Model("gnn", (8,))}),
    "relu": (
        "ippo_ff",
        {"death": "ends_return", "actor": Model("mlp", (8,), "relu"), "critic": Model("mlp", (8,), "relu")},
    ),
    "memory": (
        "ippo_rnn",
        {"death": "ends_return", "actor": Model("gru", (8,), torso="gnn"), "critic": Model("lstm", (8,), "relu")},
    ),
    "memories of teams": ("ippo_rnn", {"sharing": "group"} | both(Model("lstm", (8,), torso="gnn"))),
    "state": ("mappo_ff", {"critic_input": "state", "sharing": "group"}),
    "observations": ("mappo_rnn", {"critic_input": "observations", "sharing": "group"} | ENDS),
    "deepsets of observations": (
        "mappo_ff",
        {"critic_input": "observations", "critic": Model("deepsets", (8,)), "sharing": "independent"},
    ),
    "gnn of agent_state": (
        "mappo_rnn",
        {"critic_input": "agent_state", "critic": Model("lstm", (8,), torso="gnn", hidden=6)},
    ),
}


@pytest.mark.parametrize("case", DEADLY)
def test_what_dead_agents_see_and_get_changes_nothing(case):
    """In two updates with every normalisation, and whatever it is; what they get counts unless death ends that."""
    name, changes = DEADLY[case]
    config = config_of(name, normalise_obs=True, normalise_values="popart", **changes)

    def learn(poison):
        state, metrics = train(name, config, toy(poison, poison if config.death == "ends_return" else 0.0))
        return state.learnt, {key: value for key, value in metrics.items() if not key.startswith("episode_return")}

    learnt, metrics = jax.jit(jax.vmap(learn))(jnp.array([0.0, 1e3, -1e6, jnp.nan]))
    assert finite(learnt) and finite(metrics)
    jax.tree.map(lambda x: [close(x[0], x[i]) for i in (1, 2, 3)], (learnt, metrics))


@each
def test_illegal_and_padded_actions_never_reach_the_loss(name):
    prepared = prepare(name)
    mask = prepared.batch.action_mask.at[..., 3].set(False)
    batch = prepared.batch.replace(action_mask=mask, action=prepared.batch.action % 3)

    def with_bias(index, shift):
        params, actor = prepared.learnt.params, prepared.learnt.params["actor"]
        head = actor["head"] | {"bias": actor["head"]["bias"].at[..., index].add(shift)}
        return prepared.loss(params | {"actor": actor | {"head": head}}, batch)[1]

    jax.tree.map(np.testing.assert_array_equal, with_bias(3, 0.0), with_bias(3, 7.0))
    assert differ(with_bias(2, 0.0), with_bias(2, 7.0))


@each
def test_illegal_actions_are_never_taken(name):
    """In rollouts, in evaluation by samples and by the mode, and with extreme logits; an illegal one loses."""
    algorithm = made(name)

    first = prepare(name).first  # not inside the traced function: what is prepared is kept

    @jax.jit
    @jax.vmap
    def plays(scale):
        keys = jax.random.split(jax.random.PRNGKey(0), 5)
        state = first
        state = with_params(state, jax.tree.map(lambda x: scale * x, state.learnt.params))
        _, transitions = rollout(algorithm, state, keys[:3])
        sampled, mode = (evaluate(algorithm, algorithm.policy(state.learnt), keys[i], 16, i == 3)[1] for i in (3, 4))
        return transitions.next.info["won"], sampled["win_rate"], mode["win_rate"]

    assert all(won.all() for won in plays(jnp.array([0.0, 1.0, 1e3, -1e12])))
    assert (trained(name)[1]["win_rate"] == 1.0).all()


# What belongs to whom.

SHARING = {"shared": [0, 0, 0], "group": [0, 0, 1], "independent": [0, 1, 2]}


@pytest.mark.parametrize("sharing", ["group", "independent"])
@each
def test_parameters_are_those_of_the_agents_policy_alone(name, sharing):
    """Also (here with the groups') where networks let agents see each other."""
    mixing = {"actor": Model("deepsets", (8,)), "critic": Model("gnn", (8,))} if sharing == "group" else {}
    mixing |= {"critic_input": "observations"} if name in CENTRAL and mixing else {}
    algorithm = made(name, sharing=sharing, **mixing)
    np.testing.assert_array_equal(algorithm.policies.ids, SHARING[sharing])
    obs, state = np.random.default_rng(0).normal(size=(1, 2, 3, 6)), np.ones((1, 2, 4))
    x = View(obs.astype(np.float32), state, np.ones((1, 2, 3), bool), np.zeros((1, 2), bool))
    memory = algorithm.memories(2) if name in RECURRENT else {"actor": (), "critic": ()}
    stats = {"actor": None, "critic": None} if name in CENTRAL else None

    def outputs(params):
        logits = policy(algorithm, params, stats, x, memory["actor"])[1].sum(axis=(0, 1, -1))
        values = value(algorithm, params, stats, x, memory["critic"])[1].sum(axis=(0, 1))
        return logits, values  # [A] each

    # An agent's outputs by a policy's parameters: [A, P].
    of_actor, of_critic = jax.jit(jax.jacrev(outputs))(params_of(algorithm))
    for grads, own, other in ((of_actor, "actor", "critic"), (of_critic, "critic", "actor")):
        touched = np.abs(grads[own]["head"]["kernel"]).sum(axis=(2, 3)) > 0
        np.testing.assert_array_equal(touched, np.arange(max(SHARING[sharing]) + 1) == np.c_[SHARING[sharing]])
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads[other]))


@pytest.mark.parametrize("sharing", ["group", "independent"])
@each
def test_one_policys_rewards_do_not_touch_anothers_update(name, sharing):
    """Advantages are normalised in each group, gradients clipped and returns scaled for each policy."""
    group = sharing == "group"
    changes = {"sharing": sharing, "normalise_advantages": group, "normalise_values": "popart", "minibatches": 4}
    prepared, algorithm = prepare(name), made(name, **changes)
    hypers = algorithm.Hypers(lr=0.02, max_grad_norm=0.1)

    @jax.jit
    @jax.vmap
    def learnt(scale):
        params = params_of(algorithm)
        values = normalisation.init_values(max(SHARING[sharing]) + 1, "popart")
        first, state = prepared.first, with_params(prepared.state, params)
        changed = {"opt_state": algorithm.init_optimiser(params, hypers), "value_stats": values}
        state = state.replace(learnt=state.learnt.replace(**changed))
        if name in CENTRAL and name in RECURRENT:  # another number of rows
            memory = first.slot.envs.memory | {"critic": algorithm.memories(4)["critic"]}
            first = first.replace(slot=first.slot.replace(envs=first.slot.envs.replace(memory=memory)))
        reward = prepared.transitions.next.reward * jnp.where(np.array(SHARING[sharing]) == 0, scale, 1.0)
        transitions = prepared.transitions.replace(next=prepared.transitions.next.replace(reward=reward))
        state, batch = make_batch(algorithm, first, state, transitions, hypers)
        before, batch = algorithm.scale_values(state.learnt, batch)
        return algorithm.learn(before, batch, jax.random.PRNGKey(0), hypers)[0].params

    params = learnt(jnp.array([1.0, 1000.0]))
    jax.tree.map(lambda x: close(x[0, 1:], x[1, 1:], rtol=1e-5), params)
    assert differ(*(jax.tree.map(lambda x, i=i: x[i, 0], params["critic"]) for i in (0, 1)))


@each
def test_agents_of_one_policy_share_a_mean_and_policies_weigh_alike(name):
    """The loss is a mean over each policy's living agents, and the policies' sum."""
    prepared = prepare(name)
    living = prepared.batch.replace(earning=prepared.batch.alive)
    totals = {}
    for sharing, policy_of in SHARING.items():
        algorithm = with_config(prepared.algorithm, sharing=sharing)
        params = jax.tree.map(lambda x, p=policy_of: jnp.repeat(x, max(p) + 1, axis=0), prepared.learnt.params)
        batch = living
        if name == "mappo_rnn":
            rows = jnp.repeat(batch.memory["critic"], max(policy_of) + 1, axis=2)
            batch = batch.replace(memory=batch.memory | {"critic": rows})
        totals[sharing] = prepared.loss(params, batch, algorithm, ent_coef=0.3)[0]
    metrics = prepared.loss(batch=living, ent_coef=0.3)[1]
    by_group = [
        metrics[f"policy_loss/{group}"] + 0.5 * metrics[f"value_loss/{group}"] - 0.3 * metrics[f"entropy/{group}"]
        for group in ("red", "blue")
    ]
    close(totals["group"], sum(by_group), rtol=1e-3)
    everyone = metrics["policy_loss"] + 0.5 * metrics["value_loss"] - 0.3 * metrics["entropy"]
    close(totals["shared"], everyone, rtol=1e-3)
    assert len({round(float(total), 3) for total in totals.values()}) == 3


@each
def test_teams_have_metrics_of_their_own(name):
    prepared = prepare(name)
    batch = prepared.batch
    entropy = prepared.algorithm.distribution(prepared.transitions.outputs, prepared.transitions.action_mask).entropy()
    alive = np.asarray(prepared.transitions.alive)
    metrics = prepared.loss(batch=batch)[1]
    for group, members in (("red", [0, 1]), ("blue", [2])):
        close(metrics[f"entropy/{group}"], np.asarray(entropy)[..., members][alive[..., members]].mean())
    close(metrics["entropy"], np.asarray(entropy)[alive].mean())
    of_training = trained(name)[1]
    names = {"episode_return", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"}
    assert {f"{name}{group}" for name in names for group in ("", "/red", "/blue")} <= set(of_training)
    close(
        of_training["episode_return"], (2 * of_training["episode_return/red"] + of_training["episode_return/blue"]) / 3
    )
    assert not np.allclose(of_training["episode_return/red"], of_training["episode_return/blue"])


def with_value_stats(prepared):
    """The state with statistics of returns, which it has not without ``normalise_values``."""
    stats = normalisation.init_values(prepared.algorithm.policies.count)
    return prepared.state.replace(learnt=prepared.learnt.replace(value_stats=stats))


# What normalisations promise.


@pytest.mark.parametrize("kind", ["running", "popart"])
@each
def test_targets_have_unit_scale_and_popart_keeps_the_values(name, kind):
    prepared = prepare(name)
    algorithm = with_config(prepared.algorithm, normalise_values=kind)
    loud = prepared.batch.replace(target=40.0 + 30.0 * prepared.batch.target)
    before_scaling = with_value_stats(prepared).learnt
    learnt, batch = algorithm.scale_values(before_scaling, loud)
    target = np.asarray(batch.target)[np.asarray(batch.earning)]
    close([target.mean(), target.std()], [0.0, 1.0], atol=1e-3)

    def values(learnt):
        memory = prepared.first.slot.envs.memory["critic"] if name in RECURRENT else ()
        x = prepared.transitions if name in RECURRENT else seen(prepared.transitions)
        own = value(algorithm, learnt.params, learnt.obs_stats, x, memory)[1]
        return own, normalisation.to_reward_units(learnt.value_stats, own, algorithm.policies.ids)

    (own_before, before), (own_after, after) = values(before_scaling), values(learnt)
    close(own_after.reshape(batch.value.shape), batch.value, rtol=1e-4, atol=1e-4)  # which the loss clips around
    if kind == "popart":
        close(before, after, rtol=1e-4, atol=1e-3)
        assert differ(own_before, own_after)
    else:
        close(own_before, own_after)
        assert differ(before, after)
    assert differ(prepared.learnt.params["critic"], learnt.params["critic"]) == (kind == "popart")


def with_tables(algorithm):
    """The ``algorithm`` whose policies and values are the ``outputs`` and the ``value`` among its parameters."""
    if is_recurrent(algorithm):
        outputs = lambda self, params, stats, memory, x: ((), params["outputs"])  # noqa: E731
        values = lambda self, params, stats, memory, x: ((), params["value"])  # noqa: E731
    else:
        outputs = lambda self, params, stats, x: params["outputs"]  # noqa: E731
        values = lambda self, params, stats, x: params["value"]  # noqa: E731
    return with_methods(algorithm, outputs=outputs, value=values)


@pytest.mark.parametrize("kind", normalisation.VALUE_NORMS)
@each
def test_clipping_leaves_every_value_a_gradient_before_the_first_step(name, kind):
    """In three updates: the clip is centred on what the critic says, whatever the returns' statistics do meanwhile."""
    prepared = prepare(name)
    algorithm = with_config(prepared.algorithm, normalise_values=kind)
    step = prepared.transitions.next
    transitions = prepared.transitions.replace(next=step.replace(reward=5.0 + 10.0 * step.reward))
    memory = prepared.first.slot.envs.memory["critic"] if name in RECURRENT else ()
    x = transitions if name in RECURRENT else seen(transitions)

    @jax.jit
    def share_with_a_slope(state):
        _, batch = make_batch(algorithm, prepared.first, state, transitions)
        learnt, batch = algorithm.scale_values(state.learnt, batch)
        output = value(algorithm, learnt.params, learnt.obs_stats, x, memory)[1].reshape(batch.value.shape)
        outputs = transitions.outputs.reshape(*batch.value.shape, -1)
        tables = with_tables(algorithm)
        loss = lambda v: tables.loss({"outputs": outputs, "value": v}, batch, learnt, algorithm.Hypers(ent_coef=0.0))[0]  # noqa: E731
        return state.replace(learnt=learnt), (jax.grad(loss)(output) != 0.0).mean()

    state = prepared.state if kind == "none" else with_value_stats(prepared)
    for _ in range(3):
        state, share = share_with_a_slope(state)
        assert share == 1.0


# What options do.

OPTIONS = {
    "total_steps": [97],
    "num_envs": [2],
    "rollout_length": [6],
    "epochs": [1],
    "minibatches": [1],
    "chunk_length": [6],
    "sharing": ["group", "independent"],
    "agent_id": [True],
    "actor": [Model("deepsets", (8,))],
    "critic": [Model("mlp", (8, 8))],
    "critic_input": ["observations", "agent_state", "local"],
    "normalise_advantages": [False],
    "normalise_obs": [True],
    "normalise_values": ["running", "popart"],
    "clip_value": [False],
    "death": ["ends_return"],
}
CASES = [(option, choice) for option, choices in OPTIONS.items() for choice in choices]
SEEN_ABOVE = ("sharing", "normalise_values")  # by tests of all four files
SEEN_BELOW = ("actor", "critic", "critic_input")


@each
def test_no_option_is_forgotten(name):
    options = {field.name for field in dataclasses.fields(ALGORITHMS[name].Config)}
    assert options <= {*OPTIONS, "elastic_batches"}  # the last in tests/shoal/test_shares.py
    assert options >= {*OPTIONS} - {"chunk_length", "critic_input"}


@pytest.mark.parametrize(("option", "choice"), CASES, ids=str)
def test_every_option_changes_what_is_learnt(option, choice):
    """In one of the four files; the next test has the others."""
    name = {"chunk_length": "ippo_rnn", "critic_input": "mappo_ff"}.get(option, "ippo_ff")
    base, other = trained(name)[0].learnt.params, trained(name, **{option: choice})[0].learnt.params
    assert finite(other)
    assert differ(base, other)


@cache
def program(name: str, **changes) -> str:
    """One update, as JAX has traced it."""
    algorithm = made(name, **changes)
    hypers = algorithm.Hypers()
    state = jax.eval_shape(algorithm.init, jax.random.PRNGKey(0), hypers)
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(algorithm.update)(state, hypers)))


@pytest.mark.parametrize("option", [option for option in OPTIONS if option not in (*SEEN_ABOVE, *SEEN_BELOW)])
def test_every_option_is_read_by_every_file(option):
    """It changes the program, if not (as above) the numbers."""
    for name in {"chunk_length": RECURRENT}.get(option, ALGORITHMS):
        assert program(name) != program(name, **{option: OPTIONS[option][0]})


@each
def test_a_program_is_the_same_when_nothing_changes(name):
    assert program(name) == program.__wrapped__(name)


@each
def test_actor_and_critic_get_their_own_model(name):
    def shapes(**changes):
        return jax.tree.map(np.shape, params_of(made(name, **changes)))

    base = shapes()
    for mine, other in (("actor", "critic"), ("critic", "actor")):
        wider = shapes(**{mine: dataclasses.replace(getattr(config_of(name), mine), widths=(9,))})
        assert wider[mine] != base[mine]
        assert wider[other] == base[other]


@each
def test_every_hyperparameter_does_something(name):
    hypers = ALGORITHMS[name].Hypers(lr=0.01, ent_coef=0.1, lr_end=0.5, ent_coef_end=0.5)
    fields = [field.name for field in dataclasses.fields(hypers)]
    changed = {"lr_end": 1.0, "ent_coef_end": 0.0, "max_grad_norm": 0.01, "clip_eps": 1e-3}
    runs = [hypers, *(hypers.replace(**{f: changed.get(f, getattr(hypers, f) / 2)}) for f in fields)]
    together = jax.tree.map(lambda *numbers: jnp.array(numbers, jnp.float32), *runs)
    config = config_of(name, elastic_batches=True)
    params = jax.jit(jax.vmap(lambda h: train(name, config, toy(), h, updates=3)[0].learnt.params))(together)
    assert finite(params)
    for run, field in enumerate(fields, start=1):
        assert any(not np.array_equal(leaf[0], leaf[run]) for leaf in jax.tree.leaves(params)), field


@pytest.mark.parametrize("pair", [("ippo_ff", "mappo_ff"), ("ippo_rnn", "mappo_rnn")], ids=str)
def test_mappo_with_a_local_critic_is_ippo(pair):
    """Keys draw the same first parameters (taken for granted in the second pair) and give the same updates."""
    start = wavy if pair[0] in RECURRENT else lambda drawn: drawn
    ippo, mappo = (
        jax.jit(partial(train, name, config_of(name, **changes), toy(), start=start))()
        for name, changes in zip(pair, ({}, {"critic_input": "local"}), strict=True)
    )
    jax.tree.map(close, ippo[0].learnt.params, mappo[0].learnt.params)
    jax.tree.map(close, ippo[1], mappo[1])


# What they are used for.


@pytest.mark.parametrize("greedy", [True, False])
@each
def test_acting_remembers_as_the_rollout_does(name, greedy):
    prepared = prepare(name)
    algorithm, opening = prepared.algorithm, prepared.opening
    played, carry = algorithm.policy(prepared.learnt), algorithm.initial_memory(4)
    act = jax.jit(algorithm.act, static_argnums=4)
    for t in range(4):  # all environments are in their first episode
        mask = opening.action_mask[t]
        state = getattr(opening, "state", jnp.zeros((12, 4, 4)))[t]
        flags = jnp.zeros(4, bool)
        timestep = TimeStep(opening.obs[t], state, mask, jnp.zeros((4, 3)), flags, flags, opening.alive[t], {})
        key = jax.random.PRNGKey(t)
        carry, action = act(played, carry, timestep, key, greedy)
        pi = algorithm.distribution(opening.outputs[t], mask)
        expected = pi.mode() if greedy else pi.sample_from(distributions.noise(key, algorithm.env.action_space, (4,)))
        np.testing.assert_array_equal(action, expected)
        if name in RECURRENT:
            jax.tree.map(lambda a, b, t=t: close(a, b[t]), carry, opening.memory)
    again = act(played, algorithm.initial_memory(4), timestep, jax.random.PRNGKey(99), greedy)
    if name in RECURRENT:
        assert differ(again[0], carry)
    elif greedy:
        np.testing.assert_array_equal(again[1], action)


KINDS = {
    "two sub-actions": ("ippo_ff", "mpe/simple_reference", {"multi_discrete": True}, {"sharing": "independent"}),
    "two sub-actions, some": ("mappo_rnn", "mpe/simple_world_comm", {"multi_discrete": True}, {"sharing": "group"}),
    "different actions": ("mappo_ff", "mpe/simple_speaker_listener", {}, {"agent_id": True}),
    "different actions, remembered": ("ippo_rnn", "mpe/simple_speaker_listener", {}, {"actor": Model("lstm", (8,))}),
    "continuous": ("mappo_ff", "mpe/simple_speaker_listener", {"continuous": True}, {}),
    "continuous, remembered": ("ippo_rnn", "mpe/simple_tag", {"continuous": True}, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_trains_with_other_kinds_of_actions(kind):
    name, task, kwargs, changes = KINDS[kind]
    env, config = envs.make(task, **kwargs), config_of(name, **changes)
    state, metrics = jax.jit(lambda: train(name, config, env))()
    assert finite(state.learnt.params)
    assert np.isfinite(metrics["loss"]).all()
    assert (metrics["approx_kl"] > 0).all()


def test_a_run_in_a_vmapped_sweep_is_the_run_alone():
    """Of the file that remembers most; the runner's tests have another."""
    run = partial(train, "mappo_rnn", config_of("mappo_rnn", normalise_obs=True, normalise_values="popart"), toy())
    keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(3))
    hypers = jax.vmap(lambda lr: ALGORITHMS["mappo_rnn"].Hypers(lr=lr))(jnp.array([1e-3, 3e-4, 1e-4]))
    together, _ = jax.jit(jax.vmap(lambda key, h: run(h, key=key)))(keys, hypers)
    alone, _ = jax.jit(lambda key, h: run(h, key=key))(keys[1], ALGORITHMS["mappo_rnn"].Hypers(lr=jnp.float32(3e-4)))
    np.testing.assert_array_equal(together.slot.key[1], alone.slot.key)
    several, single = ((state.learnt.params, state.slot.envs.memory) for state in (together, alone))
    jax.tree.map(lambda a, b: close(a[1], b, rtol=2e-3), several, single)
    assert differ(*(jax.tree.map(lambda x, i=i: x[i], together.learnt.params) for i in (0, 1)))


def test_train_runs_all_updates():
    algorithm = made("ippo_ff", total_steps=100)  # of 48 each
    state, metrics = jax.eval_shape(algorithm.train, jax.random.PRNGKey(0), algorithm.Hypers())
    assert metrics["loss"].shape == (3,)
    assert state.learnt.updates.shape == ()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("ippo_ff", {"minibatches": 5}, "algo.minibatches=5"),
        ("ippo_rnn", {"minibatches": 3}, "algo.minibatches=3: must divide the number of sequences = 4"),
        ("mappo_rnn", {"chunk_length": 5}, "algo.chunk_length=5: must divide"),
        ("mappo_ff", {"actor": Model("gru")}, "algo.actor.network=gru: this file has no memory"),
        ("mappo_ff", {"critic": Model("deepsets")}, "algo.critic_input=state: deepsets reads all agents"),
        ("ippo_rnn", {"critic": Model("gru", torso="cnn")}, "algo.critic.torso=cnn: test/toy has no image"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_is_said(name, changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        made(name, **changes)


def test_learns_to_speak_of_a_hidden_state():
    """One in three without communication; the optimum needs a message and its interpretation to arise together."""
    config = config_of("ippo_ff", total_steps=60_000, num_envs=32, rollout_length=16, sharing="independent")
    config = dataclasses.replace(config, epochs=4, minibatches=4, actor=Model(widths=(32,)), critic=Model(widths=(32,)))
    learn = jax.jit(ALGORITHMS["ippo_ff"](config, envs.make("matrix/hidden")).train)
    hypers = ALGORITHMS["ippo_ff"].Hypers(lr=3e-3, ent_coef=0.02, gamma=1.0)
    returns = np.asarray(learn(jax.random.PRNGKey(0), hypers)[1]["episode_return"])
    assert returns[:3].mean() < 0.5
    assert returns[-10:].mean() > 0.9


class Recall(Env):
    """Each of two agents sees one of three cues in the first step only, and is paid for naming it in the last."""

    name, agents, groups = "test/recall", ("a", "b"), ("team", "team")
    obs_sizes, state_size, action_space, horizon = (4, 4), 2, Discrete((3, 3)), 3
    terminates = True

    def reset(self, key):
        cue = jax.random.randint(key, (2,), 0, 3)
        return (jnp.int32(0), cue), self._timestep(jnp.int32(0), cue, jnp.zeros(2))

    def step(self, key, state, action):
        step, cue = state[0] + 1, state[1]
        return (step, cue), self._timestep(step, cue, jnp.where(step == 3, action == cue, False).astype(jnp.float32))

    def _timestep(self, step, cue, reward):
        shown = jnp.where(step == 0, jax.nn.one_hot(cue, 3), 0.0)
        obs = jnp.concatenate([shown, jnp.full((2, 1), step / 3.0)], axis=-1)
        ended, alive = step >= 3, jnp.ones(2, bool)
        return TimeStep(obs, cue * 1.0, jnp.ones((2, 3), bool), reward, ended, jnp.bool_(False), alive, {})


@pytest.mark.parametrize(("name", "memory"), [("ippo_rnn", "gru"), ("mappo_rnn", "lstm"), ("ippo_ff", None)])
def test_a_memory_learns_to_remember_and_nothing_else_can(name, memory):
    model = Model(memory, (16,), hidden=16) if memory else Model(widths=(16,))
    sizes = {"total_steps": 20_000, "num_envs": 32, "rollout_length": 12, "epochs": 4, "minibatches": 2}
    config = ALGORITHMS[name].Config(**sizes, actor=model, critic=model)
    learn = jax.jit(ALGORITHMS[name](config, TimeLimit(Recall())).train)
    returns = np.asarray(learn(jax.random.PRNGKey(0), ALGORITHMS[name].Hypers(lr=1e-2))[1]["episode_return"])
    assert returns[-5:].mean() > 0.9 if memory else returns.max() < 0.5
