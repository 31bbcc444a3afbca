"""A buffer of transitions: pairs of consecutive timesteps, sampled with equal chances.

It is a trajectory buffer of sequences of two, whose lengths are given over all rows. With
`add_sequences` a batch has a time axis, with `add_batch_size` an axis of rows before it; without them
these axes are left out.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fbxcore import _checks
from fbxcore.buffers import trajectory_buffer
from fbxcore.buffers.layout import layout_of
from fbxcore.buffers.pytree import Fields, pytree
from fbxcore.buffers.trajectory_buffer import BufferState, TrajectoryBuffer, TrajectoryBufferState
from fbxcore.types import Experience, PRNGKey


class ExperiencePair(NamedTuple):
    """Two consecutive timesteps."""

    first: Experience  # [N, ...]
    second: Experience  # [N, ...]


@pytree
class TransitionSample(Fields):
    """Sampled transitions."""

    experience: ExperiencePair


def add(state: BufferState, batch: Experience, *, missing_axes: tuple[int, ...], add_rows) -> BufferState:
    """Append a batch whose `missing_axes` (of rows, of time) have size 1 and were left out."""
    if missing_axes:
        batch = jax.tree.map(lambda x: jnp.expand_dims(x, missing_axes), batch)
    return add_rows(state, batch)


def sample(state: TrajectoryBufferState, rng_key: PRNGKey, batch_size: int) -> TransitionSample:
    """Draw transitions with equal chances."""
    pairs = trajectory_buffer.read_drawn(state, rng_key, batch_size, 2, 1)
    return TransitionSample(experience=pair_of(pairs))


def pair_of(sequences: Experience) -> ExperiencePair:
    """Return the two timesteps of sequences of two, `[N, 2, ...]`."""
    return ExperiencePair(
        first=jax.tree.map(lambda x: x[:, 0], sequences), second=jax.tree.map(lambda x: x[:, 1], sequences)
    )


def make_flat_buffer(
    max_length: int,
    min_length: int,
    sample_batch_size: int,
    add_sequences: bool = False,
    add_batch_size: int | None = None,
) -> TrajectoryBuffer:
    """Make a buffer of transitions.

    Args:
        max_length: timesteps over all rows.
        min_length: timesteps over all rows before it may be sampled, and one more a row.
        sample_batch_size: transitions N in a sample.
        add_sequences: whether batches have a time axis.
        add_batch_size: rows B; None for one row whose axis is left out.

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_flat_buffer(max_length=100, min_length=2, sample_batch_size=4)
        >>> state = buffer.init({"obs": jnp.zeros(3)})
        >>> for step in range(4):
        ...     state = buffer.add(state, {"obs": jnp.full(3, step, jnp.float32)})
        >>> pair = buffer.sample(state, jax.random.key(0)).experience
        >>> bool((pair.second["obs"] == pair.first["obs"] + 1).all())
        True
    """
    layout = layout_of(
        "flat",
        {
            "max_length": max_length,
            "min_length": min_length,
            "sample_batch_size": sample_batch_size,
            "add_sequences": bool(add_sequences),
            "add_batch_size": add_batch_size,
        },
    )
    _checks.warn(layout.warnings)
    return TrajectoryBuffer(
        init=functools.partial(
            trajectory_buffer.init, add_batch_size=layout.rows, max_length_time_axis=layout.time_axis
        ),
        add=functools.partial(
            add,
            missing_axes=layout.missing_axes,
            add_rows=trajectory_buffer.add,
        ),
        sample=functools.partial(sample, batch_size=layout.sample_batch_size),
        can_sample=functools.partial(trajectory_buffer.can_sample, min_length_time_axis=layout.min_time_axis),
        layout=layout,
    )
