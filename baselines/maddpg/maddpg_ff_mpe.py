"""MADDPG, IDDPG, MATD3, ITD3 and MAD4PG: deterministic policies that climb a critic of actions (Lowe et al. 2017).

    min_Q  E[ (Q_i(x, a_1, ..., a_A) - y_i)^2 ],   y_i = r_i + gamma min_k Q_i,k'(x', mu_1'(o_1'), ..., mu_A'(o_A'))
    max_mu E[ Q_i(x, a_1, ..., mu_i(o_i), ..., a_A) ],   the others' actions from replay

``algo.critic=local`` reads the own observation and action alone: IDDPG. ``algo.twin``, ``algo.policy_delay`` and
``hypers.target_noise`` make it MATD3 (Ackermann et al. 2019; ITD3 if local), ``algo.distributional`` and
``algo.n_step`` MAD4PG (Barth-Maron et al. 2018). Discrete actions are one-hot vectors by a straight-through
Gumbel-softmax. Differences from the papers: several environments at once, a truncated episode bootstraps from its true
last observation, and a central critic says the values of all agents in one row. An agent that dies keeps its return
until the episode ends: critics learn its rows, policies do not (``algo.death``).

    python baselines/maddpg/maddpg_ff_mpe.py
    python baselines/maddpg/maddpg_ff_mpe.py algo.twin=true algo.policy_delay=2 hypers.target_noise=0.2
    python baselines/maddpg/maddpg_ff_mpe.py env=mpe/simple_tag algo.sharing=group seeds=4 sweep.lr=[3e-4,1e-3]

Shapes: T time, E environments, A agents, O observation, S state, N actions, P policies, B batch, C critics (2 if twin),
Z atoms (1 if not distributional), G gradient steps.
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
from shoal.envs.base import Continuous, Env, TimeStep, select
from shoal.envs.wrappers import AgentId, AutoReset, EpisodeState, EpisodeStats, VecTimeStep
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn import models, networks
from shoal.nn.models import Inputs, Model
from shoal.rl import distributions, learners, normalisation, replay, shares
from shoal.rl.critics import CENTRAL_INPUTS, ActionView
from shoal.rl.exploration import OU_THETA, anneal, ornstein_uhlenbeck
from shoal.rl.metrics import by_group, episode_metrics
from shoal.rl.returns import DEATHS, earning, mean_by, n_step_transitions, project


@dataclass(frozen=True)
class Config:
    """Sizes and switches: fixed when the program is compiled."""

    total_steps: float = setting(1e6, low=1)  # environment steps of one run
    num_envs: int = setting(16, low=1)  # E, environments stepped side by side
    rollout_length: int = setting(25, low=1)  # T, steps of each between two updates
    gradient_steps: int = setting(4, low=1)  # G, of the critic, in an update
    batch_size: int = setting(256, low=1)  # B, transitions in a gradient step
    buffer_size: int = setting(100_000, low=1)  # environment steps that replay holds
    elastic_batches: bool = setting(False)  # hypers.batch_share and learn_share count, which evolution may change
    learning_starts: int = setting(10_000, low=0)  # environment steps before the first gradient step
    replay: str = setting("uniform", choices=replay.KINDS)  # how transitions are drawn
    critic: str = setting("central", choices=("central", "local"))  # everyone's action and view, or the agent's own
    central_input: str = setting("observations", choices=CENTRAL_INPUTS)  # what a central critic sees beside actions
    twin: bool = setting(False)  # two critics, of which the target believes the lower
    policy_delay: int = setting(1, low=1)  # gradient steps of the critic for one of policy and target
    distributional: bool = setting(False)  # the critic says how likely each of the returns v_min .. v_max is
    atoms: int = setting(51, low=2)  # Z, how many these are
    n_step: int = setting(1, low=1)  # rewards before the bootstrap
    death: str = setting("keeps_return", choices=DEATHS)  # an agent's return ends with the episode, or with its death
    noise: str = setting("gaussian", choices=("gaussian", "ou"))  # on continuous actions: fresh, or with a memory
    sharing: str = setting("shared", choices=networks.SHARING)  # which agents have parameters in common
    agent_id: bool = setting(True)  # append the agent's one-hot number to its observation
    actor: Model = setting(Model(activation="relu"))  # the network of the policy
    q: Model = setting(Model(activation="relu"))  # and that of the critic
    normalise_obs: bool = setting(False)  # by running mean and standard deviation; a state stays as it is


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(1e-3, low=0.0)  # Adam's step size of the policy at the start
    critic_lr: float = hyper(1e-3, low=0.0)  # and of the critic
    lr_end: float = hyper(1.0, low=0.0)  # the share of both left at the end of the (linear) schedule; 1 for constant
    gamma: float = hyper(0.95, low=0.0, high=1.0)  # discount
    tau: float = hyper(0.01, low=0.0, high=1.0)  # how far the targets move
    noise_start: float = hyper(1.0, low=0.0)  # of actions in [-1, 1]; discrete: share of random ones, as below
    noise_end: float = hyper(0.1, low=0.0)  # and at the end of its fall
    noise_fraction: float = hyper(0.3, low=0.0, high=1.0)  # share of the training that it falls over
    target_noise: float = hyper(0.0, low=0.0)  # on the target policies' actions (discrete: times Gumbel's, on logits)
    target_noise_clip: float = hyper(0.5, low=0.0)  # which is held within this
    temperature: float = hyper(1.0, low=0.01)  # discrete: of the Gumbel-softmax
    action_reg: float = hyper(1e-3, low=0.0)  # weight of the policy's squared outputs, before tanh or softmax
    v_min: float = hyper(-20.0)  # distributional: the lowest return
    v_max: float = hyper(20.0)  # and the highest
    max_grad_norm: float = hyper(1.0, low=0.0)  # gradient clipping, of each policy's and critic's parameters
    priority_beta: float = hyper(0.4, low=0.0, high=1.0)  # prioritised replay's correction, at the start; 1 at the end
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: of a batch's rows, how many count
    learn_share: float = hyper(1.0, low=0.0, high=1.0)  # elastic_batches: of the gradient steps, how many are taken


class Network(nn.Module):
    """A torso and a linear head: ``x [..., A, O]``, ``alive [..., A, 1]`` to ``[..., A, size]``."""

    model: Model
    inputs: Inputs
    size: int
    scale: float  # of the head's first weights

    @property
    def mixes(self) -> bool:
        return self.model.mixes

    @nn.compact
    def __call__(self, x: chex.Array, alive: chex.Array) -> chex.Array:
        features = models.torso(self.model, self.inputs, x, alive)
        return networks.Dense(self.size, scale=self.scale, name="head")(features)


class Seen(struct.PyTreeNode):
    """What is known before acting."""

    obs: chex.Array  # [..., A, O]
    state: chex.Array | None  # [..., S] if a critic reads it
    action_mask: chex.Array  # [..., A, N]
    alive: chex.Array  # [..., A]


class Transition(struct.PyTreeNode):
    """One step of every environment, as the rollout sees it."""

    seen: Seen  # [E, ...]
    action: chex.Array  # [E, A, N] one-hot, or in [-1, 1]
    next: VecTimeStep  # [E, ...] what came of it


class Experience(struct.PyTreeNode):
    """What replay keeps: ``B`` times ``n_step`` steps."""

    seen: Seen  # [B, ...]
    earning: chex.Array  # [B, A] whose return goes on: critics learn it
    action: chex.Array  # [B, A, N]
    reward: chex.Array  # [B, A] of all the steps, discounted
    future: chex.Array  # [B, A] of what comes after, but for a gamma; 0 if nothing does
    next: Seen  # [B, ...] after the last of the steps


class Learner(struct.PyTreeNode):
    """What gradient steps change."""

    params: dict[str, Any]  # of "actor", [P, ...], and "critic", [C, P, ...]
    target: dict[str, Any]  # the same, following slowly
    opt_state: dict[str, optax.OptState]  # the same


class TrainState(Learner):
    obs_stats: normalisation.Stats | None  # [O]
    buffer: Any
    env_state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next
    noise: chex.Array  # [E, A, N] of the last actions, which the next remembers
    noise_scale: chex.Array  # [] of the last rollout
    updates: chex.Array  # [] int32, updates done
    key: chex.PRNGKey


@dataclass(frozen=True)
class Setup:
    """The static things that every function below needs."""

    config: Config
    env: Env
    vec: EpisodeStats
    view: ActionView
    actor: Network
    critic: Network
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
    def continuous(self) -> bool:
        return isinstance(self.env.action_space, Continuous)

    @property
    def theta(self) -> float:
        """How fast noise forgets."""
        return OU_THETA if self.config.noise == "ou" else 1.0

    def no_noise(self, num_envs: int) -> chex.Array:
        """What the noise of ``num_envs`` environments is before the first step."""
        return jnp.zeros((num_envs, self.env.num_agents, self.env.action_space.size))

    def seen(self, t: TimeStep) -> Seen:
        return Seen(t.obs, self._read(t.state), t.action_mask, t.alive)

    def final(self, t: VecTimeStep) -> Seen:
        return Seen(t.final_obs, self._read(t.final_state), t.final_action_mask, t.final_alive)

    def _read(self, state: chex.Array) -> chex.Array | None:
        return state if self.view.kind == "state" else None  # replay need not keep it

    def normalised(self, stats: normalisation.Stats | None, x: Seen) -> Seen:
        return x.replace(obs=normalisation.apply(stats, x.obs))

    def policy(self, params: Any, x: Seen) -> chex.Array:
        """What every agent's policy says, ``[..., A, N]``: before tanh, or logits."""
        return networks.apply_policies(self.actor, params["actor"], self.policy_of, x.obs, x.alive[..., None])

    def q(self, params: Any, x: Seen, action: chex.Array) -> chex.Array:
        """What every critic says of every agent's future after a joint ``action``, ``[C, ..., A, Z]``."""
        rows = self.view(x.obs, x.state, x.alive, action)
        say = jax.vmap(partial(self._say, policy_of_row=self.view.policy_of_row), in_axes=(0, None))
        return self.view.of_agents(say(params["critic"], rows))

    def own_q(self, params: Any, x: Seen, action: chex.Array, own: chex.Array) -> chex.Array:
        """The same of the first critic where each agent does its ``own`` and the others ``action``, ``[..., A, Z]``."""
        rows = self.view.own(x.obs, x.state, x.alive, action, own)
        first = jax.tree.map(lambda x: x[0], params["critic"])
        return self.view.of_own(self._say(first, rows, self.policy_of))

    def _say(self, critic: Any, rows: chex.Array, policy_of_row: np.ndarray) -> chex.Array:
        alive = jnp.ones((*rows.shape[:-1], 1), bool)
        return networks.apply_policies(self.critic, critic, policy_of_row, rows, alive)

    def returns(self, hypers: Hypers) -> chex.Array:
        """``[Z]``: the returns that a distributional critic tells apart."""
        return jnp.linspace(hypers.v_min, hypers.v_max, self.config.atoms)

    def value(self, said: chex.Array, hypers: Hypers) -> chex.Array:
        """The expected return ``[...]`` by what a critic said, ``[..., Z]``."""
        if not self.config.distributional:
            return said.squeeze(-1)
        return (jax.nn.softmax(said) * self.returns(hypers)).sum(-1)


def optimiser(hypers: Hypers, lr: chex.Numeric) -> optax.GradientTransformation:
    """Adam with clipped gradients for one policy or critic, its parameters as one vector; from traced numbers."""
    return optax.flatten(optax.chain(optax.clip_by_global_norm(hypers.max_grad_norm), optax.adam(lr, eps=1e-5)))


def by_policy(name: str, function: Any) -> Any:
    """A ``function`` of one policy's or critic's parameters, over the leading axes of those that ``name`` them."""
    return jax.vmap(function) if name == "actor" else jax.vmap(jax.vmap(function))


def init_optimiser(params: Any, hypers: Hypers) -> dict[str, optax.OptState]:
    """Adam's moments before the first step, with the leading axes of the parameters."""
    return {name: by_policy(name, optimiser(hypers, hypers.lr).init)(part) for name, part in params.items()}


def init(key: chex.PRNGKey, hypers: Hypers, setup: Setup) -> TrainState:
    key, env_key, actor_key, critic_key = split(key, 4)
    config, env, policies = setup.config, setup.env, int(setup.policy_of.max()) + 1
    rows = (jnp.zeros((env.num_agents, env.obs_size)), jnp.ones((env.num_agents, 1), bool))
    critic_rows = (jnp.zeros((1, setup.view.size)), jnp.ones((1, 1), bool))
    critic_keys = split(critic_key, 2 if config.twin else 1)  # [C]
    params = {
        "actor": networks.init_policies(setup.actor, actor_key, policies, *rows),
        "critic": jax.vmap(lambda k: networks.init_policies(setup.critic, k, policies, *critic_rows))(critic_keys),
    }
    env_state, timestep = setup.vec.reset(env_key)
    state = TrainState(
        params=params,
        target=params,
        opt_state=init_optimiser(params, hypers),
        obs_stats=normalisation.init(env.obs_size, config.normalise_obs),
        buffer=None,
        env_state=env_state,
        timestep=timestep.ahead,
        noise=setup.no_noise(config.num_envs),
        noise_scale=jnp.asarray(hypers.noise_start, jnp.float32),
        updates=jnp.int32(0),
        key=key,
    )
    items = jax.eval_shape(lambda: collect(state, [key] * 4, hypers, setup)[1])  # shapes alone
    return state.replace(buffer=setup.replay.init(items))


def choose(outputs: chex.Array, mask: chex.Array, noise: chex.Numeric, setup: Setup) -> chex.Array:
    """The actions ``[..., A, N]`` of what the policies say, with ``noise`` on top: on the action, or on logits."""
    if setup.continuous:
        return jnp.where(mask, jnp.clip(jnp.tanh(outputs) + noise, -1.0, 1.0), 0.0)
    return distributions.one_hot(setup.env.action_space, outputs + noise, mask)


def explore(
    outputs: chex.Array, mask: chex.Array, noise: chex.Array, chance: chex.Array, scale: chex.Numeric, setup: Setup
) -> chex.Array:
    """Actions of a training: ``scale`` times noise, or discrete ones drawn (with Gumbel noise), a share at random.

    ``chance [..., A, 1]`` is uniform and decides which are that share.
    """
    if setup.continuous:
        return choose(outputs, mask, scale * noise, setup)
    return choose(jnp.where(chance < scale, 0.0, outputs), mask, noise, setup)


def rollout(state: TrainState, keys: Sequence[chex.PRNGKey], setup: Setup) -> tuple[TrainState, Transition]:
    """``T`` steps of every environment; all random numbers are drawn before the loop, from four ``keys``."""
    steps, num_envs, agents = setup.config.rollout_length, setup.config.num_envs, setup.env.num_agents
    noise_key, chance_key, pool_key, step_key = keys
    noise = distributions.noise(noise_key, setup.env.action_space, (steps, num_envs))  # [T, E, A, N]
    chance = jax.random.uniform(chance_key, (steps * num_envs * agents,)).reshape(steps, num_envs, agents, 1)
    step_keys = split(step_key, (steps, num_envs))
    pool = setup.vec.fresh(pool_key, state.env_state)

    def step(carry, inputs):
        env_state, timestep, noise = carry
        noise_t, chance_t, keys_t = inputs
        seen = setup.seen(timestep)
        outputs = setup.policy(state.params, setup.normalised(state.obs_stats, seen))
        noise = ornstein_uhlenbeck(noise, timestep.is_first, noise_t, setup.theta)
        action = explore(outputs, seen.action_mask, noise, chance_t, state.noise_scale, setup)
        env_action = distributions.from_vector(setup.env.action_space, action)
        env_state, next_timestep = setup.vec.step(keys_t, env_state, env_action, pool)
        return (env_state, next_timestep.ahead, noise), Transition(seen, action, next_timestep)

    carry = (state.env_state, state.timestep, state.noise)
    (env_state, timestep, noise), transitions = jax.lax.scan(step, carry, (noise, chance, step_keys))
    return state.replace(env_state=env_state, timestep=timestep, noise=noise), transitions


def experience(transitions: Transition, hypers: Hypers, setup: Setup) -> Experience:
    """Transitions ``[T, E, ...]`` as replay keeps them, ``[T * E, ...]``."""
    step = transitions.next
    seen, death = transitions.seen, setup.config.death
    terminated = step.terminated[..., None] | ~earning(step.final_alive, death)
    reward, future, last = n_step_transitions(
        step.reward, 1.0 - terminated, hypers.gamma, step.ended, setup.config.n_step
    )
    successor = setup.final(step)
    if setup.config.n_step > 1:
        at = (last, jnp.arange(setup.config.num_envs))
        successor = jax.tree.map(lambda x: x[at], successor)
    items = Experience(seen, earning(seen.alive, death), transitions.action, reward, future, successor)
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), items)


def collect(state: TrainState, keys: Sequence[chex.PRNGKey], hypers: Hypers, setup: Setup):
    """A rollout with the present noise, also as items for replay."""
    progress = state.updates / setup.num_updates
    scale = anneal(hypers.noise_start, hypers.noise_end, hypers.noise_fraction, progress)
    state, transitions = rollout(state.replace(noise_scale=scale), keys, setup)
    return state, experience(transitions, hypers, setup), transitions


def targets(target: Any, batch: Experience, noise: chex.Array, hypers: Hypers, setup: Setup) -> chex.Array:
    """``[B, A, Z]``: what the critics should say; all target policies act, with clipped ``noise`` (``B, A, N``)."""
    noise = jnp.clip(hypers.target_noise * noise, -hypers.target_noise_clip, hypers.target_noise_clip)
    action = choose(setup.policy(target, batch.next), batch.next.action_mask, noise, setup)
    said = setup.q(target, batch.next, action)  # [C, B, A, Z]
    if setup.config.twin:
        value = setup.value(said, hypers)
        said = jnp.where((value[0] < value[1])[..., None], said[0], said[1])
    else:
        said = said.squeeze(0)
    discount = hypers.gamma * batch.future  # the present gamma: it may have changed since
    if setup.config.distributional:
        return project(jax.nn.softmax(said), setup.returns(hypers), batch.reward, discount)
    return batch.reward[..., None] + discount[..., None] * said


def critic_loss(
    critic: Any, target: Any, batch: Experience, weight: chex.Array, noise: chex.Array, hypers: Hypers, setup: Setup
) -> tuple[chex.Array, tuple[Metrics, chex.Array]]:
    """The critics' error, a mean for each policy, their sum; and each transition's surprise ``[B]`` as its priority."""
    y = jax.lax.stop_gradient(targets(target, batch, noise, hypers, setup))
    said = setup.q({"critic": critic}, batch.seen, batch.action)  # [C, B, A, Z]
    if setup.config.distributional:
        error = -(y * jax.nn.log_softmax(said)).sum(-1)  # [C, B, A]
        expected = (y * setup.returns(hypers)).sum(-1)
    else:
        error, expected = jnp.square(said - y).squeeze(-1), y.squeeze(-1)
    counts, value = batch.earning, setup.value(said, hypers)[0]
    total = mean_by(setup.policy_of, weight[:, None] * error.sum(0), counts).sum()
    surprise = jnp.where(counts, jnp.abs(value - expected), 0.0)
    terms = {"critic_loss": error.sum(0), "q_value": value, "td_error": surprise}
    metrics = {"loss": total} | by_group(terms, counts, setup.env)
    return total, (metrics, surprise.sum(-1) / jnp.maximum(counts.sum(-1), 1))


def actor_loss(
    actor: Any, critic: Any, batch: Experience, noise: chex.Array, hypers: Hypers, setup: Setup
) -> tuple[chex.Array, Metrics]:
    """Minus the first critic's value where an agent does as its policy says and the others as they did."""
    seen = batch.seen
    outputs = setup.policy({"actor": actor}, seen)
    if setup.continuous:
        own = choose(outputs, seen.action_mask, 0.0, setup)
    else:
        scores = outputs + noise  # [B, A, N] Gumbel's
        own = distributions.straight_through(setup.env.action_space, scores, seen.action_mask, hypers.temperature)
    value = setup.value(setup.own_q({"critic": critic}, seen, batch.action, own), hypers)  # [B, A]
    size = jnp.where(seen.action_mask, jnp.square(outputs), 0.0).sum(-1) / jnp.maximum(seen.action_mask.sum(-1), 1)
    loss = hypers.action_reg * size - value
    total = mean_by(setup.policy_of, loss, seen.alive).sum()
    return total, by_group({"actor_loss": loss, "action_size": size}, seen.alive, setup.env)


def descend(learner: Learner, name: str, grads: Any, progress: chex.Numeric, hypers: Hypers) -> Learner:
    """One step of the ``actor`` or the ``critic``."""
    lr = (hypers.lr if name == "actor" else hypers.critic_lr) * (1.0 + progress * (hypers.lr_end - 1.0))
    move, moments = by_policy(name, optimiser(hypers, lr).update)(learners.mean(grads), learner.opt_state[name])
    params = learner.params | {name: optax.apply_updates(learner.params[name], move)}
    return learner.replace(params=params, opt_state=learner.opt_state | {name: moments})


def learn_step(learner: Learner, inputs: Any, progress: chex.Numeric, hypers: Hypers, setup: Setup):
    """``policy_delay`` steps of the critic, then one of policy and targets on the last of their batches."""
    batches, noise = inputs

    def critic_step(learner, batch):
        gradient = jax.grad(critic_loss, has_aux=True)
        grads, aux = gradient(learner.params["critic"], learner.target, *batch, hypers, setup)
        return descend(learner, "critic", grads, progress, hypers), aux

    learner, (metrics, priority) = jax.lax.scan(critic_step, learner, batches)
    items = jax.tree.map(lambda x: x[-1], batches[0])
    gradient = jax.grad(actor_loss, has_aux=True)
    grads, actor_metrics = gradient(learner.params["actor"], learner.params["critic"], items, noise, hypers, setup)
    learner = descend(learner, "actor", grads, progress, hypers)
    learner = learner.replace(target=optax.incremental_update(learner.params, learner.target, hypers.tau))
    return learner, (metrics | actor_metrics, priority)


def learn(state: TrainState, key: chex.PRNGKey, hypers: Hypers, setup: Setup) -> tuple[TrainState, Metrics]:
    """Gradient steps on transitions from replay, drawn all at once; nothing changes before ``learning_starts``."""
    config, space = setup.config, setup.env.action_space
    rounds = config.gradient_steps // config.policy_delay
    target_key, actor_key, *sample_keys = split(key, 2 + config.gradient_steps)
    progress = jnp.minimum(state.updates / setup.num_updates, 1.0)
    beta = anneal(hypers.priority_beta, 1.0, 1.0, progress)
    sample = partial(setup.replay.sample, state.buffer, beta=beta)
    samples = jax.vmap(sample)(jnp.stack(sample_keys))  # [G, B, ...]
    noise = distributions.noise(target_key, space, (config.gradient_steps, config.batch_size))
    actor_noise = distributions.noise(actor_key, space, (rounds, config.batch_size))
    seen, after = (setup.normalised(state.obs_stats, x) for x in (samples.items.seen, samples.items.next))
    # Every row and every step, unless elastic_batches.
    part = shares.off_policy(config, hypers, state.updates, steps=rounds)
    seen = seen.replace(alive=part.alive(seen.alive, setup.env.mortal))
    counts = part.alive(samples.items.earning, setup.ends)
    items = samples.items.replace(seen=seen, earning=counts, next=after)
    batches = (items, part.weight(samples.weight), noise)
    batches = jax.tree.map(lambda x: x.reshape(rounds, config.policy_delay, *x.shape[1:]), batches)
    old = Learner(state.params, state.target, state.opt_state)
    step = partial(learn_step, progress=progress, hypers=hypers, setup=setup)
    new, (metrics, priority) = part.scan(step, old, (batches, actor_noise))

    env_steps = (state.updates + 1) * config.num_envs * config.rollout_length
    ready = (env_steps >= config.learning_starts) & (setup.replay.count(state.buffer) >= config.batch_size)
    index = part.learnt(samples.index.reshape(priority.shape))
    buffer = setup.replay.reprioritise(state.buffer, index, part.learnt(priority), part.ready(ready))
    state = state.replace(buffer=buffer, **vars(select(ready, new, old)))
    return state, jax.tree.map(lambda x: jnp.where(ready, x, 0.0), part.mean(metrics))


def update(state: TrainState, hypers: Hypers, setup: Setup) -> tuple[TrainState, Metrics]:
    """One rollout into replay, then learning from replay."""
    key, learn_key, *rollout_keys = split(state.key, 6)
    state, items, transitions = collect(state, rollout_keys, hypers, setup)
    state = state.replace(buffer=setup.replay.add(state.buffer, items))
    obs_stats = normalisation.update(state.obs_stats, transitions.seen.obs, transitions.seen.alive)
    state = state.replace(obs_stats=obs_stats)
    state, metrics = learn(state, learn_key, hypers, setup)
    state = state.replace(updates=state.updates + 1, key=key)
    return state, metrics | {"noise": state.noise_scale} | episode_metrics(transitions.next, setup.env)


def act(policy, carry, timestep, key: chex.PRNGKey, greedy: bool, setup: Setup) -> tuple[Any, chex.Array]:
    """The environment's action for ``timestep [E, ...]``: noisy as in training unless ``greedy``."""
    x = setup.normalised(policy["obs_stats"], setup.seen(timestep))
    outputs, space = setup.policy(policy, x), setup.env.action_space
    if greedy:
        return carry, distributions.from_vector(space, choose(outputs, x.action_mask, 0.0, setup))
    noise_key, chance_key = split(key, 2)
    first = jnp.zeros(timestep.obs.shape[:1], bool)  # an evaluation plays one episode, from a fresh carry
    noise = distributions.noise(noise_key, space, timestep.obs.shape[:1])
    carry = ornstein_uhlenbeck(carry, first, noise, setup.theta)
    chance = jax.random.uniform(chance_key, (*outputs.shape[:-1], 1))
    action = explore(outputs, x.action_mask, carry, chance, policy["noise_scale"], setup)
    return carry, distributions.from_vector(space, action)


def check(config: Config, env: Env) -> None:
    """What no single field can know."""
    if config.gradient_steps % config.policy_delay:
        raise UserError(
            f"algo.policy_delay={config.policy_delay}: must divide algo.gradient_steps={config.gradient_steps}"
        )
    if config.n_step > config.rollout_length:
        raise UserError(f"algo.n_step={config.n_step}: must be at most algo.rollout_length={config.rollout_length}")
    if config.noise == "ou" and not isinstance(env.action_space, Continuous):
        kind = type(env.action_space).__name__.lower()
        raise UserError(
            f"algo.noise=ou: a process for continuous actions, and {env.name} has {kind} ones; use gaussian"
        )
    if config.q.mixes:
        raise UserError(f"algo.q.network={config.q.network}: reads agents, and a row of this critic is none; use mlp")
    if config.q.reads == "cnn" and config.critic == "central":
        raise UserError("algo.q.network=cnn: a row of a central critic is no image; use mlp, or algo.critic=local")
    for name, model in (("actor", config.actor), ("q", config.q)):
        models.check(f"algo.{name}", model, env, recurrent=False, normalised=config.normalise_obs)


def make(config: Config, env: Env) -> Algorithm:
    """MADDPG, or what the configuration makes of it, on ``env`` as pure functions of one run."""
    check(config, env)
    env = AgentId(env) if config.agent_id else env
    policy_of = networks.policy_of_agent(config.sharing, env.group_ids)
    view = ActionView("local" if config.critic == "local" else config.central_input, env, policy_of)
    inputs = Inputs(env.obs_shape, env.position)
    said = view.values * (config.atoms if config.distributional else 1)
    added = config.num_envs * config.rollout_length
    setup = Setup(
        config=config,
        env=env,
        vec=EpisodeStats(AutoReset(env, config.num_envs, config.rollout_length)),
        view=view,
        actor=Network(config.actor, inputs, env.action_space.size, scale=0.01),
        critic=Network(config.q, Inputs() if view.central else inputs, said, scale=1.0),
        replay=replay.make(config.replay, config.buffer_size, 1, config.batch_size, added),
        policy_of=policy_of,
    )

    def policy(state: TrainState) -> dict[str, Any]:
        return {"actor": state.params["actor"], "obs_stats": state.obs_stats, "noise_scale": state.noise_scale}

    return Algorithm(
        init=partial(init, setup=setup),
        update=partial(update, setup=setup),
        policy=policy,
        acting=Acting(initial_carry=setup.no_noise, act=partial(act, setup=setup), head="vector"),
        env=env,
        steps_per_update=added,
        num_updates=setup.num_updates,
        init_optimiser=init_optimiser,
        evolving=("lr", "critic_lr"),
        learning_rates={"lr": ("actor",), "critic_lr": ("critic",)},
    )


def make_train(config: Config, env: Env):
    """The whole training as one pure function: ``jax.jit(jax.vmap(make_train(config, env)))(keys, hypers)``."""
    return train_function(make(config, env))


if __name__ == "__main__":
    shoal.main(make, Config, Hypers, recipe="maddpg_ff_mpe")
