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
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fbxcore import _checks, _loops, _random, _ring
from fbxcore.buffers import (
    flat_buffer,
    items,
    prioritised_trajectory_buffer,
    replay,
    sum_tree,
    trajectory_buffer,
)
from fbxcore.buffers.flat_buffer import TransitionSample
from fbxcore.buffers.layout import Grid, Layout
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

    episode_steps: Array  # [B], timesteps of the episode that a row is in; `_reduced` keeps it small


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


@dataclass(frozen=True)
class Plan:
    """Where episodes start and end, and what is drawn; hashable."""

    layout: Layout
    starts: tuple[str, ...]  # leaves that mark first timesteps
    ends: tuple[str, ...]  # leaves that mark last timesteps
    crossing: str

    @property
    def needed(self) -> int:
        """Timesteps of one episode that an item must have."""
        return self.layout.sequence_length if self.crossing == "avoid" else 1

    @property
    def grid(self) -> Grid:
        """Where items may start: at every slot."""
        return Grid(self.layout.rows, self.layout.time_axis, self.needed)

    @property
    def has_tree(self) -> bool:
        """Whether anything that is held may not be drawn, or not as often as others."""
        return self.needed > 1 or self.layout.period > 1 or self.layout.priority_exponent is not None


def flags_of(plan: Plan, experience: Experience) -> tuple[Array, Array]:
    """Return which timesteps are first and which are last of an episode, `[..., K]` each."""
    named = _named(experience)
    nowhere = jnp.zeros(jax.tree.leaves(experience)[0].shape[:2], bool)
    first, last = (
        functools.reduce(jnp.logical_or, [named[name] for name in names], nowhere)
        for names in (plan.starts, plan.ends)
    )
    return first, last


def _named(experience: Experience) -> dict[str, Array]:
    leaves = jax.tree_util.tree_leaves_with_path(experience)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def init(experience: Experience, plan: Plan) -> TrajectoryBufferState:
    """Return an empty state for timesteps like the one given.

    Raises:
        InvalidArgumentError: if a leaf that marks episodes is not there or is no single boolean.
    """
    _check_marks(experience, "episode_start", plan.starts)
    _check_marks(experience, "episode_end", plan.ends)
    layout = plan.layout
    if not plan.has_tree:
        return trajectory_buffer.init(experience, layout.rows, layout.time_axis)
    empty = prioritised_trajectory_buffer.prioritised_init(experience, layout.rows, layout.time_axis, 1)
    return EpisodeBufferState(**empty, episode_steps=jnp.zeros(layout.rows, jnp.int32))


def _check_marks(experience: Experience, argument: str, names: tuple[str, ...]) -> None:
    named = _named(experience)
    for name in names:
        if name not in named:
            raise InvalidArgumentError(
                f"`{argument}` must name a leaf of a timestep, {', '.join(sorted(named))}, got {name!r}.",
                loc=(argument,),
            )
        leaf = jnp.asarray(named[name])
        if leaf.dtype != bool or leaf.shape:
            raise InvalidArgumentError(
                f"`{argument}` must name a leaf of one boolean a timestep, got {name!r} with shape "
                f"{list(leaf.shape)} and dtype {leaf.dtype}.",
                loc=(argument,),
            )


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
        steps = _steps_into(episode_steps, first, last)
        left = _reduced(plan, jnp.where(last[:, -1], 0, steps[:, -1]))
        return _with_items(plan, tree, current_index, steps), left

    def whole(state: EpisodeBufferState, batch: Experience) -> EpisodeBufferState:
        kept = (state.sum_tree_state, state.episode_steps)
        flags = flags_of(plan, batch)
        tree, left = _loops.in_one_piece(counted, state.current_index, kept, state.current_index, *flags)
        return trajectory_buffer.advanced(state, batch).replace(
            sum_tree_state=tree,
            running_index=state.running_index + _ring.num_steps(batch),
            episode_steps=left,
        )

    if _ring.is_small(batch):
        return _loops.in_one_piece(whole, state.current_index, state, batch)
    return whole(state, batch)


def _steps_into(episode_steps: Array, first: Array, last: Array) -> Array:
    """Return how many timesteps of its episode have come with each new one, itself included, `[B, K]`."""
    is_first = first.at[:, 1:].set(first[:, 1:] | last[:, :-1])
    index = jnp.arange(first.shape[1], dtype=jnp.int32)
    begun = lax.cummax(jnp.where(is_first, index, -1), axis=1)
    return jnp.where(begun >= 0, index - begun + 1, episode_steps[:, None] + index + 1)


def _reduced(plan: Plan, steps: Array) -> Array:
    """Return a count below `needed + period` that means the same, so that it can not run over."""
    over = steps - plan.needed
    return jnp.where(over >= 0, plan.needed + over % plan.layout.period, steps)


def _with_items(plan: Plan, tree: sum_tree.SumTreeState, current_index: Array, steps: Array) -> Any:
    """Give items that new timesteps complete the greatest weight so far, and those they break weight 0.

    Counted from the write index, the kth new timestep completes the item that starts at k + 1 - needed,
    if all of it is of one episode; items that start at the last `needed - 1` are not complete. Where a
    start was overwritten by the same add, its slot comes again further on, and the last change wins.
    """
    rows, num = steps.shape
    needed, time_axis = plan.needed, plan.layout.time_axis
    changes = num + min(num, needed - 1)

    def change_of(
        c: Array, greatest: Array, current_index: Array, steps: Array
    ) -> tuple[Array, Array, Array]:
        row, k = c // changes, c % changes
        completes = k < num
        into = steps[row, jnp.minimum(k, num - 1)] - needed
        is_item = completes & (into >= 0) & (into % plan.layout.period == 0)
        start = jnp.where(completes, k + 1 - needed, 2 * num - 1 - k)
        slot = (current_index + start + time_axis) % time_axis
        return row * time_axis + slot, jnp.where(is_item, greatest, 0.0), k >= 0

    operands = (tree.max_recorded_priority, current_index, steps)
    return sum_tree.set_each(tree, change_of, rows * changes, *operands, device=jax.default_backend())


@functools.partial(jax.jit, static_argnums=2, inline=True)
def sample(state: TrajectoryBufferState, rng_key: PRNGKey, plan: Plan) -> Any:
    """Draw items and return them as the buffer they are made of does, with a mask where it was chosen."""
    layout = plan.layout
    draw, operands = _place(plan, state, rng_key)

    def place(indices: list[Array], current_index: Array, *operands: Any) -> list[tuple]:
        return [
            (row, start, (items.age_of(plan.grid, start, current_index), *rest))
            for row, start, *rest in draw(indices, *operands)
        ]

    experience, (age, *rest) = _ring.read_at(
        state.experience,
        place,
        layout.sample_batch_size,
        layout.sequence_length,
        state.current_index,
        *operands,
        lanes=sum_tree.LANES if plan.has_tree else 1,
    )
    fields = {"experience": experience}
    if plan.crossing == "mask":
        first, last = flags_of(plan, experience)
        is_written = jnp.arange(layout.sequence_length) < age[:, None]
        fields["mask"] = replay.episode_mask(starts=first, ends=last) & is_written
    if layout.priority_exponent is not None:
        ((indices, probabilities),) = rest
        fields |= {
            "indices": indices,
            "probabilities": probabilities,
            "generations": state.running_index - age,
        }
    return _sample_of(layout, fields)


def _place(plan: Plan, state: TrajectoryBufferState, rng_key: PRNGKey) -> tuple[Callable, tuple]:
    """Return how to draw row and start slot of an item, and its index and probability if it has them."""
    num = plan.layout.sample_batch_size
    if plan.layout.priority_exponent is not None:
        return items.weighted_place(plan.grid, rng_key, num, state.sum_tree_state, num)
    if not plan.has_tree:
        size = trajectory_buffer.size_of(state)
        draw, operands = items.uniform_place(plan.grid, rng_key, num, 1, state.current_index, size)
        return lambda indices, *operands: [found[:2] for found in draw(indices, *operands)], operands
    return _uniform_place(plan.grid, rng_key, num, state.sum_tree_state)


def _uniform_place(grid: Grid, key: PRNGKey, num: int, tree: sum_tree.SumTreeState) -> tuple[Callable, tuple]:
    """Return how to draw items of equal weights, each on its own."""

    def by_words(indices: list[Array], tree: sum_tree.SumTreeState, data: Array) -> list[tuple]:
        words = _random.words_of(data)
        low, high = jnp.float32(0), jnp.float32(1)
        values = [_random.uniform(_random.split(words, i), low, high) for i in indices]
        return [items.starts(grid, sum_tree.sample(tree, query_value=value)) for value in values]

    def by_values(indices: list[Array], tree: sum_tree.SumTreeState, values: Array) -> list[tuple]:
        return [items.starts(grid, sum_tree.sample(tree, query_value=values[i])) for i in indices]

    if _random.is_threefry(key):
        return by_words, (tree, _random.data_of(key))
    return by_values, (tree, jax.random.uniform(key, (num,)))


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
        first, last = flags_of(plan, _ring.read(state.experience, row, start, plan.needed))
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
