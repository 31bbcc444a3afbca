"""The answers about a buffer, in the words of the HTTP contract; plain values, no I/O.

`capacity`, `size` and `added` count timesteps over all rows; `time_axis`, `position` and `needed` are per
row; `sampled` counts items handed out.
"""

from __future__ import annotations

import time
from typing import Any

from fbxcore.live.checkpoint import Counters
from fbxcore.live.config import BufferConfig
from fbxcore.live.persister import Persister
from fbxcore.spec import spec_to_json


def describe_buffer(
    config: BufferConfig,
    counters: Counters,
    *,
    persister: Persister | None = None,
    limiter: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the whole answer about a buffer; with fresh counters, about one that is not made yet."""
    layout = config.layout
    position = counters.position - counters.ring_start
    held = counters.position - counters.taken if layout.is_queue else min(position, layout.time_axis)
    needed = max(0, layout.min_time_axis - held)
    return {
        "name": config.name,
        "kind": config.kind,
        "spec": spec_to_json(config.spec),
        "config": config.to_json(),
        "rows": layout.rows,
        "time_axis": layout.time_axis,
        "capacity": layout.capacity,
        "size": held * layout.rows,
        "is_full": held == layout.time_axis,
        "can_sample": needed == 0,
        "needed": needed,
        "position": position,
        "added": counters.position * layout.rows,
        "sampled": counters.sampled,
        "priorities_updated": counters.updated,
        "priorities_stale": counters.stale,
        "bytes": config.num_bytes,
        "persist_to": config.persist_to,
        "persisted": describe_persister(persister),
        "durability": config.durability,
        "limiter": limiter,
        "warnings": list(layout.warnings),
        "created_at": iso_time(config.created_at),
    } | (_describe_queue(config, counters) if layout.is_queue else {})


def _describe_queue(config: BufferConfig, counters: Counters) -> dict[str, Any]:
    """Return what only a queue has, and what of it means something else; timesteps over all rows."""
    layout = config.layout
    waiting = counters.position - counters.taken
    room = layout.time_axis - waiting - counters.reserved
    return {
        "is_full": room == 0,
        "can_add": room >= layout.add_sequence_length,
        "waiting": waiting * layout.rows,
        "reserved": counters.reserved * layout.rows,
        "taken": counters.sampled * layout.sequence_length,
    }


def describe_persister(persister: Persister | None) -> dict[str, Any] | None:
    """Return how far a vault follows its log."""
    if persister is None:
        return None
    error = str(persister.error) if persister.error is not None else None
    return {
        "vault_uid": persister.writer.path.name,
        "length": persister.length,
        "pending": persister.pending,
        "error": error,
    }


def iso_time(seconds: float) -> str:
    """Return a Unix time as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
