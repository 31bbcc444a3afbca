"""A frame: one change to a buffer or vault, as it lies in the log.

    magic  kind  steps  meta length  body length  sequence  position  crc32 | meta | body

All integers are little-endian. `sequence` counts frames from 1; `position` is how many timesteps per row
the log held before this frame, and `steps` how many it adds. `meta` is msgpack, `body` the leaves of the
spec in sorted order, C-contiguous, one after the other. The checksum covers header, meta and body.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fbxcore.errors import DamagedError
from fbxcore.spec import dtype_of, leaf_bytes, timestep_bytes
from fbxcore.types import Leaves, Spec

MAGIC = b"FDL1"
_HEADER = struct.Struct("<4sB3xIIQQQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
_SMALL_BYTES = 16 << 10  # up to which copying takes less time than making views


class Kind(IntEnum):
    """What a frame changes."""

    ADD = 1
    PRIORITIES = 2
    TAKE = 3
    CUT = 4
    RESET = 5
    SAMPLED = 6
    EPISODE = 7


_KINDS = frozenset(Kind)


@dataclass
class Frame:
    """One entry of a log; `sequence` and `position` are given when it is written."""

    kind: Kind
    meta: dict[str, Any] = field(default_factory=dict)
    body: Sequence[bytes | memoryview] = ()
    steps: int = 0
    sequence: int = 0
    position: int = 0
    done: Callable[[Any], None] | None = None  # told the answer, or the error
    read: Callable[[Any, np.ndarray], None] | None = None  # given a queue's ring and the slots taken

    @property
    def end(self) -> int:
        """Timesteps per row once this frame is applied."""
        return self.position + self.steps

    @property
    def num_bytes(self) -> int:
        """Bytes of the body."""
        return sum(map(len, self.body))

    def parts(self) -> list[bytes | memoryview]:
        """Return what is written, header first."""
        meta = msgspec.msgpack.encode(self.meta)
        header = _HEADER.pack(
            MAGIC, self.kind, self.steps, len(meta), self.num_bytes, self.sequence, self.position
        )
        crc = zlib.crc32(meta, zlib.crc32(header))
        for part in self.body:
            crc = zlib.crc32(part, crc)
        return [header + _CRC.pack(crc) + meta, *self.body]


def bytes_of(spec: Spec, leaves: Leaves) -> list[bytes | memoryview]:
    """Return the canonical body of checked leaves, in one piece if it is small, or a view of each.

    What the caller could still change is copied.
    """
    if sum(leaf.nbytes for leaf in leaves.values()) <= _SMALL_BYTES:
        return [b"".join([leaves[name].tobytes() for name in spec])]
    return [memoryview(_settled(leaves[name]).reshape(-1).view(np.uint8)) for name in spec]


def _settled(leaf: np.ndarray) -> np.ndarray:
    """Return an array that stays as it is: a body waits for its commit long after it was acknowledged."""
    owner = leaf
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return leaf.copy() if leaf.flags.writeable or owner.flags.writeable else leaf


def leaves_of(spec: Spec, frame: Frame, rows: int) -> dict[str, np.ndarray]:
    """Return the leaves `[B, K, ...]` of an add frame as read-only views of its body."""
    leaves, start = {}, 0
    for place, (name, leaf) in enumerate(spec.items()):
        dtype, count = dtype_of(leaf.dtype), rows * frame.steps * math.prod(leaf.shape)
        part, at = (frame.body[0], start) if len(frame.body) == 1 else (frame.body[place], 0)
        leaves[name] = np.frombuffer(part, dtype, count, at).reshape(rows, frame.steps, *leaf.shape)
        start += count * dtype.itemsize
    return leaves


def stacked_leaves(spec: Spec, frames: Sequence[Frame]) -> dict[str, np.ndarray]:
    """Return the leaves `[N, K, ...]` of N add frames of one row and of K timesteps each."""
    steps = frames[0].steps
    whole = np.frombuffer(b"".join([part for frame in frames for part in frame.body]), np.uint8)
    whole = whole.reshape(len(frames), steps * timestep_bytes(spec))
    leaves, start = {}, 0
    for name, leaf in spec.items():
        stop = start + steps * leaf_bytes(leaf)
        parts = whole[:, start:stop].view(dtype_of(leaf.dtype))
        leaves[name] = parts.reshape(len(frames), steps, *leaf.shape)
        start = stop
    return leaves


class NewerError(DamagedError):
    """A whole frame that this version cannot read."""

    code = "newer_version"


class TornError(Exception):
    """No whole frame at that offset of a segment."""

    def __init__(self, offset: int, reason: str):
        super().__init__(reason)
        self.offset = offset


def frame_at(data: memoryview, offset: int) -> tuple[Frame, int]:
    """Return the frame that starts at `offset` and the offset behind it.

    Raises:
        TornError: if the bytes there are not one whole, intact frame.
        NewerError: if they are one, of a kind that this version does not know.
    """
    body_start = offset + HEADER_BYTES
    if body_start > len(data):
        raise TornError(offset, "the header is cut short")
    magic, kind, steps, meta_length, body_length, sequence, position = _HEADER.unpack_from(data, offset)
    end = body_start + meta_length + body_length
    if magic != MAGIC or end > len(data):
        raise TornError(offset, "the frame is cut short" if magic == MAGIC else "no frame begins here")
    (stated,) = _CRC.unpack_from(data, offset + _HEADER.size)
    crc = zlib.crc32(data[body_start:end], zlib.crc32(data[offset : offset + _HEADER.size]))
    if crc != stated:
        raise TornError(offset, "the checksum differs")
    if kind not in _KINDS:
        raise NewerError(f"frame {sequence} of kind {kind} at offset {offset}", offset=offset)
    meta = msgspec.msgpack.decode(data[body_start : body_start + meta_length])
    body = (data[body_start + meta_length : end],) if body_length else ()
    return Frame(Kind(kind), meta, body, steps, sequence, position), end


def read_segment(path: Path, *, is_last: bool) -> tuple[list[Frame], int]:
    """Return the intact frames of a segment and the offset at which they end.

    Only the tail of the last segment may be torn: that is what a crash leaves of frames nobody was told of.

    Raises:
        DamagedError: for a bad frame with good ones behind it, or in an earlier segment; names the
            file and the offset. A frame of a kind that a newer version wrote is one wherever it is.
    """
    data = memoryview(path.read_bytes())
    frames: list[Frame] = []
    offset = 0
    while offset < len(data):
        try:
            frame, offset = frame_at(data, offset)
        except TornError as torn:
            if not is_last or _is_followed(data, torn.offset + 1):
                raise DamagedError(
                    f"Log segment `{path.name}` must be intact, got {torn} at offset {torn.offset}. "
                    "Restore it from a backup.",
                    file=path.name,
                    offset=torn.offset,
                ) from torn
            break
        except NewerError as newer:
            raise NewerError(
                f"Log segment `{path.name}` must hold what this version knows, got {newer}. "
                "Start the newer version of Flashdeck that wrote it.",
                file=path.name,
                offset=offset,
            ) from newer
        frames.append(frame)
    return frames, offset


def _is_followed(data: memoryview, start: int) -> bool:
    """Whether a whole frame begins anywhere at or behind `start`."""
    raw = data.obj
    while (start := raw.find(MAGIC, start)) >= 0:
        try:
            frame_at(data, start)
        except TornError:
            start += 1
        except NewerError:
            return True
        else:
            return True
    return False
