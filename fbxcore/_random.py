"""Random numbers equal to those of `jax.random` for the same key, in a fraction of its time on a CPU.

JAX lowers Threefry on a CPU as loops over tiny kernels, which took most of the time of drawing a sample.
Here its 20 rounds (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3") are written out
and give one element at a time, for loops (`_loops`). Other key implementations, and Threefry where it is
set not to be partitionable, must go through `jax.random`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbxcore import _loops
from fbxcore.types import Array, PRNGKey

Words = tuple[Array, Array]
"""The two uint32 of a Threefry key."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def is_threefry(key: PRNGKey) -> bool:
    """Return whether the functions of words below give what `jax.random` gives for this key."""
    if not jax.config.jax_threefry_partitionable:
        return False
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(key)) == "threefry2x32"
    return jax.config.jax_default_prng_impl == "threefry2x32"


def data_of(key: PRNGKey) -> Array:
    """Return a key's two words as one array."""
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jnp.asarray(key)


def words_of(data: Array) -> Words:
    """Return the two words of `data_of`."""
    return data[0], data[1]


def split(words: Words, index: Array | int) -> Words:
    """Return the words of the key that `jax.random.split` gives at an index."""
    index = jnp.asarray(index, jnp.uint32)
    return _hash(*words, jnp.zeros_like(index), index)


def integer_keys(data: Array, *paths: tuple[int, ...]) -> Array:
    """Return the keys `[2 n, 2]`, and more, from which `integer` draws with each of n keys.

    Args:
        paths: which keys, by the splits that lead to each from the one given: `(0, 1)` is
            `split(split(key)[0])[1]`, and `()` the key itself.
    """
    wanted = [(*path, half) for path in paths for half in (0, 1)]
    above = {path[:end] for path in wanted for end in range(1, len(path))} - set(wanted)
    nodes = [*wanted, *sorted(above), ()]
    order = sorted(nodes[:-1], key=len)
    places, parents, indices = np.array(
        [(nodes.index(path), nodes.index(path[:-1]), path[-1]) for path in order], np.int32
    ).T

    def looped(data: Array) -> Array:
        def put(turn: Array, keys: Array) -> Array:
            place, parent, index = (_loops.at(jnp.asarray(x), turn) for x in (places, parents, indices))
            return _loops.put_at(keys, place, jnp.stack(split(words_of(_loops.at(keys, parent)), index)))

        keys = jnp.zeros((len(nodes), 2), jnp.uint32).at[-1].set(data)
        return lax.fori_loop(jnp.int32(0), jnp.int32(len(order)), put, keys)

    def unrolled(data: Array) -> Array:
        keys = {(): words_of(data)}
        for path in order:
            keys[path] = split(keys[path[:-1]], path[-1])
        return jnp.stack([jnp.stack(keys[path]) for path in nodes])

    return _loops.choose(looped, unrolled, data)


def integer(keys: Array, k: int, index: Array, below: Array) -> Array:
    """Return what `jax.random.randint(key, (n,), 0, below, "int32")` gives at an index.

    Args:
        keys: of `integer_keys`, of which the kth path leads to the key.
        below: int32; where it is not positive the result is 0.
    """
    span = jnp.maximum(below, 1).astype(jnp.uint32)
    multiplier = jnp.uint32(1 << 16) % span
    multiplier = multiplier * multiplier % span
    high, low = (bits(words_of(keys[2 * k + half]), index) % span for half in (0, 1))
    return ((high * multiplier + low) % span).astype(jnp.int32)


def uniform(words: Words, low: Array, high: Array) -> Array:
    """Return what `jax.random.uniform(key, (), "float32", low, high)` gives."""
    mantissa = (bits(words, jnp.zeros_like(words[0])) >> 9) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1.0
    return jnp.maximum(low, unit * (high - low) + low)


def bits(words: Words, index: Array) -> Array:
    """Return the 32 random bits at an index."""
    first, second = split(words, index)
    return first ^ second


def _hash(key0: Array, key1: Array, word0: Array, word1: Array) -> tuple[Array, Array]:
    """Return the Threefry-2x32 hash of two words of counts under a key of two words."""
    keys = (key0, key1, key0 ^ key1 ^ jnp.uint32(_PARITY))
    word0, word1 = word0 + key0, word1 + key1
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            word0 = word0 + word1
            word1 = word0 ^ ((word1 << rotation) | (word1 >> (32 - rotation)))
        word0 = word0 + keys[(group + 1) % 3]
        word1 = word1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return word0, word1
