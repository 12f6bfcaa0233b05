"""Random numbers that are cheap to compile: for keys, first weights and shuffles, not for acting or environments.

JAX's own generator costs a CPU program many small kernels at every use, and flax uses it twice for every parameter:
first weights were most of what the start of a training took to compile. A hash of key and counter is one expression,
which melts into what reads it. What is drawn from a key of :func:`split` comes from JAX's own generator.

All of this holds for plain keys, ``jax.random.PRNGKey(0)``. A typed key, ``jax.random.key(0)``, or one of ``rbg``
draws, splits and shuffles by its generator alone: a training that starts from such a key uses no hash.
"""

from __future__ import annotations

import math

import chex
import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

GOLDEN = 0x9E3779B1


def mix(x: chex.Array, seed: chex.Array) -> chex.Array:
    """A well-mixed 32-bit hash (two rounds of xor-shift and multiply); for a fixed seed a bijection."""
    x = (x ^ seed) * jnp.uint32(GOLDEN)
    x = (x ^ (x >> 15)) * jnp.uint32(0x85EBCA77)
    return x ^ (x >> 13)


def _words(key: chex.Array, counter: chex.Array) -> chex.Array:
    """One word for every counter: both words of the ``key [2]`` go in, one after the other."""
    return mix(mix(mix(counter, key[0]), key[1]), key[0] ^ (key[1] >> 7))


def _seed(seed: chex.Array) -> chex.Array:
    return jnp.stack([mix(jnp.uint32(seed), jnp.uint32(1)), mix(jnp.uint32(seed), jnp.uint32(2))])


def _split(key: chex.Array, shape: tuple[int, ...]) -> chex.Array:
    counter = jax.lax.iota(jnp.uint32, 2 * math.prod(shape)).reshape(*shape, 2)
    return _words(key ^ jnp.uint32(0xA511E9B3), counter)


def _fold_in(key: chex.Array, data: chex.Array) -> chex.Array:
    # Each word by itself is a bijection of the data.
    return jnp.stack([_words(key ^ jnp.uint32(salt), jnp.uint32(data)) for salt in (0x63D83595, 0x1B873593)])


def _bits(key: chex.Array, bit_width: int, shape: tuple[int, ...]) -> chex.Array:
    words = _words(key, jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape))
    if bit_width == 64:
        return words.astype(jnp.uint64) << 32 | _words(key ^ jnp.uint32(GOLDEN), words)
    return (words >> (32 - bit_width)).astype(f"uint{bit_width}")


HASH = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_bits, fold_in=_fold_in, name="shoal_hash", tag="hash"
)


def hashed(key: chex.PRNGKey) -> chex.PRNGKey:
    """A key whose numbers are hashes, of a plain key; a key of another generator keeps that generator."""
    if plain(key):
        return jax.random.wrap_key_data(key, impl=HASH)
    return key if _typed(key) else jax.random.wrap_key_data(key)


def split(key: chex.PRNGKey, shape: int | tuple[int, ...] = 2) -> chex.PRNGKey:
    """``jax.random.split``, of a plain key by hashes: a key, or an array of keys of this ``shape``."""
    if plain(key):
        return _split(key, (shape,) if isinstance(shape, int) else shape)
    return jax.random.split(key, shape)


def plain(key: chex.PRNGKey) -> bool:
    """Whether a key is two bare words, as ``PRNGKey`` makes it: no typed key, and none of ``rbg``, which has four."""
    return not _typed(key) and key.shape[-1] == 2


def key_of(words: chex.Array, generator: str) -> chex.PRNGKey:
    """The key of two ``words [2]``: a typed one for ``threefry``, one like ``PRNGKey`` makes for ``hash``."""
    if generator == "threefry":
        return jax.random.wrap_key_data(words, impl="threefry2x32")
    if jax.config.jax_default_prng_impl == "threefry2x32":  # type: ignore[attr-defined]
        return words
    return jnp.concatenate([words, words])  # as rbg's


def replace_stream(key: chex.PRNGKey, stream: int) -> chex.PRNGKey:
    """The key with ``stream`` as its first word: of a seed's key, numbers that no other stream draws."""
    data = jax.random.key_data(key)
    data = data.at[::2].set(stream)  # a key of rbg is two keys of two words
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key)) if _typed(key) else data


def _typed(key: chex.PRNGKey) -> bool:
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
