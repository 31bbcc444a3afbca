"""Snapshots: whole live buffers as of one moment, kept in the data directory until they are deleted.

A snapshot is a directory `snapshots/<buffer>/<id>/` of files that never change. It outlives its buffer, and
`POST /buffers` with `"from": {"snapshot": id}` begins another one exactly where it was.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.services import files
from app.services.deck import Deck
from app.services.folders import iso
from app.services.mirror import Listed, read_cursor, write_cursor
from fbxcore.errors import ConflictError, DamagedError, FbxError, NotFoundError
from fbxcore.live import BufferConfig, Counters, LiveBuffer, seal, sync_directory, unseal

RECORD = "snapshot.json"
FOLDER = "snapshots"
OWN_FIELDS = ("name", "persist_to", "retain_steps", "durability", "rate_limiter", "from")
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Snapshot:
    """One snapshot: what is known of it, and where it lies."""

    record: dict[str, Any]
    path: Path

    @property
    def config(self) -> BufferConfig:
        """Return what its buffer was."""
        return BufferConfig.parse({n: v for n, v in self.record["config"].items() if n != "from"})

    def public(self) -> dict[str, Any]:
        """Return what is answered about it."""
        return self.record | {"state": "ready"}


async def create(deck: Deck, name: str) -> dict[str, Any]:
    """Write a buffer down as of one moment; adds and samples go on meanwhile."""
    buffer = deck.buffer(name)
    await _check_room(deck, buffer)
    folder, snapshot_id = files.inside(deck.data / FOLDER, name), secrets.token_hex(8)
    half_made = folder / f".{snapshot_id}.tmp"
    await asyncio.to_thread(half_made.mkdir, parents=True)
    deck.snapshots_begun[snapshot_id] = (name, 0, buffer.config.num_bytes)

    def note(done: int, total: int) -> None:
        deck.snapshots_begun[snapshot_id] = (name, done, total)

    try:
        counters, size = await buffer.snapshot(half_made, note)
        record = _record(buffer, snapshot_id, counters, size)
        found = await asyncio.to_thread(_finish, half_made, folder / snapshot_id, record)
    except BaseException:
        await asyncio.to_thread(files.remove_tree, half_made)
        raise
    finally:
        del deck.snapshots_begun[snapshot_id]
    return found.public()


def _record(buffer: LiveBuffer, snapshot_id: str, counters: Counters, size: int) -> dict[str, Any]:
    return {
        "id": snapshot_id,
        "buffer": buffer.config.name,
        "created_at": iso(time.time()),
        "sequence": counters.sequence,
        "position": counters.position - counters.ring_start,
        "size": size,
        "sampled": counters.sampled,
        "kind": buffer.config.kind,
        "config": buffer.config.to_json(),
    }


def _finish(half_made: Path, path: Path, record: dict[str, Any]) -> Snapshot:
    record["bytes"] = sum(file.stat().st_size for file in half_made.iterdir())
    with open(half_made / RECORD, "wb") as file:
        file.write(seal(record))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(half_made)
    os.rename(half_made, path)
    sync_directory(path.parent)
    return Snapshot(record, path)


async def _check_room(deck: Deck, buffer: LiveBuffer) -> None:
    """Refuse what would take all snapshots together over their bound."""
    held = sum(found.record["bytes"] for found in await asyncio.to_thread(_find_all, deck.data, "*"))
    limit = deck.settings.max_snapshot_bytes
    if held + buffer.config.num_bytes > limit:
        raise ConflictError(
            f"The snapshots must take at most {limit} bytes together, got {held} and a buffer of "
            f"{buffer.config.num_bytes}. Delete some, or raise FLASHDECK_MAX_SNAPSHOT_BYTES.",
            code="limit_exceeded",
            bytes=held,
            limit=limit,
        )


async def list_page(deck: Deck, name: str, *, limit: int, next: str | None) -> Listed:
    """Return one page of a buffer's snapshots, the newest first, behind those being written."""
    found = await asyncio.to_thread(_find_all, deck.data, _checked(deck, name))
    if not found and name not in deck.buffers:
        deck.buffer(name)  # tells that there is none, or why it is shut
    writing = [] if next is not None else _begun(deck, name)
    items = sorted((one.public() for one in found), key=_newest_first)
    after = tuple(read_cursor(next, [str, str])) if next is not None else None
    left = (
        items
        if after is None
        else [item for item in items if _newest_first(item) > (_turned(after[0]), after[1])]
    )
    page = left[:limit]
    more = write_cursor([page[-1]["created_at"], page[-1]["id"]]) if len(left) > limit else None
    return Listed([*writing, *page], more, len(items) + len(writing))


def _begun(deck: Deck, name: str) -> list[dict[str, Any]]:
    return [
        {
            "id": one,
            "buffer": buffer,
            "state": "writing",
            "progress": {"done": done, "total": total, "unit": "bytes"},
        }
        for one, (buffer, done, total) in deck.snapshots_begun.items()
        if buffer == name
    ]


async def show(deck: Deck, name: str, snapshot_id: str) -> dict[str, Any]:
    """Return one snapshot of a buffer, also while it is being written."""
    for begun in _begun(deck, name):
        if begun["id"] == snapshot_id:
            return begun
    return (await find(deck, snapshot_id, name)).public()


async def delete(deck: Deck, name: str, snapshot_id: str) -> None:
    """Remove a snapshot; buffers that began from it are not touched."""
    found = await find(deck, snapshot_id, name)
    place = deck.data / "trash" / f"snapshot-{snapshot_id}.{time.time_ns()}"
    await asyncio.to_thread(os.replace, found.path, place)
    await asyncio.to_thread(files.remove_tree, place)


async def find(
    deck: Deck, snapshot_id: str, name: str = "*", *, loc: tuple[str, ...] = ("snapshot",)
) -> Snapshot:
    """Return a snapshot by its id.

    Raises:
        NotFoundError: if there is none of that id, or of that buffer.
    """
    if _ID.fullmatch(snapshot_id):
        folder = "*" if name == "*" else _checked(deck, name)
        found = await asyncio.to_thread(_find_all, deck.data, folder, snapshot_id)
        if found:
            return found[0]
    raise NotFoundError(f"No snapshot {snapshot_id[:40]!r}.", loc=loc)


def _find_all(data: Path, folder: str, snapshot_id: str = "[0-9a-f]*") -> list[Snapshot]:
    found = []
    for path in (data / FOLDER).glob(f"{folder}/{snapshot_id}/{RECORD}"):
        try:
            found.append(Snapshot(unseal(path), path.parent))
        except (OSError, FbxError) as error:
            if snapshot_id == path.parent.name:
                raise DamagedError(f"Snapshot {snapshot_id!r} cannot be read: {error}") from error
    return found


def _checked(deck: Deck, name: str) -> str:
    """Return a buffer's name as a folder's."""
    return files.inside(deck.data / FOLDER, name).name.replace("[", "[[]").replace("*", "[*]")


def check_same(config: BufferConfig, snapshot: Snapshot) -> None:
    """Refuse a buffer that is not what the snapshot is of.

    Raises:
        ConflictError: with the difference.
    """
    differences = {
        name: values for name, values in snapshot.config.differences(config).items() if name not in OWN_FIELDS
    }
    if differences:
        raise another(differences)


def another(differences: Mapping[str, Any]) -> ConflictError:
    """Return the error for a buffer that differs from the snapshot it is to begin from."""
    return ConflictError(
        f"`from` must name a snapshot of an equal buffer, got one with another "
        f"{', '.join(f'`{name}`' for name in differences)}. Leave these out to take the snapshot's.",
        code="snapshot_differs",
        loc=("from", "snapshot"),
        difference=differences,
    )


def _newest_first(item: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    return _turned(item["created_at"]), item["id"]


def _turned(text: str) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in text)
