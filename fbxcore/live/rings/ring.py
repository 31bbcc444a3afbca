"""The ring a live buffer samples from: a core's state, its counters, and how items are drawn and read.

Whoever holds the ring works on it alone (`Engine`). Indices are drawn in JAX, so that the same seed on
the same state draws the same items everywhere. On a CPU the rows are then read on the host, straight from
the state's memory: views of it never leave, and are dropped before a change, which would otherwise copy
the whole ring.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import numpy as np

from fbxcore.buffers.core import Core, CoreState, make_core, unpack
from fbxcore.buffers.layout import Layout, bucket_of
from fbxcore.errors import NotEnoughDataError
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.durable.rows import Row, as_array, rows_of
from fbxcore.live.rings.draws import Draws
from fbxcore.live.rings.padding import (
    buckets_to,
    changed_ranges,
    join_blocks,
    pad_steps,
    pad_vector,
    steps_within,
)
from fbxcore.spec import dtype_of, timestep_bytes
from fbxcore.types import Leaves, Spec

MAX_BUCKET = 1024
MAX_JOINT = 64
MAX_BUCKET_BYTES = 16 << 20
QUICK_BYTES = 1 << 20
_EPOCH_BITS = 40


Room = Callable[[Mapping[str, tuple[tuple[int, ...], np.dtype]]], dict[str, np.ndarray]]
"""Gives arrays to fill, of the shapes and dtypes asked for by name."""


def new_room(shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> dict[str, np.ndarray]:
    """Return new arrays."""
    return {name: np.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}


class Ring:
    """A buffer's state and counters; not thread-safe, see `Engine`."""

    def __init__(self, layout: Layout, spec: Spec):
        self.layout = layout
        self.spec = spec
        self.core: Core = make_core(layout)
        self.counters = Counters()
        self.timestep_bytes = timestep_bytes(spec)
        self._draws = Draws(self.core)
        self._on_host = jax.default_backend() == "cpu"
        self.has_items = False  # anything that may be drawn; told of independent writers
        self.rows = [Row()] * layout.rows  # of independent writers
        self._given = np.zeros(layout.rows, np.int64)  # timesteps each row was given since the last reset
        self._hold(self._empty())
        together = steps_within(MAX_BUCKET_BYTES, layout.rows_in_step, spec)
        self.max_bucket = min(MAX_BUCKET, layout.time_axis, together)
        self.max_joint = min(MAX_JOINT, layout.time_axis, steps_within(MAX_BUCKET_BYTES, layout.rows, spec))

    # Counts, per row unless said otherwise; of independent writers over all rows

    @property
    def position(self) -> int:
        """Timesteps added since the last reset."""
        return self.counters.position - self.counters.ring_start

    @property
    def held(self) -> int:
        """Timesteps the ring holds."""
        return self._size if self.layout.independent else min(self.position, self.layout.time_axis)

    @property
    def size(self) -> int:
        """Timesteps held, over all rows."""
        return self.held * self.layout.rows_in_step

    def row_sizes(self) -> np.ndarray:
        """Return the timesteps each row of independent writers holds, int64 `[B]`; a copy."""
        return np.minimum(self._given, self.layout.time_axis)

    def size_at(self, position: int) -> int:
        """Timesteps held over all rows, once a row was given so many since the last reset."""
        return min(position, self.layout.time_axis) * self.layout.rows

    def oldest_of(self, counters: Counters) -> int:
        """Return the position, in the log, of the oldest timestep held where counters stand."""
        return max(counters.ring_start, counters.position - self.layout.time_axis)

    @property
    def needed(self) -> int:
        """Timesteps missing before an item may be sampled."""
        return max(0, self.layout.min_time_axis - self.held)

    # Changes

    def add(self, blocks: list[Leaves]) -> None:
        """Append blocks of leaves `[B, K, ...]`, one after the other."""
        joined = join_blocks(blocks)
        steps = next(iter(joined.values())).shape[1]
        for start in range(0, steps, self.max_bucket):
            self._add_bucket({name: x[:, start : start + self.max_bucket] for name, x in joined.items()})
        self.counters = replace(self.counters, position=self.counters.position + steps)

    def _add_bucket(self, leaves: Leaves) -> None:
        steps = next(iter(leaves.values())).shape[1]
        bucket = min(bucket_of(steps), self.max_bucket)
        padded = {name: pad_steps(x, bucket) for name, x in leaves.items()}
        self._views = None
        self._hold(self.core.add_rows(self.state, padded, np.full(self.layout.rows, steps, np.int32)))

    def add_runs(self, leaves: Leaves, rows: np.ndarray, lengths: np.ndarray, begins: np.ndarray) -> None:
        """Append runs `[R, K, ...]` to rows of independent writers, as the core does; see `apply_runs`."""
        self._views = None
        self._given[rows] += lengths
        self._hold(self.core.add_runs(self.state, leaves, rows, lengths, begins))

    def skip_to(self, position: int) -> None:
        """Go on at a later position, as after a reset there: what lies between was never seen."""
        if position > self.counters.position:
            self.counters = replace(self.counters, position=position)
            self.reset()

    def reset(self) -> None:
        """Forget every item; positions go on, and earlier generations are stale."""
        self.counters = self.counters.after_reset()
        self._given[:] = 0
        self._hold(self._empty())

    def set_priorities(
        self, indices: np.ndarray, priorities: np.ndarray, generations: np.ndarray
    ) -> dict[str, int]:
        """Set priorities `[N]` of items that are still what was sampled; count the others as stale."""
        live = self.generations(indices) == generations
        self._set(indices, priorities, live)
        updated = int(live.sum())
        counts = {"updated": updated, "stale": len(indices) - updated}
        self.counters = replace(
            self.counters,
            updated=self.counters.updated + counts["updated"],
            stale=self.counters.stale + counts["stale"],
        )
        return counts

    def _set(self, indices: np.ndarray, priorities: np.ndarray, keep: np.ndarray) -> None:
        bucket = bucket_of(len(indices))
        self._views = None
        self._hold(
            self.core.set_priorities(
                self.state,
                pad_vector(indices.astype(np.int32), bucket),
                pad_vector(priorities.astype(np.float32), bucket),
                pad_vector(keep, bucket),
            )
        )

    # Reading

    def is_quick(self, num_items: int) -> bool:
        """Whether sampling that many takes no compiling and no more than some 100 µs."""
        size = num_items * self.layout.sequence_length * self.timestep_bytes
        return self._on_host and size <= QUICK_BYTES and self._draws.is_compiled(num_items)

    def sample(
        self, num_items: int, seed: int | None = None, beta: float | None = None, room: Room = new_room
    ) -> tuple[dict[str, np.ndarray], int]:
        """Return a batch and its seed, a fresh one unless given.

        The arrays are named as on the wire: `experience/…` and, for prioritised kinds, how they were drawn.

        Args:
            room: gives the arrays to fill.

        Raises:
            NotEnoughDataError: if there is no item to draw.
        """
        self._check_enough()
        if seed is None:
            seed, drawn = self._draws.next(num_items)
        else:
            drawn = self._draws.by_seed(num_items, seed)
        indices, *shares = [array[:num_items] for array in drawn]
        if shares:
            self._check_drawable(shares[0])
        is_prioritised = self.layout.priority_exponent is not None
        how = self._how_drawn(indices, shares[0], beta) if is_prioritised else {}
        return self._gather(indices, how, room), seed

    def _check_enough(self) -> None:
        if self.needed and self.layout.independent:
            raise NotEnoughDataError(
                f"The buffer must hold {self.layout.min_time_axis} timesteps to be sampled, got {self.size}. "
                f"Add {self.needed} more.",
                needed=self.needed,
            )
        if self.needed:
            raise NotEnoughDataError(
                f"The buffer must hold {self.layout.min_time_axis} timesteps a row to be sampled, "
                f"got {self.held}. Add {self.needed} more to each row.",
                needed=self.needed,
            )

    def _check_drawable(self, probabilities: np.ndarray) -> None:
        if (probabilities > 0).all():
            return
        if self.layout.priority_exponent is None:
            raise NotEnoughDataError(
                f"The buffer must hold {self.layout.sequence_length} timesteps of one episode to be sampled, "
                "got none. Add more to one.",
                needed=1,
            )
        raise NotEnoughDataError(
            "The buffer must hold an item of priority above 0 to be sampled, got none. Set priorities.",
            needed=0,
        )

    def _how_drawn(
        self, indices: np.ndarray, probabilities: np.ndarray, beta: float | None
    ) -> dict[str, np.ndarray]:
        how = {
            "indices": indices,
            "generations": self.generations(indices),
            "probabilities": probabilities,
        }
        return how if beta is None else how | {"weights": _importance_weights(probabilities, beta)}

    def generations(self, indices: np.ndarray) -> np.ndarray:
        """Return what tells an item from those that had or will have its index, int64 `[N]`.

        It joins the reset epoch with the item's absolute start step.
        """
        rows, slots = self._starts(indices)
        newest = (self._given[rows] if self.layout.independent else self.position) - 1
        starts = newest - (newest - slots) % self.layout.time_axis
        return (np.int64(self.counters.epoch) << _EPOCH_BITS) | starts.astype(np.int64)

    def weights(self) -> np.ndarray:
        """Return the tree's leaf of every item `[I]`, priority ** exponent; a copy."""
        return np.array(self.core.weights(self.state))

    # Whole state

    def bookkeeping(self) -> dict[str, np.ndarray]:
        """Return all of the state that is not experience, as copies."""
        kept = {name: np.array(x) for name, x in self.core.export_state(self.state).items()}
        return kept | ({"rows": as_array(self.rows)} if self.layout.independent else {})

    def whole(self) -> tuple[Counters, dict[str, np.ndarray]]:
        """Return counters and all else that is needed beside the timesteps by slot."""
        return self.counters, self.bookkeeping()

    def step_shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Return shape `[B * T, ...]` and dtype of all timesteps, by leaf."""
        steps = self.layout.rows * self.layout.time_axis
        return {name: ((steps, *leaf.shape), dtype_of(leaf.dtype)) for name, leaf in self.spec.items()}

    def copy_steps(self, name: str, start: int, stop: int, into: np.ndarray) -> None:
        """Copy a leaf's timesteps `[start, stop)`, counted over all rows, into an array."""
        leaf = self.state.experience[name]
        flat = (np.asarray(leaf) if self._on_host else leaf).reshape(-1, *leaf.shape[2:])
        _as_stored(into)[...] = flat[start:stop]

    def mark(self) -> tuple[int, np.ndarray]:
        """Return what tells later which timesteps were written since: the epoch, and each row's position."""
        kept = {name: np.array(self.state[name], np.int64) for name in ("laps", "write_index")}
        return self.counters.epoch, kept["laps"] * self.layout.time_axis + kept["write_index"]

    def changed_since(self, mark: tuple[int, np.ndarray]) -> list[tuple[int, int]]:
        """Return the timesteps written since a mark as ranges, counted over all rows."""
        (epoch, before), (now, after) = mark, self.mark()
        before = before if epoch == now else np.zeros_like(after)
        return changed_ranges(before, after, self.layout.time_axis)

    def restore(self, experience: Leaves, bookkeeping: Leaves, counters: Counters) -> None:
        """Take over a whole state; experience is `[B, T, ...]` by slot."""
        self.counters = counters
        if self.layout.independent:
            self.rows = rows_of(bookkeeping["rows"])
        laps, write_index = (np.asarray(bookkeeping[name], np.int64) for name in ("laps", "write_index"))
        self._given = laps * self.layout.time_axis + write_index
        self._hold(self.core.import_state(experience, bookkeeping))

    def warm_ups(self) -> list[Callable[[Ring], None]]:
        """Return calls that compile what requests will need, one thing each, and change nothing.

        The default sample comes first, then the lengths of an add, the short ones first.
        """
        warm_add = Ring._warm_run if self.layout.independent else Ring._warm_add
        adds = [functools.partial(warm_add, steps=steps) for steps in buckets_to(self.max_bucket)]
        if self.layout.independent and self.layout.rows > 1:
            rows = self.layout.rows
            adds += [functools.partial(warm_add, steps=n, rows=rows) for n in buckets_to(self.max_joint)]
        return [Ring._warm_sample, *adds]

    def _warm_run(self, steps: int, rows: int = 1) -> None:
        nothing = np.zeros(rows, np.int32)
        self.add_runs(self._zeros(rows, steps), np.arange(rows), nothing, nothing.astype(bool))

    def _warm_add(self, steps: int) -> None:
        rows = self.layout.rows
        self._views = None
        self._hold(self.core.add_rows(self.state, self._zeros(rows, steps), np.zeros(rows, np.int32)))

    def _zeros(self, rows: int, steps: int) -> Leaves:
        spec = self.spec.items()
        return {name: np.zeros((rows, steps, *leaf.shape), dtype_of(leaf.dtype)) for name, leaf in spec}

    def _warm_sample(self) -> None:
        number = self.layout.sample_batch_size
        self._draws.compile(number)
        if self.layout.priority_exponent is not None:
            none = np.zeros(number, np.int32)
            self._set(none, np.zeros(number, np.float32), np.zeros(number, bool))

    def _hold(self, state: CoreState) -> None:
        self.state = state
        self._views: dict[str, np.ndarray] | None = None
        self._draws.changed(state)
        if self.layout.independent:
            self._size = int(self.row_sizes().sum())
            nodes = state.tree.nodes
            self.has_items = bool((np.asarray(nodes) if self._on_host else nodes)[0] > 0)

    def _empty(self) -> CoreState:
        return self.core.init(self.spec)

    def _starts(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.layout.rows == 1:
            return np.zeros_like(indices), indices * self.layout.stride
        rows, items = np.divmod(indices.astype(np.int64), self.layout.items_per_row)
        return rows, items * self.layout.stride

    def _gather(self, indices: np.ndarray, how: Leaves, room: Room) -> dict[str, np.ndarray]:
        """Return what was drawn and how, in the arrays that `room` gives."""
        parts = self._parts(indices)
        shapes = {
            f"{part}/{name}": ((*steps.shape, *leaf.shape), dtype_of(leaf.dtype))
            for part, steps in parts.items()
            for name, leaf in self.spec.items()
        }
        arrays = room(shapes | {name: (array.shape, array.dtype) for name, array in how.items()})
        for name, array in how.items():
            arrays[name][...] = array
        fill = self._take if self._on_host else self._copy_gathered
        fill(indices, parts, arrays)
        return arrays

    def _parts(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return, for each part of a sample, the timesteps it is read from, counted over all rows."""
        if self.layout.items:
            return {"experience": indices}
        rows, slots = self._starts(indices)
        steps = (slots[:, None] + np.arange(self.layout.sequence_length)) % self.layout.time_axis
        steps += rows[:, None] * self.layout.time_axis
        if self.layout.flat:
            return {"experience/first": steps[:, 0], "experience/second": steps[:, 1]}
        return {"experience": steps}

    def _take(self, _: np.ndarray, parts: Leaves, arrays: dict[str, np.ndarray]) -> None:
        """Copy timesteps on the host, from the state's own memory."""
        if self._views is None:
            held = self.state.experience.items()
            self._views = {name: np.asarray(leaf).reshape(-1, *leaf.shape[2:]) for name, leaf in held}
        for part, steps in parts.items():
            for name, view in self._views.items():
                # `clip` since every step is there, and `raise` would go through one more copy.
                view.take(steps, axis=0, out=_as_stored(arrays[f"{part}/{name}"]), mode="clip")

    def _copy_gathered(self, indices: np.ndarray, parts: Leaves, arrays: dict[str, np.ndarray]) -> None:
        """Gather on the device, `[N, L, ...]`, and copy that."""
        gathered = unpack(self.core.gather(self.state, indices), self.spec)
        for place, (part, steps) in enumerate(parts.items()):
            for name, whole in gathered.items():
                arrays[f"{part}/{name}"][...] = whole if steps.ndim == 2 else whole[:, place]


def _as_stored(array: np.ndarray) -> np.ndarray:
    """Return an array as the core holds it: 64-bit values as two uint32."""
    return array.view(np.uint32).reshape(*array.shape, 2) if array.itemsize == 8 else array


def _importance_weights(probabilities: np.ndarray, beta: float) -> np.ndarray:
    """Return (P / min P) ** -beta `[N]`, so that the greatest weight is 1.

    Source: Schaul et al., "Prioritized Experience Replay", 2016, section 3.4.
    """
    return ((probabilities / probabilities.min()) ** -beta).astype(np.float32)
