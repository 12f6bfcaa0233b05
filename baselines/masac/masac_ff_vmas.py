"""MASAC and ISAC, feed-forward: soft actor-critic for teams (Haarnoja et al. 2018; discrete: Christodoulou 2019).

    min_theta  E[ (Q_k(s, a)_i - y_i)^2 ],   y_i = r_i + gamma V_i(s'),   k = 1, 2: twins, each on its own
    V_i(s) = E_{a ~ pi}[ min_k Q_k'(s, a)_i - alpha_i log pi(a_i | o_i) ],   Q' follows Q by tau
    max_phi  E_{a_i ~ pi}[ min_k Q_k(s, a_i, a_-i)_i - alpha_i log pi(a_i | o_i) ],   a_-i from replay
    min_alpha  E[ log alpha_i (H(pi_i) - H*_i) ],   one alpha for each team or independent agent

``algo.critic`` reads the state and everyone's actions (``central``: MASAC), or what the agent sees and does (``local``:
ISAC). A discrete critic reads the others' actions and gives a value for each of the agent's actions, over which the
expectations are exact; a continuous policy is a normal squashed by tanh, of which one sample is drawn. Differences
from the papers: all three losses are of the parameters before the step, and a truncated episode bootstraps from its
true last observation. An agent that dies keeps its return, without the entropy, until the episode ends: critics learn
its rows, policies do not (``algo.death``).

    python baselines/masac/masac_ff_vmas.py
    python baselines/masac/masac_ff_vmas.py algo.critic=local env=mpe/simple_speaker_listener
    python baselines/masac/masac_ff_vmas.py seeds=4 sweep.lr=[5e-4,1e-3] sweep.target_entropy=[0.5,1]

Shapes: T time, E environments, A agents, O observation, S state, N actions, P policies, G temperatures,
B transitions, Z values of one agent: of each of its actions, N, if discrete, else 1.
"""

from __future__ import annotations

if __name__ == "__main__":
    import shoal.early  # Ctrl-C from the first moment

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

import shoal
from shoal.algorithm import Algorithm, Metrics, TrainState
from shoal.config.fields import hyper, setting
from shoal.envs.base import Discrete, MultiDiscrete, TimeStep, select
from shoal.envs.wrappers import EpisodeState, VecEnv, VecTimeStep
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn.models import Inputs, Model, check
from shoal.nn.policies import Policies
from shoal.rl import distributions, learners, normalisation, replay, shares
from shoal.rl.critics import ActionCritic, Observation
from shoal.rl.exploration import anneal
from shoal.rl.groups import Groups
from shoal.rl.metrics import by_group, episode_metrics
from shoal.rl.optimiser import Optimiser, linear


@dataclass(frozen=True)
class Config(shoal.algorithm.Config):
    """Sizes and switches: fixed when the program is compiled."""

    rollout_length: int = setting(8, low=1)  # T: steps of each environment between two updates
    agent_id: bool = setting(True)  # append the agent's one-hot number to its observation
    gradient_steps: int = setting(2, low=1)  # gradient steps in an update
    batch_size: int = setting(256, low=1, divided="evenly")  # B: transitions in a gradient step
    buffer_size: int = setting(100_000, low=1, divided="up")  # environment steps that replay holds
    learning_starts: int = setting(5_000, low=0, divided="up")  # environment steps before the first gradient step
    replay: str = setting("uniform", choices=replay.KINDS)  # how transitions are drawn
    critic: str = setting("central", choices=("central", "local"))  # reads the state and all actions, or one agent's
    twin: bool = setting(True)  # two critics, of which the lower counts
    auto_alpha: bool = setting(True)  # learn the temperature
    elastic_batches: bool = setting(False)  # batch_share and learn_share count, which evolution may change
    actor: Model = setting(Model(activation="relu"))  # network of the policy
    q: Model = setting(Model(activation="relu"))  # network of the critics


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(1e-3, low=0.0)  # Adam's step size for the policy at the start
    critic_lr: float = hyper(1e-3, low=0.0)  # Adam's step size for the critics at the start
    alpha_lr: float = hyper(1e-3, low=0.0)  # Adam's step size for the temperature's logarithm at the start
    lr_end: float = hyper(0.0, low=0.0)  # factor on the three step sizes at the end of their linear schedule
    gamma: float = hyper(0.95, low=0.0, high=1.0)  # discount
    tau: float = hyper(0.01, low=0.0, high=1.0)  # how far the target moves in a gradient step
    alpha: float = hyper(0.1, low=0.0)  # temperature: at the start, or throughout unless auto_alpha
    target_entropy: float = hyper(0.5, low=0.0)  # auto_alpha: times minus the dimensions, or the log of legal actions
    max_grad_norm: float = hyper(10.0, low=0.0)  # gradients of each policy and of each critic are clipped to this norm
    priority_beta: float = hyper(0.4, low=0.0, high=1.0)  # prioritised replay's correction at the start; 1 at the end
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: fraction of a batch's rows that count
    learn_share: float = hyper(1.0, low=0.0, high=1.0)  # elastic_batches: fraction of the gradient steps that are taken


class Transition(struct.PyTreeNode):
    """One step of every environment, as replay keeps it."""

    seen: Observation  # [B, ...]
    earning: chex.Array  # [B, A] agents whose return goes on: critics learn it
    action: chex.Array  # [B, A, N] one-hot, or in [-1, 1]
    reward: chex.Array  # [B, A]
    terminated: chex.Array  # [B]
    next: Observation  # [B, ...] the true successor, also of a truncated episode


class Choice(NamedTuple):
    """A policy's action, and what the expectation over an agent's action is made of."""

    action: chex.Array  # [..., A, N] a sample, one-hot or in [-1, 1]
    prob: chex.Array  # [..., A, Z] the weights: of every action, or 1 for the sample
    log_prob: chex.Array  # [..., A, Z]

    def expect(self, values: chex.Array) -> chex.Array:
        """``[..., A]``: the mean of ``values [..., A, Z]``."""
        return (self.prob * values).sum(-1)


class Learnt(struct.PyTreeNode):
    """What a run has learnt: equal on all learners, copied by evolution, kept from before where a run diverges."""

    params: dict[str, Any]  # of "actor", [P, ...], the critics "q", [twins, P, ...], and "log_alpha", [G], if learnt
    target: Any  # [twins, P, ...] parameters that follow "q" slowly
    opt_state: dict[str, optax.OptState]  # of each part of params
    obs_stats: normalisation.Stats | None  # [O]
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


class MASAC(Algorithm):
    Config, Hypers, recipe = Config, Hypers, "masac_ff_vmas"
    head, evolving = "distribution", ("lr", "critic_lr", "alpha_lr")
    learning_rates: ClassVar = {"lr": ("actor",), "critic_lr": ("q",), "alpha_lr": ("log_alpha",)}

    def setup(self) -> None:
        """Everything static: made once, before anything is traced."""
        config, env, space = self.config, self.env, self.env.action_space
        if isinstance(space, MultiDiscrete):
            raise UserError(
                f"env={env.name}: its actions are several choices each (multi_discrete), and a value for each needs "
                "one; use discrete or continuous actions, or ippo or mappo"
            )
        for name, model in (("actor", config.actor), ("q", config.q)):
            check(f"algo.{name}", model, env, recurrent=False, normalised=config.normalise_obs)
        self.discrete = isinstance(space, Discrete)
        self.temperatures = self.policies if config.sharing == "independent" else Groups(env.group_ids, self.axis_name)
        inputs, outputs = Inputs(env.obs_shape, env.position), distributions.head_size(space)
        self.actor = Policies(config.actor, inputs, env.obs_size, outputs, self.policies.ids, scale=0.01)
        kind = "state" if config.critic == "central" else "local"
        self.critic = ActionCritic(kind, config.q, env, self.policies.ids, size=space.size if self.discrete else 1)
        self.critic.check("algo.q")
        self.vec = VecEnv(env, config.num_envs, config.rollout_length)
        sizes = (config.buffer_size, 1, config.batch_size, self.steps_per_rollout)
        self.replay = replay.make(config.replay, *sizes)
        self.optimisers = {"actor": Optimiser(), "q": Optimiser(axes=2), "log_alpha": Optimiser()}

    def init(self, key: chex.PRNGKey, hypers: Hypers) -> TrainState:
        key, env_key, actor_key, q_key = split(key, 4)
        twin_keys = split(q_key, 1 + self.config.twin)
        params = {"actor": self.actor.init(actor_key), "q": jax.vmap(self.critic.init)(twin_keys)}
        if self.config.auto_alpha:
            params["log_alpha"] = jnp.full(self.temperatures.count, jnp.log(jnp.maximum(hypers.alpha, 1e-8)))
        env_state, timestep = self.vec.reset(env_key)
        learnt = Learnt(
            params=params,
            target=params["q"],
            opt_state=self.init_optimiser(params, hypers),
            obs_stats=normalisation.init(self.env.obs_size, self.config.normalise_obs),
            updates=jnp.int32(0),
        )
        envs = Envs(env_state, timestep.ahead)
        items = jax.eval_shape(lambda: self.rollout(learnt, envs, [key] * 3)[1])  # shapes alone
        return TrainState(learnt, Slot(envs, self.replay.init(items), key))

    def init_optimiser(self, params: Any, hypers: Hypers) -> dict[str, optax.OptState]:
        return {name: self.optimisers[name].init(part) for name, part in params.items()}

    def normalised(self, stats: normalisation.Stats | None, x: Observation) -> Observation:
        """What networks read of an observation; a state stays as it is."""
        return x.replace(obs=normalisation.apply(stats, x.obs))

    def distribution(self, params: Any, x: Observation) -> Any:
        """Every agent's distribution over actions, ``[..., A]``."""
        outputs = self.actor(params["actor"], x.obs, x.alive)
        return distributions.policy(self.env.action_space, outputs, x.action_mask)

    def vector(self, raw: chex.Array, mask: chex.Array) -> chex.Array:
        """A policy's raw action as critics read it, ``[..., A, N]``."""
        if self.discrete:
            return (raw[..., None] == jnp.arange(self.env.action_space.size)).astype(jnp.float32)
        return jnp.where(mask, jnp.tanh(raw), 0.0)

    def choose(self, params: Any, x: Observation, noise: chex.Array) -> Choice:
        """What the policy does in ``x``, by ``noise [..., A, N]``."""
        pi = self.distribution(params, x)
        if self.discrete:
            action = self.vector(pi.sample_from(noise), x.action_mask)
            return Choice(action, jnp.exp(pi.logits), jnp.where(x.action_mask, pi.logits, 0.0))
        raw, log_prob = pi.sample_and_log_prob(noise)
        return Choice(self.vector(raw, x.action_mask), jnp.ones((1,)), log_prob[..., None])

    def values(self, q: Any, x: Observation, action: chex.Array, own: chex.Array | None = None) -> chex.Array:
        """``[twins, ..., A, Z]`` of the joint ``action``; of ``own`` beside the others' part of ``action``, if given.

        A discrete critic's row for an agent never holds its action: it gives a value for each of them.
        """
        own = jnp.zeros_like(action) if self.discrete else own
        twins = [jax.tree.map(lambda leaf, k=k: leaf[k], q) for k in range(1 + self.config.twin)]
        if own is None:
            return jnp.stack([self.critic(one, x, action) for one in twins])
        return jnp.stack([self.critic.of_own(one, x, action, own) for one in twins])

    def rollout(self, learnt: Learnt, envs: Envs, keys: Sequence[chex.PRNGKey]) -> tuple[Envs, Transition, VecTimeStep]:
        """``T`` steps of every environment, as transitions ``[T * E, ...]`` and as time steps ``[T, E, ...]``.

        All random numbers are drawn before the loop, from three ``keys``.
        """
        space, shape = self.env.action_space, (self.config.rollout_length, self.config.num_envs)
        noise = distributions.noise(keys[0], space, shape)  # [T, E, A, N]
        pool, step_keys = self.vec.draw(keys[1:], envs.state)

        def step(envs: Envs, inputs: Any) -> tuple[Envs, tuple[Transition, VecTimeStep]]:
            noise_t, keys_t = inputs
            seen = self.critic.observation(envs.timestep)
            raw = self.distribution(learnt.params, self.normalised(learnt.obs_stats, seen)).sample_from(noise_t)
            env_state, after = self.vec.step(keys_t, envs.state, distributions.to_env(space, raw), pool)
            action, successor = self.vector(raw, seen.action_mask), self.critic.successor(after)
            made = Transition(seen, self.earning(seen.alive), action, after.reward, after.terminated, successor)
            return Envs(env_state, after.ahead), (made, after)

        envs, (transitions, timesteps) = jax.lax.scan(step, envs, (noise, step_keys))
        return envs, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transitions), timesteps

    def temperature(self, params: Any, hypers: Hypers) -> chex.Array:
        """``[A]``: what an agent pays for certainty."""
        of = self.temperatures.ids
        return jnp.exp(params["log_alpha"])[of] if self.config.auto_alpha else jnp.full(len(of), hypers.alpha)

    def target_entropy(self, mask: chex.Array, hypers: Hypers) -> chex.Array:
        """``[..., A]`` of ``mask [..., A, N]``; densities are on ``[-1, 1]``, without the bounds' constant volume."""
        count = mask.sum(-1)
        return hypers.target_entropy * (jnp.log(jnp.maximum(count, 1)) if self.discrete else -1.0 * count)

    def targets(self, params: Any, target: Any, batch: Transition, noise: chex.Array, hypers: Hypers) -> chex.Array:
        """``[B, A]``: what values should be, by the ``target`` critics and the present policy."""
        choice = self.choose(params, batch.next, noise)
        q = self.values(target, batch.next, choice.action).min(axis=0)  # [B, A, Z]
        price = self.temperature(params, hypers)[:, None] * choice.log_prob
        next_value = choice.expect(q - jnp.where(batch.next.alive[..., None], price, 0.0))  # the dead choose nothing
        ended = batch.terminated[:, None] | ~self.earning(batch.next.alive)
        return batch.reward + hypers.gamma * jnp.where(ended, 0.0, next_value)

    def loss(
        self, params: Any, target: Any, batch: Transition, weight: chex.Array, noise: chex.Array, hypers: Hypers
    ) -> tuple[chex.Array, tuple[Metrics, chex.Array]]:
        """The critics', the policies' and the temperatures' losses, and each transition's error ``[B]``, its priority.

        ``noise [2, B, A, N]`` is for the actions in both steps, ``weight [B]`` for the critics' errors.
        """
        fixed, seen, alive = jax.lax.stop_gradient(params), batch.seen, batch.seen.alive
        q = self.values(params["q"], seen, batch.action)  # [twins, B, A, Z]
        q = (q * batch.action).sum(-1) if self.discrete else q.squeeze(-1)
        error = q - self.targets(fixed, target, batch, noise[1], hypers)  # [twins, B, A]
        q_loss = weight[:, None] * jnp.square(error).sum(axis=0)

        choice = self.choose(params, seen, noise[0])
        own_q = self.values(fixed["q"], seen, batch.action, choice.action).min(axis=0)  # [B, A, Z]
        alpha = self.temperature(fixed, hypers)  # [A]
        policy_loss = choice.expect(alpha[:, None] * choice.log_prob - own_q)

        entropy = -choice.expect(choice.log_prob)
        surplus = jax.lax.stop_gradient(entropy) - self.target_entropy(seen.action_mask, hypers)

        total = (self.policies.mean(q_loss, batch.earning) + self.policies.mean(policy_loss, alive)).sum()
        if self.config.auto_alpha:
            total += (params["log_alpha"] * self.temperatures.mean(surplus, alive)).sum()
        td_error = jnp.where(batch.earning, jnp.abs(error).mean(axis=0), 0.0)
        of_critics = {"q_loss": q_loss, "q_value": q.mean(axis=0), "td_error": td_error}
        of_policies = {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "entropy_surplus": surplus,
            "temperature": jnp.broadcast_to(alpha, alive.shape),
        }
        metrics = by_group(of_critics, batch.earning, self.env) | by_group(of_policies, alive, self.env)
        metrics |= {"loss": total}
        return total, (metrics, td_error.sum(-1) / jnp.maximum(batch.earning.sum(-1), 1))

    def descend(self, learnt: Learnt, grads: Any, hypers: Hypers) -> Learnt:
        """One step of all parameters, and of the target after it."""
        start = {"actor": hypers.lr, "q": hypers.critic_lr, "log_alpha": hypers.alpha_lr}
        params, opt_state = {}, {}
        for name, grad in learners.mean(grads, self.axis_name).items():
            lr = linear(start[name], hypers.lr_end, learnt.updates / self.num_updates)
            before = (learnt.opt_state[name], learnt.params[name])
            params[name], opt_state[name] = self.optimisers[name].step(grad, *before, lr, hypers.max_grad_norm)
        target = optax.incremental_update(params["q"], learnt.target, hypers.tau)
        return learnt.replace(params=params, opt_state=opt_state, target=target)

    def learn(self, learnt: Learnt, buffer: Any, key: chex.PRNGKey, hypers: Hypers) -> tuple[Learnt, Any, Metrics]:
        """Gradient steps on transitions from replay, drawn all at once; nothing changes before ``learning_starts``."""
        config, space = self.config, self.env.action_space
        noise_key, *sample_keys = split(key, 1 + config.gradient_steps)
        beta = anneal(hypers.priority_beta, 1.0, 1.0, learnt.updates / self.num_updates)
        noise = distributions.noise(noise_key, space, (config.gradient_steps, 2, config.batch_size))
        samples = jax.vmap(lambda k: self.replay.sample(buffer, k, beta))(jnp.stack(sample_keys))
        part = shares.off_policy(config, hypers, learnt.updates, steps=config.gradient_steps)  # all, by default

        def gradient_step(learnt: Learnt, inputs: Any) -> tuple[Learnt, tuple[Metrics, chex.Array]]:
            sample, noise_k = inputs
            seen, after = (self.normalised(learnt.obs_stats, x) for x in (sample.items.seen, sample.items.next))
            seen = seen.replace(alive=part.alive(seen.alive, self.env.mortal))
            earning = part.alive(sample.items.earning, self.returns_end_early)
            batch = sample.items.replace(seen=seen, earning=earning, next=after)
            gradient = jax.grad(self.loss, has_aux=True)
            grads, aux = gradient(learnt.params, learnt.target, batch, part.weight(sample.weight), noise_k, hypers)
            return self.descend(learnt, grads, hypers), aux

        new, (metrics, priority) = part.scan(gradient_step, learnt, (samples, noise))
        env_steps = (learnt.updates + 1) * self.steps_per_rollout
        ready = (env_steps >= config.learning_starts) & (self.replay.count(buffer) >= config.batch_size)
        index, priority = part.learnt(samples.index), part.learnt(priority)
        buffer = self.replay.reprioritise(buffer, index, priority, part.ready(ready))
        metrics = jax.tree.map(lambda x: jnp.where(ready, x, 0.0), part.mean(metrics))
        return select(ready, new, learnt), buffer, metrics

    def update(self, state: TrainState, hypers: Hypers) -> tuple[TrainState, Metrics]:
        """One rollout into replay, then learning from replay."""
        learnt, slot = state.learnt, state.slot
        key, learn_key, *rollout_keys = split(slot.key, 5)
        envs, items, timesteps = self.rollout(learnt, slot.envs, rollout_keys)
        buffer = self.replay.add(slot.buffer, items)
        obs_stats = normalisation.update(learnt.obs_stats, items.seen.obs, items.seen.alive, self.axis_name)
        learnt, buffer, metrics = self.learn(learnt.replace(obs_stats=obs_stats), buffer, learn_key, hypers)
        learnt = learnt.replace(updates=learnt.updates + 1)
        return TrainState(learnt, Slot(envs, buffer, key)), metrics | episode_metrics(timesteps, self.env)

    def policy(self, learnt: Learnt) -> dict[str, Any]:
        return {"actor": learnt.params["actor"], "obs_stats": learnt.obs_stats}

    def act(
        self, policy: Any, memory: Any, timestep: TimeStep, key: chex.PRNGKey, greedy: bool
    ) -> tuple[Any, chex.Array]:
        x, space = self.normalised(policy["obs_stats"], self.critic.observation(timestep)), self.env.action_space
        pi = self.distribution(policy, x)
        raw = pi.mode() if greedy else pi.sample_from(distributions.noise(key, space, timestep.obs.shape[:1]))
        return memory, distributions.to_env(space, raw)


if __name__ == "__main__":
    shoal.main(MASAC)
