"""Vaults on disk: one writer, any number of readers, atomic commits, every generation kept.

A vault is one OCDBT database in which each leaf is a zarr array `[B, 10^13, ...]` and `vault_index`
says how many timesteps count; what lies behind it is never shown. A commit is one atomic transaction
over all leaves, the index and keys of our own: it makes exactly one new generation, and any older
generation still reads as it was.

Another program (Flashbax) may append to the same directory. A commit that finds a generation it did
not make is refused, so nothing foreign is overwritten; opening again continues behind it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fbxcore.errors import ConflictError, DiskFullError, InvalidArgumentError
from fbxcore.spec import check_leaves
from fbxcore.types import Leaves, Spec
from fbxcore.vault.chunks import ChunkSteps, Compression, layout_of
from fbxcore.vault.faults import disk_told, foreign_writer
from fbxcore.vault.files import (
    METADATA,
    appearing,
    clear_stale_data,
    clear_stale_lock,
    find_vaults,
    label_of,
    lock_directory,
    read_manifest,
    repair_manifest,
    stamp_of,
    write_atomic,
)
from fbxcore.vault.foreign import check_whole
from fbxcore.vault.spec import Structure, metadata_json, structure_of, with_metadata
from fbxcore.vault.store_arrays import COMMIT_KEY, Database, create_files
from fbxcore.vault.store_dump import latest
from fbxcore.vault.store_reader import VaultReader, first_of, read_structure

__all__ = ["MAX_LENGTH", "VaultReader", "VaultWriter", "find_vaults"]

MAX_LENGTH = 2**31 - 1
"""Timesteps of one vault: its index is an int32."""


class VaultWriter:
    """The one writer of a vault; its methods may be called from any thread, one at a time.

    It holds the vault's lock until `close`. With `hold=False` it takes the lock for each commit only,
    and continues behind what another of our writers appended in between.
    """

    def __init__(self, path: Path, structure: Structure, descriptor: int, *, hold: bool = True):
        self.path = path
        self.structure = structure
        self.lock = threading.RLock()
        self._descriptor: int | None = descriptor
        self._hold = hold
        self._pins: list[int] = []
        self._stamp: object = None  # of the manifest when it was found to be ours
        self._database = Database(path, structure)
        self._refresh()

    @classmethod
    def create(
        cls,
        path: Path,
        spec: Spec | Structure,
        *,
        rows: int = 1,
        metadata: Mapping[str, Any] | None = None,
        chunk_steps: ChunkSteps = None,
        compression: Compression = None,
        hold: bool = True,
    ) -> VaultWriter:
        """Create an empty vault and open it; on failure nothing is left, nor any parent made for it.

        Args:
            path: `<root>/<vault_name>/<vault_uid>`.
            rows: B, the length of axis 0 of every leaf.
            metadata: JSON values kept at the top level of `metadata.json`.
            chunk_steps: timesteps a chunk, of all leaves or of some by name, instead of the choice by size.
            compression: `zstd`, `lz4`, `none` or a zarr compressor, of all leaves or of some by name,
                instead of the choice between zstd and lz4 by content.

        Raises:
            ConflictError: if the directory exists.
            InvalidArgumentError: if an argument breaks its rule.
        """
        path = Path(path).absolute()
        structure = spec if isinstance(spec, Structure) else structure_of(spec, rows=rows)
        structure = with_metadata(structure, metadata if metadata is not None else structure.metadata)
        layout = layout_of(structure, chunk_steps, compression)
        with appearing(path) as hidden, disk_told(label_of(path)):
            create_files(hidden, structure, layout, label_of(path))
        return cls.open(path, hold=hold)

    @classmethod
    def open(cls, path: Path, *, hold: bool = True, takes_over: bool = False) -> VaultWriter:
        """Open a vault for writing, first cutting what a killed writer left behind the manifest.

        Args:
            takes_over: also where another program has written over timesteps of ours.

        Raises:
            NotFoundError: if there is no such directory.
            ConflictError: if it has a writer (code `vault_in_use`), or another program has written over
                timesteps of ours (code `foreign_writer`).
            DamagedError: if it is damaged or half made; names the file.
        """
        path = Path(path).absolute()
        descriptor = lock_directory(path)
        try:
            structure = read_structure(path)
            with disk_told(label_of(path)):
                repair_manifest(path)
            writer = cls(path, structure, descriptor, hold=hold)
            if not takes_over:
                check_whole(writer)
        except BaseException:
            os.close(descriptor)
            raise
        if not hold:
            writer._release()
        return writer

    @property
    def spec(self) -> Spec:
        return self.structure.spec

    @property
    def rows(self) -> int:
        return self.structure.rows

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.structure.metadata)

    @property
    def holds(self) -> bool:
        """Whether it holds the vault's lock until `close`."""
        return self._hold

    @property
    def is_ours(self) -> bool:
        """Whether the newest generation is one of our commits, and not another program's."""
        return self._database.get(COMMIT_KEY) == b"%d" % self.generation

    def append(self, leaves: Leaves, *, keys: Mapping[str, bytes | None] | None = None) -> int:
        """Append timesteps in one atomic commit and return the new length.

        Args:
            leaves: `[B, K, ...]`, exactly the spec's.
            keys: values of our own to store (None: delete) in the same commit.

        Raises:
            ConflictError: `foreign_writer` if another program committed, `vault_full` at 2^31 - 1 steps.
            DiskFullError: if the disk is full; nothing is added.
        """
        with self.lock, self._held():
            return self._write(self.length, leaves, keys)

    def write_at(self, start: int, leaves: Leaves, *, keys: Mapping[str, bytes | None] | None = None) -> int:
        """Overwrite from `start`, at most the length, in one atomic commit; returns the new length."""
        with self.lock, self._held():
            if not first_of(self) <= start <= self.length:
                raise InvalidArgumentError(
                    f"`start` must be in {first_of(self)}..{self.length}, where the vault's timesteps are, "
                    f"got {start!r}.",
                    loc=("start",),
                )
            return self._write(start, leaves, keys)

    def put(self, keys: Mapping[str, bytes | None]) -> int:
        """Store (None: delete) values under keys of our own, atomically; returns the generation."""
        with self.lock, self._held():
            if keys:
                self._commit({}, 0, self.length, keys)
            return self.generation

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        with self.lock:
            return self._opened().get(key)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with `prefix`, sorted."""
        with self.lock:
            return self._opened().keys(prefix)

    def chunks(self, name: str) -> tuple[int, ...]:
        """Return the chunk shape of a leaf, `(rows, timesteps, ...)`."""
        return self._opened().chunks(name)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the user's part of `metadata.json`."""
        with self.lock, self._held(), disk_told(label_of(self.path)):
            structure = with_metadata(self.structure, metadata)
            write_atomic(self.path / METADATA, metadata_json(structure))
            self.structure = structure

    def refresh(self) -> None:
        """Take over what another program committed since, as opening again would."""
        with self.lock, self._held(check=False):
            repair_manifest(self.path)
            self._refresh()

    def is_alone(self) -> bool:
        """Whether nobody else has committed: mostly a look at the manifest's time and size.

        While a commit of ours is under way this cannot be told; that commit will.
        """
        stamp = stamp_of(self.path)
        if stamp == self._stamp:
            return True
        if not self.lock.acquire(blocking=False):
            return True
        try:
            if read_manifest(self.path) != self._manifest:
                return False
            self._stamp = stamp
            return True
        finally:
            self.lock.release()

    @contextlib.contextmanager
    def pinned(self) -> Iterator[int]:
        """Keep the present generation from being swept for as long as somebody reads it; gives its number."""
        with self.lock:
            generation = self.generation
            self._pins.append(generation)
        try:
            yield generation
        finally:
            with self.lock:
                self._pins.remove(generation)

    @property
    def pins(self) -> frozenset[int]:
        """Generations that somebody reads."""
        return frozenset(self._pins)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the vault, as a commit does, after making sure that no other program committed."""
        with self.lock, self._held():
            self._check_alone()
            yield

    def close(self) -> None:
        """Give the vault's lock back; every commit is already on disk."""
        with self.lock:
            self._release()
            self._database = None

    def __enter__(self) -> VaultWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refresh(self) -> None:
        self._manifest = read_manifest(self.path)
        self.generation = latest(self._manifest, label_of(self.path))["generation_number"]
        self.length = self._database.length()

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> Database:
        if self._database is None:
            raise ConflictError(
                f"Vault '{label_of(self.path)}' must be open, got a closed writer.", code="closed"
            )
        return self._database

    @contextlib.contextmanager
    def _held(self, *, check: bool = True) -> Iterator[None]:
        """Hold the vault's lock, and the newest state where it was not held before."""
        self._opened()
        if self._descriptor is not None:
            yield
            return
        if self._hold:
            raise ConflictError(
                f"Vault '{label_of(self.path)}' must be open, got a closed writer.", code="closed"
            )
        self._descriptor = lock_directory(self.path)
        try:
            if check and read_manifest(self.path) != self._manifest:
                known = self._manifest, self.generation, self.length
                self._refresh()
                if not self.is_ours:
                    self._manifest, self.generation, self.length = known  # refuse until opened again
                    raise foreign_writer(label_of(self.path))
            yield
        finally:
            self._release()

    def _check_alone(self) -> None:
        if read_manifest(self.path) != self._manifest:
            raise foreign_writer(label_of(self.path))

    def _write(self, start: int, leaves: Leaves, keys: Mapping[str, bytes | None] | None) -> int:
        leaves = check_leaves(self.spec, leaves, leading=2)
        rows, steps = next(iter(leaves.values())).shape[:2]
        if rows != self.rows:
            raise InvalidArgumentError(
                f"`leaves` must have {self.rows} rows, the vault's, got {rows}.",
                loc=("leaves",),
                code="rows_differ",
            )
        if start + steps > MAX_LENGTH:
            raise ConflictError(
                f"Vault '{label_of(self.path)}' must stay within {MAX_LENGTH} timesteps, "
                f"got {start + steps}. Continue in a new `vault_uid`.",
                code="vault_full",
            )
        length = max(self.length, start + steps)
        if steps or keys:
            self._commit(leaves if steps else {}, start, length, keys or {})
        return length

    def _commit(self, leaves: Leaves, start: int, length: int, keys: Mapping[str, bytes | None]) -> None:
        label = label_of(self.path)
        with disk_told(label):
            clear_stale_lock(self.path)
        self._check_alone()
        mark = {COMMIT_KEY: b"%d" % (self.generation + 1)}
        try:
            self._database.commit(leaves, start, self.length, length, {**keys, **mark}, self._check_alone)
        except DiskFullError:
            clear_stale_data(self.path)  # what the failed commit has begun
            raise
        # Even if somebody else commits right behind us, ours is whole: that is told at the next commit.
        manifest = read_manifest(self.path)
        found = latest(manifest, label)["generation_number"]
        self.generation += 1
        self.length = length
        self._manifest = manifest if found == self.generation else b""
