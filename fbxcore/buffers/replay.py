"""What a learner works out from a sample: weights for its loss, which timesteps are of one episode.

Pure functions of arrays, for samples of any buffer; each works under `jit`, `vmap`, `grad` and `scan`.
"""

from __future__ import annotations

import jax.numpy as jnp

from fbxcore.errors import InvalidArgumentError
from fbxcore.types import Array


def importance_weights(probabilities: Array, beta: Array | float) -> Array:
    """Return the weight of each item's loss, which undoes that items were drawn with unequal chances.

    An item's weight is w = (1 / (I P)) ** beta over the greatest of the batch, so that weights only ever
    make a step smaller; the number of items I cancels. What can not be drawn, P = 0, has weight 0: padding
    counts for nothing.

    Source: Schaul et al., 2016, "Prioritized Experience Replay", section 3.4,
    https://arxiv.org/abs/1511.05952. They let beta rise to 1 at the end of learning.

    Args:
        probabilities: P `[N]`, as sampled.
        beta: `[]`, from 0, no correction, to 1, a full one.

    Returns:
        Weights `[N]`, from 0 to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> fbx.replay.importance_weights(jnp.array([0.5, 0.25, 0.125]), beta=1.0).tolist()
        [0.25, 0.5, 1.0]
    """
    probabilities = jnp.asarray(probabilities)
    is_drawable = probabilities > 0
    # Logarithms of ones where P is 0: a derivative would be NaN through a branch that is not taken.
    logs = jnp.log(jnp.where(is_drawable, probabilities, 1.0))
    least = jnp.min(jnp.where(is_drawable, logs, 0.0), initial=0.0)
    return jnp.where(is_drawable, jnp.exp(beta * (least - logs)), 0.0)


def episode_mask(*, starts: Array | None = None, ends: Array | None = None) -> Array:
    """Return which timesteps are of the episode that the first one of their sequence is of.

    Args:
        starts: bool `[N, L]`, whether a timestep is the first of an episode.
        ends: bool `[N, L]`, whether a timestep is the last of one. One of both is enough.

    Returns:
        Mask, bool `[N, L]`: true up to the end of the episode, false behind it.

    Example:
        >>> import jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> fbx.replay.episode_mask(ends=jnp.array([[False, True, False, False]])).tolist()
        [[True, True, False, False]]
    """
    if starts is None and ends is None:
        raise InvalidArgumentError("`starts` or `ends` must be given, got neither.", loc=("starts",))
    given = starts if starts is not None else ends
    is_break = jnp.zeros(given[..., 1:].shape, bool)
    if starts is not None:
        is_break |= starts[..., 1:]
    if ends is not None:
        is_break |= ends[..., :-1]
    # A sentinel behind the last, so that argmax finds the first break or the end.
    is_break = jnp.concatenate([is_break, jnp.ones_like(given[..., :1], bool)], axis=-1)
    return jnp.arange(given.shape[-1]) <= jnp.argmax(is_break, axis=-1)[..., None]
