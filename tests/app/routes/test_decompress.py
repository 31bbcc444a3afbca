"""Compressed bodies: the same bytes whatever the pieces, and little memory beside them."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from collections import deque

import pytest
import zstandard

from app.routes._decompress import BodyError, decompressed
from fbxcore.errors import InvalidArgumentError

MIB = 1 << 20


def packed(body: bytes, encoding: str) -> bytes:
    """Return a body in an encoding."""
    return zlib.compress(body, wbits=31) if encoding == "gzip" else zstandard.compress(body)


def pieces_of(body: bytes, size: int) -> deque[bytearray]:
    """Return a body in pieces of a size."""
    return deque(bytearray(body[at : at + size]) for at in range(0, len(body), size))


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [100, 1 << 16, 3 << 20])
@pytest.mark.parametrize("body", [b"", b"x", bytes(3 * MIB), os.urandom(MIB + 1) + bytes(MIB)])
def test_pieces_of_any_size_give_the_body(encoding: str, size: int, body: bytes) -> None:
    """Zeros, noise and nothing come back whole, at a limit of exactly their length."""
    assert decompressed(pieces_of(packed(body, encoding), size), encoding, len(body), "") == body


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_one_byte_over_the_limit_is_refused(encoding: str) -> None:
    """The error says the limit and what to do."""
    with pytest.raises(BodyError, match=r"at most 4095 bytes, got over 4095 once decoded\. Do that\."):
        decompressed(pieces_of(packed(bytes(4096), encoding), 100), encoding, 4095, "Do that.")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_an_end_that_is_missing_is_told(encoding: str, kept: float) -> None:
    """Nothing, one byte, half, all but one byte."""
    whole = packed(os.urandom(MIB), encoding)
    cut = whole[: int(kept * len(whole)) if kept == 0.5 else kept]

    with pytest.raises(InvalidArgumentError, match=f"must be whole {encoding} data"):
        decompressed(pieces_of(cut, 1 << 16), encoding, 2 * MIB, "")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_what_is_read_is_given_back(encoding: str) -> None:
    """16 MiB that compress to no less take little more than themselves, not twice."""
    body = packed(os.urandom(16 * MIB), encoding)
    tracemalloc.start()
    pieces = pieces_of(body, MIB)
    found = decompressed(pieces, encoding, 32 * MIB, "")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(found) == 16 * MIB and not pieces
    assert peak < 22 * MIB
