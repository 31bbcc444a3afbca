"""The trash: vaults taken away whole, kept for some days, brought back or given up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from app.services import chains, vaults
from app.services.deck import Deck, VaultEntry
from app.services.folders import iso
from app.services.trash_files import Trashed, bring_back, describe, list_trash, put, reclaim
from fbxcore.errors import ConflictError, FbxError, NotFoundError

READERS_WAIT_S = 5.0


async def delete(deck: Deck, entry: VaultEntry, *, dry_run: bool) -> dict[str, Any]:
    """Move a vault to the trash, or only say what would go.

    Raises:
        ConflictError: if it is not ours, a buffer persists to it, or a protected tag names a version.
    """
    vaults.check_ours(entry)
    async with deck.name_locks[f"vault:{entry.place.key}"]:
        _check_free(deck, entry)
        if dry_run:
            length = vaults.growth(deck, entry)[0]
            found = await asyncio.to_thread(describe, entry.place, entry.facts, length)
        else:
            found = await _take(deck, entry)
    return _public(deck, found) | {"dry_run": dry_run}


async def _take(deck: Deck, entry: VaultEntry) -> Trashed:
    length = vaults.growth(deck, entry)[0]
    written = chains.newest(deck, entry)
    async with contextlib.AsyncExitStack() as locks:
        for one in [written] if entry is written else [written, entry]:
            await locks.enter_async_context(one.lock)
        if entry is written or await asyncio.to_thread(chains.find_log, deck, written) == entry.log:
            await _close(deck, written)
        await _wait_for_readers(entry)
        _check_free(deck, entry)  # a buffer may have taken it meanwhile
        described = await asyncio.to_thread(describe, entry.place, entry.facts, length)
        return await deck.remove_vault(entry, lambda: put(deck.data, entry.place, described))


async def _close(deck: Deck, written: VaultEntry) -> None:
    """Let go of the vault that is written; its log lies in its own catalog from then on."""
    if written.live is not None:
        with contextlib.suppress(FbxError):  # what the vault cannot take goes along, in its log
            await written.live.flush()
        await written.live.close()
        written.live = None
    await chains.take_log(deck, written)


async def _wait_for_readers(entry: VaultEntry) -> None:
    """Let reads end: the files of a vault are opened by their path as they are needed."""
    deadline = time.monotonic() + READERS_WAIT_S
    while entry.reading:
        if time.monotonic() > deadline:
            raise ConflictError(
                f"Vault {entry.place.key!r} must have no reader to be deleted, got {len(entry.reading)}. "
                "Try again when they have ended.",
                code="vault_in_use",
            )
        await asyncio.sleep(0.02)


def _check_free(deck: Deck, entry: VaultEntry) -> None:
    key = entry.place.key
    if (owner := _buffer_that_needs(deck, entry)) is not None:
        raise ConflictError(
            f"Vault {key!r} must have no buffer to be deleted, and buffer {owner!r} persists to it. "
            "Delete that one first.",
            code="vault_in_use",
            buffer=owner,
        )
    if protected := sorted(name for name, tag in entry.facts.tags.items() if tag.protected):
        raise ConflictError(
            f"Vault {key!r} must have no protected tag to be deleted, got {', '.join(map(repr, protected))}. "
            "Delete them first.",
            code="tag_protected",
            tags=protected,
        )


def _buffer_that_needs(deck: Deck, entry: VaultEntry) -> str | None:
    """Return the buffer that persists to a vault, or would be refilled from it after a restart."""
    written = chains.newest(deck, entry)
    owner = deck.owners.get(written.place.key)
    if owner is None or entry is written or owner not in deck.buffers:
        return owner
    return owner if entry.place.path in deck.buffers[owner].refilled_from else None


async def list_all(deck: Deck) -> list[dict[str, Any]]:
    """Return what lies in the trash as it is answered."""
    found = await asyncio.to_thread(list_trash, deck.data)
    return [_public(deck, trashed) for trashed in found]


async def find(deck: Deck, names: Sequence[str], vault_uid: str = "", id: str | None = None) -> Trashed:
    """Return the vault last deleted under one of some names, or the one of an id.

    Raises:
        NotFoundError: if there is none.
    """
    found = await asyncio.to_thread(list_trash, deck.data)
    for trashed in found:
        is_named = trashed.vault_name in names and trashed.vault_uid == vault_uid
        if trashed.id == id if id is not None else is_named:
            return trashed
    asked = id if id is not None else f"{names[0]}/{vault_uid}"
    known = ", ".join(repr(t.key) for t in found[:20]) or "none"
    raise NotFoundError(f"No vault {asked!r:.300} in the trash. There: {known}.", loc=("vault_name",))


async def restore(deck: Deck, trashed: Trashed) -> dict[str, Any]:
    """Bring a vault back under its name.

    Raises:
        ConflictError: if another has that name now.
    """
    place = deck.new_place(trashed.vault_name, trashed.vault_uid)
    async with deck.name_locks[f"vault:{place.key}"]:
        vaults.check_new(deck, place)
        await asyncio.to_thread(bring_back, deck.data, trashed, place)
        await deck.scan()
    return await vaults.show(deck, deck.vaults[place.key])


async def give_up(deck: Deck, trashed: Trashed) -> None:
    """Delete a vault in the trash for good."""
    async with deck.name_locks[f"vault:{trashed.key}"]:
        await asyncio.to_thread(reclaim, deck.data / "trash" / trashed.id)


def _public(deck: Deck, trashed: Trashed) -> dict[str, Any]:
    return asdict(trashed) | {
        "url": vaults.url_of(trashed.vault_name, trashed.vault_uid),
        "deleted_at": iso(trashed.deleted_at),
        "restore_until": iso(trashed.ends_at(deck.settings.trash_days)),
    }
