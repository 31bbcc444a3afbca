"""One function per element, run as a loop on a CPU and over all elements at once elsewhere.

XLA compiles a loop over scalars into one piece of machine code that runs where it is called. A kernel over
a few hundred elements is instead split over threads, and a program of more than eight kernels is spread
over threads too; waking them costs more than the work. A program in which XLA counts a thousand operations
or more even starts on another thread, 25 µs later; of a loop it counts one round. Drawing 256 items in one
loop takes a third of the time. On accelerators each round would be a launch, and under `vmap` a batch of
rounds, so there the same function is applied to all elements at once.
"""

from __future__ import annotations

import functools
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


def in_one_piece(function: Callable, counter: Array, carry: Any, *operands: Any) -> Any:
    """Return `function(carry, *operands)`, compiled as the body of a loop that runs once.

    A few updates of a few bytes each would be a kernel each; as a loop they are one.

    Args:
        counter: `[]`, never negative, from which the loop works out that it runs once.
    """

    def loop(counter: Array, carry: Any, *operands: Any) -> Any:
        go_on = lambda state: state[0] < jnp.where(counter >= 0, 1, 0)  # noqa: E731
        step = lambda state: (state[0] + 1, function(state[1], *operands))  # noqa: E731
        return lax.while_loop(go_on, step, (jnp.int32(0), carry))[1]

    def vector(counter: Array, carry: Any, *operands: Any) -> Any:  # noqa: ARG001
        return function(carry, *operands)

    return choose(loop, vector, counter, carry, *operands)


def vector_only(_: Callable, vector: Callable, *operands: Any) -> Any:
    """Return `vector(*operands)`."""
    return vector(*operands)


def map_elements(element: Callable, num: int, *operands: Any, lanes: int = 1) -> Any:
    """Return what `element(indices, *operands)` gives for i from 0 to `num`, stacked.

    Args:
        element: takes a list of i, each `[]` or `[N]`, and returns a list of as many results of that shape.
        lanes: how many i a round of the loop takes at a time. They may wait for memory together.
    """

    def loop(*operands: Any) -> Any:
        def put(turn: Array, out: Any) -> Any:
            turn, *kept = kept_inside(turn, operands)
            indices = lanes_of(turn, num, lanes)
            for i, values in zip(indices, element(indices, *kept), strict=True):
                out = put_at(out, i, values)
            return out

        rounds = jnp.int32(-(-num // lanes))
        return lax.fori_loop(jnp.int32(0), rounds, put, empty_of(element, num, *operands))

    return choose(loop, functools.partial(map_at_once, element, num), *operands)


def map_at_once(element: Callable, num: int, *operands: Any) -> Any:
    """Return what `map_elements` does, over all elements at once on any device."""
    return element([jnp.arange(num, dtype=jnp.int32)], *operands)[0]


def at(values: Array, i: Array) -> Array:
    """Return the value at i, or, where i is all elements, all of them."""
    if i.ndim:
        return values
    return lax.dynamic_index_in_dim(values, i, keepdims=False, allow_negative_indices=False)


def lanes_of(turn: Array, num: int, lanes: int) -> list[Array]:
    """Return the indices of one round; the last round may take the last index several times."""
    if lanes == 1:
        return [turn]
    return [jnp.minimum(turn * lanes + lane, num - 1) for lane in range(lanes)]


def empty_of(element: Callable, num: int, *operands: Any) -> Any:
    """Return zeros for what `element` gives, `num` times."""
    shapes = jax.eval_shape(element, [jax.ShapeDtypeStruct((), jnp.int32)], *operands)[0]
    return jax.tree.map(lambda x: jnp.zeros((num, *x.shape), x.dtype), shapes)


def put_at(out: Any, i: Array, values: Any) -> Any:
    """Return `out` with the values at i."""

    def one(x: Array, value: Array) -> Array:
        at = (i, *[0] * value.ndim)
        return lax.dynamic_update_slice(x, value[None], at, allow_negative_indices=False)

    return jax.tree.map(one, out, values)


def kept_inside(i: Array, operands: tuple) -> tuple:
    """Return the arguments of an element so that what depends on scalars alone stays in the loop.

    XLA would take it out as a kernel for each value, and so pass the eight.
    """
    leaves, structure = jax.tree.flatten(operands)
    small = [k for k, leaf in enumerate(leaves) if leaf.size <= 16]
    i, *scalars = lax.optimization_barrier((i, *(leaves[k] for k in small)))
    for k, scalar in zip(small, scalars, strict=True):
        leaves[k] = scalar
    return i, *jax.tree.unflatten(structure, leaves)
