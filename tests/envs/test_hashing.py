"""Hashed random numbers: as good as random for what they are used for."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal import hashing
from shoal.hashing import hashed, key_of, replace_stream, split
from shoal.rl.shuffle import permutations

KEY = jax.random.PRNGKey(7)


def as_bits(words) -> np.ndarray:
    """``[..., 32]``, of words."""
    return (np.asarray(words)[..., None] >> np.arange(32, dtype=np.uint32)) & 1


def test_every_bit_of_key_and_counter_reaches_every_bit_of_a_word():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**32, (2000, 2), dtype=np.uint32)
    keys[:, 0] = 0  # as the keys of seeds have it
    counters = np.arange(2000, dtype=np.uint32)
    words = jax.jit(jax.vmap(hashing._words))
    before = as_bits(words(keys, counters))
    flips = [np.eye(1, 3, word, dtype=np.uint32)[0] << np.uint32(bit) for word in range(3) for bit in range(32)]
    for flip in flips:
        after = as_bits(words(keys ^ flip[:2], counters ^ flip[2]))
        changed = (before != after).mean(axis=0)  # [32]
        assert np.abs(changed - 0.5).max() < 0.1, flip


def test_numbers_of_one_key_and_of_neighbours_are_independent_and_normal():
    from scipy import stats

    keys = jax.random.split(hashed(KEY), 64)
    draws = np.asarray(jax.vmap(lambda k: jax.random.normal(k, (4096,)))(keys))
    assert stats.kstest(draws.ravel(), "norm").pvalue > 0.01
    correlation = np.corrcoef(draws) - np.eye(64)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(4096)
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(draws[:, lag:].ravel(), draws[:, :-lag].ravel())[0, 1]) < 5 / np.sqrt(draws.size)
    folded = jax.vmap(lambda n: jax.random.fold_in(hashed(KEY), n))(jnp.arange(1000))
    assert len(np.unique(jax.random.key_data(folded), axis=0)) == 1000


def test_widths_of_bits():
    for width in (8, 16, 32):
        bits = jax.random.bits(hashed(KEY), (10_000,), f"uint{width}")
        assert bits.dtype == f"uint{width}"
        assert abs(np.asarray(bits, float).mean() / 2**width - 0.5) < 0.02


def test_splits_differ_and_go_on_differing():
    def chain(key, _):
        key, *others = split(key, 4)
        return key, jnp.stack(others)

    for seed in range(3):
        _, keys = jax.lax.scan(chain, jax.random.PRNGKey(seed), length=20_000)
        assert len(np.unique(keys.reshape(-1, 2), axis=0)) == 60_000
    bits = as_bits(keys.reshape(-1, 2)).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 0.02


def test_a_generator_that_the_user_has_chosen_stays():
    key = jax.random.key(0, impl="rbg")
    assert jax.random.key_impl(split(key, 3)) == "rbg"
    assert np.asarray(jax.random.normal(hashed(key), (3,))).shape == (3,)


def test_every_kind_of_key_splits_into_a_shape():
    for key in (KEY, jax.random.key(0), jax.random.key(0, impl="rbg"), hashed(KEY)):
        keys = split(key, (3, 2))
        assert keys.dtype == key.dtype
        assert keys.shape == (3, 2, *key.shape)
        words = np.asarray(jax.random.key_data(keys))
        assert len(np.unique(words.reshape(6, -1), axis=0)) == 6
        np.testing.assert_array_equal(words.reshape(6, -1), jax.random.key_data(split(key, 6)))


def test_streams_and_generators_of_a_seed():
    words = jnp.array([0, 7], jnp.uint32)
    np.testing.assert_array_equal(key_of(words, "hash"), KEY)
    assert key_of(words, "threefry") == jax.random.key(7)
    np.testing.assert_array_equal(replace_stream(KEY, 5), [5, 7])
    np.testing.assert_array_equal(jax.random.key_data(replace_stream(key_of(words, "threefry"), 5)), [5, 7])
    with jax.default_prng_impl("rbg"):
        key = key_of(words, "hash")
        np.testing.assert_array_equal(key, [0, 7, 0, 7])
        np.testing.assert_array_equal(replace_stream(key, 5), [5, 7, 5, 7])
        assert np.isfinite(jax.random.normal(split(hashed(key))[1], (3,))).all()


def test_a_typed_key_uses_no_hash():
    """Weights and shuffles are those of its generator."""
    key = jax.random.key(3)
    assert hashed(key) == key
    orders = [jax.random.permutation(k, 100) for k in jax.random.split(key)]
    np.testing.assert_array_equal(permutations(key, 2, 100), orders)


def test_fold_in_separates_every_word():
    """Each word of the new key is a bijection of the number: no two of 2 ** 32 numbers give the same key."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, 20_000, dtype=np.uint32)
    pairs = np.concatenate([words, words ^ np.uint32(2**31), np.arange(1000, dtype=np.uint32)])
    powers = np.uint32(1) << np.arange(32, dtype=np.uint32)
    pairs = np.unique(np.concatenate([pairs, powers, ~powers, np.array([5, 5 + 2**31], np.uint32)]))
    for key in (KEY, jnp.zeros(2, jnp.uint32)):
        fold = jax.jit(lambda numbers, key: jax.vmap(lambda n: jax.random.fold_in(hashed(key), n))(numbers))
        folded = np.asarray(jax.random.key_data(fold(pairs, key)))
        for column in folded.T:
            assert len(np.unique(column)) == len(pairs)
        bits = as_bits(folded)
        assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.02
        assert np.abs((bits[:, 0] != bits[:, 1]).mean(axis=0) - 0.5).max() < 0.02  # the words are of two minds
        split_words = np.asarray(jax.random.key_data(jax.random.split(hashed(key), 1000)))
        assert not set(map(tuple, folded)) & set(map(tuple, split_words))
