"""What a new buffer begins with: timesteps of a vault, or a snapshot of a buffer.

`"from": {"vault": "name/uid", "ref": "v3", …}` fills it; `"from": {"snapshot": id}` makes it what that buffer
was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from app.services import slices, snapshots
from app.services.deck import Deck, VaultEntry
from app.services.entries import read as read_vault
from app.services.snapshots import Snapshot
from fbxcore.errors import InvalidArgumentError
from fbxcore.live import BufferConfig, LiveBuffer, adopt_whole, check_source, load, load_runs, rows_for
from fbxcore.spec import spec_to_json
from fbxcore.vault.store import VaultReader

Source = tuple[VaultEntry, slices.Slice]


async def complete(deck: Deck, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a buffer is asked to be, with what its source says where nothing is given."""
    source = given.get("from")
    if isinstance(source, Mapping) and isinstance(source.get("snapshot"), str):
        return await _complete_from_snapshot(deck, given, source["snapshot"])
    if "spec" in given or not isinstance(source, Mapping) or not isinstance(source.get("vault"), str):
        return given
    entry = await _vault(deck, source["vault"])
    return {**given, "spec": spec_to_json(entry.facts.spec)}


async def _complete_from_snapshot(deck: Deck, given: Mapping[str, Any], snapshot_id: str) -> dict[str, Any]:
    found = await snapshots.find(deck, snapshot_id, loc=("from", "snapshot"))
    saved = found.config.to_json()
    own = ("name", "persist_to", "retain_steps")
    kept = {name: value for name, value in saved.items() if name not in own}
    if (kind := given.get("kind", saved["kind"])) != saved["kind"]:
        raise snapshots.another({"kind": {"is": saved["kind"], "given": kind}})
    return {**kept, **given}


async def find(deck: Deck, config: BufferConfig) -> Source | Snapshot | None:
    """Return the timesteps or the snapshot a buffer is to begin with.

    Raises:
        ConflictError: if the snapshot is of another buffer.
        InvalidArgumentError: if the buffer could not hold them as they are.
    """
    if config.source is None:
        return None
    words = dict(config.source)
    if "snapshot" in words:
        found = await snapshots.find(deck, words["snapshot"], loc=("from", "snapshot"))
        snapshots.check_same(config, found)
        return found
    entry = await _vault(deck, words.pop("vault"))
    if config.persist_to == entry.place.key:
        raise InvalidArgumentError(
            f"`persist_to` must be another vault than `from`, got {config.persist_to!r} for both.",
            loc=("persist_to",),
        )
    ref = words.pop("ref", None)
    found = await slices.find(deck, entry, slices.Asked(ref=None if ref is None else str(ref), **words))
    check_source(config, entry.facts.spec, entry.facts.rows, found.steps)
    if config.layout.independent:
        check = lambda reader: rows_for(config, reader.segments(), found.steps)  # noqa: E731
        await read_vault(deck.reads, check, entry, found.generation)
    return entry, found


async def prepare(source: Source | Snapshot | None, directory: Path) -> None:
    """Put a snapshot where a new buffer will begin from it."""
    if isinstance(source, Snapshot):
        await asyncio.to_thread(adopt_whole, source.path, directory)


def filler(source: Source | Snapshot | None) -> Callable[[LiveBuffer], Awaitable[None]] | None:
    """Return what fills a new buffer before anybody sees it."""
    if source is None or isinstance(source, Snapshot):
        return None
    entry, found = source

    async def fill(buffer: LiveBuffer) -> None:
        reader = await asyncio.to_thread(VaultReader.open, entry.place.path, generation=found.generation)
        entry.reading.append(reader.generation)
        try:
            await _fill(buffer, reader, found.steps)
        finally:
            entry.reading.remove(reader.generation)
            reader.close()

    return fill


async def _fill(buffer: LiveBuffer, reader: VaultReader, steps: range) -> None:
    if not buffer.layout.independent:
        return await load(buffer.fill, reader, steps, as_items=buffer.layout.items)
    segments = await asyncio.to_thread(reader.segments)
    await load_runs(buffer.independent.fill, reader, steps, rows_for(buffer.config, segments, steps))
    await buffer.flush()


async def _vault(deck: Deck, name: str) -> VaultEntry:
    vault_name, _, vault_uid = name.rpartition("/")
    try:
        entry = await deck.vault(vault_name, vault_uid)
    except LookupError as error:
        raise type(error)(str(error), loc=("from", "vault")) from error
    if entry.facts.error is not None:
        raise entry.facts.error
    return entry
