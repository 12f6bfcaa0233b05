"""JaxMARL's recurrent QMIX and VDN on MPE, re-created as a peer in speed and learning. Not part of Shoal.

The code is our own; the method, the order of the work and the hyperparameters are those of JaxMARL's ``qmix_rnn``, or
``vdn_rnn``, with the ``ql_rnn_mpe`` settings (Rutherford et al. 2024), and the environment and its batching wrapper are
the jaxmarl package's own: a dict of agents is stacked at every step, every rollout starts from a reset of all
environments, a flax GRU cell projects its input inside the scan over time, the network is vmapped over agents, and
random actions are drawn by ``choice`` agent by agent. Kept as well: the ``done`` that is stored is the one before the
step, so that the target's mask is one step late. Left out: tests during the training, and the callback that logs to
wandb.

    python tools/reference_qmix.py

Shapes: T time, E environments, A agents, B sequences, O observation, S world state, N actions, H units of the memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import chex
import flashbax
import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
import optax
from flax import struct
from flax.linen.initializers import orthogonal
from jaxmarl.wrappers.baselines import CTRolloutManager, MPELogWrapper


@dataclass(frozen=True)
class Config:
    """JaxMARL's ``ql_rnn_mpe``."""

    env: str = "MPE_simple_spread_v3"
    mixer: str = "qmix"  # or vdn
    total_steps: float = 1e7  # environment steps: where the learning rate has come down to zero
    num_envs: int = 8  # E
    rollout_length: int = 26  # T
    buffer_size: int = 5000  # sequences
    batch_size: int = 32  # B
    width: int = 64  # H
    mixer_width: int = 32
    hyper_width: int = 128
    mixer_scale: float = 0.001
    lr: float = 0.005
    gamma: float = 0.9
    eps_end: float = 0.05
    eps_fraction: float = 0.1
    max_grad_norm: float = 25.0
    target_interval: int = 200
    learning_starts: int = 10_000

    @property
    def num_updates(self) -> int:
        return int(self.total_steps // (self.num_envs * self.rollout_length))


class Memory(nn.Module):
    """A GRU cell over time, cleared where ``done`` was."""

    @partial(nn.scan, variable_broadcast="params", in_axes=0, out_axes=0, split_rngs={"params": False})
    @nn.compact
    def __call__(self, h: chex.Array, inputs: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, chex.Array]:
        x, done = inputs
        h = jnp.where(done[:, None], 0.0, h)
        return nn.GRUCell(x.shape[-1])(h, x)


class Agent(nn.Module):
    """``h [B, H]``, ``obs [T, B, O]``, ``done [T, B]`` to values ``[T, B, N]``."""

    actions: int
    width: int

    @nn.compact
    def __call__(self, h: chex.Array, obs: chex.Array, done: chex.Array) -> tuple[chex.Array, chex.Array]:
        x = nn.relu(nn.Dense(self.width, kernel_init=orthogonal(1.0))(obs))
        h, x = Memory()(h, (x, done))
        return h, nn.Dense(self.actions, kernel_init=orthogonal(1.0))(x)


class Mixer(nn.Module):
    """``q [A, T, B]`` and ``state [T, B, S]`` to ``[T, B]``."""

    config: Config

    @nn.compact
    def __call__(self, q: chex.Array, state: chex.Array) -> chex.Array:
        config, lead = self.config, state.shape[:2]
        dense = partial(nn.Dense, kernel_init=orthogonal(config.mixer_scale))

        def hyper(width: int, size: int) -> chex.Array:
            return dense(size)(nn.relu(dense(width)(state)))

        q = jnp.moveaxis(q, 0, -1)[..., None, :]  # [T, B, 1, A]
        w_1 = jnp.abs(hyper(config.hyper_width, config.mixer_width * q.shape[-1]))
        b_1 = dense(config.mixer_width)(state)[..., None, :]
        w_2 = jnp.abs(hyper(config.hyper_width, config.mixer_width))[..., None]
        b_2 = hyper(config.mixer_width, 1)[..., None]
        hidden = nn.elu(q @ w_1.reshape(*lead, q.shape[-1], config.mixer_width) + b_1)
        return (hidden @ w_2 + b_2)[..., 0, 0]


class Sum(nn.Module):
    """VDN's: ``q [A, T, B]`` to ``[T, B]``."""

    @nn.compact
    def __call__(self, q: chex.Array, state: chex.Array) -> chex.Array:
        return q.sum(axis=0)


@chex.dataclass(frozen=True)
class Step:
    obs: dict[str, chex.Array]
    actions: dict[str, chex.Array]
    rewards: dict[str, chex.Array]
    dones: dict[str, chex.Array]  # before the step
    legal: dict[str, chex.Array]


class State(struct.PyTreeNode):
    params: Any
    target: Any
    opt_state: Any
    buffer: Any
    updates: chex.Array
    key: chex.PRNGKey


def make(config: Config) -> tuple[Callable, Callable]:
    """``init(key) -> state`` and ``update(state, None) -> state, metrics`` of one run."""
    env = MPELogWrapper(jaxmarl.make(config.env))
    vec = CTRolloutManager(env, batch_size=config.num_envs)
    names, agents = env.agents, env.num_agents
    network = Agent(vec.max_action_space, config.width)
    mixer = Mixer(config) if config.mixer == "qmix" else Sum()
    buffer = flashbax.make_trajectory_buffer(
        max_length_time_axis=config.buffer_size // config.num_envs,
        min_length_time_axis=config.batch_size,
        sample_batch_size=config.batch_size,
        add_batch_size=config.num_envs,
        sample_sequence_length=1,
        period=1,
    )
    lr = optax.linear_schedule(config.lr, 1e-10, config.num_updates)
    optimiser = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.radam(lr))
    epsilon = optax.linear_schedule(1.0, config.eps_end, int(config.eps_fraction * config.num_updates))
    apply = jax.vmap(network.apply, in_axes=(None, 0, 0, 0))  # over agents

    def stacked(tree: dict[str, chex.Array]) -> chex.Array:
        return jnp.stack([tree[name] for name in names])

    def explore(key: chex.PRNGKey, q: chex.Array, legal: chex.Array, eps: chex.Array) -> chex.Array:
        choose_key, random_key = jax.random.split(key)
        greedy = jnp.argmax(q - (1 - legal) * 1e10, axis=-1)
        options = jnp.arange(legal.shape[-1])
        anything = jax.vmap(lambda k, p: jax.random.choice(k, options, p=p / p.sum()))(
            jax.random.split(random_key, legal.shape[0]), legal.astype(jnp.float32)
        )
        return jnp.where(jax.random.uniform(choose_key, greedy.shape) < eps, anything, greedy)

    def rollout(params: Any, eps: chex.Array, key: chex.PRNGKey) -> tuple[Step, Any]:
        reset_key, key = jax.random.split(key)
        obs, env_state = vec.batch_reset(reset_key)
        done = {name: jnp.zeros(config.num_envs, bool) for name in [*names, "__all__"]}

        def step(carry, _):
            h, obs, done, env_state, key = carry
            key, act_key, step_key = jax.random.split(key, 3)
            h, q = apply(params["agent"], h, stacked(obs)[:, None], stacked(done)[:, None])
            legal = vec.get_valid_actions(env_state.env_state)
            act_keys = jax.random.split(act_key, agents)
            action = jax.vmap(explore, in_axes=(0, 0, 0, None))(act_keys, q[:, 0], stacked(legal), eps)
            actions = {name: action[i] for i, name in enumerate(names)}
            new_obs, env_state, rewards, new_done, info = vec.batch_step(step_key, env_state, actions)
            seen = Step(obs=obs, actions=actions, rewards=rewards, dones=done, legal=legal)
            return (h, new_obs, new_done, env_state, key), (seen, info)

        h = jnp.zeros((agents, config.num_envs, config.width))
        _, (steps, info) = jax.lax.scan(step, (h, obs, done, env_state, key), length=config.rollout_length)
        return steps, info

    def init(key: chex.PRNGKey) -> State:
        agent_key, mixer_key, key = jax.random.split(key, 3)
        state_size = vec.batch_reset(key)[0]["__all__"].shape[-1]
        obs = jnp.zeros((1, 1, vec.obs_size))
        params = {
            "agent": network.init(agent_key, jnp.zeros((1, config.width)), obs, jnp.zeros((1, 1), bool)),
            "mixer": mixer.init(mixer_key, jnp.zeros((agents, 1, 1)), jnp.zeros((1, 1, state_size))),
        }
        steps = jax.eval_shape(lambda: rollout(params, jnp.float32(1.0), key)[0])
        empty = buffer.init(jax.tree.map(lambda x: jnp.zeros((x.shape[0], *x.shape[2:]), x.dtype), steps))
        return State(params, params, optimiser.init(params), empty, jnp.int32(0), key)

    def loss(params: Any, target: Any, batch: Step) -> chex.Array:
        obs, done, action, legal = (stacked(x) for x in (batch.obs, batch.dones, batch.actions, batch.legal))
        h = jnp.zeros((agents, config.batch_size, config.width))
        _, target_q = apply(target["agent"], h, obs, done)  # [A, T, B, N]
        _, q = apply(params["agent"], h, obs, done)
        chosen = jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]
        best = jnp.argmax(q - (1 - legal) * 1e10, axis=-1)
        next_q = jnp.take_along_axis(target_q, best[..., None], axis=-1)[..., 0]
        world = batch.obs["__all__"]
        after = mixer.apply(target["mixer"], next_q, world)[1:]
        y = batch.rewards["__all__"][:-1] + (1 - batch.dones["__all__"][:-1]) * config.gamma * after
        value = mixer.apply(params["mixer"], chosen, world)[:-1]
        return jnp.mean(jnp.square(value - jax.lax.stop_gradient(y)))

    def learn(state: State, key: chex.PRNGKey) -> State:
        batch = buffer.sample(state.buffer, key).experience
        batch = jax.tree.map(lambda x: jnp.swapaxes(x[:, 0], 0, 1), batch)
        grads = jax.grad(loss)(state.params, state.target, batch)
        updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
        return state.replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state)

    def update(state: State, _: Any) -> tuple[State, Any]:
        key, rollout_key, learn_key = jax.random.split(state.key, 3)
        steps, info = rollout(state.params, epsilon(state.updates), rollout_key)
        items = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1)[:, None], steps)
        state = state.replace(buffer=buffer.add(state.buffer, items), key=key)
        enough = (state.updates + 1) * config.num_envs * config.rollout_length > config.learning_starts
        ready = buffer.can_sample(state.buffer) & enough
        state = jax.lax.cond(ready, lambda s: learn(s, learn_key), lambda s: s, state)
        due = state.updates % config.target_interval == 0
        target = jax.lax.cond(due, lambda s: s.params, lambda s: s.target, state)
        # A rollout is one episode, told at its last step; the wrapper multiplies rewards by the number of agents.
        episode_return = info["returned_episode_returns"][-1].mean() / agents
        return state.replace(target=target, updates=state.updates + 1), episode_return

    return init, update


def main() -> None:
    """A short training, timed."""
    argparse.ArgumentParser(description="JaxMARL's QMIX, re-created: a short training, timed.").parse_args()
    init, update = make(Config())
    state = jax.jit(init)(jax.random.PRNGKey(0))
    chunk = jax.jit(lambda state: jax.lax.scan(update, state, length=500))
    for _ in range(4):
        begin = time.perf_counter()
        state, returns = jax.block_until_ready(chunk(state))
        speed = 500 * 8 * 26 / (time.perf_counter() - begin)
        print(f"{speed:.0f} steps/s, mean return per agent over 26 steps {float(returns[-50:].mean()):.2f}")


if __name__ == "__main__":
    main()
