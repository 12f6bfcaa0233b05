"""Matrix games: the smallest tests of cooperation, solved or not solved within seconds.

| task | what it tests |
|---|---|
| ``matrix/climbing`` | the best joint action (11) lies beside the worst (-30): independent greedy play settles for 5 |
| ``matrix/penalty`` | two best joint actions (10); playing half of each costs ``penalty`` |
| ``matrix/two_step`` | agent 0's first action chooses the game (Rashid et al. 2018): 8 needs non-linear mixing |
| ``matrix/hidden`` | agent 0 alone sees the hidden state; its first action is all that agent 1 hears of it |
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs.base import Discrete, Env, TimeStep
from shoal.envs.registry import register
from shoal.errors import UserError

CLIMBING = ((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0))


class State(struct.PyTreeNode):
    step: chex.Array  # [] int32
    hidden: chex.Array  # [] int32: which game is played, or what is to be told
    heard: chex.Array  # [] int32: agent 0's last action


class MatrixGame(Env):
    """Two agents that share a reward; a subclass says what they see and what they get."""

    mortal = False

    def __init__(self, actions: int, obs_size: int, rounds: int):
        if rounds < 1:
            raise UserError(f"env.kwargs.rounds={rounds}: must be at least 1")
        self.agents, self.groups = ("agent_0", "agent_1"), ("team", "team")
        self.action_space = Discrete((actions, actions))
        self.obs_sizes = (obs_size, obs_size)
        self.state_size = 2 * obs_size
        self.horizon = self.rounds = rounds

    def reset(self, key):
        zero = jnp.int32(0)
        state = State(step=zero, hidden=self.draw_hidden(key), heard=zero)
        return state, self._timestep(state, jnp.float32(0.0))

    def step(self, key, state, action):
        reward = self.payoff(state, action)
        state = State(step=state.step + 1, hidden=self.next_hidden(state, action), heard=action[0])
        return state, self._timestep(state, reward)

    def _timestep(self, state: State, reward: chex.Array) -> TimeStep:
        obs = self.observe(state)
        return TimeStep(
            obs=obs,
            state=obs.reshape(-1),
            action_mask=jnp.ones((2, self.action_space.size), bool),
            reward=jnp.full(2, reward),
            terminated=state.step >= self.rounds,
            truncated=jnp.bool_(False),
            alive=jnp.ones(2, bool),
            info={},
        )

    def draw_hidden(self, key: chex.PRNGKey) -> chex.Array:
        return jnp.int32(0)

    def next_hidden(self, state: State, action: chex.Array) -> chex.Array:
        return state.hidden

    def payoff(self, state: State, action: chex.Array) -> chex.Array:
        raise NotImplementedError(f"{type(self).__name__}.payoff")

    def observe(self, state: State) -> chex.Array:
        raise NotImplementedError(f"{type(self).__name__}.observe")


class OneShot(MatrixGame):
    """The same payoff matrix in every round; there is nothing to see."""

    def __init__(self, payoff: tuple[tuple[float, ...], ...], rounds: int = 1):
        self.matrix = np.array(payoff, np.float32)
        super().__init__(actions=len(payoff), obs_size=1, rounds=rounds)

    def payoff(self, state, action):
        return jnp.asarray(self.matrix)[action[0], action[1]]

    def observe(self, state):
        return jnp.ones((2, 1))


class TwoStep(MatrixGame):
    """Agent 0's first action chooses between a game that pays 7 whatever is played and one that pays 0, 1 or 8."""

    GAMES = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)

    def __init__(self):
        super().__init__(actions=2, obs_size=3, rounds=2)

    def next_hidden(self, state, action):
        return jnp.where(state.step == 0, action[0], state.hidden)

    def payoff(self, state, action):
        return jnp.where(state.step == 0, 0.0, jnp.asarray(self.GAMES)[state.hidden, action[0], action[1]])

    def observe(self, state):
        phase = jnp.where(state.step == 0, 0, 1 + state.hidden)
        return jnp.broadcast_to(jax.nn.one_hot(phase, 3), (2, 3))


class Hidden(MatrixGame):
    """Agent 0 sees one of ``states`` hidden states and speaks; then both are paid 1 if agent 1 names it."""

    def __init__(self, states: int = 3):
        if states < 2:
            raise UserError(f"env.kwargs.states={states}: must be at least 2")
        self.states = states
        super().__init__(actions=states, obs_size=1 + 2 * states, rounds=2)

    def draw_hidden(self, key):
        return jax.random.randint(key, (), 0, self.states)

    def payoff(self, state, action):
        return jnp.where((state.step == 1) & (action[1] == state.hidden), 1.0, 0.0)

    def observe(self, state):
        phase = (state.step == 0).astype(jnp.float32)
        seen = jnp.concatenate([jax.nn.one_hot(state.hidden, self.states), jnp.zeros(self.states)])
        heard = jnp.concatenate([jnp.zeros(self.states), jax.nn.one_hot(state.heard, self.states) * (1 - phase)])
        return jnp.concatenate([jnp.full((2, 1), phase), jnp.stack([seen, heard])], axis=-1)


def climbing(rounds: int = 1) -> Env:
    """Claus and Boutilier's climbing game."""
    return OneShot(CLIMBING, rounds)


def penalty(penalty: float = -100.0, rounds: int = 1) -> Env:
    """Claus and Boutilier's penalty game."""
    return OneShot(((10.0, 0.0, penalty), (0.0, 2.0, 0.0), (penalty, 0.0, 10.0)), rounds)


def register_all() -> None:
    """Register the games."""
    register("matrix/climbing", climbing)
    register("matrix/penalty", penalty)
    register("matrix/two_step", TwoStep)
    register("matrix/hidden", Hidden)
