"""Bringing a ring back to where acknowledged calls left it.

The checkpoint says where everything stood at one sequence number, except for experience. Timesteps up
to there come from the vault, and those the vault does not hold yet from the log; then every later frame
of the log is applied as it was the first time. Priorities and counters therefore end where they were.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fbxcore.errors import DamagedError, FbxError
from fbxcore.live.durable.applied import Applied
from fbxcore.live.durable.checkpoint import Checkpoint
from fbxcore.live.durable.frames import HEADER_BYTES, Frame, Kind
from fbxcore.live.durable.journal import Journal
from fbxcore.live.durable.rows import RUN_KINDS
from fbxcore.live.restart.bases import restore_runs
from fbxcore.live.restart.queue_recovery import restore_queue
from fbxcore.live.restart.whole import Whole
from fbxcore.live.rings.engine import add_leaves, apply_frames
from fbxcore.live.rings.ring import Ring
from fbxcore.spec import dtype_of

_JOIN_STEPS = 1024


def restore_ring(
    ring: Ring,
    journal: Journal,
    checkpoint: Checkpoint,
    progress: Callable[[int, int], None],
    base: Whole | None = None,
) -> None:
    """Restore a fresh ring and its journal from checkpoint, vault and log.

    Args:
        progress: told how many bytes of the log, of how many, are done.
        base: what the log begins from; the checkpoint is the base's own or a later one.

    Raises:
        DamagedError: if timesteps the ring must hold are neither in the vault nor in the log.
    """
    journal.ledger.load(checkpoint.ledger)
    frames = journal.replay(checkpoint.counters.sequence, progress)
    if checkpoint.counters.sequence:
        frames = _restore_checkpoint(ring, journal, checkpoint, frames, base)
    _replay(ring, journal, frames)
    _catch_up_with_vault(ring, journal)


def _restore_checkpoint(
    ring: Ring, journal: Journal, checkpoint: Checkpoint, frames: Iterator[Frame], base: Whole | None
) -> Iterator[Frame]:
    """Restore what the checkpoint stands for; return the frames behind it."""
    if ring.layout.is_queue:
        return restore_queue(ring, journal, checkpoint, frames, base)
    if ring.layout.keeps_base:
        return restore_runs(ring, journal, checkpoint, frames, base)
    counters = checkpoint.counters
    time_axis, rows = ring.layout.time_axis, ring.layout.rows
    at = ring.oldest_of(counters)
    if base is not None and base.counters.position >= at and base.counters.ring_start == counters.ring_start:
        experience = {name: np.array(leaf) for name, leaf in base.experience.items()}
        at = base.counters.position
    else:
        experience = {
            name: np.zeros((rows, time_axis, *leaf.shape), dtype_of(leaf.dtype))
            for name, leaf in ring.spec.items()
        }
    if journal.persister is not None:
        at = _fill_from_vault(experience, journal, at, counters.position, counters.ring_start)
    later: list[Frame] = []
    for frame in frames:
        if frame.sequence > counters.sequence:
            later.append(frame)
            break
        if frame.kind is Kind.ADD and frame.end > at:
            at = _fill_from_frame(experience, ring, frame, at, counters.ring_start)
    if at < counters.position:
        raise DamagedError(
            f"The log must hold timesteps {at} to {counters.position} of the buffer, got none of them. "
            "Restore its segments from a backup.",
            file=journal.log.directory.name,
        )
    ring.restore(experience, checkpoint.bookkeeping, counters)
    return itertools.chain(later, frames)


def _fill_from_vault(
    experience: dict[str, np.ndarray], journal: Journal, start: int, stop: int, ring_start: int
) -> int:
    """Copy what the vault holds of `[start, stop)`, a piece at a time; return where the log must go on."""
    stop = min(stop, journal.persister.applied.position)
    if stop <= start:
        return start
    for leaves in journal.persister.stretches.read(start, stop):
        _place(experience, leaves, start - ring_start)
        start += next(iter(leaves.values())).shape[1]
    return stop


def _fill_from_frame(
    experience: dict[str, np.ndarray], ring: Ring, frame: Frame, at: int, ring_start: int
) -> int:
    """Copy what a frame adds behind `at`; return where the next must go on."""
    if frame.position > at:
        raise DamagedError(f"The log must hold timestep {at} of the buffer, got {frame.position} next.")
    leaves = {name: x[:, at - frame.position :] for name, x in add_leaves(ring, frame).items()}
    _place(experience, leaves, at - ring_start)
    return frame.end


def _place(experience: dict[str, np.ndarray], leaves: dict[str, np.ndarray], step: int) -> None:
    """Write leaves `[B, K, ...]` into the slots of a ring, from timestep `step` on."""
    for name, ring in experience.items():
        length = ring.shape[1]
        new = leaves[name][:, -length:]
        slot = (step + leaves[name].shape[1] - new.shape[1]) % length
        ahead = min(new.shape[1], length - slot)
        ring[:, slot : slot + ahead] = new[:, :ahead]
        ring[:, : new.shape[1] - ahead] = new[:, ahead:]


def _replay(ring: Ring, journal: Journal, frames: Iterator[Frame]) -> None:
    """Apply frames as they were the first time, adds joined where they stand side by side."""
    is_first = True
    for group in _groups(frames):
        if is_first:
            _check_that_it_goes_on(ring, group[0])
            is_first = False
        for frame in group:
            journal.log.written_bytes += frame.num_bytes + HEADER_BYTES
            if ring.layout.independent and frame.kind in RUN_KINDS:
                frame.done = functools.partial(journal.ledger.restore, frame.meta)
            elif frame.kind is Kind.ADD or (frame.kind is Kind.TAKE and "key" in frame.meta):
                frame.done = functools.partial(_note_answer, journal, frame.meta)
        apply_frames(ring, group)


def _note_answer(journal: Journal, meta: dict[str, Any], answer: dict[str, Any] | FbxError) -> None:
    if not isinstance(answer, FbxError):
        journal.ledger.restore(meta, answer)


def _catch_up_with_vault(ring: Ring, journal: Journal) -> None:
    """Add what only the vault still has: without `fsync` the log may have lost its end."""
    applied = journal.persister.applied if journal.persister is not None else None
    if applied is not None and ring.layout.independent and ring.counters.sequence < applied.sequence:
        return _begin_behind_vault(ring, applied)
    if applied is None or ring.layout.independent or ring.counters.position >= applied.position:
        return
    if ring.layout.is_queue or ring.layout.num_clusters:
        # Nobody knows which of a queue's were taken, and none is handed out twice. Clusters need a base.
        ring.skip_to(applied.position)
        ring.counters = replace(ring.counters, sequence=max(ring.counters.sequence, applied.sequence))
        return
    start = max(ring.counters.position, applied.position - ring.layout.time_axis)
    ring.skip_to(start)
    for leaves in journal.persister.stretches.read(start, applied.position):
        ring.add([leaves])
    ring.counters = replace(ring.counters, sequence=max(ring.counters.sequence, applied.sequence))


def _begin_behind_vault(ring: Ring, applied: Applied) -> None:
    """Begin with no items: rows could not be told from what the vault holds of them."""
    position = max(ring.counters.position, applied.position)
    ring.counters = replace(ring.counters, sequence=applied.sequence, position=position)
    ring.reset()
    ring.rows = [row._replace(is_open=False) for row in ring.rows]


def _check_that_it_goes_on(ring: Ring, first: Frame) -> None:
    counters = ring.counters
    if (counters.sequence + 1, counters.position) != (first.sequence, first.position):
        raise DamagedError(
            f"The log must go on with frame {counters.sequence + 1} at timestep {counters.position}, got "
            f"frame {first.sequence} at {first.position}. Restore its first segments from a backup."
        )


def _groups(frames: Iterator[Frame]) -> Iterator[list[Frame]]:
    """Yield adds that stand side by side together, up to a bound, and every other frame alone."""
    group: list[Frame] = []
    steps = 0
    for frame in frames:
        joins = group and frame.kind is Kind.ADD and group[0].kind is Kind.ADD
        if group and not (joins and steps + frame.steps <= _JOIN_STEPS):
            yield group
            group, steps = [], 0
        group.append(frame)
        steps += frame.steps
    if group:
        yield group
