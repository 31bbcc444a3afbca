"""What a learner works out from a sample, against calculations by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbxcore as fbx
from fbxcore.buffers.replay import importance_weights


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(0.0, [1, 1, 1, 1]), (0.5, [0.5**0.5, 1, 1, 0.5]), (1.0, [0.5, 1, 1, 0.25])],
)
def test_importance_weights_are_those_of_the_paper(beta, expected):
    """(1 / P) ** beta over the greatest, for P of 1/4, 1/8, 1/8 and 1/2."""
    weights = importance_weights(jnp.array([0.25, 0.125, 0.125, 0.5]), beta)

    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_weighted_draws_have_the_mean_of_all_items():
    """With beta 1 the weighted mean over prioritised draws is the plain mean over items, 4.5."""
    buffer = fbx.make_prioritised_item_buffer(
        max_length=10, min_length=1, sample_batch_size=10, add_batches=True, priority_exponent=1.0
    )
    state = buffer.add(buffer.init(jnp.zeros(())), jnp.arange(10.0))
    state = buffer.set_priorities(state, jnp.arange(10), jnp.arange(1.0, 11.0))
    drawn = jax.vmap(buffer.sample, in_axes=(None, 0))(state, jax.random.split(jax.random.key(0), 2000))
    values, shares = drawn.experience.ravel(), drawn.probabilities.ravel()
    weights = importance_weights(shares, 1.0)

    assert abs(float(jnp.mean(values)) - 6.0) < 0.05
    assert abs(float(jnp.sum(weights * values) / jnp.sum(weights)) - 4.5) < 0.05


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [([0.5, 0.0, 0.25], [0.5, 0.0, 1.0]), ([0.0, 0.0], [0.0, 0.0]), ([1e-30, 1.0], [1.0, 1e-30])],
)
def test_importance_weights_and_slopes_are_always_finite(probabilities, expected):
    """Padding of probability 0 has weight 0, and no weight or derivative is NaN or infinite."""
    probabilities = jnp.array(probabilities)
    slopes = jax.grad(lambda p, beta: jnp.sum(importance_weights(p, beta)), argnums=(0, 1))

    np.testing.assert_allclose(importance_weights(probabilities, 1.0), expected, rtol=1e-5)
    assert all(np.isfinite(slope).all() for slope in slopes(probabilities, 0.5))


def test_importance_weights_are_traced_once_for_all_betas():
    """A rising beta is an argument like others, also for a batch of batches."""
    traced = []

    @jax.jit
    def weigh(probabilities, beta):
        traced.append(1)
        return jax.vmap(importance_weights, in_axes=(0, None))(probabilities, beta)

    for beta in (0.4, 0.7, 1.0):
        weights = weigh(jnp.array([[0.5, 0.25], [0.1, 0.9]]), beta)

    assert len(traced) == 1
    np.testing.assert_allclose(weights, [[0.5, 1], [1, 1 / 9]], rtol=1e-6)
