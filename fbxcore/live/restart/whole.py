"""The whole of a live buffer in two files: its experience, and all that is not experience.

A snapshot is this, and so is the base that a log begins from where nothing before it was kept. The experience
is copied piece by piece while the ring goes on, and what changed meanwhile once more, until so little is
left that it can be copied together with all the rest, as of one sequence number.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fbxcore.errors import DamagedError, NotFoundError
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.durable.files import replace_file, sync_directory
from fbxcore.live.durable.ledger import Ledger
from fbxcore.live.rings.engine import Engine
from fbxcore.live.rings.ring import Ring
from fbxcore.snapshot import dump_snapshot, load_snapshot
from fbxcore.spec import dtype_of
from fbxcore.types import Spec

FILE = "base.safetensors"
_PIECE_BYTES = 16 << 20
_ROUNDS = 8

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Whole:
    """All of a live buffer at one sequence number."""

    counters: Counters
    bookkeeping: dict[str, np.ndarray]
    ledger: dict[str, Any]
    experience: dict[str, np.ndarray] = field(default_factory=dict)  # [B, T, ...] by slot

    @staticmethod
    def load(directory: Path, spec: Spec, *, rows: int, time_axis: int) -> Whole | None:
        """Return what `save_whole` wrote to a directory, or None; the experience is mapped, not read.

        Raises:
            DamagedError: if the files are not what was written.
        """
        path = directory / FILE
        if not path.exists():
            return None
        try:
            bookkeeping, meta = load_snapshot(str(path))
        except DamagedError as error:
            raise DamagedError(
                f"`{FILE}` cannot be read: {error} Restore it from a backup.", file=FILE
            ) from error
        shapes = {name: ((rows, time_axis, *leaf.shape), dtype_of(leaf.dtype)) for name, leaf in spec.items()}
        experience = _load_experience(directory / meta["experience"]["file"], meta["experience"], shapes)
        return Whole(Counters(**meta["counters"]), bookkeeping, meta["ledger"], experience)


def adopt_whole(source: Path, directory: Path) -> None:
    """Put what `save_whole` wrote to one directory into another, without copying where that can be.

    Raises:
        NotFoundError: if there is nothing.
    """
    if not (source / FILE).exists():
        raise NotFoundError(f"No snapshot in `{source.name}`.")
    directory.mkdir(parents=True, exist_ok=True)
    for path in (*source.glob("base-*.bin"), source / FILE):
        try:
            os.link(path, directory / path.name)
        except OSError:
            shutil.copyfile(path, directory / path.name)
    sync_directory(directory)


def remove_whole(directory: Path) -> None:
    """Remove what `save_whole` wrote to a directory; the experience last, since the other names it."""
    for path in (directory / FILE, *directory.glob("base-*.bin")):
        path.unlink(missing_ok=True)


async def save_whole(
    directory: Path, engine: Engine, ledger: Ledger, progress: Progress = lambda _done, _total: None
) -> tuple[Counters, int]:
    """Write all of a ring to a directory, as of one moment, while it goes on; one at a time.

    Args:
        progress: told how many bytes of how many are copied.

    Returns:
        The counters at that moment, and the timesteps it held, over all rows.
    """
    shapes = await engine.ask(lambda ring: ring.step_shapes())
    sequence = (await engine.ask(lambda ring: ring.counters)).sequence
    path = directory / f"base-{sequence:020d}.bin"
    file = await asyncio.to_thread(_Experience, path, shapes)
    try:
        writers = ledger.begin_moment()
        counters, bookkeeping, size = await _copy(file, engine, progress)
        kept = ledger.end_moment(writers, counters.sequence)
        stated = await asyncio.to_thread(file.finish)
        meta = {"counters": asdict(counters), "ledger": kept, "experience": stated}
        await asyncio.to_thread(replace_file, directory / FILE, dump_snapshot(bookkeeping, meta))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    for left in directory.glob("base-*.bin"):
        if left != path:
            left.unlink()
    return counters, size


async def _copy(
    file: _Experience, engine: Engine, progress: Progress
) -> tuple[Counters, dict[str, np.ndarray], int]:
    """Copy all steps, then what changed since, at last with the ring standing still."""
    mark = await engine.ask(lambda ring: ring.mark())
    done = 0
    for name, start, stop in file.pieces():
        await engine.ask(lambda ring, at=(name, start, stop): file.copy(ring, *at))
        done += file.bytes_of(name, stop - start)
        progress(done, file.num_bytes)
    for _ in range(_ROUNDS):
        changed, now = await engine.ask(lambda ring, since=mark: (ring.changed_since(since), ring.mark()))
        if sum(stop - start for start, stop in changed) * file.step_bytes <= _PIECE_BYTES:
            break
        for start, stop in changed:
            for name in file.arrays:
                await engine.ask(lambda ring, at=(name, start, stop): file.copy(ring, *at))
        mark = now

    def finish(ring: Ring) -> tuple[Counters, dict[str, np.ndarray], int]:
        for start, stop in ring.changed_since(mark):
            for name in file.arrays:
                file.copy(ring, name, start, stop)
        return *ring.whole(), ring.size

    return await engine.ask(finish)


class _Experience:
    """A file of arrays `[B * T, ...]`, written where they lie; its room is taken first."""

    def __init__(self, path: Path, shapes: dict[str, tuple[tuple[int, ...], np.dtype]]):
        self.path = path
        sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in shapes.items()}
        self.num_bytes = sum(sizes.values())
        try:
            with open(path, "wb") as file:
                if self.num_bytes:
                    os.posix_fallocate(file.fileno(), 0, self.num_bytes)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._map = np.memmap(path, np.uint8, "r+") if self.num_bytes else np.zeros(0, np.uint8)
        self.arrays: dict[str, np.ndarray] = {}
        at = 0
        for name, (shape, dtype) in shapes.items():
            self.arrays[name] = self._map[at : at + sizes[name]].view(dtype).reshape(shape)
            at += sizes[name]
        self.step_bytes = sum(self.bytes_of(name, 1) for name in self.arrays)

    def bytes_of(self, name: str, steps: int) -> int:
        """Return the bytes of timesteps of one array."""
        array = self.arrays[name]
        return array.nbytes // max(1, len(array)) * steps

    def pieces(self) -> Iterator[tuple[str, int, int]]:
        """Yield array and timesteps of pieces of some MiB."""
        for name, array in self.arrays.items():
            steps = max(1, _PIECE_BYTES // max(1, self.bytes_of(name, 1)))
            for start in range(0, len(array), steps):
                yield name, start, min(start + steps, len(array))

    def copy(self, ring: Ring, name: str, start: int, stop: int) -> None:
        """Copy timesteps out of the ring, which stands still meanwhile."""
        ring.copy_steps(name, start, stop, self.arrays[name][start:stop])

    def finish(self) -> dict[str, Any]:
        """Make it survive a power loss; return what tells that it is whole."""
        crc = zlib.crc32(self._map)
        if self.num_bytes:
            self._map.flush()
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        self.arrays = {}
        return {"file": self.path.name, "bytes": self.num_bytes, "crc32": crc}


def _load_experience(
    path: Path, stated: dict[str, Any], shapes: dict[str, tuple[tuple[int, ...], np.dtype]]
) -> dict[str, np.ndarray]:
    num_bytes = path.stat().st_size if path.exists() else -1
    whole = np.memmap(path, np.uint8, "r") if num_bytes > 0 else np.zeros(0, np.uint8)
    sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in shapes.items()}
    if not num_bytes == stated["bytes"] == sum(sizes.values()) or zlib.crc32(whole) != stated["crc32"]:
        raise DamagedError(
            f"`{path.name}` must be the {stated['bytes']} bytes that were written, got others. "
            "Restore it from a backup.",
            file=path.name,
        )
    arrays, at = {}, 0
    for name, (shape, dtype) in shapes.items():
        arrays[name] = whole[at : at + sizes[name]].view(dtype).reshape(shape)
        at += sizes[name]
    return arrays
