"""Paths under the data directory, and never anywhere else."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from fbxcore.errors import InvalidArgumentError

FOLDERS = ("buffers", "vaults", "catalog", "exports", "trash")


def make_folders(data: Path) -> None:
    """Make the data directory and its parts."""
    for name in FOLDERS:
        (data / name).mkdir(parents=True, exist_ok=True)


def inside(root: Path, *parts: str) -> Path:
    """Return the path of names below a root, or refuse one that would leave it.

    Raises:
        InvalidArgumentError: for a part that is no plain name, or a link on the way.
    """
    path = root
    for part in parts:
        if part in ("", ".", "..") or any(c in part for c in "/\\\0") or len(os.fsencode(part)) > 255:
            raise InvalidArgumentError(f"`name` must be a plain file name, got {part!r:.80}.", loc=("name",))
        path = path / part
        if path.is_symlink():
            raise InvalidArgumentError(
                f"`name` must not lead through a link, got {part!r:.80}, which is one in the data directory.",
                code="link_in_path",
                loc=("name",),
            )
    return path


def set_aside_buffer(directory: Path, trash: Path) -> Path:
    """Take a buffer's directory away in one step, so that a crash leaves all of it or none."""
    place = trash / f"buffer-{directory.name}.{time.time_ns()}"
    os.replace(directory, place)
    return place


def remove_tree(path: Path) -> None:
    """Remove a directory that was set aside; what cannot go now goes at the next start."""
    shutil.rmtree(path, ignore_errors=True)
