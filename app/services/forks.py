"""Forking a vault, or a part of one, into a new vault that says where it comes from."""

from __future__ import annotations

import asyncio
from typing import Any

from app.services import slices, vaults
from app.services.deck import Deck, VaultEntry
from app.services.folders import Place, look_into
from fbxcore.errors import InvalidArgumentError
from fbxcore.live import check_name
from fbxcore.vault.fork import fork as fork_vault
from fbxcore.vault.store import VaultReader


async def fork(
    deck: Deck, entry: VaultEntry, *, vault_name: str, vault_uid: str | None, asked: slices.Asked
) -> dict[str, Any]:
    """Copy the timesteps a slice means into a new vault.

    Raises:
        ConflictError: if there is a vault of that name.
    """
    uid = vault_uid if vault_uid is not None else vaults.new_uid()
    check_name(vault_name, loc=("vault_name",))
    check_name(uid, loc=("vault_uid",))
    found = await slices.find(deck, entry, asked)
    if found.steps.step < 0:
        raise InvalidArgumentError(
            f"`step` must be positive for a fork, got {found.steps.step}.", loc=("step",)
        )
    place = deck.new_place(vault_name, uid)
    async with deck.name_locks[f"vault:{place.key}"]:
        vaults.check_new(deck, place)
        await deck.read(lambda reader: _copy(reader, entry, place, found), entry, found.generation)
        made = deck.vaults[place.key] = VaultEntry(place, await asyncio.to_thread(look_into, place))
        await deck.save_vault(made)
    return await vaults.show(deck, made)


def _copy(reader: VaultReader, entry: VaultEntry, place: Place, found: slices.Slice) -> None:
    origin: dict[str, Any] = {"vault": entry.place.key}
    if found.version is not None:
        origin |= {"version": found.version.number, "digest": found.version.digest}
    fork_vault(reader, place.path, steps=found.steps, lineage=origin).close()
