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

import jax
import jax.numpy as jnp
from jax import lax

from fbxcore.buffers.pytree import Fields, pytree, static
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import Array, PRNGKey

TINY = float(jnp.finfo(jnp.float32).tiny)
HUGE = float(jnp.finfo(jnp.float32).max)


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


def sample(state: SumTreeState, rng_key: PRNGKey | None = None, query_value: Array | None = None) -> Array:
    """Draw a leaf in proportion to its weight.

    Args:
        rng_key: used where no `query_value` is given.
        query_value: from 0 to 1, `[]` or `[N]`, the share of the total weight to walk to.

    Returns:
        The leaf's index, int32, with the shape of `query_value`. Where all weights are 0 it is the last
        leaf's index, whose probability is 0.
    """
    if query_value is None:
        if rng_key is None:
            raise InvalidArgumentError("`rng_key` must be given where `query_value` is not, got None.")
        query_value = jax.random.uniform(rng_key)
    return _walk(state.nodes, state.tree_depth, query_value * state.nodes[0])


def _walk(nodes: Array, depth: int, value: Array) -> Array:
    def down(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        node, value = carry
        left = 2 * node + 1
        left_sum = nodes.at[left].get(mode="promise_in_bounds")
        right_sum = nodes.at[left + 1].get(mode="promise_in_bounds")
        goes_left = (value < left_sum) | (right_sum == 0)
        return jnp.where(goes_left, left, left + 1), jnp.where(goes_left, value, value - left_sum)

    start = (jnp.zeros_like(value, dtype=jnp.int32), value)
    node, _ = lax.fori_loop(0, depth, down, start)
    return node - (2**depth - 1)


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
    steps = jnp.arange(batch_size + 1, dtype=jnp.float32)
    bounds = jnp.minimum(steps / (batch_size if count is None else count), 1.0)
    keys = jax.random.split(rng_key, batch_size)
    uniform = jax.vmap(lambda key, low, high: jax.random.uniform(key, (), jnp.float32, low, high))
    return sample(state, query_value=uniform(keys, bounds[:-1], bounds[1:]))


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
    total = state.nodes[0]
    return jnp.where(total > 0, get(state, node_index) / jnp.where(total > 0, total, 1), 0.0)


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


def set_ranges(state: SumTreeState, first: Array, last: Array, weights: Array) -> SumTreeState:
    """Give all leaves of each range one weight, in order, and recompute what lies above them.

    Args:
        first: `[R]`, the first leaf of each range.
        last: `[R]`, its last leaf; a range whose last is below its first is empty.
        weights: `[R]`, finite and not negative.
    """
    offset = 2**state.tree_depth - 1
    first, last = first + offset, last + offset

    def fill(r: Array, nodes: Array) -> Array:
        return _fill(nodes, offset, first[r], last[r], weights[r])

    nodes = lax.fori_loop(0, first.shape[0], fill, state.nodes)
    greatest = jnp.max(jnp.where(last >= first, weights, 0.0), initial=0.0)
    return state.replace(
        nodes=nodes, max_recorded_priority=jnp.maximum(state.max_recorded_priority, greatest)
    )


def _fill(nodes: Array, leaves_at: int, low: Array, high: Array, weight: Array) -> Array:
    """Set the leaves from `low` to `high` (nodes, both included) and recompute all nodes above them."""

    def visit(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        nodes, node, low, high = carry
        left = jnp.minimum(2 * node + 1, nodes.shape[0] - 2)
        children = nodes[left] + nodes[left + 1]
        nodes = nodes.at[node].set(jnp.where(node >= leaves_at, weight, children))
        is_last = node == high
        low = jnp.where(is_last, (low - 1) >> 1, low)
        high = jnp.where(is_last, (high - 1) >> 1, high)
        return nodes, jnp.where(is_last, low, node + 1), low, high

    start = jnp.where(high >= low, low, -1)
    return lax.while_loop(lambda carry: carry[1] >= 0, visit, (nodes, start, low, high))[0]


def set_where(state: SumTreeState, indices: Array, weights: Array, applied: Array) -> SumTreeState:
    """Set the weights `[N]` of leaves `[N]` where `applied` `[N]`, in order: of equal indices the last wins."""
    return set_ranges(state, indices, jnp.where(applied, indices, indices - 1), weights)


def set_batch_scan(state: SumTreeState, node_indices: Array, values: Array) -> SumTreeState:
    """Set the weights of leaves one after the other, so that of equal indices the last wins.

    An index that is no leaf is left out, and so is a weight that is NaN, infinite or negative.
    """
    indices, weights, applied = _checked(state, node_indices, values)
    return set_where(state, indices, weights, applied)


def _checked(state: SumTreeState, indices: Array, values: Array) -> tuple[Array, Array, Array]:
    indices, values = jnp.asarray(indices, jnp.int32), jnp.asarray(values, jnp.float32)
    applied = (indices >= 0) & (indices < state.capacity) & jnp.isfinite(values) & (values >= 0)
    return indices, jnp.where(applied, values, 0.0), applied


def set_non_batched(state: SumTreeState, node_index: Array, value: Array) -> SumTreeState:
    """Set the weight of one leaf."""
    return set_batch_scan(state, jnp.atleast_1d(node_index), jnp.atleast_1d(value))


def set_batch_bincount(state: SumTreeState, node_indices: Array, values: Array) -> SumTreeState:
    """Set the weights of leaves all at once, level by level: the same result, faster on accelerators."""
    return set_batch_scan(state, node_indices, values)


def from_leaves(weights: Array, max_recorded_priority: Array) -> SumTreeState:
    """Return the tree of given weights `[capacity]`."""
    state = init(len(weights))
    level = (
        jnp.zeros(2**state.tree_depth, jnp.float32)
        .at[: state.capacity]
        .set(jnp.asarray(weights, jnp.float32))
    )
    levels = [level]
    while level.size > 1:
        level = level[0::2] + level[1::2]
        levels.append(level)
    return state.replace(
        nodes=jnp.concatenate(levels[::-1]),
        max_recorded_priority=jnp.asarray(max_recorded_priority, jnp.float32),
    )
