"""IPPO, feed-forward: each agent learns by PPO from its own observation (de Witt et al. 2020, Yu et al. 2022).

    max_theta  E[ min(r A, clip(r, 1 - eps, 1 + eps) A) ] + ent_coef H(pi) - vf_coef 1/2 (V - R)^2,   r = pi / pi_old

Agents are an axis, not a batch: a minibatch is a set of environment steps with all their agents. Differences from
the papers: values are computed after the rollout in one pass, and a truncated episode bootstraps from its true last
observation. An agent that dies keeps its return until the episode ends: the critic values and learns its rows of
zeros, the policy does not (``algo.death``).

    python baselines/ippo/ippo_ff_mpe.py
    python baselines/ippo/ippo_ff_mpe.py env=mpe/simple_reference total_steps=5e6
    python baselines/ippo/ippo_ff_mpe.py seeds=64 sweep.lr=[1e-4,3e-4,1e-3] sweep.ent_coef=[0,0.01]

Shapes: T time, E environments, A agents, O observation, N actions (D sub-actions), P policies, B minibatch.
"""

from __future__ import annotations

if __name__ == "__main__":
    import shoal.early

from collections.abc import Sequence
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
from shoal.envs.base import Env, TimeStep
from shoal.envs.wrappers import AgentId, AutoReset, EpisodeState, EpisodeStats, VecTimeStep, View
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn import models, networks
from shoal.nn.models import Inputs, Model
from shoal.rl import distributions, learners, normalisation, shares
from shoal.rl.metrics import Table, by_group, episode_metrics
from shoal.rl.returns import DEATHS, earning, gae, mean_by, normalise
from shoal.rl.shuffle import permutations


@dataclass(frozen=True)
class Config:
    """Sizes and switches: fixed when the program is compiled."""

    total_steps: float = setting(1e6, low=1)  # environment steps of one run
    num_envs: int = setting(16, low=1)  # E, environments stepped side by side
    rollout_length: int = setting(128, low=1)  # T, steps of each between two updates
    epochs: int = setting(4, low=1)  # passes over a rollout
    minibatches: int = setting(4, low=1)  # gradient steps in a pass
    sharing: str = setting("shared", choices=networks.SHARING)  # which agents have parameters in common
    agent_id: bool = setting(False)  # append the agent's one-hot number to its observation
    actor: Model = setting(Model())  # the network of the policy
    critic: Model = setting(Model())  # and that of the value
    share_torso: bool = setting(False)  # the critic reads the actor's features: one torso, two heads
    continuous_policy: str = setting("tanh_normal", choices=distributions.KINDS)  # for continuous actions
    normalise_advantages: bool = setting(True)  # over the steps of a minibatch and the agents of a group
    normalise_obs: bool = setting(False)  # by running mean and standard deviation
    normalise_values: str = setting("none", choices=normalisation.VALUE_NORMS)  # how returns are scaled for the critic
    clip_value: bool = setting(True)  # clip the value's change as the policy's, in the critic's own units
    huber: bool = setting(False)  # a value loss that grows linearly beyond huber_delta
    death: str = setting("keeps_return", choices=DEATHS)  # an agent's return ends with the episode, or with its death
    elastic_batches: bool = setting(False)  # hypers.batch_share and epoch_share count, which evolution may change


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(2.5e-4, low=0.0)  # Adam's step size at the start
    lr_end: float = hyper(0.0, low=0.0)  # its share left at the end of the (linear) schedule; 1 for constant
    gamma: float = hyper(0.99, low=0.0, high=1.0)  # discount
    gae_lambda: float = hyper(0.95, low=0.0, high=1.0)  # bias and variance of the advantage
    clip_eps: float = hyper(0.2, low=0.0)  # how far a probability ratio may move
    ent_coef: float = hyper(0.01, low=0.0)  # weight of the entropy at the start
    ent_coef_end: float = hyper(1.0, low=0.0)  # its share left at the end; 1 for constant
    vf_coef: float = hyper(0.5, low=0.0)  # weight of the value loss
    max_grad_norm: float = hyper(0.5, low=0.0)  # gradient clipping, of each policy's parameters
    hysteresis: float = hyper(1.0, low=0.0)  # weight of bad surprises; below 1 forgives what others try
    huber_delta: float = hyper(10.0, low=0.0)  # where the Huber loss turns linear
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: of a minibatch's rows, how many count
    epoch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: of the epochs, how many are run


class Network(nn.Module):
    """A torso and a linear head: ``x [..., A, O]``, ``alive [..., A, 1]`` to features and ``[..., A, size]``."""

    model: Model
    inputs: Inputs
    size: int
    scale: float  # of the head's first weights

    @property
    def mixes(self) -> bool:
        return self.model.mixes

    @nn.compact
    def __call__(self, x: chex.Array, alive: chex.Array) -> tuple[chex.Array, chex.Array]:
        features = models.torso(self.model, self.inputs, x, alive)
        return features, networks.Dense(self.size, scale=self.scale, name="head")(features)


class Transition(struct.PyTreeNode):
    """One step of every environment, as the rollout sees it."""

    obs: chex.Array  # [E, A, O]
    action_mask: chex.Array  # [E, A, N]
    alive: chex.Array  # [E, A] agents that act; the policy learns nothing from the others
    outputs: chex.Array  # [E, A, H] what the policy head said
    action: chex.Array  # [E, A], [E, A, D] or [E, A, N], raw
    next: VecTimeStep  # [E, ...] what came of it


class Batch(struct.PyTreeNode):
    """What a minibatch holds of an environment step."""

    obs: chex.Array  # [B, A, O]
    action_mask: chex.Array  # [B, A, N]
    alive: chex.Array  # [B, A]
    earning: chex.Array  # [B, A] whose return goes on: the critic learns it
    action: chex.Array  # [B, A], [B, A, D] or [B, A, N]
    log_prob: chex.Array  # [B, A] under the policy that acted
    value: chex.Array  # [B, A]
    advantage: chex.Array  # [B, A]
    target: chex.Array  # [B, A]


class TrainState(struct.PyTreeNode):
    params: dict[str, Any]  # of "actor" and "critic", [P, ...]
    opt_state: optax.OptState  # [P, ...]
    obs_stats: normalisation.Stats | None  # [O]
    value_stats: normalisation.Stats | None  # [P]
    env_state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next
    updates: chex.Array  # [] int32, updates done
    key: chex.PRNGKey


Steps = TimeStep | Transition | Batch | View  # what networks look at


@dataclass(frozen=True)
class Setup:
    """The static things that every function below needs."""

    config: Config
    env: Env
    vec: EpisodeStats
    actor: Network
    critic: Network
    policy_of: np.ndarray  # [A]

    @property
    def ends(self) -> bool:
        """Whether a return may end before its episode."""
        return self.env.mortal and self.config.death == "ends_return"

    @property
    def num_updates(self) -> int:
        return max(1, int(np.ceil(self.config.total_steps / (self.config.num_envs * self.config.rollout_length))))

    def policy(self, params: Any, stats: normalisation.Stats | None, x: Steps) -> tuple[chex.Array, chex.Array]:
        """The actor's features ``[..., A, F]``, and what every agent's policy head says, ``[..., A, H]``."""
        rows = normalisation.apply(stats, x.obs)
        return networks.apply_policies(self.actor, params["actor"], self.policy_of, rows, x.alive[..., None])

    def value(self, params: Any, stats: normalisation.Stats | None, x: Steps, known: Any = None) -> chex.Array:
        """The critic's value for every agent, ``[..., A]``, in its own units.

        With a shared torso it reads the actor's features, computed here unless ``known``.
        """
        rows = normalisation.apply(stats, x.obs)
        if self.config.share_torso:
            rows = self.policy(params, stats, x)[0] if known is None else known
        _, value = networks.apply_policies(self.critic, params["critic"], self.policy_of, rows, x.alive[..., None])
        return value.squeeze(-1)

    def both(self, params: Any, stats: normalisation.Stats | None, x: Steps) -> tuple[chex.Array, chex.Array]:
        """What :meth:`policy` and :meth:`value` say, with a shared torso run once."""
        features, outputs = self.policy(params, stats, x)
        return outputs, self.value(params, stats, x, known=features)

    def distribution(self, outputs: chex.Array, mask: chex.Array):
        return distributions.policy(self.env.action_space, outputs, mask, self.config.continuous_policy)


def optimiser(hypers: Hypers, lr: chex.Numeric) -> optax.GradientTransformation:
    """Adam with clipped gradients for one policy, its parameters as one vector; rebuilt from traced numbers."""
    return optax.flatten(optax.chain(optax.clip_by_global_norm(hypers.max_grad_norm), optax.adam(lr, eps=1e-5)))


def init_optimiser(params: Any, hypers: Hypers) -> optax.OptState:
    """Adam's moments before the first step, ``[P, ...]``."""
    return jax.vmap(optimiser(hypers, hypers.lr).init)(params)


def init(key: chex.PRNGKey, hypers: Hypers, setup: Setup) -> TrainState:
    key, env_key, *net_keys = split(key, 4)
    policies, agents = int(setup.policy_of.max()) + 1, setup.env.num_agents
    rows = (jnp.zeros((agents, setup.env.obs_size)), jnp.ones((agents, 1), bool))
    actor = networks.init_policies(setup.actor, net_keys[0], policies, *rows)
    if setup.config.share_torso:
        features, _ = networks.apply_policies(setup.actor, actor, setup.policy_of, *rows)
        rows = (features, rows[1])
    params = {"actor": actor, "critic": networks.init_policies(setup.critic, net_keys[1], policies, *rows)}
    env_state, timestep = setup.vec.reset(env_key)
    return TrainState(
        params=params,
        opt_state=init_optimiser(params, hypers),
        obs_stats=normalisation.init(setup.env.obs_size, setup.config.normalise_obs),
        value_stats=normalisation.init_values(policies, setup.config.normalise_values),
        env_state=env_state,
        timestep=timestep.ahead,
        updates=jnp.int32(0),
        key=key,
    )


def rollout(state: TrainState, keys: Sequence[chex.PRNGKey], setup: Setup) -> tuple[TrainState, Transition]:
    """``T`` steps of every environment; all random numbers are drawn before the loop, from three ``keys``."""
    steps, num_envs = setup.config.rollout_length, setup.config.num_envs
    noise_key, pool_key, step_key = keys
    noise = distributions.noise(noise_key, setup.env.action_space, (steps, num_envs))  # [T, E, A, N]
    step_keys = split(step_key, (steps, num_envs))
    pool = setup.vec.fresh(pool_key, state.env_state)

    def step(carry, inputs):
        env_state, timestep = carry
        noise_t, keys_t = inputs
        _, outputs = setup.policy(state.params, state.obs_stats, timestep)
        action = setup.distribution(outputs, timestep.action_mask).sample_from(noise_t)
        env_action = distributions.to_env(setup.env.action_space, action, setup.config.continuous_policy)
        env_state, next_timestep = setup.vec.step(keys_t, env_state, env_action, pool)
        seen = (timestep.obs, timestep.action_mask, timestep.alive)
        return (env_state, next_timestep.ahead), Transition(*seen, outputs, action, next_timestep)

    carry, transitions = jax.lax.scan(step, (state.env_state, state.timestep), (noise, step_keys))
    env_state, timestep = carry
    return state.replace(env_state=env_state, timestep=timestep), transitions


def successor_values(state: TrainState, transitions: Transition, value: chex.Array, setup: Setup) -> chex.Array:
    """``[T, E, A]``: the value of each step's true successor; final observations are valued only where needed."""
    last_value = setup.value(state.params, state.obs_stats, state.timestep)
    next_value = jnp.concatenate([value[1:], last_value[None]])
    truncated = transitions.next.truncated  # [T, E]
    when = jax.vmap(partial(jnp.nonzero, size=setup.vec.max_truncations, fill_value=0), in_axes=1)(truncated)[0]
    at = (when, jnp.arange(setup.config.num_envs)[:, None])  # [E, K]
    final = jax.tree.map(lambda x: x[at], transitions.next.final)
    final_value = setup.value(state.params, state.obs_stats, final)  # [E, K, A]
    return next_value.at[at].set(jnp.where(truncated[at][..., None], final_value, next_value[at]))


def make_batch(state: TrainState, transitions: Transition, hypers: Hypers, setup: Setup) -> Batch:
    """Advantages and targets, ``[T * E, ...]``, in units of the reward."""
    in_reward_units = partial(normalisation.to_reward_units, state.value_stats, policy_of=setup.policy_of)
    value = setup.value(state.params, state.obs_stats, transitions)  # [T, E, A]
    next_value = in_reward_units(successor_values(state, transitions, value, setup))
    value = in_reward_units(value)
    step = transitions.next
    terminated = step.terminated[..., None] | ~earning(step.final_alive, setup.config.death)
    ended = jnp.broadcast_to(step.ended[..., None], terminated.shape) | terminated
    advantage = gae(step.reward, value, next_value, terminated, ended, hypers.gamma, hypers.gae_lambda)
    batch = Batch(
        obs=transitions.obs,
        action_mask=transitions.action_mask,
        alive=transitions.alive,
        earning=earning(transitions.alive, setup.config.death),
        action=transitions.action,
        log_prob=setup.distribution(transitions.outputs, transitions.action_mask).log_prob(transitions.action),
        value=value,
        advantage=advantage,
        target=advantage + value,
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def scale_values(state: TrainState, batch: Batch, setup: Setup) -> tuple[TrainState, Batch]:
    """Values and targets in the critic's own units, after these have followed the returns."""
    kind, critic = setup.config.normalise_values, state.params["critic"]
    returns = (batch.target, batch.earning, setup.policy_of)
    stats, critic = normalisation.follow_returns(kind, state.value_stats, critic, *returns)
    scale = partial(normalisation.from_reward_units, policy_of=setup.policy_of)
    # Clipping is centred on what the critic says of these steps now: only popart has moved its outputs.
    spoken = stats if kind == "popart" else state.value_stats
    batch = batch.replace(value=scale(spoken, batch.value), target=scale(stats, batch.target))
    return state.replace(params=state.params | {"critic": critic}, value_stats=stats), batch


def loss(
    params: Any,
    batch: Batch,
    obs_stats: normalisation.Stats | None,
    hypers: Hypers,
    ent_coef: chex.Numeric,
    setup: Setup,
) -> tuple[chex.Array, Metrics]:
    """PPO's clipped surrogate, its value loss and its entropy bonus: a mean for each policy, their sum."""
    config = setup.config
    outputs, value = setup.both(params, obs_stats, batch)
    pi = setup.distribution(outputs, batch.action_mask)
    log_ratio = pi.log_prob(batch.action) - batch.log_prob  # [B, A]
    ratio = jnp.exp(log_ratio)
    advantage = batch.advantage
    if config.normalise_advantages:
        advantage = normalise(advantage, batch.alive, setup.env.group_ids)
    advantage = jnp.where(advantage < 0.0, hypers.hysteresis * advantage, advantage)
    clipped = jnp.clip(ratio, 1.0 - hypers.clip_eps, 1.0 + hypers.clip_eps)
    policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage)

    distance = partial(optax.losses.huber_loss, delta=hypers.huber_delta) if config.huber else optax.losses.l2_loss
    value_loss = distance(value - batch.target)
    if config.clip_value:
        near = batch.value + jnp.clip(value - batch.value, -hypers.clip_eps, hypers.clip_eps)
        value_loss = jnp.maximum(value_loss, distance(near - batch.target))
    value_loss *= jnp.where(value > batch.target, hypers.hysteresis, 1.0)

    entropy = pi.entropy()
    total = mean_by(setup.policy_of, policy_loss - ent_coef * entropy, batch.alive).sum()
    total += hypers.vf_coef * mean_by(setup.policy_of, value_loss, batch.earning).sum()
    terms = {
        "policy_loss": policy_loss,
        "entropy": entropy,
        "approx_kl": ratio - 1.0 - log_ratio,
        "clip_fraction": jnp.abs(ratio - 1.0) > hypers.clip_eps,
    }
    metrics = by_group(terms, batch.alive, setup.env) | by_group({"value_loss": value_loss}, batch.earning, setup.env)
    return total, {"loss": total} | metrics


def learn(state: TrainState, batch: Batch, key: chex.PRNGKey, hypers: Hypers, setup: Setup):
    """``epochs x minibatches`` gradient steps on one rollout."""
    config = setup.config
    progress = jnp.minimum(state.updates / setup.num_updates, 1.0)
    lr = hypers.lr * (1.0 + progress * (hypers.lr_end - 1.0))
    ent_coef = hypers.ent_coef * (1.0 + progress * (hypers.ent_coef_end - 1.0))
    optimise = optimiser(hypers, lr)
    size = config.num_envs * config.rollout_length
    # Every row and every step, unless elastic_batches.
    part = shares.on_policy(config, hypers, rows=size // config.minibatches)

    def gradient_step(carry, index):
        params, opt_state = carry
        minibatch = jax.tree.map(lambda x: x[index], batch)
        masks = (part.alive(minibatch.alive, setup.env.mortal), part.alive(minibatch.earning, setup.ends))
        minibatch = minibatch.replace(alive=masks[0], earning=masks[1])
        gradient = jax.grad(loss, has_aux=True)
        grads, metrics = gradient(params, minibatch, state.obs_stats, hypers, ent_coef, setup)
        updates, opt_state = jax.vmap(optimise.update)(learners.mean(grads), opt_state)
        return (optax.apply_updates(params, updates), opt_state), Table.of(metrics)

    order = permutations(key, config.epochs, size).reshape(config.epochs * config.minibatches, -1)
    (params, opt_state), metrics = part.scan(gradient_step, (state.params, state.opt_state), order)
    return state.replace(params=params, opt_state=opt_state), part.mean(metrics)


def update(state: TrainState, hypers: Hypers, setup: Setup) -> tuple[TrainState, Metrics]:
    """One rollout, then learning from it."""
    key, shuffle_key, *rollout_keys = split(state.key, 5)
    state, transitions = rollout(state, rollout_keys, setup)
    state, batch = scale_values(state, make_batch(state, transitions, hypers, setup), setup)
    state, metrics = learn(state, batch, shuffle_key, hypers, setup)
    obs_stats = normalisation.update(state.obs_stats, transitions.obs, transitions.alive)
    state = state.replace(obs_stats=obs_stats, updates=state.updates + 1, key=key)
    return state, metrics | episode_metrics(transitions.next, setup.env)


def act(policy, carry, timestep, key: chex.PRNGKey, greedy: bool, setup: Setup) -> tuple[tuple, chex.Array]:
    """The environment's action for ``timestep [E, ...]``; the mode of the policy if ``greedy``."""
    _, outputs = setup.policy(policy, policy["obs_stats"], timestep)
    pi = setup.distribution(outputs, timestep.action_mask)
    space = setup.env.action_space
    action = pi.mode() if greedy else pi.sample_from(distributions.noise(key, space, timestep.obs.shape[:1]))
    return carry, distributions.to_env(space, action, setup.config.continuous_policy)


def check(config: Config, env: Env) -> None:
    """What no single field can know."""
    size = config.num_envs * config.rollout_length
    if size % config.minibatches:
        raise UserError(f"algo.minibatches={config.minibatches}: must divide num_envs * rollout_length = {size}")
    for name, model in (("actor", config.actor), ("critic", config.critic)):
        models.check(f"algo.{name}", model, env, recurrent=False, normalised=config.normalise_obs)


def make(config: Config, env: Env) -> Algorithm:
    """IPPO on ``env`` as pure functions of one run."""
    check(config, env)
    env = AgentId(env) if config.agent_id else env
    inputs = Inputs(env.obs_shape, env.position)
    critic = models.own_head(config.actor, config.critic, recurrent=False) if config.share_torso else config.critic
    setup = Setup(
        config=config,
        env=env,
        vec=EpisodeStats(AutoReset(env, config.num_envs, config.rollout_length)),
        actor=Network(config.actor, inputs, distributions.head_size(env.action_space), scale=0.01),
        critic=Network(critic, inputs, 1, scale=1.0),
        policy_of=networks.policy_of_agent(config.sharing, env.group_ids),
    )
    return Algorithm(
        init=partial(init, setup=setup),
        update=partial(update, setup=setup),
        policy=lambda state: {"actor": state.params["actor"], "obs_stats": state.obs_stats},
        acting=Acting(initial_carry=lambda num_envs: (), act=partial(act, setup=setup), head="distribution"),
        env=env,
        steps_per_update=config.num_envs * config.rollout_length,
        num_updates=setup.num_updates,
        init_optimiser=init_optimiser,
        evolving=("lr", "ent_coef"),
    )


def make_train(config: Config, env: Env):
    """The whole training as one pure function: ``jax.jit(jax.vmap(make_train(config, env)))(keys, hypers)``."""
    return train_function(make(config, env))


if __name__ == "__main__":
    shoal.main(make, Config, Hypers, recipe="ippo_ff_mpe")
