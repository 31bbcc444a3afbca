"""The answers about a buffer, in the words of the HTTP contract; plain values, no I/O.

`capacity`, `size` and `added` count timesteps over all rows; `time_axis` is per row, and so are `position`
and `needed`, except where writers are independent: there they too count all rows. `sampled` counts items
handed out.
"""

from __future__ import annotations

import time
from typing import Any

from fbxcore.live.config import BufferConfig
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.durable.journal import Journal
from fbxcore.live.durable.persister import Persister
from fbxcore.live.rings.ring import Ring
from fbxcore.live.timeseries import Timeseries
from fbxcore.spec import spec_to_json


def describe_buffer(
    config: BufferConfig,
    counters: Counters,
    *,
    persister: Persister | None = None,
    limiter: dict[str, Any] | None = None,
    ring: Ring | None = None,
) -> dict[str, Any]:
    """Return the whole answer about a buffer; with fresh counters, about one that is not made yet.

    Args:
        ring: of independent writers and clusters, whose counters do not say what each row holds.
    """
    layout = config.layout
    position = counters.position - counters.ring_start
    if layout.keeps_base:
        held = 0 if ring is None else ring.held
    else:
        held = counters.position - counters.taken if layout.is_queue else min(position, layout.time_axis)
    needed = max(0, layout.min_time_axis - held)
    if layout.independent and (ring is None or not ring.has_items):
        needed = max(needed, 1)
    size = held * layout.rows_in_step
    return {
        "name": config.name,
        "kind": config.kind,
        "spec": spec_to_json(config.spec),
        "config": config.to_json(),
        "rows": layout.rows,
        "time_axis": layout.time_axis,
        "capacity": layout.capacity,
        "size": size,
        "is_full": size == layout.capacity,
        "can_sample": needed == 0,
        "needed": needed,
        "position": position,
        "added": counters.position * layout.rows_in_step,
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


def describe_stats(answer: dict[str, Any], journal: Journal, timeseries: Timeseries) -> dict[str, Any]:
    """Return counters, rates and sizes of the buffer that was answered about."""
    log, left_out = journal.log, {"spec", "config", "warnings", "created_at"}
    return {name: value for name, value in answer.items() if name not in left_out} | {
        "rates": {f"{name}_per_s": timeseries.rate(name) for name in timeseries.metrics if name != "size"},
        "log": {"bytes": log.num_bytes, "segments": len(log.segments), "sequence": log.next_sequence - 1},
        "persisted": describe_persister(journal.persister),
        "writers": journal.ledger.writers(),
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
