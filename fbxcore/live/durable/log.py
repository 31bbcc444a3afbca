"""The log: every change to a buffer or vault, in order, on disk before anyone is told of it.

One thread writes. Whatever waits when it comes round is written together and synced once (group
commit), gets its sequence numbers in the order it was handed in, goes to the one subscriber in that
order, and only then may be acknowledged. A group that cannot be written leaves no trace: the segment is
cut back, the numbers are given to the next group, and each frame's writer gets the error.

Segments are files named by their first sequence number (`segments`); a new one begins at `segment_bytes`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from fbxcore.errors import DiskFullError, FbxError, StorageError
from fbxcore.live.durable.frames import Frame
from fbxcore.live.durable.segments import Segment, identify, read_segments, sync_segments, write_all

SEGMENT_BYTES = 64 << 20
_GROUP_BYTES = 32 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")
Failed = Callable[[FbxError], None]
Entry = tuple[Frame, Failed] | Callable[[], None] | None


class Log:
    """An append-only, checksummed log in a directory.

    Args:
        on_durable: called in the log's thread with each frame, in sequence order, once it is on disk.
        durability: `fsync` survives power loss, `os` survives kill -9, `none` keeps nothing.
    """

    def __init__(
        self,
        directory: Path,
        on_durable: Callable[[Frame], None],
        *,
        durability: str = "fsync",
        segment_bytes: int = SEGMENT_BYTES,
    ):
        self.directory = directory
        self.durability = durability
        self.segment_bytes = segment_bytes
        self.id = identify(directory)
        self.next_sequence = 1
        self.position = 0
        self.written_bytes = 0  # since the start, for whoever wants to know how much is new
        self.segments: list[Segment] = []
        self._on_durable = on_durable
        self._queue: queue.SimpleQueue[Entry] = queue.SimpleQueue()
        self._file: int | None = None
        self._broken: StorageError | None = None
        self._is_gap = False  # whether the next frame does not follow the last segment's
        self._lock = threading.Lock()  # over `segments` and `_file`, which `drop` touches from elsewhere
        self._still = threading.Lock()  # held while a group is written, and while segments go
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Hold the log as it is: nothing is written or acknowledged, and no segment goes."""
        with self._still:
            yield

    def replay(
        self, *, covered: int = 0, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> Iterator[Frame]:
        """Yield every intact frame on disk, oldest first, and cut off a torn tail; to be read to its end.

        Args:
            covered: the last frame that the views hold without the log; up to there frames may be missing.
            progress: told how many bytes of how many have been read.

        Raises:
            DamagedError: for a bad frame before the tail, or a missing segment.
        """
        for segment, frames in read_segments(self.directory, covered, progress):
            self.segments.append(segment)
            self.next_sequence = segment.next_sequence
            for frame in frames:
                self.position = frame.end
                yield frame

    def start(self, *, next_sequence: int = 1, position: int = 0) -> None:
        """Begin to write, behind what was replayed and at least at what the views have applied."""
        if next_sequence > self.next_sequence:
            # The views are ahead: the end of the log was lost. What is left of it may hold experience.
            self.next_sequence, self._is_gap = next_sequence, True
        self.position = max(position, self.position)
        self._thread = threading.Thread(target=self._run, name=f"log-{self.directory.name}", daemon=True)
        self._thread.start()

    def append(self, frame: Frame, failed: Failed) -> None:
        """Hand in a frame from any thread; `on_durable` or `failed` will be called with it."""
        self._queue.put((frame, failed))

    def drop(self, *, below_sequence: int, below_position: int) -> int:
        """Delete leading segments whose frames all lie below both marks; return how many."""
        with self._still, self._lock:
            gone = []
            for segment in self.segments[:-1]:
                if segment.next_sequence > below_sequence or segment.end_position > below_position:
                    break
                gone.append(segment)
            del self.segments[: len(gone)]
            for segment in gone:
                segment.path.unlink()
        return len(gone)

    def set_durability(self, durability: str) -> Future[int]:
        """Keep frames otherwise from the next one on; the future resolves to the last sequence before it.

        With `fsync` all that was written before is synced first.
        """
        return self._do(lambda: self._set_durability(durability))

    def remove_segments(self) -> None:
        """Delete what was written, which a log without durability does not need."""
        with self._still, self._lock:
            self._close_file()
            for segment in self.segments:
                segment.path.unlink(missing_ok=True)
            self.segments.clear()

    def sync(self) -> None:
        """Make what was written so far survive a power loss, which `os` does not do by itself."""
        if self.durability == "os":
            with self._lock:
                segments = list(self.segments)
            sync_segments(segments)

    @property
    def num_bytes(self) -> int:
        """Bytes of all segments."""
        with self._lock:
            return sum(segment.num_bytes for segment in self.segments)

    def close(self) -> None:
        """Write what was handed in, then stop the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._close_file()

    # The log's thread

    def _run(self) -> None:
        running = True
        while running:
            group, follows = self._next_group()
            if group:
                self._commit(group)
            if callable(follows):
                follows()
            running = follows is not None

    def _next_group(self) -> tuple[list[tuple[Frame, Failed]], Entry]:
        """Return the frames that wait, and what else comes behind them: a call, None to stop, or nothing."""
        group: list[tuple[Frame, Failed]] = []
        size = 0
        entry = self._queue.get()
        while isinstance(entry, tuple):
            group.append(entry)
            size += entry[0].num_bytes
            if size >= _GROUP_BYTES or self._queue.empty():
                return group, _nothing
            entry = self._queue.get()
        return group, entry

    def _do(self, call: Callable[[], T]) -> Future[T]:
        """Make a call in the log's thread, behind the frames handed in so far."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except OSError as error:
                future.set_exception(error if isinstance(error, FbxError) else _storage_error(error))

        self._queue.put(run)
        return future

    def _set_durability(self, durability: str) -> int:
        if durability == "fsync":
            self.sync()
        self._is_gap = self._is_gap or self.durability == "none"
        self.durability = durability
        return self.next_sequence - 1

    def _commit(self, group: list[tuple[Frame, Failed]]) -> None:
        sequence, position = self.next_sequence, self.position
        for frame, _ in group:
            frame.sequence, frame.position = sequence, position
            sequence, position = sequence + 1, frame.end
        try:
            with self._still:
                self._write([frame for frame, _ in group])
        except StorageError as error:
            for _, failed in group:
                failed(error)
            return
        self.next_sequence, self.position = sequence, position
        for frame, _ in group:
            self._on_durable(frame)

    def _write(self, frames: list[Frame]) -> None:
        if self.durability == "none":
            return
        if self._broken is not None:
            raise self._broken
        try:
            with self._lock:
                segment = self._current_segment()
            written = write_all(self._file, [part for frame in frames for part in frame.parts()])
            if self.durability == "fsync":
                self._sync()
        except OSError as error:
            self._cut_back()
            raise (error if isinstance(error, StorageError) else _storage_error(error)) from error
        self.written_bytes += written
        with self._lock:
            segment.num_bytes += written
            segment.next_sequence, segment.end_position = frames[-1].sequence + 1, frames[-1].end

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            if error.errno in _FULL:
                raise  # what did not fit is cut off, and what was synced before still is
            # After a failed sync the kernel may have dropped the pages: nothing more can be promised.
            self._break(error)
            raise self._broken from error

    def _current_segment(self) -> Segment:
        if self.segments and self.segments[-1].num_bytes < self.segment_bytes and not self._is_gap:
            if self._file is None:
                self._file = os.open(self.segments[-1].path, os.O_WRONLY | os.O_APPEND)
            return self.segments[-1]
        self._close_file()
        segment, self._file = Segment.begin(self.directory, self.next_sequence, self.position)
        self.segments.append(segment)
        self._is_gap = False
        return segment

    def _cut_back(self) -> None:
        """Take away what of a refused group was written."""
        try:
            if self._file is not None:
                os.ftruncate(self._file, self.segments[-1].num_bytes)
        except OSError as error:  # what comes next would stand behind half a frame
            self._break(error)

    def _break(self, error: OSError) -> None:
        self._broken = StorageError(
            f"The log must reach the disk, got {os.strerror(error.errno or 0)}. Restart once the disk works."
        )

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _nothing() -> None:
    """What follows a group behind which nothing waits."""


def _storage_error(error: OSError) -> StorageError:
    if error.errno in _FULL:
        return DiskFullError(
            "The disk must have room for the log, got none. Free some space; nothing was added."
        )
    return StorageError(f"The log must be writable, got {os.strerror(error.errno or 0)}.")
