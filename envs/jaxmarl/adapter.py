"""The adapter: any jaxmarl environment as one of ours."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import ActionSpace, Continuous, Discrete, Env, EnvState, TimeStep, pad_stack, size_mask
from shoal.envs.jaxmarl.construct import construct
from shoal.envs.jaxmarl.family import Agent, Family


class JaxMARLEnv(Env):
    """One jaxmarl environment, seen through its :class:`Family`."""

    checked = True  # tracing takes seconds

    def __init__(self, family: Family, task: str, **kwargs: Any):
        self.name = f"{family.name}/{task}"
        self.family = family
        self.reward_shaping = kwargs.pop("reward_shaping", 0.0) if family.shaped else 0.0
        self.inner, horizon = construct(self.name, family, family.tasks[task], kwargs)
        self.horizon = horizon
        self.terminates = family.terminates

        self.inner_agents = list(family.agents(self.inner))
        self.agents = tuple(a if isinstance(a, str) and not a.isdigit() else f"agent_{a}" for a in self.inner_agents)
        self.groups = family.groups(self.inner, self.agents)
        self.action_space = _action_space([self.inner.action_space(agent) for agent in self.inner_agents])
        # Agents that play by a script inside jaxmarl still want an entry among the actions.
        scripted = [agent for agent in self.inner.agents if agent not in self.inner_agents]
        self.scripted_actions = {agent: np.zeros(self.inner.action_space(agent).shape) for agent in scripted}

        key = jax.random.key(0)
        with quiet():
            rows = jax.eval_shape(lambda key: self._rows(self.inner.reset(key)[0]), key)
        self.obs_sizes = tuple(math.prod(row.shape) for row in rows)
        image = rows[0].shape
        self.obs_shape = image if len(image) == 3 and all(row.shape == image for row in rows) else ()
        self.state_size = jax.eval_shape(self.reset, key)[1].state.shape[0]

    @property
    def horizon(self) -> int:  # type: ignore[override]
        """Steps after which an episode is truncated; jaxmarl is told where its observations show the time left."""
        return self._horizon

    @horizon.setter
    def horizon(self, steps: int) -> None:
        self._horizon = steps
        self.family.set_horizon(self.inner, steps)

    def reset(self, key: chex.PRNGKey) -> tuple[EnvState, TimeStep]:
        """The first state of an episode."""
        with quiet():
            obs, state = self.inner.reset(key)
            nothing = jnp.zeros(self.num_agents)
            return self._timestep(state, obs, nothing, nothing, jnp.bool_(False))

    def step(self, key: chex.PRNGKey, state: EnvState, action: chex.Array) -> tuple[EnvState, TimeStep]:
        """One transition; an episode goes on until a true termination."""
        with quiet():
            actions = self.family.pack(self.scripted_actions | self._by_agent(action))
            obs, state, rewards, dones, info = self.inner.step_env(key, state, actions)
            shaped = self._stack(info["shaped_reward"]) if self.family.shaped else jnp.zeros(self.num_agents)
            terminated = dones["__all__"] if self.terminates else jnp.bool_(False)
            return self._timestep(state, obs, self._stack(rewards), shaped, terminated)

    def _timestep(self, state, obs, reward, shaped, terminated) -> tuple[EnvState, TimeStep]:
        family, inner = self.family, self.inner
        state = jax.tree.map(_strong, state)
        stacked = pad_stack([row.reshape(-1).astype(jnp.float32) for row in self._rows(obs)], self.obs_size)
        info = dict(family.info(inner, state))
        if family.shaped:
            info |= {"shaped_reward": shaped.mean(), "task_reward": reward}
        timestep = TimeStep(
            obs=stacked,
            state=(family.state(inner, state, obs, self.horizon) if family.state else stacked.reshape(-1)),
            action_mask=self._action_mask(state),
            reward=reward + self.reward_shaping * shaped,
            terminated=terminated,
            truncated=jnp.bool_(False),
            alive=family.alive(inner, state) if family.alive else jnp.ones(self.num_agents, bool),
            info={name: jnp.asarray(value, jnp.float32) for name, value in info.items()},
        )
        return state, jax.tree.map(_strong, timestep)

    def _action_mask(self, state) -> chex.Array:
        if self.family.mask is None:
            return jnp.asarray(size_mask(self.action_space.sizes))
        legal = self.family.mask(self.inner, state)
        return pad_stack([legal[agent].astype(bool) for agent in self.inner_agents], self.action_space.size)

    def _by_agent(self, action) -> dict[Agent, chex.Array]:
        if isinstance(self.action_space, Discrete):
            return {agent: action[i] for i, agent in enumerate(self.inner_agents)}
        sizes = self.action_space.sizes
        return {agent: action[i, : sizes[i]] for i, agent in enumerate(self.inner_agents)}

    def _rows(self, obs) -> list[chex.Array]:
        return [self.family.observe(obs, agent) for agent in self.inner_agents]

    def _stack(self, values) -> chex.Array:
        return jnp.stack([jnp.asarray(values[agent], jnp.float32) for agent in self.inner_agents])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """While tracing: JaxNav and OvercookedV2 print, and JaxNav writes numbers into a bool array."""
    with contextlib.redirect_stdout(None), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _strong(x) -> chex.Array:
    """The same values without a weak type or a Python scalar, which a scan's carry may not change."""
    x = jnp.asarray(x)
    return jax.lax.convert_element_type(x, x.dtype)


def _action_space(spaces: Sequence[Any]) -> ActionSpace:
    if hasattr(spaces[0], "n"):
        return Discrete(tuple(int(space.n) for space in spaces))
    sizes = tuple(space.shape[0] for space in spaces)

    def padded(bound: Any, size: int) -> np.ndarray:
        return np.pad(np.broadcast_to(bound, size), (0, max(sizes) - size), mode="edge")

    low = [padded(space.low, size) for space, size in zip(spaces, sizes, strict=True)]
    high = [padded(space.high, size) for space, size in zip(spaces, sizes, strict=True)]
    return Continuous(sizes, np.stack(low).astype(np.float32), np.stack(high).astype(np.float32))
