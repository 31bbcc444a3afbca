"""Wrap-around index arithmetic: writing into and reading from rings `[B, T, ...]`.

A write is a loop of `dynamic_update_slice`, which XLA does in place in a donated ring, where a scatter
costs 3 to 12 times as much on a CPU and a `cond` between two ways of writing copies the ring. What
decides between the ways is therefore how often each loop runs, which may be data: 0 times is "not
this way". Under `vmap` the number of rounds would differ from ring to ring and each round would copy
them all, so the rule for it is one scatter; so it is on accelerators, where each round costs a launch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fbxcore.types import Array, Experience


def write(ring: Experience, batch: Experience, index: Array) -> Experience:
    """Write all K timesteps of every row at one index, wrapping at the end.

    Args:
        ring: leaves `[B, T, ...]`.
        batch: leaves `[B, K, ...]`, K at most T.
        index: `[]`, below T.
    """
    return _write_looped(ring, batch, index) if _is_looped() else _write_scattered(ring, batch, index)


def write_rows(ring: Experience, batch: Experience, index: Array, lengths: Array) -> Experience:
    """Write the first `lengths[b]` timesteps of each row at the row's own index, wrapping at the end.

    Args:
        ring: leaves `[B, T, ...]`.
        batch: leaves `[B, K, ...]`, K at most T.
        index: `[B]`, below T.
        lengths: `[B]`, at most K; what lies behind is padding and leaves the ring as it is.
    """
    write = _write_rows_looped if _is_looped() else _write_rows_scattered
    return write(ring, batch, index, lengths)


def read(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    """Return `length` timesteps `[N, L, ...]` from each start slot on, wrapping at the end."""
    slots = (starts[:, None] + jnp.arange(length, dtype=jnp.int32)) % num_steps(ring)
    return jax.tree.map(lambda x: x.at[rows[:, None], slots].get(mode="promise_in_bounds"), ring)


def num_steps(experience: Experience) -> int:
    """Return the length of axis 1."""
    return jax.tree.leaves(experience)[0].shape[1]


def _is_looped() -> bool:
    return jax.default_backend() == "cpu"


@custom_vmap
def _write_looped(ring: Experience, batch: Experience, index: Array) -> Experience:
    count = num_steps(batch)
    if count == 1:
        return _put(ring, batch, index)
    fits = index + count <= num_steps(ring)
    ring = lax.fori_loop(0, jnp.where(fits, 1, 0), lambda _, ring: _put(ring, batch, index), ring)
    return _put_steps(ring, batch, index, jnp.where(fits, 0, count))


@custom_vmap
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


def _vmap_as(looped, scattered) -> None:
    @looped.def_vmap
    def rule(axis_size, in_batched, *arguments):
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, in_batched)
        out = jax.vmap(scattered, in_axes=tuple(axes), axis_size=axis_size)(*arguments)
        return out, jax.tree.map(lambda _: True, out)


_vmap_as(_write_looped, _write_scattered)
_vmap_as(_write_rows_looped, _write_rows_scattered)
