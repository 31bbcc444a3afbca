"""Files replaced whole or not at all, and JSON that notices when a bit of it changed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from fbxcore._files import replace_file, sync_directory
from fbxcore.errors import DamagedError

__all__ = ["replace_file", "seal", "sync_directory", "unseal"]

_SEAL = "crc32"


def seal(value: Mapping[str, Any]) -> bytes:
    """Return an object as JSON with a checksum of itself."""
    return msgspec.json.encode({**value, _SEAL: _checksum(value)})


def unseal(path: Path) -> dict[str, Any]:
    """Return the object that `seal` wrote to a file; one of before there were checksums is taken as it is.

    Raises:
        FileNotFoundError: if there is no file.
        DamagedError: if it is not what was written.
    """
    try:
        value = msgspec.json.decode(path.read_bytes(), type=dict)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    if _SEAL in value and value.pop(_SEAL) != _checksum(value):
        raise _damaged(path, "another checksum than it states")
    return value


def _checksum(value: Mapping[str, Any]) -> int:
    return zlib.crc32(msgspec.json.encode(value, order="deterministic"))


def _damaged(path: Path, found: str) -> DamagedError:
    return DamagedError(
        f"`{path.name}` of `{path.parent.name}` must be as it was written, got {found}. "
        "Restore it from a backup.",
        file=path.name,
    )
