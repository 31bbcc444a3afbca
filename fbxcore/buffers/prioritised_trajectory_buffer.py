"""A buffer of trajectories whose sequences are sampled in proportion to their priorities.

Prioritised experience replay (Schaul et al., 2015, https://arxiv.org/abs/1511.05952): an item, one
sequence, is drawn with probability P = p**a / sum(p**a), where a is `priority_exponent`. A new item gets
the greatest weight p**a set so far, 1 at first. Items start every `period` timesteps, counted from slot
0; one that is not whole (not written yet, overwritten, astride the write head) has weight 0 and is never
drawn.

What `set_priorities` does with odd input: priority 0 makes an item undrawable until it gets another; an
entry that is NaN, infinite or negative, or whose item is not whole now, is left out; of equal indices the
last wins. Where `generations` are given as sampled, an item that was overwritten since is left out as well.
With all weights 0 there is nothing to draw: `can_sample` is false.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fbxcore import _checks, _loops, _ring, utils
from fbxcore.buffers import items, sum_tree, trajectory_buffer
from fbxcore.buffers.layout import Grid, Layout, layout_of
from fbxcore.buffers.pytree import pytree, record
from fbxcore.buffers.sum_tree import SumTreeState
from fbxcore.buffers.trajectory_buffer import (
    TrajectoryBuffer,
    TrajectoryBufferSample,
    TrajectoryBufferState,
)
from fbxcore.types import Array, Experience, PRNGKey

Priorities = Array
"""p, before the exponent."""
Probabilities = Array
"""P, the share of the total weight."""
Indices = Array
"""Which item: `row * items_per_row + item`."""


@pytree
class PrioritisedTrajectoryBufferState(TrajectoryBufferState):
    """What the buffer maps."""

    sum_tree_state: SumTreeState  # the weight of each item
    running_index: Array  # [], timesteps ever added to each row, modulo 2**32


@pytree
class PrioritisedTrajectoryBufferSample(TrajectoryBufferSample):
    """Sampled sequences and what they are to `set_priorities`."""

    indices: Indices  # [N], int32
    probabilities: Probabilities  # [N], float32
    generations: Array = None  # [N], int32: each sequence's first timestep, counted as running_index does


def prioritised_init(
    experience: Experience, add_batch_size: int, max_length_time_axis: int, period: int
) -> PrioritisedTrajectoryBufferState:
    """Return an empty state for timesteps like the one given."""
    empty = trajectory_buffer.init(experience, add_batch_size, max_length_time_axis)
    return PrioritisedTrajectoryBufferState(
        **empty,
        sum_tree_state=sum_tree.init(max_length_time_axis // period * add_batch_size),
        running_index=jnp.array(0, jnp.int32),
    )


def prioritised_add(
    state: PrioritisedTrajectoryBufferState,
    batch: Experience,
    sample_sequence_length: int,
    period: int,
    device: str = "cpu",
) -> PrioritisedTrajectoryBufferState:
    """Append a batch `[B, K, ...]` to the rows.

    Raises:
        StructureError: if a leaf has another shape or dtype than the state's.
    """
    _checks.check_batch(state.experience, batch)
    return _advanced(state, batch, sample_sequence_length, period, device)


@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=True)
def _advanced(
    state: PrioritisedTrajectoryBufferState, batch: Experience, length: int, period: int, device: str
) -> PrioritisedTrajectoryBufferState:
    grid = _grid_of(state, length, period)
    steps = _ring.num_steps(batch)

    def whole(state: PrioritisedTrajectoryBufferState, batch: Experience) -> PrioritisedTrajectoryBufferState:
        tree = items.add_items(
            grid,
            state.sum_tree_state,
            state.current_index,
            trajectory_buffer.size_of(state),
            jnp.int32(steps),
            steps=steps,
            device=device,
        )
        added = trajectory_buffer.advanced(state, batch)
        return added.replace(sum_tree_state=tree, running_index=state.running_index + steps)

    if _ring.is_small(batch):
        return _loops.in_one_piece(whole, state.current_index, state, batch)
    return whole(state, batch)


@functools.partial(jax.jit, static_argnames=("batch_size", "sequence_length", "period"), inline=True)
def prioritised_sample(
    state: PrioritisedTrajectoryBufferState,
    rng_key: PRNGKey,
    batch_size: int,
    sequence_length: int,
    period: int,
) -> PrioritisedTrajectoryBufferSample:
    """Draw sequences in proportion to their weights, one from each of N equal shares of the total.

    Before `can_sample` holds there is nothing to draw, and what is returned means nothing.

    Returns:
        Sequences `[N, L, ...]` with indices, probabilities and generations.
    """
    grid = _grid_of(state, sequence_length, period)
    indices, probabilities = sum_tree.stratified_draw(state.sum_tree_state, batch_size, rng_key, batch_size)

    def place(indices: list[Array], drawn: Array, current: Array, running: Array) -> list[tuple]:
        found = items.place_of(grid, indices, drawn)
        return [(row, start, running - items.age_of(grid, start, current)) for row, start, _ in found]

    operands = (indices, state.current_index, state.running_index)
    experience, generations = _ring.read_at(state.experience, place, batch_size, sequence_length, *operands)
    return PrioritisedTrajectoryBufferSample(
        experience=experience, indices=indices, probabilities=probabilities, generations=generations
    )


def _grid_of(state: PrioritisedTrajectoryBufferState, sequence_length: int, period: int) -> Grid:
    return Grid(*utils.get_tree_shape_prefix(state.experience, 2), sequence_length, period)


@functools.partial(
    jax.jit, static_argnames=("priority_exponent", "device", "sequence_length", "period"), inline=True
)
def set_priorities(
    state: PrioritisedTrajectoryBufferState,
    indices: Indices,
    priorities: Priorities,
    priority_exponent: float,
    device: str = "cpu",
    *,
    generations: Array | None = None,
    sequence_length: int = 1,
    period: int | None = None,
) -> PrioritisedTrajectoryBufferState:
    """Set the priorities of items; what is left out is said at the top of the module.

    Args:
        indices: `[N]`, as sampled.
        priorities: `[N]`, commonly the absolute TD error and a little more.
        generations: `[N]`, as sampled; without them an index means whatever item is there now.
        sequence_length: how many timesteps must be held for an item to be whole.
    """
    rows, time_axis = utils.get_tree_shape_prefix(state.experience, 2)
    period = period or rows * time_axis // state.sum_tree_state.capacity
    grid = Grid(rows, time_axis, sequence_length, period)

    def change_of(
        i: Array, current: Array, size: Array, running: Array, indices: Array, priorities: Array, *made: Array
    ) -> tuple[Array, Array, Array]:
        index = indices[i]
        _, start = items.starts(grid, index)
        weight, applied = sum_tree.weight_of(priorities[i], priority_exponent, grid.num_items)
        applied &= items.is_whole(grid, start, current, size) & (index >= 0) & (index < grid.num_items)
        for generations in made:
            applied &= running - items.age_of(grid, start, current) == generations[i]
        return index, weight, applied

    changes = [jnp.asarray(indices, jnp.int32), jnp.asarray(priorities, jnp.float32)]
    if generations is not None:
        changes.append(jnp.asarray(generations, jnp.int32))
    counters = (state.current_index, trajectory_buffer.size_of(state), state.running_index)
    tree = sum_tree.set_each(
        state.sum_tree_state, change_of, len(changes[0]), *counters, *changes, device=device
    )
    return state.replace(sum_tree_state=tree)


def _set_sampled(
    state: PrioritisedTrajectoryBufferState,
    indices: Indices,
    priorities: Priorities,
    generations: Array | None = None,
    **layout: Any,
) -> PrioritisedTrajectoryBufferState:
    """Set the priorities of a sample's items: `set_priorities` with the arguments of a buffer."""
    return set_priorities(state, indices, priorities, generations=generations, **layout)


def can_sample(state: PrioritisedTrajectoryBufferState, min_length_time_axis: int) -> Array:
    """Return whether each row holds at least that many timesteps and some item has a weight."""
    return trajectory_buffer.can_sample(state, min_length_time_axis) & (
        state.sum_tree_state.nodes[..., 0] > 0
    )


@record
class PrioritisedTrajectoryBuffer(TrajectoryBuffer):
    """The pure functions of a prioritised buffer; see `make_prioritised_trajectory_buffer`."""

    set_priorities: Callable[..., PrioritisedTrajectoryBufferState]


def make_prioritised_trajectory_buffer(
    add_batch_size: int,
    sample_batch_size: int,
    sample_sequence_length: int,
    period: int,
    min_length_time_axis: int,
    max_size: int | None = None,
    max_length_time_axis: int | None = None,
    priority_exponent: float = 0.6,
    device: str = "cpu",
) -> PrioritisedTrajectoryBuffer:
    """Make a buffer of trajectories with priorities.

    Args:
        add_batch_size: rows B; every batch added is `[B, K, ...]`.
        sample_batch_size: sequences N in a sample.
        sample_sequence_length: timesteps L in a sampled sequence.
        period: distance between the starts of neighbouring sequences.
        min_length_time_axis: timesteps each row must hold before it may be sampled.
        max_size: timesteps over all rows, instead of `max_length_time_axis`.
        max_length_time_axis: timesteps T of each row; cut to a multiple of `period`.
        priority_exponent: a, from 0 (all drawable items alike) to 1.
        device: what the buffer runs on, "cpu", "gpu" or "tpu".

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_prioritised_trajectory_buffer(
        ...     add_batch_size=1, sample_batch_size=4, sample_sequence_length=2, period=1,
        ...     min_length_time_axis=2, max_length_time_axis=100,
        ... )
        >>> state = buffer.add(buffer.init({"reward": jnp.zeros(())}), {"reward": jnp.ones((1, 9))})
        >>> drawn = buffer.sample(state, jax.random.key(0))
        >>> state = buffer.set_priorities(state, drawn.indices, jnp.arange(4.0), drawn.generations)
    """
    layout = layout_of(
        "prioritised_trajectory",
        {
            "add_batch_size": add_batch_size,
            "sample_batch_size": sample_batch_size,
            "sample_sequence_length": sample_sequence_length,
            "period": period,
            "min_length_time_axis": min_length_time_axis,
            "max_size": max_size,
            "max_length_time_axis": max_length_time_axis,
            "priority_exponent": priority_exponent,
            "device": device,
        },
    )
    _checks.warn(layout.warnings)
    return buffer_of(layout, _checks.check_device(device))


def buffer_of(layout: Layout, device: str) -> PrioritisedTrajectoryBuffer:
    """Return the pure functions of a layout."""
    sequences = {"sequence_length": layout.sequence_length, "period": layout.period}
    return PrioritisedTrajectoryBuffer(
        init=functools.partial(
            prioritised_init,
            add_batch_size=layout.rows,
            max_length_time_axis=layout.time_axis,
            period=layout.period,
        ),
        add=functools.partial(
            prioritised_add,
            sample_sequence_length=layout.sequence_length,
            period=layout.period,
            device=device,
        ),
        sample=functools.partial(prioritised_sample, batch_size=layout.sample_batch_size, **sequences),
        can_sample=functools.partial(can_sample, min_length_time_axis=layout.min_time_axis),
        set_priorities=functools.partial(
            _set_sampled, priority_exponent=layout.priority_exponent, device=device, **sequences
        ),
        layout=layout,
    )
