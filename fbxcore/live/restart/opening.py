"""Putting a live buffer together, and bringing it back to where acknowledged calls left it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fbxcore.live.config import BufferConfig, save_config
from fbxcore.live.durable.checkpoint import Checkpoint
from fbxcore.live.durable.frames import Frame
from fbxcore.live.durable.journal import Journal
from fbxcore.live.restart.durability import forget
from fbxcore.live.restart.recovery import restore_ring
from fbxcore.live.restart.whole import Whole
from fbxcore.live.rings.clustered_ring import ClusteredRing
from fbxcore.live.rings.engine import Engine
from fbxcore.live.rings.queue_ring import QueueRing
from fbxcore.live.rings.ring import Ring
from fbxcore.live.vaults import open_vault
from fbxcore.vault.retention import retain_steps
from fbxcore.vault.store import VaultWriter


@dataclass(frozen=True)
class Parts:
    """What a live buffer is made of, restored and not started."""

    ring: Ring | QueueRing
    engine: Engine
    journal: Journal
    base: Whole | None  # the image that the ring was restored from


def open_parts(
    directory: Path,
    config: BufferConfig,
    vaults: Path,
    progress: Callable[[int, int], None],
    *,
    is_new: bool,
    saves: bool,
    began: Callable[[Frame], None],
    settled: Callable[[Frame, dict[str, Any] | None], None],
) -> Parts:
    """Make the parts of a new buffer, or bring back those of the one that lies in the directory; blocks.

    Args:
        vaults: the folder that `persist_to` is relative to.
        progress: told how many bytes of the log, of how many, were replayed.
        saves: whether the buffer exists from now on.
        began, settled: told of frames, see `Journal`.

    Raises:
        ConflictError: if the vault is of another spec, in use, or was written to by another program.
        DamagedError: if what lies there cannot be brought back whole.
    """
    layout = config.layout
    kind = QueueRing if layout.is_queue else ClusteredRing if layout.num_clusters else Ring
    ring = kind(layout, config.spec)  # first: it is what may not fit
    engine = Engine(ring, config.name)
    base = Whole.load(directory, config.spec, rows=layout.rows, time_axis=layout.time_axis)
    writer = open_vault(config, vaults, is_new=is_new)
    try:
        journal = Journal(
            directory / "log",
            config.spec,
            writer=writer,
            durability=config.durability,
            on_frame=engine.apply,
            began=began,
            settled=settled,
            begins_at=(0, 0) if base is None else (base.counters.sequence, base.counters.position),
            independent=layout.independent,
        )
        _restore(directory, ring, journal, base, progress)
        if config.durability == "none" and writer is None:
            forget(directory, journal)
        if is_new:
            _begin(directory, config, ring, writer, saves=saves)
    except BaseException:
        if writer is not None:
            writer.close()
        raise
    return Parts(ring, engine, journal, base)


def _restore(
    directory: Path,
    ring: Ring | QueueRing,
    journal: Journal,
    base: Whole | None,
    progress: Callable[[int, int], None],
) -> None:
    checkpoint = Checkpoint.load(directory, journal.log.id)
    if base is not None and base.counters.sequence > checkpoint.counters.sequence:
        checkpoint = Checkpoint(checkpoint.log, base.counters, base.bookkeeping, base.ledger)
    restore_ring(ring, journal, checkpoint, progress, base)
    if ring.counters.sequence >= journal.log.next_sequence:
        # The log lost its end; what the views stand for must not be found out anew with every start.
        kept = (ring.counters, ring.bookkeeping(), journal.ledger.to_json())
        Checkpoint(journal.log.id, *kept).save(directory)


def _begin(
    directory: Path, config: BufferConfig, ring: Ring | QueueRing, writer: VaultWriter | None, *, saves: bool
) -> None:
    """Compile what requests will need, and let the buffer exist."""
    if config.retain_steps is not None:
        retain_steps(writer, config.retain_steps)
    for warm_up in ring.warm_ups():
        warm_up(ring)
    if saves:
        save_config(directory, config)
