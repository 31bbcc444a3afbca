"""Where episodes start and end in a ring, and which of its items keep to one of them.

An item starts at any slot; what may not be drawn has weight 0. Periods count from the start of an episode.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from fbxcore import _loops, _random
from fbxcore.buffers import sum_tree
from fbxcore.buffers.layout import Grid, Layout
from fbxcore.buffers.sum_tree import SumTreeState
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import Array, Experience, PRNGKey


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


def check_marks(experience: Experience, argument: str, names: tuple[str, ...]) -> None:
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


def steps_into(episode_steps: Array, first: Array, last: Array) -> Array:
    """Return how many timesteps of its episode have come with each new one, itself included, `[B, K]`."""
    is_first = first.at[:, 1:].set(first[:, 1:] | last[:, :-1])
    index = jnp.arange(first.shape[1], dtype=jnp.int32)
    begun = lax.cummax(jnp.where(is_first, index, -1), axis=1)
    return jnp.where(begun >= 0, index - begun + 1, episode_steps[:, None] + index + 1)


def reduced(plan: Plan, steps: Array) -> Array:
    """Return a count below `needed + period` that means the same, so that it can not run over."""
    over = steps - plan.needed
    return jnp.where(over >= 0, plan.needed + over % plan.layout.period, steps)


def with_items(plan: Plan, tree: SumTreeState, current_index: Array, steps: Array) -> SumTreeState:
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


def uniform_draw(key: PRNGKey, num: int, tree: SumTreeState) -> Array:
    """Return items of equal weights, `[N]`, each drawn on its own."""

    def by_words(indices: list[Array], data: Array, total: Array) -> list[Array]:
        words = _random.words_of(data)
        low, high = jnp.float32(0), jnp.float32(1)
        return [_random.uniform(_random.split(words, i), low, high) * total for i in indices]

    if _random.is_threefry(key):
        values = _loops.map_elements(by_words, num, _random.data_of(key), tree.nodes[0])
    else:
        values = jax.random.uniform(key, (num,)) * tree.nodes[0]
    return sum_tree.leaves_at(tree, values)[0]
