"""A shuffled stream of windows, for training from more data than memory.

A window is `sequence_length` consecutive timesteps of one row; windows start every `period` timesteps, and
where a vault has segments of independent writers, none reaches from one into the next. An epoch gives each
window once, in an order that follows from the seed and the epoch's number alone.

Drawing windows one by one would decode a chunk for each. Instead the time axis is cut into blocks, the
blocks are shuffled, and a group of as many as memory allows is read at once, each block once; windows are
then drawn without replacement from the whole group, while the next group is read beside it. So a batch
mixes windows of all blocks of its group, and the reading is done as fast as in order. Windows that cross
the end of a block belong to it: the few timesteps behind it are read twice. A window lies in one piece in
its block, so taking it out is one copy of so many bytes, whatever the leaf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from fbxcore.errors import InvalidArgumentError
from fbxcore.spec import dtype_of, leaf_bytes
from fbxcore.types import Leaves
from fbxcore.vault.segments import borders_of
from fbxcore.vault.store_reader import VaultReader

_CHUNK_STEPS = 1024
_MOST_CHUNKS = 8
"""Of a block: longer ones would mix less and save little of the chunk that is read twice at their end."""
_MIN_BLOCKS = 16
"""Of a group, below which shuffling would be poor: blocks get shorter before groups get smaller."""


@dataclass(frozen=True)
class Windows:
    """A batch of windows."""

    leaves: dict[str, np.ndarray]  # [N, L, ...]
    rows: np.ndarray  # [N], where each lies …
    starts: np.ndarray  # [N], … and begins


@dataclass(frozen=True)
class _Group:
    """The windows of G blocks, shuffled; `places` counts the timesteps of their leaves `[G, B, t, ...]`."""

    leaves: dict[str, np.ndarray]  # [G * B * t], at each timestep the bytes of the window that starts there
    places: np.ndarray  # [W]
    rows: np.ndarray  # [W]
    starts: np.ndarray  # [W]


class WindowStream:
    """A vault's windows in random order, epoch after epoch, in bounded memory.

    Example:
        >>> stream = WindowStream(reader, sequence_length=32, batch_size=64)
        >>> for epoch in range(3):
        ...     for batch in stream.epoch(epoch):
        ...         train(batch.leaves["obs"])  # [64, 32, ...]
    """

    def __init__(
        self,
        reader: VaultReader,
        *,
        sequence_length: int,
        batch_size: int,
        period: int = 1,
        seed: int = 0,
        max_bytes: int = 256 << 20,
        leaves: Sequence[str] | None = None,
    ):
        """Plan a stream; nothing is read yet.

        Args:
            period: timesteps from the start of one window to the next.
            max_bytes: what the two groups may take, the one in use and the one being read. Besides come
                the batches that are in use, and some 20 MiB for the reader.
            leaves: names; None means all.

        Raises:
            InvalidArgumentError: if no window fits the vault, or no group fits the memory.
        """
        for name, value in (("sequence_length", sequence_length), ("batch_size", batch_size),
                            ("period", period)):  # fmt: skip
            if value < 1:
                raise InvalidArgumentError(f"`{name}` must be at least 1, got {value!r}.", loc=(name,))
        there = reader.length - reader.first
        if sequence_length > there:
            raise InvalidArgumentError(
                f"`sequence_length` must be at most the vault's {there} timesteps, got {sequence_length}.",
                loc=("sequence_length",),
            )
        self._reader, self._seed = reader, seed
        self._names = list(reader.spec) if leaves is None else list(leaves)
        self._length, self._batch, self._period = sequence_length, batch_size, period
        self._starts = (there - sequence_length) // period + 1  # in each row
        self._borders = borders_of(reader.segments(), reader.first, reader.length) - reader.first
        if not self.num_windows:
            raise InvalidArgumentError(
                f"`sequence_length` must fit one of the vault's segments, of {np.diff(self._borders).max()} "
                f"timesteps at most, got {sequence_length}.",
                loc=("sequence_length",),
            )
        self._plan(max_bytes)

    def _plan(self, max_bytes: int) -> None:
        """Choose how many windows of a row make a block, and how many blocks a group."""
        step = max(1, sum(leaf_bytes(self._reader.spec[name]) for name in self._names) * self._reader.rows)
        steps = max_bytes // (2 * _MIN_BLOCKS * step) - (self._length - self._period)
        if steps >= _CHUNK_STEPS:
            steps = min(steps // _CHUNK_STEPS, _MOST_CHUNKS) * _CHUNK_STEPS
        self._per_block = max(1, min(steps // self._period, self._starts))
        self._block_steps = (self._per_block - 1) * self._period + self._length
        self._per_group = max_bytes // (2 * self._block_steps * step)
        if self._per_group < 1:
            raise InvalidArgumentError(
                f"`max_bytes` must be at least {2 * self._block_steps * step}, two windows of each row, got "
                f"{max_bytes}.",
                loc=("max_bytes",),
            )

    @property
    def num_windows(self) -> int:
        """Windows of an epoch."""
        first = -(-self._borders[:-1] // self._period)
        last = (self._borders[1:] - self._length) // self._period
        return int(np.maximum(last - first + 1, 0).sum()) * self._reader.rows

    @property
    def num_batches(self) -> int:
        """Batches of an epoch; the last may be smaller."""
        return -(-self.num_windows // self._batch)

    def epoch(self, number: int = 0) -> Iterator[Windows]:
        """Yield each window once, in batches; equal numbers give equal batches."""
        draw = np.random.default_rng([self._seed, number])
        blocks = draw.permutation(-(-self._starts // self._per_block))
        groups = [blocks[at : at + self._per_group] for at in range(0, len(blocks), self._per_group)]
        seeds = draw.integers(1 << 62, size=len(groups))
        places = [self._empty(len(groups[0])) for _ in groups[:2]]  # used in turn, never allocated again
        with ThreadPoolExecutor(1, "vault-stream") as thread:
            coming = thread.submit(self._read, places[0], groups[0], seeds[0])
            left: list[Windows] = []
            for at in range(len(groups)):
                group = coming.result()
                if at + 1 < len(groups):
                    place = places[(at + 1) % 2]
                    coming = thread.submit(self._read, place, groups[at + 1], seeds[at + 1])
                left = yield from self._batches(group, left, is_last=at + 1 == len(groups))
            if left:
                yield _joined(left)  # the last group had no window

    def _batches(
        self, group: _Group, left: list[Windows], *, is_last: bool
    ) -> Iterator[Windows]:  # and returns what is left for the first batch of the next group
        at, total = 0, len(group.places)
        while at < total:
            wanted = self._batch - sum(len(part.starts) for part in left)
            left.append(self._gather(group, slice(at, at + wanted)))
            at += wanted
            if at <= total or is_last:
                yield _joined(left)
                left = []
        return left

    def _empty(self, blocks: int) -> dict[str, np.ndarray]:
        """Return room for the blocks of a group."""
        shape, spec = (blocks, self._reader.rows, self._block_steps), self._reader.spec
        return {
            name: np.empty((*shape, *spec[name].shape), dtype_of(spec[name].dtype)) for name in self._names
        }

    def _read(self, room: Leaves, blocks: np.ndarray, seed: int) -> _Group:
        """Read the blocks of a group and shuffle its windows."""
        firsts = self._reader.first + blocks * self._per_block * self._period
        self._reader.read_blocks(room, firsts.tolist())
        rows, each = self._reader.rows, self._per_block
        block, row, window = np.unravel_index(self._shuffled(blocks, seed), (len(blocks), rows, each))
        start = window * self._period
        places = (block * rows + row) * self._block_steps + start
        leaves = {name: _windows(leaf, self._length) for name, leaf in room.items()}
        return _Group(leaves, places, row, firsts[block] + start)

    def _shuffled(self, blocks: np.ndarray, seed: int) -> np.ndarray:
        """Return the numbers `(block * B + row) * per_block + window` of a group's windows, shuffled."""
        rows, each = self._reader.rows, self._per_block
        windows = np.arange(len(blocks) * rows * each)
        in_row = blocks[windows // (rows * each)] * each + windows % each
        starts = in_row * self._period
        runs = [np.searchsorted(self._borders, at, "right") for at in (starts, starts + self._length - 1)]
        is_whole = (in_row < self._starts) & (runs[0] == runs[1])
        return np.random.default_rng(seed).permutation(windows[is_whole])

    def _gather(self, group: _Group, some: slice) -> Windows:
        places, spec = group.places[some], self._reader.spec
        leaves = {}
        for name, windows in group.leaves.items():
            taken = windows[places].view(dtype_of(spec[name].dtype))
            leaves[name] = taken.reshape(len(places), self._length, *spec[name].shape)
        return Windows(leaves, group.rows[some], group.starts[some])


def _windows(leaf: np.ndarray, length: int) -> np.ndarray:
    """Return at each timestep of a leaf `[G, B, t, ...]` the bytes of the `length` timesteps from there.

    NumPy then copies a window as one element, several times faster than by an index for each timestep.
    """
    steps, step_bytes = math.prod(leaf.shape[:3]), math.prod(leaf.shape[3:]) * leaf.itemsize
    window = np.dtype((np.void, length * step_bytes))
    return np.ndarray((steps - length + 1,), window, leaf.reshape(-1).view(np.uint8), 0, (step_bytes,))


def _joined(parts: list[Windows]) -> Windows:
    if len(parts) == 1:
        return parts[0]
    leaves: Leaves = {name: np.concatenate([part.leaves[name] for part in parts]) for name in parts[0].leaves}
    return Windows(
        leaves, np.concatenate([part.rows for part in parts]), np.concatenate([part.starts for part in parts])
    )
