"""Wrap-around index arithmetic: writing into and reading from rings `[B, T, ...]`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbxcore.types import Array, Experience


def write_rows(ring: Experience, batch: Experience, index: Array, lengths: Array) -> Experience:
    """Write the first `lengths[b]` timesteps of each row at its index, wrapping at the end.

    Args:
        ring: leaves `[B, T, ...]`.
        batch: leaves `[B, K, ...]`, K at most T.
        index: `[B]`, below T.
        lengths: `[B]`, at most K; what lies behind is padding and leaves the ring as it is.
    """
    rows, time_axis = jax.tree.leaves(ring)[0].shape[:2]
    steps = jnp.arange(jax.tree.leaves(batch)[0].shape[1], dtype=jnp.int32)
    slots = (index[:, None] + steps) % time_axis
    slots = jnp.where(steps < lengths[:, None], slots, time_axis)
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    return jax.tree.map(lambda x, new: x.at[row, slots].set(new, mode="drop"), ring, batch)


def read(ring: Experience, rows: Array, starts: Array, length: int) -> Experience:
    """Return `length` timesteps `[N, L, ...]` from each start slot on, wrapping at the end."""
    time_axis = jax.tree.leaves(ring)[0].shape[1]
    slots = (starts[:, None] + jnp.arange(length, dtype=jnp.int32)) % time_axis
    return jax.tree.map(lambda x: x.at[rows[:, None], slots].get(mode="promise_in_bounds"), ring)
