"""Bringing a ring back to where acknowledged calls left it.

The checkpoint says where everything stood at one sequence number, except for experience. Timesteps up
to there come from the vault, and those the vault does not hold yet from the log; then every later frame
of the log is applied as it was the first time. Priorities and counters therefore end where they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fbxcore.errors import DamagedError
from fbxcore.live.checkpoint import Checkpoint
from fbxcore.live.engine import add_leaves, added_answer, apply_frames
from fbxcore.live.frames import Frame, Kind
from fbxcore.live.journal import Journal
from fbxcore.live.ring import Ring
from fbxcore.spec import dtype_of

_JOIN_STEPS = 1024


def restore_ring(
    ring: Ring, journal: Journal, checkpoint: Checkpoint, progress: Callable[[int, int], None]
) -> None:
    """Restore a fresh ring and its journal from checkpoint, vault and log.

    Raises:
        DamagedError: if timesteps the ring must hold are neither in the vault nor in the log.
    """
    frames = journal.log.replay()
    if checkpoint.counters.sequence:
        _restore_checkpoint(ring, journal, checkpoint, frames)
    journal.ledger.load(checkpoint.ledger)
    journal.replayed(frames)
    later = [frame for frame in frames if frame.sequence > checkpoint.counters.sequence]
    _replay(ring, journal, later, progress)
    _catch_up_with_vault(ring, journal)


def _restore_checkpoint(ring: Ring, journal: Journal, checkpoint: Checkpoint, frames: list[Frame]) -> None:
    counters = checkpoint.counters
    time_axis, rows = ring.layout.time_axis, ring.layout.rows
    start = max(counters.ring_start, counters.position - time_axis)
    experience = {
        name: np.zeros((rows, time_axis, *leaf.shape), dtype_of(leaf.dtype))
        for name, leaf in ring.spec.items()
    }
    at = start
    if journal.persister is not None:
        at = _fill_from_vault(experience, journal, start, counters.position, counters.ring_start)
    for frame in frames:
        if frame.kind is Kind.ADD and frame.sequence <= counters.sequence and frame.end > at:
            at = _fill_from_frame(experience, ring, frame, at, counters.ring_start)
    if at < counters.position:
        raise DamagedError(
            f"The log must hold timesteps {at} to {counters.position} of the buffer, got none of them. "
            "Restore its segments from a backup.",
            file=journal.log.directory.name,
        )
    ring.restore(experience, checkpoint.bookkeeping, counters)


def _fill_from_vault(
    experience: dict[str, np.ndarray], journal: Journal, start: int, stop: int, ring_start: int
) -> int:
    """Copy what the vault holds of `[start, stop)`; return where the log must go on."""
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
        slots = (step + np.arange(leaves[name].shape[1])) % ring.shape[1]
        ring[:, slots] = leaves[name]


def _replay(ring: Ring, journal: Journal, frames: list[Frame], progress: Callable[[int, int], None]) -> None:
    """Apply frames as they were the first time, adds joined where they stand side by side."""
    done = 0
    if frames:
        _begin_where_the_log_begins(ring, frames[0])
    for group in _groups(frames):
        position = ring.position
        for frame in group:
            if frame.kind is Kind.ADD:
                position += frame.steps
                journal.ledger.restore(frame.meta, added_answer(ring, frame, position))
        apply_frames(ring, group)
        done += len(group)
        progress(done, len(frames))


def _catch_up_with_vault(ring: Ring, journal: Journal) -> None:
    """Add what only the vault still has: without `fsync` the log may have lost its end."""
    applied = journal.persister.applied if journal.persister is not None else None
    if applied is None or ring.counters.position >= applied.position:
        return
    start = max(ring.counters.position, applied.position - ring.layout.time_axis)
    ring.skip_to(start)
    for leaves in journal.persister.stretches.read(start, applied.position):
        ring.add([leaves])
    ring.counters = replace(ring.counters, sequence=max(ring.counters.sequence, applied.sequence))


def _begin_where_the_log_begins(ring: Ring, first: Frame) -> None:
    if ring.counters.position != first.position:
        raise DamagedError(
            f"The log must go on at timestep {ring.counters.position}, got {first.position}. "
            "Restore its first segments from a backup."
        )


def _groups(frames: list[Frame]) -> list[list[Frame]]:
    groups: list[list[Frame]] = []
    steps = 0
    for frame in frames:
        joins = groups and frame.kind is Kind.ADD and groups[-1][0].kind is Kind.ADD
        if joins and steps + frame.steps <= _JOIN_STEPS:
            groups[-1].append(frame)
            steps += frame.steps
        else:
            groups.append([frame])
            steps = frame.steps
    return groups
