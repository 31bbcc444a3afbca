"""Buffers: made, described, fed, sampled and removed. Plain values in, plain values out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from app.services import chains, files, loads, mixers
from app.services.deck import Deck
from app.services.mirror import Listed, read_cursor, write_cursor
from fbxcore.errors import ConflictError, InvalidArgumentError
from fbxcore.live import BufferConfig, Counters, LiveBuffer, LiveMixer, MixerConfig, describe_buffer
from fbxcore.spec import check_leaves
from fbxcore.types import LeafSpec, Leaves

logger = logging.getLogger("flashdeck")

PRIORITIES = {
    "generations": LeafSpec((), "int64"),
    "indices": LeafSpec((), "int32"),
    "priorities": LeafSpec((), "float32"),
}


async def create(deck: Deck, given: Mapping[str, Any]) -> dict[str, Any]:
    """Make a buffer that must not exist yet."""
    config = await _parse(deck, given)
    async with deck.name_locks[config.name]:
        if _exists(deck, config.name):
            raise ConflictError(
                f"`name` must be new, got {config.name!r}, which exists. PUT it to accept an equal one.",
                code="exists",
                loc=("name",),
            )
        return await _create(deck, config)


async def ensure(
    deck: Deck, name: str, given: Mapping[str, Any], *, dry_run: bool
) -> tuple[dict[str, Any], bool]:
    """Make a buffer, or find the one of equal configuration; return it and whether it was made."""
    config = await _parse(deck, {"name": name, **given})
    if config.name != name:
        raise InvalidArgumentError(
            f"`name` must be the one in the path, {name!r}, got {config.name!r}.", loc=("name",)
        )
    async with deck.name_locks[name]:
        if not _exists(deck, name):
            return (await _described(deck, config), False) if dry_run else (await _create(deck, config), True)
        found = deck.sampler(name)
        if differences := found.config.differences(config):
            raise ConflictError(
                f"Buffer {name!r} must be asked for with its own configuration, got another "
                f"{', '.join(f'`{field}`' for field in differences)}. Delete it, or choose another name.",
                code="config_differs",
                difference=differences,
            )
        return found.describe(), False


async def try_out(deck: Deck, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a buffer would be, and make nothing."""
    return await _described(deck, await _parse(deck, given))


async def _parse(deck: Deck, given: Mapping[str, Any]) -> BufferConfig | MixerConfig:
    if (mixer := mixers.parse(given)) is not None:
        return mixer
    complete = await loads.complete(deck, given)
    _check_rows(deck, complete.get("add_batch_size"))
    return BufferConfig.parse(complete)


async def _described(deck: Deck, config: BufferConfig | MixerConfig) -> dict[str, Any]:
    if isinstance(config, MixerConfig):
        return await mixers.describe(deck, config)
    _check_bounds(deck, config)
    await loads.find(deck, config)
    return describe_buffer(config, Counters())


async def _create(deck: Deck, config: BufferConfig | MixerConfig) -> dict[str, Any]:
    if isinstance(config, MixerConfig):
        return await mixers.create(deck, config)
    _check_bounds(deck, config)
    source = await loads.find(deck, config)
    directory = files.inside(deck.data / "buffers", config.name)
    if directory.exists():
        await asyncio.to_thread(files.remove_tree, files.set_aside_buffer(directory, deck.data / "trash"))
    await _claim_vault(deck, config)
    deck.reserved_bytes += config.num_bytes
    try:
        await loads.prepare(source, directory)
        buffer = await LiveBuffer.open(
            directory,
            config,
            vaults=deck.data / "vaults",
            first=loads.filler(source),
            max_log_bytes=deck.settings.max_log_bytes,
        )
    except BaseException:
        deck.reserved_bytes -= config.num_bytes
        deck.owners.pop(chains.newest_key(deck, config.persist_to or ""), None)
        if directory.is_dir():
            await asyncio.to_thread(files.remove_tree, directory)
        raise
    deck.buffers[config.name] = buffer
    await deck.attempt(deck.save_buffers)
    if config.persist_to is not None:
        await deck.attempt(deck.scan)
    return buffer.describe()


async def _claim_vault(deck: Deck, config: BufferConfig) -> None:
    """Take the vault for this buffer alone."""
    if config.persist_to is None:
        return
    name, _, uid = config.persist_to.rpartition("/")
    deck.new_place(name, uid)  # refuses links on the way
    key = chains.newest_key(deck, config.persist_to)
    if (owner := deck.owners.get(key)) is not None:
        raise ConflictError(
            f"`persist_to` must name a vault without a writer, got {key!r}, which buffer {owner!r} persists "
            "to.",
            code="vault_in_use",
            loc=("persist_to",),
            buffer=owner,
        )
    entry = deck.vaults.get(key)
    if entry is not None and entry.place.read_only:
        raise ConflictError(
            f"`persist_to` must name a vault of ours, got {key!r} of the read-only folder.",
            code="read_only",
            loc=("persist_to",),
        )
    deck.owners[key] = config.name
    if entry is not None:
        try:
            await chains.release(deck, entry)
        except BaseException:
            del deck.owners[key]
            raise


def _exists(deck: Deck, name: str) -> bool:
    return any(name in there for there in (deck.buffers, deck.mixes, deck.starting, deck.failed))


def _check_rows(deck: Deck, rows: Any) -> None:
    """Refuse too many rows first: the lengths that would not suffice for them are not at fault."""
    if isinstance(rows, int) and rows > deck.settings.max_rows:
        raise InvalidArgumentError(
            f"`add_batch_size` must be at most {deck.settings.max_rows}, got {rows}.",
            code="limit_exceeded",
            loc=("add_batch_size",),
        )


def _check_bounds(deck: Deck, config: BufferConfig) -> None:
    """Refuse what would not fit, before anything is allocated."""
    free = deck.settings.max_memory_bytes - deck.reserved_bytes
    if config.num_bytes > free:
        length = config.length_argument
        raise InvalidArgumentError(
            f"`{length}` must fit the {free} bytes left for buffers, got {config.num_bytes}. Ask for "
            "a smaller one, or raise FLASHDECK_MAX_MEMORY_BYTES.",
            code="limit_exceeded",
            loc=(length,),
        )


def list_page(deck: Deck, *, query: str | None, limit: int, next: str | None) -> Listed:
    """Return one page of the buffers by name; from memory, so every number is the present one."""
    known = (*deck.samplers, *deck.starting, *deck.failed)
    names = sorted(name for name in known if _matches(name, query))
    after = read_cursor(next, [str])[0] if next is not None else ""
    page = [name for name in names if name > after]
    items = [_summary(deck, name) for name in page[:limit]]
    return Listed(items, write_cursor([page[limit - 1]]) if len(page) > limit else None, len(names))


def _matches(name: str, query: str | None) -> bool:
    return not query or query.lower() in name.lower()


def _summary(deck: Deck, name: str) -> dict[str, Any]:
    if (buffer := deck.samplers.get(name)) is not None:
        return {"state": "open", **buffer.describe()}
    if (error := deck.failed.get(name)) is not None:
        return {"name": name, "state": "damaged", "error": str(error)}
    done, total = deck.starting[name]
    return {"name": name, "state": "starting", "progress": {"done": done, "total": total, "unit": "bytes"}}


def show(deck: Deck, name: str) -> dict[str, Any]:
    """Return one buffer."""
    return deck.sampler(name).describe()


async def change(deck: Deck, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Change what a buffer lets be changed while it runs; whoever waits looks again."""
    deck.buffer(name)
    async with deck.name_locks[name]:
        buffer = deck.buffer(name)
        before = buffer.config
        await buffer.change(given)
    for field, values in before.differences(buffer.config).items():
        logger.info("buffer %s: %s was changed from %r to %r", name, field, values["is"], values["given"])
    await deck.attempt(deck.save_buffers)
    return buffer.describe()


async def delete(deck: Deck, name: str, *, discard: bool) -> None:
    """Remove a buffer; its vault stays, and so do a mixer's members."""
    if name in deck.mixes:
        return await mixers.delete(deck, name)
    if name not in deck.failed:
        deck.buffer(name)  # a lock is kept for every name: none for names of nothing
    async with deck.name_locks[name]:
        if name not in deck.failed:
            buffer = deck.buffer(name)
            await _check_discard(buffer, discard, "DELETE")
            mixers.check_unused(deck, name)
            del deck.buffers[name]
            await buffer.close()
            deck.reserved_bytes -= buffer.config.num_bytes
        elif not discard:
            raise ConflictError(
                f"Buffer {name!r} is damaged and may hold data that lie nowhere else. Pass `discard=true`.",
                code="unpersisted_data",
                loc=("query", "discard"),
            )
        deck.failed.pop(name, None)
        place = files.set_aside_buffer(files.inside(deck.data / "buffers", name), deck.data / "trash")
        deck.owners = {key: owner for key, owner in deck.owners.items() if owner != name}
    await asyncio.to_thread(files.remove_tree, place)
    await deck.attempt(deck.save_buffers)


async def reset(deck: Deck, name: str, *, discard: bool) -> dict[str, Any]:
    """Forget all items of a buffer; what its vault holds stays."""
    deck.buffer(name)
    async with deck.name_locks[name]:
        buffer = deck.buffer(name)
        await _check_discard(buffer, discard, "reset")
        await buffer.reset()
    return buffer.describe()


async def _check_discard(buffer: LiveBuffer, discard: bool, verb: str) -> None:
    """Commit what can be committed; refuse to lose the rest unless asked to."""
    if discard:
        return
    if buffer.config.persist_to is not None:
        await buffer.flush()
    if buffer.unpersisted:
        raise ConflictError(
            f"Buffer {buffer.config.name!r} must hold nothing that lies in no vault to {verb} it, got "
            f"{buffer.unpersisted} timesteps. Pass `discard=true` to lose them.",
            code="unpersisted_data",
            loc=("query", "discard"),
            unpersisted=buffer.unpersisted,
        )


def check_sample_bytes(deck: Deck, buffer: LiveBuffer | LiveMixer, batch_size: int | None) -> None:
    """Refuse an answer over the limit before it is drawn."""
    items = batch_size if batch_size is not None else buffer.layout.sample_batch_size
    size = items * buffer.item_bytes
    if size > deck.settings.max_response_bytes:
        raise InvalidArgumentError(
            f"`batch_size` must come to at most {deck.settings.max_response_bytes} bytes, got {items} items "
            f"of {size} bytes together. Ask for fewer at a time.",
            code="limit_exceeded",
            loc=("query", "batch_size"),
        )


def converted(spec: Mapping[str, LeafSpec], leaves: Leaves) -> list[str]:
    """Return what a cast will do, one text for each leaf of another dtype."""
    return [
        f"{name}: {leaves[name].dtype.name} -> {leaf.dtype}"
        for name, leaf in spec.items()
        if name in leaves and leaves[name].dtype.name != leaf.dtype
    ]


async def set_priorities(deck: Deck, name: str, arrays: Leaves) -> dict[str, int]:
    """Set priorities of sampled items; those overwritten since are counted as stale."""
    buffer = deck.buffer(name)
    checked = check_leaves(PRIORITIES, arrays, leading=1, cast="same_kind")
    answer = await buffer.set_priorities(checked["indices"], checked["priorities"], checked["generations"])
    return {"updated": answer.updated, "stale": answer.stale}


def stats(deck: Deck, name: str) -> dict[str, Any]:
    """Return counters, rates and sizes."""
    return deck.sampler(name).stats()


def fault_of(deck: Deck, buffer: LiveBuffer) -> str:
    """Return what keeps a buffer's steps out of its vault; empty where nothing does."""
    entry = deck.vaults.get(buffer.config.persist_to or "")
    fault = deck.fault(entry) if entry is not None else None
    if fault is not None:
        return str(fault)
    persisted = buffer.describe()["persisted"]
    return (persisted or {}).get("error") or ""


async def histogram(deck: Deck, name: str, field: str, bins: int) -> dict[str, Any]:
    """Return the edges and counts of a field over all items."""
    return await deck.sampler(name).histogram(field, bins)


def timeseries(deck: Deck, name: str, metric: str, points: int) -> dict[str, Any]:
    """Return a metric over time."""
    return deck.sampler(name).timeseries.read(metric, points)
