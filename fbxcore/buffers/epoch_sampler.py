"""Sampling without replacement: each item that a buffer holds once an epoch, shuffled anew for each.

The shuffle is a keyed permutation worked out item by item, so that an epoch takes no memory and a step costs
the same at any capacity: the swap-or-not shuffle (Hoang, Morris and Rogaway, 2012, "An enciphering scheme
based on a card shuffle"). Each of its rounds pairs every position with its mirror image about a random one
and swaps the two or not by a hash of the greater. It is for learning, not for secrets.

The items are those that the buffer draws with equal chances, whatever their priorities. An epoch is of what
the buffer held when it began: an add begins a new one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fbxcore import _ring
from fbxcore.buffers import flat_buffer, item_buffer, trajectory_buffer
from fbxcore.buffers.layout import Layout
from fbxcore.buffers.pytree import Fields, pytree, record
from fbxcore.buffers.trajectory_buffer import TrajectoryBuffer, TrajectoryBufferState
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import Array, Experience, PRNGKey

ROUNDS = 32  # each halves what is left of an item's first place


@pytree
class EpochState(Fields):
    """What the sampler maps."""

    rng_key: PRNGKey
    epoch: Array  # [], int32: the number of the epoch, from 0; -1 before the first
    position: Array  # [], int32: items of this epoch that were sampled
    current_index: Array  # [], int32: where the buffer stood when the epoch began
    is_full: Array  # [], likewise


@pytree
class EpochSample(Fields):
    """The next items of an epoch."""

    experience: Experience  # as the buffer samples it
    mask: Array  # [N], false behind the last item of the epoch
    epoch: Array  # [], int32


@record
class EpochSampler(Fields):
    """The pure functions of a sampler; see `make_epoch_sampler`."""

    init: Callable[[PRNGKey], EpochState]
    sample: Callable[[EpochState, TrajectoryBufferState], tuple[EpochState, EpochSample]]
    num_batches: Callable[[TrajectoryBufferState], Array]


def init(rng_key: PRNGKey) -> EpochState:
    """Return a state whose first sample begins epoch 0."""
    return EpochState(
        rng_key=jnp.copy(rng_key),  # a donated state must not take the caller's key with it
        epoch=jnp.array(-1, jnp.int32),
        position=jnp.array(0, jnp.int32),
        current_index=jnp.array(-1, jnp.int32),
        is_full=jnp.array(False),
    )


@functools.partial(jax.jit, static_argnames="layout", inline=True)
def sample(
    state: EpochState, buffer_state: TrajectoryBufferState, layout: Layout
) -> tuple[EpochState, EpochSample]:
    """Take the next N items of the epoch, or the first of the next epoch where this one is over.

    Returns:
        The state without them, and the items; the last sample of an epoch may hold fewer, and says so.
    """
    total = num_items(buffer_state, layout)
    state = _begun(state, buffer_state, total)
    seed = jax.random.bits(jax.random.fold_in(state.rng_key, state.epoch), (2,), jnp.uint32)
    num = layout.sample_batch_size
    indices = jnp.minimum(state.position + jnp.arange(num, dtype=jnp.int32), jnp.maximum(total - 1, 0))
    numbers = permuted(indices, total, *rounds_of(seed, total))
    size = trajectory_buffer.size_of(buffer_state)
    oldest = jnp.where(size == layout.time_axis, buffer_state.current_index, 0)
    starts = (oldest + numbers // layout.rows * layout.period) % layout.time_axis
    sequences = _ring.read(buffer_state.experience, numbers % layout.rows, starts, layout.sequence_length)
    drawn = EpochSample(
        experience=_shaped(sequences, layout),
        mask=jnp.arange(num, dtype=jnp.int32) < total - state.position,
        epoch=state.epoch,
    )
    return state.replace(position=jnp.minimum(state.position + num, total)), drawn


def _begun(state: EpochState, buffer_state: TrajectoryBufferState, total: Array) -> EpochState:
    """Return the state at the start of a new epoch, if this one is over or the buffer has changed."""
    has_changed = (state.current_index != buffer_state.current_index) | (
        state.is_full != buffer_state.is_full
    )
    is_new = has_changed | (state.position >= total)
    return state.replace(
        epoch=jnp.where(is_new & (total > 0), state.epoch + 1, state.epoch),
        position=jnp.where(is_new, 0, state.position),
        current_index=buffer_state.current_index,
        is_full=buffer_state.is_full,
    )


def _shaped(sequences: Experience, layout: Layout) -> Experience:
    if layout.flat:
        return flat_buffer.pair_of(sequences)
    return item_buffer.without_time(sequences) if layout.items else sequences


def num_items(buffer_state: TrajectoryBufferState, layout: Layout) -> Array:
    """Return how many items an epoch has, `[]`."""
    size = trajectory_buffer.size_of(buffer_state)
    return layout.rows * jnp.maximum((size - layout.sequence_length) // layout.period + 1, 0)


def num_batches(buffer_state: TrajectoryBufferState, layout: Layout) -> Array:
    """Return how many samples an epoch takes, `[]`."""
    return -(-num_items(buffer_state, layout) // layout.sample_batch_size)


def rounds_of(seed: Array, total: Array) -> tuple[Array, Array]:
    """Return pivots, int32, and keys, uint32, of the rounds of a shuffle of `total` places.

    Args:
        seed: uint32 `[2]`, which shuffle it is.
        total: `[]`, int32.
    """
    words = _mixed(seed[0] + jnp.arange(ROUNDS, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9))
    pivots = words % jnp.maximum(total, 1).astype(jnp.uint32)
    return pivots.astype(jnp.int32), _mixed(words ^ seed[1])


def permuted(index: Array, total: Array, pivots: Array, keys: Array) -> Array:
    """Return where a shuffle of `total` places puts each of them.

    Args:
        index: int32, `[]` or `[N]`, below `total`.
        total: `[]`, int32.
        pivots: `[ROUNDS]`, from `rounds_of`.
        keys: likewise.
    """

    def shuffle(turn: Array, index: Array) -> Array:
        mirrored = pivots[turn] - index
        mirrored = jnp.where(mirrored < 0, mirrored + total, mirrored)
        greater = jnp.maximum(index, mirrored).astype(jnp.uint32)
        is_swapped = _mixed(greater ^ keys[turn]) >> 31
        return jnp.where(is_swapped == 1, mirrored, index)

    return lax.fori_loop(jnp.int32(0), jnp.int32(ROUNDS), shuffle, index)


def _mixed(x: Array) -> Array:
    """Return a hash of 32 bits in which each bit hangs on all: the last steps of MurmurHash3."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def make_epoch_sampler(buffer: TrajectoryBuffer) -> EpochSampler:
    """Make a sampler that goes through a buffer in epochs, each item once an epoch.

    A sample is like one of the buffer's, of the same size, with a mask: the last sample of an epoch may hold
    fewer items. It works inside `lax.scan`, and its state is a few numbers.

    Args:
        buffer: an item, flat or trajectory buffer, with or without priorities.

    Raises:
        InvalidArgumentError: if it is another kind of buffer.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_item_buffer(
        ...     max_length=10, min_length=1, sample_batch_size=4, add_batches=True
        ... )
        >>> held = buffer.add(buffer.init(0), jnp.arange(10))
        >>> sampler = fbx.make_epoch_sampler(buffer)
        >>> state = sampler.init(jax.random.key(0))
        >>> step = lambda state, _: sampler.sample(state, held)
        >>> state, drawn = jax.lax.scan(step, state, length=int(sampler.num_batches(held)))
        >>> sorted(drawn.experience[drawn.mask].tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    layout = getattr(buffer, "layout", None)
    if layout is None:
        raise InvalidArgumentError(
            "`buffer` must be an item, flat or trajectory buffer, with or without priorities, "
            f"got {type(buffer).__name__}.",
            loc=("buffer",),
        )
    return EpochSampler(
        init=init,
        sample=functools.partial(sample, layout=layout),
        num_batches=functools.partial(num_batches, layout=layout),
    )
