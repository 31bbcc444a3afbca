"""A buffer of independent items, sampled with equal chances.

It is a trajectory buffer of one row and sequences of one timestep. A batch may have an axis of batches
and one of time (`add_batches`, `add_sequences`); both are laid one after the other into the row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax

from fbxcore import _checks, utils
from fbxcore.buffers import trajectory_buffer
from fbxcore.buffers.layout import layout_of
from fbxcore.buffers.trajectory_buffer import (
    BufferState,
    TrajectoryBuffer,
    TrajectoryBufferSample,
    TrajectoryBufferState,
)
from fbxcore.errors import StructureError
from fbxcore.types import Experience, PRNGKey


def add(state: BufferState, batch: Experience, *, num_axes: int, add_rows: Callable) -> BufferState:
    """Append a batch with that many leading axes, laid out into one row."""
    for leaf, held in zip(jax.tree.leaves(batch), jax.tree.leaves(state.experience), strict=False):
        if leaf.ndim != num_axes + held.ndim - 2:
            raise StructureError(
                f"`batch` must have {num_axes} axes before an item's own {list(held.shape[2:])}, "
                f"got {list(leaf.shape)}."
            )
    shape = utils.get_tree_shape_prefix(batch, num_axes)
    count = shape[0] * shape[-1] if num_axes == 2 else (*shape, 1)[0]
    return add_rows(state, jax.tree.map(lambda x: x.reshape(1, count, *x.shape[num_axes:]), batch))


def sample(state: TrajectoryBufferState, rng_key: PRNGKey, batch_size: int) -> TrajectoryBufferSample:
    """Draw items `[N, ...]` with equal chances."""
    drawn = trajectory_buffer.sample(state, rng_key, batch_size, 1, 1)
    return TrajectoryBufferSample(experience=without_time(drawn.experience))


def without_time(experience: Experience) -> Experience:
    """Return `[N, ...]` for sequences of one timestep, `[N, 1, ...]`."""
    return jax.tree.map(lambda x: x[:, 0], experience)


def make_item_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batches: bool = False,
) -> TrajectoryBuffer:
    """Make a buffer of independent items.

    Args:
        max_length: items it can hold.
        min_length: items it must hold before it may be sampled.
        sample_batch_size: items N in a sample.
        add_sequences: whether batches have a time axis.
        add_batches: whether batches have an axis of batches, before the time axis.

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_item_buffer(
        ...     max_length=100, min_length=1, sample_batch_size=4, add_batches=True
        ... )
        >>> state = buffer.add(buffer.init({"obs": jnp.zeros(3)}), {"obs": jnp.ones((5, 3))})
        >>> buffer.sample(state, jax.random.key(0)).experience["obs"].shape
        (4, 3)
    """
    layout = layout_of(
        "item",
        {
            "max_length": max_length,
            "min_length": min_length,
            "sample_batch_size": sample_batch_size,
            "add_sequences": bool(add_sequences),
            "add_batches": bool(add_batches),
        },
    )
    _checks.warn(layout.warnings)
    return TrajectoryBuffer(
        init=functools.partial(
            trajectory_buffer.init, add_batch_size=1, max_length_time_axis=layout.time_axis
        ),
        add=functools.partial(
            add, num_axes=bool(add_sequences) + bool(add_batches), add_rows=trajectory_buffer.add
        ),
        sample=functools.partial(sample, batch_size=layout.sample_batch_size),
        can_sample=functools.partial(trajectory_buffer.can_sample, min_length_time_axis=layout.min_time_axis),
        layout=layout,
    )
