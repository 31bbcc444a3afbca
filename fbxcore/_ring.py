"""Wrap-around index arithmetic: writing into and reading from rings `[B, T, ...]`.

On a CPU a write is a loop of `dynamic_update_slice`, which XLA does in place in a donated ring, where a
scatter costs 3 to 12 times as much and a `cond` between two ways of writing copies the ring. What decides
between the ways is therefore how often each loop runs, which may be data: 0 times is "not this way".
Under `vmap` and on accelerators a write is one scatter and a read one gather (`_loops.choose`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbxcore import _loops
from fbxcore._loops import choose
from fbxcore.types import Array, Experience

_SMALL = 384  # bytes up to which XLA makes a loop that copies them one piece of code (it counts 1,024)


def write(ring: Experience, batch: Experience, index: Array) -> Experience:
    """Write all K timesteps of every row at one index, wrapping at the end.

    Args:
        ring: leaves `[B, T, ...]`.
        batch: leaves `[B, K, ...]`, K at most T.
        index: `[]`, below T.
    """
    return choose(_write_looped, _write_scattered, ring, batch, index)


def write_rows(ring: Experience, batch: Experience, index: Array, lengths: Array) -> Experience:
    """Write the first `lengths[b]` timesteps of each row at the row's own index, wrapping at the end.

    Args:
        ring: leaves `[B, T, ...]`.
        batch: leaves `[B, K, ...]`, K at most T.
        index: `[B]`, below T.
        lengths: `[B]`, at most K; what lies behind is padding and leaves the ring as it is.
    """
    return choose(_write_rows_looped, _write_rows_scattered, ring, batch, index, lengths)


def write_runs(ring: Experience, batch: Experience, rows: Array, index: Array, lengths: Array) -> Experience:
    """Write the first `lengths[r]` timesteps of each run into a row of its own, wrapping at the end.

    Args:
        ring: leaves `[B, T, ...]`.
        batch: leaves `[R, K, ...]`, K at most T.
        rows: `[R]`, the row of each run; no row twice.
        index: `[R]`, below T.
        lengths: `[R]`, at most K.
    """
    return choose(_write_runs_looped, _write_runs_scattered, ring, batch, rows, index, lengths)


def read(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    """Return `length` timesteps `[N, L, ...]` from each start slot on, wrapping at the end."""

    def place(indices: list[Array], rows: Array, starts: Array) -> list[tuple[Array, Array, tuple]]:
        return [(_loops.at(rows, i), _loops.at(starts, i), ()) for i in indices]

    return read_at(ring, place, len(rows), length, rows, starts)[0]


def read_at(
    ring: Experience, place: Callable, num: int, length: int, *operands: Any
) -> tuple[Experience, Any]:
    """Return `length` timesteps `[N, L, ...]` from N places on, wrapping at the end.

    Args:
        place: `place(indices, *operands)` gives row, start slot and anything else of each index in a list,
            or of all of them for a list of `[N]`.

    Returns:
        The timesteps, and what else `place` gave, stacked.
    """

    def looped(ring: Experience, *operands: Any) -> tuple[Experience, Any]:
        return _read_windows(ring, place, num, length, *operands)

    def gathered(ring: Experience, *operands: Any) -> tuple[Experience, Any]:
        rows, starts, rest = _loops.map_at_once(place, num, *operands)
        return _read_gathered(ring, rows, starts, length), rest

    return choose(looped, gathered, ring, *operands)


def read_step(ring: Experience, row: Array, slot: Array) -> Experience:
    """Return one timestep of one row, `[1, 1, ...]`; for loops."""
    return jax.tree.map(lambda x: _slice(x, row, slot, 1, 1), ring)


def write_step(ring: Experience, step: Experience, row: Array, slot: Array) -> Experience:
    """Write one timestep `[1, 1, ...]` of one row; for loops."""
    return jax.tree.map(lambda x, new: _update(x, new, row, slot), ring, step)


def is_small(batch: Experience) -> bool:
    """Return whether writing a batch moves so few bytes that it should be one piece of code."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch)) <= _SMALL


def num_steps(experience: Experience) -> int:
    """Return the length of axis 1."""
    return jax.tree.leaves(experience)[0].shape[1]


def _write_looped(ring: Experience, batch: Experience, index: Array) -> Experience:
    count, time_axis = num_steps(batch), num_steps(ring)
    if count == 1:
        return _put(ring, batch, index)
    ring = _repeat(
        lambda _, ring: _put(ring, batch, index),
        lambda: jnp.where(index + count <= time_axis, 1, 0),
        ring,
    )
    return _put_steps(ring, batch, index, lambda: jnp.where(index + count <= time_axis, 0, count))


def _write_rows_looped(ring: Experience, batch: Experience, index: Array, lengths: Array) -> Experience:
    count = num_steps(batch)
    in_step = jnp.all(index == index[0]) & jnp.all(lengths == lengths[0])
    at_once = in_step & (lengths[0] == count) & (index[0] + count <= num_steps(ring))
    once = lambda _, ring: _put(ring, batch, index[0])  # noqa: E731
    ring = _repeat(once, lambda: jnp.where(at_once, 1, 0), ring)
    ring = _put_steps(ring, batch, index[0], lambda: jnp.where(in_step & ~at_once, lengths[0], 0))

    def put_row(row: Array, ring: Experience) -> Experience:
        return _put_steps(ring, batch, index[row], lambda: lengths[row], row)

    return _repeat(put_row, lambda: jnp.where(in_step, 0, len(index)), ring)


def _write_runs_looped(
    ring: Experience, batch: Experience, rows: Array, index: Array, lengths: Array
) -> Experience:
    def put_run(run: Array, ring: Experience) -> Experience:
        return _put_steps(ring, batch, index[run], lambda: lengths[run], run, rows[run])

    return _repeat(put_run, lambda: jnp.int32(len(rows)), ring)


def _repeat(body: Callable, times: Callable[[], Array], ring: Experience) -> Experience:
    """Apply `body(i, ring)` so many times; the loop works out how often, not a kernel before it."""
    go_on = lambda carry: carry[0] < times()  # noqa: E731
    step = lambda carry: (carry[0] + 1, body(*carry))  # noqa: E731
    return lax.while_loop(go_on, step, (jnp.int32(0), ring))[1]


def _put(ring: Experience, batch: Experience, index: Array) -> Experience:
    return jax.tree.map(lambda x, new: _update(x, new, 0, index), ring, batch)


def _put_steps(
    ring: Experience,
    batch: Experience,
    index: Array,
    times: Callable[[], Array],
    row: Array | None = None,
    into: Array | None = None,
) -> Experience:
    """Write the first timesteps one by one, of all rows or of one, which may go into another."""
    time_axis = num_steps(ring)
    rows = jax.tree.leaves(ring)[0].shape[0] if row is None else 1
    row = 0 if row is None else row
    into = row if into is None else into

    def put(step: Array, ring: Experience) -> Experience:
        slot = (index + step) % time_axis
        copy = lambda x, new: _update(x, _slice(new, row, step, rows, 1), into, slot)  # noqa: E731
        return jax.tree.map(copy, ring, batch)

    return _repeat(put, times, ring)


def _slice(x: Array, row: Array | int, slot: Array | int, rows: int, length: int) -> Array:
    """Return `x[row : row + rows, slot : slot + length]`, which must lie inside."""
    at = (row, slot, *[0] * (x.ndim - 2))
    return lax.dynamic_slice(x, at, (rows, length, *x.shape[2:]), allow_negative_indices=False)


def _update(x: Array, new: Array, row: Array | int, slot: Array | int) -> Array:
    """Return x with `new` from row and slot on, which must lie inside."""
    return lax.dynamic_update_slice(x, new, (row, slot, *[0] * (x.ndim - 2)), allow_negative_indices=False)


def _write_scattered(ring: Experience, batch: Experience, index: Array) -> Experience:
    if num_steps(batch) == 1:
        return _put(ring, batch, index)
    slots = (index + jnp.arange(num_steps(batch), dtype=jnp.int32)) % num_steps(ring)
    return jax.tree.map(lambda x, new: x.at[:, slots].set(new, unique_indices=True), ring, batch)


def _write_rows_scattered(ring: Experience, batch: Experience, index: Array, lengths: Array) -> Experience:
    rows = jnp.arange(len(index), dtype=jnp.int32)
    return _write_runs_scattered(ring, batch, rows, index, lengths)


def _write_runs_scattered(
    ring: Experience, batch: Experience, rows: Array, index: Array, lengths: Array
) -> Experience:
    time_axis = num_steps(ring)
    steps = jnp.arange(num_steps(batch), dtype=jnp.int32)
    slots = jnp.where(steps < lengths[:, None], (index[:, None] + steps) % time_axis, time_axis)
    return jax.tree.map(lambda x, new: x.at[rows[:, None], slots].set(new, mode="drop"), ring, batch)


def _read_gathered(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    time_axis = num_steps(ring)
    slots = (starts[:, None] + jnp.arange(length, dtype=jnp.int32)) % time_axis + rows[:, None] * time_axis

    def one(x: Array) -> Array:
        return _in_one_row(x).at[slots].get(mode="promise_in_bounds")

    return jax.tree.map(one, ring)


def _read_windows(
    ring: Experience, place: Callable, num: int, length: int, *operands: Any
) -> tuple[Experience, Any]:
    """Read each sequence as if it did not wrap, then those that do again, timestep by timestep."""
    time_axis = num_steps(ring)

    def look(item: Array, found: tuple) -> tuple:
        slots, wrapped, count, rest = found  # what does not wrap is written over by the next
        item, *kept = _loops.kept_inside(item, operands)
        ((row, start, values),) = place([item], *kept)
        inside = jnp.minimum(start, time_axis - length)
        slots = _loops.put_at(slots, item, row * time_axis + inside)
        if length > 1:
            wrapped = _loops.put_at(wrapped, count, jnp.stack([item, row, start]))
            count += start > inside
        return slots, wrapped, count, _loops.put_at(rest, item, values)

    def again(k: Array, out: Experience) -> Experience:
        item, row, start = _loops.at(wrapped, k)
        return lax.fori_loop(0, length, lambda step, out: _copy_step(ring, row, start, item, step, out), out)

    rest = _loops.empty_of(lambda i, *operands: [found[2] for found in place(i, *operands)], num, *operands)
    none = (jnp.zeros(num, jnp.int32), jnp.zeros((num, 3), jnp.int32), jnp.int32(0), rest)
    slots, wrapped, count, rest = lax.fori_loop(jnp.int32(0), jnp.int32(num), look, none)
    out = jax.tree.map(lambda x: _windows(x, slots, length), ring)
    return (out if length == 1 else lax.fori_loop(0, count, again, out)), rest


def _windows(x: Array, slots: Array, length: int) -> Array:
    """Return what lies from N slots on, `[N, L, ...]`; the slots of all rows are one after the other."""
    x = _in_one_row(x)
    axes = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, x.ndim + 1)), collapsed_slice_dims=(), start_index_map=(0,)
    )
    return lax.gather(x, slots[:, None], axes, (length, *x.shape[1:]), mode="promise_in_bounds")


def _in_one_row(x: Array) -> Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])  # not -1: a leaf may hold nothing


def _copy_step(
    ring: Experience, row: Array, start: Array, item: Array, step: Array | int, out: Experience
) -> Experience:
    slot = (start + step) % num_steps(ring)

    copy = lambda x, y: _update(y, _slice(x, row, slot, 1, 1), item, step)  # noqa: E731
    return jax.tree.map(copy, ring, out)
