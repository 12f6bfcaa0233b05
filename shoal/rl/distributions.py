"""Policies' action distributions, and noise that is drawn for a whole rollout at once.

A policy head gives ``[..., A, H]`` numbers; :func:`policy` turns them into a distribution. Sampling is a pure
function of noise (``pi.sample_from(noise)``), because one large draw per rollout is far cheaper than a small one
per step. A continuous policy is a normal over *raw* actions; what the environment gets is ``to_env(raw)``. The
change of variables does not depend on the parameters at a fixed raw action, so PPO's probability ratio is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import chex
import distrax
import jax
import jax.numpy as jnp

from shoal.envs.base import ActionSpace, Continuous, Discrete, MultiDiscrete

MAX_LOGIT = 1e30  # legal logits are held within this, far below and above what float32 can tell from certainty
ILLEGAL = -1e32  # a logit below every legal one, never sampled; finite so that entropies and gradients stay finite
LOG_STD_RANGE = (-5.0, 2.0)
KINDS = ("tanh_normal", "clipped_normal")


class Categorical:
    """A categorical over the legal actions.

    Choosing needs no probabilities; where these are asked for, the choices lead: XLA's CPU code for ``[N, ..., A]`` is
    vectorised over the rows, that for a short last axis is not.
    """

    def __init__(self, logits: chex.Array, mask: chex.Array):
        self.scores = _legal(logits, mask)  # [..., N], not normalised

    def sample_from(self, noise: chex.Array) -> chex.Array:
        """The Gumbel-max trick: ``noise`` is standard Gumbel, ``[..., N]``."""
        return jnp.argmax(self.scores + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> chex.Array:
        return jnp.argmax(self.scores, axis=-1).astype(jnp.int32)

    @property
    def log_probs(self) -> chex.Array:
        """``[N, ...]``."""
        return jax.nn.log_softmax(jnp.moveaxis(self.scores, -1, 0), axis=0)

    @property
    def logits(self) -> chex.Array:
        """The same as ``[..., N]``."""
        return jax.nn.log_softmax(self.scores)

    def log_prob(self, value: chex.Array) -> chex.Array:
        # A comparison with the number of each choice fuses into the reduction; a gather does not.
        log_probs = self.log_probs
        log_probs = jnp.expand_dims(log_probs, range(1, 2 + value.ndim - log_probs.ndim))  # several values of each
        number = jnp.arange(len(log_probs)).reshape(-1, *[1] * value.ndim)
        return jnp.where(value == number, log_probs, 0.0).sum(0)

    def entropy(self) -> chex.Array:
        log_probs = self.log_probs
        return -(jnp.exp(log_probs) * log_probs).sum(0)


class MultiCategorical:
    """Independent categoricals over the legal choices of each sub-action, which stand side by side in ``logits``."""

    def __init__(self, logits: chex.Array, mask: chex.Array, parts: tuple[int, ...]):
        self.edges = list(itertools.accumulate(parts))[:-1]
        self.parts = [Categorical(*part) for part in zip(self._split(logits), self._split(mask), strict=True)]

    def _split(self, x: chex.Array) -> list[chex.Array]:
        return jnp.split(x, self.edges, axis=-1)  # slices: cheaper than one padded [..., D, N] array

    def sample_from(self, noise: chex.Array) -> chex.Array:
        """``[..., D]``; ``noise`` is standard Gumbel, ``[..., N]``."""
        drawn = zip(self.parts, self._split(noise), strict=True)
        return jnp.stack([part.sample_from(part_noise) for part, part_noise in drawn], axis=-1)

    def mode(self) -> chex.Array:
        """``[..., D]``."""
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def log_prob(self, value: chex.Array) -> chex.Array:
        """Of all sub-actions ``[..., D]`` together."""
        return sum(part.log_prob(value[..., d]) for d, part in enumerate(self.parts))

    def entropy(self) -> chex.Array:
        """Of all sub-actions together."""
        return sum(part.entropy() for part in self.parts)


class Normal(distrax.Normal):
    """Independent normals over the dimensions that an agent has, then squashed or clipped into the action bounds."""

    def __init__(self, mean: chex.Array, log_std: chex.Array, mask: chex.Array, squash: bool):
        super().__init__(loc=mean, scale=jnp.exp(log_std))
        self.log_std, self.mask, self.squash = log_std, mask, squash

    def sample_from(self, noise: chex.Array) -> chex.Array:
        """``noise`` is standard normal, ``[..., N]``."""
        return self.loc + self.scale * noise

    def sample_and_log_prob(self, noise: chex.Array) -> tuple[chex.Array, chex.Array]:
        """A raw action, and the log density on ``(-1, 1)`` of what tanh makes of it, both with their gradients.

        .. math::
            \\log p(\\tanh u) = \\log N(u; \\mu, \\sigma) - \\log(1 - \\tanh^2 u), \\qquad u = \\mu + \\sigma \\epsilon
        """
        raw = self.sample_from(noise)
        log_normal = -0.5 * (jnp.square(noise) + jnp.log(2.0 * jnp.pi)) - self.log_std
        return raw, jnp.where(self.mask, log_normal - _log_tanh_slope(raw), 0.0).sum(-1)

    def log_prob(self, value: chex.Array) -> chex.Array:
        """Of a raw action, without the change of variables (which cancels in a ratio)."""
        value, mean, log_std, mask = self._leading(value, self.loc, self.log_std, self.mask)
        distance = (value - mean) * jnp.exp(-log_std)
        return jnp.where(mask, -0.5 * (jnp.square(distance) + jnp.log(2.0 * jnp.pi)) - log_std, 0.0).sum(0)

    def entropy(self) -> chex.Array:
        """Of the raw normal; squashed, plus the log volume change at the mode, a first-order estimate."""
        mean, log_std, mask = self._leading(self.loc, self.log_std, self.mask)
        entropy = 0.5 + 0.5 * jnp.log(2.0 * jnp.pi) + log_std
        if self.squash:
            entropy = entropy + _log_tanh_slope(mean)
        return jnp.where(mask, entropy, 0.0).sum(0)

    @staticmethod
    def _leading(*arrays: chex.Array) -> list[chex.Array]:
        """The dimensions ``[N, ...]`` first, as the choices of a :class:`Categorical`."""
        most = max(x.ndim for x in arrays)  # several values of each
        return [jnp.moveaxis(jnp.expand_dims(x, range(most - x.ndim)), -1, 0) for x in arrays]


def _log_tanh_slope(raw: chex.Array) -> chex.Array:
    """``log(1 - tanh(raw)^2)`` without cancellation."""
    return 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))


def head_size(space: ActionSpace) -> int:
    """``H``: how many numbers :func:`policy` needs per agent."""
    return 2 * space.size if isinstance(space, Continuous) else space.size


def policy(
    space: ActionSpace, outputs: chex.Array, mask: chex.Array, kind: str = "tanh_normal"
) -> Categorical | MultiCategorical | Normal:
    """The distribution that the head's ``outputs [..., A, H]`` describe."""
    if isinstance(space, Discrete):
        return Categorical(outputs, mask)
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(outputs, mask, space.parts)
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return Normal(mean, jnp.clip(log_std, *LOG_STD_RANGE), mask, squash=kind == "tanh_normal")


def noise(key: chex.PRNGKey, space: ActionSpace, shape: tuple[int, ...]) -> chex.Array:
    """The noise that ``sample_from`` needs: ``shape + [A, N]``."""
    shape = (*shape, len(space.sizes), space.size)
    draw = jax.random.normal if isinstance(space, Continuous) else jax.random.gumbel
    # Drawn flat: threefry over several axes takes XLA several times as long to compile.
    return draw(key, (math.prod(shape),)).reshape(shape)


def to_env(space: ActionSpace, raw: chex.Array, kind: str = "tanh_normal") -> chex.Array:
    """The environment's action for a raw one: unchanged if discrete, else inside the bounds."""
    if not isinstance(space, Continuous):
        return raw
    centre, half = (space.high + space.low) / 2, (space.high - space.low) / 2
    return centre + half * (jnp.tanh(raw) if kind == "tanh_normal" else jnp.clip(raw, -1.0, 1.0))


def one_hot(space: ActionSpace, scores: chex.Array, mask: chex.Array) -> chex.Array:
    """The legal choice with the highest of ``scores [..., A, N]`` in each sub-action, as zeros and ones."""

    def best(scores):
        return jax.nn.one_hot(jnp.argmax(scores, axis=-1), scores.shape[-1])

    return _by_part(space, best, _legal(scores, mask))


def straight_through(space: ActionSpace, scores: chex.Array, mask: chex.Array, temperature: chex.Numeric) -> chex.Array:
    """:func:`one_hot` with the gradient of a softmax: of Gumbel's (Jang et al. 2017) if ``scores`` hold its noise."""
    soft = _by_part(space, jax.nn.softmax, _legal(scores, mask) / temperature)
    return one_hot(space, scores, mask) + (soft - jax.lax.stop_gradient(soft))


def from_vector(space: ActionSpace, vector: chex.Array) -> chex.Array:
    """The environment's action for a vector ``[..., A, N]``: of :func:`one_hot`, or in ``[-1, 1]`` if continuous."""
    if isinstance(space, Continuous):
        return to_env(space, vector, "clipped_normal")
    if isinstance(space, Discrete):
        return jnp.argmax(vector, axis=-1).astype(jnp.int32)
    parts = jnp.split(vector, _edges(space), axis=-1)
    return jnp.stack([jnp.argmax(part, axis=-1) for part in parts], axis=-1).astype(jnp.int32)


def _legal(scores: chex.Array, mask: chex.Array) -> chex.Array:
    return jnp.where(mask, jnp.clip(scores, -MAX_LOGIT, MAX_LOGIT), ILLEGAL)


def _by_part(space: ActionSpace, apply: Callable[[chex.Array], chex.Array], x: chex.Array) -> chex.Array:
    return jnp.concatenate([apply(part) for part in jnp.split(x, _edges(space), axis=-1)], axis=-1)


def _edges(space: ActionSpace) -> list[int]:
    return list(itertools.accumulate(space.parts))[:-1] if isinstance(space, MultiDiscrete) else []
