"""Decoded chunks of recent reads, so that a short window of an open reader costs a copy and little else.

tensorstore keeps decoded chunks too, but hands them over from threads of its own, and that takes longer
than copying a window. A reader shows one generation, so what is kept here never goes stale.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Load = Callable[[int, int], Any]
"""Begins to read the timesteps `[start, stop)` of a leaf; `result()` waits for `[B, t, ...]`."""
AtOnce = Callable[[str, int], np.ndarray | None]
"""Returns a chunk of a leaf if it is to be had without waiting for another thread."""


_ALIGNMENT = 64
_SMALL_BYTES = 64 << 10


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return a new array that JAX can take over without a copy, where that is worth the trouble."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _SMALL_BYTES:
        return np.empty(shape, dtype)
    room = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    skip = -room.__array_interface__["data"][0] % _ALIGNMENT
    return room[skip : skip + num_bytes].view(dtype).reshape(shape)


class ChunkCache:
    """The chunks used last, up to a number of bytes; any thread may use it."""

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._chunks: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, chunks: range) -> list[np.ndarray | None]:
        """Return those chunks `[B, chunk_steps, ...]` of a leaf that are here, None for the others."""
        with self._lock:
            found = [self._chunks.get((name, at)) for at in chunks]
            for at, chunk in zip(chunks, found, strict=True):
                if chunk is not None:
                    self._chunks.move_to_end((name, at))
        return found

    def put(self, name: str, at: int, chunk: np.ndarray) -> None:
        """Keep a chunk, and drop those that were not used for longest."""
        chunk.setflags(write=False)
        with self._lock:
            before = self._chunks.pop((name, at), None)
            self._chunks[name, at] = chunk
            self.num_bytes += chunk.nbytes - (0 if before is None else before.nbytes)
            while self.num_bytes > self.max_bytes:
                self.num_bytes -= self._chunks.popitem(last=False)[1].nbytes


class Window:
    """The timesteps `[start, stop)` of a leaf on their way: chunks at hand, and runs that are being read."""

    def __init__(
        self,
        cache: ChunkCache,
        name: str,
        chunk_steps: int,
        start: int,
        stop: int,
        load: Load,
        at_once: AtOnce = lambda *_: None,
    ):
        """Begin to read what the cache lacks and is not to be had at once; neighbours are read together."""
        self._cache, self._name, self._steps = cache, name, chunk_steps
        self._chunks = range(start // chunk_steps, -(-stop // chunk_steps))
        self._cut = start - self._chunks.start * chunk_steps, stop - start
        self._found = cache.get(name, self._chunks)
        for at, chunk in zip(self._chunks, tuple(self._found), strict=True):
            if chunk is None and (chunk := at_once(name, at)) is not None:
                self._place(at, chunk)
        self._loading = [(run, load(run.start * chunk_steps, run.stop * chunk_steps)) for run in self._gaps()]

    def take(self, rows: slice) -> np.ndarray:
        """Wait, and return a copy `[B, t, ...]` of some of the rows."""
        for run, loading in self._loading:
            self._keep(run, loading.result())
        skip, length = self._cut
        pieces = [chunk[rows] for chunk in self._found]
        pieces[-1] = pieces[-1][:, : skip + length - (len(pieces) - 1) * self._steps]
        pieces[0] = pieces[0][:, skip:]
        out = empty((pieces[0].shape[0], length, *pieces[0].shape[2:]), pieces[0].dtype)
        return np.concatenate(pieces, axis=1, out=out)

    def _gaps(self) -> list[range]:
        """Return the runs of chunks that are missing."""
        runs: list[range] = []
        for at, chunk in zip(self._chunks, self._found, strict=True):
            if chunk is None and runs and runs[-1].stop == at:
                runs[-1] = range(runs[-1].start, at + 1)
            elif chunk is None:
                runs.append(range(at, at + 1))
        return runs

    def _keep(self, run: range, read: np.ndarray) -> None:
        for at in run:
            skip = (at - run.start) * self._steps
            chunk = read[:, skip : skip + self._steps]
            self._place(at, chunk.copy() if len(run) > 1 else chunk)  # a view would keep the whole run alive

    def _place(self, at: int, chunk: np.ndarray) -> None:
        self._cache.put(self._name, at, chunk)
        self._found[at - self._chunks.start] = chunk
