"""Compressed bodies: undone piece by piece, each piece given back as soon as it is read."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator

import zstandard

from fbxcore.errors import FbxError, InvalidArgumentError

ENCODINGS = ("gzip", "zstd")
PIECE_BYTES = 32 << 20  # the allocator gives such pieces back to the system when they are freed
_READ_BYTES = 1 << 16
_STEP_BYTES = 1 << 20
_MAX_WINDOW = 1 << 27


class BodyError(FbxError):
    """A body that is too large or not whole; the code says which."""

    code = "incomplete_body"


def too_large(limit: int, got: str, remedy: str) -> BodyError:
    """Return the error for a body over a limit."""
    return BodyError(
        f"`body` must have at most {limit} bytes, got {got}. {remedy}", code="body_too_large", loc=("body",)
    )


def decompressed(pieces: deque[bytearray], encoding: str, limit: int, remedy: str) -> memoryview:
    """Undo one encoding and empty the pieces; at most `limit` bytes and a step of result are ever held."""
    undo = _gunzipped if encoding == "gzip" else _unzstd
    found = bytearray()
    try:
        for part in undo(_drained(pieces)):
            found += part
            if len(found) > limit:
                raise too_large(limit, f"over {limit} once decoded", remedy)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise InvalidArgumentError(
            f"`body` must be whole {encoding} data, got something else: {str(error)[:200]}.",
            code="malformed_body",
            loc=("body",),
        ) from None
    return memoryview(found).toreadonly()


def _drained(pieces: deque[bytearray]) -> Iterator[bytes]:
    while pieces:
        piece = memoryview(pieces.popleft())
        for at in range(0, len(piece), _READ_BYTES):
            yield bytes(piece[at : at + _READ_BYTES])
        del piece


def _gunzipped(parts: Iterator[bytes]) -> Iterator[bytes]:
    undo = zlib.decompressobj(wbits=31)
    for part in parts:
        while part and not undo.eof:
            yield undo.decompress(part, _STEP_BYTES)
            part = undo.unconsumed_tail
    while not undo.eof:
        if not (last := undo.decompress(b"", _STEP_BYTES)):
            raise EOFError("it ends early")
        yield last


def _unzstd(parts: Iterator[bytes]) -> Iterator[bytes]:
    first = next(parts, b"")
    declared, size = zstandard.frame_content_size(first), 0
    with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(
        _Source(first, parts)
    ) as reader:
        while part := reader.read(_STEP_BYTES):
            size += len(part)
            yield part
    if declared not in (-1, size):
        raise EOFError("it ends early")


class _Source:
    """What a stream reader reads from."""

    def __init__(self, first: bytes, parts: Iterator[bytes]):
        self.parts = parts
        self.first = first

    def read(self, _size: int) -> bytes:
        """Return the next part, empty at the end."""
        first, self.first = self.first, b""
        return first or next(self.parts, b"")
