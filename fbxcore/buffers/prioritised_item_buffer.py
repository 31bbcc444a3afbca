"""A buffer of independent items, sampled in proportion to their priorities.

It is a prioritised trajectory buffer of one row and sequences of one timestep; see
`prioritised_trajectory_buffer` for the priorities and `item_buffer` for the axes of a batch.
"""

from __future__ import annotations

import functools

from fbxcore import _checks
from fbxcore.buffers import item_buffer, prioritised_trajectory_buffer
from fbxcore.buffers.layout import layout_of
from fbxcore.buffers.prioritised_trajectory_buffer import (
    PrioritisedTrajectoryBuffer,
    PrioritisedTrajectoryBufferSample,
    PrioritisedTrajectoryBufferState,
)
from fbxcore.types import PRNGKey


def sample(
    state: PrioritisedTrajectoryBufferState, rng_key: PRNGKey, batch_size: int
) -> PrioritisedTrajectoryBufferSample:
    """Draw items `[N, ...]` in proportion to their weights."""
    drawn = prioritised_trajectory_buffer.prioritised_sample(state, rng_key, batch_size, 1, 1)
    return drawn.replace(experience=item_buffer.without_time(drawn.experience))


def make_prioritised_item_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batches: bool = False,
    priority_exponent: float = 0.6,
    device: str = "cpu",
) -> PrioritisedTrajectoryBuffer:
    """Make a buffer of independent items with priorities.

    Args:
        max_length: items it can hold.
        min_length: items it must hold before it may be sampled.
        sample_batch_size: items N in a sample.
        add_sequences: whether batches have a time axis.
        add_batches: whether batches have an axis of batches, before the time axis.
        priority_exponent: a, from 0 (all drawable items alike) to 1.
        device: what the buffer runs on, "cpu", "gpu" or "tpu".

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_prioritised_item_buffer(
        ...     max_length=100, min_length=1, sample_batch_size=4, add_batches=True
        ... )
        >>> state = buffer.add(buffer.init({"obs": jnp.zeros(3)}), {"obs": jnp.ones((5, 3))})
        >>> buffer.sample(state, jax.random.key(0)).indices.shape
        (4,)
    """
    layout = layout_of(
        "prioritised_item",
        {
            "max_length": max_length,
            "min_length": min_length,
            "sample_batch_size": sample_batch_size,
            "add_sequences": bool(add_sequences),
            "add_batches": bool(add_batches),
            "priority_exponent": priority_exponent,
            "device": device,
        },
    )
    _checks.warn(layout.warnings)
    buffer = prioritised_trajectory_buffer.buffer_of(layout, _checks.check_device(device))
    num_axes = bool(add_sequences) + bool(add_batches)
    return buffer.replace(
        add=functools.partial(item_buffer.add, num_axes=num_axes, add_rows=buffer.add),
        sample=functools.partial(sample, batch_size=layout.sample_batch_size),
    )
