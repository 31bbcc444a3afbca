"""Files replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mark: str = "") -> None:
    """Write a file so that a crash leaves the old one or the new one, and a full disk the old one.

    Args:
        mark: tells the temporary file from those of others who write the same file at the same time.
    """
    temporary = path.with_name(f".{path.name}{mark}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names created or removed in a directory survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
