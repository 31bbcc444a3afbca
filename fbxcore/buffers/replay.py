"""What a learner works out from a sample: weights for its loss, masks, n-step transitions.

Pure functions of arrays, for samples of any buffer; each works under `jit`, `vmap`, `grad` and `scan`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbxcore.buffers.pytree import Fields, pytree
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import Array, Experience


@pytree
class NStepTransition(Fields):
    """The first timestep of a sequence and the one it is bootstrapped from; see `n_step`."""

    first: Experience  # [N, ...]
    second: Experience  # [N, ...]
    returns: Array  # [N]
    discounts: Array  # [N]
    num_steps: Array  # [N], int32: how many rewards were summed
    mask: Array  # [N], whether there is such a transition


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


def burn_in_mask(mask: Array, burn_in: int) -> Array:
    """Return which timesteps only bring a recurrent state up to date and are not learnt from.

    Those learnt from are `mask & ~burn_in_mask(mask, burn_in)`. A sequence that ends before the burn-in
    does has none.

    Source: Kapturowski et al., 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning"
    (R2D2), section 3.1, where 40 timesteps of 120 are burn-in.

    Args:
        mask: bool `[N, L]`, which timesteps count, as `episode_mask` or a sample has it; all true where
            sequences are whole.
        burn_in: timesteps at the start of each sequence.

    Returns:
        Mask, bool `[N, L]`: true for the first `burn_in` timesteps that count.

    Example:
        >>> import jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> mask = jnp.array([[True, True, True], [True, False, False]])
        >>> (mask & ~fbx.replay.burn_in_mask(mask, burn_in=1)).tolist()
        [[False, True, True], [False, False, False]]
    """
    return mask & (jnp.arange(mask.shape[-1]) < burn_in)


def n_step(
    experience: Experience,
    rewards: Array,
    discounts: Array,
    n: int,
    *,
    truncated: Array | None = None,
    mask: Array | None = None,
    next_observations: Experience | None = None,
) -> NStepTransition:
    """Return the n-step transition that starts at the first timestep of each sequence.

    With rewards r, discounts d and m steps, the return is r_0 + d_0 r_1 + … + d_0 … d_(m-2) r_(m-1), its
    discount d_0 … d_(m-1), and a learner's target `returns + discounts * value(second)`. It is the return
    of `rlax.n_step_bootstrapped_returns` with lambda 1 (Sutton and Barto, 2018, equation 7.1), cut short at
    the end of an episode:

    * at a *termination*, where d is 0, the sum stops and the discount is 0: nothing is bootstrapped;
    * at a *truncation*, and at the end of what `mask` has, the sum stops and the discount stays: the value
      of the last state there is stands for the rest. That state is the true next observation, if it was
      stored with every timestep and is given; if not, it is the last timestep of the episode, whose own
      reward is then left out.

    Args:
        experience: sequences `[N, L, ...]`.
        rewards: `[N, L]`, each that of the action taken at its timestep.
        discounts: `[N, L]`, what the rest is worth after that action: 0 at a termination, else gamma.
        n: steps at most; at most L - 1, or L where next observations are given.
        truncated: bool `[N, L]`, whether the episode was cut off after that action.
        mask: bool `[N, L]`, which timesteps are of the episode, as a sample of an episode buffer has it.
        next_observations: `[N, L, ...]`, what followed each action, also where another episode begins.

    Returns:
        `first` is the first timestep, `second` the timestep to bootstrap from or, where next observations
        are given, that observation. `mask` is false where a sequence holds no whole step: leave it out of
        the loss. Elsewhere `second` means nothing where the discount is 0.

    Raises:
        InvalidArgumentError: if n is not from 1 to what the sequences hold, or shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> sequences = {"obs": jnp.array([[0, 1, 2, 3]]), "reward": jnp.ones((1, 4))}
        >>> step = fbx.replay.n_step(sequences, sequences["reward"], jnp.full((1, 4), 0.5), n=3)
        >>> step.returns.tolist(), step.discounts.tolist(), step.second["obs"].tolist()
        ([1.75], [0.125], [3])
    """
    length = rewards.shape[1]
    _check_shapes(rewards, discounts=discounts, truncated=truncated, mask=mask)
    _check_n(n, length, length if next_observations is not None else length - 1)
    num_steps = _num_steps(discounts, n, truncated, mask, has_next=next_observations is not None)
    is_summed = jnp.arange(length) < num_steps[:, None]
    kept = jnp.cumprod(jnp.where(is_summed, discounts, 1.0), axis=1)
    before = jnp.concatenate([jnp.ones_like(kept[:, :1]), kept[:, :-1]], axis=1)
    if next_observations is None:
        second = _at(experience, jnp.minimum(num_steps, length - 1))
    else:
        second = _at(next_observations, jnp.maximum(num_steps - 1, 0))
    return NStepTransition(
        first=jax.tree.map(lambda x: x[:, 0], experience),
        second=second,
        returns=jnp.sum(jnp.where(is_summed, before * rewards, 0.0), axis=1),
        discounts=kept[:, -1],
        num_steps=num_steps,
        mask=num_steps > 0,
    )


def _check_shapes(rewards: Array, **others: Array | None) -> None:
    for name, given in others.items():
        if given is not None and given.shape != rewards.shape:
            raise InvalidArgumentError(
                f"`{name}` must have the shape {list(rewards.shape)} of `rewards`, got {list(given.shape)}.",
                loc=(name,),
            )


def _check_n(n: int, length: int, most: int) -> None:
    if not 1 <= n <= most:
        raise InvalidArgumentError(
            f"`n` must be from 1 to {most} for sequences of {length}, got {n!r}.", loc=("n",)
        )


def _num_steps(
    discounts: Array, n: int, truncated: Array | None, mask: Array | None, *, has_next: bool
) -> Array:
    """Return how many rewards to sum, `[N]`: up to a termination, or as far as there is a state behind."""
    is_held = jnp.ones(discounts.shape, bool) if mask is None else mask
    if truncated is not None:
        is_held &= episode_mask(ends=truncated)
    num_held = jnp.sum(is_held, axis=1)
    is_last = is_held & (discounts == 0)
    to_state = num_held if has_next else num_held - 1
    most = jnp.where(jnp.any(is_last, axis=1), jnp.argmax(is_last, axis=1) + 1, to_state)
    return jnp.minimum(most, n).astype(jnp.int32)


def _at(experience: Experience, step: Array) -> Experience:
    """Return one timestep of each sequence, `[N, ...]`."""
    rows = jnp.arange(len(step))
    return jax.tree.map(lambda x: x[rows, step], experience)
