"""Vaults made, or found again: a script that makes its vault can run twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.services import vaults
from app.services.deck import Deck, VaultEntry
from app.services.folders import Place, look_into
from fbxcore.errors import ConflictError, InvalidArgumentError, NotFoundError
from fbxcore.live import check_name
from fbxcore.spec import parse_spec, spec_to_json
from fbxcore.types import Spec
from fbxcore.vault.chunks import ChunkSteps, Compression
from fbxcore.vault.store import VaultWriter


@dataclass(frozen=True)
class Wanted:
    """A vault that is asked for; `chunk_steps` and `compression` count only where it is made."""

    vault_name: str
    vault_uid: str | None
    spec: Mapping[str, Any]
    rows: int
    fps: float | None
    metadata: Mapping[str, Any]
    chunk_steps: ChunkSteps
    compression: Compression


async def create(deck: Deck, wanted: Wanted) -> dict[str, Any]:
    """Make an empty vault that must not exist yet."""
    spec, place = _check(deck, wanted)
    async with deck.name_locks[f"vault:{place.key}"]:
        vaults.check_new(deck, place)
        return await _create(deck, place, spec, wanted)


async def ensure(deck: Deck, wanted: Wanted) -> tuple[dict[str, Any], bool]:
    """Make an empty vault, or find the one of that name and structure; return it and whether it was made.

    Raises:
        ConflictError: with the difference, if there is one of another structure.
    """
    spec, place = _check(deck, wanted)
    async with deck.name_locks[f"vault:{place.key}"]:
        try:
            entry = await deck.vault(place.vault_name, place.vault_uid)
        except NotFoundError:
            vaults.check_new(deck, place)
            return await _create(deck, place, spec, wanted), True
        vaults.check_ours(entry)
        found = await vaults.show(deck, entry)
        if differences := _differences(found, spec, wanted):
            raise ConflictError(
                f"Vault {place.key!r} must be asked for with its own structure, got another "
                f"{', '.join(f'`{field}`' for field in differences)}. Choose another name.",
                code="config_differs",
                difference=differences,
            )
        return found, False


def _check(deck: Deck, wanted: Wanted) -> tuple[Spec, Place]:
    uid = wanted.vault_uid if wanted.vault_uid is not None else vaults.new_uid()
    check_name(wanted.vault_name, loc=("vault_name",))
    check_name(uid, loc=("vault_uid",))
    spec = parse_spec(wanted.spec)
    if wanted.rows > deck.settings.max_rows:
        raise InvalidArgumentError(
            f"`rows` must be at most {deck.settings.max_rows}, got {wanted.rows}.",
            code="limit_exceeded",
            loc=("rows",),
        )
    vaults.check_metadata(wanted.metadata)
    return spec, deck.new_place(wanted.vault_name, uid)


async def _create(deck: Deck, place: Place, spec: Spec, wanted: Wanted) -> dict[str, Any]:
    metadata = dict(wanted.metadata) | ({} if wanted.fps is None else {"fps": wanted.fps})
    layout = {"chunk_steps": wanted.chunk_steps, "compression": wanted.compression}

    def make() -> None:
        VaultWriter.create(place.path, spec, rows=wanted.rows, metadata=metadata or None, **layout).close()

    await asyncio.to_thread(make)
    entry = deck.vaults[place.key] = VaultEntry(place, await asyncio.to_thread(look_into, place))
    await deck.save_vault(entry)
    return await vaults.show(deck, entry)


def _differences(found: Mapping[str, Any], spec: Spec, wanted: Wanted) -> dict[str, dict[str, Any]]:
    """Return in what a vault is not what is asked for; of `metadata` and `fps` what is given counts."""
    is_now = {name: found[name] for name in ("spec", "rows", "fps")}
    given = {"spec": spec_to_json(spec), "rows": wanted.rows, "fps": wanted.fps or found["fps"]}
    metadata = {"fps": found["fps"], **found["metadata"]}
    is_now |= {f"metadata.{name}": metadata.get(name) for name in wanted.metadata}
    given |= {f"metadata.{name}": value for name, value in wanted.metadata.items()}
    return {
        name: {"is": value, "given": given[name]} for name, value in is_now.items() if value != given[name]
    }
