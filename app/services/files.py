"""Paths under the data directory, and never anywhere else."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fbxcore.errors import FbxError, InvalidArgumentError, NotFoundError
from fbxcore.live import BufferConfig, MixerConfig, load_any_config

logger = logging.getLogger("flashdeck")

FOLDERS = ("buffers", "snapshots", "vaults", "catalog", "exports", "trash")


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


def remove_half_snapshots(data: Path) -> None:
    """Remove what a crash left of snapshots that were being written or deleted."""
    for path in [*(data / "snapshots").glob("*/.*.tmp"), *(data / "trash").glob("snapshot-*")]:
        shutil.rmtree(path, ignore_errors=True)


def find_buffers(data: Path) -> Iterator[tuple[str, BufferConfig | MixerConfig | FbxError]]:
    """Yield each buffer's name with its configuration, or with why that cannot be read.

    What a deleted buffer left in the trash goes; what is no buffer of ours is left alone.
    """
    for left in (data / "trash").glob("buffer-*"):
        shutil.rmtree(left, ignore_errors=True)
    for directory in sorted((data / "buffers").iterdir()):
        name = directory.name
        if directory.is_symlink() or not directory.is_dir():
            logger.warning("%s in the buffers' folder is no directory of ours: it is left alone", name)
            continue
        try:
            yield name, load_any_config(directory)
        except NotFoundError:  # it was never acknowledged: the config is written last
            logger.warning("buffer %s was left half made: it is left alone", name)
        except FbxError as error:
            yield name, error
