"""Wrappers around the environment protocol: the time limit, agent ids, and the vectorised environment to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.envs.base import Env, EnvState, TimeStep, select
from shoal.envs.host.calls import Lasting, begun
from shoal.errors import UserError
from shoal.hashing import split


class Wrapper(Env):
    """Has the wrapped environment's facts as its own; other attributes are looked up in the wrapped environment."""

    def __init__(self, env: Env):
        self.env = env
        for fact in Env.__annotations__:
            setattr(self, fact, getattr(env, fact))

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet: do not look for it in itself
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, key: chex.PRNGKey) -> tuple[EnvState, TimeStep]:
        return self.env.reset(key)

    def step(self, key: chex.PRNGKey, state: EnvState, action: chex.Array) -> tuple[EnvState, TimeStep]:
        return self.env.step(key, state, action)

    def render(self, states: EnvState, size: int = 400) -> np.ndarray:
        return self.env.render(states, size)


class TimeLimitState(struct.PyTreeNode):
    inner: EnvState
    step: chex.Array  # [] int32, steps since the reset


class TimeLimit(Wrapper):
    """Truncates an episode after ``horizon`` steps; one that ends by itself just then is terminated, not truncated.

    As the outermost part of every environment it also hides what a dead agent sees: critics value it, by zeros.
    """

    def reset(self, key):
        inner, timestep = self.env.reset(key)
        return TimeLimitState(inner, jnp.int32(0)), _unseeing(timestep)

    def step(self, key, state, action):
        inner, timestep = self.env.step(key, state.inner, action)
        step = state.step + 1
        truncated = (timestep.truncated | (step >= self.horizon)) & jnp.logical_not(timestep.terminated)
        return TimeLimitState(inner, step), _unseeing(timestep).replace(truncated=truncated)

    def restore(self, *args: Any, **kwargs: Any) -> TimeLimitState:
        """The state that the wrapped environment's ``restore`` gives, at the start of an episode."""
        if not hasattr(self.env, "restore"):
            raise UserError(f"{self.name}: states cannot be put together; those of mpe and vmas can")
        return TimeLimitState(self.env.restore(*args, **kwargs), jnp.int32(0))

    def render(self, states, size=400):
        return self.env.render(states.inner, size)


def _unseeing(timestep: TimeStep) -> TimeStep:
    """Zeros for dead agents' rows; some environments show them infinities and NaN."""
    return timestep.replace(obs=jnp.where(timestep.alive[:, None], timestep.obs, 0.0))


class AgentId(Wrapper):
    """Appends a one-hot agent number to every observation, so that shared parameters can tell agents apart."""

    def __init__(self, env: Env):
        super().__init__(env)
        self.obs_sizes = (env.obs_size + env.num_agents,) * env.num_agents

    def reset(self, key):
        state, timestep = self.env.reset(key)
        return state, self._append(timestep)

    def step(self, key, state, action):
        state, timestep = self.env.step(key, state, action)
        return state, self._append(timestep)

    def _append(self, timestep: TimeStep) -> TimeStep:
        return timestep.replace(obs=jnp.concatenate([timestep.obs, jnp.eye(self.num_agents)], axis=-1))


class View(NamedTuple):
    """What can be seen of a step: by an agent, and by a critic."""

    obs: chex.Array  # [..., A, O]
    state: chex.Array  # [..., S]
    alive: chex.Array  # [..., A]
    is_first: chex.Array  # [...]


AHEAD = ("obs", "state", "action_mask", "alive", "is_first")


class VecTimeStep(TimeStep):
    """A :class:`TimeStep` of ``E`` environments that reset themselves.

    ``obs``, ``state``, ``action_mask`` and ``alive`` are what to act on next: of a new episode where the last one
    ended. ``reward``, ``terminated``, ``truncated`` and ``info`` belong to the step just made, and the ``final_*``
    fields are its true successor, which a truncated episode bootstraps from.
    """

    is_first: chex.Array  # [E] bool: `obs` opens an episode
    final_obs: chex.Array  # [E, A, O]
    final_state: chex.Array  # [E, S]
    final_alive: chex.Array  # [E, A]
    final_action_mask: chex.Array  # [E, A, N]
    episode_return: chex.Array | None = None  # [E, A] what the step's episode has earned so far: EpisodeStats
    episode_length: chex.Array | None = None  # [E] int32

    @property
    def ended(self) -> chex.Array:
        """``[E]`` bool: the step was the last of its episode, whichever way."""
        return self.terminated | self.truncated

    @property
    def ahead(self) -> VecTimeStep:
        """Only what to act on next: all that an algorithm's state keeps of it."""
        made = {name: None for name in vars(self) if name not in AHEAD}
        return self.replace(**made)

    @property
    def final(self) -> View:
        """The step's true successor."""
        return View(self.final_obs, self.final_state, self.final_alive, jnp.zeros_like(self.is_first))


class VecState(struct.PyTreeNode):
    inner: EnvState  # [E, ...]
    resets: chex.Array  # [E] int32: how many states of the pool an environment has used


class Pool(NamedTuple):
    """First states of the episodes that begin in one rollout."""

    first: tuple[EnvState, TimeStep]  # [K, E, ...]
    keys: chex.PRNGKey  # [E] for the first states that follow these
    begin: chex.Array  # [E] int32: how many episodes had ended before the rollout


class AutoReset:
    """``E`` environments that start a new episode by themselves.

    A reset can cost as much as a step, so it is not computed at every step. ``fresh`` draws a pool of first states
    for one rollout, ``K`` per environment and each from a key of its own; an environment that ends an episode takes
    its next one. An environment that never ends early needs exactly ``ceil(rollout_length / horizon)``. For others
    ``K`` covers episodes of ``SHORT_EPISODE`` steps. At a step where an environment has used up its pool, all are
    reset, and this one takes what it gets: no first state is used twice, or short episodes would come too often.
    Environments on the host have begun their next episode by themselves when a step returns: they need no pool.
    """

    SHORT_EPISODE = 8

    def __init__(self, env: Env, num_envs: int, rollout_length: int):
        self.env, self.num_envs = env, num_envs
        shortest = min(env.horizon, self.SHORT_EPISODE) if env.terminates else env.horizon
        self.pool_size = -(-rollout_length // shortest)  # K
        self.may_run_dry = env.terminates and shortest > 1
        self.max_truncations = -(-rollout_length // env.horizon)  # of one environment in one rollout
        if env.host:  # one that cuts its episodes itself may do so at any step
            self.max_truncations = rollout_length

    def reset(self, key: chex.PRNGKey) -> tuple[VecState, VecTimeStep]:
        """The first states of ``E`` episodes."""
        keys = split(key, self.num_envs)
        inner, first = jax.vmap(self.env.reset)(Lasting(keys) if self.env.host else keys)
        state = VecState(inner, resets=jnp.zeros(self.num_envs, jnp.int32))
        timestep = VecTimeStep(
            **vars(first),
            is_first=jnp.ones(self.num_envs, bool),
            final_obs=first.obs,
            final_state=first.state,
            final_alive=first.alive,
            final_action_mask=first.action_mask,
        )
        return state, timestep

    def fresh(self, key: chex.PRNGKey, state: VecState) -> Pool | None:
        """The pool of the rollout that goes on from ``state``."""
        if self.env.host:
            return None
        keys = split(key, (self.pool_size + 1, self.num_envs))
        return Pool(jax.vmap(jax.vmap(self.env.reset))(keys[:-1]), keys[-1], state.resets)

    def step(
        self, keys: chex.PRNGKey, state: VecState, action: chex.Array, pool: Pool | None
    ) -> tuple[VecState, VecTimeStep]:
        """One step of every environment; ``keys`` is ``[E]`` keys, ``action`` ``[E, A, ...]``."""
        inner, last = jax.vmap(self.env.step)(keys, state.inner, action)
        ended = last.terminated | last.truncated  # [E]
        if pool is None:
            next_inner, first = jax.vmap(self.env.reset)(begun(inner))
        else:
            used = state.resets - pool.begin
            place = jnp.minimum(used, self.pool_size - 1)
            next_inner, first = jax.tree.map(lambda leaf: _take(leaf, place), pool.first)
        ahead = select(ended, (next_inner, _seen(first)), (inner, _seen(last)))
        if pool is not None and self.may_run_dry:
            ahead = self._redraw(ended & (used >= self.pool_size), ahead, pool.keys, used)
        inner, seen = ahead
        timestep = VecTimeStep(
            **seen,
            reward=last.reward,
            terminated=last.terminated,
            truncated=last.truncated,
            info=last.info,
            is_first=ended,
            final_obs=last.obs,
            final_state=last.state,
            final_alive=last.alive,
            final_action_mask=last.action_mask,
        )
        return VecState(inner=inner, resets=state.resets + ended), timestep

    def _redraw(self, dry: chex.Array, ahead: Any, keys: chex.PRNGKey, used: chex.Array) -> Any:
        """``ahead`` with first states drawn now where an environment's pool is ``dry [E]``.

        A loop of one turn or none. Under ``vmap`` a ``cond`` would reset at every step; a loop does so only where
        any of the runs is dry.
        """

        def draw(carry):
            inner, first = jax.vmap(self.env.reset)(jax.vmap(jax.random.fold_in)(keys, used))
            return jnp.bool_(False), select(dry, (inner, _seen(first)), carry[1])

        return jax.lax.while_loop(lambda carry: carry[0], draw, (dry.any(), ahead))[1]


class EpisodeState(struct.PyTreeNode):
    inner: VecState
    episode_return: chex.Array  # [E, A]
    episode_length: chex.Array  # [E] int32


class EpisodeStats:
    """Adds each episode's return and length so far to the time steps of an :class:`AutoReset`."""

    def __init__(self, vec: AutoReset):
        self.vec = vec
        self.num_envs, self.max_truncations = vec.num_envs, vec.max_truncations

    def reset(self, key: chex.PRNGKey) -> tuple[EpisodeState, VecTimeStep]:
        """The first states of ``E`` episodes."""
        inner, first = self.vec.reset(key)
        zeros = {"episode_return": jnp.zeros_like(first.reward), "episode_length": jnp.zeros(self.num_envs, jnp.int32)}
        return EpisodeState(inner, **zeros), first.replace(**zeros)

    def fresh(self, key: chex.PRNGKey, state: EpisodeState) -> Pool | None:
        """The pool of the rollout that goes on from ``state``, as :meth:`AutoReset.fresh`."""
        return self.vec.fresh(key, state.inner)

    def step(
        self, keys: chex.PRNGKey, state: EpisodeState, action: chex.Array, pool: Pool | None
    ) -> tuple[EpisodeState, VecTimeStep]:
        """One step of every environment, as :meth:`AutoReset.step`."""
        inner, timestep = self.vec.step(keys, state.inner, action, pool)
        episode_return = state.episode_return + timestep.earned
        episode_length = state.episode_length + 1
        ended = timestep.ended
        state = EpisodeState(
            inner=inner,
            episode_return=jnp.where(ended[:, None], 0.0, episode_return),
            episode_length=jnp.where(ended, 0, episode_length),
        )
        return state, timestep.replace(episode_return=episode_return, episode_length=episode_length)


class VecEnv(EpisodeStats):
    """``num_envs`` environments that reset themselves and count their episodes, in rollouts of a fixed length."""

    def __init__(self, env: Env, num_envs: int, rollout_length: int):
        super().__init__(AutoReset(env, num_envs, rollout_length))
        self.rollout_length = rollout_length

    def draw(self, keys: Sequence[chex.PRNGKey], state: EpisodeState) -> tuple[Pool | None, chex.PRNGKey]:
        """For a rollout from ``state``, by two ``keys``: a pool of first states, and keys of all steps ``[T, E]``."""
        pool_key, step_key = keys
        return self.fresh(pool_key, state), split(step_key, (self.rollout_length, self.num_envs))


def _seen(timestep: TimeStep) -> dict[str, chex.Array]:
    """What to act on."""
    return {name: getattr(timestep, name) for name in ("obs", "state", "action_mask", "alive")}


def _take(leaf: chex.Array, index: chex.Array) -> chex.Array:
    """``leaf[index[e], e]`` for every environment: ``[K, E, ...]`` and ``[E]`` to ``[E, ...]``."""
    if leaf.shape[0] == 1:
        return leaf[0]
    index = index.reshape((1, -1) + (1,) * (leaf.ndim - 2))
    return jnp.take_along_axis(leaf, index, axis=0, mode="promise_in_bounds")[0]
