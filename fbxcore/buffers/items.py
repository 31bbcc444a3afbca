"""What rings hold as items: which are whole, which an add completes or breaks, drawing one by chance.

An item is a sequence of L timesteps that starts at a slot of a row; its index is
`row * items_per_row + item`, and it starts at slot `item * stride`. Positions are given as slots and
are compared by their distance to the write index, so that no counter can run over.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fbxcore import _loops, _random
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


def is_unbroken(grid: Grid, row: Array, start: Array, begins: Array) -> Array:
    """Return whether no run begins behind the first timestep of the items that start there.

    Args:
        row: `[]` or `[N]`; `start` likewise.
        begins: `[B, T]`, which slots hold the first timestep of a run.
    """
    slots = start[..., None] + jnp.arange(1, grid.sequence_length, dtype=jnp.int32)
    return ~jnp.any(begins[row[..., None], slots % grid.time_axis], axis=-1)


def place_of(grid: Grid, indices: list[Array], drawn: Array) -> list[tuple[Array, Array, tuple]]:
    """Return row, start slot and nothing else of some of the items drawn; for `_ring.read_at`."""
    return [(*starts(grid, _loops.at(drawn, i)), ()) for i in indices]


def uniform_place(
    grid: Grid, key: PRNGKey, num: int, period: int, write_index: Array, size: Array
) -> tuple[Callable, tuple]:
    """Return how to draw a row, then one of its items, each with equal chances, as Flashbax does.

    Args:
        period: distance between neighbouring items, counted from the oldest timestep.
        write_index: `[B]`, or `[]` where all rows advance together.
        size: likewise, the timesteps a row holds.

    Returns:
        `place(indices, *operands)` and its operands; it gives row, start slot, and how many items that row
        has, for each index.
    """

    def start_of(item: Array, write_index: Array, size: Array) -> Array:
        oldest = jnp.where(size == grid.time_axis, write_index, 0)
        return (oldest + item * period) % grid.time_axis

    def count_of(size: Array) -> Array:
        return jnp.maximum((size - grid.sequence_length) // period + 1, 0)

    def of_row(row: Array, write_index: Array, size: Array) -> tuple[Array, Array]:
        return (write_index[row], size[row]) if size.ndim else (write_index, size)

    def one_by_keys(i: Array, keys: Array, *counters: Array) -> tuple[Array, Array, Array]:
        row = _random.integer(keys, 1, i, jnp.int32(grid.rows)) if grid.rows > 1 else jnp.zeros_like(i)
        write_index, size = of_row(row, *counters)
        item = _random.integer(keys, 0, i, count_of(size))
        return row, start_of(item, write_index, size), count_of(size) + jnp.zeros_like(i)

    def by_keys(indices: list[Array], *operands: Array) -> list[tuple[Array, Array, Array]]:
        return [one_by_keys(i, *operands) for i in indices]

    def by_draws(indices: list[Array], *drawn: Array) -> list[tuple[Array, ...]]:
        return [tuple(_loops.at(array, i) for array in drawn) for i in indices]

    if _random.is_threefry(key):
        keys = _random.integer_keys(_random.data_of(key), (1,), *([(0, 1)] if grid.rows > 1 else []))
        return by_keys, (keys, write_index, size)
    rest, item_key = jax.random.split(key)
    row = jax.random.randint(jax.random.split(rest)[1], (num,), 0, grid.rows, jnp.int32)
    write_index, size = of_row(row, write_index, size)
    count = jnp.broadcast_to(count_of(size), (num,))
    item = jax.random.randint(item_key, (num,), 0, count, jnp.int32)
    return by_draws, (row, start_of(item, write_index, size), count)


def add_items(
    grid: Grid,
    tree: SumTreeState,
    write_index: Array,
    size: Array,
    lengths: Array,
    *,
    runs: tuple[Array, Array] | tuple[()] = (),
    steps: int,
    device: str,
) -> SumTreeState:
    """Give items that an add completes the greatest weight so far, and those it breaks weight 0.

    Counted from the write index, an add of n timesteps completes the items that start in
    [1 - L, n - L] and are still held, and breaks those that start in [0, n) and are not complete.
    Where a row was cut u timesteps before, those that start before -u stay broken.

    Args:
        write_index: `[B]`, or `[]` where all rows advance together, before the add.
        size: likewise, before the add.
        lengths: likewise, timesteps added, at most T.
        runs: where rows advance on their own, the row `[R]` of each run that is added, and u `[R]`; the
            arrays above are then `[R]` too.
        steps: the greatest length there may be.
    """
    length = grid.sequence_length
    kinds = 2 if length == 1 else 4  # those completed before and after the wrap; likewise those broken

    def range_of(
        r: Array, greatest: Array, write_index: Array, size: Array, lengths: Array, *runs: Array
    ) -> tuple[Array, Array, Array]:
        row, kind = r // kinds, r % kinds
        if size.ndim:
            write_index, size, lengths = write_index[row], size[row], lengths[row]
        oldest = lengths - jnp.minimum(size + lengths, grid.time_axis)
        is_broken = kind >= 2
        earliest = jnp.maximum(1 - length, oldest)
        if runs:
            rows, unbroken = runs
            row, earliest = rows[row], jnp.maximum(earliest, -unbroken[row])
        low = jnp.where(is_broken, jnp.maximum(0, lengths - length + 1), earliest)
        high = jnp.where(is_broken, lengths - 1, lengths - length)
        first, last = _item_range(grid, write_index, low, high, kind % 2 == 1)
        base = row * grid.items_per_row
        return base + first, base + last, jnp.where(is_broken, 0.0, greatest)

    operands = (tree.max_recorded_priority, write_index, size, lengths, *runs)
    width = min(steps // grid.stride + 1, grid.items_per_row)
    num = (len(runs[0]) if runs else grid.rows) * kinds
    return sum_tree.set_ranges(tree, range_of, num, *operands, width=width, device=device)


def _item_range(
    grid: Grid, write_index: Array, low: Array, high: Array, after_wrap: Array
) -> tuple[Array, Array]:
    """Return first and last item of a row that start `low` to `high` slots after the write index.

    Those that lie after the wrap are a range of their own.
    """
    per_row, stride = grid.items_per_row, grid.stride
    # One turn further on, so that floor division acts on what is not negative.
    first = -(-(write_index + low + grid.time_axis) // stride)
    last = (write_index + high + grid.time_axis) // stride
    count = jnp.clip(last - first + 1, 0, per_row)
    first = first % per_row
    past = first + count
    return jnp.where(after_wrap, 0, first), jnp.where(
        after_wrap, past - per_row, jnp.minimum(past, per_row)
    ) - 1
