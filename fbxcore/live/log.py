"""The log: every change to a buffer or vault, in order, on disk before anyone is told of it.

One thread writes. Whatever waits when it comes round is written together and synced once (group
commit), gets its sequence numbers in the order it was handed in, goes to the one subscriber in that
order, and only then may be acknowledged. A group that cannot be written leaves no trace: the segment is
cut back, the numbers are given to the next group, and each frame's writer gets the error.

Segments are files named by their first sequence number; a new one begins at `segment_bytes`.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fbxcore.errors import DamagedError, DiskFullError, FbxError, StorageError
from fbxcore.live.files import replace_file, sync_directory
from fbxcore.live.frames import Frame, read_segment

SEGMENT_BYTES = 64 << 20
_GROUP_BYTES = 32 << 20
_IOV_MAX = 512

Failed = Callable[[FbxError], None]


@dataclass
class Segment:
    """One file of the log, and what it holds."""

    path: Path
    first_sequence: int
    next_sequence: int
    end_position: int
    num_bytes: int


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
        self.id = _identify(directory)
        self.next_sequence = 1
        self.position = 0
        self.segments: list[Segment] = []
        self._on_durable = on_durable
        self._queue: queue.SimpleQueue[tuple[Frame, Failed] | None] = queue.SimpleQueue()
        self._file: int | None = None
        self._broken: StorageError | None = None
        self._lock = threading.Lock()  # over `segments` and `_file`, which `drop` touches from elsewhere
        self._thread: threading.Thread | None = None

    def replay(self) -> list[Frame]:
        """Return every intact frame on disk, oldest first, and cut off a torn tail.

        Raises:
            DamagedError: for a bad frame before the tail, or a missing segment.
        """
        paths = sorted(self.directory.glob("*.log"))
        frames: list[Frame] = []
        for path in paths:
            found, end = read_segment(path, is_last=path is paths[-1])
            self._check_continuity(path, frames, found)
            if end < path.stat().st_size:
                os.truncate(path, end)
            last = found[-1] if found else None
            first = int(path.stem)
            self.segments.append(
                Segment(path, first, last.sequence + 1 if last else first, last.end if last else 0, end)
            )
            frames += found
        if self.segments:
            self.next_sequence = self.segments[-1].next_sequence
        if frames:
            self.position = frames[-1].end
        return frames

    def start(self, *, next_sequence: int = 1, position: int = 0) -> None:
        """Begin to write, behind what was replayed and at least at what the views have applied."""
        if next_sequence > self.next_sequence:
            # The views are ahead: what is left of the log was lost with the power, or already dropped.
            for segment in self.segments:
                segment.path.unlink()
            self.segments.clear()
            self.next_sequence = next_sequence
        self.position = max(position, self.position)
        self._thread = threading.Thread(target=self._run, name=f"log-{self.directory.name}", daemon=True)
        self._thread.start()

    def append(self, frame: Frame, failed: Failed) -> None:
        """Hand in a frame from any thread; `on_durable` or `failed` will be called with it."""
        self._queue.put((frame, failed))

    def drop(self, *, below_sequence: int, below_position: int) -> int:
        """Delete leading segments whose frames all lie below both marks; return how many."""
        with self._lock:
            gone = []
            for segment in self.segments[:-1]:
                if segment.next_sequence > below_sequence or segment.end_position > below_position:
                    break
                gone.append(segment)
            del self.segments[: len(gone)]
        for segment in gone:
            segment.path.unlink()
        return len(gone)

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
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # The log's thread

    def _run(self) -> None:
        running = True
        while running:
            group, running = self._next_group()
            if group:
                self._commit(group)

    def _next_group(self) -> tuple[list[tuple[Frame, Failed]], bool]:
        group: list[tuple[Frame, Failed]] = []
        size = 0
        entry = self._queue.get()
        while entry is not None:
            group.append(entry)
            size += entry[0].num_bytes
            if size >= _GROUP_BYTES:
                return group, True
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return group, True
        return group, False

    def _commit(self, group: list[tuple[Frame, Failed]]) -> None:
        sequence, position = self.next_sequence, self.position
        for frame, _ in group:
            frame.sequence, frame.position = sequence, position
            sequence, position = sequence + 1, frame.end
        try:
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
            parts = [part for frame in frames for part in frame.parts()]
            written = _write_all(self._file, parts)
        except OSError as error:
            self._cut_back()
            raise _storage_error(error) from error
        if self.durability == "fsync":
            self._sync()
        with self._lock:
            segment.num_bytes += written
            segment.next_sequence, segment.end_position = frames[-1].sequence + 1, frames[-1].end

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            # After a failed sync the kernel may have dropped the pages: nothing more can be promised.
            self._cut_back()
            self._broken = StorageError(
                f"The log must reach the disk, got {os.strerror(error.errno)}. Restart once the disk works."
            )
            raise self._broken from error

    def _current_segment(self) -> Segment:
        if self.segments and self.segments[-1].num_bytes < self.segment_bytes:
            if self._file is None:
                self._file = os.open(self.segments[-1].path, os.O_WRONLY | os.O_APPEND)
            return self.segments[-1]
        return self._begin_segment()

    def _begin_segment(self) -> Segment:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        path = self.directory / f"{self.next_sequence:020d}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        sync_directory(self.directory)
        self.segments.append(Segment(path, self.next_sequence, self.next_sequence, self.position, 0))
        return self.segments[-1]

    def _cut_back(self) -> None:
        if self.segments and self._file is not None:
            os.ftruncate(self._file, self.segments[-1].num_bytes)

    def _check_continuity(self, path: Path, before: list[Frame], found: list[Frame]) -> None:
        expected = before[-1].sequence + 1 if before else int(path.stem)
        for frame in found:
            if frame.sequence != expected:
                raise DamagedError(
                    f"Log segment `{path.name}` must go on with frame {expected}, got {frame.sequence}. "
                    "Restore the missing segment from a backup.",
                    file=path.name,
                )
            expected += 1


def _identify(directory: Path) -> str:
    """Return the log's own id, made when its directory is."""
    path = directory / "log.json"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode({"format": 1, "id": uuid.uuid4().hex}))
    return msgspec.json.decode(path.read_bytes())["id"]


def _write_all(file: int, parts: list) -> int:
    total = 0
    for start in range(0, len(parts), _IOV_MAX):
        waiting = [memoryview(part) for part in parts[start : start + _IOV_MAX] if len(part)]
        while waiting:
            count = os.writev(file, waiting)
            total += count
            while waiting and count >= len(waiting[0]):
                count -= len(waiting.pop(0))
            if waiting and count:
                waiting[0] = waiting[0][count:]
    return total


def _storage_error(error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            "The disk must have room for the log, got none. Free some space; nothing was added."
        )
    return StorageError(f"The log must be writable, got {os.strerror(error.errno or 0)}.")
