"""Vaults: found, described, changed, appended to. Plain values in, plain values out."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import orjson

from app.services import chains, mirror
from app.services.deck import Deck, VaultEntry
from app.services.folders import Place, continued_key
from app.services.mirror import Listed
from fbxcore.errors import ConflictError, InvalidArgumentError
from fbxcore.live import Appended
from fbxcore.live.durable.files import replace_file
from fbxcore.spec import spec_to_json
from fbxcore.types import Leaves
from fbxcore.vault.faults import FOREIGN_WRITER
from fbxcore.vault.retention import Retention, set_retention
from fbxcore.vault.store import VaultWriter

T = TypeVar("T")
NOTES = "metadata.json"
MAX_METADATA_BYTES = 1 << 16
_RESERVED = ("version", "structure_shape", "structure_dtype", "compression")


def new_uid() -> str:
    """Return the uid of a vault that was given none: the time."""
    return time.strftime("%Y%m%d%H%M%S", time.gmtime())


def check_new(deck: Deck, place: Place) -> None:
    """Refuse a name that a vault has, or that a buffer will give to one."""
    if place.key in deck.vaults or place.key in deck.owners or place.path.exists():
        raise ConflictError(
            f"`vault_uid` must be new, got {place.key!r}, which exists.", code="exists", loc=("vault_uid",)
        )


def check_ours(entry: VaultEntry) -> None:
    """Refuse to change a vault of the other folder."""
    if entry.place.read_only:
        raise ConflictError(
            f"Vault {entry.place.key!r} must be one of ours to be changed, got one of the other folder.",
            code="read_only",
        )


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that would hide the vault's own names, or that `check_json` refuses."""
    for name in metadata:
        if name in _RESERVED:
            raise InvalidArgumentError(
                f"`metadata` must not use the vault format's own names {', '.join(_RESERVED)}, got {name!r}.",
                loc=("metadata", name),
            )
    check_json(metadata)


def check_json(metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that is not exactly JSON, or grows without bound."""
    try:
        size = len(orjson.dumps(metadata))
    except TypeError as error:  # half a character, or an integer beyond 64 bits
        raise InvalidArgumentError(
            f"`metadata` must be plain JSON, got a value that is not: {error}.", loc=("metadata",)
        ) from None
    if size > MAX_METADATA_BYTES:
        raise InvalidArgumentError(
            f"`metadata` must have at most {MAX_METADATA_BYTES} bytes as JSON, got {size}.", loc=("metadata",)
        )


async def list_page(deck: Deck, *, query: str | None, sort: str, limit: int, next: str | None) -> Listed:
    """Return one page of the vaults: stored columns, with present lengths of those being written."""
    if sort not in mirror.SORTS:
        raise InvalidArgumentError(
            f"`sort` must be one of {', '.join(mirror.SORTS)}, got {sort!r:.80}.", loc=("query", "sort")
        )
    if query is not None and "\0" in query:
        raise InvalidArgumentError("`query` must be text without null bytes.", loc=("query", "query"))
    if sort.removeprefix("-") == "length":
        await save_lengths(deck)
    listed = await mirror.list_vaults(deck.database, query=query, sort=sort, limit=limit, next=next)
    return Listed([_summary(deck, row) for row in listed.items], listed.next, listed.total)


async def save_lengths(deck: Deck) -> None:
    """Copy the lengths of vaults being written into the mirror, so that it sorts by present ones."""
    lengths = {(e.place.vault_name, e.place.vault_uid): growth(deck, e)[0] for e in deck.growing()}
    await mirror.save_lengths(deck.database, lengths)


def _summary(deck: Deck, row: dict[str, Any]) -> dict[str, Any]:
    key = f"{row['vault_name']}/{row['vault_uid']}"
    keep = set(row) - {"path", "fingerprint", "num_versions"}
    entry = deck.vaults.get(key)
    length, pending = growth(deck, entry) if entry is not None else (row["length"], 0)
    wrong = wrong_with(deck, entry) if entry is not None else {}
    return (
        {name: row[name] for name in sorted(keep)}
        | wrong
        | {
            "url": url_of(row["vault_name"], row["vault_uid"]),
            "length": length,
            "pending": pending,
            "versions": row["num_versions"],
            "buffer": deck.owners.get(key),
        }
    )


async def show(deck: Deck, entry: VaultEntry) -> dict[str, Any]:
    """Return one vault.

    Raises:
        DamagedError: if nothing can be read in it.
    """
    place, facts = entry.place, entry.facts
    if facts.error is not None:
        raise facts.error
    length, pending = growth(deck, entry)
    metadata = await _metadata(entry)
    return {
        "vault_name": place.vault_name,
        "vault_uid": place.vault_uid,
        "url": url_of(place.vault_name, place.vault_uid),
        **wrong_with(deck, entry),
        "read_only": place.read_only,
        "buffer": deck.owners.get(place.key),
        "spec": spec_to_json(facts.spec),
        "rows": facts.rows,
        "length": length,
        "first": facts.first,
        "pending": pending,
        "generation": facts.generation,
        "live_bytes": facts.live_bytes,
        "disk_bytes": facts.disk_bytes,
        "fps": metadata.pop("fps") if _is_rate(metadata.get("fps")) else None,
        "metadata": metadata,
        "versions": len(facts.versions),
        "latest_version": facts.versions[-1].number if facts.versions else None,
        "tags": {name: tag.version for name, tag in sorted(facts.tags.items())},
        "lineage": facts.lineage,
        "continued_in": continued_key(place, facts),
        "retention": asdict(facts.retention) if facts.retention else None,
        "updated_at": facts.updated_at,
    }


def _is_rate(value: Any) -> bool:
    """Return whether what anybody may have written under `fps` is one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def wrong_with(deck: Deck, entry: VaultEntry) -> dict[str, str | None]:
    """Return a vault's state in a word, and what is wrong with it in a sentence."""
    fault = deck.fault(entry)
    if fault is None:
        return {"state": "ok", "error": None}
    return {"state": "foreign_writer" if fault.code == FOREIGN_WRITER else "damaged", "error": str(fault)}


def growth(deck: Deck, entry: VaultEntry) -> tuple[int, int | None]:
    """Return a vault's length with what is acknowledged, and how much of that is still in a log.

    Where another program wrote to the vault, the log has no place in it: the length is that of the files.
    None stands for a log that could not be opened.
    """
    length, pending = _logged(deck, entry)
    if (fault := deck.fault(entry)) is not None and fault.code == FOREIGN_WRITER:
        return entry.facts.length, pending
    return (entry.facts.length, 0) if length is None else (length, pending)


def _logged(deck: Deck, entry: VaultEntry) -> tuple[int | None, int | None]:
    if entry.live is not None:
        return entry.live.length, entry.live.pending
    buffer = deck.buffers.get(deck.owners.get(entry.place.key, ""))
    if buffer is not None and (persisted := buffer.describe()["persisted"]):
        return persisted["length"], persisted["pending"]
    return None, None


async def change(
    deck: Deck, entry: VaultEntry, metadata: Mapping[str, Any], retention: Retention | None = None
) -> dict[str, Any]:
    """Merge metadata into a vault's, where a value of None takes a name away; set its retention if given."""
    if entry.facts.error is not None:
        raise entry.facts.error
    if retention is not None:
        check_ours(entry)
    check_metadata(metadata)
    merged = _merged(await _metadata(entry), metadata)
    check_metadata(merged)
    if entry.place.read_only:
        await asyncio.to_thread(_write_notes, entry, orjson.dumps(merged))
    else:
        await with_writer(deck, entry, lambda writer: _change(writer, merged, retention))
    await deck.refresh(entry, anyway=True)
    return await show(deck, entry)


def _change(writer: VaultWriter, metadata: Mapping[str, Any], retention: Retention | None) -> None:
    if dict(metadata) != writer.metadata:
        writer.update_metadata(metadata)
    if retention is not None:
        set_retention(writer, retention)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**old, **new}.items() if value is not None}


async def _metadata(entry: VaultEntry) -> dict[str, Any]:
    """Return a vault's metadata; a read-only one's lies beside it, where it was changed."""
    if not entry.place.read_only:
        return dict(entry.facts.metadata)
    return await asyncio.to_thread(_read_notes, entry)


def _read_notes(entry: VaultEntry) -> dict[str, Any]:
    path = entry.place.catalog / NOTES
    return orjson.loads(path.read_bytes()) if path.is_file() else dict(entry.facts.metadata)


def _write_notes(entry: VaultEntry, body: bytes) -> None:
    entry.place.catalog.mkdir(parents=True, exist_ok=True)
    replace_file(entry.place.catalog / NOTES, body)


async def append(
    deck: Deck,
    entry: VaultEntry,
    leaves: Leaves,
    *,
    idempotency_key: str | None,
    writer: str | None,
    sequence: int | None,
    cast: str | None,
) -> Appended:
    """Append a batch exactly once."""
    live = await deck.live_vault(entry)
    return await live.add(
        leaves, idempotency_key=idempotency_key, writer=writer, sequence=sequence, cast=cast
    )


async def commit(deck: Deck, entry: VaultEntry) -> None:
    """Commit everything acknowledged, so that a reader sees it.

    Raises:
        FbxError: whatever keeps acknowledged timesteps in a log and out of the vault.
    """
    owner = deck.owners.get(entry.place.key, "")
    if owner in deck.buffers or owner in deck.starting or owner in deck.failed:
        await deck.buffer(owner).flush()
    elif entry.live is not None:
        await entry.live.flush()
    elif await asyncio.to_thread(chains.find_log, deck, entry) is not None:
        await (await deck.live_vault(entry)).flush()
    await deck.refresh(entry)


async def with_writer(deck: Deck, entry: VaultEntry, call: Callable[[VaultWriter], T]) -> T:
    """Commit everything acknowledged, then run a call on the vault's one writer, in a thread."""
    await commit(deck, entry)
    if (owner := deck.owners.get(entry.place.key)) is not None:
        return await asyncio.to_thread(call, deck.buffer(owner).vault_writer)
    deck.check_writable(entry)
    async with entry.lock:
        if entry.live is not None:
            return await asyncio.to_thread(call, entry.live.writer)
        return await asyncio.to_thread(_with_own_writer, entry, call)


def _with_own_writer(entry: VaultEntry, call: Callable[[VaultWriter], T]) -> T:
    with VaultWriter.open(entry.place.path) as writer:
        return call(writer)


def url_of(vault_name: str, vault_uid: str) -> str:
    """Return the two parts of a vault's address, before percent-encoding."""
    return f"{vault_name.replace('~', '%7E').replace('/', '~')}/{vault_uid}"
