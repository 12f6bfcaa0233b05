"""An environment with everything that can go wrong, and small trainings on it."""

from __future__ import annotations

import copy
import dataclasses
from functools import cache
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.algorithm import Algorithm, TrainState
from shoal.baselines.ippo import ippo_ff_mpe, ippo_rnn_smax
from shoal.baselines.mappo import mappo_ff_vmas, mappo_rnn_smax
from shoal.envs.base import Discrete, Env, TimeStep, size_mask
from shoal.envs.wrappers import TimeLimit
from shoal.nn.models import Model

ALGORITHMS: dict[str, type[Algorithm]] = {
    "ippo_ff": ippo_ff_mpe.IPPO,
    "ippo_rnn": ippo_rnn_smax.IPPO,
    "mappo_ff": mappo_ff_vmas.MAPPO,
    "mappo_rnn": mappo_rnn_smax.MAPPO,
}
RECURRENT = ("ippo_rnn", "mappo_rnn")
CENTRAL = ("mappo_ff", "mappo_rnn")


class State(struct.PyTreeNode):
    step: chex.Array  # [] int32
    phase: chex.Array  # [] what an episode looks like
    drift: chex.Array  # [A] what the agents' actions have come to
    legal: chex.Array  # [] bool: nobody has done anything illegal


class Toy(Env):
    """Two red agents and a blue one: two die early, actions come and go, some episodes end, others are cut short.

    ``won`` says that no action was illegal. No observation holds the state. Dead agents see ``poison`` and get ``pay``,
    nothing where it is NaN.
    """

    name = "test/toy"
    agents, groups = ("red_0", "red_1", "blue_0"), ("red", "red", "blue")
    obs_sizes, state_size, position = (6, 6, 5), 4, (0, 2)
    action_space = Discrete((4, 4, 3))
    horizon = 5
    last_step = np.array([99, 2, 1])  # of each agent's life

    def __init__(self, poison: chex.Numeric = 0.0, pay: chex.Numeric = 0.0):
        self.poison, self.pay = poison, pay

    def reset(self, key):
        state = State(jnp.int32(0), jax.random.uniform(key, maxval=6.0), jnp.zeros(3), jnp.bool_(True))
        return state, self._timestep(state, jnp.zeros(3))

    def step(self, key, state, action):
        legal = state.legal & (self._mask(state) & (action[:, None] == np.arange(4))).any(axis=1).all()
        alive = self._alive(state)
        reward = jnp.sin(state.phase + action + 2.0 * np.arange(3)) + state.drift
        drift = state.drift + 0.3 * jnp.where(alive, action - 1.5, 0.0)
        state = State(state.step + 1, state.phase, drift, legal)
        return state, self._timestep(state, jnp.where(alive, reward, jnp.nan_to_num(self.pay)))

    def _alive(self, state):
        return state.step <= self.last_step

    def _mask(self, state):
        return size_mask(self.action_space.sizes) & ((np.arange(4) + np.arange(3)[:, None] + state.step) % 3 > 0)

    def _timestep(self, state, reward):
        alive = self._alive(state)
        rows = jnp.arange(18.0).reshape(3, 6)
        obs = jnp.sin(state.phase * (1 + rows) + rows * state.step) + state.drift[:, None]
        obs = jnp.where(np.arange(6) < np.array(self.obs_sizes)[:, None], obs, 0.0)
        return TimeStep(
            obs=jnp.where(alive[:, None], obs, self.poison),
            state=jnp.cos(state.phase * jnp.arange(1.0, 5.0) + state.step),
            action_mask=self._mask(state),
            reward=reward,
            terminated=(state.step >= 4) & (state.phase > 3.0),
            truncated=jnp.bool_(False),
            alive=alive,
            info={"won": state.legal},
        )


def toy(poison: chex.Numeric = 0.0, pay: chex.Numeric = 0.0) -> Env:
    """With its time limit, as ``shoal.envs.make`` would give it."""
    return TimeLimit(Toy(poison, pay))


def config_of(name: str, **changes) -> Any:
    """A small configuration of one of the four files; the memory is narrower than what it reads."""
    model = Model("gru" if name in RECURRENT else "mlp", widths=(8,), hidden=6)
    small = {"total_steps": 192, "num_envs": 4, "rollout_length": 12, "epochs": 2, "minibatches": 2}
    return ALGORITHMS[name].Config(**small | {"actor": model, "critic": model} | changes)


def made(name: str, env: Env | None = None, **changes) -> Any:
    """One of the four algorithms with a small configuration, on the toy unless another ``env`` is given."""
    return ALGORITHMS[name](config_of(name, **changes), toy() if env is None else env)


def with_methods(algorithm: Any, **methods: Any) -> Any:
    """The ``algorithm`` with other methods."""
    changed = copy.copy(algorithm)
    changed.__class__ = type("Tables", (type(algorithm),), methods)
    return changed


def with_config(algorithm: Any, **changes: Any) -> Any:
    """The ``algorithm`` on the toy, with another configuration."""
    return type(algorithm)(dataclasses.replace(algorithm.config, **changes), toy())


def is_recurrent(algorithm: Any) -> bool:
    return hasattr(algorithm, "memories")


def policy(algorithm, params, stats, x, memory=()):
    """The policy's memories and outputs, ``()`` and outputs of a file without memory."""
    if is_recurrent(algorithm):
        return algorithm.outputs(params, stats, memory, x)
    return (), algorithm.outputs(params, stats, x)


def value(algorithm, params, stats, x, memory=()):
    """The critic's, likewise."""
    if is_recurrent(algorithm):
        return algorithm.value(params, stats, memory, x)
    return (), algorithm.value(params, stats, x)


def rollout(algorithm, state: TrainState, keys) -> tuple[TrainState, Any]:
    """The state after a rollout, and its transitions."""
    envs, transitions = algorithm.rollout(state.learnt, state.slot.envs, keys)
    return state.replace(slot=state.slot.replace(envs=envs)), transitions


def make_batch(algorithm, before: TrainState, state: TrainState, transitions, hypers=None):
    """The state after, and the batch, of any of the four files; ``before`` the rollout the state was another."""
    arguments = (state.slot.envs, transitions, hypers or algorithm.Hypers())
    if not is_recurrent(algorithm):
        return state, algorithm.targets(state.learnt, *arguments)
    envs, batch = algorithm.targets(state.learnt, before.slot.envs, *arguments)
    return state.replace(slot=state.slot.replace(envs=envs)), batch


class Prepared(NamedTuple):
    """A second rollout, which starts in the middle of episodes and of memories."""

    name: str
    algorithm: Any
    opening: Any  # the transitions of the first rollout
    first: Any  # the state before the second
    state: Any  # after it
    transitions: Any
    after: Any  # the state with its memory moved on
    batch: Any

    @property
    def learnt(self):
        return self.state.learnt

    def loss(self, params=None, batch=None, algorithm=None, **hypers):
        """``(loss, metrics)``, at the parameters that acted unless others are given."""
        algorithm = algorithm or self.algorithm
        params, batch = self.learnt.params if params is None else params, self.batch if batch is None else batch
        return algorithm.loss(params, batch, self.learnt, algorithm.Hypers(**hypers))

    def gradient(self, **arguments):
        """The loss' gradient and metrics."""
        params = arguments.pop("params", self.learnt.params)
        return jax.grad(lambda p: self.loss(p, **arguments), has_aux=True)(params)


def wavy(params):
    """Parameters of these shapes of which none is zero, so that all inputs and all memories matter."""
    return jax.tree.map(
        lambda x: 0.6 * jnp.sin(1.0 + 1.7 * jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape), params
    )


def with_params(state: TrainState, params: Any) -> TrainState:
    """The ``state`` with other parameters."""
    return state.replace(learnt=state.learnt.replace(params=params))


def params_of(algorithm) -> Any:
    """Such parameters, without compiling anything."""
    state = jax.eval_shape(lambda key: algorithm.init(key, algorithm.Hypers()), jax.random.PRNGKey(0))
    return wavy(state.learnt.params)


@cache
def prepare(name: str, **changes) -> Prepared:
    algorithm = made(name, **changes)

    @jax.jit
    def run(key):
        def one(first, key):
            state, transitions = rollout(algorithm, first, jax.random.split(key, 3))
            after, batch = make_batch(algorithm, first, state, transitions)
            return after, (first, state, transitions, after, batch)

        keys = jax.random.split(key, 3)
        state = algorithm.init(keys[0], algorithm.Hypers())
        _, both = jax.lax.scan(one, with_params(state, wavy(state.learnt.params)), keys[1:])
        return jax.tree.map(lambda x: x[0], both[2]), *jax.tree.map(lambda x: x[1], both)

    return Prepared(name, algorithm, *run(jax.random.PRNGKey(3)))


def train(name: str, config: Any, env: Env, hypers: Any = None, updates: int = 2, start: Any = wavy, key: Any = None):
    """State and metrics after some updates; ``start`` makes the first parameters of those that ``init`` gives.

    With the default nobody needs these, and XLA does not compile how they are drawn.
    """
    algorithm = ALGORITHMS[name](config, env)
    hypers = algorithm.Hypers(lr=0.02) if hypers is None else hypers
    state = algorithm.init(jax.random.PRNGKey(0) if key is None else key, hypers)
    state = with_params(state, start(state.learnt.params))
    return jax.lax.scan(lambda s, _: algorithm.update(s, hypers), state, length=updates)


@cache
def trained(name: str, **changes):
    """:func:`train` on the toy, compiled."""
    return jax.jit(lambda: train(name, config_of(name, **changes), toy()))()


def unmoved(params) -> list[str]:
    """The parameters that still have their first values, those of :func:`wavy`: no gradient has reached them."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(wavy(params)), strict=True)
    return [jax.tree_util.keystr(path) for (path, now), first in pairs if np.allclose(now, first, atol=1e-7)]


def finite(tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def differ(a, b) -> bool:
    """Whether two trees do."""
    if jax.tree.map(jnp.shape, a) != jax.tree.map(jnp.shape, b):
        return True
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return not all(np.allclose(x, y, atol=1e-7) for x, y in pairs)
