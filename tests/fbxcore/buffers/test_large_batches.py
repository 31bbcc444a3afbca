"""Batches so large that all walk down the sum tree at once, and not in a loop: the same samples."""

import jax
import jax.numpy as jnp
import pytest

import fbxcore as fbx
from fbxcore.buffers import sum_tree

ITEM = {"max_length": 2000, "min_length": 2, "add_batches": True}
TRAJECTORY = {
    "add_batch_size": 4,
    "sample_sequence_length": 3,
    "period": 2,
    "min_length_time_axis": 3,
    "max_length_time_axis": 250,
}
KINDS = {
    "make_item_buffer": ITEM,
    "make_prioritised_item_buffer": ITEM,
    "make_trajectory_buffer": TRAJECTORY,
    "make_prioritised_trajectory_buffer": TRAJECTORY,
}


@pytest.mark.parametrize("num", [sum_tree.FEW, sum_tree.FEW + 1, 1500])
@pytest.mark.parametrize("name", KINDS)
def test_a_large_batch_is_what_flashbax_draws(flashbax, same, name, num):
    """On both sides of the limit the same key gives the same sample, from a buffer that has wrapped."""
    batches = [jnp.arange(first, first + 700.0) for first in (0.0, 700.0, 1400.0)]
    if KINDS[name] is TRAJECTORY:
        batches = [jnp.stack([batch[:150] + 1e4 * row for row in range(4)]) for batch in batches]
    drawn = []
    for library in (fbx, flashbax):
        buffer = getattr(library, name)(sample_batch_size=num, **KINDS[name])
        state = buffer.init({"x": jnp.float32(0)})
        for batch in batches:
            state = buffer.add(state, {"x": batch})
        drawn.append(buffer.sample(state, jax.random.key(3)).experience)

    assert same(*drawn)
