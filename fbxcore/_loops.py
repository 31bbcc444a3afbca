"""One function per element, run as a loop on a CPU and over all elements at once elsewhere.

XLA compiles a loop over scalars into one piece of machine code that runs where it is called. A kernel over
a few hundred elements is instead split over threads, and a program of more than eight kernels is spread
over threads too; waking them costs more than the work. Drawing 256 items in one loop takes a third of the
time. On accelerators each round would be a launch, and under `vmap` a batch of rounds, so there the same
function is applied to all elements at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fbxcore.types import Array


def is_looped() -> bool:
    """Return whether loops are what the default device is good at."""
    return jax.default_backend() == "cpu"


def choose(loop: Callable, vector: Callable, *operands: Any) -> Any:
    """Return `loop(*operands)` on a CPU, `vector(*operands)` elsewhere and under `vmap`."""
    if not is_looped():
        return vector(*operands)
    looped = custom_vmap(loop)

    @looped.def_vmap
    def rule(axis_size: int, in_batched: Any, *operands: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, in_batched)
        out = jax.vmap(vector, in_axes=tuple(axes), axis_size=axis_size)(*operands)
        return out, jax.tree.map(lambda _: True, out)

    return looped(*operands)


def vector_only(_: Callable, vector: Callable, *operands: Any) -> Any:
    """Return `vector(*operands)`."""
    return vector(*operands)


def map_elements(element: Callable, num: int, *operands: Any) -> Any:
    """Return `element(i, *operands)` for i from 0 to `num`, stacked.

    Args:
        element: takes i as `[]` or as `[N]`, and returns arrays of the same shape.
    """

    def loop(*operands: Any) -> Any:
        def put(i: Array, out: Any) -> Any:
            return put_at(out, i, element(*kept_inside(i, operands)))

        return lax.fori_loop(jnp.int32(0), jnp.int32(num), put, empty_of(element, num, *operands))

    def vector(*operands: Any) -> Any:
        return element(jnp.arange(num, dtype=jnp.int32), *operands)

    return choose(loop, vector, *operands)


def empty_of(element: Callable, num: int, *operands: Any) -> Any:
    """Return zeros for what `element` gives, `num` times."""
    shapes = jax.eval_shape(element, jax.ShapeDtypeStruct((), jnp.int32), *operands)
    return jax.tree.map(lambda x: jnp.zeros((num, *x.shape), x.dtype), shapes)


def put_at(out: Any, i: Array, values: Any) -> Any:
    """Return `out` with the values at i."""
    return jax.tree.map(
        lambda x, v: lax.dynamic_update_slice(x, v[None], (i,), allow_negative_indices=False), out, values
    )


def kept_inside(i: Array, operands: tuple) -> tuple:
    """Return the arguments of an element so that what depends on scalars alone stays in the loop.

    XLA would take it out as a kernel for each value, and so pass the eight.
    """
    leaves, structure = jax.tree.flatten(operands)
    small = [k for k, leaf in enumerate(leaves) if leaf.size <= 4]
    i, *scalars = lax.optimization_barrier((i, *(leaves[k] for k in small)))
    for k, scalar in zip(small, scalars, strict=True):
        leaves[k] = scalar
    return i, *jax.tree.unflatten(structure, leaves)
