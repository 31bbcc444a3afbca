"""What rings hold as items: which are whole, which an add completes or breaks, drawing one by chance.

An item is a sequence of L timesteps that starts at a slot of a row; its index is
`row * items_per_row + item`, and it starts at slot `item * stride`. Positions are given as slots and
are compared by their distance to the write index, so that no counter can run over.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbxcore.buffers import sum_tree
from fbxcore.buffers.layout import Grid
from fbxcore.buffers.sum_tree import SumTreeState
from fbxcore.types import Array, PRNGKey


def starts(grid: Grid, indices: Array) -> tuple[Array, Array]:
    """Return row and start slot of items."""
    return indices // grid.items_per_row, indices % grid.items_per_row * grid.stride


def age_of(grid: Grid, start: Array, write_index: Array) -> Array:
    """Return how many timesteps lie from a slot to the write index, 1 to T."""
    return (write_index - start - 1) % grid.time_axis + 1


def is_whole(grid: Grid, start: Array, write_index: Array, size: Array) -> Array:
    """Return whether all timesteps of the items that start at those slots are held."""
    age = age_of(grid, start, write_index)
    return (age >= grid.sequence_length) & (age <= size)


def draw_uniform(
    grid: Grid, key: PRNGKey, batch_size: int, period: int, write_index: Array, size: Array
) -> tuple[Array, Array, Array]:
    """Draw a row, then one of its items, each with equal chances; the same for a key as Flashbax.

    Args:
        period: distance between neighbouring items, counted from the oldest timestep.
        write_index: `[B]`, or `[]` where all rows advance together.
        size: likewise, the timesteps a row holds.

    Returns:
        Row, start slot, and how many items that row has, each int32 `[N]` or `[]`.
    """
    oldest = jnp.where(size == grid.time_axis, write_index, 0)
    counts = jnp.maximum((size - grid.sequence_length) // period + 1, 0)
    rest, item_key = jax.random.split(key)
    _, row_key = jax.random.split(rest)
    if grid.rows == 1:
        row = jnp.zeros(batch_size, jnp.int32)
    else:
        row = jax.random.randint(row_key, (batch_size,), 0, grid.rows, jnp.int32)
    if counts.ndim:
        counts, oldest = counts[row], oldest[row]
    item = jax.random.randint(item_key, (batch_size,), 0, counts, jnp.int32)
    return row, (oldest + item * period) % grid.time_axis, counts


def add_items(
    grid: Grid, tree: SumTreeState, write_index: Array, size: Array, lengths: Array
) -> SumTreeState:
    """Give items that an add completes the greatest weight so far, and those it breaks weight 0.

    Counted from the write index, an add of n timesteps completes the items that start in
    [1 - L, n - L] and are still held, and breaks those that start in [0, n) and are not complete.

    Args:
        write_index: `[B]`, before the add.
        size: `[B]`, before the add.
        lengths: `[B]`, timesteps added, at most T.
    """
    length = grid.sequence_length
    oldest = lengths - jnp.minimum(size + lengths, grid.time_axis)
    whole = (jnp.maximum(1 - length, oldest), lengths - length)
    ranges = _item_ranges(grid, write_index, *whole)
    greatest = jnp.broadcast_to(tree.max_recorded_priority, lengths.shape)
    weights = [greatest, greatest]
    if length > 1:
        ranges += _item_ranges(grid, write_index, jnp.maximum(0, lengths - length + 1), lengths - 1)
        weights += [jnp.zeros_like(greatest)] * 2
    first, last = (jnp.concatenate(parts) for parts in zip(*ranges, strict=True))
    return sum_tree.set_ranges(tree, first, last, jnp.concatenate(weights))


def _item_ranges(grid: Grid, write_index: Array, low: Array, high: Array) -> list[tuple[Array, Array]]:
    """Return first and last items that start `low` to `high` slots after the write index, cut at the wrap."""
    per_row, stride = grid.items_per_row, grid.stride
    # One turn further on, so that floor division acts on what is not negative.
    first = -(-(write_index + low + grid.time_axis) // stride)
    last = (write_index + high + grid.time_axis) // stride
    count = jnp.clip(last - first + 1, 0, per_row)
    first = first % per_row
    base = jnp.arange(grid.rows, dtype=jnp.int32) * per_row
    before_wrap = jnp.minimum(first + count, per_row)
    after_wrap = first + count - per_row
    return [(base + first, base + before_wrap - 1), (base, base + after_wrap - 1)]
