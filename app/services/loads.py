"""Filling a new buffer with timesteps of a vault: `"from": {"vault": "name/uid", "ref": "v3", …}`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.services import slices
from app.services.deck import Deck, VaultEntry
from fbxcore.errors import InvalidArgumentError
from fbxcore.live import BufferConfig, LiveBuffer, check_source, load
from fbxcore.spec import spec_to_json
from fbxcore.vault.store import VaultReader

Source = tuple[VaultEntry, slices.Slice]


async def complete(deck: Deck, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a buffer is asked to be, with the vault's spec where none is given."""
    source = given.get("from")
    if "spec" in given or not isinstance(source, Mapping) or not isinstance(source.get("vault"), str):
        return given
    entry = await _vault(deck, source["vault"])
    return {**given, "spec": spec_to_json(entry.facts.spec)}


async def find(deck: Deck, config: BufferConfig) -> Source | None:
    """Return the timesteps a buffer is to begin with.

    Raises:
        InvalidArgumentError: if the buffer could not hold them as they are.
    """
    if config.source is None:
        return None
    words = dict(config.source)
    entry = await _vault(deck, words.pop("vault"))
    if config.persist_to == entry.place.key:
        raise InvalidArgumentError(
            f"`persist_to` must be another vault than `from`, got {config.persist_to!r} for both.",
            loc=("persist_to",),
        )
    ref = words.pop("ref", None)
    found = await slices.find(deck, entry, slices.Asked(ref=None if ref is None else str(ref), **words))
    check_source(config, entry.facts.spec, entry.facts.rows, found.steps)
    return entry, found


def filler(source: Source | None) -> Callable[[LiveBuffer], Awaitable[None]] | None:
    """Return what fills a new buffer before anybody sees it."""
    if source is None:
        return None
    entry, found = source

    async def fill(buffer: LiveBuffer) -> None:
        reader = await asyncio.to_thread(VaultReader.open, entry.place.path, generation=found.generation)
        entry.reading.append(reader.generation)
        try:
            await load(buffer.fill, reader, found.steps, as_items=buffer.layout.items)
        finally:
            entry.reading.remove(reader.generation)
            reader.close()

    return fill


async def _vault(deck: Deck, name: str) -> VaultEntry:
    vault_name, _, vault_uid = name.rpartition("/")
    try:
        entry = await deck.vault(vault_name, vault_uid)
    except LookupError as error:
        raise type(error)(str(error), loc=("from", "vault")) from error
    if entry.facts.error is not None:
        raise entry.facts.error
    return entry
