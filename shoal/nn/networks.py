"""Network parts: dense layers, MLP, CNN, and one parameter set per policy.

``shoal.nn.models`` gives them names for the configuration. All work on the last axis and broadcast over the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from shoal.hashing import hashed

ACTIVATIONS: dict[str, Callable[[chex.Array], chex.Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "silu": nn.silu,
}
ELASTIC_ACTIVATIONS = ("relu", "elu", "gelu")  # that evolution chooses between


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
    if platform() != "cpu" or rows < columns:
        grad_kernel = x.T @ grad
    elif rows == columns:
        grad_kernel = jax.lax.optimization_barrier(x.T) @ grad
    else:
        grad_kernel = jax.lax.optimization_barrier(jax.lax.optimization_barrier(grad.T) @ x).T
    return grad @ kernel.T, grad_kernel


matmul.defvjp(_matmul_forward, _matmul_backward)


def platform() -> str:
    """What the program that is being traced is compiled for: the platform of JAX's mesh, or the default without one."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


LARGE = 500_000  # entries: several of these no longer fit into a core's cache
MOST_BLOCKS = 8  # of such, each of which is compiled


def features_lead(rows: int, features: int) -> bool:
    """Whether a CPU should lay out so many rows as ``[F, B]``: transposing them for a gradient would cost too much."""
    if not isinstance(rows, int):
        return False  # exported for any number of rows
    return rows * features >= LARGE and platform() == "cpu"


@jax.custom_vjp
def matmul_columns(kernel: chex.Array, x: chex.Array) -> chex.Array:
    """``kernel [I, O]`` and columns ``x [I, B]`` to ``[O, B]``.

    No product transposes a large operand: the kernel's gradient contracts the last axis of both of its own, for which
    XLA's CPU backend has a fast kernel.
    """
    return jax.lax.optimization_barrier(kernel.T) @ x


def _columns_forward(kernel, x):
    return matmul_columns(kernel, x), (kernel, x)


def _columns_backward(residuals, grad):
    kernel, x = residuals
    return jax.lax.dot_general(x, grad, (((1,), (1,)), ((), ()))), kernel @ grad


matmul_columns.defvjp(_columns_forward, _columns_backward)


def add_bias(x: chex.Array, bias: chex.Array) -> chex.Array:
    """``x + bias``; the gradient of the bias is summed in float32: bfloat16 counts to 256."""
    return x + jnp.broadcast_to(bias.astype(jnp.float32), x.shape).astype(x.dtype)


class Dense(nn.Module):
    """``x @ kernel + bias`` on the last axis; of ``columns [I, B]`` on the first."""

    features: int
    scale: float = np.sqrt(2.0)
    kernel_init: Callable[..., chex.Array] | None = None  # instead of an orthogonal kernel of this scale

    @nn.compact
    def weights(self, size: int) -> tuple[chex.Array, chex.Array]:
        """Kernel ``[size, features]`` and bias, for one who multiplies by them himself."""
        kernel = self.param("kernel", self.kernel_init or orthogonal(self.scale), (size, self.features))
        return kernel, self.param("bias", nn.initializers.zeros, (self.features,))

    def __call__(self, x: chex.Array, columns: bool = False) -> chex.Array:
        size = x.shape[0 if columns else -1]
        kernel, bias = self.weights(size)
        if columns:
            return add_bias(matmul_columns(kernel, x), bias[:, None])
        flat = x.reshape(-1, size)
        if features_lead(*flat.shape):  # an MLP before it has left them so: two transposes that XLA drops
            flat = add_bias(matmul_columns(kernel, flat.T), bias[:, None]).T
        else:
            flat = add_bias(matmul(flat, kernel), bias)
        return flat.reshape(*x.shape[:-1], self.features)


class Elastic(NamedTuple):
    """The largest that an MLP may become: masks among its parameters say how much of it lives."""

    width: int  # W
    depth: int  # L
    activations: tuple[str, ...]  # that it can change between; one for a fixed one


LIVING, LAYER_ON, ACTIVATION = "arch_living", "arch_on", "arch_activation_"  # parameters that no gradient moves


class MLP(nn.Module):
    """Dense layers, each with its activation (and a layer norm before it, if asked)."""

    widths: Sequence[int] = (64, 64)
    activation: str = "tanh"
    layer_norm: bool = False
    elastic: Elastic | None = None

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        if self.elastic is not None:
            return self._masked(x, self.elastic)
        rows, activate = math.prod(x.shape[:-1]), ACTIVATIONS[self.activation]
        if not self.widths or self.layer_norm or not features_lead(rows, self.widths[-1]):
            for width in self.widths:
                x = Dense(width)(x)
                x = activate(nn.LayerNorm()(x) if self.layer_norm else x)
            return x
        y = jax.lax.optimization_barrier(x.reshape(rows, -1).T)  # [F, B]
        for width in self.widths:
            y = activate(Dense(width)(y, columns=True))
        return y.T.reshape(*x.shape[:-1], -1)

    def _masked(self, x: chex.Array, largest: Elastic) -> chex.Array:
        """The same by ``L`` layers of ``W`` units of which some live; the others are zero and pass no gradient."""
        widths = np.array([*self.widths, *[0] * (largest.depth - len(self.widths))])

        def fixed(name: str, value: Any) -> chex.Array:
            leaf = self.param(name, lambda key, shape: jnp.asarray(value, jnp.float32), np.shape(value))
            return jax.lax.stop_gradient(leaf) > 0.5

        living = fixed(LIVING, np.arange(largest.width) < widths[:, None])  # [L, W]
        on = fixed(LAYER_ON, widths > 0)  # [L] the first of them
        names = largest.activations
        chosen = {n: fixed(ACTIVATION + n, n == self.activation) for n in names if len(names) > 1}
        for layer in range(largest.depth):
            # Every activation is zero at zero, so that masking before it is enough.
            y = jnp.where(living[layer], Dense(largest.width)(x), 0.0)
            y = LivingNorm(name=f"LayerNorm_{layer}")(y, living[layer]) if self.layer_norm else y
            y = _one_of(chosen, y) if chosen else ACTIVATIONS[self.activation](y)
            x = jnp.where(on[layer], y, x) if layer else y
        return x


def _one_of(chosen: dict[str, chex.Array], x: chex.Array) -> chex.Array:
    """``x`` after the activation whose flag is set."""
    first, *others = chosen
    y = ACTIVATIONS[first](x)
    for name in others:
        y = jnp.where(chosen[name], ACTIVATIONS[name](x), y)
    return y


class LivingNorm(nn.Module):
    """flax's layer norm over the ``living [W]`` units of ``x [..., W]``, of which the others are zero."""

    @nn.compact
    def __call__(self, x: chex.Array, living: chex.Array) -> chex.Array:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        count = jnp.maximum(living.sum(), 1)  # a layer that is off has none, and must not make NaN of its gradient
        mean = x.sum(axis=-1, keepdims=True) / count
        variance = jnp.maximum(jnp.square(x).sum(axis=-1, keepdims=True) / count - jnp.square(mean), 0.0)
        scale = jnp.broadcast_to(scale.astype(jnp.float32), x.shape).astype(x.dtype)  # as in add_bias
        return jnp.where(living, add_bias((x - mean) * (jax.lax.rsqrt(variance + 1e-6) * scale), bias), 0.0)


class Conv(nn.Module):
    """A convolution of ``[B, H, W, C]`` by a window of 3 x 3, padded with zeros to the same size."""

    features: int

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        kernel = self.param("kernel", orthogonal(np.sqrt(2.0)), (3, 3, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return add_bias(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC), bias)


NHWC = ("NHWC", "HWIO", "NHWC")  # the axes of images, kernels and results


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
            image = Conv(channels)(image)
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
    keys = jax.random.split(hashed(key), policies)
    model = getattr(module, "model", None)
    if not getattr(model, "elastic", False):
        return jax.vmap(lambda k: module.init(k, *inputs)["params"])(keys)
    # What lives starts as a plain network of that size does, to the bit; the rest is zero.
    plain = init_policies(module.clone(model=dataclasses.replace(model, elastic=False)), key, policies, *inputs)  # type: ignore[type-var]
    whole = jax.vmap(lambda k: module.init(k, *inputs)["params"])(keys)
    known = dict(jax.tree_util.tree_leaves_with_path(plain))
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _padded(known.get(path), path, leaf), whole)


def _padded(small: chex.Array | None, path: Any, whole: chex.Array) -> chex.Array:
    """``small`` with zeros around it to the size of the ``whole``; masks stay as they are."""
    if is_architecture(path):
        return whole
    if small is None:
        return jnp.zeros_like(whole)
    return jnp.pad(small, [(0, size - least) for least, size in zip(small.shape, whole.shape, strict=True)])


def is_architecture(path: Any) -> bool:
    """Whether a leaf at this ``path`` (of ``jax.tree_util``, or ``actor/MLP_0/arch_on``) is a mask, not a weight."""
    last = path.split("/")[-1] if isinstance(path, str) else path[-1]
    return str(getattr(last, "key", last)).startswith("arch_")


_compute = "float32"


def compute_in(dtype: str) -> str:
    """What networks compute in from now on, ``float32`` or ``bfloat16``; gives what it was before.

    Parameters and losses stay float32.
    """
    global _compute
    before, _compute = _compute, dtype
    return before


def apply(module: nn.Module, params: Any, *inputs: Any) -> Any:
    """``module.apply`` in the precision of :func:`compute_in`; what it gives is float32."""
    if _compute == "float32":
        return module.apply({"params": params}, *inputs)

    def cast(tree: Any, old: Any, new: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(new) if x.dtype == old else x, tree)

    params, inputs = cast((params, inputs), jnp.float32, _compute)
    return cast(module.apply({"params": params}, *inputs), _compute, jnp.float32)


def apply_in_blocks(module: nn.Module, params: Any, *inputs: Any) -> Any:
    """:func:`apply`, on a CPU in blocks of the leading axis whose layers stay in the cache.

    Only for a module that says its ``model``, and that this has no memory: then what a row gives depends on it alone.
    """
    model, leaves = getattr(module, "model", None), jax.tree.leaves(inputs)
    if model is None or model.remembers or not model.widths:
        return apply(module, params, *inputs)
    length, width = leaves[0].shape[0], max(model.widths)
    rows = math.prod(leaves[0].shape[:-1])
    if not features_lead(rows, width) or any(len(leaf) != length for leaf in leaves):
        return apply(module, params, *inputs)
    ends = np.linspace(0, length, 1 + min(rows * width // LARGE, MOST_BLOCKS, length)).astype(int)
    blocks = [jax.tree.map(lambda x, part=slice(i, j): x[part], inputs) for i, j in itertools.pairwise(ends)]
    return jax.tree.map(lambda *ys: jnp.concatenate(ys), *(apply(module, params, *block) for block in blocks))


def apply_policies(module: nn.Module, params: Any, policy_of: np.ndarray, *inputs: Any) -> Any:
    """Apply each agent's own parameters; ``params`` has a leading policy axis.

    Every input and output has the agents on its last axis but one, ``[..., A, F]``. A module with ``mixes`` set lets
    agents see each other: it gets all of them under each parameter set, and each agent keeps the row of its own.
    """
    if policy_of.max() == 0:
        return apply_in_blocks(module, jax.tree.map(lambda p: p[0], params), *inputs)
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
