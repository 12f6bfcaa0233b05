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
import jax
import jax.numpy as jnp
import optax
from flax import struct

import shoal
from shoal.algorithm import Algorithm, Metrics, TrainState
from shoal.config.fields import hyper, setting
from shoal.envs.base import Discrete, TimeStep, select
from shoal.envs.wrappers import EpisodeState, VecEnv, VecTimeStep
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn.memory import before_chunks, in_sequences, one_step
from shoal.nn.models import Inputs, Model, check
from shoal.nn.policies import Policies
from shoal.rl import replay, sequences, shares
from shoal.rl.exploration import anneal, best, choice_noise, epsilon_greedy, taken
from shoal.rl.metrics import episode_metrics
from shoal.rl.mixers import MIXERS, Mixing, QMixer
from shoal.rl.optimiser import Optimiser, linear
from shoal.rl.returns import lambda_returns, masked_mean


@dataclass(frozen=True)
class Config(shoal.algorithm.Config):
    """Sizes and switches: fixed when the program is compiled."""

    num_envs: int = setting(8, low=1, divided="evenly")  # E: environments stepped side by side
    rollout_length: int = setting(25, low=1)  # T: steps of each environment between two updates
    agent_id: bool = setting(True)  # append the agent's one-hot number to its observation
    chunk_length: int = setting(0, low=0)  # L: steps of a sequence in replay; 0 for whole rollouts
    gradient_steps: int = setting(1, low=1)  # in an update
    batch_size: int = setting(32, low=1, divided="evenly")  # B: sequences in a gradient step
    buffer_size: int = setting(130_000, low=1, divided="up")  # environment steps that replay holds
    learning_starts: int = setting(10_000, low=0, divided="up")  # environment steps before the first gradient step
    replay: str = setting("uniform", choices=replay.KINDS)  # how sequences are drawn
    mixer: str = setting("qmix", choices=MIXERS)  # how a team's value is made of its agents' values
    mixer_width: int = setting(32, low=1)  # qmix: units of the mixing layer
    hyper_width: int = setting(64, low=0)  # qmix: units of the hypernetworks' hidden layer; 0 for none
    double: bool = setting(True)  # choose the successor's action by the online network, value it by the target
    target_interval: int = setting(200, low=1)  # gradient steps between two moves of the target
    q: Model = setting(Model("gru", widths=(64,), activation="relu"))  # network of an agent's values
    elastic_batches: bool = setting(False)  # batch_share and learn_share count, which evolution may change


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(1e-3, low=0.0)  # Adam's step size at the start
    lr_end: float = hyper(0.0, low=0.0)  # factor on lr at the end of its linear schedule; 1 keeps it constant
    gamma: float = hyper(0.99, low=0.0, high=1.0)  # discount
    td_lambda: float = hyper(0.0, low=0.0, high=1.0)  # 0 bootstraps after one reward, 1 only at the sequence's end
    tau: float = hyper(1.0, low=0.0, high=1.0)  # how far the target moves; 1 replaces it
    eps_start: float = hyper(1.0, low=0.0, high=1.0)  # fraction of random actions at the start
    eps_end: float = hyper(0.05, low=0.0, high=1.0)  # fraction of random actions after its fall
    eps_fraction: float = hyper(0.1, low=0.0, high=1.0)  # fraction of the training over which random actions fall
    max_grad_norm: float = hyper(25.0, low=0.0)  # gradients of each policy and mixer are clipped to this norm
    priority_beta: float = hyper(0.4, low=0.0, high=1.0)  # prioritised replay's correction at the start; 1 at the end
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: fraction of a batch's rows that count
    learn_share: float = hyper(1.0, low=0.0, high=1.0)  # elastic_batches: fraction of the gradient steps taken


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
    """One step of every environment."""

    step: Step  # [E, ...]
    memory: Any  # [E, A, ...] after the step
    action: chex.Array  # [E, A]
    next: VecTimeStep  # [E, ...] what the environments returned


class Sequence(struct.PyTreeNode):
    """What replay keeps: ``B`` sequences of ``L`` steps."""

    steps: Step  # [L, B, ...]
    earning: chex.Array  # [L, B, A] agents whose return goes on
    memory: Any  # [1, B, A, ...] before the first step
    action: chex.Array  # [L, B, A]
    reward: chex.Array  # [L, B, A]
    terminated: chex.Array  # [L, B]
    ended: chex.Array  # [L, B] terminated or truncated
    final: Step  # [K, B, ...] what follows where episodes are cut off, or the sequence is
    final_at: chex.Array  # [K, B] after which step; L for none


class Learnt(struct.PyTreeNode):
    """What a run has learnt: equal on all learners, copied by evolution, kept from before where a run diverges."""

    params: dict[str, Any]  # of "q", [P, ...], and of the "mixer", [M, ...], if it has any
    target: dict[str, Any]  # older parameters, by which successors are valued
    opt_state: dict[str, optax.OptState]  # of every part of the parameters
    updates: chex.Array  # [] int32: updates done
    gradient_steps: chex.Array  # [] int32: gradient steps done
    epsilon: chex.Array  # [] fraction of random actions in the last rollout


class Envs(struct.PyTreeNode):
    """Where the environments stand."""

    state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next
    memory: Any  # [E, A, ...]


class Slot(struct.PyTreeNode):
    """Where a run stands."""

    envs: Envs
    buffer: Any
    key: chex.PRNGKey


class QMIX(Algorithm):
    Config, Hypers, recipe, head = Config, Hypers, "qmix_rnn_mpe", "values"

    def setup(self) -> None:
        """Everything static: made once, before anything is traced."""
        config, env = self.config, self.env
        if not isinstance(env.action_space, Discrete):
            kind = type(env.action_space).__name__.lower()
            raise UserError(
                f"env={env.name}: its actions are {kind}, and Q-learning needs one number each; "
                "use discrete actions, or maddpg or masac"
            )
        self.length = config.chunk_length or config.rollout_length  # L
        self.check_divides("chunk_length", "algo.rollout_length", config.rollout_length)
        check("algo.q", config.q, env, recurrent=True)
        inputs = Inputs(env.obs_shape, env.position)
        self.network = Policies(config.q, inputs, env.obs_size, env.action_space.size, self.policies.ids)
        self.mixing = Mixing(config.mixer, QMixer(config.mixer_width, config.hyper_width), env.group_ids)
        self.vec = VecEnv(env, config.num_envs, config.rollout_length)
        sizes = (config.buffer_size, self.length, config.batch_size, self.steps_per_rollout // self.length)
        self.replay = replay.make(config.replay, *sizes)
        self.optimiser = Optimiser(axis_name=self.axis_name)

    def init(self, key: chex.PRNGKey, hypers: Hypers) -> TrainState:
        key, env_key, q_key, mixer_key = split(key, 4)
        params = {"q": self.network.init(q_key)} | self.mixing.init(mixer_key, self.env.state_size)
        env_state, timestep = self.vec.reset(env_key)
        learnt = Learnt(
            params=params,
            target=params,
            opt_state=self.init_optimiser(params, hypers),
            updates=jnp.int32(0),
            gradient_steps=jnp.int32(0),
            epsilon=jnp.asarray(hypers.eps_start, jnp.float32),
        )
        envs = Envs(env_state, timestep.ahead, self.initial_memory(self.config.num_envs))
        items = jax.eval_shape(lambda: self.collect(learnt, envs, [key] * 3)[1])  # shapes alone
        return TrainState(learnt, Slot(envs, self.replay.init(items), key))

    def init_optimiser(self, params: Any, hypers: Hypers) -> dict[str, optax.OptState]:
        return {name: self.optimiser.init(part) for name, part in params.items()}

    def initial_memory(self, num_envs: int) -> Any:
        return self.network.initial_memory(num_envs)

    def q(self, params: Any, memory: Any, x: Step) -> tuple[Any, chex.Array]:
        """The memory after every step, and the value of every agent's every action, ``[T, ..., A, N]``."""
        return self.network.over_time(params["q"], x.obs, x.alive, x.is_first, memory)

    def rollout(self, learnt: Learnt, envs: Envs, keys: Several[chex.PRNGKey]) -> tuple[Envs, Transition]:
        """``T`` steps of every environment. All random numbers are drawn before the loop, from three ``keys``."""
        shape = (self.config.rollout_length, self.config.num_envs, self.env.num_agents)
        noise = choice_noise(keys[0], shape, self.env.action_space.size)  # [T, E, A, N + 1]
        pool, step_keys = self.vec.draw(keys[1:], envs.state)

        def step(envs: Envs, inputs: Any) -> tuple[Envs, Transition]:
            noise_t, keys_t = inputs
            seen = Step.of(envs.timestep)
            memory, q = one_step(partial(self.q, learnt.params), envs.memory, seen)
            action = epsilon_greedy(q, seen.action_mask, learnt.epsilon, noise_t)
            env_state, after = self.vec.step(keys_t, envs.state, action, pool)
            return Envs(env_state, after.ahead, memory), Transition(seen, memory, action, after)

        return jax.lax.scan(step, envs, (noise, step_keys))

    def collect(self, learnt: Learnt, envs: Envs, keys: Several[chex.PRNGKey]) -> tuple[Envs, Sequence, Transition]:
        """A rollout as sequences for replay, ``[B, ...]``, and its transitions ``[T, E, ...]``."""
        memory, length = envs.memory, self.length  # before the first step
        envs, transitions = self.rollout(learnt, envs, keys)
        step = transitions.next
        count = sequences.most_finals(length, self.env)
        final_at, final = sequences.finals(step.truncated, Step.final(step), length, count)
        batch = Sequence(
            steps=in_sequences(transitions.step, length),
            earning=in_sequences(self.earning(transitions.step.alive), length),
            memory=in_sequences(before_chunks(memory, transitions.memory, length), 1),
            action=in_sequences(transitions.action, length),
            reward=in_sequences(step.reward, length),
            terminated=in_sequences(step.terminated, length),
            ended=in_sequences(step.ended, length),
            final=final,
            final_at=final_at,
        )
        return envs, sequences.swap(batch), transitions

    def successor_q(self, params: Any, memories: Any, q: chex.Array, batch: Sequence) -> chex.Array:
        """``[L, B, A, N]``: the values at each step's true successor, from those of all steps ``q``."""
        before = sequences.at_finals(memories, batch.final_at)  # [K, B, A, ...]
        _, final_q = one_step(partial(self.q, params), before, batch.final)
        return sequences.successors(q, batch.final_at, final_q)

    def targets(self, target: Any, next_q: chex.Array, batch: Sequence, hypers: Hypers) -> chex.Array:
        """``[L, B, M]``: what the teams' values should be. ``next_q`` chooses actions, the ``target`` values them."""
        memories, target_q = self.q(target, jax.tree.map(lambda x: x[0], batch.memory), batch.steps)
        target_next_q = self.successor_q(target, memories, target_q, batch)
        known = (batch.steps.state, batch.steps.action_mask, batch.steps.alive)
        final = (batch.final.state, batch.final.action_mask, batch.final.alive)
        state, mask, alive = sequences.successors(known, batch.final_at, final)
        action = best(next_q if self.config.double else target_next_q, mask)
        earning = self.earning(alive)
        next_value = self.mixing(target, taken(target_next_q, action), state, earning)  # [L, B, M]
        terminated = batch.terminated[..., None] | ~self.mixing.earning(earning)
        ended = batch.ended[..., None] | terminated
        reward = self.mixing.reward(batch.reward)
        return lambda_returns(reward, next_value, terminated, ended, hypers.gamma, hypers.td_lambda)

    def loss(
        self, params: Any, target: Any, batch: Sequence, weight: chex.Array, hypers: Hypers
    ) -> tuple[chex.Array, tuple[Metrics, chex.Array]]:
        """The squared error of the teams' values, and each sequence's mean error ``[B]`` for its priority."""
        memories, q = self.q(params, jax.tree.map(lambda x: x[0], batch.memory), batch.steps)  # [L, B, A, N]
        fixed = jax.lax.stop_gradient((params, memories, q))
        y = self.targets(target, self.successor_q(*fixed, batch), batch, hypers)
        value = self.mixing(params, taken(q, batch.action), batch.steps.state, batch.earning)  # [L, B, M]
        error = value - jax.lax.stop_gradient(y)
        counts = self.mixing.earning(batch.earning)
        total = self.mixing.mean(weight[:, None] * jnp.square(error), counts, self.policies)
        size = jnp.where(counts, jnp.abs(error), 0.0)
        metrics = {"loss": total, "q_value": masked_mean(value, counts), "td_error": masked_mean(size, counts)}
        return total, (metrics, size.sum((0, 2)) / jnp.maximum(counts.sum((0, 2)), 1))

    def learn(self, learnt: Learnt, buffer: Any, key: chex.PRNGKey, hypers: Hypers) -> tuple[Learnt, Any, Metrics]:
        """Gradient steps on sequences from replay; nothing changes before ``learning_starts``."""
        config, progress = self.config, jnp.minimum(learnt.updates / self.num_updates, 1.0)
        lr = linear(hypers.lr, hypers.lr_end, progress)
        beta = anneal(hypers.priority_beta, 1.0, 1.0, progress)
        # Every row and every step, unless elastic_batches.
        part = shares.off_policy(config, hypers, learnt.updates, steps=config.gradient_steps)

        def gradient_step(carry: Learnt, key: chex.PRNGKey) -> tuple[Learnt, Any]:
            sample = self.replay.sample(buffer, key, beta)
            batch, weight = sequences.swap(sample.items), part.weight(sample.weight)
            batch = batch.replace(earning=part.alive(batch.earning, self.returns_end_early))
            gradient = jax.grad(self.loss, has_aux=True)
            grads, (metrics, priority) = gradient(carry.params, carry.target, batch, weight, hypers)
            params, opt_state = {}, {}
            for name, moments in carry.opt_state.items():
                moved = self.optimiser.step(grads[name], moments, carry.params[name], lr, hypers.max_grad_norm)
                params[name], opt_state[name] = moved
            done = carry.gradient_steps + 1
            target = optax.incremental_update(
                params, carry.target, jnp.where(done % config.target_interval == 0, hypers.tau, 0.0)
            )
            carry = carry.replace(params=params, opt_state=opt_state, target=target, gradient_steps=done)
            return carry, (metrics, sample.index, priority)

        new, (metrics, index, priority) = part.scan(gradient_step, learnt, split(key, config.gradient_steps))
        env_steps = (learnt.updates + 1) * self.steps_per_rollout
        ready = (env_steps >= config.learning_starts) & (self.replay.count(buffer) >= config.batch_size)
        index, priority = part.learnt(index), part.learnt(priority)
        buffer = self.replay.reprioritise(buffer, index, priority, part.ready(ready))
        metrics = jax.tree.map(lambda x: jnp.where(ready, x, 0.0), part.mean(metrics))
        return select(ready, new, learnt), buffer, metrics

    def update(self, state: TrainState, hypers: Hypers) -> tuple[TrainState, Metrics]:
        """One rollout into replay, then learning from replay."""
        learnt, slot = state.learnt, state.slot
        key, learn_key, *rollout_keys = split(slot.key, 5)
        progress = learnt.updates / self.num_updates
        epsilon = anneal(hypers.eps_start, hypers.eps_end, hypers.eps_fraction, progress)
        learnt = learnt.replace(epsilon=epsilon)
        envs, items, transitions = self.collect(learnt, slot.envs, rollout_keys)
        learnt, buffer, metrics = self.learn(learnt, self.replay.add(slot.buffer, items), learn_key, hypers)
        learnt = learnt.replace(updates=learnt.updates + 1)
        metrics |= {"epsilon": epsilon} | episode_metrics(transitions.next, self.env)
        return TrainState(learnt, Slot(envs, buffer, key)), metrics

    def policy(self, learnt: Learnt) -> dict[str, Any]:
        return {"q": learnt.params["q"], "epsilon": learnt.epsilon}

    def act(
        self, policy: Any, memory: Any, timestep: TimeStep, key: chex.PRNGKey, greedy: bool
    ) -> tuple[Any, chex.Array]:
        """The best action, or an epsilon-greedy one as in training unless ``greedy``."""
        never = jnp.zeros(timestep.obs.shape[:1], bool)
        x = Step(timestep.obs, timestep.state, timestep.action_mask, timestep.alive, never)
        memory, q = one_step(partial(self.q, policy), memory, x)
        if greedy:
            return memory, best(q, x.action_mask)
        noise = choice_noise(key, q.shape[:-1], q.shape[-1])
        return memory, epsilon_greedy(q, x.action_mask, policy["epsilon"], noise)


if __name__ == "__main__":
    shoal.main(QMIX)
