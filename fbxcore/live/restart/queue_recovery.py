"""Bringing a queue's ring back to its checkpoint: what waited and what was reserved, from vault and log."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from fbxcore.errors import DamagedError
from fbxcore.live.durable.checkpoint import Checkpoint
from fbxcore.live.durable.frames import Frame, Kind, leaves_of
from fbxcore.live.durable.journal import Journal
from fbxcore.live.restart.whole import Whole
from fbxcore.live.rings.queue_ring import QueueRing

_BLOCK_STEPS = 1024


def restore_queue(
    ring: QueueRing, journal: Journal, checkpoint: Checkpoint, frames: Iterator[Frame], base: Whole | None
) -> Iterator[Frame]:
    """Restore a fresh ring to where a checkpoint stands; return the frames behind it.

    Raises:
        DamagedError: if a timestep it must hold is neither in the vault nor in the log.
    """
    counters = checkpoint.counters
    ring.begin_restore(checkpoint.bookkeeping, counters)
    at = counters.oldest
    if base is not None and base.counters.position > at and base.counters.ring_start == counters.ring_start:
        ring.place_whole(base.counters, base.bookkeeping, base.experience)
        at = base.counters.position
    if journal.persister is not None:
        at = _place_from_vault(ring, journal, at, counters.position)
    later: list[Frame] = []
    for frame in frames:
        if frame.sequence > counters.sequence:
            later.append(frame)
            break
        if frame.kind is Kind.ADD and frame.position <= at < frame.end:
            leaves = leaves_of(ring.spec, frame, ring.layout.rows)
            ring.place(at, {name: leaf[:, at - frame.position :] for name, leaf in leaves.items()})
            at = frame.end
    if at < counters.position:
        raise DamagedError(
            f"The log must hold timesteps {at} to {counters.position} of the queue, got a gap there. "
            "Restore its segments from a backup.",
            file=journal.log.directory.name,
        )
    return itertools.chain(later, frames)


def _place_from_vault(ring: QueueRing, journal: Journal, start: int, stop: int) -> int:
    """Copy what the vault has of what the ring holds; return where the log must go on."""
    stop = min(stop, journal.persister.applied.position)
    for at in range(start, stop, _BLOCK_STEPS):
        end = min(at + _BLOCK_STEPS, stop)
        for leaves in journal.persister.stretches.read(at, end) if ring.holds(at, end) else ():
            ring.place(at, leaves)
            at += next(iter(leaves.values())).shape[1]
    return max(start, stop)
