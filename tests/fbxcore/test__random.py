"""Random numbers equal to those of `jax.random`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fbxcore import _loops, _random

KEYS = [jax.random.key(0), jax.random.key(2**31), jax.random.PRNGKey(7)]


@pytest.mark.parametrize("is_looped", [True, False], ids=["loop", "vector"])
@pytest.mark.parametrize("key", KEYS, ids=["typed", "large", "raw"])
def test_integers_are_those_of_randint(key, is_looped, monkeypatch):
    """At bounds from 0 to 2**31 - 1 each integer is the one that `randint` gives, for any key split off."""
    monkeypatch.setattr(_loops, "is_looped", lambda: is_looped)

    @jax.jit
    def ours(data, below):
        def element(indices, keys, below):
            return [[_random.integer(keys, k, i, below) for k in range(3)] for i in indices]

        keys = _random.integer_keys(data, (), (1,), (0, 1))
        return _loops.map_elements(element, 64, keys, below)

    rest, second = jax.random.split(key)
    for below in (0, 1, 7, 1000, 65_537, 2**30, 2**31 - 1):
        drawn = ours(_random.data_of(key), jnp.int32(below))
        for leaf, of in zip(drawn, (key, second, jax.random.split(rest)[1]), strict=True):
            np.testing.assert_array_equal(leaf, jax.random.randint(of, (64,), 0, below, jnp.int32))


@pytest.mark.parametrize("key", KEYS, ids=["typed", "large", "raw"])
def test_splits_and_uniforms_are_those_of_jax(key):
    """The keys of a split, and a number from each, are those `jax.random` gives."""
    keys = jax.random.split(key, 5)
    words = [_random.split(_random.words_of(_random.data_of(key)), i) for i in range(5)]
    data = keys if jnp.issubdtype(keys.dtype, jnp.uint32) else jax.random.key_data(keys)

    np.testing.assert_array_equal(np.asarray(words), data)
    for i in range(5):
        ours = _random.uniform(words[i], jnp.float32(0.25), jnp.float32(0.5))
        assert ours == jax.random.uniform(keys[i], (), jnp.float32, 0.25, 0.5)


def test_only_threefry_keys_are_taken():
    """Keys of another implementation, and Threefry set not to be partitionable, are left to `jax.random`."""
    assert _random.is_threefry(jax.random.key(0)) and _random.is_threefry(jax.random.PRNGKey(0))
    assert not _random.is_threefry(jax.random.key(0, impl="rbg"))
    with jax.threefry_partitionable(False):
        assert not _random.is_threefry(jax.random.key(0))
