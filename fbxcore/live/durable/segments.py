"""The files of a log: segments named by their first sequence number, and the log's own id."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fbxcore.errors import DamagedError
from fbxcore.live.durable.files import replace_file, seal, sync_directory, unseal
from fbxcore.live.durable.frames import Frame, read_segment

_FORMAT = 2
_IOV_MAX = 512


@dataclass
class Segment:
    """One file of the log, and what it holds."""

    path: Path
    first_sequence: int
    next_sequence: int
    end_position: int
    num_bytes: int

    @staticmethod
    def begin(directory: Path, sequence: int, position: int) -> tuple[Segment, int]:
        """Make an empty segment; return it and its open file."""
        path = directory / f"{sequence:020d}.log"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            sync_directory(directory)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        return Segment(path, sequence, sequence, position, 0), file


def read_segments(
    directory: Path, covered: int, progress: Callable[[int, int], None]
) -> Iterator[tuple[Segment, Iterator[Frame]]]:
    """Yield each segment of a log with its frames, one segment in memory at a time.

    A torn tail is cut off. Progress is told in bytes, as the frames are taken.

    Args:
        covered: the last frame that the views hold without the log; up to there frames may be missing.

    Raises:
        DamagedError: for a bad frame before the tail, or a missing segment.
    """
    paths = sorted(directory.glob("*.log"))
    total, done = sum(path.stat().st_size for path in paths), 0
    expected, position = None, 0
    for path in paths:
        frames, end = read_segment(path, is_last=path is paths[-1])
        first = int(path.stem)
        if expected is None or first <= covered + 1:
            expected = max(first, expected or 0)
        expected = _check_continuity(path, expected, frames)
        if end < path.stat().st_size:
            os.truncate(path, end)
        position = frames[-1].end if frames else position
        segment = Segment(path, first, expected if frames else first, position, end)
        yield segment, _counted(frames, end, done, total, progress)
        done += end


def _counted(
    frames: list[Frame], size: int, before: int, total: int, progress: Callable[[int, int], None]
) -> Iterator[Frame]:
    """Yield frames, telling progress as if they were of equal size, some hundred times a segment."""
    step = max(1, len(frames) // 100)
    for at, frame in enumerate(frames, 1):
        yield frame
        if at % step == 0:
            progress(before + size * at // len(frames), total)


def _check_continuity(path: Path, expected: int, frames: list[Frame]) -> int:
    """Return the sequence number that comes behind a segment's frames."""
    for frame in frames:
        if frame.sequence != expected:
            raise DamagedError(
                f"Log segment `{path.name}` must go on with frame {expected}, got {frame.sequence}. "
                "Restore the missing segment from a backup.",
                file=path.name,
            )
        expected += 1
    return expected


def sync_segments(segments: list[Segment]) -> None:
    """Make segments survive a power loss; those that were dropped meanwhile need not."""
    for segment in segments:
        try:
            file = os.open(segment.path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fdatasync(file)
        finally:
            os.close(file)


def identify(directory: Path) -> str:
    """Return the log's own id, made when its directory is.

    Raises:
        DamagedError: if the id was lost or changed: what the vault holds of the log is told by it.
    """
    path = directory / "log.json"
    if not path.exists():
        if any(directory.glob("*.log")):
            raise DamagedError(
                f"A log with segments must have its `{path.name}`, got none. Restore it from a backup.",
                file=path.name,
            )
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, seal({"format": _FORMAT, "id": uuid.uuid4().hex}))
    found = unseal(path)
    if set(found) != {"format", "id"} or found["format"] not in (1, _FORMAT):
        raise DamagedError(
            f"`{path.name}` must be of format {_FORMAT}, got {found!r:.80}. Start the version that wrote it, "
            "or restore it from a backup.",
            file=path.name,
        )
    return found["id"]


def write_all(file: int, parts: list) -> int:
    """Write all parts, whatever the kernel takes at a time; return how many bytes that were."""
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
