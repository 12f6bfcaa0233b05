"""Returns and advantages over ``[T, E, A]`` rollouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import chex
import jax
import jax.numpy as jnp

# What an agent's death does to its return while the episode goes on. The first is that of JaxMARL, Mava and on-policy.
DEATHS = ("keeps_return", "ends_return")


def earning(alive: chex.Array, death: str) -> chex.Array:
    """Whose return goes on, ``[..., A]``: everybody's, or where ``death`` ends it that of the ``alive``."""
    return alive if death == "ends_return" else jnp.ones_like(alive)


def gae(
    reward: chex.Array,
    value: chex.Array,
    next_value: chex.Array,
    terminated: chex.Array,
    ended: chex.Array,
    gamma: chex.Numeric,
    gae_lambda: chex.Numeric,
) -> chex.Array:
    r"""Generalised advantage estimation (Schulman et al. 2016), all arguments ``[T, ...]``.

    .. math::
        \delta_t = r_t + \gamma\,(1 - \mathrm{terminated}_t)\,V(s'_t) - V(s_t), \qquad
        \hat A_t = \delta_t + \gamma\lambda\,(1 - \mathrm{ended}_t)\,\hat A_{t+1}

    ``next_value`` is the value of the true successor :math:`s'_t`: after a truncation that of the final
    observation, not of the next episode's first. ``terminated`` stops the bootstrap, ``ended`` (terminated or
    truncated) only the sum over time.
    """
    chex.assert_equal_shape([reward, value, next_value, terminated, ended])
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * (1.0 - ended)

    def backwards(advantage, inputs):
        delta_t, decay_t = inputs
        advantage = delta_t + decay_t * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, decay), reverse=True)
    return advantages


def lambda_returns(
    reward: chex.Array,
    next_value: chex.Array,
    terminated: chex.Array,
    ended: chex.Array,
    gamma: chex.Numeric,
    td_lambda: chex.Numeric,
) -> chex.Array:
    r"""TD(:math:`\lambda`) targets over a sequence ``[T, ...]`` (Sutton and Barto, chapter 12; Peng's for maxima).

    .. math::
        G_t = r_t + \gamma\,(1 - \mathrm{terminated}_t)\,
              \big((1 - \lambda)\,V(s'_t) + \lambda\,(\mathrm{ended}_t\ ?\ V(s'_t) : G_{t+1})\big)

    ``next_value`` is that of the true successor, as in :func:`gae`. The last step of the sequence bootstraps.
    """
    chex.assert_equal_shape([reward, next_value, terminated, ended])

    def backwards(after, inputs):
        reward_t, value_t, terminated_t, ended_t = inputs
        future = value_t + td_lambda * (jnp.where(ended_t, value_t, after) - value_t)
        target = reward_t + gamma * jnp.where(terminated_t, 0.0, future)
        return target, target

    inputs = (reward, next_value, terminated, ended)
    _, targets = jax.lax.scan(backwards, next_value[-1], inputs, reverse=True)
    return targets


def n_step_returns(
    reward: chex.Array,
    next_value: chex.Array,
    terminated: chex.Array,
    ended: chex.Array,
    gamma: chex.Numeric,
    steps: int,
) -> chex.Array:
    r"""``steps`` rewards, then the bootstrap, ``[T, ...]``; fewer where the episode or the sequence ends before.

    .. math:: G^{(1)}_t = r_t + \gamma V(s'_t), \qquad G^{(n)}_t = r_t + \gamma\, G^{(n-1)}_{t+1}
    """
    chex.assert_equal_shape([reward, next_value, terminated, ended])
    stop = jnp.asarray(ended).at[-1].set(True)  # what comes after this step is not in the sequence
    future = next_value
    for _ in range(steps - 1):
        target = reward + gamma * jnp.where(terminated, 0.0, future)
        future = jnp.where(stop, next_value, jnp.concatenate([target[1:], target[-1:]]))
    return reward + gamma * jnp.where(terminated, 0.0, future)


def n_step_transitions(
    reward: chex.Array, continues: chex.Array, gamma: chex.Numeric, ended: chex.Array, steps: int
) -> tuple[chex.Array, chex.Array, chex.Array]:
    r"""What ``steps`` steps come to, ``reward`` and ``continues`` ``[T, E, A]``, ``ended [T, E]``; fewer at an end.

    .. math:: r^{(n)}_t = r_t + \gamma c_t\, r^{(n-1)}_{t+1}, \qquad c^{(n)}_t = \gamma c_t\, c^{(n-1)}_{t+1}

    ``continues`` is 0 or 1. What follows counts :math:`\gamma c^{(n)}`; this last :math:`\gamma` is the caller's. Also
    the last of the steps, ``[T, E]``: the transition's successor is that one's.
    """
    chex.assert_equal_shape([reward, continues])
    stop = jnp.asarray(ended).at[-1].set(True)[..., None]  # what comes after this step is not in the rollout
    last = jnp.broadcast_to(jnp.arange(len(reward))[:, None, None], stop.shape)
    discount = gamma * continues
    own = total = (reward, continues, last)
    for _ in range(steps - 1):
        after = [jnp.concatenate([x[1:], x[-1:]]) for x in total]
        longer = (reward + discount * after[0], discount * after[1], after[2])
        total = tuple(jnp.where(stop, x, y) for x, y in zip(own, longer, strict=True))  # type: ignore[assignment]
    return total[0], total[1], total[2].squeeze(-1)


def project(probs: chex.Array, atoms: chex.Array, reward: chex.Array, discount: chex.Array) -> chex.Array:
    r"""The distribution of ``reward + discount * Z`` on the ``atoms [Z]`` themselves (Bellemare et al. 2017).

    .. math:: m_i = \sum_j p_j \max(0,\ 1 - |\mathrm{clip}(r + d z_j) - z_i| / \Delta z)

    ``probs [..., Z]`` are those of the successor; ``reward`` and ``discount`` are ``[...]``.
    """
    moved = jnp.clip(reward[..., None] + discount[..., None] * atoms, atoms[0], atoms[-1])
    away = jnp.abs(moved[..., None, :] - atoms[:, None]) / (atoms[1] - atoms[0])  # [..., Z, Z]
    return (probs[..., None, :] * jnp.maximum(1.0 - away, 0.0)).sum(-1)


def masked_mean(x: chex.Array, where: chex.Array) -> chex.Array:
    """The mean of ``x`` where ``where`` holds; zero where there is nothing to average. Hidden entries cannot leak."""
    return jnp.where(where, x, 0.0).sum() / jnp.maximum(where.sum(), 1)


def successor_values(
    value: chex.Array,
    last_value: chex.Array,
    value_of_final: Callable[[tuple[chex.Array, chex.Array]], chex.Array],
    truncated: chex.Array,
    most: int,
) -> chex.Array:
    """``[T, E, A]``: the value of each step's true successor, of the rollout's values ``[T, E, A]``.

    ``last_value [E, A]`` is of what comes after the last step. A step that was ``truncated [T, E]`` is followed by its
    episode's final observation: ``value_of_final(at)`` gives these values ``[E, K, A]`` at the times and environments
    ``at``. An environment has at most ``most`` (K) truncations in a rollout.
    """
    next_value = jnp.concatenate([value[1:], last_value[None]])
    when = jax.vmap(partial(jnp.nonzero, size=most, fill_value=0), in_axes=1)(truncated)[0]  # [E, K]
    at = (when, jnp.arange(truncated.shape[1])[:, None])
    return next_value.at[at].set(jnp.where(truncated[at][..., None], value_of_final(at), next_value[at]))
