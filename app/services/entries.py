"""One vault as the service knows it, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from app.services.folders import Facts, Place
from fbxcore.errors import ConflictError, FbxError
from fbxcore.live import LiveVault
from fbxcore.vault.faults import FOREIGN_WRITER
from fbxcore.vault.store import VaultReader, VaultWriter

T = TypeVar("T")


@dataclass
class VaultEntry:
    """One vault as the service knows it."""

    place: Place
    facts: Facts
    live: LiveVault | None = None  # while somebody appends to it over HTTP
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while its writer is opened or used
    reading: list[int] = field(default_factory=list)  # generations that are being read
    shut_out: FbxError | None = None  # why its log could not be opened
    is_told: bool = False  # whether what is wrong with it was logged

    @property
    def log(self) -> Path:
        """Where what was acknowledged and not yet committed lies."""
        return self.place.catalog / "log"


def fault_of(entry: VaultEntry, writer: VaultWriter | None, failure: FbxError | None) -> FbxError | None:
    """Return what keeps a vault from being read, or from taking what is acknowledged; no I/O.

    Args:
        writer: that of the buffer which persists to it.
        failure: why that buffer could not be opened.
    """
    if entry.facts.error is not None:
        return entry.facts.error
    for error in (failure, entry.shut_out):
        if error is not None and error.code == FOREIGN_WRITER:
            return error
    writer = entry.live.writer if entry.live is not None else writer
    if writer is not None and not entry.facts.is_ours and entry.facts.generation > writer.generation:
        return ConflictError(
            f"Vault {entry.place.key!r} must have one writer, got a commit of another program. Stop that "
            "one, then adopt what it wrote, or fork the vault; what is not in its files stays in the log.",
            code=FOREIGN_WRITER,
        )
    return None


def names_of(vault_name: str) -> tuple[str, ...]:
    """Return the names of vaults that a part of an address may mean."""
    return vault_name.replace("~", "/"), vault_name, vault_name.replace("%7E", "~")


async def read(
    reads: asyncio.Semaphore,
    call: Callable[[VaultReader], T],
    entry: VaultEntry,
    generation: int | None = None,
) -> T:
    """Run a call on a reader of a vault, in a thread, with a bound on how many at once."""

    def run() -> T:
        with VaultReader.open(entry.place.path, generation=generation) as reader:
            entry.reading.append(reader.generation)
            try:
                return call(reader)
            finally:
                entry.reading.remove(reader.generation)

    async with reads:
        return await asyncio.to_thread(run)
