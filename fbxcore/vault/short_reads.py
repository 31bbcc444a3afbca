"""Reads of few timesteps of one generation, by a reader that may stay open.

Chunks decoded before come from the cache. What is missing is asked of the store, until it has been, or now
would be, asked for so many chunks that learning where all of them lie costs no more; then they are read
straight from their files. So a reader that is opened for one window pays nothing for the others, and none
pays more than twice what it would have.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from fbxcore.errors import StorageError
from fbxcore.vault.chunk_cache import ChunkCache, Window
from fbxcore.vault.chunk_files import ChunkFiles

Load = Callable[[str, int, int, Any], Any]
"""Begins to read the timesteps `[start, stop)` of a leaf, in a batch; `result()` waits for `[B, t, ...]`."""

_CACHE_BYTES = 64 << 20
_SHORT_BYTES = 8 << 20
_SHORT_CHUNKS = 64
"""Reads of up to so much of each leaf go through the cache; longer ones would only flush it."""

_CHUNKS_BEFORE, _KEYS_A_CHUNK = 16, 16
"""In the time in which the store reads a chunk it tells of so many keys, after it has read so many others."""
_MOST_KEYS = 1 << 16
"""What it tells takes 1 KB a key for a moment, so of larger vaults nothing is learnt."""


class ShortReads:
    """The short reads of one generation; any thread may use it."""

    def __init__(
        self,
        chunks: Mapping[str, tuple[int, int]],
        length: int,
        num_keys: int,
        *,
        batch: Callable[[], AbstractContextManager],
        load: Load,
        learn: Callable[[], ChunkFiles],
    ):
        """Know of each leaf the timesteps of a chunk and the bytes of a timestep."""
        self._chunks, self._length = chunks, length
        self._batch, self._load, self._learn = batch, load, learn
        self._cache = ChunkCache(_CACHE_BYTES)
        self._files: ChunkFiles | None = None
        enough = _CHUNKS_BEFORE + num_keys // _KEYS_A_CHUNK
        self._enough = enough if num_keys <= _MOST_KEYS else math.inf
        self._asked = 0
        self._learning = threading.Lock()
        self._fits = length * sum(step_bytes for _, step_bytes in chunks.values()) <= _CACHE_BYTES

    def read(self, names: Sequence[str], rows: slice, steps: range) -> dict[str, np.ndarray] | None:
        """Return timesteps without a stride, or None if they are too many and the store must read them."""
        is_short = self._is_short(names, steps)
        if is_short or self._fits:
            self._consider(names, steps)
        if not (is_short or (self._fits and self._files is not None)):
            return None
        with self._batch() as batch:  # the leaves' chunks are looked up together
            begun = [(name, self._begin(name, steps, batch)) for name in names]
        return {name: window.take(rows) for name, window in begun}

    def _begin(self, name: str, steps: range, batch: Any) -> Window:
        size = self._chunks[name][0]

        def load(start: int, stop: int) -> Any:
            self._asked += (stop - start) // size
            return self._load(name, start, min(stop, self._length), batch)

        return Window(self._cache, name, size, steps.start, steps.stop, load, self._at_once)

    def _at_once(self, name: str, at: int) -> np.ndarray | None:
        """Return a chunk up to the length, if it can be read from its file."""
        chunk = None if self._files is None else self._files.read(name, at)
        left = self._length - at * self._chunks[name][0]
        return chunk if chunk is None or left >= chunk.shape[1] else chunk[:, :left].copy()

    def _is_short(self, names: Sequence[str], steps: range) -> bool:
        """Return whether those timesteps lie in few chunks, and small ones."""
        num_bytes = 0
        for name in names:
            size, step_bytes = self._chunks[name]
            chunks = self._num_chunks(name, steps)
            if chunks > _SHORT_CHUNKS:
                return False
            num_bytes += min(chunks * size, self._length) * step_bytes
        return num_bytes <= _SHORT_BYTES

    def _num_chunks(self, name: str, steps: range) -> int:
        size = self._chunks[name][0]
        return (steps.stop - 1) // size - steps.start // size + 1

    def _consider(self, names: Sequence[str], steps: range) -> None:
        """Learn where the chunks lie, if that pays; who reads meanwhile goes on as before."""
        if self._enough == math.inf:
            return
        wanted = sum(self._num_chunks(name, steps) for name in names)
        if self._asked + wanted > self._enough and self._learning.acquire(blocking=False):
            self._enough = math.inf  # the lock is kept: it is done once
            with contextlib.suppress(StorageError):  # the store says so too, of what cannot be read
                self._files = self._learn()
