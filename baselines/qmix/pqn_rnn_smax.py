"""PQN: Q-learning from fresh rollouts alone, for QMIX's mixtures (Gallici et al. 2025, Sunehag et al. 2018).

    min_theta  E[ (Q_tot(s, a) - G)^2 ],   G_t = r_t + gamma ((1 - lambda) max_a Q_tot(s_{t+1}, a) + lambda G_{t+1})

No replay and no target network: many environments, layer norm and returns over whole rollouts hold it together. This
file differs from ``qmix_rnn_mpe.py`` in that and in nothing else: an update is a rollout, its returns, and several
passes over its sequences, as in PPO. ``algo.mixer`` is the mixture: the sum (``vdn``), ``qmix``, or ``none``. Returns
are computed once, before the gradient steps; JaxMARL's recurrent PQN computes them anew in every minibatch. The dead
keep their return, and their place in the mixture, until the episode ends (``algo.death``).

    python baselines/qmix/pqn_rnn_smax.py
    python baselines/qmix/pqn_rnn_smax.py env=smax/2s3z algo.mixer=qmix
    python baselines/qmix/pqn_rnn_smax.py seeds=4 sweep.td_lambda=[0.5,0.8,0.95] env=mpe/simple_spread

Shapes: T time, E environments, A agents, O observation, S state, N actions, P policies, M teams (agents if not mixed),
B sequences of L steps, K places where a rollout breaks off.
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
from shoal.envs.base import Discrete, TimeStep
from shoal.envs.wrappers import EpisodeState, VecEnv, VecTimeStep
from shoal.errors import UserError
from shoal.hashing import split
from shoal.nn.memory import before_chunks, in_sequences, one_step
from shoal.nn.models import Inputs, Model, check
from shoal.nn.policies import Policies
from shoal.rl import sequences
from shoal.rl.exploration import anneal, best, choice_noise, epsilon_greedy, taken
from shoal.rl.metrics import episode_metrics
from shoal.rl.minibatches import over_minibatches
from shoal.rl.mixers import MIXERS, Mixing, QMixer
from shoal.rl.optimiser import Optimiser, linear
from shoal.rl.returns import lambda_returns, masked_mean


@dataclass(frozen=True)
class Config(shoal.algorithm.Config):
    """Sizes and switches: fixed when the program is compiled."""

    num_envs: int = setting(32, low=1, divided="evenly")  # E: environments stepped side by side
    rollout_length: int = setting(32, low=1)  # T: steps of each environment between two updates
    agent_id: bool = setting(True)  # append the agent's one-hot number to its observation
    epochs: int = setting(4, low=1)  # passes over a rollout
    minibatches: int = setting(4, low=1)  # gradient steps in a pass
    chunk_length: int = setting(0, low=0)  # L: steps that gradients flow through; 0 for whole rollouts
    mixer: str = setting("vdn", choices=MIXERS)  # how a team's value is made of its agents' values
    mixer_width: int = setting(32, low=1)  # qmix: units of the mixing layer
    hyper_width: int = setting(64, low=0)  # qmix: units of the hypernetworks' hidden layer; 0 for none
    q: Model = setting(Model("gru", (64,), "relu", layer_norm=True))  # network of an agent's values
    elastic_batches: bool = setting(False)  # batch_share and epoch_share count, which evolution may change


class Hypers(struct.PyTreeNode):
    """Numbers that may differ between the runs of one compiled program."""

    lr: float = hyper(5e-4, low=0.0)  # Adam's step size at the start
    lr_end: float = hyper(0.0, low=0.0)  # factor on lr at the end of its linear schedule; 1 keeps it constant
    gamma: float = hyper(0.99, low=0.0, high=1.0)  # discount
    td_lambda: float = hyper(0.8, low=0.0, high=1.0)  # 0 bootstraps after one reward, 1 only at the rollout's end
    eps_start: float = hyper(0.5, low=0.0, high=1.0)  # fraction of random actions at the start
    eps_end: float = hyper(0.05, low=0.0, high=1.0)  # fraction of random actions after its fall
    eps_fraction: float = hyper(0.1, low=0.0, high=1.0)  # fraction of the training over which random actions fall
    max_grad_norm: float = hyper(10.0, low=0.0)  # gradients of each policy and mixer are clipped to this norm
    batch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: fraction of a minibatch's rows that count
    epoch_share: float = hyper(1.0, low=0.01, high=1.0)  # elastic_batches: fraction of the epochs that are run


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


class Batch(struct.PyTreeNode):
    """What the loss reads: ``B`` sequences of ``L`` steps."""

    steps: Step  # [L, B, ...]
    earning: chex.Array  # [L, B, A] agents whose return goes on
    memory: Any  # [1, B, A, ...] before the first step
    action: chex.Array  # [L, B, A]
    target: chex.Array  # [L, B, M] what the teams' values should be


class Learnt(struct.PyTreeNode):
    """What a run has learnt: equal on all learners, copied by evolution, kept from before where a run diverges."""

    params: dict[str, Any]  # of "q", [P, ...], and of the "mixer", [M, ...], if it has any
    opt_state: dict[str, optax.OptState]  # of every part of the parameters
    updates: chex.Array  # [] int32: updates done
    epsilon: chex.Array  # [] fraction of random actions in the last rollout


class Envs(struct.PyTreeNode):
    """Where the environments stand."""

    state: EpisodeState  # [E, ...]
    timestep: VecTimeStep  # [E, ...] what to act on next
    memory: Any  # [E, A, ...]


class Slot(struct.PyTreeNode):
    """Where a run stands."""

    envs: Envs
    key: chex.PRNGKey


class PQN(Algorithm):
    Config, Hypers, recipe, head = Config, Hypers, "pqn_rnn_smax", "values"

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
        self.check_divides("minibatches", "the number of sequences", self.steps_per_rollout // self.length)
        check("algo.q", config.q, env, recurrent=True)
        inputs = Inputs(env.obs_shape, env.position)
        self.network = Policies(config.q, inputs, env.obs_size, env.action_space.size, self.policies.ids)
        self.mixing = Mixing(config.mixer, QMixer(config.mixer_width, config.hyper_width), env.group_ids)
        self.vec = VecEnv(env, config.num_envs, config.rollout_length)
        self.optimiser = Optimiser(axis_name=self.axis_name)

    def init(self, key: chex.PRNGKey, hypers: Hypers) -> TrainState:
        key, env_key, q_key, mixer_key = split(key, 4)
        params = {"q": self.network.init(q_key)} | self.mixing.init(mixer_key, self.env.state_size)
        env_state, timestep = self.vec.reset(env_key)
        learnt = Learnt(
            params=params,
            opt_state=self.init_optimiser(params, hypers),
            updates=jnp.int32(0),
            epsilon=jnp.asarray(hypers.eps_start, jnp.float32),
        )
        envs = Envs(env_state, timestep.ahead, self.initial_memory(self.config.num_envs))
        return TrainState(learnt, Slot(envs, key))

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

    def targets(self, learnt: Learnt, memory: Any, transitions: Transition, hypers: Hypers) -> Batch:
        """The teams' returns, by the greedy policy where they bootstrap, as sequences ``[L, S, ...]``.

        ``memory`` is from before the rollout.
        """
        params, step, now = learnt.params, transitions.next, transitions.step
        length = self.config.rollout_length
        count = sequences.most_finals(length, self.env)
        final_at, final = sequences.finals(step.truncated, Step.final(step), length, count)
        memories, q = self.q(params, memory, now)
        _, final_q = one_step(partial(self.q, params), sequences.at_finals(memories, final_at), final)  # [K, E, A, N]
        known, last = ((x.state, x.action_mask, x.alive, values) for x, values in ((now, q), (final, final_q)))
        state, mask, alive, next_q = sequences.successors(known, final_at, last)
        earning = self.earning(alive)
        next_value = self.mixing(params, taken(next_q, best(next_q, mask)), state, earning)  # [T, E, M]
        terminated = step.terminated[..., None] | ~self.mixing.earning(earning)
        ended = step.ended[..., None] | terminated
        reward = self.mixing.reward(step.reward)
        y = lambda_returns(reward, next_value, terminated, ended, hypers.gamma, hypers.td_lambda)
        starts = in_sequences(before_chunks(memory, transitions.memory, self.length), 1)
        steps, action, y = in_sequences((now, transitions.action, y), self.length)
        return Batch(steps, self.earning(steps.alive), starts, action, y)

    def loss(self, params: Any, batch: Batch) -> tuple[chex.Array, Metrics]:
        """The squared error of the teams' values."""
        _, q = self.q(params, jax.tree.map(lambda x: x[0], batch.memory), batch.steps)  # [L, B, A, N]
        value = self.mixing(params, taken(q, batch.action), batch.steps.state, batch.earning)  # [L, B, M]
        error, counts = value - batch.target, self.mixing.earning(batch.earning)
        total = self.mixing.mean(jnp.square(error), counts, self.policies)
        size = masked_mean(jnp.abs(error), counts)
        return total, {"loss": total, "q_value": masked_mean(value, counts), "td_error": size}

    def learn(self, learnt: Learnt, batch: Batch, key: chex.PRNGKey, hypers: Hypers) -> tuple[Learnt, Metrics]:
        """``epochs x minibatches`` gradient steps on one rollout."""
        lr = linear(hypers.lr, hypers.lr_end, learnt.updates / self.num_updates)

        def gradient_step(carry: Learnt, minibatch: Batch) -> tuple[Learnt, Metrics]:
            grads, metrics = jax.grad(self.loss, has_aux=True)(carry.params, minibatch)
            params, opt_state = {}, {}
            for name, moments in carry.opt_state.items():
                moved = self.optimiser.step(grads[name], moments, carry.params[name], lr, hypers.max_grad_norm)
                params[name], opt_state[name] = moved
            return carry.replace(params=params, opt_state=opt_state), metrics

        masks = {"earning": self.returns_end_early}
        return over_minibatches(gradient_step, learnt, batch, key, self.config, hypers, masks=masks, axis=1)

    def update(self, state: TrainState, hypers: Hypers) -> tuple[TrainState, Metrics]:
        """One rollout, then learning from it."""
        learnt, slot = state.learnt, state.slot
        key, learn_key, *rollout_keys = split(slot.key, 5)
        progress = learnt.updates / self.num_updates
        epsilon = anneal(hypers.eps_start, hypers.eps_end, hypers.eps_fraction, progress)
        learnt = learnt.replace(epsilon=epsilon)
        envs, transitions = self.rollout(learnt, slot.envs, rollout_keys)
        batch = self.targets(learnt, slot.envs.memory, transitions, hypers)
        learnt, metrics = self.learn(learnt, batch, learn_key, hypers)
        learnt = learnt.replace(updates=learnt.updates + 1)
        return TrainState(learnt, Slot(envs, key)), metrics | {"epsilon": epsilon} | episode_metrics(
            transitions.next, self.env
        )

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
    shoal.main(PQN)
