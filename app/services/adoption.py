"""Going on behind what another program wrote to a vault of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from app.services import chains, vaults
from app.services.deck import Deck, VaultEntry
from fbxcore.live import adopt as adopt_vault
from fbxcore.vault.foreign import Foreign
from fbxcore.vault.store import VaultWriter


async def adopt(deck: Deck, entry: VaultEntry) -> dict[str, Any]:
    """Leave the other program's timesteps, append again ours that it wrote over, and what waits in the log.

    Raises:
        ConflictError: if it is read only, or the other program goes on writing.
    """
    vaults.check_ours(entry)
    async with deck.name_locks[f"vault:{entry.place.key}"]:
        found = await _adopt(deck, entry)
        await deck.refresh(entry, anyway=True)
    return describe(entry.place.key, found) | {"length": vaults.growth(deck, entry)[0]}


async def _adopt(deck: Deck, entry: VaultEntry) -> Foreign | None:
    owner = deck.owners.get(entry.place.key, "")
    if owner in deck.failed:
        found = await asyncio.to_thread(adopt_files, entry.place.path)
        await deck.reopen(owner)
        await deck.buffer(owner).flush()
    elif owner:
        found = await deck.buffer(owner).adopt()
        await deck.buffer(owner).flush()
    else:
        async with entry.lock:
            if entry.live is not None:
                return await entry.live.adopt()
            found = await asyncio.to_thread(adopt_files, entry.place.path)
            entry.shut_out = None
        if chains.next_of(deck, entry) is None and await asyncio.to_thread(chains.find_log, deck, entry):
            await (await deck.live_vault(entry)).flush()
    return found


def adopt_files(path: Path) -> Foreign | None:
    """Adopt in a vault that nobody has open."""
    with VaultWriter.open(path, takes_over=True) as writer:
        return adopt_vault(writer)


def describe(key: str, found: Foreign | None) -> dict[str, Any]:
    """Return what an adoption did."""
    return {
        "vault": key,
        "adopted": found is not None,
        "appended_again": 0 if found is None else found.num_hidden,
    }
