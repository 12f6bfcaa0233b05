"""IPPO, recurrent: each agent learns by PPO from what it has seen so far (de Witt et al. 2020, Yu et al. 2022).

    max_theta  E[ min(r A, clip(r, 1 - eps, 1 + eps) A) ] + ent_coef H(pi) - vf_coef 1/2 (V - R)^2,   r = pi / pi_old

Agents are an axis, not a batch: a minibatch is a set of sequences with all their agents, each from the memory that the
agent had at its start. Differences from the papers: values are computed after the rollout in one pass, and a truncated
episode bootstraps from its true last observation. An agent that dies keeps its return until the episode ends: the
critic values and learns its rows of zeros, the policy does not (``algo.death``).

    python baselines/ippo/ippo_rnn_smax.py
    python baselines/ippo/ippo_rnn_smax.py env=smax/2s3z algo.chunk_length=16
    python baselines/ippo/ippo_rnn_smax.py seeds=4 sweep.lr=[1e-3,2e-3] algo.actor.network=lstm

Shapes: T time, E environments, A agents, O observation, N actions (D sub-actions), P policies, B sequences of L steps.
"""

from __future__ import annotations

if __name__ == "__main__":
    import shoal.early

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

import shoal
from shoal.algorithm import Algorithm, Metrics, TrainState
from shoal.config.fields import hyper, setting
from shoal.envs.base import TimeStep
from shoal.envs.wrappers import EpisodeState, VecEnv, VecTimeStep, View
from shoal.hashing import split
from shoal.nn.memory import before_chunks, in_sequences, one_step
from shoal.nn.models import Inputs, Model, check
from shoal.nn.policies import Policies
from shoal.rl import distributions, normalisation
from shoal.rl.metrics import by_group, episode_metrics
from shoal.rl.minibatches import over_minibatches
from shoal.rl.optimiser import Optimiser, linear
from shoal.rl.returns import gae, successor_values


@dataclass(frozen=True)
class Config(shoal.algorithm.Config):
    """Sizes and switches: fixed when the program is compiled."""

    epochs: int = setting(4, low=1)  # passes over a rollout
    minibatches: int = setting(4, low=1)  # gradient steps in a pass
    chunk_length: int = setting(0, low=0)  # L: steps that gradients flow through; 0 for whole rollouts
    actor: Model = setting(Model("gru"))  # network of the policy
    critic: Model = setting(Model("gru"))  # network of the value
    normalise_advantages: bool = setting(True)  # to mean 0 and deviation 1 over a minibatch, per team
    normalise_values: str = setting("none", choices=normalisation.VALUE_NORMS)  # how returns are scaled for the critic
    clip_value: bool = setting(True)  # limit how far a value moves by clip_eps, in the critic's units
    elastic_batches: bool = setting(False)  # batch_share and epoch_share count, which evolution may change


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(2.5e-4, low=0.0)  # Adam's step size at the start
    lr_end: float = hyper(0.0, low=0.0)  # factor on lr at the end of its linear schedule; 1 keeps it constant
    gamma: float = hyper(0.99, low=0.0, high=1.0)  # discount
    gae_lambda: float = hyper(0.95, low=0.0, high=1.0)  # 0: little variance, 1: little bias of the advantage
    clip_eps: float = hyper(0.2, low=0.0)  # how far a probability ratio may move from 1
    ent_coef: float = hyper(0.01, low=0.0)  # weight of the entropy bonus at the start
    ent_coef_end: float = hyper(1.0, low=0.0)  # factor on ent_coef at the end of its schedule; 1 keeps it constant
    vf_coef: float = hyper(0.5, low=0.0)  # weight of the value loss
    max_grad_norm: float = hyper(0.5, low=0.0)  # gradients of each policy are clipped to this norm
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: fraction of a minibatch's rows that count
    epoch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: fraction of the epochs that are run


class Transition(struct.PyTreeNode):
    """One step of every environment."""

    obs: chex.Array  # [E, A, O]
    action_mask: chex.Array  # [E, A, N]
    alive: chex.Array  # [E, A] agents that act; the policy learns nothing from the others
    is_first: chex.Array  # [E] an episode opens
    memory: Any  # [E, A, ...] of the actor, after the step
    outputs: chex.Array  # [E, A, H] of the policy's head
    action: chex.Array  # [E, A], [E, A, D] or [E, A, N], raw
    next: VecTimeStep  # [E, ...] what the environments returned


class Batch(struct.PyTreeNode):
    """What the loss reads: ``B`` sequences of ``L`` steps."""

    obs: chex.Array  # [L, B, A, O]
    action_mask: chex.Array  # [L, B, A, N]
    alive: chex.Array  # [L, B, A]
    earning: chex.Array  # [L, B, A] agents whose return goes on: the critic learns it
    is_first: chex.Array  # [L, B]
    memory: dict[str, Any]  # [1, B, A, ...] of "actor" and "critic", before the first step
    action: chex.Array  # [L, B, A], [L, B, A, D] or [L, B, A, N]
    log_prob: chex.Array  # [L, B, A] under the policy that acted
    value: chex.Array  # [L, B, A] before learning
    advantage: chex.Array  # [L, B, A]
    target: chex.Array  # [L, B, A]


class Learnt(struct.PyTreeNode):
    """What a run has learnt: equal on all learners, copied by evolution, kept from before where a run diverges."""

    params: dict[str, Any]  # of "actor" and "critic", [P, ...]
    opt_state: optax.OptState  # [P, ...]
    obs_stats: normalisation.Stats | None  # [O]
    value_stats: normalisation.Stats | None  # [P]
    updates: chex.Array  # [] int32: updates done


class Envs(struct.PyTreeNode):
    """Where the environments stand."""

    state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next
    memory: dict[str, Any]  # [E, A, ...] of "actor" and "critic"


class Slot(struct.PyTreeNode):
    """Where a run stands."""

    envs: Envs
    key: chex.PRNGKey


class IPPO(Algorithm):
    Config, Hypers, recipe = Config, Hypers, "ippo_rnn_smax"
    head, evolving = "distribution", ("lr", "ent_coef")

    def setup(self) -> None:
        """Everything static: made once, before anything is traced."""
        config, env, space = self.config, self.env, self.env.action_space
        for name, model in (("actor", config.actor), ("critic", config.critic)):
            check(f"algo.{name}", model, env, recurrent=True, normalised=config.normalise_obs)
        self.length = config.chunk_length or config.rollout_length  # L
        self.check_divides("chunk_length", "algo.rollout_length", config.rollout_length)
        self.check_divides("minibatches", "the number of sequences", self.steps_per_rollout // self.length)
        rows = (Inputs(env.obs_shape, env.position), env.obs_size)
        self.actor = Policies(config.actor, *rows, distributions.head_size(space), self.policies.ids, scale=0.01)
        self.critic = Policies(config.critic, *rows, 1, self.policies.ids)
        self.vec = VecEnv(env, config.num_envs, config.rollout_length)
        self.optimiser = Optimiser(axis_name=self.axis_name)

    def init(self, key: chex.PRNGKey, hypers: Hypers) -> TrainState:
        key, env_key, actor_key, critic_key = split(key, 4)
        params = {"actor": self.actor.init(actor_key), "critic": self.critic.init(critic_key)}
        env_state, timestep = self.vec.reset(env_key)
        learnt = Learnt(
            params=params,
            opt_state=self.init_optimiser(params, hypers),
            obs_stats=normalisation.init(self.env.obs_size, self.config.normalise_obs),
            value_stats=normalisation.init_values(self.policies.count, self.config.normalise_values),
            updates=jnp.int32(0),
        )
        return TrainState(learnt, Slot(Envs(env_state, timestep.ahead, self.memories(self.config.num_envs)), key))

    def init_optimiser(self, params: Any, hypers: Hypers) -> optax.OptState:
        return self.optimiser.init(params)

    def memories(self, num_envs: int) -> dict[str, Any]:
        """What both networks remember before anything has happened, ``[E, A, ...]``."""
        return {"actor": self.actor.initial_memory(num_envs), "critic": self.critic.initial_memory(num_envs)}

    def initial_memory(self, num_envs: int) -> Any:
        return self.memories(num_envs)["actor"]

    def outputs(self, params: Any, stats: normalisation.Stats | None, memory: Any, x: Any) -> tuple[Any, chex.Array]:
        """The actor's memory after every step, and what its head gives for every agent, ``[T, ..., A, H]``."""
        rows = normalisation.apply(stats, x.obs)
        return self.actor.over_time(params["actor"], rows, x.alive, x.is_first, memory)

    def distribution(self, outputs: chex.Array, mask: chex.Array) -> Any:
        """Every agent's distribution over actions, ``[..., A]``."""
        return distributions.policy(self.env.action_space, outputs, mask)

    def value(self, params: Any, stats: normalisation.Stats | None, memory: Any, x: Any) -> tuple[Any, chex.Array]:
        """The critic's memory after every step, and the value of every agent, ``[T, ..., A]``, in its units."""
        rows = normalisation.apply(stats, x.obs)
        memories, value = self.critic.over_time(params["critic"], rows, x.alive, x.is_first, memory)
        return memories, value.squeeze(-1)

    def rollout(self, learnt: Learnt, envs: Envs, keys: Sequence[chex.PRNGKey]) -> tuple[Envs, Transition]:
        """``T`` steps of every environment. All random numbers are drawn before the loop, from three ``keys``.

        The critic's memory stays as it was: values are computed after the rollout.
        """
        space, shape = self.env.action_space, (self.config.rollout_length, self.config.num_envs)
        noise = distributions.noise(keys[0], space, shape)  # [T, E, A, N]
        pool, step_keys = self.vec.draw(keys[1:], envs.state)

        policy = partial(self.outputs, learnt.params, learnt.obs_stats)

        def step(envs: Envs, inputs: Any) -> tuple[Envs, Transition]:
            noise_t, keys_t = inputs
            seen = envs.timestep
            memory, outputs = one_step(policy, envs.memory["actor"], seen)
            action = self.distribution(outputs, seen.action_mask).sample_from(noise_t)
            env_state, after = self.vec.step(keys_t, envs.state, distributions.to_env(space, action), pool)
            observed = (seen.obs, seen.action_mask, seen.alive, seen.is_first)
            envs = Envs(env_state, after.ahead, envs.memory | {"actor": memory})
            return envs, Transition(*observed, memory, outputs, action, after)

        return jax.lax.scan(step, envs, (noise, step_keys))

    def targets(
        self, learnt: Learnt, before: Envs, envs: Envs, transitions: Transition, hypers: Hypers
    ) -> tuple[Envs, Batch]:
        """Advantages and returns of a rollout in units of the reward, as sequences ``[L, S, ...]``.

        ``before`` and ``envs`` are from before and after the rollout; gives the latter with the critic's memory.
        """
        value_of = partial(self.value, learnt.params, learnt.obs_stats)
        in_reward_units = partial(normalisation.to_reward_units, learnt.value_stats, policy_of=self.policies.ids)
        step = transitions.next
        memories, value = value_of(before.memory["critic"], transitions)  # after every step, and [T, E, A]
        last = jax.tree.map(lambda x: x[-1], memories)
        next_value = successor_values(
            value,
            one_step(value_of, last, envs.timestep)[1],
            lambda at: one_step(value_of, *jax.tree.map(lambda x: x[at], (memories, step.final)))[1],
            step.truncated,
            self.vec.max_truncations,
        )
        value, next_value = in_reward_units(value), in_reward_units(next_value)
        terminated = step.terminated[..., None] | ~self.earning(step.final_alive)
        ended = jnp.broadcast_to(step.ended[..., None], terminated.shape) | terminated
        advantage = gae(step.reward, value, next_value, terminated, ended, hypers.gamma, hypers.gae_lambda)
        batch = Batch(
            obs=transitions.obs,
            action_mask=transitions.action_mask,
            alive=transitions.alive,
            earning=self.earning(transitions.alive),
            is_first=transitions.is_first,
            memory={},
            action=transitions.action,
            log_prob=self.distribution(transitions.outputs, transitions.action_mask).log_prob(transitions.action),
            value=value,
            advantage=advantage,
            target=advantage + value,
        )
        starts = before_chunks(before.memory, {"actor": transitions.memory, "critic": memories}, self.length)
        batch = in_sequences(batch, self.length).replace(memory=in_sequences(starts, 1))
        return envs.replace(memory=envs.memory | {"critic": last}), batch

    def loss(self, params: Any, batch: Batch, learnt: Learnt, hypers: Hypers) -> tuple[chex.Array, Metrics]:
        """PPO's clipped surrogate, its value loss and its entropy bonus: a mean for each policy, and their sum."""
        memory = jax.tree.map(lambda x: x[0], batch.memory)
        _, outputs = self.outputs(params, learnt.obs_stats, memory["actor"], batch)
        _, value = self.value(params, learnt.obs_stats, memory["critic"], batch)  # [L, B, A]
        pi = self.distribution(outputs, batch.action_mask)
        log_ratio = pi.log_prob(batch.action) - batch.log_prob  # [L, B, A]
        ratio = jnp.exp(log_ratio)
        advantage = batch.advantage
        if self.config.normalise_advantages:
            advantage = self.teams.normalise(advantage, batch.alive)
        clipped = jnp.clip(ratio, 1.0 - hypers.clip_eps, 1.0 + hypers.clip_eps)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage)

        value_loss = optax.losses.l2_loss(value, batch.target)
        if self.config.clip_value:
            near = batch.value + jnp.clip(value - batch.value, -hypers.clip_eps, hypers.clip_eps)
            value_loss = jnp.maximum(value_loss, optax.losses.l2_loss(near, batch.target))

        entropy = pi.entropy()
        total = self.policies.mean(policy_loss - hypers.ent_coef * entropy, batch.alive).sum()
        total += hypers.vf_coef * self.policies.mean(value_loss, batch.earning).sum()
        terms = {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "approx_kl": ratio - 1.0 - log_ratio,
            "clip_fraction": jnp.abs(ratio - 1.0) > hypers.clip_eps,
        }
        metrics = by_group(terms, batch.alive, self.env) | by_group({"value_loss": value_loss}, batch.earning, self.env)
        return total, {"loss": total} | metrics

    def learn(self, learnt: Learnt, batch: Batch, key: chex.PRNGKey, hypers: Hypers) -> tuple[Learnt, Metrics]:
        """``epochs x minibatches`` gradient steps on one rollout."""
        progress = learnt.updates / self.num_updates
        lr = linear(hypers.lr, hypers.lr_end, progress)
        hypers = hypers.replace(ent_coef=linear(hypers.ent_coef, hypers.ent_coef_end, progress))

        def gradient_step(carry: Any, minibatch: Batch) -> tuple[Any, Metrics]:
            params, opt_state = carry
            grads, metrics = jax.grad(self.loss, has_aux=True)(params, minibatch, learnt, hypers)
            return self.optimiser.step(grads, opt_state, params, lr, hypers.max_grad_norm), metrics

        carry, masks = (learnt.params, learnt.opt_state), {"alive": self.env.mortal, "earning": self.returns_end_early}
        carry, metrics = over_minibatches(gradient_step, carry, batch, key, self.config, hypers, masks=masks, axis=1)
        return learnt.replace(params=carry[0], opt_state=carry[1]), metrics

    def update(self, state: TrainState, hypers: Hypers) -> tuple[TrainState, Metrics]:
        """One rollout, then learning from it."""
        learnt, slot = state.learnt, state.slot
        key, shuffle_key, *rollout_keys = split(slot.key, 5)
        envs, transitions = self.rollout(learnt, slot.envs, rollout_keys)
        envs, batch = self.targets(learnt, slot.envs, envs, transitions, hypers)
        learnt, batch = self.scale_values(learnt, batch)
        learnt, metrics = self.learn(learnt, batch, shuffle_key, hypers)
        obs_stats = normalisation.update(learnt.obs_stats, transitions.obs, transitions.alive, self.axis_name)
        learnt = learnt.replace(obs_stats=obs_stats, updates=learnt.updates + 1)
        return TrainState(learnt, Slot(envs, key)), metrics | episode_metrics(transitions.next, self.env)

    def scale_values(self, learnt: Learnt, batch: Batch) -> tuple[Learnt, Batch]:
        """Values and targets in the critic's units, after these have followed the returns."""
        kind, critic = self.config.normalise_values, learnt.params["critic"]
        stats, critic, batch = normalisation.follow_returns(kind, learnt.value_stats, critic, batch, self.policies)
        return learnt.replace(params=learnt.params | {"critic": critic}, value_stats=stats), batch

    def policy(self, learnt: Learnt) -> dict[str, Any]:
        return {"actor": learnt.params["actor"], "obs_stats": learnt.obs_stats}

    def act(
        self, policy: Any, memory: Any, timestep: TimeStep, key: chex.PRNGKey, greedy: bool
    ) -> tuple[Any, chex.Array]:
        never = jnp.zeros(timestep.obs.shape[:1], bool)
        x = View(timestep.obs, timestep.state, timestep.alive, never)
        memory, outputs = one_step(partial(self.outputs, policy, policy["obs_stats"]), memory, x)
        pi = self.distribution(outputs, timestep.action_mask)
        space = self.env.action_space
        action = pi.mode() if greedy else pi.sample_from(distributions.noise(key, space, timestep.obs.shape[:1]))
        return memory, distributions.to_env(space, action)


if __name__ == "__main__":
    shoal.main(IPPO)
