"""A checkpoint: all of a live buffer that is not experience, as of one sequence number.

Experience is in the vault or still in the log; priorities, counters, writers and keys are here. A segment
of the log may go once both are past it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fbxcore.errors import DamagedError
from fbxcore.live.durable.files import replace_file
from fbxcore.snapshot import dump_snapshot, load_snapshot

FILE = "checkpoint.safetensors"
_KEYS = ".keys"  # of the ledger, beside the bookkeeping
_LINE_ENTRIES = 200


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

    def after_reset(self) -> Counters:
        """Return these behind a reset: positions and sums go on, earlier generations are stale."""
        return replace(self, ring_start=self.position, epoch=self.epoch + 1, sampled_before=self.sampled)

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
        keys = {_KEYS: np.frombuffer(_lines(self.ledger.get("keys", {})), np.uint8)}
        ledger = {name: value for name, value in self.ledger.items() if name != "keys"}
        meta = {"log": self.log, "counters": asdict(self.counters), "ledger": ledger}
        replace_file(directory / FILE, dump_snapshot(self.bookkeeping | keys, meta))

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
        ledger = meta["ledger"]
        if _KEYS in bookkeeping:
            ledger |= {"keys": _read_lines(bookkeeping.pop(_KEYS).tobytes())}
        return Checkpoint(log_id, Counters(**meta["counters"]), bookkeeping, ledger)


def _lines(entries: Mapping[str, Any]) -> bytes:
    """Return entries as lines of JSON: to encode 100,000 of them at once would stop all other threads."""
    items = list(entries.items())
    starts = range(0, len(items), _LINE_ENTRIES)
    return b"\n".join(msgspec.json.encode(dict(items[at : at + _LINE_ENTRIES])) for at in starts)


def _read_lines(lines: bytes) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for line in lines.splitlines():
        entries |= msgspec.json.decode(line)
    return entries
