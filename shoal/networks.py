"""Network parts: dense layers, MLP, CNN, and one parameter set per policy.

``shoal.models`` gives them names for the configuration. All work on the last axis and broadcast over the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from envs.hashing import hashed

ACTIVATIONS: dict[str, Callable[[chex.Array], chex.Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}


def orthogonal(scale: float = 1.0) -> Callable[..., chex.Array]:
    """An orthogonal initialiser that needs no LAPACK (a vmapped QR can hang XLA's CPU thread pool for ever).

    The polar factor of a Gaussian matrix is uniform over the orthogonal matrices. Newton and Schulz's iteration
    ``X <- X (3 I - X'X) / 2`` finds it with matrix products alone.
    """

    def init(key: chex.PRNGKey, shape: Sequence[int], dtype: Any = jnp.float32) -> chex.Array:
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        tall = jax.random.normal(key, (rows * columns,)).reshape(max(rows, columns), min(rows, columns))
        # The largest singular value is about the sum of the sides' roots; it converges from up to 1.7 times that.
        tall = tall / (np.sqrt(rows) + np.sqrt(columns))
        identity = jnp.eye(tall.shape[1])

        def iterate(_, x):
            return x @ (1.5 * identity - 0.5 * x.T @ x)

        tall = jax.lax.fori_loop(0, 40, iterate, tall)
        matrix = tall if rows >= columns else tall.T
        return (scale * matrix).reshape(shape).astype(dtype)

    return init


@jax.custom_vjp
def matmul(x: chex.Array, kernel: chex.Array) -> chex.Array:
    """``x [B, I] @ kernel [I, O]``, with a gradient for the kernel that suits XLA's CPU backend.

    That gradient contracts the long batch axis of both operands, for which the backend has no fast kernel: as
    ``x.T @ grad`` a head of five outputs takes eight times the product itself, a square layer twice. Transposing
    the narrower operand first (the barriers keep XLA from folding that back) leaves an ordinary product.
    """
    return x @ kernel


def _matmul_forward(x, kernel):
    return x @ kernel, (x, kernel)


def _matmul_backward(residuals, grad):
    x, kernel = residuals
    rows, columns = kernel.shape
    if jax.default_backend() != "cpu" or rows < columns:
        grad_kernel = x.T @ grad
    elif rows == columns:
        grad_kernel = jax.lax.optimization_barrier(x.T) @ grad
    else:
        grad_kernel = jax.lax.optimization_barrier(jax.lax.optimization_barrier(grad.T) @ x).T
    return grad @ kernel.T, grad_kernel


matmul.defvjp(_matmul_forward, _matmul_backward)


class Dense(nn.Module):
    """``x @ kernel + bias`` on the last axis."""

    features: int
    scale: float = np.sqrt(2.0)
    kernel_init: Callable[..., chex.Array] | None = None  # instead of an orthogonal kernel of this scale

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        kernel = self.param("kernel", self.kernel_init or orthogonal(self.scale), (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        flat = matmul(x.reshape(-1, x.shape[-1]), kernel)
        return flat.reshape(*x.shape[:-1], self.features) + bias


class MLP(nn.Module):
    """Dense layers, each with its activation (and a layer norm before it, if asked)."""

    widths: Sequence[int] = (64, 64)
    activation: str = "tanh"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        for width in self.widths:
            x = Dense(width)(x)
            x = nn.LayerNorm()(x) if self.layer_norm else x
            x = ACTIVATIONS[self.activation](x)
        return x


class CNN(nn.Module):
    """Convolutions over an image that arrives flattened, then an MLP.

    ``shape`` is ``(H, W, C)``; what stands behind the image in the observation (an agent's id) joins before the MLP.
    """

    shape: tuple[int, ...]
    channels: Sequence[int] = (32, 32)
    widths: Sequence[int] = (64,)
    activation: str = "relu"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        size = int(np.prod(self.shape))
        image, rest = x[..., :size], x[..., size:]
        image = image.reshape(-1, *self.shape)
        for channels in self.channels:
            image = nn.Conv(channels, (3, 3), kernel_init=orthogonal(np.sqrt(2.0)))(image)
            image = ACTIVATIONS[self.activation](image)
        flat = jnp.concatenate([image.reshape(*x.shape[:-1], -1), rest], axis=-1)
        return MLP(self.widths, self.activation, self.layer_norm)(flat)


SHARING = ("shared", "group", "independent")


def policy_of_agent(sharing: str, group_ids: np.ndarray) -> np.ndarray:
    """``[A]``: which parameter set each agent uses under ``shared | group | independent``."""
    if sharing == "shared":
        return np.zeros_like(group_ids)
    return group_ids if sharing == "group" else np.arange(len(group_ids))


def init_policies(module: nn.Module, key: chex.PRNGKey, policies: int, *inputs: chex.Array) -> Any:
    """One parameter set per policy, stacked on a leading axis ``[P, ...]``."""
    return jax.vmap(lambda k: module.init(k, *inputs)["params"])(jax.random.split(hashed(key), policies))


_compute = "float32"


def compute_in(dtype: str) -> None:
    """What networks compute in from now on, ``float32`` or ``bfloat16``; parameters and losses stay float32."""
    global _compute
    _compute = dtype


def apply(module: nn.Module, params: Any, *inputs: Any) -> Any:
    """``module.apply`` in the precision of :func:`compute_in`; what it gives is float32."""
    if _compute == "float32":
        return module.apply({"params": params}, *inputs)

    def cast(tree: Any, old: Any, new: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(new) if x.dtype == old else x, tree)

    params, inputs = cast((params, inputs), jnp.float32, _compute)
    return cast(module.apply({"params": params}, *inputs), _compute, jnp.float32)


def apply_policies(module: nn.Module, params: Any, policy_of: np.ndarray, *inputs: Any) -> Any:
    """Apply each agent's own parameters; ``params`` has a leading policy axis.

    Every input and output has the agents on its last axis but one, ``[..., A, F]``. A module with ``mixes`` set lets
    agents see each other: it gets all of them under each parameter set, and each agent keeps the row of its own.
    """
    if policy_of.max() == 0:
        return apply(module, jax.tree.map(lambda p: p[0], params), *inputs)
    if getattr(module, "mixes", False):
        by_policy = jax.vmap(lambda p: apply(module, p, *inputs))(params)
        agents = np.arange(len(policy_of))
        return jax.tree.map(lambda y: jnp.moveaxis(jnp.moveaxis(y, -2, 1)[policy_of, agents], 0, -2), by_policy)
    per_agent = jax.tree.map(lambda p: p[policy_of], params)
    # Agents lead inside, so that each one's rows are contiguous for its matrix product.
    leading = jax.tree.map(lambda x: jnp.moveaxis(x, -2, 0), inputs)
    by_agent = jax.vmap(lambda p, rows: apply(module, p, *rows))(per_agent, leading)
    return jax.tree.map(lambda y: jnp.moveaxis(y, 0, -2), by_agent)


def per_row(flag: chex.Array, rows: chex.Array) -> chex.Array:
    """A ``flag [...]`` of the environment for each of its ``rows [..., A, F]``: ``[..., A, 1]``."""
    return jnp.broadcast_to(flag[..., None, None], (*rows.shape[:-1], 1))
