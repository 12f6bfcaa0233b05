"""MASAC and ISAC, feed-forward: soft actor-critic for teams (Haarnoja et al. 2018; discrete: Christodoulou 2019).

    min_theta  E[ (Q_k(s, a)_i - y_i)^2 ],   y_i = r_i + gamma V_i(s'),   k = 1, 2: twins, each on its own
    V_i(s) = E_{a ~ pi}[ min_k Q_k'(s, a)_i - alpha_i log pi(a_i | o_i) ],   Q' follows Q by tau
    max_phi  E_{a_i ~ pi}[ min_k Q_k(s, a_i, a_-i)_i - alpha_i log pi(a_i | o_i) ],   a_-i from replay
    min_alpha  E[ log alpha_i (H(pi_i) - H*_i) ],   one alpha for each team or independent agent

``algo.critic`` reads everyone's actions beside the state or all observations (``central``: MASAC), or the agent's own
(``local``: ISAC). A discrete critic reads the others' actions and says a value for each of the own, over which the
expectations are exact; a continuous policy is a normal squashed by tanh, of which one sample is drawn. In the policy's
objective the others do what replay says, as in MADDPG; ``algo.others=policy`` draws them anew (BenchMARL draws all, and
lets all learn from it). Differences from the papers: all three losses are of the parameters before the step, and a
truncated episode bootstraps from its true last observation. An agent that dies keeps its return, without the entropy,
until the episode ends: critics learn its rows, policies do not (``algo.death``).

    python baselines/masac/masac_ff_vmas.py
    python baselines/masac/masac_ff_vmas.py algo.critic=local env=mpe/simple_speaker_listener
    python baselines/masac/masac_ff_vmas.py seeds=4 sweep.lr=[5e-4,1e-3] sweep.target_entropy=[0.5,1]

Shapes: T time, E environments, A agents, O observation, S state, N actions, P policies, G temperatures,
B transitions, Z values of an own action: N if discrete, else 1.
"""

from __future__ import annotations

if __name__ == "__main__":
    import shoal.early

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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
from shoal.envs.base import Discrete, Env, MultiDiscrete, TimeStep, select
from shoal.envs.wrappers import AgentId, AutoReset, EpisodeState, EpisodeStats, VecTimeStep
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn import models, networks
from shoal.nn.models import Inputs, Model
from shoal.rl import distributions, learners, replay, shares
from shoal.rl.critics import CENTRAL_INPUTS, ActionView
from shoal.rl.exploration import anneal
from shoal.rl.metrics import by_group, episode_metrics
from shoal.rl.returns import DEATHS, earning, mean_by


@dataclass(frozen=True)
class Config:
    """Sizes and switches: fixed when the program is compiled."""

    total_steps: float = setting(1e6, low=1)  # environment steps of one run
    num_envs: int = setting(16, low=1)  # E, environments stepped side by side
    rollout_length: int = setting(8, low=1)  # T, steps of each between two updates
    gradient_steps: int = setting(2, low=1)  # in an update
    batch_size: int = setting(256, low=1)  # B, transitions in a gradient step
    buffer_size: int = setting(100_000, low=1)  # environment steps that replay holds
    elastic_batches: bool = setting(False)  # hypers.batch_share and learn_share count, which evolution may change
    learning_starts: int = setting(5_000, low=0)  # environment steps before the first gradient step
    replay: str = setting("uniform", choices=replay.KINDS)  # how transitions are drawn
    critic: str = setting("central", choices=("central", "local"))  # reads everyone's actions, or the agent's own
    central_input: str = setting("state", choices=CENTRAL_INPUTS)  # what a central critic reads beside them
    twin: bool = setting(True)  # two critics, of which the lower counts
    others: str = setting("replay", choices=("replay", "policy"))  # whose are the others' actions as a policy learns
    auto_alpha: bool = setting(True)  # learn the temperature
    death: str = setting("keeps_return", choices=DEATHS)  # an agent's return ends with the episode, or with its death
    sharing: str = setting("shared", choices=networks.SHARING)  # which agents have parameters in common
    agent_id: bool = setting(True)  # append the agent's one-hot number to its observation
    actor: Model = setting(Model(activation="relu"))  # the network of the policy
    q: Model = setting(Model(activation="relu"))  # and that of the values


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(1e-3, low=0.0)  # Adam's step size at the start: of the policy
    critic_lr: float = hyper(1e-3, low=0.0)  # of the critic
    alpha_lr: float = hyper(1e-3, low=0.0)  # of the temperature's logarithm
    lr_end: float = hyper(0.0, low=0.0)  # their share left at the end of the (linear) schedule; 1 for constant
    gamma: float = hyper(0.95, low=0.0, high=1.0)  # discount
    tau: float = hyper(0.01, low=0.0, high=1.0)  # how far the target moves in a gradient step
    alpha: float = hyper(0.1, low=0.0)  # the temperature: at the start, or throughout unless auto_alpha
    target_entropy: float = hyper(0.5, low=0.0)  # auto_alpha: times minus the dimensions, or the log of legal actions
    max_grad_norm: float = hyper(10.0, low=0.0)  # gradient clipping, of each policy's and each critic's parameters
    reward_scale: float = hyper(1.0, low=0.0)  # rewards are multiplied by this
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


class Step(struct.PyTreeNode):
    """What is known before acting."""

    obs: chex.Array  # [..., A, O]
    state: chex.Array | None  # [..., S] if a critic reads it; not empty arrays, which devices cannot share
    action_mask: chex.Array  # [..., A, N]
    alive: chex.Array  # [..., A]


class Transition(struct.PyTreeNode):
    """What replay keeps: ``B`` of them."""

    step: Step  # [B, ...]
    earning: chex.Array  # [B, A] whose return goes on: critics learn it
    action: chex.Array  # [B, A, N] one-hot, or in [-1, 1]
    reward: chex.Array  # [B, A]
    terminated: chex.Array  # [B]
    next: Step  # [B, ...] the true successor, also of a truncated episode


class Choice(NamedTuple):
    """A policy's action, and what the expectation over an agent's own action is made of."""

    action: chex.Array  # [..., A, N] a sample, one-hot or in [-1, 1]
    prob: chex.Array  # [..., A, Z] the weights: of every action, or 1 for the sample
    log_prob: chex.Array  # [..., A, Z]

    def expect(self, values: chex.Array) -> chex.Array:
        """``[..., A]``: the mean of ``values [..., A, Z]``."""
        return (self.prob * values).sum(-1)


class TrainState(struct.PyTreeNode):
    params: dict[str, Any]  # of "actor", [P, ...], the critics "q", [twins, P, ...], and "log_alpha", [G], if learnt
    target: Any  # of "q", as they were
    opt_state: dict[str, optax.OptState]  # the leading axes of the parameters
    buffer: Any
    env_state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next
    updates: chex.Array  # [] int32, updates done
    key: chex.PRNGKey


@dataclass(frozen=True)
class Setup:
    """The static things that every function below needs."""

    config: Config
    env: Env
    vec: EpisodeStats
    actor: Network
    q: Network
    view: ActionView
    replay: replay.Replay
    policy_of: np.ndarray  # [A]
    alpha_of: np.ndarray  # [A] teams, but agents if each has parameters of its own

    @property
    def ends(self) -> bool:
        """Whether a return may end before its episode."""
        return self.env.mortal and self.config.death == "ends_return"

    @property
    def num_updates(self) -> int:
        return max(1, int(np.ceil(self.config.total_steps / (self.config.num_envs * self.config.rollout_length))))

    @property
    def discrete(self) -> bool:
        return isinstance(self.env.action_space, Discrete)

    def step(self, obs: chex.Array, state: chex.Array, action_mask: chex.Array, alive: chex.Array) -> Step:
        """A step as replay keeps it."""
        return Step(obs, state if self.view.kind == "state" else None, action_mask, alive)

    def policy(self, params: Any, x: TimeStep | Step):
        """Every agent's action distribution, ``[..., A]``."""
        outputs = networks.apply_policies(self.actor, params["actor"], self.policy_of, x.obs, x.alive[..., None])
        return distributions.policy(self.env.action_space, outputs, x.action_mask)

    def vector(self, raw: chex.Array, mask: chex.Array) -> chex.Array:
        """A policy's raw action as critics read it, ``[..., A, N]``."""
        if self.discrete:
            return (raw[..., None] == jnp.arange(self.env.action_space.size)).astype(jnp.float32)
        return jnp.where(mask, jnp.tanh(raw), 0.0)

    def choose(self, params: Any, x: Step, noise: chex.Array) -> Choice:
        """What the policy does in ``x``, by ``noise [..., A, N]``."""
        pi = self.policy(params, x)
        if self.discrete:
            action = self.vector(pi.sample_from(noise), x.action_mask)
            return Choice(action, jnp.exp(pi.logits), jnp.where(x.action_mask, pi.logits, 0.0))
        raw, log_prob = pi.sample_and_log_prob(noise)
        return Choice(self.vector(raw, x.action_mask), jnp.ones((1,)), log_prob[..., None])

    def values(self, q: Any, x: Step, action: chex.Array, own: chex.Array | None = None) -> chex.Array:
        """``[twins, ..., A, Z]`` of the joint ``action``; of ``own_i`` beside the others' actions, if given.

        A discrete critic's row for agent ``i`` never holds its action: it says a value for each of them.
        """
        seen = (x.obs, x.state, x.alive, action)
        if self.discrete:
            own = jnp.zeros_like(action)
        if own is None:
            rows, policy_of, pick = self.view(*seen), self.view.policy_of_row, self.view.of_agents
        else:
            rows, policy_of, pick = self.view.own(*seen, own), self.policy_of, self.view.of_own
        twins = [jax.tree.map(lambda leaf, k=k: leaf[k], q) for k in range(1 + self.config.twin)]
        return jnp.stack([pick(networks.apply_policies(self.q, one, policy_of, rows, None)) for one in twins])


def optimisers(hypers: Hypers, progress: chex.Numeric = 0.0) -> dict[str, optax.GradientTransformation]:
    """Adam with clipped gradients for one policy, critic or temperature, as one vector; from traced numbers."""
    left = 1.0 + progress * (hypers.lr_end - 1.0)

    def adam(lr):
        clip = optax.clip_by_global_norm(hypers.max_grad_norm)
        return optax.flatten(optax.chain(clip, optax.adam(left * lr, eps=1e-5)))

    return {"actor": adam(hypers.lr), "q": adam(hypers.critic_lr), "log_alpha": adam(hypers.alpha_lr)}


def each(name: str, function: Callable) -> Callable:
    """``function`` of one parameter set, for all on the leading axes: policies or teams, of critics also the twins."""
    return jax.vmap(jax.vmap(function)) if name == "q" else jax.vmap(function)


def init_optimiser(params: Any, hypers: Hypers) -> dict[str, optax.OptState]:
    """Adam's moments before the first step, with the leading axes of the parameters."""
    optimise = optimisers(hypers)
    return {name: each(name, optimise[name].init)(part) for name, part in params.items()}


def init(key: chex.PRNGKey, hypers: Hypers, setup: Setup) -> TrainState:
    key, env_key, actor_key, q_key = split(key, 4)
    policies, agents, config = int(setup.policy_of.max()) + 1, setup.env.num_agents, setup.config
    rows, row = jnp.zeros((agents, setup.env.obs_size)), jnp.zeros((1, setup.view.size))
    alive = jnp.ones((agents, 1), bool)
    twins = split(q_key, 1 + config.twin)
    params = {
        "actor": networks.init_policies(setup.actor, actor_key, policies, rows, alive),
        "q": jax.vmap(lambda k: networks.init_policies(setup.q, k, policies, row, None))(twins),
    }
    if config.auto_alpha:
        params["log_alpha"] = jnp.full(setup.alpha_of.max() + 1, jnp.log(jnp.maximum(hypers.alpha, 1e-8)))
    env_state, timestep = setup.vec.reset(env_key)
    state = TrainState(
        params=params,
        target=params["q"],
        opt_state=init_optimiser(params, hypers),
        buffer=None,
        env_state=env_state,
        timestep=timestep.ahead,
        updates=jnp.int32(0),
        key=key,
    )
    items = jax.eval_shape(lambda: rollout(state, list(split(key, 3)), setup)[1])
    return state.replace(buffer=setup.replay.init(items))


def rollout(
    state: TrainState, keys: Sequence[chex.PRNGKey], setup: Setup
) -> tuple[TrainState, Transition, VecTimeStep]:
    """``T`` steps of every environment, as transitions ``[T * E, ...]`` for replay and as time steps ``[T, E, ...]``.

    All random numbers are drawn before the loop, from three ``keys``.
    """
    steps, num_envs, space = setup.config.rollout_length, setup.config.num_envs, setup.env.action_space
    noise_key, pool_key, step_key = keys
    noise = distributions.noise(noise_key, space, (steps, num_envs))  # [T, E, A, N]
    step_keys = split(step_key, (steps, num_envs))
    pool = setup.vec.fresh(pool_key, state.env_state)

    def step(carry, inputs):
        env_state, t = carry
        noise_t, keys_t = inputs
        raw = setup.policy(state.params, t).sample_from(noise_t)
        env_state, after = setup.vec.step(keys_t, env_state, distributions.to_env(space, raw), pool)
        seen = setup.step(t.obs, t.state, t.action_mask, t.alive)
        final = setup.step(after.final_obs, after.final_state, after.final_action_mask, after.final_alive)
        counts = earning(t.alive, setup.config.death)
        made = Transition(seen, counts, setup.vector(raw, t.action_mask), after.reward, after.terminated, final)
        return (env_state, after.ahead), (made, after)

    carry, (transitions, timesteps) = jax.lax.scan(step, (state.env_state, state.timestep), (noise, step_keys))
    items = jax.tree.map(lambda x: x.reshape(steps * num_envs, *x.shape[2:]), transitions)
    return state.replace(env_state=carry[0], timestep=carry[1]), items, timesteps


def temperature(params: Any, hypers: Hypers, setup: Setup) -> chex.Array:
    """``[A]``: what an agent pays for certainty."""
    of = setup.alpha_of
    return jnp.exp(params["log_alpha"])[of] if setup.config.auto_alpha else jnp.full(len(of), hypers.alpha)


def target_entropy(mask: chex.Array, hypers: Hypers, setup: Setup) -> chex.Array:
    """``[..., A]`` of ``mask [..., A, N]``; densities are those on ``[-1, 1]``, without the bounds' constant volume."""
    count = mask.sum(-1)
    return hypers.target_entropy * (jnp.log(jnp.maximum(count, 1)) if setup.discrete else -1.0 * count)


def targets(params: Any, target: Any, batch: Transition, noise: chex.Array, hypers: Hypers, setup: Setup) -> chex.Array:
    """``[B, A]``: what the values should be, by the ``target`` critics and the present policy."""
    choice = setup.choose(params, batch.next, noise)
    q = setup.values(target, batch.next, choice.action).min(axis=0)  # [B, A, Z]
    price = temperature(params, hypers, setup)[:, None] * choice.log_prob
    next_value = choice.expect(q - jnp.where(batch.next.alive[..., None], price, 0.0))  # the dead choose nothing
    terminated = batch.terminated[:, None] | ~earning(batch.next.alive, setup.config.death)
    return hypers.reward_scale * batch.reward + hypers.gamma * jnp.where(terminated, 0.0, next_value)


def loss(
    params: Any, target: Any, batch: Transition, weight: chex.Array, noise: chex.Array, hypers: Hypers, setup: Setup
) -> tuple[chex.Array, tuple[Metrics, chex.Array]]:
    """The critics', the policies' and the temperatures' losses, and each transition's error ``[B]`` for its priority.

    ``noise [2, B, A, N]`` is for the actions in both steps, ``weight [B]`` for the critics' errors.
    """
    fixed, step, alive, counts = jax.lax.stop_gradient(params), batch.step, batch.step.alive, batch.earning
    q = setup.values(params["q"], step, batch.action)  # [twins, B, A, Z]
    q = (q * batch.action).sum(-1) if setup.discrete else q.squeeze(-1)
    error = q - targets(fixed, target, batch, noise[1], hypers, setup)  # [twins, B, A]
    q_loss = weight[:, None] * jnp.square(error).sum(axis=0)

    choice = setup.choose(params, step, noise[0])
    others = batch.action if setup.config.others == "replay" else jax.lax.stop_gradient(choice.action)
    own_q = setup.values(fixed["q"], step, others, choice.action).min(axis=0)  # [B, A, Z]
    alpha = temperature(fixed, hypers, setup)  # [A]
    policy_loss = choice.expect(alpha[:, None] * choice.log_prob - own_q)

    entropy = -choice.expect(choice.log_prob)
    surplus = jax.lax.stop_gradient(entropy) - target_entropy(step.action_mask, hypers, setup)

    total = (mean_by(setup.policy_of, q_loss, counts) + mean_by(setup.policy_of, policy_loss, alive)).sum()
    if setup.config.auto_alpha:
        total += (params["log_alpha"] * mean_by(setup.alpha_of, surplus, alive)).sum()
    size = jnp.where(counts, jnp.abs(error).mean(axis=0), 0.0)
    of_critics = {"q_loss": q_loss, "q_value": q.mean(axis=0), "td_error": size}
    of_policies = {
        "policy_loss": policy_loss,
        "entropy": entropy,
        "entropy_surplus": surplus,
        "temperature": jnp.broadcast_to(alpha, alive.shape),
    }
    metrics = by_group(of_critics, counts, setup.env) | by_group(of_policies, alive, setup.env)
    metrics |= {"loss": total}
    return total, (metrics, size.sum(-1) / jnp.maximum(counts.sum(-1), 1))


def learn(state: TrainState, key: chex.PRNGKey, hypers: Hypers, setup: Setup) -> tuple[TrainState, Metrics]:
    """Gradient steps on transitions from replay; nothing changes before ``learning_starts``."""
    config = setup.config
    progress = jnp.minimum(state.updates / setup.num_updates, 1.0)
    optimise = optimisers(hypers, progress)
    beta = anneal(hypers.priority_beta, 1.0, 1.0, progress)
    noise_key, *keys = split(key, 1 + config.gradient_steps)
    noise = distributions.noise(noise_key, setup.env.action_space, (config.gradient_steps, 2, config.batch_size))
    # All batches in one go: a gather costs by the call.
    samples = jax.vmap(lambda k: setup.replay.sample(state.buffer, k, beta))(jnp.stack(keys))

    # Every row and every step, unless elastic_batches.
    part = shares.off_policy(config, hypers, state.updates, steps=config.gradient_steps)

    def gradient_step(carry, inputs):
        params, opt_state, target = carry
        sample, noise_k = inputs
        step, weight = sample.items.step, part.weight(sample.weight)
        counts = part.alive(sample.items.earning, setup.ends)
        step = step.replace(alive=part.alive(step.alive, setup.env.mortal))
        batch = sample.items.replace(step=step, earning=counts)
        grads, aux = jax.grad(loss, has_aux=True)(params, target, batch, weight, noise_k, hypers, setup)
        grads = learners.mean(grads)
        moved = {name: each(name, optimise[name].update)(grads[name], opt_state[name]) for name in params}
        params = {name: optax.apply_updates(params[name], moved[name][0]) for name in params}
        opt_state = {name: moved[name][1] for name in params}
        target = optax.incremental_update(params["q"], target, hypers.tau)
        return (params, opt_state, target), aux

    carry = (state.params, state.opt_state, state.target)
    new, (metrics, priority) = part.scan(gradient_step, carry, (samples, noise))
    env_steps = (state.updates + 1) * config.num_envs * config.rollout_length
    ready = (env_steps >= config.learning_starts) & (setup.replay.count(state.buffer) >= config.batch_size)
    params, opt_state, target = select(ready, new, carry)
    index, priority = part.learnt(samples.index), part.learnt(priority)
    buffer = setup.replay.reprioritise(state.buffer, index, priority, part.ready(ready))
    state = state.replace(params=params, opt_state=opt_state, target=target, buffer=buffer)
    return state, jax.tree.map(lambda x: jnp.where(ready, x, 0.0), part.mean(metrics))


def update(state: TrainState, hypers: Hypers, setup: Setup) -> tuple[TrainState, Metrics]:
    """One rollout into replay, then learning from replay."""
    key, learn_key, *rollout_keys = split(state.key, 5)
    state, items, timesteps = rollout(state, rollout_keys, setup)
    state = state.replace(buffer=setup.replay.add(state.buffer, items))
    state, metrics = learn(state, learn_key, hypers, setup)
    state = state.replace(updates=state.updates + 1, key=key)
    return state, metrics | episode_metrics(timesteps, setup.env)


def act(policy, carry, timestep, key: chex.PRNGKey, greedy: bool, setup: Setup) -> tuple[tuple, chex.Array]:
    """The environment's action for ``timestep [E, ...]``; the mode of the policy if ``greedy``."""
    pi, space = setup.policy(policy, timestep), setup.env.action_space
    raw = pi.mode() if greedy else pi.sample_from(distributions.noise(key, space, timestep.obs.shape[:1]))
    return carry, distributions.to_env(space, raw)


def check(config: Config, env: Env) -> None:
    """What no single field can know."""
    if isinstance(env.action_space, MultiDiscrete):
        raise UserError(
            f"env={env.name}: its actions are several choices each (multi_discrete), and a value for each needs one; "
            "use discrete or continuous actions, or ippo or mappo"
        )
    models.check("algo.actor", config.actor, env, recurrent=False)
    models.check("algo.q", config.q, env, recurrent=False)
    if config.q.mixes:
        raise UserError(
            f"algo.q.network={config.q.reads}: lets agents see each other, which algo.critic is for; use mlp"
        )
    if config.q.reads == "cnn" and config.critic == "central":
        raise UserError("algo.q.network=cnn: a row of algo.critic=central is no image; use mlp, or algo.critic=local")


def make(config: Config, env: Env) -> Algorithm:
    """MASAC or ISAC on ``env`` as pure functions of one run."""
    check(config, env)
    env = AgentId(env) if config.agent_id else env
    policy_of = networks.policy_of_agent(config.sharing, env.group_ids)
    view = ActionView(config.central_input if config.critic == "central" else "local", env, policy_of)
    space, inputs = env.action_space, Inputs(env.obs_shape, env.position)
    values = view.values * (space.size if isinstance(space, Discrete) else 1)
    added = config.num_envs * config.rollout_length
    setup = Setup(
        config=config,
        env=env,
        vec=EpisodeStats(AutoReset(env, config.num_envs, config.rollout_length)),
        actor=Network(config.actor, inputs, distributions.head_size(space), scale=0.01),
        q=Network(config.q, inputs, values, scale=1.0),
        view=view,
        replay=replay.make(config.replay, config.buffer_size, 1, config.batch_size, added),
        policy_of=policy_of,
        alpha_of=policy_of if config.sharing == "independent" else env.group_ids,
    )
    return Algorithm(
        init=partial(init, setup=setup),
        update=partial(update, setup=setup),
        policy=lambda state: {"actor": state.params["actor"]},
        acting=Acting(initial_carry=lambda num_envs: (), act=partial(act, setup=setup), head="distribution"),
        env=env,
        steps_per_update=config.num_envs * config.rollout_length,
        num_updates=setup.num_updates,
        init_optimiser=init_optimiser,
        evolving=("lr", "critic_lr", "alpha_lr"),
        learning_rates={"lr": ("actor",), "critic_lr": ("q",), "alpha_lr": ("log_alpha",)},
    )


def make_train(config: Config, env: Env):
    """The whole training as one pure function: ``jax.jit(jax.vmap(make_train(config, env)))(keys, hypers)``."""
    return train_function(make(config, env))


if __name__ == "__main__":
    shoal.main(make, Config, Hypers, recipe="masac_ff_vmas")
