"""Wrap-around index arithmetic: writing into and reading from rings `[B, T, ...]`.

On a CPU a write is a loop of `dynamic_update_slice`, which XLA does in place in a donated ring, where a
scatter costs 3 to 12 times as much and a `cond` between two ways of writing copies the ring. What decides
between the ways is therefore how often each loop runs, which may be data: 0 times is "not this way".
Under `vmap` and on accelerators a write is one scatter and a read one gather (`_loops.choose`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbxcore import _loops
from fbxcore._loops import choose
from fbxcore.types import Array, Experience

_FEW = 8  # up to so many timesteps, copying one by one is faster than slicing
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
        return [(rows[i], starts[i], ()) for i in indices]

    return read_at(ring, place, len(rows), length, rows, starts)[0]


def read_at(
    ring: Experience, place: Callable, num: int, length: int, *operands: Any, lanes: int = 1
) -> tuple[Experience, Any]:
    """Return `length` timesteps `[N, L, ...]` from N places on, wrapping at the end.

    Args:
        place: `place(indices, *operands)` gives row, start slot and anything else of each index in a list,
            or of all of them for a list of `[N]`.
        lanes: how many places a round of a loop should look for at a time.

    Returns:
        The timesteps, and what else `place` gave, stacked.
    """

    def looped(ring: Experience, *operands: Any) -> tuple[Experience, Any]:
        if length == 1 and _bytes_of(ring) <= _SMALL:
            fit = lanes if 2 * lanes * _bytes_of(ring) <= _SMALL else 1
            return _read_each(ring, place, num, fit, *operands)
        rows, starts, rest = _loops.map_elements(place, num, *operands, lanes=lanes)
        by = _read_slices if length > _FEW else _read_steps
        return by(ring, rows, starts, length), rest

    def gathered(ring: Experience, *operands: Any) -> tuple[Experience, Any]:
        rows, starts, rest = place([jnp.arange(num, dtype=jnp.int32)], *operands)[0]
        return _read_gathered(ring, rows, starts, length), rest

    return choose(looped, gathered, ring, *operands) if num <= _loops.FEW else gathered(ring, *operands)


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
        return x.reshape(-1, *x.shape[2:]).at[slots].get(mode="promise_in_bounds")

    return jax.tree.map(one, ring)


def _read_each(
    ring: Experience, place: Callable, num: int, lanes: int, *operands: Any
) -> tuple[Experience, Any]:
    """Find each place and copy its one timestep, in one loop."""

    def extras(indices: list[Array], *operands: Any) -> list[Any]:
        return [found[2] for found in place(indices, *operands)]

    def copy(turn: Array, carry: tuple[Experience, Any]) -> tuple[Experience, Any]:
        out, rest = carry
        turn, *kept = _loops.kept_inside(turn, operands)
        indices = _loops.lanes_of(turn, num, lanes)
        for item, (row, start, values) in zip(indices, place(indices, *kept), strict=True):
            out = _copy_step(ring, row, start, item, 0, out)
            rest = _loops.put_at(rest, item, values)
        return out, rest

    rest = _loops.empty_of(extras, num, *operands)
    rounds = jnp.int32(-(-num // lanes))
    return lax.fori_loop(jnp.int32(0), rounds, copy, (_empty(ring, num, 1), rest))


def _read_steps(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    """Copy timestep by timestep: large leaves in parts, small ones side by side."""
    leaves, structure = jax.tree.flatten(ring)
    out: dict[int, Array] = {}
    for group in _groups_of(leaves):
        copied = _copy_steps([leaves[k] for k in group], rows, starts, length)
        out |= dict(zip(group, copied, strict=True))
    return jax.tree.unflatten(structure, [out[k] for k in range(len(leaves))])


def _groups_of(leaves: list[Array]) -> list[list[int]]:
    """Return which leaves to copy in one loop, so that as many loops as can be are one piece of code."""
    groups: list[list[int]] = []
    room = 0
    for k in sorted(range(len(leaves)), key=lambda k: _bytes_of(leaves[k])):
        size = _bytes_of(leaves[k])
        if groups and size <= room:
            groups[-1].append(k)
        else:
            groups.append([k])
            room = _SMALL
        room -= size
    return groups


def _copy_steps(ring: list[Array], rows: Array, starts: Array, length: int) -> list[Array]:
    time_axis, num, pieces = num_steps(ring), len(rows), _pieces_of(ring)
    shaped = ring if pieces == 1 else [x.reshape(*x.shape[:2], pieces, -1) for x in ring]

    def copy(i: Array, out: list[Array]) -> list[Array]:
        i, *piece = (i,) if pieces == 1 else (i // pieces, i % pieces)
        item, step = (i, 0) if length == 1 else (i // length, i % length)
        source = (rows[item], (starts[item] + step) % time_axis, *piece)
        return [_copy(x, source, y, (item, step, *piece)) for x, y in zip(shaped, out, strict=True)]

    out = lax.fori_loop(jnp.int32(0), jnp.int32(num * length * pieces), copy, _empty(shaped, num, length))
    return [y.reshape(num, length, *x.shape[2:]) for x, y in zip(ring, out, strict=True)]


def _pieces_of(ring: list[Array]) -> int:
    """Return in how many equal parts to copy a timestep, so that a loop over them is one piece of code."""
    if len(ring) > 1 or _bytes_of(ring) <= _SMALL:
        return 1
    count = math.prod(ring[0].shape[2:])
    fewest = -(-_bytes_of(ring) // _SMALL)
    return next((pieces for pieces in range(fewest, 4 * fewest) if count % pieces == 0), 1)


def _copy(x: Array, source: tuple, y: Array, target: tuple) -> Array:
    """Return y with what x holds at an index of its leading axes, at another index."""
    rest = x.shape[len(source) :]
    zeros = [0] * len(rest)
    shape = (*[1] * len(source), *rest)
    value = lax.dynamic_slice(x, (*source, *zeros), shape, allow_negative_indices=False)
    return lax.dynamic_update_slice(y, value, (*target, *zeros), allow_negative_indices=False)


def _read_slices(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    """Slice each sequence as if it did not wrap, then write those that do again, timestep by timestep."""
    time_axis = num_steps(ring)
    inside = jnp.minimum(starts, time_axis - length)

    def slice_of(x: Array) -> Array:
        return jax.vmap(lambda row, start: _slice(x, row, start, 1, length)[0])(rows, inside)

    def again(item: Array, out: Experience) -> Experience:
        wraps = starts[item] > time_axis - length
        copy = lambda step, out: _copy_step(ring, rows[item], starts[item], item, step, out)  # noqa: E731
        return lax.fori_loop(0, jnp.where(wraps, length, 0), copy, out)

    return lax.fori_loop(0, len(rows), again, jax.tree.map(slice_of, ring))


def _copy_step(
    ring: Experience, row: Array, start: Array, item: Array, step: Array | int, out: Experience
) -> Experience:
    slot = (start + step) % num_steps(ring)

    copy = lambda x, y: _update(y, _slice(x, row, slot, 1, 1), item, step)  # noqa: E731
    return jax.tree.map(copy, ring, out)


def _empty(ring: Experience, num: int, length: int) -> Experience:
    return jax.tree.map(lambda x: jnp.zeros((num, length, *x.shape[2:]), x.dtype), ring)


def _bytes_of(ring: Experience) -> int:
    """Return the bytes of one timestep of one row."""
    return sum(math.prod(leaf.shape[2:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(ring))
