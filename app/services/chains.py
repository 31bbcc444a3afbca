"""Vaults that went on under another uid because they were full: which one is written, where its log lies.

`run1` goes on in `run1-2`. All of them share one log: it lies in the catalog of the one that was written
when it was begun, and whoever takes that vault away gives the log to the one that is written now.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from app.services.entries import VaultEntry
from fbxcore.live.durable.files import sync_directory

if TYPE_CHECKING:
    from app.services.deck import Deck


def next_of(deck: Deck, entry: VaultEntry) -> VaultEntry | None:
    """Return the vault in which a full one goes on, if it is there."""
    uid = entry.facts.continued_in
    return deck.vaults.get(f"{entry.place.vault_name}/{uid}") if uid else None


def newest(deck: Deck, entry: VaultEntry) -> VaultEntry:
    """Return the vault in which one goes on now: itself, or the last."""
    while (following := next_of(deck, entry)) is not None:
        entry = following
    return entry


def newest_key(deck: Deck, key: str) -> str:
    """Return the names of the vault in which one goes on now."""
    entry = deck.vaults.get(key)
    return key if entry is None else newest(deck, entry).place.key


def before(deck: Deck, entry: VaultEntry) -> VaultEntry | None:
    """Return the full vault that one continues, if it is there."""
    uid = (entry.facts.lineage or {}).get("continues")
    return deck.vaults.get(f"{entry.place.vault_name}/{uid}") if uid else None


def follow(deck: Deck, entry: VaultEntry) -> None:
    """Know what wrote to a full vault as writing to the one in which it goes on."""
    while (following := next_of(deck, entry)) is not None:
        if (owner := deck.owners.pop(entry.place.key, None)) is not None:
            deck.owners[following.place.key] = owner
        if entry.live is not None and entry.live.writer.path == following.place.path:
            entry.live, following.live = None, entry.live
        entry = following


def find_log(deck: Deck, entry: VaultEntry) -> Path | None:
    """Return where the log of the vault that is written lies; None where there is none. Looks on the disk."""
    here: VaultEntry | None = entry
    while here is not None:
        if here.log.is_dir():
            return here.log
        here = before(deck, here)
    return None


async def release(deck: Deck, entry: VaultEntry) -> None:
    """Commit what a vault's log holds, delete it, and let go of the vault, so that a buffer may write it."""
    async with entry.lock:
        if entry.live is not None:
            await entry.live.flush()
            await entry.live.close()
            entry.live = None
        log = await asyncio.to_thread(find_log, deck, entry)
        if log is not None:
            await asyncio.to_thread(shutil.rmtree, log)


async def take_log(deck: Deck, entry: VaultEntry) -> None:
    """Move the closed log of the vault that is written into its own catalog."""
    log = await asyncio.to_thread(find_log, deck, entry)
    if log is not None and log != entry.log:
        await asyncio.to_thread(_move, log, entry.log)


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(source, target)
    sync_directory(target.parent)
