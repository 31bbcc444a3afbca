"""A buffer of transitions, sampled in proportion to their priorities.

It is a prioritised trajectory buffer of sequences of two; see `prioritised_trajectory_buffer` for the
priorities and `flat_buffer` for the axes of a batch.
"""

from __future__ import annotations

import functools

from fbxcore import _checks
from fbxcore.buffers import flat_buffer, prioritised_trajectory_buffer
from fbxcore.buffers.flat_buffer import TransitionSample
from fbxcore.buffers.layout import layout_of
from fbxcore.buffers.prioritised_trajectory_buffer import (
    Indices,
    PrioritisedTrajectoryBuffer,
    PrioritisedTrajectoryBufferState,
    Probabilities,
)
from fbxcore.buffers.pytree import pytree
from fbxcore.types import Array, PRNGKey


@pytree
class PrioritisedTransitionSample(TransitionSample):
    """Sampled transitions and what they are to `set_priorities`."""

    indices: Indices  # [N], int32
    probabilities: Probabilities  # [N], float32
    generations: Array = None  # [N], int32


def sample(
    state: PrioritisedTrajectoryBufferState, rng_key: PRNGKey, batch_size: int
) -> PrioritisedTransitionSample:
    """Draw transitions in proportion to their weights."""
    drawn = prioritised_trajectory_buffer.prioritised_sample(state, rng_key, batch_size, 2, 1)
    return PrioritisedTransitionSample(**{**drawn, "experience": flat_buffer.pair_of(drawn.experience)})


def make_prioritised_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batch_size: int | None = None,
    priority_exponent: float = 0.6,
    device: str = "cpu",
) -> PrioritisedTrajectoryBuffer:
    """Make a buffer of transitions with priorities.

    Args:
        max_length: timesteps over all rows.
        min_length: timesteps over all rows before it may be sampled, and one more a row.
        sample_batch_size: transitions N in a sample.
        add_sequences: whether batches have a time axis.
        add_batch_size: rows B; None for one row whose axis is left out.
        priority_exponent: a, from 0 (all drawable items alike) to 1.
        device: what the buffer runs on, "cpu", "gpu" or "tpu".

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_prioritised_flat_buffer(
        ...     max_length=100, min_length=2, sample_batch_size=4, add_sequences=True
        ... )
        >>> state = buffer.add(buffer.init({"obs": jnp.zeros(3)}), {"obs": jnp.ones((10, 3))})
        >>> buffer.sample(state, jax.random.key(0)).experience.second["obs"].shape
        (4, 3)
    """
    layout = layout_of(
        "prioritised_flat",
        {
            "max_length": max_length,
            "min_length": min_length,
            "sample_batch_size": sample_batch_size,
            "add_sequences": bool(add_sequences),
            "add_batch_size": add_batch_size,
            "priority_exponent": priority_exponent,
            "device": device,
        },
    )
    _checks.warn(layout.warnings)
    buffer = prioritised_trajectory_buffer.buffer_of(layout, _checks.check_device(device))
    return buffer.replace(
        add=functools.partial(flat_buffer.add, missing_axes=layout.missing_axes, add_rows=buffer.add),
        sample=functools.partial(sample, batch_size=layout.sample_batch_size),
    )
