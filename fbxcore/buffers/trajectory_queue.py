"""A queue of trajectories: what is added is sampled once, in the order it came.

Batches `[B, K, ...]` are appended along the time axis of B rows that advance together; a sample takes the
oldest L timesteps of every row and frees their slots. Whoever uses the queue asks `can_add` and
`can_sample` first: an add without room overwrites what was not sampled, and a sample of what is not there
means nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fbxcore import _checks, _ring
from fbxcore.buffers import trajectory_buffer
from fbxcore.buffers.layout import layout_of
from fbxcore.buffers.pytree import Fields, pytree, record
from fbxcore.types import Array, Experience


@pytree
class TrajectoryQueueState(Fields):
    """What the queue maps."""

    experience: Experience  # [B, T, ...]
    write_index: Array  # [], where the next timestep goes
    read_index: Array  # [], the oldest timestep not sampled yet
    is_full: Array  # [], whether every slot holds one


@pytree
class TrajectoryQueueSample(Fields):
    """Sampled sequences, one of each row."""

    experience: Experience  # [B, L, ...]


def init(experience: Experience, add_batch_size: int, max_length_time_axis: int) -> TrajectoryQueueState:
    """Return an empty state for timesteps like the one given."""
    return TrajectoryQueueState(
        experience=trajectory_buffer.empty_rows(experience, add_batch_size, max_length_time_axis),
        write_index=jnp.array(0, jnp.int32),
        read_index=jnp.array(0, jnp.int32),
        is_full=jnp.array(False),
    )


def held(state: TrajectoryQueueState, max_length_time_axis: int) -> Array:
    """Return how many timesteps of each row wait to be sampled, `[]`."""
    waiting = (state.write_index - state.read_index) % max_length_time_axis
    return jnp.where(state.is_full, max_length_time_axis, waiting)


def can_add(state: TrajectoryQueueState, add_sequence_length: int, max_length_time_axis: int) -> Array:
    """Return whether there is room for so many timesteps more."""
    return held(state, max_length_time_axis) + add_sequence_length <= max_length_time_axis


def can_sample(state: TrajectoryQueueState, sample_sequence_length: int, max_length_time_axis: int) -> Array:
    """Return whether a whole sequence waits."""
    return held(state, max_length_time_axis) >= sample_sequence_length


def add(state: TrajectoryQueueState, batch: Experience) -> TrajectoryQueueState:
    """Append a batch `[B, K, ...]`, K at most T.

    Raises:
        StructureError: if a leaf has another shape or dtype than the state's.
    """
    _checks.check_batch(state.experience, batch)
    return _advanced(state, batch)


@functools.partial(jax.jit, inline=True)
def _advanced(state: TrajectoryQueueState, batch: Experience) -> TrajectoryQueueState:
    end = (state.write_index + _ring.num_steps(batch)) % _ring.num_steps(state.experience)
    return state.replace(
        experience=_ring.write(state.experience, batch, state.write_index),
        write_index=end,
        is_full=end == state.read_index,
    )


@functools.partial(jax.jit, static_argnames="sequence_length", inline=True)
def sample(
    state: TrajectoryQueueState, sequence_length: int
) -> tuple[TrajectoryQueueState, TrajectoryQueueSample]:
    """Take the oldest sequence of every row.

    Returns:
        The state without them, and the sequences `[B, L, ...]`.
    """
    rows, time_axis = jax.tree.leaves(state.experience)[0].shape[:2]
    row = jnp.arange(rows, dtype=jnp.int32)
    start = jnp.full(rows, state.read_index, jnp.int32)
    taken = _ring.read(state.experience, row, start, sequence_length)
    left = state.replace(
        read_index=(state.read_index + sequence_length) % time_axis, is_full=jnp.array(False)
    )
    return left, TrajectoryQueueSample(experience=taken)


@record
class TrajectoryQueue(Fields):
    """The pure functions of a queue; see `make_trajectory_queue`."""

    init: Callable[[Experience], TrajectoryQueueState]
    add: Callable[[TrajectoryQueueState, Experience], TrajectoryQueueState]
    sample: Callable[[TrajectoryQueueState], tuple[TrajectoryQueueState, TrajectoryQueueSample]]
    can_sample: Callable[[TrajectoryQueueState], Array]
    can_add: Callable[[TrajectoryQueueState], Array]


def make_trajectory_queue(
    max_length_time_axis: int,
    add_batch_size: int,
    add_sequence_length: int,
    sample_sequence_length: int,
    max_size: int | None = None,
) -> TrajectoryQueue:
    """Make a queue of trajectories.

    Args:
        max_length_time_axis: timesteps T of each row.
        add_batch_size: rows B; every batch added is `[B, K, ...]`.
        add_sequence_length: timesteps K that `can_add` looks for room for.
        sample_sequence_length: timesteps L that a sample takes of each row.
        max_size: timesteps over all rows; sets the time axis in place of `max_length_time_axis`.

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> queue = fbx.make_trajectory_queue(
        ...     max_length_time_axis=8, add_batch_size=1, add_sequence_length=3, sample_sequence_length=2
        ... )
        >>> state = queue.add(queue.init(jnp.zeros(())), jnp.arange(3.0)[None])
        >>> state, taken = queue.sample(state)
        >>> taken.experience.tolist(), bool(queue.can_sample(state))
        ([[0.0, 1.0]], False)
    """
    layout = layout_of(
        "trajectory_queue",
        {
            "max_length_time_axis": max_length_time_axis,
            "add_batch_size": add_batch_size,
            "add_sequence_length": add_sequence_length,
            "sample_sequence_length": sample_sequence_length,
            "max_size": max_size,
        },
    )
    _checks.warn(layout.warnings)
    time_axis, length = layout.time_axis, layout.sequence_length
    return TrajectoryQueue(
        init=functools.partial(init, add_batch_size=layout.rows, max_length_time_axis=time_axis),
        add=add,
        sample=functools.partial(sample, sequence_length=length),
        can_sample=functools.partial(
            can_sample, sample_sequence_length=length, max_length_time_axis=time_axis
        ),
        can_add=functools.partial(
            can_add, add_sequence_length=layout.add_sequence_length, max_length_time_axis=time_axis
        ),
    )
