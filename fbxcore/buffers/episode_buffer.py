"""A buffer whose sequences keep to one episode, made of a buffer that does not know of episodes.

A boolean leaf marks the first or the last timestep of each episode. What happens where a sequence would
run on into the next episode is a choice:

* `"avoid"`: only whole sequences of one episode are drawn. An episode shorter than a sequence is never
  drawn, and neither is the timestep that ends an episode as the first of a pair: store the last
  observation as a timestep of its own, marked as the end, or choose `"mask"`.
* `"mask"`: a sequence starts at any timestep that is held, up to the newest one, and a mask says which of
  its timesteps are of the episode. What lies behind them means nothing.

Periods count from the start of each episode. Items are equally likely, or in proportion to their
priorities; what must not be drawn has weight 0 in the sum tree, so that a draw costs the same whatever
the episodes are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fbxcore import _checks, _loops, _ring
from fbxcore.buffers import (
    episodes,
    flat_buffer,
    items,
    prioritised_trajectory_buffer,
    replay,
    sum_tree,
    trajectory_buffer,
)
from fbxcore.buffers.episodes import Plan
from fbxcore.buffers.flat_buffer import TransitionSample
from fbxcore.buffers.layout import Layout
from fbxcore.buffers.prioritised_flat_buffer import PrioritisedTransitionSample
from fbxcore.buffers.prioritised_trajectory_buffer import (
    PrioritisedTrajectoryBufferSample,
    PrioritisedTrajectoryBufferState,
)
from fbxcore.buffers.pytree import pytree
from fbxcore.buffers.trajectory_buffer import TrajectoryBuffer, TrajectoryBufferSample, TrajectoryBufferState
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import Array, Experience, PRNGKey

CROSSINGS = ("avoid", "mask")


@pytree
class EpisodeBufferState(PrioritisedTrajectoryBufferState):
    """What the buffer maps; a uniform one keeps weights 1 and 0."""

    episode_steps: Array  # [B], timesteps of the episode that a row is in; `episodes.reduced` keeps it small


@pytree
class EpisodeSample(TrajectoryBufferSample):
    """Sampled sequences, and which of their timesteps are of one episode."""

    mask: Array  # [N, L]


@pytree
class PrioritisedEpisodeSample(PrioritisedTrajectoryBufferSample):
    """Likewise, with what they are to `set_priorities`."""

    mask: Array = None  # [N, L]


@pytree
class EpisodeTransitionSample(TransitionSample):
    """Sampled transitions, and whether `second` is of the episode of `first`."""

    mask: Array  # [N]


@pytree
class PrioritisedEpisodeTransitionSample(PrioritisedTransitionSample):
    """Likewise, with what they are to `set_priorities`."""

    mask: Array = None  # [N]


def init(experience: Experience, plan: Plan) -> TrajectoryBufferState:
    """Return an empty state for timesteps like the one given.

    Raises:
        InvalidArgumentError: if a leaf that marks episodes is not there or is no single boolean.
    """
    episodes.check_marks(experience, "episode_start", plan.starts)
    episodes.check_marks(experience, "episode_end", plan.ends)
    layout = plan.layout
    if not plan.has_tree:
        return trajectory_buffer.init(experience, layout.rows, layout.time_axis)
    empty = prioritised_trajectory_buffer.prioritised_init(experience, layout.rows, layout.time_axis, 1)
    return EpisodeBufferState(**empty, episode_steps=jnp.zeros(layout.rows, jnp.int32))


def add(state: EpisodeBufferState, batch: Experience, plan: Plan) -> EpisodeBufferState:
    """Append a batch `[B, K, ...]` to the rows.

    Raises:
        StructureError: if a leaf has another shape or dtype than the state's.
    """
    _checks.check_batch(state.experience, batch)
    return _advanced(state, batch, plan)


@functools.partial(jax.jit, static_argnums=2, inline=True)
def _advanced(state: EpisodeBufferState, batch: Experience, plan: Plan) -> EpisodeBufferState:
    def counted(kept: tuple, current_index: Array, first: Array, last: Array) -> tuple:
        tree, episode_steps = kept
        steps = episodes.steps_into(episode_steps, first, last)
        left = episodes.reduced(plan, jnp.where(last[:, -1], 0, steps[:, -1]))
        return episodes.with_items(plan, tree, current_index, steps), left

    def whole(state: EpisodeBufferState, batch: Experience) -> EpisodeBufferState:
        kept = (state.sum_tree_state, state.episode_steps)
        flags = episodes.flags_of(plan, batch)
        tree, left = _loops.in_one_piece(counted, state.current_index, kept, state.current_index, *flags)
        return trajectory_buffer.advanced(state, batch).replace(
            sum_tree_state=tree,
            running_index=state.running_index + _ring.num_steps(batch),
            episode_steps=left,
        )

    if _ring.is_small(batch):
        return _loops.in_one_piece(whole, state.current_index, state, batch)
    return whole(state, batch)


@functools.partial(jax.jit, static_argnums=2, inline=True)
def sample(state: TrajectoryBufferState, rng_key: PRNGKey, plan: Plan) -> Any:
    """Draw items and return them as the buffer they are made of does, with a mask where it was chosen."""
    layout = plan.layout
    draw, operands, drawn = _draw(plan, state, rng_key)

    def place(indices: list[Array], current_index: Array, *operands: Array) -> list[tuple]:
        return [
            (row, start, items.age_of(plan.grid, start, current_index))
            for row, start, _ in draw(indices, *operands)
        ]

    num, length = layout.sample_batch_size, layout.sequence_length
    experience, age = _ring.read_at(state.experience, place, num, length, state.current_index, *operands)
    fields = {"experience": experience}
    if plan.crossing == "mask":
        fields["mask"] = _mask_of(plan, experience, age)
    if layout.priority_exponent is not None:
        fields["indices"], fields["probabilities"] = drawn
        fields["generations"] = state.running_index - age
    return _sample_of(layout, fields)


def _mask_of(plan: Plan, sequences: Experience, age: Array) -> Array:
    """Return which timesteps are held and of the episode of the first one, `[N, L]`."""
    first, last = episodes.flags_of(plan, sequences)
    is_written = jnp.arange(plan.layout.sequence_length) < age[:, None]
    return replay.episode_mask(starts=first, ends=last) & is_written


def _draw(
    plan: Plan, state: TrajectoryBufferState, rng_key: PRNGKey
) -> tuple[Callable, tuple, tuple[Array, ...]]:
    """Return how to find places and its operands; and of prioritised items, which were drawn, how likely."""
    num, grid = plan.layout.sample_batch_size, plan.grid
    place = functools.partial(items.place_of, grid)
    if plan.layout.priority_exponent is not None:
        drawn = sum_tree.stratified_draw(state.sum_tree_state, num, rng_key, num)
        return place, drawn[:1], drawn
    if plan.has_tree:
        return place, (episodes.uniform_draw(rng_key, num, state.sum_tree_state),), ()
    size = trajectory_buffer.size_of(state)
    return *items.uniform_place(grid, rng_key, num, 1, state.current_index, size), ()


_SAMPLES = {  # is flat, has priorities, has a mask
    (False, False, False): TrajectoryBufferSample,
    (False, False, True): EpisodeSample,
    (False, True, False): PrioritisedTrajectoryBufferSample,
    (False, True, True): PrioritisedEpisodeSample,
    (True, False, False): TransitionSample,
    (True, False, True): EpisodeTransitionSample,
    (True, True, False): PrioritisedTransitionSample,
    (True, True, True): PrioritisedEpisodeTransitionSample,
}


def _sample_of(layout: Layout, fields: dict[str, Any]) -> Any:
    kind = _SAMPLES[layout.flat, "indices" in fields, "mask" in fields]
    if layout.flat:
        fields["experience"] = flat_buffer.pair_of(fields["experience"])
        if "mask" in fields:
            fields["mask"] = fields["mask"][:, 1]
    return kind(**fields)


def set_priorities(
    state: EpisodeBufferState,
    indices: Array,
    priorities: Array,
    generations: Array | None = None,
    *,
    plan: Plan,
) -> EpisodeBufferState:
    """Set the priorities of a sample's items, as a prioritised buffer does.

    A sequence that by now crosses into another episode is left out too.
    """
    if plan.needed > 1:
        row, start = items.starts(plan.grid, jnp.clip(indices, 0, plan.grid.num_items - 1))
        first, last = episodes.flags_of(plan, _ring.read(state.experience, row, start, plan.needed))
        is_one = replay.episode_mask(starts=first, ends=last)[:, -1]
        priorities = jnp.where(is_one, jnp.asarray(priorities, jnp.float32), jnp.nan)
    return prioritised_trajectory_buffer.set_priorities(
        state,
        indices,
        priorities,
        plan.layout.priority_exponent,
        jax.default_backend(),
        generations=generations,
        sequence_length=plan.needed,
        period=1,
    )


def make_episode_buffer(
    buffer: TrajectoryBuffer,
    *,
    episode_start: str | tuple[str, ...] = (),
    episode_end: str | tuple[str, ...] = (),
    crossing: str = "avoid",
) -> TrajectoryBuffer:
    """Make a buffer that keeps to episodes out of one that does not.

    What it adds and samples, its sizes and its functions are those of the buffer given; with
    `crossing="mask"` a sample has a field `mask`, `[N, L]` for sequences and `[N]` for transitions, which
    says whether `second` is of the episode of `first`.

    Args:
        buffer: one of `make_trajectory_buffer`, `make_flat_buffer` or a prioritised one of them.
        episode_start: the leaf, or leaves, that are true at the first timestep of an episode. Names of
            nested leaves are joined with `/`.
        episode_end: likewise, at the last timestep of one, such as `("terminated", "truncated")`.
        crossing: "avoid" or "mask", see the top of the module.

    Raises:
        InvalidArgumentError: naming the argument that breaks a rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import fbxcore as fbx
        >>> buffer = fbx.make_episode_buffer(
        ...     fbx.make_trajectory_buffer(
        ...         add_batch_size=1, sample_batch_size=64, sample_sequence_length=3, period=1,
        ...         min_length_time_axis=3, max_length_time_axis=100,
        ...     ),
        ...     episode_end="done",
        ... )
        >>> state = buffer.init({"step": jnp.array(0), "done": jnp.array(False)})
        >>> step = jnp.arange(8)[None]
        >>> state = buffer.add(state, {"step": step, "done": step == 3})  # two episodes of four
        >>> drawn = buffer.sample(state, jax.random.key(0)).experience["step"]
        >>> sorted({tuple(sequence) for sequence in drawn.tolist()})
        [(0, 1, 2), (1, 2, 3), (4, 5, 6), (5, 6, 7)]
    """
    plan = Plan(_layout_of(buffer), _names(episode_start), _names(episode_end), crossing)
    if not plan.starts and not plan.ends:
        raise InvalidArgumentError("`episode_end` or `episode_start` must be given.", loc=("episode_end",))
    if crossing not in CROSSINGS:
        raise InvalidArgumentError(
            f"`crossing` must be one of {', '.join(CROSSINGS)}, got {crossing!r}.", loc=("crossing",)
        )
    layout = plan.layout
    changes = {
        "init": functools.partial(init, plan=plan),
        "sample": functools.partial(sample, plan=plan),
        "layout": None,
    }
    if plan.has_tree:
        changes["add"] = functools.partial(
            flat_buffer.add, missing_axes=layout.missing_axes, add_rows=functools.partial(add, plan=plan)
        )
        can_sample = prioritised_trajectory_buffer.can_sample
        changes["can_sample"] = functools.partial(can_sample, min_length_time_axis=layout.min_time_axis)
    if layout.priority_exponent is not None:
        changes["set_priorities"] = functools.partial(set_priorities, plan=plan)
    return buffer.replace(**changes)


def _layout_of(buffer: TrajectoryBuffer) -> Layout:
    layout = getattr(buffer, "layout", None)
    if layout is None or layout.items:
        raise InvalidArgumentError(
            "`buffer` must be a flat or a trajectory buffer, with or without priorities, "
            f"got {type(buffer).__name__}{f' of kind {layout.kind!r}' if layout else ''}.",
            loc=("buffer",),
        )
    return layout


def _names(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
