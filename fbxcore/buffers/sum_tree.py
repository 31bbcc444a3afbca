"""A sum tree: weights at the leaves, in each parent the sum of its two children.

The tree is one array in heap order: the root is node 0, the children of node i are 2i + 1 and 2i + 2,
and the leaves are the last 2**depth nodes, of which the first `capacity` are used. An item is drawn in
proportion to its weight by walking down from the root (Schaul et al., 2015, "Prioritized Experience
Replay", section 3.3).

Two rules keep float32 exact where it matters. Parents are recomputed from their children and never
patched by differences, so that the root cannot drift from the leaves. The walk never enters a subtree
whose sum is 0, so that no draw lands on a leaf of weight 0, whatever was rounded on the way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbxcore import _loops, _random
from fbxcore.buffers.pytree import Fields, pytree, static
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import Array, PRNGKey

TINY = float(jnp.finfo(jnp.float32).tiny)
HUGE = float(jnp.finfo(jnp.float32).max)
LANES = 5  # walks that go down together and wait for memory at once; 6 are not one piece of code
FEW = 512  # draws; more than that are made all at once, level by level, on all threads


@pytree
class SumTreeState(Fields):
    """Weights and their sums."""

    nodes: Array  # [2 ** (tree_depth + 1) - 1]
    max_recorded_priority: Array  # [], the greatest weight ever set, at least 1
    tree_depth: int = static()
    capacity: int = static()


def get_tree_depth(capacity: int) -> int:
    """Return how many levels lie below the root of a tree with that many leaves."""
    return max(int(capacity) - 1, 0).bit_length()


def init(capacity: int) -> SumTreeState:
    """Return a tree of `capacity` leaves of weight 0."""
    depth = get_tree_depth(capacity)
    return SumTreeState(
        nodes=jnp.zeros(2 ** (depth + 1) - 1, jnp.float32),
        max_recorded_priority=jnp.array(1.0, jnp.float32),
        tree_depth=depth,
        capacity=int(capacity),
    )


def get_tree_index(depth_level: Array | int, node_index: Array | int) -> Array:
    """Return the place in `nodes` of a level's node."""
    return jnp.left_shift(1, jnp.asarray(depth_level)) - 1 + node_index


@functools.partial(jax.jit, inline=True)
def sample(state: SumTreeState, rng_key: PRNGKey | None = None, query_value: Array | None = None) -> Array:
    """Draw a leaf in proportion to its weight.

    Args:
        rng_key: used where no `query_value` is given.
        query_value: from 0 to 1, `[]` or `[N]`, the share of the total weight to walk to.

    Returns:
        The leaf's index, int32, with the shape of `query_value`. Where all weights are 0 it is 0, and
        its probability is 0.
    """
    if query_value is None:
        if rng_key is None:
            raise InvalidArgumentError("`rng_key` must be given where `query_value` is not, got None.")
        query_value = jax.random.uniform(rng_key)
    (node,) = _walk(state.nodes, state.tree_depth, [query_value * state.nodes[0]])
    return node - (2**state.tree_depth - 1)


def _walk(nodes: Array, depth: int, values: list[Array]) -> list[Array]:
    """Return the node that each value leads to; several walk down together."""

    def down(_: Array, carry: list[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
        return [_step(nodes, node, value) for node, value in carry]

    start = [(jnp.zeros_like(value, dtype=jnp.int32), value) for value in values]
    return [node for node, _ in lax.fori_loop(0, depth, down, start)]


def _step(nodes: Array, node: Array, value: Array) -> tuple[Array, Array]:
    left = 2 * node + 1
    left_sum = nodes.at[left].get(mode="promise_in_bounds").astype(value.dtype)
    right_sum = nodes.at[left + 1].get(mode="promise_in_bounds")
    goes_left = (value < left_sum) | (right_sum == 0)
    return jnp.where(goes_left, left, left + 1), jnp.where(goes_left, value, value - left_sum)


@functools.partial(jax.jit, static_argnames="batch_size", inline=True)
def stratified_sample(
    state: SumTreeState, batch_size: int, rng_key: PRNGKey, count: Array | None = None
) -> Array:
    """Draw one leaf from each of equal shares of the total weight.

    Args:
        batch_size: how many leaves are returned.
        count: `[]`, how many shares there are, at most `batch_size`, which is the default; what is
            returned beyond it is the padding of a batch of `count` and must not be used.

    Returns:
        Leaf indices, int32 `[N]`, ascending.
    """
    count = batch_size if count is None else count
    return stratified_draw(state, batch_size, rng_key, count)[0]


def stratified_draw(
    state: SumTreeState, batch_size: int, rng_key: PRNGKey, count: Array | int
) -> tuple[Array, Array]:
    """Return the leaves drawn from those shares, `[N]`, and their probabilities."""

    def bounds(i: Array, count: Array) -> tuple[Array, Array]:
        low, high = (i.astype(jnp.float32) / count, (i + 1).astype(jnp.float32) / count)
        return jnp.minimum(low, 1.0), jnp.minimum(high, 1.0)

    def by_words(indices: list[Array], data: Array, count: Array, total: Array) -> list[Array]:
        words = _random.words_of(data)
        return [_random.uniform(_random.split(words, i), *bounds(i, count)) * total for i in indices]

    count, total = jnp.asarray(count, jnp.float32), state.nodes[0]
    if _random.is_threefry(rng_key):
        values = _map(by_words, batch_size, _random.data_of(rng_key), count, total)
    else:
        low, high = bounds(jnp.arange(batch_size, dtype=jnp.int32), count)
        uniform = jax.vmap(lambda key, low, high: jax.random.uniform(key, (), jnp.float32, low, high))
        values = uniform(jax.random.split(rng_key, batch_size), low, high) * total
    return leaves_at(state, values)


def whole_draw(state: SumTreeState, batch_size: int, rng_key: PRNGKey) -> tuple[Array, Array]:
    """Return leaves drawn one by one, `[N]`, and their probabilities.

    Weights must be whole numbers. Each draw is then a whole number below their sum, so that leaves of equal
    weight have equal chances to the last bit, however many they are.
    """
    total = state.nodes[0].astype(jnp.int32)

    def by_keys(indices: list[Array], keys: Array, total: Array) -> list[Array]:
        return [_random.integer(keys, 0, i, total) for i in indices]

    if _random.is_threefry(rng_key):
        keys = _random.integer_keys(_random.data_of(rng_key), ())
        values = _loops.map_elements(by_keys, batch_size, keys, total)
    else:
        values = jax.random.randint(rng_key, (batch_size,), 0, jnp.maximum(total, 1), jnp.int32)
    return leaves_at(state, values)


def leaves_at(state: SumTreeState, values: Array) -> tuple[Array, Array]:
    """Return the leaves `[N]` that values of the total lead to, and their shares in it."""
    depth = state.tree_depth

    def walk(indices: list[Array], nodes: Array, values: Array) -> list[tuple[Array, Array]]:
        found = _walk(nodes, depth, [_loops.at(values, i) for i in indices])
        shares = [share_of(nodes[0], nodes.at[node].get(mode="promise_in_bounds")) for node in found]
        return [(node - (2**depth - 1), share) for node, share in zip(found, shares, strict=True)]

    return _map(walk, len(values), state.nodes, values, lanes=LANES)


def _map(element: Callable, num: int, *operands: Array, lanes: int = 1) -> Any:
    if num > FEW:
        return _loops.map_at_once(element, num, *operands)
    return _loops.map_elements(element, num, *operands, lanes=lanes)


def leaves(state: SumTreeState) -> Array:
    """Return all weights `[capacity]`."""
    first = 2**state.tree_depth - 1
    return state.nodes[first : first + state.capacity]


def get(state: SumTreeState, node_index: Array) -> Array:
    """Return the weight of a leaf, or of several."""
    return state.nodes[get_tree_index(state.tree_depth, node_index)]


get_batch = get


def get_probability(state: SumTreeState, node_index: Array) -> Array:
    """Return the share of the total weight of a leaf, or of several; 0 where the total is 0."""
    return share_of(state.nodes[0], get(state, node_index))


def share_of(total: Array, weight: Array) -> Array:
    """Return the share of a weight in the total; 0 where the total is 0."""
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1), 0.0)


def weight_of(priority: Array, exponent: float, capacity: int) -> tuple[Array, Array]:
    """Return the weight of a priority, and whether it is one: finite and not negative.

    A weight is the priority to the power of the exponent, once; that of priority 0 is 0, whatever the
    exponent. It is kept so small that all of them together stay finite in float32.
    """
    priority = jnp.asarray(priority, jnp.float32)
    is_valid = jnp.isfinite(priority) & (priority >= 0)
    weight = jnp.where(is_valid & (priority > 0), priority, 1.0) ** exponent
    weight = jnp.where(
        is_valid & (priority > 0), jnp.minimum(weight, HUGE / 2 ** (get_tree_depth(capacity) + 1)), 0.0
    )
    return jnp.where(weight < TINY, 0.0, weight), is_valid


def set_ranges(
    state: SumTreeState, range_of: Callable, num: int, *operands: Array, width: int, device: str
) -> SumTreeState:
    """Give all leaves of each of some ranges one weight and recompute what lies above them.

    Args:
        range_of: `range_of(r, *operands)` gives first leaf, last leaf and weight of the rth range, which is
            empty where the last is below the first; no leaf may be in two ranges.
        num: how many ranges there are.
        width: how many leaves a range has at most.
        device: "cpu" goes node by node, the others level by level.
    """
    depth = state.tree_depth

    def by_node(nodes: Array, *operands: Array) -> Array:
        return _set_by_node(nodes, depth, range_of, num, *operands)

    def by_level(nodes: Array, *operands: Array) -> Array:
        first, last, weights = range_of(jnp.arange(num, dtype=jnp.int32), *operands)
        indices = first[:, None] + jnp.arange(width, dtype=jnp.int32)
        weights = jnp.broadcast_to(weights[:, None], indices.shape)
        applied = indices <= last[:, None]
        return _set_by_level(nodes, depth, indices.ravel(), weights.ravel(), applied.ravel())

    return state.replace(nodes=_by(device, by_node, by_level, state.nodes, *operands))


def set_each(
    state: SumTreeState, change_of: Callable, num: int, *operands: Array, device: str
) -> SumTreeState:
    """Set the weights of single leaves; of equal ones the last wins.

    Args:
        change_of: `change_of(i, *operands)` gives leaf, weight, and whether the ith change is applied.
        num: how many changes there are.
        device: "cpu" goes node by node, the others level by level.
    """
    depth = state.tree_depth

    def by_node(nodes: Array, greatest: Array, *operands: Array) -> tuple[Array, Array]:
        return _set_each_by_node(nodes, greatest, depth, change_of, num, *operands)

    def by_level(nodes: Array, greatest: Array, *operands: Array) -> tuple[Array, Array]:
        indices, weights, applied = change_of(jnp.arange(num, dtype=jnp.int32), *operands)
        greatest = jnp.maximum(greatest, jnp.max(jnp.where(applied, weights, 0.0), initial=0.0))
        return _set_by_level(nodes, depth, indices, weights, applied), greatest

    nodes, greatest = _by(device, by_node, by_level, state.nodes, state.max_recorded_priority, *operands)
    return state.replace(nodes=nodes, max_recorded_priority=greatest)


def _by(device: str, by_node: Callable, by_level: Callable, *operands: Array):
    return (_loops.choose if device == "cpu" else _loops.vector_only)(by_node, by_level, *operands)


def _set_by_level(nodes: Array, depth: int, indices: Array, weights: Array, applied: Array) -> Array:
    beyond = nodes.shape[0]
    node = jnp.where(applied, indices + 2**depth - 1, beyond)
    order = jnp.argsort(node, stable=True)
    in_order = node[order]
    is_last = in_order != jnp.append(in_order[1:], beyond + 1)
    nodes = nodes.at[jnp.where(is_last, in_order, beyond)].set(weights[order], mode="drop")
    for _ in range(depth):
        node = jnp.where(node < beyond, (node - 1) >> 1, beyond)
        left = jnp.minimum(2 * node + 1, beyond - 2)
        nodes = nodes.at[node].set(nodes[left] + nodes[left + 1], mode="drop")
    return nodes


def _shared_levels(depth: int, num: int) -> int:
    """Return how many levels at the top are recomputed once at the end instead of once per change."""
    return min(depth, num.bit_length() - 1) if num >= 16 else 0


def _set_by_node(nodes: Array, depth: int, range_of: Callable, num: int, *operands: Array) -> Array:
    shared = _shared_levels(depth, num)
    offset = 2**depth - 1

    def fill(r: Array, nodes: Array) -> Array:
        first, last, weight = range_of(*_loops.kept_inside(r, operands))
        low, high = first + offset, last + offset
        nodes = lax.fori_loop(low, high + 1, lambda node, nodes: _put(nodes, node, weight), nodes)

        def level(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            nodes, low, high = carry
            low, high = (low - 1) >> 1, (high - 1) >> 1
            return lax.fori_loop(low, high + 1, _recompute, nodes), low, high

        levels = jnp.where(high >= low, depth - shared, 0)
        return lax.fori_loop(0, levels, level, (nodes, low, high))[0]

    return _recompute_top(lax.fori_loop(jnp.int32(0), jnp.int32(num), fill, nodes), shared)


def _set_each_by_node(
    nodes: Array, greatest: Array, depth: int, change_of: Callable, num: int, *operands: Array
) -> tuple[Array, Array]:
    shared = _shared_levels(depth, num)

    def set_one(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        nodes, greatest = carry
        index, weight, applied = change_of(*_loops.kept_inside(i, operands))
        node = jnp.where(applied, index, 0) + 2**depth - 1
        nodes = _put(nodes, node, jnp.where(applied, weight, _at(nodes, node)))

        def up(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            nodes, node = carry
            node = (node - 1) >> 1
            return _recompute(node, nodes), node

        nodes, _ = lax.fori_loop(0, depth - shared, up, (nodes, node))
        return nodes, jnp.maximum(greatest, jnp.where(applied, weight, 0.0))

    nodes, greatest = lax.fori_loop(jnp.int32(0), jnp.int32(num), set_one, (nodes, greatest))
    return _recompute_top(nodes, shared), greatest


def _recompute_top(nodes: Array, levels: int) -> Array:
    inner = 2**levels - 1
    return lax.fori_loop(0, inner, lambda i, nodes: _recompute(inner - 1 - i, nodes), nodes)


def _recompute(node: Array, nodes: Array) -> Array:
    return _put(nodes, node, _at(nodes, 2 * node + 1) + _at(nodes, 2 * node + 2))


# One-element slices: XLA updates them in place where it would copy the tree for a scalar scatter.
def _at(nodes: Array, node: Array) -> Array:
    return lax.dynamic_slice(nodes, (node,), (1,), allow_negative_indices=False)[0]


def _put(nodes: Array, node: Array, value: Array) -> Array:
    return lax.dynamic_update_slice(nodes, value[None], (node,), allow_negative_indices=False)


def set_batch_scan(state: SumTreeState, node_indices: Array, values: Array) -> SumTreeState:
    """Set the weights of leaves one after the other, so that of equal indices the last wins.

    An index that is no leaf is left out, and so is a weight that is NaN, infinite or negative.
    """
    return _set_checked(state, node_indices, values, "cpu")


@functools.partial(jax.jit, static_argnames="device", inline=True)
def _set_checked(state: SumTreeState, indices: Array, values: Array, device: str) -> SumTreeState:
    def change_of(i: Array, indices: Array, values: Array) -> tuple[Array, Array, Array]:
        index, value = indices[i], values[i]
        applied = (index >= 0) & (index < state.capacity) & jnp.isfinite(value) & (value >= 0)
        return index, jnp.where(applied, value, 0.0), applied

    indices, values = jnp.asarray(indices, jnp.int32), jnp.asarray(values, jnp.float32)
    return set_each(state, change_of, len(indices), indices, values, device=device)


def set_non_batched(state: SumTreeState, node_index: Array, value: Array) -> SumTreeState:
    """Set the weight of one leaf."""
    return set_batch_scan(state, jnp.atleast_1d(node_index), jnp.atleast_1d(value))


def set_batch_bincount(state: SumTreeState, node_indices: Array, values: Array) -> SumTreeState:
    """Set the weights of leaves all at once, level by level: the same result, faster on accelerators."""
    return _set_checked(state, node_indices, values, "gpu")


def from_leaves(weights: Array, max_recorded_priority: Array) -> SumTreeState:
    """Return the tree of given weights `[capacity]`."""
    state = init(len(weights))
    level = np.zeros(2**state.tree_depth, np.float32)  # on the host: each level would be compiled once
    level[: state.capacity] = np.asarray(weights, np.float32)
    levels = [level]
    while level.size > 1:
        level = level[0::2] + level[1::2]
        levels.append(level)
    return state.replace(
        nodes=jnp.asarray(np.concatenate(levels[::-1])),
        max_recorded_priority=jnp.asarray(max_recorded_priority, jnp.float32),
    )
