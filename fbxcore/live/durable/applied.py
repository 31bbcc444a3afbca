"""How far a log has been applied to a vault, and where each of its timesteps lies.

Timesteps of a log lie in a vault one after another, so their place is a number added to their position in
the log. The number changes where the vault went on under another uid because it was full, and where
another program wrote in between and was accepted. Each run with one number is a stretch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from fbxcore.errors import ConflictError, DamagedError
from fbxcore.spec import timestep_bytes
from fbxcore.vault import store
from fbxcore.vault.files import label_of
from fbxcore.vault.foreign import Foreign, take_over
from fbxcore.vault.rollover import continues, next_path, planned_path
from fbxcore.vault.store import VaultReader, VaultWriter

APPLIED_KEY = "_flashdeck/applied"
_READ_BYTES = 64 << 20


@dataclass(frozen=True)
class Applied:
    """How far a log has been applied to a vault."""

    log: str  # the log's id
    base: int  # timestep p of the log is timestep base + p of the vault
    position: int = 0  # timesteps of the log that the vault holds, those of former vaults included
    sequence: int = 0  # the last frame that is wholly in the vault
    start: int = 0  # the position from which on `base` is right …
    earlier: tuple[tuple[int, int], ...] = ()  # … and the starts and bases before it in this vault

    @property
    def length(self) -> int:
        """The vault's length if nobody else wrote."""
        return self.base + self.position

    def to_bytes(self) -> bytes:
        """Return the record as it lies in the vault."""
        return msgspec.json.encode(self)

    @staticmethod
    def saved_in(vault: VaultReader | VaultWriter) -> Applied | None:
        """Return the record that a vault has, of whatever log."""
        saved = vault.get(APPLIED_KEY)
        return msgspec.json.decode(saved, type=Applied) if saved else None

    @staticmethod
    def of(writer: VaultWriter, log_id: str, *, position: int = 0, sequence: int = 0) -> Applied:
        """Return the vault's record of this log, making it if the log is new to the vault.

        Args:
            position: where a new log begins.
            sequence: the last frame before a new log.

        Raises:
            ConflictError: if somebody else wrote to the vault since.
        """
        applied = Applied.saved_in(writer)
        if applied is None or applied.log != log_id:
            applied = Applied(log_id, writer.length - position, position, sequence, position)
            writer.put({APPLIED_KEY: applied.to_bytes()})
        if applied.length != writer.length or not writer.is_ours:
            raise ConflictError(
                f"Vault '{label_of(writer.path)}' must hold {applied.length} timesteps, got {writer.length}: "
                "another program wrote to it. `flashdeck verify --adopt` goes on behind it, or fork it.",
                code="foreign_writer",
            )
        return applied

    def moved(self, found: Foreign) -> Applied:
        """Return the record after another program's timesteps were taken over: `found.start` on moved."""
        if not found.is_finished:  # ours were put back in their place
            return self
        runs, moved = [*self.earlier, (self.start, self.base)], []
        further = found.length - found.start
        ends = [start for start, _ in runs[1:]] + [self.position]
        for (start, base), end in zip(runs, ends, strict=True):
            if base + start < found.start:
                moved.append((start, base))
            if base + end > found.start:
                moved.append((max(start, found.start - base), base + further))
        length = found.length + found.num_hidden
        if not moved or moved[-1][1] + self.position != length:
            moved.append((self.position, length - self.position))
        *earlier, (start, base) = moved
        return replace(self, start=start, base=base, earlier=tuple(earlier))


def adopt(writer: VaultWriter) -> Foreign | None:
    """Go on behind what another program wrote: nothing of it or of the log is lost, and the log follows.

    Returns:
        What was found, or None where nothing had been written.
    """

    def moved(found: Foreign) -> dict[str, bytes | None]:
        return {} if applied is None else {APPLIED_KEY: applied.moved(found).to_bytes()}

    with writer.lock:
        writer.refresh()
        applied = Applied.saved_in(writer)
        found = take_over(writer, moved)
        if found is None and applied is not None and applied.length != writer.length:
            # A program of ours appended without the log.
            found = Foreign(writer.generation, applied.length, applied.length, writer.length)
            writer.put(moved(found))
        return found


@dataclass(frozen=True)
class Stretch:
    """Timesteps of a log from `start` on: p of the log is `base + p` of the vault at `path`."""

    start: int
    base: int
    path: Path


class Stretches:
    """Where the timesteps of a log lie, or will lie; grows as the log does."""

    def __init__(self, writer: VaultWriter, applied: Applied):
        self._all = list(_stretches(writer.path, applied))
        self._all.reverse()
        self._writer: VaultWriter | None = writer  # of the vault that is noted last, if it is made

    @property
    def last(self) -> Stretch:
        """Where the log's next timestep will lie."""
        return self._all[-1]

    def note(self, position: int, end: int) -> None:
        """Take a frame that comes next: one that would overfill its vault begins the next one whole."""
        last = self.last
        if last.base + end <= store.MAX_LENGTH or last.start == position:
            return
        path = planned_path(self._writer) if self._writer else next_path(last.path, is_next=True)
        self._all.append(Stretch(position, -position, path))
        self._writer = None

    def made(self, writer: VaultWriter) -> None:
        """Take the writer of the vault that was begun last."""
        if writer.path == self.last.path:
            self._writer = writer

    def of(self, position: int) -> Stretch:
        """Return the stretch in which a timestep lies."""
        return next(s for s in reversed(self._all) if s.start <= position or s is self._all[0])

    def paths_since(self, position: int) -> set[Path]:
        """Return the vaults that hold timesteps from a position on."""
        first = self._all.index(self.of(position))
        return {stretch.path for stretch in self._all[first:]}

    def after(self, path: Path) -> Stretch | None:
        """Return the stretch with which the vault begins that follows another."""
        paths = [stretch.path for stretch in self._all]
        follows = len(paths) - paths[::-1].index(path)
        return self._all[follows] if follows < len(self._all) else None

    def read(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield the timesteps `[start, stop)` of the log as leaves `[B, k, ...]`, piece by piece.

        Raises:
            DamagedError: if the vault before the present one is not there any more.
        """
        ends = [stretch.start for stretch in self._all[1:]] + [stop]
        if start < min(self._all[0].start, stop):
            raise DamagedError(
                f"Vault '{label_of(self._all[0].path)}' must continue another one that holds timesteps "
                f"{start} to {self._all[0].start} of the log, got none. Restore that vault from the trash."
            )
        for stretch, end in zip(self._all, ends, strict=True):
            first, last = max(start, stretch.start), min(stop, end)
            if first < last:
                with VaultReader.open(stretch.path) as reader:
                    yield from _pieces(reader, stretch.base + first, stretch.base + last)


def _pieces(reader: VaultReader, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield timesteps of a vault, at most some 64 MB at a time."""
    steps = max(1, _READ_BYTES // max(1, timestep_bytes(reader.spec) * reader.rows))
    for at in range(start, stop, steps):
        yield reader.read(at, min(at + steps, stop))


def _stretches(path: Path, applied: Applied) -> Iterator[Stretch]:
    """Yield the stretches of a log, the latest first, back through the vaults that were full."""
    while True:
        yield Stretch(applied.start, applied.base, path)
        for start, base in reversed(applied.earlier):
            yield Stretch(start, base, path)
        with VaultReader.open(path) as reader:
            before = continues(reader)
        if before is None or not path.with_name(before).is_dir():
            return
        path = path.with_name(before)
        with VaultReader.open(path) as reader:
            former = Applied.saved_in(reader)
        if former is None or former.log != applied.log:
            return
        applied = former
