"""The buffer behind every face and every live buffer: rows that advance on their own, items with weights.

A row is a ring of T timesteps with a write index of its own. An item is a sequence of L timesteps that
starts at a slot of a row; its index is `row * items_per_row + item`, and it starts at slot
`item * stride`. Prioritised kinds keep a weight per item in a sum tree, and weight 0 is what can not be
drawn: unwritten, overwritten, astride the write head, of priority 0. Uniform kinds draw row and start
directly, as Flashbax does.

Where writers are independent, a row holds runs, and no item reaches from one into the next. Every kind
then has a sum tree, in which the items of uniform ones weigh 1: rows are drawn in proportion to the items
they hold, and an item across two runs is never drawn.

The lap of a slot counts how often the ring had come round when it was written. Lap and slot together
are the item's absolute first timestep, its *generation*: an item that was overwritten since has another.

All functions are compiled once per layout, structure and batch size. `add_rows` and `set_priorities`
take their state over (donate it): use the one they return.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbxcore import _loops, _ring
from fbxcore.buffers import items, sum_tree
from fbxcore.buffers.layout import Grid, Layout, bucket_of
from fbxcore.buffers.pytree import Fields, pytree
from fbxcore.buffers.sum_tree import SumTreeState
from fbxcore.types import Array, Leaves, PRNGKey, Spec

_BEGINS = ""  # a name beside those of the leaves, none of which is empty


@pytree
class CoreState(Fields):
    """What a core maps."""

    experience: dict[str, Array]  # [B, T, ...]
    write_index: Array  # [B], int32: where the next timestep of a row goes
    size: Array  # [B], int32: timesteps a row holds
    laps: Array  # [B], int32: how often a row's write index came round
    tree: SumTreeState | None  # weights [I]; None for uniform kinds in lockstep
    unbroken: Array | None = None  # [B], int32: timesteps of the run at a row's write index, T at most
    begins: Array | None = None  # [B, T], bool: which slots hold the first timestep of a run


@pytree
class CoreSample(Fields):
    """What one draw gives."""

    experience: dict[str, Array]  # [N, L, ...]
    indices: Array  # [N], int32
    probabilities: Array  # [N], float32
    laps: Array  # [N], int32


@dataclass(frozen=True)
class Core:
    """Pure functions of one layout; hashable, so that equal layouts share what is compiled."""

    layout: Layout

    def init(self, timestep: Mapping[str, Any]) -> CoreState:
        """Return an empty state for leaves of the given shapes and dtypes (arrays or a spec)."""
        layout = self.layout
        rows = (layout.rows,)
        runs = {}
        if layout.independent:
            begins = jnp.zeros((layout.rows, layout.time_axis), bool)
            runs = {"unbroken": jnp.zeros(rows, jnp.int32), "begins": begins}
        return CoreState(
            experience={
                name: jnp.zeros((layout.rows, layout.time_axis, *shape), dtype)
                for name, (shape, dtype) in sorted(stored_as(timestep).items())
            },
            write_index=jnp.zeros(rows, jnp.int32),
            size=jnp.zeros(rows, jnp.int32),
            laps=jnp.zeros(rows, jnp.int32),
            tree=sum_tree.init(layout.num_items) if layout.is_weighted else None,
            **runs,
        )

    def add_rows(self, state: CoreState, experience: Leaves, lengths: Array) -> CoreState:
        """Append the first `lengths[b]` timesteps of `[B, K, ...]` to each row; the state is donated.

        K is static and may be padding; `lengths` (`[B]`, int32, each at most K and T) is not.
        """
        return _add_rows(self, state, pack(experience), jnp.asarray(lengths, jnp.int32))

    def add_runs(
        self, state: CoreState, experience: Leaves, rows: Array, lengths: Array, begins: Array
    ) -> CoreState:
        """Append the first `lengths[r]` timesteps of each run `[R, K, ...]` to a row; the state is donated.

        Args:
            rows: `[R]`, the row of each run; no row twice. These and the next are arrays of the host.
            lengths: `[R]`, each at most K and T.
            begins: `[R]`, bool: the run does not go on from what the row holds.
        """
        # Arrays of the host as they are: to put each on the device by itself takes as long as the add.
        runs = [np.asarray(x, dtype) for x, dtype in ((rows, np.int32), (lengths, np.int32), (begins, bool))]
        return _add_runs(self, state, pack(experience), *runs)

    def can_sample(self, state: CoreState) -> Array:
        """Return whether every row (independent: all together) holds enough and something can be drawn."""
        return _can_sample(self, state)

    def sample(self, state: CoreState, key: PRNGKey, n: int, bucket: int | None = None) -> CoreSample:
        """Draw n items; what is returned beyond n, up to the bucket, is padding."""
        return _sample(self, state, key, n, bucket or bucket_of(n))

    def sample_indices(
        self, state: CoreState, key: PRNGKey, n: int, bucket: int | None = None
    ) -> tuple[Array, Array]:
        """Return indices int32 `[N]` and probabilities float32 `[N]` of n items; N is the bucket."""
        return _sample_indices(self, state, key, n, bucket or bucket_of(n))

    def gather(self, state: CoreState, indices: Array) -> dict[str, Array]:
        """Return the items' timesteps, `[N, L, ...]`."""
        return _gather(self, state, indices)

    def starts(self, indices: Array) -> tuple[Array, Array]:
        """Return row `[N]` and start slot `[N]` of items."""
        return items.starts(self.layout.grid, indices)

    def set_priorities(self, state: CoreState, indices: Array, priorities: Array, keep: Array) -> CoreState:
        """Set priorities `[N]` (before the exponent) of items `[N]`; the state is donated.

        An item that is not whole now, one whose `keep` is false, and a priority that is NaN, infinite
        or negative change nothing. Of equal indices the last wins.
        """
        return _set_priorities(self, state, indices, priorities, keep)

    def laps(self, state: CoreState, indices: Array) -> Array:
        """Return the lap, int32 `[N]`, in which each item's start slot was last written."""
        return _laps(self, state, indices)

    def generations(self, indices: Array, laps: Array) -> np.ndarray:
        """Return items' absolute first timesteps, int64 `[N]`, on the host."""
        _, start = items.starts(self.layout.grid, np.asarray(indices))
        return np.asarray(laps, np.int64) * self.layout.time_axis + start

    def is_live(self, state: CoreState, indices: Array) -> Array:
        """Return which items `[N]` are whole now: written, not overwritten, not astride the write head."""
        return _is_live(self, state, indices)

    def weights(self, state: CoreState) -> Array:
        """Return the weight of every item, float32 `[I]`: 1 or 0 for uniform kinds."""
        return _weights(self, state)

    def export_state(self, state: CoreState) -> dict[str, np.ndarray]:
        """Return all but the experience, as arrays of the host."""
        kept = {name: np.array(state[name]) for name in self._counters}
        if state.begins is not None:
            kept["begins"] = np.array(state.begins)
        if state.tree is not None:
            kept["weights"] = np.array(sum_tree.leaves(state.tree))
            kept["max_priority"] = np.array(state.tree.max_recorded_priority)
        return kept

    def import_state(self, experience: Leaves, bookkeeping: Mapping[str, np.ndarray]) -> CoreState:
        """Return the state of experience `[B, T, ...]` and what `export_state` gave."""
        tree = None
        if self.layout.is_weighted:
            tree = sum_tree.from_leaves(bookkeeping["weights"], bookkeeping["max_priority"])
        kept = {name: jnp.array(bookkeeping[name], jnp.int32) for name in self._counters}
        if self.layout.independent:
            kept["begins"] = jnp.array(bookkeeping["begins"], bool)
        held = {name: jnp.array(leaf) for name, leaf in sorted(pack(experience).items())}
        return CoreState(experience=held, tree=tree, **kept)

    @property
    def _counters(self) -> tuple[str, ...]:
        runs = ("unbroken",) if self.layout.independent else ()
        return ("write_index", "size", "laps", *runs)


def make_core(layout: Layout) -> Core:
    """Return the core of a layout."""
    return Core(layout)


def stored_as(timestep: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return shape and dtype under which each leaf is stored: 64-bit ones as two uint32."""
    stored = {}
    for name, leaf in timestep.items():
        shape, dtype = tuple(leaf.shape), jnp.dtype(leaf.dtype)
        stored[name] = ((*shape, 2), jnp.dtype("uint32")) if dtype.itemsize == 8 else (shape, dtype)
    return stored


def pack(leaves: Leaves) -> dict[str, Array]:
    """Return leaves as stored: JAX holds no 64-bit values by default, so two uint32 stand for one."""
    return {name: _packed(leaf) if leaf.dtype.itemsize == 8 else leaf for name, leaf in leaves.items()}


def _packed(leaf: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(leaf).view(np.uint32).reshape(*leaf.shape, 2)


def unpack(leaves: Mapping[str, Array], spec: Spec) -> dict[str, np.ndarray]:
    """Return stored leaves as arrays of the host with the dtypes of the spec; copies nothing."""
    arrays = {}
    for name, leaf in leaves.items():
        array = np.asarray(leaf)
        wanted = np.dtype(jnp.dtype(spec[name].dtype))
        arrays[name] = array.view(wanted)[..., 0] if wanted.itemsize == 8 else array
    return arrays


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add_rows(core: Core, state: CoreState, batch: dict[str, Array], lengths: Array) -> CoreState:
    layout = core.layout
    batch = {name: leaf[:, : layout.time_axis] for name, leaf in batch.items()}
    tree = state.tree
    if tree is not None:
        tree = items.add_items(
            layout.grid,
            tree,
            state.write_index,
            state.size,
            lengths,
            steps=_ring.num_steps(batch),
            device=jax.default_backend(),
        )
    end = state.write_index + lengths
    return CoreState(
        experience=_ring.write_rows(state.experience, batch, state.write_index, lengths),
        write_index=end % layout.time_axis,
        size=jnp.minimum(state.size + lengths, layout.time_axis),
        laps=state.laps + end // layout.time_axis,
        tree=tree,
    )


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add_runs(
    core: Core, state: CoreState, batch: dict[str, Array], rows: Array, lengths: Array, begins: Array
) -> CoreState:
    layout = core.layout
    batch = {name: leaf[:, : layout.time_axis] for name, leaf in batch.items()}
    steps = _ring.num_steps(batch)
    index, size = state.write_index[rows], state.size[rows]
    unbroken = jnp.where(begins, 0, state.unbroken[rows])
    tree = items.add_items(
        layout.grid, state.tree, index, size, lengths,
        runs=(rows, unbroken), steps=steps, device=jax.default_backend(),
    )  # fmt: skip
    is_first = (unbroken == 0)[:, None] & (jnp.arange(steps) == 0)
    ring, batch = state.experience | {_BEGINS: state.begins}, batch | {_BEGINS: is_first}
    ring = _ring.write_runs(ring, batch, rows, index, lengths)
    end = index + lengths
    return CoreState(
        begins=ring.pop(_BEGINS),
        experience=ring,
        write_index=state.write_index.at[rows].set(end % layout.time_axis),
        size=state.size.at[rows].set(jnp.minimum(size + lengths, layout.time_axis)),
        laps=state.laps.at[rows].add(end // layout.time_axis),
        tree=tree,
        unbroken=state.unbroken.at[rows].set(jnp.minimum(unbroken + lengths, layout.time_axis)),
    )


@functools.partial(jax.jit, static_argnums=0)
def _can_sample(core: Core, state: CoreState) -> Array:
    held = jnp.sum(state.size) if core.layout.independent else state.size
    enough = jnp.all(held >= core.layout.min_time_axis)
    return enough if state.tree is None else enough & (state.tree.nodes[0] > 0)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _sample_indices(core: Core, state: CoreState, key: PRNGKey, n: Array, bucket: int) -> tuple[Array, Array]:
    place, operands, drawn = _draw(core, state, key, n, bucket)
    return drawn or _drawn(core, *_loops.map_elements(place, bucket, *operands))


@functools.partial(jax.jit, static_argnums=(0, 4))
def _sample(core: Core, state: CoreState, key: PRNGKey, n: Array, bucket: int) -> CoreSample:
    place, operands, drawn = _draw(core, state, key, n, bucket)

    def place_and_tell(indices: list[Array], *operands: Any) -> list[tuple[Array, Array, tuple]]:
        return [(found[0], found[1], found) for found in place(indices, *operands)]

    length = core.layout.sequence_length
    experience, found = _ring.read_at(state.experience, place_and_tell, bucket, length, *operands)
    indices, probabilities = drawn or _drawn(core, *found)
    return CoreSample(
        experience=experience,
        indices=indices,
        probabilities=probabilities,
        laps=_laps(core, state, indices),
    )


def _draw(
    core: Core, state: CoreState, key: PRNGKey, n: Array, bucket: int
) -> tuple[Callable, tuple, tuple[Array, ...]]:
    """Return how to find places and its operands; and of weighted items, which were drawn, and how likely."""
    layout, grid = core.layout, core.layout.grid
    if state.tree is None:
        counters = (state.write_index, state.size)
        return *items.uniform_place(grid, key, bucket, layout.period, *counters), ()
    if layout.priority_exponent is None:
        drawn = sum_tree.whole_draw(state.tree, bucket, key)
    else:
        drawn = sum_tree.stratified_draw(state.tree, bucket, key, n)
    return functools.partial(items.place_of, grid), drawn[:1], drawn


def _drawn(core: Core, row: Array, start: Array, count: Array) -> tuple[Array, Array]:
    """Return indices and probabilities of uniform items."""
    probabilities = jnp.float32(1 / core.layout.rows) / jnp.maximum(count, 1)
    return row * core.layout.items_per_row + start, jnp.where(count > 0, probabilities, 0.0)


@functools.partial(jax.jit, static_argnums=0)
def _gather(core: Core, state: CoreState, indices: Array) -> dict[str, Array]:
    row, start = items.starts(core.layout.grid, indices)
    return _ring.read(state.experience, row, start, core.layout.sequence_length)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _set_priorities(
    core: Core, state: CoreState, indices: Array, priorities: Array, keep: Array
) -> CoreState:
    grid, exponent = core.layout.grid, core.layout.priority_exponent

    def change_of(
        i: Array, indices: Array, priorities: Array, keep: Array, *held: Array
    ) -> tuple[Array, Array, Array]:
        index = indices[i]
        weight, applied = sum_tree.weight_of(priorities[i], exponent, grid.num_items)
        return index, weight, applied & keep[i] & _is_item(grid, index, *held)

    indices, priorities = jnp.asarray(indices, jnp.int32), jnp.asarray(priorities, jnp.float32)
    operands = (indices, priorities, keep, *_held(state))
    tree = sum_tree.set_each(state.tree, change_of, len(indices), *operands, device=jax.default_backend())
    return state.replace(tree=tree)


def _held(state: CoreState) -> tuple[Array, ...]:
    """Return what says which items are whole: write indices, sizes and, of runs, where they begin."""
    return (state.write_index, state.size, *(() if state.begins is None else (state.begins,)))


def _is_item(grid: Grid, index: Array, write_index: Array, size: Array, *begins: Array) -> Array:
    row, start = items.starts(grid, index)
    row = jnp.clip(row, 0, grid.rows - 1)
    whole = items.is_whole(grid, start, write_index[row], size[row])
    if begins:
        whole &= items.is_unbroken(grid, row, start, *begins)
    return whole & (index >= 0) & (index < grid.num_items)


@functools.partial(jax.jit, static_argnums=0)
def _laps(core: Core, state: CoreState, indices: Array) -> Array:
    row, start = items.starts(core.layout.grid, indices)
    return state.laps[row] - (start >= state.write_index[row])


@functools.partial(jax.jit, static_argnums=0)
def _is_live(core: Core, state: CoreState, indices: Array) -> Array:
    return _is_item(core.layout.grid, jnp.asarray(indices, jnp.int32), *_held(state))


@functools.partial(jax.jit, static_argnums=0)
def _weights(core: Core, state: CoreState) -> Array:
    if state.tree is not None:
        return sum_tree.leaves(state.tree)
    live = _is_live(core, state, jnp.arange(core.layout.num_items, dtype=jnp.int32))
    return live.astype(jnp.float32)
