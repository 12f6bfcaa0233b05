"""JaxMARL's IPPO, re-created as the peer that ``tools/speed.py`` measures Shoal against. Not part of Shoal.

The code is our own; the method, the order of the work and the hyperparameters are those of JaxMARL's feed-forward
IPPO for MPE (Rutherford et al. 2024), and the environment is the jaxmarl package's own: a dict of agents is stacked
into one batch at every step and taken apart again, ``step`` computes a reset for every environment at every step,
value and log-probability are kept from the rollout, each action is sampled with a key of its own step, ``done``
(in MPE only ever a time limit) stops the bootstrap, and each epoch sorts T * E * A rows into a new order. Left out:
the callback that logs to wandb after each update.

    python tools/reference_ippo.py --runs 10

Shapes: T time, E environments, A agents, O observation, B = A * E rows of a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import chex
import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np
import optax
from flax import struct
from flax.training.train_state import TrainState
from jaxmarl.wrappers.baselines import MPELogWrapper


@dataclass(frozen=True)
class Config:
    """JaxMARL's recipe for MPE."""

    env: str = "MPE_simple_spread_v3"  # jaxmarl's name; its agents must have equal spaces
    total_steps: float = 1e6  # environment steps: where the learning rate has come down to zero
    num_envs: int = 16  # E
    rollout_length: int = 128  # T
    epochs: int = 4
    minibatches: int = 4
    width: int = 64  # units of both hidden layers
    lr: float = 2.5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5

    @property
    def num_updates(self) -> int:
        return int(self.total_steps // (self.num_envs * self.rollout_length))


class ActorCritic(nn.Module):
    """Two torsos of two tanh layers: ``obs [B, O]`` to a categorical and a value ``[B]``."""

    num_actions: int
    width: int

    @nn.compact
    def __call__(self, obs: chex.Array) -> tuple[distrax.Categorical, chex.Array]:
        def head(size: int, scale: float) -> chex.Array:
            x = obs
            for _ in range(2):
                x = nn.tanh(nn.Dense(self.width, kernel_init=nn.initializers.orthogonal(np.sqrt(2.0)))(x))
            return nn.Dense(size, kernel_init=nn.initializers.orthogonal(scale))(x)

        return distrax.Categorical(logits=head(self.num_actions, 0.01)), head(1, 1.0).squeeze(-1)


@struct.dataclass
class Transition:
    obs: chex.Array  # [B, O]
    action: chex.Array  # [B]
    log_prob: chex.Array  # [B]
    value: chex.Array  # [B]
    reward: chex.Array  # [B]
    done: chex.Array  # [B]
    info: dict[str, chex.Array]  # [B]


@struct.dataclass
class RunnerState:
    train: TrainState
    env_state: Any  # [E, ...]
    obs: dict[str, chex.Array]  # {agent: [E, O]}
    key: chex.PRNGKey


def batchify(by_agent: dict[str, chex.Array], agents: list[str]) -> chex.Array:
    """``{agent: [E, ...]}`` to ``[A * E, ...]``."""
    stacked = jnp.stack([by_agent[agent] for agent in agents])
    return stacked.reshape(-1, *stacked.shape[2:])


def unbatchify(rows: chex.Array, agents: list[str], num_envs: int) -> dict[str, chex.Array]:
    """``[A * E, ...]`` to ``{agent: [E, ...]}``."""
    apart = rows.reshape(len(agents), num_envs, *rows.shape[1:])
    return {agent: apart[index] for index, agent in enumerate(agents)}


def init(key: chex.PRNGKey, config: Config, env: MPELogWrapper) -> RunnerState:
    """Parameters, optimiser and the first states. Over runs by ``lax.map``: a vmapped QR can hang jax 0.10 on a CPU."""
    key, net_key, env_key = jax.random.split(key, 3)
    network = ActorCritic(env.action_space(env.agents[0]).n, config.width)
    params = network.init(net_key, jnp.zeros((1, *env.observation_space(env.agents[0]).shape)))
    steps = config.epochs * config.minibatches  # of the optimiser in one update

    def schedule(count: chex.Array) -> chex.Array:
        return config.lr * jnp.maximum(0.0, 1.0 - (count // steps) / config.num_updates)

    optimiser = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(schedule, eps=1e-5))
    obs, env_state = jax.vmap(env.reset)(jax.random.split(env_key, config.num_envs))
    return RunnerState(TrainState.create(apply_fn=network.apply, params=params, tx=optimiser), env_state, obs, key)


def env_step(state: RunnerState, _: None, config: Config, env: MPELogWrapper) -> tuple[RunnerState, Transition]:
    """Act, then step every environment."""
    key, act_key, step_key = jax.random.split(state.key, 3)
    obs = batchify(state.obs, env.agents)
    pi, value = state.train.apply_fn(state.train.params, obs)
    action = pi.sample(seed=act_key)
    log_prob = pi.log_prob(action)
    next_obs, env_state, reward, done, info = jax.vmap(env.step)(
        jax.random.split(step_key, config.num_envs), state.env_state, unbatchify(action, env.agents, config.num_envs)
    )
    transition = Transition(
        obs=obs,
        action=action,
        log_prob=log_prob,
        value=value,
        reward=batchify(reward, env.agents),
        done=jnp.tile(done["__all__"], env.num_agents),
        info=jax.tree.map(lambda x: x.T.reshape(-1), info),  # [E, A] to [B]
    )
    return state.replace(env_state=env_state, obs=next_obs, key=key), transition


def advantages(transitions: Transition, last_value: chex.Array, config: Config) -> chex.Array:
    """GAE, ``[T, B]``; ``done`` stops the bootstrap."""

    def backwards(carry, transition):
        advantage, next_value = carry
        going_on = 1.0 - transition.done
        delta = transition.reward + config.gamma * next_value * going_on - transition.value
        advantage = delta + config.gamma * config.gae_lambda * going_on * advantage
        return (advantage, transition.value), advantage

    carry = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(backwards, carry, transitions, reverse=True, unroll=16)[1]


def loss(params: Any, apply: Callable, minibatch: tuple, config: Config) -> tuple[chex.Array, dict[str, chex.Array]]:
    """:func:`surrogate` of a minibatch under ``params``."""
    return surrogate(*apply(params, minibatch[0].obs), *minibatch, config)


def surrogate(
    pi: distrax.Distribution, value: chex.Array, old: Any, advantage: chex.Array, target: chex.Array, config: Any
) -> tuple[chex.Array, dict[str, chex.Array]]:
    """PPO's clipped surrogate, its clipped value loss and its entropy bonus."""
    near = old.value + jnp.clip(value - old.value, -config.clip_eps, config.clip_eps)
    value_loss = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(near - target)).mean()

    log_ratio = pi.log_prob(old.action) - old.log_prob
    ratio = jnp.exp(log_ratio)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = jnp.clip(ratio, 1.0 - config.clip_eps, 1.0 + config.clip_eps)
    policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    entropy = pi.entropy().mean()
    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
    return total, {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": (ratio - 1.0 - log_ratio).mean(),
        "clip_fraction": (jnp.abs(ratio - 1.0) > config.clip_eps).mean(),
    }


def epoch(carry: tuple, _: None, batch: tuple, config: Config) -> tuple[tuple, dict[str, chex.Array]]:
    """One pass over all rows of a rollout in a new order."""
    train, key = carry
    key, shuffle_key = jax.random.split(key)
    size = batch[1].size
    order = jax.random.permutation(shuffle_key, size)

    def gradient_step(train, minibatch):
        grads, metrics = jax.grad(loss, has_aux=True)(train.params, train.apply_fn, minibatch, config)
        return train.apply_gradients(grads=grads), metrics

    rows = jax.tree.map(lambda x: jnp.take(x.reshape(size, *x.shape[2:]), order, axis=0), batch)
    minibatches = jax.tree.map(lambda x: x.reshape(config.minibatches, -1, *x.shape[1:]), rows)
    train, metrics = jax.lax.scan(gradient_step, train, minibatches)
    return (train, key), metrics


def update(
    state: RunnerState, _: None, config: Config, env: MPELogWrapper
) -> tuple[RunnerState, dict[str, chex.Array]]:
    """One rollout, then ``epochs`` passes over it."""
    step = partial(env_step, config=config, env=env)
    state, transitions = jax.lax.scan(step, state, length=config.rollout_length)
    _, last_value = state.train.apply_fn(state.train.params, batchify(state.obs, env.agents))
    advantage = advantages(transitions, last_value, config)
    info = transitions.info
    batch = (transitions.replace(info={}), advantage, advantage + transitions.value)
    passes = partial(epoch, batch=batch, config=config)
    (train, key), metrics = jax.lax.scan(passes, (state.train, state.key), length=config.epochs)
    ended = info["returned_episode"]
    # MPELogWrapper multiplies by the number of agents; what is reported here is an agent's own return.
    total = jnp.where(ended, info["returned_episode_returns"], 0.0).sum() / env.num_agents
    metrics = jax.tree.map(jnp.mean, metrics) | {"episode_return": total / ended.sum()}
    return state.replace(train=train, key=key), metrics


def make(config: Config) -> tuple[Callable, Callable]:
    """``init(key) -> state`` and ``update(state, None) -> state, metrics`` of one run."""
    env = MPELogWrapper(jaxmarl.make(config.env))
    if len({str(env.observation_space(agent).shape) + str(env.action_space(agent).n) for agent in env.agents}) > 1:
        raise ValueError(f"env={config.env}: agents differ in their spaces; the reference takes equal ones only")
    return partial(init, config=config, env=env), partial(update, config=config, env=env)


def make_train(config: Config) -> Callable:
    """The whole training as one function of a key."""
    first, one_update = make(config)
    return lambda key: jax.lax.scan(one_update, first(key), length=config.num_updates)


def main() -> None:
    """Train in a process of its own, with jax's default devices: as JaxMARL's users do."""
    parser = argparse.ArgumentParser(description="JaxMARL's IPPO, re-created: returns and speed of whole trainings.")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--total-steps", type=float, default=1e6)
    options = parser.parse_args()
    config = Config(total_steps=options.total_steps)
    first, one_update = make(config)
    keys = jax.random.split(jax.random.PRNGKey(0), options.runs)
    state = jax.jit(lambda keys: jax.lax.map(first, keys))(keys)
    program = jax.jit(jax.vmap(lambda state: jax.lax.scan(one_update, state, length=config.num_updates)))
    compiled = program.lower(state).compile()
    tick = time.perf_counter()
    _, metrics = jax.block_until_ready(compiled(state))
    seconds = time.perf_counter() - tick
    steps = options.runs * config.num_updates * config.num_envs * config.rollout_length
    last = metrics["episode_return"][:, -10:].mean()
    print(f"{options.runs} runs, {steps / seconds:,.0f} steps/s, return {last:.2f} (mean of the last ten updates)")


if __name__ == "__main__":
    main()
