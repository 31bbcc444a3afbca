"""Helpers for pytrees of arrays with leading axes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fbxcore.errors import StructureError
from fbxcore.types import Array, Experience


def get_tree_shape_prefix(tree: Experience, n_axes: int = 1) -> tuple[int, ...]:
    """Return the first `n_axes` sizes that all leaves share.

    Raises:
        StructureError: if a leaf has others.
    """
    leaves = jax.tree.leaves(tree)
    prefix = tuple(leaves[0].shape[:n_axes])
    for leaf in leaves:
        if tuple(leaf.shape[:n_axes]) != prefix:
            raise StructureError(
                f"`tree` must have the leading axes {list(prefix)} in every leaf, got {list(leaf.shape)}."
            )
    return prefix


def add_dim_to_args(
    func: Callable,
    axis: int = 1,
    starting_arg_index: int | None = 1,
    ending_arg_index: int | None = None,
    kwargs_on_device_keys: list | None = None,
) -> Callable:
    """Return `func` with an axis of size 1 put into some of its arguments.

    Args:
        axis: where it goes in positional arguments; in keyword arguments it is axis 1.
        starting_arg_index: the first positional argument that gets one.
        ending_arg_index: the first one after those that do; by default all do.
        kwargs_on_device_keys: the keyword arguments that get one; by default all do.
    """

    def expand(tree: Any, at: int) -> Any:
        return jax.tree.map(lambda x: jnp.expand_dims(x, axis=at), tree)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        end = len(args) if ending_arg_index is None else ending_arg_index
        start = starting_arg_index or 0
        args = (*args[:start], *(expand(arg, axis) for arg in args[start:end]), *args[end:])
        chosen = kwargs if kwargs_on_device_keys is None else kwargs_on_device_keys
        kwargs = {key: expand(value, 1) if key in chosen else value for key, value in kwargs.items()}
        return func(*args, **kwargs)

    return wrapper


def get_timestep_count(buffer_state: Any) -> Array:
    """Return how many timesteps a buffer state holds over all rows.

    Raises:
        StructureError: if it is not the state of a buffer with a ring.
    """
    for field in ("experience", "current_index", "is_full"):
        if not hasattr(buffer_state, field):
            raise StructureError(
                f"`buffer_state` must have a field `{field}`, got {type(buffer_state).__name__}."
            )
    rows, time_axis = get_tree_shape_prefix(buffer_state.experience, 2)
    return rows * jnp.where(buffer_state.is_full, time_axis, buffer_state.current_index)
