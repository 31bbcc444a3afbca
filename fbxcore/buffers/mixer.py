"""A mixer: one sample put together from the samples of several buffers.

It owns no state and adds nothing; each buffer is filled on its own. Every member draws its whole sample
with a key of its own, and the first so many of each, by its proportion, are joined along the batch axis.
Indices and generations in the joined sample of prioritised buffers are those of the member they came from.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fbxcore.buffers.pytree import Fields, record
from fbxcore.errors import StructureError
from fbxcore.types import Array, PRNGKey


@record
class Mixer(Fields):
    """The pure functions of a mixer; see `make_mixer`."""

    sample: Callable[[Sequence[Any], PRNGKey], Any]
    can_sample: Callable[[Sequence[Any]], Array]


def sizes_of(proportions: Sequence[float], sample_batch_size: int) -> list[int]:
    """Return how many items of a joined sample each member gives; the first gives what rounding leaves.

    Raises:
        InvalidArgumentError: if the proportions are not numbers from 0 on; an `AssertionError` too.
    """
    if sample_batch_size <= 0:
        raise _refusal(f"`sample_batch_size` must be at least 1, got {sample_batch_size!r}.")
    if not all(0 <= part < math.inf for part in proportions) or not 0 < sum(proportions) < math.inf:
        raise _refusal(
            f"`proportions` must be numbers from 0 on, not all 0 or huge, got {list(proportions)!r}."
        )
    total = sum(proportions)
    sizes = [int(part / total * sample_batch_size) for part in proportions]
    sizes[0] += sample_batch_size - sum(sizes)
    return sizes


def sample_mixer_fn(
    states: Sequence[Any],
    key: PRNGKey,
    prop_batch_sizes: Sequence[int],
    sample_fns: Sequence[Callable[[Any, PRNGKey], Any]],
) -> Any:
    """Draw from every buffer and join what was drawn.

    Args:
        states: the buffers' states, in their order.
        prop_batch_sizes: how many of each member's sample are taken.
        sample_fns: the buffers' `sample`.
    """
    keys = jax.random.split(key, len(states))
    drawn = [draw(state, keys[k]) for k, (draw, state) in enumerate(zip(sample_fns, states, strict=True))]
    parts = [
        _first(sample, size, k) for k, (sample, size) in enumerate(zip(drawn, prop_batch_sizes, strict=True))
    ]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def _first(sample: Any, size: int, member: int) -> Any:
    given = jax.tree.leaves(sample)[0].shape[0]
    if given < size:
        raise _refusal(
            f"`sample_batch_size` must leave buffer {member} at most the {given} items it samples, "
            f"got {size}. Raise its own `sample_batch_size`."
        )
    return jax.tree.map(lambda leaf: leaf[:size], sample)


def can_sample_mixer_fn(states: Sequence[Any], can_sample_fns: Sequence[Callable[[Any], Array]]) -> Array:
    """Return whether all buffers can sample."""
    return jnp.all(jnp.asarray([can(state) for can, state in zip(can_sample_fns, states, strict=True)]))


def make_mixer(buffers: Sequence[Any], sample_batch_size: int, proportions: Sequence[float]) -> Mixer:
    """Make a mixer.

    Args:
        buffers: buffers of one kind, whose samples differ at most in their batch size.
        sample_batch_size: items N in a joined sample.
        proportions: each buffer's part, in any unit; what rounding leaves goes to the first.

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule; an `AssertionError` too.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_item_buffer(max_length=8, min_length=1, sample_batch_size=6)
        >>> states = [buffer.add(buffer.init(jnp.zeros(())), jnp.full((), x)) for x in (1.0, 2.0)]
        >>> mixer = fbx.make_mixer([buffer, buffer], sample_batch_size=6, proportions=[1, 2])
        >>> mixer.sample(states, jax.random.key(0)).experience.tolist()
        [1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    """
    if len(buffers) != len(proportions) or not buffers:
        raise _refusal(
            f"`proportions` must have one number for each of {len(buffers)} buffers, got {len(proportions)}."
        )
    for buffer in buffers:
        if not isinstance(buffer, type(buffers[0])):
            raise _refusal(
                f"`buffers` must be of one type, got {type(buffers[0]).__name__} and {type(buffer).__name__}."
            )
    sizes = sizes_of(proportions, sample_batch_size)
    return Mixer(
        sample=functools.partial(
            sample_mixer_fn, prop_batch_sizes=sizes, sample_fns=[buffer.sample for buffer in buffers]
        ),
        can_sample=functools.partial(
            can_sample_mixer_fn, can_sample_fns=[buffer.can_sample for buffer in buffers]
        ),
    )


def _refusal(text: str) -> StructureError:
    # StructureError, since Flashbax raises AssertionError here.
    return StructureError(text, code="invalid_argument")
