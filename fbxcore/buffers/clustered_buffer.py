"""A buffer of items in clusters, sampled so that each cluster comes as often as any other.

Each cluster is a ring of its own, so that one that is seen often does not push out another, and a sample
draws a cluster with equal chances among those that hold something, then one of its items with equal
chances. Useful where what matters is rare: one cluster a task, a level, or a range of returns.

The idea is that of the clustered buffer of Dejax (https://github.com/hr0nix/dejax), which asks a function
for the cluster of an item; here whoever adds items says which clusters they are of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fbxcore import _checks, _loops, _random, _ring
from fbxcore.buffers import item_buffer, trajectory_buffer
from fbxcore.buffers._arguments import clusters_of, cut_by_rows, integer_of
from fbxcore.buffers.pytree import Fields, pytree, record
from fbxcore.buffers.trajectory_buffer import TrajectoryBufferSample
from fbxcore.errors import InvalidArgumentError, StructureError
from fbxcore.types import Array, Experience, PRNGKey


@pytree
class ClusteredBufferState(Fields):
    """What the buffer maps; C clusters of T items."""

    experience: Experience  # [C, T, ...]
    write_index: Array  # [C], int32: where the next item of a cluster goes
    size: Array  # [C], int32: items a cluster holds


@pytree
class ClusteredBufferSample(TrajectoryBufferSample):
    """Sampled items `[N, ...]`, and where they are from."""

    clusters: Array  # [N], int32
    probabilities: Array  # [N], float32: the chance of each item, for `replay.importance_weights`


def init(item: Experience, num_clusters: int, max_length: int) -> ClusteredBufferState:
    """Return an empty state for items like the one given.

    Args:
        max_length: items T of each cluster.
    """
    return ClusteredBufferState(
        experience=trajectory_buffer.empty_rows(item, num_clusters, max_length),
        write_index=jnp.zeros(num_clusters, jnp.int32),
        size=jnp.zeros(num_clusters, jnp.int32),
    )


def add(state: ClusteredBufferState, batch: Experience, clusters: Array) -> ClusteredBufferState:
    """Add items to their clusters, those of one cluster in the order given.

    If there are more of a cluster than it has room for, its newest remain.

    Args:
        batch: items `[N, ...]`.
        clusters: integers `[N]`; an item whose cluster is not one of 0 to C - 1 is left out.

    Raises:
        StructureError: if a leaf has another shape or dtype than the state's, or there is not one cluster
            for each item.
    """
    clusters = jnp.asarray(clusters)
    if clusters.ndim != 1 or not jnp.issubdtype(clusters.dtype, jnp.integer):
        raise StructureError(
            f"`clusters` must be integers of shape [N], got {clusters.dtype} of "
            f"shape {list(clusters.shape)}.",
            loc=("clusters",),
        )
    _checks.check_items(state.experience, batch, len(clusters))
    return _added(state, batch, clusters)


@functools.partial(jax.jit, inline=True)
def _added(state: ClusteredBufferState, batch: Experience, clusters: Array) -> ClusteredBufferState:
    is_one = (clusters >= 0) & (clusters < len(state.size))
    clusters = jnp.where(is_one, clusters, len(state.size)).astype(jnp.int32)
    return _loops.choose(_added_one_by_one, _added_at_once, state, batch, clusters)


def _added_one_by_one(
    state: ClusteredBufferState, batch: Experience, clusters: Array
) -> ClusteredBufferState:
    num_clusters, time_axis = len(state.size), _ring.num_steps(state.experience)

    def put(i: Array, state: ClusteredBufferState) -> ClusteredBufferState:
        is_one = clusters[i] < num_clusters
        cluster = jnp.minimum(clusters[i], num_clusters - 1)
        slot, size = _at(state.write_index, cluster), _at(state.size, cluster)
        item = jax.tree.map(lambda new: new[i][None, None], batch)
        held = _ring.read_step(state.experience, cluster, slot)
        item = jax.tree.map(lambda new, old: jnp.where(is_one, new, old), item, held)
        return ClusteredBufferState(
            experience=_ring.write_step(state.experience, item, cluster, slot),
            write_index=_put(state.write_index, cluster, jnp.where(is_one, (slot + 1) % time_axis, slot)),
            size=_put(state.size, cluster, jnp.where(is_one, jnp.minimum(size + 1, time_axis), size)),
        )

    return lax.fori_loop(jnp.int32(0), jnp.int32(len(clusters)), put, state)


def _at(x: Array, i: Array) -> Array:
    return x.at[i].get(mode="promise_in_bounds")


def _put(x: Array, i: Array, value: Array) -> Array:
    return lax.dynamic_update_slice(x, value[None], (i,), allow_negative_indices=False)


def _added_at_once(state: ClusteredBufferState, batch: Experience, clusters: Array) -> ClusteredBufferState:
    num_clusters, time_axis = len(state.size), _ring.num_steps(state.experience)
    order = jnp.argsort(clusters, stable=True)
    in_order = clusters[order]
    rank = jnp.arange(len(clusters), dtype=jnp.int32) - jnp.searchsorted(in_order, in_order, side="left")
    rank = jnp.zeros_like(rank).at[order].set(rank)
    counts = jnp.zeros(num_clusters, jnp.int32).at[clusters].add(1, mode="drop")
    # Two items for one place would be written in any order on an accelerator.
    remains = rank >= counts.at[clusters].get(mode="fill", fill_value=0) - time_axis
    row = jnp.where(remains, clusters, num_clusters)
    slot = (state.write_index.at[clusters].get(mode="fill", fill_value=0) + rank) % time_axis
    return ClusteredBufferState(
        experience=jax.tree.map(
            lambda x, new: x.at[row, slot].set(new, mode="drop"), state.experience, batch
        ),
        write_index=(state.write_index + counts) % time_axis,
        size=jnp.minimum(state.size + counts, time_axis),
    )


@functools.partial(jax.jit, static_argnames="batch_size", inline=True)
def sample(state: ClusteredBufferState, rng_key: PRNGKey, batch_size: int) -> ClusteredBufferSample:
    """Draw items `[N, ...]`: a cluster that holds something, then one of its items.

    Before `can_sample` holds there is nothing to draw, and what is returned means nothing.
    """
    place, operands = _place(state, rng_key, batch_size)
    items, (clusters, probabilities) = _ring.read_at(state.experience, place, batch_size, 1, *operands)
    return ClusteredBufferSample(
        experience=item_buffer.without_time(items), clusters=clusters, probabilities=probabilities
    )


def _place(state: ClusteredBufferState, key: PRNGKey, num: int) -> tuple[Callable, tuple]:
    """Return how to draw cluster and slot of an item, and its operands; `_ring.read_at` says more."""

    def found_at(cluster: Array, slot: Array, size: Array, num_held: Array) -> tuple:
        share = 1.0 / jnp.maximum(num_held * size, 1).astype(jnp.float32)
        return cluster, slot, (cluster, jnp.where(size > 0, share, 0.0))

    def by_keys(indices: list[Array], keys: Array, size: Array, held: Array, num_held: Array) -> list[tuple]:
        found = []
        for i in indices:
            cluster = _at(held, _random.integer(keys, 0, i, num_held))
            slot = _random.integer(keys, 1, i, _at(size, cluster))
            found.append(found_at(cluster, slot, _at(size, cluster), num_held))
        return found

    def by_draws(indices: list[Array], clusters: Array, slots: Array, size: Array, num_held: Array) -> list:
        return [found_at(clusters[i], slots[i], size[clusters[i]], num_held) for i in indices]

    held, num_held = _held(state.size)
    if _random.is_threefry(key):
        keys = _random.integer_keys(_random.data_of(key), (0,), (1,))
        return by_keys, (keys, state.size, held, num_held)
    cluster_key, slot_key = jax.random.split(key)
    clusters = held[jax.random.randint(cluster_key, (num,), 0, num_held)]
    slots = jax.random.randint(slot_key, (num,), 0, state.size[clusters])
    return by_draws, (clusters, slots, state.size, num_held)


def _held(size: Array) -> tuple[Array, Array]:
    """Return the clusters that hold something, padded to `[C]`, and how many they are."""

    def looped(size: Array) -> tuple[Array, Array]:
        def look(cluster: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            held, num_held = carry  # what is not one is written over by the next
            return _put(held, num_held, cluster), num_held + (size[cluster] > 0)

        none = (jnp.zeros(len(size) + 1, jnp.int32), jnp.int32(0))
        held, num_held = lax.fori_loop(jnp.int32(0), jnp.int32(len(size)), look, none)
        return held[: len(size)], num_held

    def at_once(size: Array) -> tuple[Array, Array]:
        (held,) = jnp.nonzero(size > 0, size=len(size), fill_value=0)
        return held.astype(jnp.int32), jnp.sum(size > 0, dtype=jnp.int32)

    return _loops.choose(looped, at_once, size)


def can_sample(state: ClusteredBufferState, min_length: int) -> Array:
    """Return whether all clusters together hold so many items."""
    return jnp.sum(state.size) >= min_length


@record
class ClusteredBuffer(Fields):
    """The pure functions of a clustered buffer; see `make_clustered_buffer`."""

    init: Callable[[Experience], ClusteredBufferState]
    add: Callable[[ClusteredBufferState, Experience, Array], ClusteredBufferState]
    sample: Callable[[ClusteredBufferState, PRNGKey], ClusteredBufferSample]
    can_sample: Callable[[ClusteredBufferState], Array]


def make_clustered_buffer(
    max_length: int, min_length: int, sample_batch_size: int, num_clusters: int
) -> ClusteredBuffer:
    """Make a buffer of items in clusters.

    Args:
        max_length: items over all clusters; each has room for the same number of them.
        min_length: items that all clusters together must hold before they may be sampled.
        sample_batch_size: items N in a sample.
        num_clusters: clusters C, numbered from 0.

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_clustered_buffer(
        ...     max_length=100, min_length=1, sample_batch_size=1000, num_clusters=2
        ... )
        >>> rewards = jnp.array([0.0, 0.0, 0.0, 1.0])
        >>> state = buffer.init({"reward": jnp.zeros(())})
        >>> state = buffer.add(state, {"reward": rewards}, clusters=rewards.astype(jnp.int32))
        >>> mean = buffer.sample(state, jax.random.key(0)).experience["reward"].mean()
        >>> bool(abs(mean - 0.5) < 0.05)  # the one reward comes as often as the three zeros
        True
    """
    given = {
        "max_length": max_length,
        "min_length": min_length,
        "sample_batch_size": sample_batch_size,
        "num_clusters": num_clusters,
    }
    clusters, length = clusters_of(given)
    time_axis = length // clusters
    least = integer_of(given, "min_length", at_least=0)
    num = integer_of(given, "sample_batch_size", at_least=1)
    if least > clusters * time_axis:
        raise InvalidArgumentError(
            f"`min_length` must be at most {clusters * time_axis} (`max_length` {max_length} over {clusters} "
            f"clusters), got {min_length}.",
            loc=("min_length",),
        )
    _checks.warn(tuple(cut_by_rows("max_length", max_length, clusters, "clusters", "items")))
    return ClusteredBuffer(
        init=functools.partial(init, num_clusters=clusters, max_length=time_axis),
        add=add,
        sample=functools.partial(sample, batch_size=num),
        can_sample=functools.partial(can_sample, min_length=max(least, 1)),
    )
