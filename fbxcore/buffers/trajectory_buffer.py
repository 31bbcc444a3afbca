"""A buffer of trajectories: rows of consecutive timesteps, sampled as sequences with equal chances.

Batches `[B, K, ...]` are appended along the time axis of B rows that advance together; when the time
axis is full, the oldest timesteps are overwritten. A sampled sequence never joins timesteps that were
not added one after the other. `period` is the distance between the starts of neighbouring sequences,
counted from the oldest timestep: 1 allows every overlap, the sequence length none.

All functions are pure and may be used under `jax.jit`, `vmap` and `scan`; outside of them they are compiled
on their own. Donate the state to `add` (`jax.jit(buffer.add, donate_argnums=0)`): without it each add copies
the whole buffer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import field
from typing import TypeVar

import jax
import jax.numpy as jnp

from fbxcore import _checks, _ring, utils
from fbxcore.buffers import items
from fbxcore.buffers.layout import Grid, Layout, layout_of
from fbxcore.buffers.pytree import Fields, pytree, record
from fbxcore.types import Array, Experience, PRNGKey

BufferState = TypeVar("BufferState", bound="TrajectoryBufferState")
BufferSample = TypeVar("BufferSample", bound="TrajectoryBufferSample")


@pytree
class TrajectoryBufferState(Fields):
    """What the buffer maps."""

    experience: Experience  # [B, T, ...]
    current_index: Array  # [], where the next timestep goes
    is_full: Array  # [], whether every slot holds a timestep


@pytree
class TrajectoryBufferSample(Fields):
    """Sampled sequences."""

    experience: Experience  # [N, L, ...]


def init(experience: Experience, add_batch_size: int, max_length_time_axis: int) -> TrajectoryBufferState:
    """Return an empty state for timesteps like the one given.

    Args:
        experience: one timestep, without leading axes; only its shapes and dtypes matter.
    """
    return TrajectoryBufferState(
        experience=empty_rows(experience, add_batch_size, max_length_time_axis),
        current_index=jnp.array(0, jnp.int32),
        is_full=jnp.array(False),
    )


def empty_rows(timestep: Experience, rows: int, time_axis: int) -> Experience:
    """Return zeros `[B, T, ...]` for timesteps like the one given."""

    def empty(leaf: Array) -> Array:
        leaf = jnp.empty_like(leaf)
        return jnp.zeros((rows, time_axis, *leaf.shape), leaf.dtype)  # of a fixed dtype, unlike a number

    return jax.tree.map(empty, timestep)


def add(state: BufferState, batch: Experience) -> BufferState:
    """Append a batch to the rows.

    Args:
        batch: `[B, K, ...]`, K at most T; each row goes on where its last batch ended.

    Raises:
        StructureError: if a leaf has another shape or dtype than the state's.
    """
    _checks.check_batch(state.experience, batch)
    return advanced(state, batch)


@functools.partial(jax.jit, inline=True)
def advanced(state: BufferState, batch: Experience) -> BufferState:
    """Return the state after a batch that has been checked."""
    end = state.current_index + _ring.num_steps(batch)
    time_axis = _ring.num_steps(state.experience)
    return state.replace(
        experience=_ring.write(state.experience, batch, state.current_index),
        current_index=end % time_axis,
        is_full=state.is_full | (end >= time_axis),
    )


def sample(
    state: TrajectoryBufferState, rng_key: PRNGKey, batch_size: int, sequence_length: int, period: int
) -> TrajectoryBufferSample:
    """Draw sequences with equal chances.

    Before `can_sample` holds there is nothing to draw, and what is returned means nothing.

    Returns:
        Sequences `[N, L, ...]`.
    """
    experience = read_drawn(state, rng_key, batch_size, sequence_length, period)
    return TrajectoryBufferSample(experience=experience)


@functools.partial(jax.jit, static_argnames=("batch_size", "sequence_length", "period"), inline=True)
def read_drawn(
    state: TrajectoryBufferState, rng_key: PRNGKey, batch_size: int, sequence_length: int, period: int
) -> Experience:
    """Draw sequences with equal chances and return them, `[N, L, ...]`."""
    grid = Grid(*utils.get_tree_shape_prefix(state.experience, 2), sequence_length)
    place, operands = items.uniform_place(
        grid, rng_key, batch_size, period, state.current_index, size_of(state)
    )
    return _ring.read_at(state.experience, place, batch_size, sequence_length, *operands)[0]


def size_of(state: TrajectoryBufferState) -> Array:
    """Return how many timesteps each row holds, `[]`."""
    return jnp.where(state.is_full, _ring.num_steps(state.experience), state.current_index)


def can_sample(state: TrajectoryBufferState, min_length_time_axis: int) -> Array:
    """Return whether each row holds at least that many timesteps."""
    return state.is_full | (state.current_index >= min_length_time_axis)


@record
class TrajectoryBuffer(Fields):
    """The pure functions of a buffer; see `make_trajectory_buffer`."""

    init: Callable[[Experience], TrajectoryBufferState]
    add: Callable[[TrajectoryBufferState, Experience], TrajectoryBufferState]
    sample: Callable[[TrajectoryBufferState, PRNGKey], TrajectoryBufferSample]
    can_sample: Callable[[TrajectoryBufferState], Array]
    layout: Layout | None = field(default=None, kw_only=True)  # what its arguments came to


def make_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    period: int,
    min_length_time_axis: int,
    max_size: int | None = None,
    max_length_time_axis: int | None = None,
) -> TrajectoryBuffer:
    """Make a buffer of trajectories.

    Args:
        add_batch_size: rows B; every batch added is `[B, K, ...]`.
        sample_batch_size: sequences N in a sample.
        sample_sequence_length: timesteps L in a sampled sequence.
        period: distance between the starts of neighbouring sequences.
        min_length_time_axis: timesteps each row must hold before it may be sampled.
        max_size: timesteps over all rows, instead of `max_length_time_axis`.
        max_length_time_axis: timesteps T of each row.

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_trajectory_buffer(
        ...     add_batch_size=2, sample_batch_size=4, sample_sequence_length=3, period=1,
        ...     min_length_time_axis=3, max_length_time_axis=100,
        ... )
        >>> state = buffer.init({"reward": jnp.zeros(())})
        >>> state = buffer.add(state, {"reward": jnp.ones((2, 5))})
        >>> buffer.sample(state, jax.random.key(0)).experience["reward"].shape
        (4, 3)
    """
    layout = layout_of(
        "trajectory",
        {
            "add_batch_size": add_batch_size,
            "sample_batch_size": sample_batch_size,
            "sample_sequence_length": sample_sequence_length,
            "period": period,
            "min_length_time_axis": min_length_time_axis,
            "max_size": max_size,
            "max_length_time_axis": max_length_time_axis,
        },
    )
    _checks.warn(layout.warnings)
    return TrajectoryBuffer(
        init=functools.partial(init, add_batch_size=layout.rows, max_length_time_axis=layout.time_axis),
        add=add,
        sample=functools.partial(
            sample,
            batch_size=layout.sample_batch_size,
            sequence_length=layout.sequence_length,
            period=layout.period,
        ),
        can_sample=functools.partial(can_sample, min_length_time_axis=layout.min_time_axis),
        layout=layout,
    )
