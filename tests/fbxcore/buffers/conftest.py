"""Fixtures shared by the tests of the buffers."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _quiet():
    """Warnings about cut capacities are not what most tests are about, and real Flashbax warns too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="session")
def flashbax():
    """Real Flashbax, the peer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("flashbax")


@pytest.fixture(scope="session")
def steps():
    """Return timesteps first, first + 1, … of some rows as leaves of three dtypes and shapes."""

    def make(first: int, shape: tuple[int, ...]):
        count = first + np.arange(np.prod(shape[1:], dtype=int)).reshape(1, *shape[1:])
        count = np.broadcast_to(count, shape) + 1000 * np.arange(shape[0]).reshape(
            -1, *[1] * (len(shape) - 1)
        )
        return {
            "count": jnp.asarray(count, jnp.int32),
            "image": jnp.asarray(np.stack([count % 251, count % 7], -1), jnp.uint8),
            "reward": jnp.asarray(count / 2, jnp.float32),
        }

    return make


@pytest.fixture(scope="session")
def timestep(steps):
    """One timestep."""
    return jax.tree.map(lambda x: x[0], steps(0, (1,)))


@pytest.fixture(scope="session")
def same():
    """Return whether two pytrees have equal leaves, bit for bit."""

    def compare(ours, theirs) -> bool:
        pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
        return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)

    return compare
