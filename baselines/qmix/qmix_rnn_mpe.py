"""QMIX, VDN and IQL: a team learns the value of its joint action (Rashid et al. 2018, Sunehag et al. 2018, Tan 1993).

    min_theta  E[ (Q_tot(s, a) - y)^2 ],   y = r + gamma Q_tot'(s', argmax_a Q(s', a)),   Q_tot = mix_s(Q_1, ..., Q_A)

``algo.mixer`` is the mixture: monotonic with weights made from the state (``qmix``), the sum (``vdn``), or none, each
agent for itself (``none``: IQL). Replay keeps sequences with the memory that they started from. Differences from the
papers: double Q-learning, and a truncated episode bootstraps from its true last observation. The dead keep their
return, and their place in the mixture, until the episode ends (``algo.death``).

    python baselines/qmix/qmix_rnn_mpe.py
    python baselines/qmix/qmix_rnn_mpe.py algo.mixer=vdn env=mpe/simple_speaker_listener
    python baselines/qmix/qmix_rnn_mpe.py seeds=4 sweep.lr=[5e-4,1e-3] algo.q.network=mlp hypers.td_lambda=0.6

Shapes: T time, E environments, A agents, O observation, S state, N actions, P policies, M teams (agents if not mixed),
B sequences of L steps, K places where one breaks off.
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
from shoal.envs.base import Discrete, Env, select
from shoal.envs.wrappers import AgentId, AutoReset, EpisodeState, EpisodeStats, VecTimeStep
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn import models, networks
from shoal.nn.memory import before_chunks, in_sequences, one_step
from shoal.nn.models import Inputs, Model
from shoal.rl import learners, replay, sequences, shares
from shoal.rl.exploration import anneal, best, choice_noise, epsilon_greedy, taken
from shoal.rl.metrics import episode_metrics
from shoal.rl.mixers import MIXERS, Mixing, QMixer
from shoal.rl.returns import DEATHS, earning, lambda_returns, masked_mean, n_step_returns


@dataclass(frozen=True)
class Config:
    """Sizes and switches: fixed when the program is compiled."""

    total_steps: float = setting(1e6, low=1)  # environment steps of one run
    num_envs: int = setting(8, low=1)  # E, environments stepped side by side
    rollout_length: int = setting(25, low=1)  # T, steps of each between two updates
    chunk_length: int = setting(0, low=0)  # L, steps of a sequence in replay; 0 for whole rollouts
    gradient_steps: int = setting(1, low=1)  # in an update
    batch_size: int = setting(32, low=1)  # B, sequences in a gradient step
    buffer_size: int = setting(130_000, low=1)  # environment steps that replay holds
    elastic_batches: bool = setting(False)  # hypers.batch_share and learn_share count, which evolution may change
    learning_starts: int = setting(10_000, low=0)  # environment steps before the first gradient step
    replay: str = setting("uniform", choices=replay.KINDS)  # how sequences are drawn
    mixer: str = setting("qmix", choices=MIXERS)  # how a team's value comes of its agents'
    mixer_width: int = setting(32, low=1)  # qmix: units of the mixing layer
    hyper_width: int = setting(64, low=0)  # qmix: units of the hypernetworks' hidden layer; 0 for none
    death: str = setting("keeps_return", choices=DEATHS)  # an agent's return ends with the episode, or with its death
    double: bool = setting(True)  # choose the successor's action by the online network, value it by the target
    n_step: int = setting(0, low=0)  # rewards before the bootstrap; 0 for TD(td_lambda)
    target_interval: int = setting(200, low=1)  # gradient steps between two moves of the target
    sharing: str = setting("shared", choices=networks.SHARING)  # which agents have parameters in common
    agent_id: bool = setting(True)  # append the agent's one-hot number to its observation
    q: Model = setting(Model("gru", widths=(64,), activation="relu"))  # the network of an agent's values


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(1e-3, low=0.0)  # Adam's step size at the start
    lr_end: float = hyper(0.0, low=0.0)  # its share left at the end of the (linear) schedule; 1 for constant
    gamma: float = hyper(0.99, low=0.0, high=1.0)  # discount
    td_lambda: float = hyper(0.0, low=0.0, high=1.0)  # 0 bootstraps after one reward, 1 only at the sequence's end
    tau: float = hyper(1.0, low=0.0, high=1.0)  # how far the target moves; 1 replaces it
    eps_start: float = hyper(1.0, low=0.0, high=1.0)  # share of random actions at the start
    eps_end: float = hyper(0.05, low=0.0, high=1.0)  # and at the end of its fall
    eps_fraction: float = hyper(0.1, low=0.0, high=1.0)  # share of the training that it falls over
    max_grad_norm: float = hyper(25.0, low=0.0)  # gradient clipping, of each policy's and mixer's parameters
    reward_scale: float = hyper(1.0, low=0.0)  # rewards are multiplied by this
    priority_beta: float = hyper(0.4, low=0.0, high=1.0)  # prioritised replay's correction, at the start; 1 at the end
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: of a batch's rows, how many count
    learn_share: float = hyper(1.0, low=0.0, high=1.0)  # elastic_batches: of the gradient steps, how many are taken


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


class Sequence(struct.PyTreeNode):
    """What replay keeps: ``B`` sequences of ``L`` steps."""

    steps: Step  # [L, B, ...]
    earning: chex.Array  # [L, B, A] whose return goes on
    memory: Any  # [1, B, A, ...] before the first step
    action: chex.Array  # [L, B, A]
    reward: chex.Array  # [L, B, A]
    terminated: chex.Array  # [L, B]
    ended: chex.Array  # [L, B] terminated or truncated
    final: Step  # [K, B, ...] what follows where episodes are cut off, or the sequence is
    final_at: chex.Array  # [K, B] after which step; L for none


class TrainState(struct.PyTreeNode):
    params: dict[str, Any]  # of "q", [P, ...], and of the "mixer", [M, ...], if it has any
    target: dict[str, Any]  # the same, as they were
    opt_state: dict[str, optax.OptState]  # the same
    buffer: Any
    env_state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next
    memory: Any  # [E, A, ...]
    updates: chex.Array  # [] int32, updates done
    gradient_steps: chex.Array  # [] int32
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
    replay: replay.Replay
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
    state = TrainState(
        params=params,
        target=params,
        opt_state=init_optimiser(params, hypers),
        buffer=None,
        env_state=env_state,
        timestep=timestep.ahead,
        memory=setup.initial_memory(setup.config.num_envs),
        updates=jnp.int32(0),
        gradient_steps=jnp.int32(0),
        epsilon=jnp.asarray(hypers.eps_start, jnp.float32),
        key=key,
    )
    items = jax.eval_shape(lambda: collect(state, [key] * 3, hypers, setup)[1])  # shapes alone
    return state.replace(buffer=setup.replay.init(items))


def rollout(state: TrainState, keys: Several[chex.PRNGKey], setup: Setup) -> tuple[TrainState, Transition]:
    """``T`` steps of every environment; all random numbers are drawn before the loop, from three ``keys``."""
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
    (env_state, timestep, memory), transitions = jax.lax.scan(step, carry, (noise, step_keys))
    return state.replace(env_state=env_state, timestep=timestep, memory=memory), transitions


def collect(state: TrainState, keys: Several[chex.PRNGKey], hypers: Hypers, setup: Setup):
    """A rollout at the present epsilon, as sequences for replay, ``[B, ...]``; and its transitions ``[T, E, ...]``."""
    progress = state.updates / setup.num_updates
    state = state.replace(epsilon=anneal(hypers.eps_start, hypers.eps_end, hypers.eps_fraction, progress))
    memory = state.memory  # before the first step
    state, transitions = rollout(state, keys, setup)
    length, step = setup.chunk_length, transitions.next
    count = sequences.most_finals(length, setup.env)
    final_at, final = sequences.finals(step.truncated, Step.final(step), length, count)
    batch = Sequence(
        steps=in_sequences(transitions.step, length),
        earning=in_sequences(earning(transitions.step.alive, setup.config.death), length),
        memory=in_sequences(before_chunks(memory, transitions.memory, length), 1),
        action=in_sequences(transitions.action, length),
        reward=in_sequences(step.reward, length),
        terminated=in_sequences(step.terminated, length),
        ended=in_sequences(step.ended, length),
        final=final,
        final_at=final_at,
    )
    return state, sequences.swap(batch), transitions


def successor_q(params: Any, memories: Any, q: chex.Array, batch: Sequence, setup: Setup) -> chex.Array:
    """``[L, B, A, N]``: the values at each step's true successor, from those of all steps ``q``."""
    before = sequences.at_finals(memories, batch.final_at)  # [K, B, A, ...]
    _, final_q = one_step(partial(setup.q, params), before, batch.final)
    return sequences.successors(q, batch.final_at, final_q)


def targets(target: Any, q: chex.Array, next_q: chex.Array, batch: Sequence, hypers: Hypers, setup: Setup):
    """``[L, B, M]``: what the teams' values should be, by the ``target`` network."""
    memories, target_q = setup.q(target, jax.tree.map(lambda x: x[0], batch.memory), batch.steps)
    target_next_q = successor_q(target, memories, target_q, batch, setup)
    known = (batch.steps.state, batch.steps.action_mask, batch.steps.alive)
    final = (batch.final.state, batch.final.action_mask, batch.final.alive)
    state, mask, alive = sequences.successors(known, batch.final_at, final)
    action = best(next_q if setup.config.double else target_next_q, mask)
    goes_on = earning(alive, setup.config.death)
    next_value = setup.mixing(target, taken(target_next_q, action), state, goes_on)  # [L, B, M]
    reward = hypers.reward_scale * setup.mixing.reward(batch.reward)
    terminated = batch.terminated[..., None] | ~setup.mixing.earning(goes_on)
    ended = batch.ended[..., None] | terminated
    steps = (reward, next_value, terminated, ended, hypers.gamma)
    if setup.config.n_step:
        return n_step_returns(*steps, setup.config.n_step)
    return lambda_returns(*steps, hypers.td_lambda)


def loss(
    params: Any, target: Any, batch: Sequence, weight: chex.Array, hypers: Hypers, setup: Setup
) -> tuple[chex.Array, tuple[Metrics, chex.Array]]:
    """The squared error of the teams' values, and each sequence's mean error ``[B]`` for its priority."""
    memories, q = setup.q(params, jax.tree.map(lambda x: x[0], batch.memory), batch.steps)  # [L, B, A, N]
    fixed = jax.lax.stop_gradient((params, memories, q))
    y = targets(target, fixed[2], successor_q(*fixed, batch, setup), batch, hypers, setup)
    value = setup.mixing(params, taken(q, batch.action), batch.steps.state, batch.earning)  # [L, B, M]
    error = value - jax.lax.stop_gradient(y)
    counts = setup.mixing.earning(batch.earning)
    total = setup.mixing.mean(weight[:, None] * jnp.square(error), counts, setup.policy_of)
    size = jnp.where(counts, jnp.abs(error), 0.0)
    metrics = {"loss": total, "q_value": masked_mean(value, counts), "td_error": masked_mean(size, counts)}
    return total, (metrics, size.sum((0, 2)) / jnp.maximum(counts.sum((0, 2)), 1))


def learn(state: TrainState, key: chex.PRNGKey, hypers: Hypers, setup: Setup) -> tuple[TrainState, Metrics]:
    """Gradient steps on sequences from replay; nothing changes before ``learning_starts``."""
    config = setup.config
    progress = jnp.minimum(state.updates / setup.num_updates, 1.0)
    optimise = optimiser(hypers, hypers.lr * (1.0 + progress * (hypers.lr_end - 1.0)))
    beta = anneal(hypers.priority_beta, 1.0, 1.0, progress)
    # Every row and every step, unless elastic_batches.
    part = shares.off_policy(config, hypers, state.updates, steps=config.gradient_steps)

    def gradient_step(carry, key):
        params, opt_state, target, done = carry
        sample = setup.replay.sample(state.buffer, key, beta)
        batch, weight = sequences.swap(sample.items), part.weight(sample.weight)
        batch = batch.replace(earning=part.alive(batch.earning, setup.ends))
        grads, (metrics, priority) = jax.grad(loss, has_aux=True)(params, target, batch, weight, hypers, setup)
        grads = learners.mean(grads)
        moved = {name: jax.vmap(optimise.update)(grads[name], opt_state[name]) for name in params}
        params = {name: optax.apply_updates(params[name], moved[name][0]) for name in params}
        opt_state = {name: moved[name][1] for name in params}
        move = jnp.where((done + 1) % config.target_interval == 0, hypers.tau, 0.0)
        target = optax.incremental_update(params, target, move)
        return (params, opt_state, target, done + 1), (metrics, sample.index, priority)

    carry = (state.params, state.opt_state, state.target, state.gradient_steps)
    new, (metrics, index, priority) = part.scan(gradient_step, carry, split(key, config.gradient_steps))
    env_steps = (state.updates + 1) * config.num_envs * config.rollout_length
    ready = (env_steps >= config.learning_starts) & (setup.replay.count(state.buffer) >= config.batch_size)
    params, opt_state, target, done = select(ready, new, carry)
    index, priority = part.learnt(index), part.learnt(priority)
    buffer = setup.replay.reprioritise(state.buffer, index, priority, part.ready(ready))
    state = state.replace(params=params, opt_state=opt_state, target=target, gradient_steps=done, buffer=buffer)
    return state, jax.tree.map(lambda x: jnp.where(ready, x, 0.0), part.mean(metrics))


def update(state: TrainState, hypers: Hypers, setup: Setup) -> tuple[TrainState, Metrics]:
    """One rollout into replay, then learning from replay."""
    key, learn_key, *rollout_keys = split(state.key, 5)
    state, items, transitions = collect(state, rollout_keys, hypers, setup)
    state = state.replace(buffer=setup.replay.add(state.buffer, items))
    state, metrics = learn(state, learn_key, hypers, setup)
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
    models.check("algo.q", config.q, env, recurrent=True)


def make(config: Config, env: Env) -> Algorithm:
    """QMIX, VDN or IQL on ``env`` as pure functions of one run."""
    check(config, env)
    env = AgentId(env) if config.agent_id else env
    length = config.chunk_length or config.rollout_length
    added = config.num_envs * config.rollout_length // length
    mixer = QMixer(config.mixer_width, config.hyper_width)
    setup = Setup(
        config=config,
        env=env,
        vec=EpisodeStats(AutoReset(env, config.num_envs, config.rollout_length)),
        network=Network(config.q, Inputs(env.obs_shape, env.position), env.action_space.size),
        mixing=Mixing(config.mixer, mixer, env.group_ids),
        replay=replay.make(config.replay, config.buffer_size, length, config.batch_size, added),
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
    shoal.main(make, Config, Hypers, recipe="qmix_rnn_mpe")
