"""A checkpoint: all of a live buffer that is not experience, as of one sequence number.

Experience is in the vault or still in the log; priorities, counters, writers and keys are here. A segment
of the log may go once both are past it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fbxcore.errors import DamagedError
from fbxcore.live.files import replace_file
from fbxcore.snapshot import dump_snapshot, load_snapshot

FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class Counters:
    """Where a ring stands; positions count timesteps per row of the log."""

    sequence: int = 0  # the last frame applied
    position: int = 0
    ring_start: int = 0  # the position at the last reset
    epoch: int = 0  # how many resets
    sampled: int = 0  # items handed out
    updated: int = 0  # priorities set
    stale: int = 0  # priorities that came too late
    sampled_before: int = 0  # items handed out before the last reset
    taken: int = 0  # of a queue: the position of the next timestep to hand out
    oldest: int = 0  # of a queue: the position of the first timestep it holds
    reserved: int = 0  # of a queue: timesteps per row that were taken and are kept for a repeat

    def and_sampled(self, num_items: int) -> Counters:
        """Return these with more items handed out; `replace` would cost as much as a small draw."""
        return Counters(
            self.sequence,
            self.position,
            self.ring_start,
            self.epoch,
            self.sampled + num_items,
            self.updated,
            self.stale,
            self.sampled_before,
        )


@dataclass(frozen=True)
class Checkpoint:
    """What is restored before the log is replayed."""

    log: str  # the log's id
    counters: Counters = field(default_factory=Counters)
    bookkeeping: dict[str, np.ndarray] = field(default_factory=dict)
    ledger: dict[str, Any] = field(default_factory=dict)

    def save(self, directory: Path) -> None:
        """Replace the checkpoint of a directory."""
        meta = {"log": self.log, "counters": asdict(self.counters), "ledger": self.ledger}
        replace_file(directory / FILE, dump_snapshot(self.bookkeeping, meta))

    @staticmethod
    def load(directory: Path, log_id: str) -> Checkpoint:
        """Return the checkpoint of a directory, or an empty one where none was made yet."""
        path = directory / FILE
        if not path.exists():
            return Checkpoint(log_id)
        try:
            bookkeeping, meta = load_snapshot(str(path))
        except DamagedError as error:
            raise DamagedError(
                f"Checkpoint `{FILE}` cannot be read: {error} Restore it from a backup.", file=FILE
            ) from error
        if meta["log"] != log_id:
            raise DamagedError(
                f"Checkpoint `{FILE}` must belong to the log beside it, got that of another.", file=FILE
            )
        return Checkpoint(log_id, Counters(**meta["counters"]), bookkeeping, meta["ledger"])
