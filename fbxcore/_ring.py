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

_FEW = 8  # up to so many timesteps, copying one by one is faster than slicing


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


def read(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    """Return `length` timesteps `[N, L, ...]` from each start slot on, wrapping at the end."""
    place = lambda i, rows, starts: (rows[i], starts[i], ())  # noqa: E731
    return read_at(ring, place, len(rows), length, rows, starts)[0]


def read_at(
    ring: Experience, place: Callable, num: int, length: int, *operands: Any
) -> tuple[Experience, Any]:
    """Return `length` timesteps `[N, L, ...]` from N places on, wrapping at the end.

    Args:
        place: `place(i, *operands)` gives row, start slot and anything else of the ith, or of all of them
            for i `[N]`.

    Returns:
        The timesteps, and what else `place` gave, stacked.
    """

    def looped(ring: Experience, *operands: Any) -> tuple[Experience, Any]:
        if length <= _FEW:
            return _read_steps(ring, place, num, length, *operands)
        rows, starts, rest = _loops.map_elements(place, num, *operands)
        return _read_slices(ring, rows, starts, length), rest

    def gathered(ring: Experience, *operands: Any) -> tuple[Experience, Any]:
        rows, starts, rest = place(jnp.arange(num, dtype=jnp.int32), *operands)
        return _read_gathered(ring, rows, starts, length), rest

    return choose(looped, gathered, ring, *operands)


def num_steps(experience: Experience) -> int:
    """Return the length of axis 1."""
    return jax.tree.leaves(experience)[0].shape[1]


def _write_looped(ring: Experience, batch: Experience, index: Array) -> Experience:
    count = num_steps(batch)
    if count == 1:
        return _put(ring, batch, index)
    fits = index + count <= num_steps(ring)
    ring = lax.fori_loop(0, jnp.where(fits, 1, 0), lambda _, ring: _put(ring, batch, index), ring)
    return _put_steps(ring, batch, index, jnp.where(fits, 0, count))


def _write_rows_looped(ring: Experience, batch: Experience, index: Array, lengths: Array) -> Experience:
    count = num_steps(batch)
    in_step = jnp.all(index == index[0]) & jnp.all(lengths == lengths[0])
    at_once = in_step & (lengths[0] == count) & (index[0] + count <= num_steps(ring))
    once = jnp.where(at_once, 1, 0)
    ring = lax.fori_loop(0, once, lambda _, ring: _put(ring, batch, index[0]), ring)
    ring = _put_steps(ring, batch, index[0], jnp.where(in_step & ~at_once, lengths[0], 0))

    def put_row(row: Array, ring: Experience) -> Experience:
        return _put_steps(ring, batch, index[row], lengths[row], row)

    return lax.fori_loop(0, jnp.where(in_step, 0, len(index)), put_row, ring)


def _put(ring: Experience, batch: Experience, index: Array) -> Experience:
    return jax.tree.map(lambda x, new: lax.dynamic_update_slice_in_dim(x, new, index, 1), ring, batch)


def _put_steps(ring: Experience, batch: Experience, index: Array, count: Array, row: Array | None = None):
    """Write the first `count` timesteps one by one, of all rows or of one."""
    time_axis = num_steps(ring)
    rows = jax.tree.leaves(ring)[0].shape[0] if row is None else 1
    row = 0 if row is None else row

    def put(step: Array, ring: Experience) -> Experience:
        slot = (index + step) % time_axis

        def one(x: Array, new: Array) -> Array:
            rest = (0,) * (x.ndim - 2)
            value = lax.dynamic_slice(new, (row, step, *rest), (rows, 1, *x.shape[2:]))
            return lax.dynamic_update_slice(x, value, (row, slot, *rest))

        return jax.tree.map(one, ring, batch)

    return lax.fori_loop(0, count, put, ring)


def _write_scattered(ring: Experience, batch: Experience, index: Array) -> Experience:
    slots = (index + jnp.arange(num_steps(batch), dtype=jnp.int32)) % num_steps(ring)
    return jax.tree.map(lambda x, new: x.at[:, slots].set(new, unique_indices=True), ring, batch)


def _write_rows_scattered(ring: Experience, batch: Experience, index: Array, lengths: Array) -> Experience:
    time_axis = num_steps(ring)
    steps = jnp.arange(num_steps(batch), dtype=jnp.int32)
    slots = jnp.where(steps < lengths[:, None], (index[:, None] + steps) % time_axis, time_axis)
    rows = jnp.arange(len(index), dtype=jnp.int32)[:, None]
    return jax.tree.map(lambda x, new: x.at[rows, slots].set(new, mode="drop"), ring, batch)


def _read_gathered(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    time_axis = num_steps(ring)
    slots = (starts[:, None] + jnp.arange(length, dtype=jnp.int32)) % time_axis + rows[:, None] * time_axis

    def one(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:]).at[slots].get(mode="promise_in_bounds")

    return jax.tree.map(one, ring)


def _read_steps(
    ring: Experience, place: Callable, num: int, length: int, *operands: Any
) -> tuple[Experience, Any]:
    """Find each place and copy its timesteps one by one."""

    def extras(i: Array, *operands: Any) -> Any:
        return place(i, *operands)[2]

    def copy(item: Array, carry: tuple[Experience, Any]) -> tuple[Experience, Any]:
        out, rest = carry
        row, start, values = place(*_loops.kept_inside(item, operands))
        for step in range(length):
            out = _copy_step(ring, row, start, item, step, out)
        return out, _loops.put_at(rest, item, values)

    empty = jax.tree.map(lambda x: jnp.zeros((num, length, *x.shape[2:]), x.dtype), ring)
    rest = _loops.empty_of(extras, num, *operands)
    return lax.fori_loop(jnp.int32(0), jnp.int32(num), copy, (empty, rest))


def _read_slices(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    """Slice each sequence as if it did not wrap, then write those that do again, timestep by timestep."""
    time_axis = num_steps(ring)
    inside = jnp.minimum(starts, time_axis - length)

    def slice_of(x: Array) -> Array:
        shape = (1, length, *x.shape[2:])
        cut = lambda row, start: lax.dynamic_slice(x, (row, start, *[0] * (x.ndim - 2)), shape)[0]  # noqa: E731
        return jax.vmap(cut)(rows, inside)

    def again(item: Array, out: Experience) -> Experience:
        wraps = starts[item] > time_axis - length
        copy = lambda step, out: _copy_step(ring, rows[item], starts[item], item, step, out)  # noqa: E731
        return lax.fori_loop(0, jnp.where(wraps, length, 0), copy, out)

    return lax.fori_loop(0, len(rows), again, jax.tree.map(slice_of, ring))


def _copy_step(
    ring: Experience, row: Array, start: Array, item: Array, step: Array | int, out: Experience
) -> Experience:
    slot = (start + step) % num_steps(ring)

    def one(x: Array, y: Array) -> Array:
        rest = [0] * (x.ndim - 2)
        value = lax.dynamic_slice(x, (row, slot, *rest), (1, 1, *x.shape[2:]))
        return lax.dynamic_update_slice(y, value, (item, step, *rest))

    return jax.tree.map(one, ring, out)
