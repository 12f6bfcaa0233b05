"""MAD4PG: MADDPG whose critic learns the distribution of returns, by rewards of several steps.

    min_Q  E[ -sum_z m_z log Q_i(z | x, a_1, ..., a_A) ],   m: r_i^(n) + gamma^n Z_i, projected on the atoms,
                                                           Z_i ~ Q_i'(. | x', mu_1'(o_1'), ..., mu_A'(o_A'))
    max_mu E[ sum_z z Q_i(z | x, a_1, ..., mu_i(o_i), ..., a_A) ],   the others' actions from replay

It is D4PG (Barth-Maron et al. 2018; the projection by Bellemare et al. 2017) for teams, as MADDPG is DDPG (Lowe et al.
2017): `diff baselines/maddpg/maddpg_ff_mpe.py baselines/maddpg/mad4pg_ff_mpe.py`. Returns must be between
``hypers.v_min`` and ``v_max``, which have to fit the task. Discrete actions are one-hot vectors by a straight-through
Gumbel-softmax. Differences from the papers: several environments at once, a truncated episode bootstraps from its true
last observation, and the critic gives the values of all agents for one row. An agent that dies keeps its return until
the episode ends: critics learn its rows, policies do not (``algo.death``).

    python baselines/maddpg/mad4pg_ff_mpe.py
    python baselines/maddpg/mad4pg_ff_mpe.py algo.n_step=5 hypers.v_min=-50 hypers.v_max=0
    python baselines/maddpg/mad4pg_ff_mpe.py env=mpe/simple_tag algo.sharing=group seeds=4 sweep.lr=[3e-4,1e-3]

Shapes: T time, E environments, A agents, O observation, S state, N actions, P policies, B batch, Z atoms, G gradient
steps.
"""

from __future__ import annotations

if __name__ == "__main__":
    import shoal.early  # Ctrl-C from the first moment

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

import shoal
from shoal.algorithm import Algorithm, Metrics, TrainState
from shoal.config.fields import hyper, setting
from shoal.envs.base import Continuous, TimeStep, select
from shoal.envs.wrappers import EpisodeState, VecEnv, VecTimeStep
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn.models import Inputs, Model, check
from shoal.nn.policies import Policies
from shoal.rl import distributions, normalisation, replay, shares
from shoal.rl.critics import ActionCritic, Observation
from shoal.rl.exploration import anneal
from shoal.rl.metrics import by_group, episode_metrics
from shoal.rl.optimiser import Optimiser, linear
from shoal.rl.returns import n_step_transitions, project


@dataclass(frozen=True)
class Config(shoal.algorithm.Config):
    """Sizes and switches: fixed when the program is compiled."""

    rollout_length: int = setting(25, low=1)  # T: steps of each environment between two updates
    agent_id: bool = setting(True)  # append the agent's one-hot number to its observation
    n_step: int = setting(3, low=1)  # rewards before the bootstrap
    gradient_steps: int = setting(4, low=1)  # G: gradient steps in an update
    batch_size: int = setting(256, low=1, divided="evenly")  # B: transitions in a gradient step
    buffer_size: int = setting(100_000, low=1, divided="up")  # environment steps that replay holds
    learning_starts: int = setting(10_000, low=0, divided="up")  # environment steps before the first gradient step
    replay: str = setting("uniform", choices=replay.KINDS)  # how transitions are drawn
    atoms: int = setting(51, low=2)  # Z: returns, evenly from v_min to v_max, that the critic tells apart
    elastic_batches: bool = setting(False)  # batch_share and learn_share count, which evolution may change
    actor: Model = setting(Model(activation="relu"))  # network of the policy
    q: Model = setting(Model(activation="relu"))  # network of the critic


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(1e-3, low=0.0)  # Adam's step size for the policy at the start
    critic_lr: float = hyper(1e-3, low=0.0)  # Adam's step size for the critic at the start
    lr_end: float = hyper(1.0, low=0.0)  # factor on lr and critic_lr at the end of their linear schedule
    gamma: float = hyper(0.95, low=0.0, high=1.0)  # discount
    tau: float = hyper(0.01, low=0.0, high=1.0)  # how far the targets move in a gradient step
    noise_start: float = hyper(1.0, low=0.0)  # exploration at the start: noise on actions in [-1, 1], or random choices
    noise_end: float = hyper(0.1, low=0.0)  # exploration after its linear fall
    noise_fraction: float = hyper(0.3, low=0.0, high=1.0)  # fraction of the training over which exploration falls
    temperature: float = hyper(1.0, low=0.01)  # of the Gumbel-softmax that discrete actions are
    action_reg: float = hyper(1e-3, low=0.0)  # weight of the policy's squared outputs, before tanh or softmax
    v_min: float = hyper(-20.0)  # the lowest return that the critic knows
    v_max: float = hyper(20.0)  # the highest return that the critic knows
    max_grad_norm: float = hyper(1.0, low=0.0)  # gradients of each policy and of each critic are clipped to this norm
    priority_beta: float = hyper(0.4, low=0.0, high=1.0)  # prioritised replay's correction at the start; 1 at the end
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: fraction of a batch's rows that count
    learn_share: float = hyper(1.0, low=0.0, high=1.0)  # elastic_batches: fraction of the gradient steps that are taken


class Transition(struct.PyTreeNode):
    """``n_step`` steps of every environment, as replay keeps them; fewer where an episode or the rollout ends."""

    seen: Observation  # [B, ...]
    earning: chex.Array  # [B, A] agents whose return goes on: critics learn it
    action: chex.Array  # [B, A, N] one-hot, or in [-1, 1]
    reward: chex.Array  # [B, A] of all the steps, discounted
    discount: chex.Array  # [B, A] of what follows, without the last step's gamma; 0 where the return has ended
    next: Observation  # [B, ...] the true successor of the last step, also of a truncated episode


class Learnt(struct.PyTreeNode):
    """What a run has learnt: equal on all learners, copied by evolution, kept from before where a run diverges."""

    params: dict[str, Any]  # of "actor" and "critic", [P, ...]
    target: dict[str, Any]  # parameters that follow "actor" and "critic" slowly
    opt_state: dict[str, optax.OptState]  # of "actor" and "critic"
    obs_stats: normalisation.Stats | None  # [O]
    noise_scale: chex.Array  # [] exploration of the last rollout
    updates: chex.Array  # [] int32: updates done


class Envs(struct.PyTreeNode):
    """Where the environments stand."""

    state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next


class Slot(struct.PyTreeNode):
    """Where a run stands."""

    envs: Envs
    buffer: Any  # transitions
    key: chex.PRNGKey


class MAD4PG(Algorithm):
    Config, Hypers, recipe = Config, Hypers, "mad4pg_ff_mpe"
    head, evolving = "vector", ("lr", "critic_lr")
    learning_rates: ClassVar = {"lr": ("actor",), "critic_lr": ("critic",)}

    def setup(self) -> None:
        """Everything static: made once, before anything is traced."""
        config, env, space = self.config, self.env, self.env.action_space
        for name, model in (("actor", config.actor), ("q", config.q)):
            check(f"algo.{name}", model, env, recurrent=False, normalised=config.normalise_obs)
        if config.n_step > config.rollout_length:
            raise UserError(f"algo.n_step={config.n_step}: must be at most algo.rollout_length={config.rollout_length}")
        inputs = Inputs(env.obs_shape, env.position)
        self.actor = Policies(config.actor, inputs, env.obs_size, space.size, self.policies.ids, scale=0.01)
        self.critic = ActionCritic("observations", config.q, env, self.policies.ids, size=config.atoms)
        self.critic.check("algo.q")
        self.vec = VecEnv(env, config.num_envs, config.rollout_length)
        sizes = (config.buffer_size, 1, config.batch_size, self.steps_per_rollout)
        self.replay = replay.make(config.replay, *sizes)
        self.optimiser = Optimiser(axis_name=self.axis_name)

    def init(self, key: chex.PRNGKey, hypers: Hypers) -> TrainState:
        key, env_key, actor_key, critic_key = split(key, 4)
        critic_key = split(critic_key, 1)[0]  # as MADDPG's first critic
        params = {"actor": self.actor.init(actor_key), "critic": self.critic.init(critic_key)}
        env_state, timestep = self.vec.reset(env_key)
        learnt = Learnt(
            params=params,
            target=params,
            opt_state=self.init_optimiser(params, hypers),
            obs_stats=normalisation.init(self.env.obs_size, self.config.normalise_obs),
            noise_scale=jnp.asarray(hypers.noise_start, jnp.float32),
            updates=jnp.int32(0),
        )
        envs = Envs(env_state, timestep.ahead)
        items = jax.eval_shape(lambda: self.rollout(learnt, envs, [key] * 4, hypers)[1])  # shapes alone
        return TrainState(learnt, Slot(envs, self.replay.init(items), key))

    def init_optimiser(self, params: Any, hypers: Hypers) -> dict[str, optax.OptState]:
        return {name: self.optimiser.init(part) for name, part in params.items()}

    def normalised(self, stats: normalisation.Stats | None, x: Observation) -> Observation:
        """What networks read of an observation."""
        return x.replace(obs=normalisation.apply(stats, x.obs))

    def outputs(self, params: Any, x: Observation) -> chex.Array:
        """What every agent's policy gives, ``[..., A, N]``: actions before tanh, or logits."""
        return self.actor(params["actor"], x.obs, x.alive)

    def returns(self, hypers: Hypers) -> chex.Array:
        """``[Z]``: the returns that the critic tells apart."""
        return jnp.linspace(hypers.v_min, hypers.v_max, self.config.atoms)

    def value(self, logits: chex.Array, hypers: Hypers) -> chex.Array:
        """The expected return ``[...]`` by what the critic gives, ``[..., Z]``."""
        return (jax.nn.softmax(logits) * self.returns(hypers)).sum(-1)

    def choose(self, outputs: chex.Array, mask: chex.Array, noise: chex.Numeric) -> chex.Array:
        """The actions ``[..., A, N]`` that policies' outputs stand for, with ``noise`` on the action or on logits."""
        if isinstance(self.env.action_space, Continuous):
            return jnp.where(mask, jnp.clip(jnp.tanh(outputs) + noise, -1.0, 1.0), 0.0)
        return distributions.one_hot(self.env.action_space, outputs + noise, mask)

    def explore(
        self, outputs: chex.Array, mask: chex.Array, noise: chex.Array, chance: chex.Array, scale: chex.Numeric
    ) -> chex.Array:
        """Actions of a training. Continuous ones get ``scale`` times noise, discrete ones are drawn by Gumbel noise.

        Discrete ones are any legal choice where the uniform ``chance [..., A, 1]`` is below ``scale``.
        """
        if isinstance(self.env.action_space, Continuous):
            return self.choose(outputs, mask, scale * noise)
        return self.choose(jnp.where(chance < scale, 0.0, outputs), mask, noise)

    def rollout(
        self, learnt: Learnt, envs: Envs, keys: Sequence[chex.PRNGKey], hypers: Hypers
    ) -> tuple[Envs, Transition, VecTimeStep]:
        """``T`` steps of every environment, as transitions ``[T * E, ...]`` and as time steps ``[T, E, ...]``.

        All random numbers are drawn before the loop, from four ``keys``.
        """
        space, shape = self.env.action_space, (self.config.rollout_length, self.config.num_envs)
        noise = distributions.noise(keys[0], space, shape)  # [T, E, A, N]
        chance = jax.random.uniform(keys[1], (noise[..., 0].size,)).reshape(*noise.shape[:-1], 1)
        pool, step_keys = self.vec.draw(keys[2:], envs.state)

        def step(envs: Envs, inputs: Any) -> tuple[Envs, tuple[Transition, VecTimeStep]]:
            noise_t, chance_t, keys_t = inputs
            seen = self.critic.observation(envs.timestep)
            outputs = self.outputs(learnt.params, self.normalised(learnt.obs_stats, seen))
            action = self.explore(outputs, seen.action_mask, noise_t, chance_t, learnt.noise_scale)
            env_state, after = self.vec.step(keys_t, envs.state, distributions.from_vector(space, action), pool)
            discount = 1.0 - (after.terminated[:, None] | ~self.earning(after.final_alive))
            successor = self.critic.successor(after)
            made = Transition(seen, self.earning(seen.alive), action, after.reward, discount, successor)
            return Envs(env_state, after.ahead), (made, after)

        envs, (transitions, timesteps) = jax.lax.scan(step, envs, (noise, chance, step_keys))
        return envs, self.over_n_steps(transitions, timesteps.ended, hypers), timesteps

    def over_n_steps(self, steps: Transition, ended: chex.Array, hypers: Hypers) -> Transition:
        """Transitions of one step, ``[T, E, ...]``, as those of ``n_step`` steps, ``[T * E, ...]``."""
        reward, discount, last = n_step_transitions(
            steps.reward, steps.discount, hypers.gamma, ended, self.config.n_step
        )
        successor = jax.tree.map(lambda x: x[last, jnp.arange(self.config.num_envs)], steps.next)
        items = steps.replace(reward=reward, discount=discount, next=successor)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), items)

    def targets(self, target: Any, batch: Transition, hypers: Hypers) -> chex.Array:
        """``[B, A, Z]``: how likely each of the returns should be. All target policies act."""
        action = self.choose(self.outputs(target, batch.next), batch.next.action_mask, 0.0)
        probs = jax.nn.softmax(self.critic(target["critic"], batch.next, action))  # [B, A, Z]
        return project(probs, self.returns(hypers), batch.reward, hypers.gamma * batch.discount)

    def critic_loss(
        self, critic: Any, target: Any, batch: Transition, weight: chex.Array, hypers: Hypers
    ) -> tuple[chex.Array, tuple[Metrics, chex.Array]]:
        """The critic's cross-entropy, a mean for each policy, their sum; and each transition's error ``[B]``."""
        y = jax.lax.stop_gradient(self.targets(target, batch, hypers))
        logits = self.critic(critic, batch.seen, batch.action)  # [B, A, Z]
        error = -(y * jax.nn.log_softmax(logits)).sum(-1)
        total = self.policies.mean(weight[:, None] * error, batch.earning).sum()
        value, expected = self.value(logits, hypers), (y * self.returns(hypers)).sum(-1)
        td_error = jnp.where(batch.earning, jnp.abs(value - expected), 0.0)  # the priority in replay
        terms = {"critic_loss": error, "q_value": value, "td_error": td_error}
        metrics = {"loss": total} | by_group(terms, batch.earning, self.env)
        return total, (metrics, td_error.sum(-1) / jnp.maximum(batch.earning.sum(-1), 1))

    def actor_loss(
        self, actor: Any, critic: Any, batch: Transition, noise: chex.Array, hypers: Hypers
    ) -> tuple[chex.Array, Metrics]:
        """Minus the expected return where an agent does as its policy says and the others as they did."""
        seen, space = batch.seen, self.env.action_space
        outputs = self.outputs({"actor": actor}, seen)
        if isinstance(space, Continuous):
            own = self.choose(outputs, seen.action_mask, 0.0)
        else:  # `noise [B, A, N]` is Gumbel's
            own = distributions.straight_through(space, outputs + noise, seen.action_mask, hypers.temperature)
        value = self.value(self.critic.of_own(critic, seen, batch.action, own), hypers)  # [B, A]
        size = jnp.where(seen.action_mask, jnp.square(outputs), 0.0).sum(-1) / jnp.maximum(seen.action_mask.sum(-1), 1)
        loss = hypers.action_reg * size - value
        total = self.policies.mean(loss, seen.alive).sum()
        return total, by_group({"actor_loss": loss, "action_size": size}, seen.alive, self.env)

    def descend(self, learnt: Learnt, name: str, grads: Any, hypers: Hypers) -> Learnt:
        """One step of the ``actor`` or the ``critic``."""
        lr = linear(hypers.lr if name == "actor" else hypers.critic_lr, hypers.lr_end, self.progress(learnt))
        moments, params = learnt.opt_state[name], learnt.params[name]
        params, moments = self.optimiser.step(grads, moments, params, lr, hypers.max_grad_norm)
        return learnt.replace(params=learnt.params | {name: params}, opt_state=learnt.opt_state | {name: moments})

    def progress(self, learnt: Learnt) -> chex.Array:
        """The fraction of the training that is done."""
        return learnt.updates / self.num_updates

    def learn_step(self, learnt: Learnt, inputs: Any, hypers: Hypers) -> tuple[Learnt, tuple[Metrics, chex.Array]]:
        """One step of the critic, then one of policy and targets."""
        batch, weight, noise = inputs
        gradient = jax.grad(self.critic_loss, has_aux=True)
        grads, (metrics, priority) = gradient(learnt.params["critic"], learnt.target, batch, weight, hypers)
        learnt = self.descend(learnt, "critic", grads, hypers)
        gradient = jax.grad(self.actor_loss, has_aux=True)
        grads, actor_metrics = gradient(learnt.params["actor"], learnt.params["critic"], batch, noise, hypers)
        learnt = self.descend(learnt, "actor", grads, hypers)
        learnt = learnt.replace(target=optax.incremental_update(learnt.params, learnt.target, hypers.tau))
        return learnt, (metrics | actor_metrics, priority)

    def learn(self, learnt: Learnt, buffer: Any, key: chex.PRNGKey, hypers: Hypers) -> tuple[Learnt, Any, Metrics]:
        """Gradient steps on transitions from replay, drawn all at once; nothing changes before ``learning_starts``."""
        config, space = self.config, self.env.action_space
        _, actor_key, *sample_keys = split(key, 2 + config.gradient_steps)  # the first is for MADDPG's target noise
        beta = anneal(hypers.priority_beta, 1.0, 1.0, self.progress(learnt))
        sample = jax.vmap(lambda k: self.replay.sample(buffer, k, beta))(jnp.stack(sample_keys))  # [G, B, ...]
        noise = distributions.noise(actor_key, space, (config.gradient_steps, config.batch_size))  # [G, B, A, N]

        part = shares.off_policy(config, hypers, learnt.updates, steps=config.gradient_steps)  # all, by default
        seen, after = (self.normalised(learnt.obs_stats, x) for x in (sample.items.seen, sample.items.next))
        seen = seen.replace(alive=part.alive(seen.alive, self.env.mortal))
        earning = part.alive(sample.items.earning, self.returns_end_early)
        items = sample.items.replace(seen=seen, earning=earning, next=after)
        inputs = (items, part.weight(sample.weight), noise)
        new, (metrics, priority) = part.scan(partial(self.learn_step, hypers=hypers), learnt, inputs)

        env_steps = (learnt.updates + 1) * self.steps_per_rollout
        ready = (env_steps >= config.learning_starts) & (self.replay.count(buffer) >= config.batch_size)
        index, priority = part.learnt(sample.index), part.learnt(priority)
        buffer = self.replay.reprioritise(buffer, index, priority, part.ready(ready))
        metrics = jax.tree.map(lambda x: jnp.where(ready, x, 0.0), part.mean(metrics))
        return select(ready, new, learnt), buffer, metrics

    def update(self, state: TrainState, hypers: Hypers) -> tuple[TrainState, Metrics]:
        """One rollout into replay, then learning from replay."""
        learnt, slot = state.learnt, state.slot
        key, learn_key, *rollout_keys = split(slot.key, 6)
        scale = anneal(hypers.noise_start, hypers.noise_end, hypers.noise_fraction, self.progress(learnt))
        learnt = learnt.replace(noise_scale=scale)
        envs, items, timesteps = self.rollout(learnt, slot.envs, rollout_keys, hypers)
        buffer = self.replay.add(slot.buffer, items)
        obs_stats = normalisation.update(learnt.obs_stats, items.seen.obs, items.seen.alive, self.axis_name)
        learnt, buffer, metrics = self.learn(learnt.replace(obs_stats=obs_stats), buffer, learn_key, hypers)
        learnt = learnt.replace(updates=learnt.updates + 1)
        metrics = metrics | {"noise": scale} | episode_metrics(timesteps, self.env)
        return TrainState(learnt, Slot(envs, buffer, key)), metrics

    def policy(self, learnt: Learnt) -> dict[str, Any]:
        return {"actor": learnt.params["actor"], "obs_stats": learnt.obs_stats, "noise_scale": learnt.noise_scale}

    def act(
        self, policy: Any, memory: Any, timestep: TimeStep, key: chex.PRNGKey, greedy: bool
    ) -> tuple[Any, chex.Array]:
        x, space = self.normalised(policy["obs_stats"], self.critic.observation(timestep)), self.env.action_space
        outputs = self.outputs(policy, x)
        if greedy:
            return memory, distributions.from_vector(space, self.choose(outputs, x.action_mask, 0.0))
        noise_key, chance_key = split(key, 2)
        noise = distributions.noise(noise_key, space, timestep.obs.shape[:1])
        chance = jax.random.uniform(chance_key, (*outputs.shape[:-1], 1))
        action = self.explore(outputs, x.action_mask, noise, chance, policy["noise_scale"])
        return memory, distributions.from_vector(space, action)


if __name__ == "__main__":
    shoal.main(MAD4PG)
