"""Random permutations without a sort: ``jax.random.permutation`` takes a quarter of a small PPO update on a CPU."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jax.sharding import get_abstract_mesh

from shoal.hashing import hashed, mix, plain

ROUNDS = 4
SMALL = 8  # sizes up to this are sorted


def permutations(key: chex.PRNGKey, count: int, size: int) -> chex.Array:
    """``[count, size]``: pseudo-random permutations of ``range(size)``, all at once.

    A Feistel network over mixed radices: an index is ``left * B + right`` with ``A * B >= size``; each round adds a
    hash of one half to the other, modulo its radix, which is a bijection whatever the hash. Where ``size`` has no
    balanced factors the grid is larger than the size; then the images that fall outside walk on until they are
    inside, which is again a bijection. A grid of a few fields would give a few orders only, such as the rotations of
    three: random numbers are sorted there, and so they are by a key of another generator (``shoal.hashing``).
    """
    if not plain(key):
        return share_rows(jax.vmap(lambda k: jax.random.permutation(k, size))(jax.random.split(key, count)))
    if size <= SMALL:
        return share_rows(jnp.argsort(jax.random.bits(hashed(key), (count, size)), axis=-1))
    rows, columns = _grid(size)
    seeds = jax.random.bits(hashed(key), (ROUNDS * 2 * count,)).reshape(ROUNDS, 2, count, 1)

    def scramble(index: chex.Array) -> chex.Array:
        left, right = index // columns, index % columns
        for round_seeds in seeds:
            left = (left + mix(right, round_seeds[0]) % rows) % rows
            right = (right + mix(left, round_seeds[1]) % columns) % columns
        return left * columns + right

    index = scramble(jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), (count, size)))
    if rows * columns != size:
        outside = lambda x: x >= size  # noqa: E731
        index = jax.lax.while_loop(lambda x: outside(x).any(), lambda x: jnp.where(outside(x), scramble(x), x), index)
    return share_rows(index.astype(jnp.int32))


def _grid(size: int) -> tuple[int, int]:
    """The most square ``rows * columns == size``, or the smallest near-square grid above it if that is too flat."""
    rows = next(r for r in range(int(np.sqrt(size)), 0, -1) if size % r == 0)
    if rows * 8 >= size // rows:
        return rows, size // rows
    rows = int(np.ceil(np.sqrt(size)))
    return rows, int(np.ceil(size / rows))


def share_rows(x: chex.Array) -> chex.Array:
    """Share the last axis between the devices that share a run's environments; elsewhere ``x`` as it is.

    The mesh is JAX's own for the program that is being traced (``run.placement`` enters it). Laid on the indices of
    minibatches: each device then learns from its rows of every one of them.
    """
    mesh = get_abstract_mesh()
    if "envs" not in mesh.shape or x.shape[-1] % mesh.shape["envs"]:
        return x
    return jax.lax.with_sharding_constraint(x, P(*[None] * (x.ndim - 1), "envs"))
