"""Giving disk space back: versions that nobody keeps, and bytes that nobody names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.services import chains, mirror, vaults
from app.services.backups import NO_SWEEP
from app.services.deck import Deck, VaultEntry
from fbxcore.errors import ConflictError
from fbxcore.vault.freeing import free
from fbxcore.vault.retention import Retention, retention_of
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.sweep import GRACE_S, sweep
from fbxcore.vault.versions import delete_versions, read_history

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Asked:
    """A sweep: which versions go first, how long what was just in use stays, or only what would be."""

    retention: Retention = Retention()
    grace_s: float = GRACE_S
    dry_run: bool = False


async def run(deck: Deck, entry: VaultEntry, asked: Asked) -> dict[str, Any]:
    """Sweep one vault of ours.

    Raises:
        ConflictError: if it is read only, or the database knows versions that the vault does not.
    """
    vaults.check_ours(entry)
    await _check_records(deck, entry)
    place, reading = entry.place, list(entry.reading)
    needed = _steps_of_the_ring(deck, entry)
    async with deck.name_locks[NO_SWEEP]:
        swept = await vaults.with_writer(
            deck,
            entry,
            lambda writer: sweep_vault(writer, place.catalog, asked, reading=reading, needed=needed),
        )
    await deck.refresh(entry, anyway=True)
    return {"vault": place.key, **swept}


async def sweep_by_retention(deck: Deck, every_s: float) -> None:
    """Again and again sweep the vaults that have limits of their own; never ends."""
    while True:
        await asyncio.sleep(every_s)
        for entry in list(deck.vaults.values()):
            if entry.facts.retention and not entry.place.read_only:
                await deck.attempt(lambda entry=entry: run(deck, entry, Asked()))


def sweep_vault(
    writer: VaultWriter,
    catalog: Path,
    asked: Asked,
    *,
    reading: Sequence[int] = (),
    needed: int = 0,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Delete what retention lets go, sweep, and say what came of it.

    Args:
        needed: the newest so many timesteps stay, whatever retention says: a buffer is refilled from them.
    """
    with VaultReader.open(writer.path) as reader:
        history, live_bytes = read_history(reader, catalog), reader.live_bytes
        limits = asked.retention or retention_of(reader)
    expired = limits.expired(history.versions, history.tags, time.time())
    if expired and not asked.dry_run:
        delete_versions(writer, catalog, [version.number for version in expired])
    freed_steps = 0
    if limits.retain_steps is not None:
        freed_steps = free(writer, max(limits.retain_steps, needed), dry_run=asked.dry_run)
    swept = sweep(
        writer,
        catalog,
        keep=reading,
        without=[version.generation for version in expired],
        grace_s=asked.grace_s,
        dry_run=asked.dry_run,
        progress=progress,
    )
    return {
        "deleted_versions": [version.number for version in expired],
        "freed_steps": freed_steps,
        "files": swept.files,
        "bytes": swept.bytes,
        "waiting_bytes": swept.waiting_bytes,
        "live_bytes": live_bytes,
        "disk_bytes": swept.disk_bytes,
        "dry_run": swept.dry_run,
    }


def _steps_of_the_ring(deck: Deck, entry: VaultEntry) -> int:
    """Return how many timesteps of a vault a buffer may need after a restart."""
    owner = deck.owners.get(chains.newest(deck, entry).place.key)
    return 0 if owner is None else deck.buffer(owner).layout.time_axis


async def _check_records(deck: Deck, entry: VaultEntry) -> None:
    """Refuse to sweep a vault that has lost records of versions which the database still has."""
    place, facts = entry.place, entry.facts
    known = {version.number for version in (*facts.versions, *facts.deleted)}
    stored = await mirror.version_numbers(deck.database, place.vault_name, place.vault_uid)
    if missing := sorted(stored - known):
        raise ConflictError(
            f"Vault {place.key!r} must have the records of all versions the database knows, got none of "
            f"{missing[:10]}. Restore the vault from a backup; a new version says that what it has is right.",
            code="records_differ",
        )
