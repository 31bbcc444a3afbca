"""What a live buffer does once a second: note rates, checkpoint, and let old log segments go."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from fbxcore.errors import FbxError
from fbxcore.live.config import BufferConfig
from fbxcore.live.durable.checkpoint import Checkpoint, Counters
from fbxcore.live.durable.frames import Frame, Kind
from fbxcore.live.restart.bases import BaseKeeper
from fbxcore.live.restart.opening import Parts
from fbxcore.live.restart.whole import remove_whole
from fbxcore.live.timeseries import Timeseries

CHECKPOINT_BYTES = 64 << 20
CHECKPOINT_S = 60.0
METRICS = ("size", "added", "sampled", "updated")
_log = logging.getLogger("flashdeck")


class Housekeeper:
    """Keeps one buffer's house; belongs to the event loop that calls `start`."""

    def __init__(self, directory: Path, config: BufferConfig, parts: Parts, alone: asyncio.Lock):
        self.timeseries = Timeseries(METRICS)
        # Where the log's base stands, while the ring needs it.
        self.base: Counters | None = None if parts.base is None else parts.base.counters
        self._directory = directory
        self.config = config
        self._ring, self._engine, self._journal = parts.ring, parts.engine, parts.journal
        self._logged_sampled = parts.ring.counters.sampled
        self._saved: Counters | None = None  # by the last checkpoint
        self._saved_at = 0.0
        self._bases = BaseKeeper(directory, parts.ring, parts.engine, parts.journal, alone)
        self._ticker: asyncio.Task | None = None

    def start(self, *, is_warm: bool) -> None:
        """Begin; a buffer that is not warm compiles first what requests will need."""
        self._ticker = asyncio.create_task(self._tick(is_warm=is_warm))

    def stop(self) -> None:
        """Do nothing more by itself."""
        if self._ticker is not None:
            self._ticker.cancel()

    async def _tick(self, *, is_warm: bool) -> None:
        """Once a second: note rates and how much was sampled, and let old log segments go.

        A buffer that was brought back first compiles what requests will need, piece by piece, so that it
        serves at once and early requests wait for one piece at most. A new one has done so.
        """
        for warm_up in [] if is_warm else self._ring.warm_ups():
            self._note_rates()
            await self._engine.ask(warm_up)
        while True:
            self._note_rates()
            await asyncio.sleep(1)
            try:
                await self._keep_house()
            except (FbxError, OSError) as error:
                _log.warning("Buffer %s: housekeeping is tried again: %s", self.config.name, error)

    async def _keep_house(self) -> None:
        await self.log_sampled()
        persister = self._journal.persister
        if persister is not None and persister.error is not None and persister.pending:
            persister.flush().add_done_callback(lambda done: done.exception())
        if self._ring.layout.keeps_base:
            await self._bases.keep()
        elif self._is_due():
            await self.checkpoint()
        elif self._saved is not None and len(self._journal.log.segments) > 1:
            await self._drop(self._saved)

    def _is_due(self) -> bool:
        """Whether so much is new, or so long ago, that a replay would take its time."""
        room = self._journal.room
        if self.config.durability == "none" or room.unsaved_bytes == 0:
            return False
        is_much = room.unsaved_bytes >= min(CHECKPOINT_BYTES, room.max_bytes // 4)
        return is_much or time.monotonic() - self._saved_at >= CHECKPOINT_S

    def _note_rates(self) -> None:
        counters, ring = self._ring.counters, self._ring
        added = counters.position * ring.layout.rows_in_step
        self.timeseries.note(
            time.time(), size=ring.size, added=added, sampled=counters.sampled, updated=counters.updated
        )

    async def log_sampled(self) -> None:
        """Write down how many items were handed out, which a queue's takes say themselves."""
        if self.config.layout.is_queue:
            return
        sampled = self._ring.counters.sampled
        if sampled != self._logged_sampled and not self._journal.room.is_full:
            await self._journal.put(Frame(Kind.SAMPLED, {"sampled": sampled}))
            self._logged_sampled = sampled

    async def checkpoint(self) -> None:
        """Save all that is not experience, and drop the log segments that are no longer needed."""
        journal = self._journal
        if self.config.durability == "none" and journal.persister is None:
            return  # there would be nothing to restore it to
        if self._ring.layout.keeps_base:
            if self.config.durability == "none":
                await self._bases.write()
            return  # the log holds all that came since the last base
        written = journal.log.written_bytes
        counters, bookkeeping = await self._engine.ask(lambda ring: (ring.counters, ring.bookkeeping()))
        ledger = journal.ledger.freeze()
        await asyncio.to_thread(journal.log.sync)  # the log is never behind its checkpoint
        await asyncio.to_thread(
            lambda: Checkpoint(journal.log.id, counters, bookkeeping, ledger()).save(self._directory)
        )
        self._saved, self._saved_at = counters, time.monotonic()
        journal.room.saved(written)
        await self._drop(counters)

    async def _drop(self, counters: Counters) -> None:
        """Let go of what of the log neither the vault, or without one the ring, nor a checkpoint needs."""
        journal = self._journal
        oldest = self._ring.oldest_of(counters)
        if self.base is not None and self.base.position <= oldest:
            await asyncio.to_thread(remove_whole, self._directory)
            self.base = None
        below = oldest if journal.persister is None else journal.persister.applied.position
        await asyncio.to_thread(journal.log.drop, below_sequence=counters.sequence + 1, below_position=below)
