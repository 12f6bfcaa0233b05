"""JaxMARL's recurrent MAPPO and IPPO on SMAX, re-created as a peer in speed and learning. Not part of Shoal.

The code is our own; the method, the order of the work and the hyperparameters are those of JaxMARL's
``mappo_rnn_smax`` and ``ippo_rnn_smax`` (Rutherford et al. 2024), and the environment is the jaxmarl package's own: a
dict of agents is stacked into rows at every step and taken apart again, ``step`` computes a reset for every environment
at every step, a flax GRU cell projects its input inside the scan over time, value and log-probability are kept from the
rollout, ``done`` (time limit or not) stops the bootstrap, and each epoch sorts the A * E sequences into a new order.
Kept as well: a dead agent's memory is cleared at every step, but a survivor's is carried into the next episode, because
jaxmarl's ``done`` of an agent says that it is dead. Left out: the callback that logs to wandb after each update.

    python tools/reference_rnn.py                  MAPPO: a critic of its own for the world state
    python tools/reference_rnn.py --ippo           IPPO: one GRU, two heads

Shapes: T time, E environments, A agents, B = A * E rows of a step (agents outermost), O observation, S world state,
N actions, H units of the memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import chex
import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from flax.training.train_state import TrainState
from jaxmarl.environments.smax import HeuristicEnemySMAX, map_name_to_scenario
from jaxmarl.wrappers.baselines import SMAXLogWrapper
from reference_ippo import advantages, surrogate


@dataclass(frozen=True)
class Config:
    """JaxMARL's recipe of MAPPO for 2s3z; see ``IPPO`` for the other."""

    env: str = "2s3z"  # jaxmarl's name of the map
    central: bool = True  # a critic with a network of its own, on the world state; False: two heads of one network
    total_steps: float = 1e7  # environment steps: where the learning rate has come down to zero
    num_envs: int = 128  # E
    rollout_length: int = 128  # T
    epochs: int = 4
    minibatches: int = 4
    width: int = 128  # units of the dense layers and of the GRU
    lr: float = 2e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_eps: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.25

    @property
    def num_updates(self) -> int:
        return int(self.total_steps // (self.num_envs * self.rollout_length))


MAPPO = Config()
IPPO = Config(central=False, lr=4e-3, clip_eps=0.05, ent_coef=0.01)


class Memory(nn.Module):
    """A GRU over time, ``[T, B, H]``; its memory is cleared where ``reset [T, B]``."""

    @partial(nn.scan, variable_broadcast="params", split_rngs={"params": False})
    @nn.compact
    def __call__(self, hidden: chex.Array, inputs: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, chex.Array]:
        x, reset = inputs
        return nn.GRUCell(x.shape[-1])(jnp.where(reset[:, None], 0.0, hidden), x)


class Network(nn.Module):
    """A dense layer, the memory, then a hidden layer and an output for each head: ``[T, B, O]`` to ``[T, B, size]``."""

    heads: tuple[tuple[int, float], ...]  # size and the scale of the first weights
    width: int

    @nn.compact
    def __call__(self, hidden: chex.Array, x: chex.Array, reset: chex.Array) -> tuple[chex.Array, list[chex.Array]]:
        def dense(size: int, scale: float) -> nn.Dense:
            return nn.Dense(size, kernel_init=nn.initializers.orthogonal(scale))

        x = nn.relu(dense(self.width, np.sqrt(2.0))(x))
        hidden, x = Memory()(hidden, (x, reset))
        return hidden, [dense(size, scale)(nn.relu(dense(self.width, 2.0)(x))) for size, scale in self.heads]


@struct.dataclass
class Transition:
    obs: chex.Array  # [B, O]
    world: chex.Array  # [B, S + A], or [B, 0] without a central critic
    mask: chex.Array  # [B, N] legal actions
    reset: chex.Array  # [B] bool: the memory is cleared before this observation
    action: chex.Array  # [B]
    log_prob: chex.Array  # [B]
    value: chex.Array  # [B]
    reward: chex.Array  # [B]
    done: chex.Array  # [B] the episode ended
    info: dict[str, chex.Array]  # [E, A]


@struct.dataclass
class RunnerState:
    trains: tuple[TrainState, ...]  # actor and critic, or the network with both heads
    hiddens: tuple[chex.Array, ...]  # [B, H] each
    env_state: Any  # [E, ...]
    obs: dict[str, chex.Array]  # {agent: [E, O], "world_state": [E, S]}
    reset: chex.Array  # [B]
    key: chex.PRNGKey


def batchify(by_agent: dict[str, chex.Array], agents: list[str]) -> chex.Array:
    """``{agent: [E, ...]}`` to ``[A * E, ...]``."""
    stacked = jnp.stack([by_agent[agent] for agent in agents])
    return stacked.reshape(-1, *stacked.shape[2:])


def unbatchify(rows: chex.Array, agents: list[str], num_envs: int) -> dict[str, chex.Array]:
    """``[A * E, ...]`` to ``{agent: [E, ...]}``."""
    apart = rows.reshape(len(agents), num_envs, *rows.shape[1:])
    return {agent: apart[index] for index, agent in enumerate(agents)}


def world_rows(obs: dict[str, chex.Array], config: Config, env: SMAXLogWrapper) -> chex.Array:
    """The world state and the agent's number for every row, ``[B, S + A]``; ``[B, 0]`` if nobody needs them."""
    world, agents = obs["world_state"], env.num_agents
    if not config.central:
        return jnp.zeros((agents * config.num_envs, 0))
    number = jnp.repeat(jnp.eye(agents), config.num_envs, axis=0)
    return jnp.concatenate([jnp.tile(world, (agents, 1)), number], axis=-1)


def forward(
    params: tuple, hiddens: tuple, rows: Transition, trains: tuple[TrainState, ...]
) -> tuple[tuple, distrax.Categorical, chex.Array]:
    """Memories, policies and values of ``[T, B]`` rows."""
    inputs = (rows.obs, rows.world)[: len(trains)]
    results = [
        train.apply_fn(p, hidden, x, rows.reset)
        for train, p, hidden, x in zip(trains, params, hiddens, inputs, strict=True)
    ]
    logits, value = (head for _, heads in results for head in heads)
    pi = distrax.Categorical(logits=logits - 1e10 * (1 - rows.mask))
    return tuple(hidden for hidden, _ in results), pi, value.squeeze(-1)


def params_of(trains: tuple[TrainState, ...]) -> tuple:
    """The parameters of each network."""
    return tuple(train.params for train in trains)


def init(key: chex.PRNGKey, config: Config, env: SMAXLogWrapper) -> RunnerState:
    """Parameters, optimisers and the first states. Over runs by ``lax.map``, as in ``reference_ippo``."""
    key, net_key, env_key = jax.random.split(key, 3)
    steps = config.epochs * config.minibatches  # of the optimiser in one update
    rows = env.num_agents * config.num_envs

    def schedule(count: chex.Array) -> chex.Array:
        return config.lr * (1.0 - (count // steps) / config.num_updates)

    obs, env_state = jax.vmap(env.reset)(jax.random.split(env_key, config.num_envs))
    sizes = [obs[env.agents[0]].shape[-1], world_rows(obs, config, env).shape[-1]]
    actor, critic = (env.action_space(env.agents[0]).n, 0.01), (1, 1.0)
    trains = []
    for heads, size in zip(((actor,), (critic,)) if config.central else ((actor, critic),), sizes, strict=False):
        network, (net_key, params_key) = Network(heads, config.width), jax.random.split(net_key)
        shapes = jnp.zeros((1, config.width)), jnp.zeros((1, 1, size)), jnp.zeros((1, 1), bool)
        optimiser = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(schedule, eps=1e-5))
        params = network.init(params_key, *shapes)
        trains.append(TrainState.create(apply_fn=network.apply, params=params, tx=optimiser))
    hiddens = tuple(jnp.zeros((rows, config.width)) for _ in trains)
    return RunnerState(tuple(trains), hiddens, env_state, obs, jnp.zeros(rows, bool), key)


def observe(state: RunnerState, config: Config, env: SMAXLogWrapper) -> Transition:
    """What the networks see now, ``[1, B, ...]``; the rest of the transition is still empty."""
    mask = batchify(jax.vmap(env.get_avail_actions)(state.env_state.env_state), env.agents)
    world = world_rows(state.obs, config, env)
    seen = jax.tree.map(lambda x: x[None], (batchify(state.obs, env.agents), world, mask, state.reset))
    return Transition(*seen, action=(), log_prob=(), value=(), reward=(), done=(), info={})


def env_step(state: RunnerState, _: None, config: Config, env: SMAXLogWrapper) -> tuple[RunnerState, Transition]:
    """Act, then step every environment."""
    key, act_key, step_key = jax.random.split(state.key, 3)
    seen = observe(state, config, env)
    hiddens, pi, value = forward(params_of(state.trains), state.hiddens, seen, state.trains)
    action = pi.sample(seed=act_key)  # [1, B]
    transition = seen.replace(action=action, log_prob=pi.log_prob(action), value=value)
    transition = jax.tree.map(lambda x: x[0], transition)
    obs, env_state, reward, done, info = jax.vmap(env.step)(
        jax.random.split(step_key, config.num_envs),
        state.env_state,
        unbatchify(transition.action, env.agents, config.num_envs),
    )
    transition = transition.replace(
        reward=batchify(reward, env.agents), done=jnp.tile(done["__all__"], env.num_agents), info=info
    )
    reset = batchify(done, env.agents)
    return state.replace(hiddens=hiddens, env_state=env_state, obs=obs, reset=reset, key=key), transition


def loss(
    params: tuple, trains: tuple[TrainState, ...], minibatch: tuple, config: Config
) -> tuple[chex.Array, dict[str, chex.Array]]:
    """PPO's clipped surrogate, its clipped value loss and its entropy bonus, over whole sequences ``[T, b]``."""
    hiddens, old, advantage, target = minibatch
    _, pi, value = forward(params, jax.tree.map(lambda x: x[0], hiddens), old, trains)
    return surrogate(pi, value, old, advantage, target, config)


def epoch(carry: tuple, _: None, batch: tuple, config: Config) -> tuple[tuple, dict[str, chex.Array]]:
    """One pass over all sequences of a rollout in a new order."""
    trains, key = carry
    key, shuffle_key = jax.random.split(key)
    order = jax.random.permutation(shuffle_key, batch[-1].shape[1])

    def gradient_step(trains, minibatch):
        grads, metrics = jax.grad(loss, has_aux=True)(params_of(trains), trains, minibatch, config)
        return tuple(t.apply_gradients(grads=g) for t, g in zip(trains, grads, strict=True)), metrics

    def apart(x: chex.Array) -> chex.Array:  # [T, B, ...] to [minibatches, T, b, ...]
        return x.reshape(x.shape[0], config.minibatches, x.shape[1] // config.minibatches, *x.shape[2:]).swapaxes(0, 1)

    minibatches = jax.tree.map(lambda x: apart(jnp.take(x, order, axis=1)), batch)
    trains, metrics = jax.lax.scan(gradient_step, trains, minibatches)
    return (trains, key), metrics


def update(
    state: RunnerState, _: None, config: Config, env: SMAXLogWrapper
) -> tuple[RunnerState, dict[str, chex.Array]]:
    """One rollout, then ``epochs`` passes over it."""
    hiddens = jax.tree.map(lambda x: x[None], state.hiddens)  # [1, B, H] at the rollout's start
    step = partial(env_step, config=config, env=env)
    state, transitions = jax.lax.scan(step, state, length=config.rollout_length)
    _, _, last_value = forward(params_of(state.trains), state.hiddens, observe(state, config, env), state.trains)
    advantage = advantages(transitions, last_value[0], config)
    info = transitions.info
    batch = (hiddens, transitions.replace(info={}), advantage, advantage + transitions.value)
    passes = partial(epoch, batch=batch, config=config)
    (trains, key), metrics = jax.lax.scan(passes, (state.trains, state.key), length=config.epochs)
    ended = info["returned_episode"][..., 0]  # [T, E]; a team shares its reward

    def mean_of_ended(name: str) -> chex.Array:
        return jnp.where(ended, info[name][..., 0], 0.0).sum() / ended.sum()

    metrics = jax.tree.map(jnp.mean, metrics) | {
        "episode_return": mean_of_ended("returned_episode_returns"),
        "win_rate": mean_of_ended("returned_won_episode"),
    }
    return state.replace(trains=trains, key=key), metrics


def make(config: Config) -> tuple[Callable, Callable]:
    """``init(key) -> state`` and ``update(state, None) -> state, metrics`` of one run."""
    env = SMAXLogWrapper(HeuristicEnemySMAX(scenario=map_name_to_scenario(config.env)))
    return partial(init, config=config, env=env), partial(update, config=config, env=env)


def make_train(config: Config) -> Callable:
    """The whole training as one function of a key."""
    first, one_update = make(config)
    return lambda key: jax.lax.scan(one_update, first(key), length=config.num_updates)


def main() -> None:
    """A few updates of one run in a process of its own, with jax's default devices: as JaxMARL's users do."""
    parser = argparse.ArgumentParser(description="JaxMARL's recurrent MAPPO and IPPO, re-created: returns and speed.")
    parser.add_argument("--ippo", action="store_true", help="IPPO instead of MAPPO")
    parser.add_argument("--env", default="2s3z", help="the map")
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--total-steps", type=float, default=1e7, help="where the learning rate comes down to zero")
    options = parser.parse_args()
    config = replace(IPPO if options.ippo else MAPPO, env=options.env, total_steps=options.total_steps)
    first, one_update = make(config)
    state = jax.jit(first)(jax.random.PRNGKey(0))
    tick = time.perf_counter()
    lowered = jax.jit(partial(one_update, _=None), donate_argnums=0).lower(state)
    lowered_after = time.perf_counter() - tick
    compiled = lowered.compile()
    print(f"lowered in {lowered_after:.1f} s, compiled in {time.perf_counter() - tick - lowered_after:.1f} s")
    steps = config.num_envs * config.rollout_length
    for number in range(1, options.updates + 1):
        tick = time.perf_counter()
        state, metrics = jax.block_until_ready(compiled(state))
        speed = steps / (time.perf_counter() - tick)
        result = f"return {metrics['episode_return']:.2f}, won {metrics['win_rate']:.1%}"
        print(f"{number * steps / 1e6:.3f}M steps: {speed:,.0f} steps/s, {result}")


if __name__ == "__main__":
    main()
