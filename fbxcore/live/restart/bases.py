"""The log of independent writers, and of clusters, begins from a base: all of the ring, written now and then.

In lockstep the log is as long as the ring, and old segments go one after the other. Rows that advance on
their own may hold a timestep for ever, while the log grows with the others. Whenever it has grown by as much
as the ring takes, all of the ring is therefore written down, and the log before it may go.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fbxcore.errors import DamagedError, FbxError
from fbxcore.live.durable.checkpoint import Checkpoint
from fbxcore.live.durable.frames import Frame
from fbxcore.live.durable.journal import Journal
from fbxcore.live.durable.segmenter import SegmentPersister
from fbxcore.live.restart.whole import Whole, save_whole
from fbxcore.live.rings.engine import Engine
from fbxcore.live.rings.ring import Ring

_LEAST_LOG_BYTES = 16 << 20


class BaseKeeper:
    """Writes the bases of one ring, and drops what the log needs no more."""

    def __init__(self, directory: Path, ring: Ring, engine: Engine, journal: Journal, alone: asyncio.Lock):
        self._directory = directory
        self._ring = ring
        self._engine = engine
        self._journal = journal
        self._alone = alone
        self._log_bytes = 0  # of the log when the last base was written …
        self._last_sequence = 0  # … which was of this frame

    async def keep(self) -> None:
        """Write a base if the log has grown by as much as the ring takes."""
        grown = self._journal.log.num_bytes - self._log_bytes
        ring_bytes = self._ring.layout.capacity * self._ring.timestep_bytes
        if grown >= max(_LEAST_LOG_BYTES, ring_bytes):
            await self.write()

    async def write(self) -> None:
        """Write a base now."""
        log, persister = self._journal.log, self._journal.persister
        if isinstance(persister, SegmentPersister):
            with contextlib.suppress(FbxError):  # told elsewhere; the log then keeps what the vault lacks
                await asyncio.wrap_future(persister.flush_before(self._last_sequence))
        written = log.written_bytes
        async with self._alone:
            counters, _ = await save_whole(self._directory, self._engine, self._journal.ledger)
        self._journal.room.saved(written)
        below = counters.sequence + 1
        if isinstance(persister, SegmentPersister):
            below = min(below, persister.low_sequence)
        position = 1 << 63
        if persister is not None and not isinstance(persister, SegmentPersister):
            position = persister.applied.position
        await asyncio.to_thread(log.drop, below_sequence=below, below_position=position)
        self._log_bytes, self._last_sequence = log.num_bytes, counters.sequence


def restore_runs(
    ring: Ring, journal: Journal, checkpoint: Checkpoint, frames: Iterator[Frame], base: Whole | None
) -> Iterator[Frame]:
    """Restore rows of independent writers; return the frames behind the checkpoint.

    A checkpoint without a base of the same moment is that of an empty ring, which follows a lost log.
    """
    sequence = checkpoint.counters.sequence
    if base is not None and base.counters.sequence == sequence:
        experience = {name: np.array(leaf) for name, leaf in base.experience.items()}
    elif not checkpoint.bookkeeping["size"].any():
        experience = {
            name: np.zeros(shape, dtype).reshape(ring.layout.rows, ring.layout.time_axis, *shape[1:])
            for name, (shape, dtype) in ring.step_shapes().items()
        }
    else:
        raise DamagedError(
            f"The base of frame {sequence} must lie beside the checkpoint, got another. Restore it from a "
            "backup.",
            file=journal.log.directory.name,
        )
    ring.restore(experience, checkpoint.bookkeeping, checkpoint.counters)
    if isinstance(journal.persister, SegmentPersister):
        journal.persister.expect(ring.rows)
    return itertools.dropwhile(lambda frame: frame.sequence <= sequence, frames)
