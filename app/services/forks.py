"""Forking a vault, or a part of one, into a new vault that says where it comes from."""

from __future__ import annotations

import asyncio
from typing import Any

from app.services import slices, vaults
from app.services.deck import Deck, VaultEntry
from app.services.entries import read
from app.services.folders import Place, look_into
from fbxcore.errors import InvalidArgumentError
from fbxcore.live import check_name
from fbxcore.vault.faults import FOREIGN_WRITER
from fbxcore.vault.fork import fork as fork_vault
from fbxcore.vault.store import VaultReader


async def fork(
    deck: Deck, entry: VaultEntry, *, vault_name: str, vault_uid: str | None, asked: slices.Asked
) -> dict[str, Any]:
    """Copy the timesteps a slice means into a new vault.

    Where another program wrote to the vault, its head cannot take what the log has: then the files are
    copied as they are, and the lineage says how many timesteps stay in the log.

    Raises:
        ConflictError: if there is a vault of that name.
    """
    uid = vault_uid if vault_uid is not None else vaults.new_uid()
    check_name(vault_name, loc=("vault_name",))
    check_name(uid, loc=("vault_uid",))
    fault = deck.fault(entry)
    is_shut = fault is not None and fault.code == FOREIGN_WRITER
    found = await slices.find(deck, entry, asked, commits=not is_shut)
    if found.steps.step < 0:
        raise InvalidArgumentError(
            f"`step` must be positive for a fork, got {found.steps.step}.", loc=("step",)
        )
    origin: dict[str, Any] = {"vault": entry.place.key}
    if found.version is not None:
        origin |= {"version": found.version.number, "digest": found.version.digest}
    elif is_shut:
        origin |= {"left_in_log": vaults.growth(deck, entry)[1]}
    place = deck.new_place(vault_name, uid)
    async with deck.name_locks[f"vault:{place.key}"]:
        vaults.check_new(deck, place)
        await read(
            deck.reads, lambda reader: _copy(reader, place, found.steps, origin), entry, found.generation
        )
        made = deck.vaults[place.key] = VaultEntry(place, await asyncio.to_thread(look_into, place))
        await deck.save_vault(made)
    return await vaults.show(deck, made)


def _copy(reader: VaultReader, place: Place, steps: range, origin: dict[str, Any]) -> None:
    fork_vault(reader, place.path, steps=steps, lineage=origin).close()
