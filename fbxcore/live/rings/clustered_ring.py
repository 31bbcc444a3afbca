"""The ring of a clustered buffer: a ring of items for each cluster, in host memory.

Items lie in the log in the order they came, and each says in one of its leaves which cluster it is of. A
sample draws as `fbxcore.buffers.clustered_buffer` does, with the same key the same items. A cluster that is
seen seldom holds old items for long, so the log begins from a base (`bases`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from fbxcore.buffers import clustered_buffer
from fbxcore.buffers.clustered_buffer import ClusteredBufferState
from fbxcore.buffers.layout import Layout, bucket_of
from fbxcore.errors import NotEnoughDataError
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.rings.padding import changed_ranges
from fbxcore.live.rings.ring import Room, new_room
from fbxcore.spec import dtype_of, timestep_bytes
from fbxcore.types import Leaves, Spec


class ClusteredRing:
    """Items in clusters, with counters; not thread-safe, see `Engine`."""

    def __init__(self, layout: Layout, spec: Spec):
        self.layout = layout
        self.spec = spec
        self.counters = Counters()
        self.timestep_bytes = timestep_bytes(spec)
        self._length = layout.time_axis // layout.num_clusters  # slots of a cluster
        self._arrays = {
            name: np.zeros((layout.time_axis, *leaf.shape), dtype_of(leaf.dtype))
            for name, leaf in spec.items()
        }
        self._slots = jnp.arange(layout.time_axis, dtype=jnp.int32).reshape(layout.num_clusters, -1)
        self._clear()

    def _clear(self) -> None:
        self._given = np.zeros(self.layout.num_clusters, np.int64)  # items each cluster was given
        self._sizes: dict[int, int] = {}  # by the positions behind the blocks of the last add

    # Counts

    @property
    def position(self) -> int:
        """Items added since the last reset."""
        return self.counters.position - self.counters.ring_start

    @property
    def held(self) -> int:
        """Items held, over all clusters."""
        return int(self.cluster_sizes().sum())

    @property
    def size(self) -> int:
        """Items held, over all clusters."""
        return self.held

    @property
    def needed(self) -> int:
        """Items missing before one may be sampled."""
        return max(0, self.layout.min_time_axis - self.held)

    def size_at(self, position: int) -> int:
        """Items held behind a block of the last add."""
        return self._sizes[position]

    def cluster_sizes(self) -> np.ndarray:
        """Return the items each cluster holds, int64 `[C]`."""
        return np.minimum(self._given, self._length)

    # Changes

    def add(self, blocks: list[Leaves]) -> None:
        """Put the items of blocks of leaves `[1, K, ...]` into their clusters, one block after the other."""
        self._sizes.clear()
        for block in blocks:
            clusters = block[self.layout.cluster_leaf][0].astype(np.int64)
            order = np.argsort(clusters, kind="stable")
            ordered = clusters[order]
            rank = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
            counts = np.bincount(clusters, minlength=self.layout.num_clusters)
            stays = rank >= counts[ordered] - self._length  # the newest, where there are more than fit
            order, ordered, rank = order[stays], ordered[stays], rank[stays]
            slots = ordered * self._length + (self._given[ordered] + rank) % self._length
            for name, leaf in block.items():
                self._arrays[name][slots] = leaf[0, order]
            self._given += counts
            self.counters = replace(self.counters, position=self.counters.position + len(clusters))
            self._sizes[self.position] = self.held

    def skip_to(self, position: int) -> None:
        """Go on at a later position, as after a reset there: what lies between was never seen."""
        if position > self.counters.position:
            self.counters = replace(self.counters, position=position)
            self.reset()

    def reset(self) -> None:
        """Forget every item; positions go on."""
        self.counters = self.counters.after_reset()
        self._clear()

    # Reading

    def is_quick(self, _: int) -> bool:
        """Whether sampling that many takes no compiling and no more than some 100 µs: not told of any."""
        return False

    def sample(
        self,
        num_items: int,
        seed: int | None = None,
        beta: float | None = None,  # noqa: ARG002
        room: Room = new_room,
    ) -> tuple[dict[str, np.ndarray], int]:
        """Return a batch, `experience/…`, `clusters`, `probabilities`, and its seed, fresh unless given.

        Args:
            room: gives the arrays to fill.

        Raises:
            NotEnoughDataError: if there are too few items.
        """
        if self.needed:
            raise NotEnoughDataError(
                f"The buffer must hold {self.layout.min_time_axis} items to be sampled, got {self.held}. "
                f"Add {self.needed} more.",
                needed=self.needed,
            )
        seed = secrets.randbits(63) if seed is None else seed
        slots, clusters, probabilities = self._draw(num_items, seed)
        how = {"clusters": clusters, "probabilities": probabilities}
        shapes = {
            f"experience/{name}": ((num_items, *leaf.shape[1:]), leaf.dtype)
            for name, leaf in self._arrays.items()
        }
        arrays = room(shapes | {name: (array.shape, array.dtype) for name, array in how.items()})
        for name, array in how.items():
            arrays[name][...] = array
        for name, leaf in self._arrays.items():
            leaf.take(slots, axis=0, out=arrays[f"experience/{name}"], mode="clip")  # all are there
        return arrays, seed

    def _draw(self, num_items: int, seed: int) -> list[np.ndarray]:
        """Return slots, clusters and probabilities `[N]`."""
        state = ClusteredBufferState(
            experience=self._slots,
            write_index=jnp.asarray(self._given % self._length, jnp.int32),
            size=jnp.asarray(self.cluster_sizes(), jnp.int32),
        )
        key = jnp.array([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32)
        drawn = clustered_buffer.sample(state, key, bucket_of(num_items))
        return [np.asarray(x)[:num_items] for x in (drawn.experience, drawn.clusters, drawn.probabilities)]

    # Whole state

    def bookkeeping(self) -> dict[str, np.ndarray]:
        """Return all of the state that is neither experience nor a counter, as copies."""
        return {"given": self._given.copy(), "size": self.cluster_sizes()}

    def whole(self) -> tuple[Counters, dict[str, np.ndarray]]:
        """Return all of the state but the experience."""
        return self.counters, self.bookkeeping()

    def step_shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Return shape `[C * T, ...]` and dtype of all items, by leaf."""
        return {name: (leaf.shape, leaf.dtype) for name, leaf in self._arrays.items()}

    def copy_steps(self, name: str, start: int, stop: int, into: np.ndarray) -> None:
        """Copy a leaf's items `[start, stop)`, counted over all clusters, into an array."""
        into[...] = self._arrays[name][start:stop]

    def mark(self) -> tuple[int, np.ndarray]:
        """Return what tells later which items were written since: the epoch, and each cluster's count."""
        return self.counters.epoch, self._given.copy()

    def changed_since(self, mark: tuple[int, np.ndarray]) -> list[tuple[int, int]]:
        """Return the items written since a mark as ranges, counted over all clusters."""
        (epoch, before), (now, after) = mark, self.mark()
        return changed_ranges(before if epoch == now else np.zeros_like(after), after, self._length)

    def restore(self, experience: Leaves, bookkeeping: Leaves, counters: Counters) -> None:
        """Take over a whole state; experience is `[1, C * T, ...]` by slot."""
        self._clear()
        self.counters = counters
        self._given = np.array(bookkeeping["given"], np.int64)
        self._arrays = {
            name: np.array(leaf).reshape(self._arrays[name].shape) for name, leaf in experience.items()
        }

    def warm_ups(self) -> list[Callable[[Any], None]]:
        """Return a call that compiles the default sample and changes nothing."""
        return [ClusteredRing._warm_sample]

    def _warm_sample(self) -> None:
        self._draw(self.layout.sample_batch_size, 0)
