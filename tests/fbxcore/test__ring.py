"""Reading and writing rings against indexing in NumPy, for leaves of any size, on any device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fbxcore import _ring

LEAVES = {
    "frame": ((32, 32, 3), np.uint8),
    "floats": ((2, 99), np.float32),
    "empty": ((0,), np.float32),
    "small": ((3,), np.int16),
    "number": ((), np.float32),
    "flag": ((), np.bool_),
}


@pytest.mark.parametrize("is_mapped", [False, True], ids=["windows", "gathers"])
@pytest.mark.parametrize("length", [1, 2, 9, 11])
def test_every_leaf_is_read_as_numpy_would(length, is_mapped):
    """From every slot of both rows, wrapping or not, leaves of any size, 0 too, are what indexing gives."""
    rng = np.random.default_rng(length)
    ring = {n: rng.integers(0, 120, (2, 11, *shape)).astype(dtype) for n, (shape, dtype) in LEAVES.items()}
    rows, starts = np.divmod(np.arange(22, dtype=np.int32), 11)

    read = functools.partial(_ring.read, length=length)
    given = jax.tree.map(jnp.asarray, (ring, rows, starts))
    if is_mapped:
        given, read = jax.tree.map(lambda x: x[None], given), jax.vmap(read)
    ours = jax.tree.map(lambda x: x[0] if is_mapped else x, jax.jit(read)(*given))

    slots = (starts[:, None] + np.arange(length)) % 11
    for name, leaf in ring.items():
        np.testing.assert_array_equal(ours[name], leaf[rows[:, None], slots])


@pytest.mark.parametrize("is_mapped", [False, True], ids=["loops", "scatters"])
def test_rows_are_written_as_numpy_would(is_mapped):
    """At any index and length of each row, wrapping or not, the batch is written without its padding."""
    rng = np.random.default_rng(0)
    write = jax.jit(jax.vmap(_ring.write_rows) if is_mapped else _ring.write_rows)
    for _ in range(20):
        ring = {"x": rng.integers(0, 99, (3, 7, 2)), "y": rng.integers(0, 99, (3, 7))}
        batch = {"x": rng.integers(100, 199, (3, 5, 2)), "y": rng.integers(100, 199, (3, 5))}
        given = ring, batch, rng.integers(0, 7, 3), rng.integers(0, 6, 3)
        given = jax.tree.map(np.int32, given)
        expected = jax.tree.map(np.copy, given[0])
        for row, (index, length) in enumerate(zip(*given[2:], strict=True)):
            for name, leaf in expected.items():
                leaf[row, (index + np.arange(length)) % 7] = given[1][name][row, :length]

        ours = write(*jax.tree.map(lambda x: x[None], given)) if is_mapped else write(*given)

        for name, leaf in expected.items():
            np.testing.assert_array_equal(np.squeeze(ours[name]), leaf)
