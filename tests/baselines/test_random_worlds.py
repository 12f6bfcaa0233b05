"""Every file on worlds of random teams, deaths, ends, masks and padding, against a plain re-computation in numpy.

A world's structure is static: teams, sizes, horizon. All else is drawn anew in every episode, and many such worlds run
side by side in one program. What a dead agent sees is poison.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.baselines.maddpg.mad4pg_ff_mpe import MAD4PG
from shoal.baselines.maddpg.maddpg_ff_mpe import MADDPG
from shoal.baselines.masac.masac_ff_vmas import MASAC
from shoal.baselines.qmix.pqn_rnn_smax import PQN
from shoal.baselines.qmix.qmix_rnn_mpe import QMIX
from shoal.envs.base import Discrete, Env, TimeStep, size_mask
from shoal.envs.wrappers import TimeLimit
from shoal.nn.models import Model
from tests.baselines.toy import ALGORITHMS, RECURRENT, finite, make_batch, rollout
from tests.shoal.test_returns import plain_gae

POISON = 1e30
WORLDS = 12  # side by side
ENVS, STEPS = 3, 9  # of one rollout
# Teams, actions of each agent, observations of each agent, horizon.
STRUCTURES = {
    "one alone, one step": ((0,), (2,), (3,), 1),
    "two teams": ((0, 0, 1), (3, 2, 4), (2, 5, 4), 4),
    "three teams": ((2, 0, 1, 0), (2, 2, 3, 5), (3, 3, 1, 2), 7),
}


class State(struct.PyTreeNode):
    key: chex.Array  # [2] of the episode: all that happens is drawn from it
    step: chex.Array  # [] int32
    legal: chex.Array  # [] bool: no agent has done anything illegal


class World(Env):
    """``won`` says that no action was illegal."""

    name = "test/world"

    def __init__(self, teams: tuple[int, ...], actions: tuple[int, ...], obs: tuple[int, ...], horizon: int):
        self.agents = tuple(f"agent_{i}" for i in range(len(teams)))
        self.groups = tuple(f"team_{team}" for team in teams)
        self.obs_sizes, self.state_size, self.horizon = obs, 2, horizon
        self.action_space = Discrete(actions)

    def reset(self, key):
        return self._show(State(key, jnp.int32(0), jnp.bool_(True)), jnp.zeros(self.num_agents))

    def step(self, key, state, action):
        taken = action[:, None] == np.arange(self.action_space.size)
        legal = state.legal & (self._mask(state) & taken).any(axis=1).all()
        reward = jax.random.normal(self._key(state, 0), (self.num_agents,)) + 0.3 * action
        return self._show(State(state.key, state.step + 1, legal), reward)

    def _key(self, state, word):
        return jax.random.fold_in(jax.random.fold_in(state.key, word), state.step)

    def _mask(self, state):
        """Each action of an agent is legal with an even chance, and one always."""
        sizes = np.array(self.action_space.sizes)
        drawn = jax.random.bernoulli(self._key(state, 1), shape=(self.num_agents, self.action_space.size))
        one = jax.random.randint(self._key(state, 2), (self.num_agents, 1), 0, sizes[:, None])
        return (drawn | (np.arange(self.action_space.size) == one)) & size_mask(self.action_space.sizes)

    def _show(self, state, reward):
        lives = jax.random.randint(jax.random.fold_in(state.key, 3), (self.num_agents,), 0, self.horizon + 2)
        alive = state.step <= lives
        rows = jax.random.normal(self._key(state, 4), (self.num_agents, self.obs_size))
        rows = jnp.where(size_mask(self.obs_sizes), rows, 0.0)
        ends = jax.random.uniform(self._key(state, 5)) < 0.2
        return state, TimeStep(
            obs=jnp.where(alive[:, None], rows, POISON),
            state=jax.random.normal(self._key(state, 6), (2,)),
            action_mask=self._mask(state),
            reward=reward,
            terminated=ends & (state.step > 0),
            truncated=jnp.bool_(False),
            alive=alive,
            info={"won": state.legal},
        )


def world(structure: str) -> Env:
    return TimeLimit(World(*STRUCTURES[structure]))


@st.composite
def structures(draw):
    """Any structure of up to four agents; teams are numbered from 0 on."""
    agents = draw(st.integers(1, 4))
    teams = draw(st.lists(st.integers(0, 2), min_size=agents, max_size=agents))
    several = st.lists(st.integers(1, 5), min_size=agents, max_size=agents)
    order = sorted({*teams})
    return tuple(map(order.index, teams)), tuple(draw(several)), tuple(draw(several)), draw(st.integers(1, 12))


@cache
def rolled_out(name: str, structure: str, death: str) -> Any:
    """The first state, transitions and batch of a second rollout, ``[worlds, ...]``."""
    model = Model("gru" if name in RECURRENT else "mlp", widths=(8,), hidden=6)
    sizes = {"num_envs": ENVS, "rollout_length": STEPS, "minibatches": 3, "death": death}
    kind = ALGORITHMS[name]
    algorithm = kind(kind.Config(**sizes, actor=model, critic=model), world(structure))

    @jax.jit
    @jax.vmap
    def run(key):
        init_key, *rollout_keys = jax.random.split(key, 7)
        state, _ = rollout(algorithm, algorithm.init(init_key, kind.Hypers()), rollout_keys[:3])
        after, transitions = rollout(algorithm, state, rollout_keys[3:])
        _, batch = make_batch(algorithm, state, after, transitions)
        return state, transitions, batch

    keys = jax.random.split(jax.random.PRNGKey(len(name)), WORLDS)
    return jax.tree.map(np.asarray, run(keys))


FEW = [("ippo_ff", "two teams"), ("mappo_rnn", "three teams"), ("mappo_ff", "one alone, one step")]
ALL = [
    pytest.param(name, structure, marks=() if (name, structure) in FEW else pytest.mark.thorough)
    for name in ALGORITHMS
    for structure in STRUCTURES
]


@pytest.mark.parametrize(("name", "structure"), ALL)
def test_episodes_are_those_of_a_plain_loop(name, structure):
    first, transitions, _ = rolled_out(name, structure, "keeps_return")
    step, horizon = transitions.next, STRUCTURES[structure][3]
    envs = first.slot.envs.state
    returns, lengths = envs.episode_return.copy(), envs.episode_length.copy()
    assert envs.episode_length.shape == (WORLDS, ENVS)
    for w in range(WORLDS):
        for e in range(ENVS):
            for t in range(STEPS):
                returns[w, e] += step.reward[w, t, e]
                lengths[w, e] += 1
                np.testing.assert_allclose(step.episode_return[w, t, e], returns[w, e], rtol=1e-4, atol=1e-5)
                assert step.episode_length[w, t, e] == lengths[w, e]
                cut = lengths[w, e] == horizon and not step.terminated[w, t, e]
                assert step.truncated[w, t, e] == cut
                ended = bool(cut or step.terminated[w, t, e])
                assert step.is_first[w, t, e] == ended
                if ended:
                    returns[w, e], lengths[w, e] = 0.0, 0
    actions = np.take_along_axis(transitions.action_mask, transitions.action[..., None], axis=-1)
    assert actions.all()  # no action is illegal, of the dead neither
    assert step.info["won"].all()
    assert (np.abs(transitions.obs) < 100).all()  # the poison is gone


DEATHS = [
    pytest.param(*pair.values, death, marks=pair.marks if death == "keeps_return" else pytest.mark.thorough)
    for death in ("keeps_return", "ends_return")
    for pair in ALL
]
DEATHS[ALL.index(next(pair for pair in ALL if not pair.marks)) + len(ALL)] = pytest.param(*FEW[0], "ends_return")


@pytest.mark.parametrize(("name", "structure", "death"), DEATHS)
def test_advantages_are_those_of_a_plain_loop(name, structure, death):
    """Where the true successor is the next row; a truncated step's successor is tested in test_ppo.py."""
    _, transitions, batch = rolled_out(name, structure, death)
    step, agents = transitions.next, len(STRUCTURES[structure][0])
    shape = (WORLDS, STEPS, ENVS, agents)
    value, advantage, target = (x.reshape(shape) for x in (batch.value, batch.advantage, batch.target))
    terminated = np.broadcast_to(step.terminated[..., None], shape)
    if death == "ends_return":
        terminated = terminated | ~step.final_alive
    ended = terminated | step.ended[..., None]
    for w in range(WORLDS):
        for e in range(ENVS):
            ends = np.flatnonzero(step.ended[w, :, e])
            for begin, end in zip([0, *(ends + 1)], ends, strict=False):  # episodes; the first may have begun before
                if step.truncated[w, end, e]:
                    continue
                span = (w, slice(begin, end + 1), e)
                following = np.concatenate([value[span][1:], np.zeros((1, agents))])
                arguments = (step.reward[span], value[span], following, terminated[span], ended[span])
                expected = plain_gae(*(x[:, None] for x in arguments), 0.99, 0.95)[:, 0]
                counts = transitions.alive[span] if death == "ends_return" else np.ones_like(expected, bool)
                np.testing.assert_allclose(advantage[span][counts], expected[counts], rtol=1e-3, atol=1e-4)
                np.testing.assert_allclose(target[span][counts], (expected + value[span])[counts], rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
@settings(max_examples=12, deadline=None, derandomize=True)
@given(structure=structures(), name=st.sampled_from(sorted(ALGORITHMS)))
def test_any_structure(structure, name):
    STRUCTURES["any"] = structure
    rolled_out.cache_clear()
    test_episodes_are_those_of_a_plain_loop(name, "any")
    for death in ("keeps_return", "ends_return"):
        test_advantages_are_those_of_a_plain_loop(name, "any", death)


OTHERS = {"qmix": QMIX, "pqn": PQN, "maddpg": MADDPG, "mad4pg": MAD4PG, "masac": MASAC}
FIT = {"num_envs": ENVS, "rollout_length": STEPS, "minibatches": 3, "epochs": 1}
FIT |= {"batch_size": 3, "buffer_size": 60, "learning_starts": 0, "gradient_steps": 2}
SOME = {"qmix": "three teams", "pqn": "one alone, one step", "maddpg": "two teams", "masac": "one alone, one step"}
SOME |= {"mad4pg": "one alone, one step"}


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        pytest.param(name, structure, marks=() if SOME.get(name) == structure else pytest.mark.thorough)
        for name in [*OTHERS, *ALGORITHMS]
        for structure in STRUCTURES
    ],
)
def test_no_poison_reaches_a_parameter_or_a_metric(name, structure):
    kind = (OTHERS | ALGORITHMS)[name]
    model = Model("gru" if name in (*RECURRENT, "qmix", "pqn") else "mlp", widths=(8,), hidden=6)
    fields = set(kind.Config.__dataclass_fields__)
    networks = ("actor", "critic") if name in ALGORITHMS else {"actor", "q"} & fields
    sizes = {field: value for field, value in FIT.items() if field in fields}
    algorithm = kind(kind.Config(**sizes, **dict.fromkeys(networks, model)), world(structure))

    @jax.jit
    @jax.vmap
    def run(key):
        state = algorithm.init(key, kind.Hypers())
        return jax.lax.scan(lambda s, _: algorithm.update(s, kind.Hypers()), state, length=3)

    state, metrics = run(jax.random.split(jax.random.PRNGKey(1), WORLDS))
    assert finite((state.learnt.params, state.learnt.opt_state))
    assert all(np.abs(leaf).max() < 1e6 for leaf in jax.tree.leaves(state.learnt.params))
    for metric, values in metrics.items():
        values = np.asarray(values)[np.asarray(metrics["episodes"]) > 0]
        assert np.isfinite(values).all() and np.abs(values).max() < 1e6, metric
    assert (np.nan_to_num(metrics["win_rate"], nan=1.0) == 1.0).all()  # no action was illegal
