"""PQN: Q-learning from fresh rollouts alone, for QMIX's mixtures (Gallici et al. 2025, Sunehag et al. 2018).

    min_theta  E[ (Q_tot(s, a) - G)^2 ],   G_t = r_t + gamma ((1 - lambda) max_a Q_tot(s_{t+1}, a) + lambda G_{t+1})

No replay and no target network: many environments, layer norm and returns over whole rollouts hold it together. This
file differs from ``qmix_rnn_mpe.py`` in that and in nothing else: an update is a rollout, its returns, and several
passes over its sequences, as in PPO. ``algo.mixer`` is the mixture: the sum (``vdn``), ``qmix``, or ``none``. Returns
are computed once, before the gradient steps; JaxMARL's recurrent PQN computes them anew in every minibatch. The dead
keep their return, and their place in the mixture, until the episode ends (``algo.death``).

    python baselines/qmix/pqn_rnn_smax.py
    python baselines/qmix/pqn_rnn_smax.py env=smax/2s3z algo.mixer=qmix
    python baselines/qmix/pqn_rnn_smax.py seeds=4 sweep.td_lambda=[0.5,0.8,0.95] env=mpe/simple_spread

Shapes: T time, E environments, A agents, O observation, S state, N actions, P policies, M teams (agents if not mixed),
B sequences of L steps, K places where a rollout breaks off.
"""

from __future__ import annotations

if __name__ == "__main__":
    import shoal.early

from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import partial
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

import shoal
from shoal.algorithm import Acting, Algorithm, Metrics
from shoal.algorithm import make_train as train_function
from shoal.config.fields import hyper, setting
from shoal.envs.base import Discrete, Env
from shoal.envs.wrappers import AgentId, AutoReset, EpisodeState, EpisodeStats, VecTimeStep
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn import models, networks
from shoal.nn.memory import before_chunks, in_sequences, one_step
from shoal.nn.models import Inputs, Model
from shoal.rl import learners, sequences, shares
from shoal.rl.exploration import anneal, best, choice_noise, epsilon_greedy, taken
from shoal.rl.metrics import episode_metrics
from shoal.rl.mixers import MIXERS, Mixing, QMixer
from shoal.rl.returns import DEATHS, earning, lambda_returns, masked_mean
from shoal.rl.shuffle import permutations


@dataclass(frozen=True)
class Config:
    """Sizes and switches: fixed when the program is compiled."""

    total_steps: float = setting(1e6, low=1)  # environment steps of one run
    num_envs: int = setting(32, low=1)  # E, environments stepped side by side
    rollout_length: int = setting(32, low=1)  # T, steps of each between two updates
    epochs: int = setting(4, low=1)  # passes over a rollout
    minibatches: int = setting(4, low=1)  # gradient steps in a pass
    chunk_length: int = setting(0, low=0)  # L, steps that gradients flow through; 0 for whole rollouts
    mixer: str = setting("vdn", choices=MIXERS)  # how a team's value comes of its agents'
    mixer_width: int = setting(32, low=1)  # qmix: units of the mixing layer
    hyper_width: int = setting(64, low=0)  # qmix: units of the hypernetworks' hidden layer; 0 for none
    death: str = setting("keeps_return", choices=DEATHS)  # an agent's return ends with the episode, or with its death
    sharing: str = setting("shared", choices=networks.SHARING)  # which agents have parameters in common
    agent_id: bool = setting(True)  # append the agent's one-hot number to its observation
    elastic_batches: bool = setting(False)  # hypers.batch_share and epoch_share count, which evolution may change
    q: Model = setting(
        Model("gru", widths=(64,), activation="relu", layer_norm=True)
    )  # the network of an agent's values


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(5e-4, low=0.0)  # Adam's step size at the start
    lr_end: float = hyper(0.0, low=0.0)  # its share left at the end of the (linear) schedule; 1 for constant
    gamma: float = hyper(0.99, low=0.0, high=1.0)  # discount
    td_lambda: float = hyper(0.8, low=0.0, high=1.0)  # 0 bootstraps after one reward, 1 only at the rollout's end
    eps_start: float = hyper(0.5, low=0.0, high=1.0)  # share of random actions at the start
    eps_end: float = hyper(0.05, low=0.0, high=1.0)  # and at the end of its fall
    eps_fraction: float = hyper(0.1, low=0.0, high=1.0)  # share of the training that it falls over
    max_grad_norm: float = hyper(10.0, low=0.0)  # gradient clipping, of each policy's and mixer's parameters
    reward_scale: float = hyper(1.0, low=0.0)  # rewards are multiplied by this
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: of a minibatch's rows, how many count
    epoch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: of the epochs, how many are run


class Network(nn.Module):
    """A torso, a memory and a linear head over time: ``x [T, ..., A, O]``, ``is_first`` and ``alive [T, ..., A, 1]``.

    Gives the memory after every step, and ``[T, ..., A, N]``.
    """

    model: Model
    inputs: Inputs
    size: int

    @property
    def mixes(self) -> bool:
        return self.model.mixes

    @nn.compact
    def __call__(self, memory: Any, x: chex.Array, is_first: chex.Array, alive: chex.Array) -> tuple[Any, chex.Array]:
        features = models.torso(self.model, self.inputs, x, alive)
        memories, features = models.remember(self.model, memory, features, is_first)
        return memories, networks.Dense(self.size, scale=1.0, name="head")(features)


class Step(struct.PyTreeNode):
    """What is known before acting."""

    obs: chex.Array  # [..., A, O]
    state: chex.Array  # [..., S]
    action_mask: chex.Array  # [..., A, N]
    alive: chex.Array  # [..., A]
    is_first: chex.Array  # [...] an episode opens

    @classmethod
    def of(cls, t: VecTimeStep) -> Step:
        return cls(t.obs, t.state, t.action_mask, t.alive, t.is_first)

    @classmethod
    def final(cls, t: VecTimeStep) -> Step:
        return cls(t.final_obs, t.final_state, t.final_action_mask, t.final_alive, jnp.zeros_like(t.is_first))


class Transition(struct.PyTreeNode):
    """One step of every environment, as the rollout sees it."""

    step: Step  # [E, ...]
    memory: Any  # [E, A, ...] after the step
    action: chex.Array  # [E, A]
    next: VecTimeStep  # [E, ...] what came of it


class Batch(struct.PyTreeNode):
    """What a minibatch holds: ``B`` sequences of ``L`` steps."""

    step: Step  # [L, B, ...]
    earning: chex.Array  # [L, B, A] whose return goes on
    memory: Any  # [1, B, A, ...] before the first step
    action: chex.Array  # [L, B, A]
    target: chex.Array  # [L, B, M] what the teams' values should be


class TrainState(struct.PyTreeNode):
    params: dict[str, Any]  # of "q", [P, ...], and of the "mixer", [M, ...], if it has any
    opt_state: dict[str, optax.OptState]  # the same
    env_state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next
    memory: Any  # [E, A, ...]
    updates: chex.Array  # [] int32, updates done
    epsilon: chex.Array  # [] of the last rollout
    key: chex.PRNGKey


@dataclass(frozen=True)
class Setup:
    """The static things that every function below needs."""

    config: Config
    env: Env
    vec: EpisodeStats
    network: Network
    mixing: Mixing
    policy_of: np.ndarray  # [A]

    @property
    def ends(self) -> bool:
        """Whether a return may end before its episode."""
        return self.env.mortal and self.config.death == "ends_return"

    @property
    def num_updates(self) -> int:
        return max(1, int(np.ceil(self.config.total_steps / (self.config.num_envs * self.config.rollout_length))))

    @property
    def chunk_length(self) -> int:
        return self.config.chunk_length or self.config.rollout_length

    @property
    def num_sequences(self) -> int:
        return self.config.num_envs * self.config.rollout_length // self.chunk_length

    def q(self, params: Any, memory: Any, x: Step) -> tuple[Any, chex.Array]:
        """The memory after every step, and the value of every agent's every action, ``[T, ..., A, N]``."""
        inputs = (memory, x.obs, networks.per_row(x.is_first, x.obs), x.alive[..., None])
        return networks.apply_policies(self.network, params["q"], self.policy_of, *inputs)

    def initial_memory(self, num_envs: int) -> Any:
        """Nothing, for the agents of ``num_envs`` environments."""
        return models.initial_memory(self.config.q, (num_envs, self.env.num_agents))


def optimiser(hypers: Hypers, lr: chex.Numeric) -> optax.GradientTransformation:
    """Adam with clipped gradients for one policy or mixer, its parameters as one vector; from traced numbers."""
    return optax.flatten(optax.chain(optax.clip_by_global_norm(hypers.max_grad_norm), optax.adam(lr, eps=1e-5)))


def init_optimiser(params: Any, hypers: Hypers) -> dict[str, optax.OptState]:
    """Adam's moments before the first step, with the leading axes of the parameters."""
    return {name: jax.vmap(optimiser(hypers, hypers.lr).init)(part) for name, part in params.items()}


def init(key: chex.PRNGKey, hypers: Hypers, setup: Setup) -> TrainState:
    key, env_key, q_key, mixer_key = split(key, 4)
    policies, agents = int(setup.policy_of.max()) + 1, setup.env.num_agents
    flags = jnp.ones((1, agents, 1), bool)
    nothing = models.initial_memory(setup.config.q, (agents,))
    rows = (nothing, jnp.zeros((1, agents, setup.env.obs_size)), flags, flags)
    params = {"q": networks.init_policies(setup.network, q_key, policies, *rows)}
    params |= setup.mixing.init(mixer_key, setup.env.state_size)
    env_state, timestep = setup.vec.reset(env_key)
    return TrainState(
        params=params,
        opt_state=init_optimiser(params, hypers),
        env_state=env_state,
        timestep=timestep.ahead,
        memory=setup.initial_memory(setup.config.num_envs),
        updates=jnp.int32(0),
        epsilon=jnp.asarray(hypers.eps_start, jnp.float32),
        key=key,
    )


def rollout(state: TrainState, keys: Several[chex.PRNGKey], setup: Setup) -> tuple[TrainState, Transition]:
    """``T`` steps of every environment; all random numbers are drawn before the loop, from three ``keys``.

    ``state.memory`` stays that of the first step: learning starts from it.
    """
    steps, num_envs, agents = setup.config.rollout_length, setup.config.num_envs, setup.env.num_agents
    noise_key, pool_key, step_key = keys
    noise = choice_noise(noise_key, (steps, num_envs, agents), setup.env.action_space.size)  # [T, E, A, N + 1]
    step_keys = split(step_key, (steps, num_envs))
    pool = setup.vec.fresh(pool_key, state.env_state)

    def step(carry, inputs):
        env_state, timestep, memory = carry
        noise_t, keys_t = inputs
        seen = Step.of(timestep)
        memory, q = one_step(partial(setup.q, state.params), memory, seen)
        action = epsilon_greedy(q, seen.action_mask, state.epsilon, noise_t)
        env_state, next_timestep = setup.vec.step(keys_t, env_state, action, pool)
        return (env_state, next_timestep.ahead, memory), Transition(seen, memory, action, next_timestep)

    carry = (state.env_state, state.timestep, state.memory)
    (env_state, timestep, _), transitions = jax.lax.scan(step, carry, (noise, step_keys))
    return state.replace(env_state=env_state, timestep=timestep), transitions


def targets(state: TrainState, transitions: Transition, hypers: Hypers, setup: Setup) -> chex.Array:
    """``[T, E, M]``: the returns of the teams, the greedy policy's from where they bootstrap."""
    step, length = transitions.next, setup.config.rollout_length
    count = sequences.most_finals(length, setup.env)
    final_at, final = sequences.finals(step.truncated, Step.final(step), length, count)
    now = transitions.step
    memories, q = setup.q(state.params, state.memory, now)
    before = sequences.at_finals(memories, final_at)
    _, final_q = one_step(partial(setup.q, state.params), before, final)  # [K, E, A, N]
    known, last = ((x.state, x.action_mask, x.alive, values) for x, values in ((now, q), (final, final_q)))
    world, mask, alive, next_q = sequences.successors(known, final_at, last)
    goes_on = earning(alive, setup.config.death)
    next_value = setup.mixing(state.params, taken(next_q, best(next_q, mask)), world, goes_on)  # [T, E, M]
    reward = hypers.reward_scale * setup.mixing.reward(step.reward)
    terminated = step.terminated[..., None] | ~setup.mixing.earning(goes_on)
    ended = step.ended[..., None] | terminated
    return lambda_returns(reward, next_value, terminated, ended, hypers.gamma, hypers.td_lambda)


def make_batch(state: TrainState, transitions: Transition, hypers: Hypers, setup: Setup) -> tuple[TrainState, Batch]:
    """The rollout with its targets, as sequences ``[L, S, ...]``; and the memory moved on."""
    y, length = targets(state, transitions, hypers, setup), setup.chunk_length
    starts = in_sequences(before_chunks(state.memory, transitions.memory, length), 1)
    steps, action, y = in_sequences((transitions.step, transitions.action, y), length)
    state = state.replace(memory=jax.tree.map(lambda x: x[-1], transitions.memory))
    return state, Batch(steps, earning(steps.alive, setup.config.death), starts, action, y)


def loss(params: Any, batch: Batch, setup: Setup) -> tuple[chex.Array, Metrics]:
    """The squared error of the teams' values."""
    _, q = setup.q(params, jax.tree.map(lambda x: x[0], batch.memory), batch.step)  # [L, B, A, N]
    value = setup.mixing(params, taken(q, batch.action), batch.step.state, batch.earning)  # [L, B, M]
    error, counts = value - batch.target, setup.mixing.earning(batch.earning)
    total = setup.mixing.mean(jnp.square(error), counts, setup.policy_of)
    size = masked_mean(jnp.abs(error), counts)
    return total, {"loss": total, "q_value": masked_mean(value, counts), "td_error": size}


def learn(state: TrainState, batch: Batch, key: chex.PRNGKey, hypers: Hypers, setup: Setup):
    """``epochs x minibatches`` gradient steps on one rollout."""
    config = setup.config
    progress = jnp.minimum(state.updates / setup.num_updates, 1.0)
    optimise = optimiser(hypers, hypers.lr * (1.0 + progress * (hypers.lr_end - 1.0)))
    # Every row and every step, unless elastic_batches.
    part = shares.on_policy(config, hypers, rows=setup.num_sequences // config.minibatches)

    def gradient_step(carry, index):
        params, opt_state = carry
        minibatch = jax.tree.map(lambda x: x[:, index], batch)
        minibatch = minibatch.replace(earning=part.alive(minibatch.earning, setup.ends))
        grads, metrics = jax.grad(loss, has_aux=True)(params, minibatch, setup)
        grads = learners.mean(grads)
        moved = {name: jax.vmap(optimise.update)(grads[name], opt_state[name]) for name in params}
        params = {name: optax.apply_updates(params[name], moved[name][0]) for name in params}
        return (params, {name: moved[name][1] for name in params}), metrics

    order = permutations(key, config.epochs, setup.num_sequences).reshape(config.epochs * config.minibatches, -1)
    (params, opt_state), metrics = part.scan(gradient_step, (state.params, state.opt_state), order)
    return state.replace(params=params, opt_state=opt_state), part.mean(metrics)


def update(state: TrainState, hypers: Hypers, setup: Setup) -> tuple[TrainState, Metrics]:
    """One rollout at the present epsilon, then learning from it."""
    key, learn_key, *rollout_keys = split(state.key, 5)
    progress = state.updates / setup.num_updates
    state = state.replace(epsilon=anneal(hypers.eps_start, hypers.eps_end, hypers.eps_fraction, progress))
    state, transitions = rollout(state, rollout_keys, setup)
    state, batch = make_batch(state, transitions, hypers, setup)
    state, metrics = learn(state, batch, learn_key, hypers, setup)
    state = state.replace(updates=state.updates + 1, key=key)
    return state, metrics | {"epsilon": state.epsilon} | episode_metrics(transitions.next, setup.env)


def act(policy, carry, timestep, key: chex.PRNGKey, greedy: bool, setup: Setup) -> tuple[Any, chex.Array]:
    """The action for ``timestep [E, ...]``: the best, or epsilon-greedy as in training unless ``greedy``."""
    first = jnp.zeros(timestep.obs.shape[:1], bool)
    x = Step(timestep.obs, timestep.state, timestep.action_mask, timestep.alive, first)
    carry, q = one_step(partial(setup.q, policy), carry, x)
    if greedy:
        return carry, best(q, x.action_mask)
    return carry, epsilon_greedy(q, x.action_mask, policy["epsilon"], choice_noise(key, q.shape[:-1], q.shape[-1]))


def check(config: Config, env: Env) -> None:
    """What no single field can know."""
    if not isinstance(env.action_space, Discrete):
        kind = type(env.action_space).__name__.lower()
        raise UserError(
            f"env={env.name}: its actions are {kind}, and Q-learning needs one number each; "
            "use discrete actions, or maddpg or masac"
        )
    length = config.chunk_length or config.rollout_length
    if config.rollout_length % length:
        raise UserError(f"algo.chunk_length={length}: must divide algo.rollout_length={config.rollout_length}")
    count = config.num_envs * config.rollout_length // length
    if count % config.minibatches:
        raise UserError(f"algo.minibatches={config.minibatches}: must divide the number of sequences, {count}")
    models.check("algo.q", config.q, env, recurrent=True)


def make(config: Config, env: Env) -> Algorithm:
    """PQN on ``env`` as pure functions of one run."""
    check(config, env)
    env = AgentId(env) if config.agent_id else env
    mixer = QMixer(config.mixer_width, config.hyper_width)
    setup = Setup(
        config=config,
        env=env,
        vec=EpisodeStats(AutoReset(env, config.num_envs, config.rollout_length)),
        network=Network(config.q, Inputs(env.obs_shape, env.position), env.action_space.size),
        mixing=Mixing(config.mixer, mixer, env.group_ids),
        policy_of=networks.policy_of_agent(config.sharing, env.group_ids),
    )
    return Algorithm(
        init=partial(init, setup=setup),
        update=partial(update, setup=setup),
        policy=lambda state: {"q": state.params["q"], "epsilon": state.epsilon},
        acting=Acting(initial_carry=setup.initial_memory, act=partial(act, setup=setup), head="values"),
        env=env,
        steps_per_update=config.num_envs * config.rollout_length,
        num_updates=setup.num_updates,
        init_optimiser=init_optimiser,
    )


def make_train(config: Config, env: Env):
    """The whole training as one pure function: ``jax.jit(jax.vmap(make_train(config, env)))(keys, hypers)``."""
    return train_function(make(config, env))


if __name__ == "__main__":
    shoal.main(make, Config, Hypers, recipe="pqn_rnn_smax")
