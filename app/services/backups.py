"""Backups that lie in the data directory itself: made in a moment, copied elsewhere by `flashdeck backup`."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

from app.services import backup
from app.services.deck import Deck
from fbxcore.errors import NotFoundError
from fbxcore.live import LiveBuffer

NO_SWEEP = "cut:sweeps"
"""The lock of whoever sweeps, or takes files that a sweep might."""


async def create(deck: Deck) -> dict[str, Any]:
    """Make a backup of everything as of now."""
    id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**9:09}"
    logs = [buffer.log for buffer in deck.buffers.values() if isinstance(buffer, LiveBuffer)]
    logs += [entry.live.log for entry in deck.vaults.values() if entry.live is not None]
    async with deck.name_locks[NO_SWEEP]:
        record = await asyncio.to_thread(backup.make, deck.data, _folder(deck) / id, logs)
    return {"id": id, **record}


async def list_all(deck: Deck) -> list[dict[str, Any]]:
    """Return the backups there are, the newest first."""

    def read() -> list[dict[str, Any]]:
        here = sorted(_folder(deck).glob(f"*/{backup.RECORD}"), reverse=True)
        return [{"id": path.parent.name, **backup.read_record(path.parent)} for path in here]

    return await asyncio.to_thread(read)


async def delete(deck: Deck, id: str) -> None:
    """Delete a backup."""
    known = [found["id"] for found in await list_all(deck)]
    if id not in known:
        raise NotFoundError(f"No backup {id!r:.80}. There: {', '.join(map(repr, known[:20])) or 'none'}.")
    await asyncio.to_thread(shutil.rmtree, _folder(deck) / id)


def _folder(deck: Deck) -> Path:
    return deck.data / "backups"
