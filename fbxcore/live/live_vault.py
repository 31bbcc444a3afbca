"""A vault that is appended to over time, through a log of its own.

Single steps cost a log frame, not a rewritten chunk; whole chunks move into the vault behind them. What
is acknowledged is durable, each request counts once, and a restart goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fbxcore.errors import FbxError, InvalidArgumentError, UnavailableError
from fbxcore.live.durable.applied import Applied
from fbxcore.live.durable.checkpoint import Checkpoint, Counters
from fbxcore.live.durable.frames import Frame, Kind
from fbxcore.live.durable.journal import Journal
from fbxcore.live.durable.log import SEGMENT_BYTES, Log
from fbxcore.live.durable.persister import Persister
from fbxcore.live.durable.room import MAX_LOG_BYTES
from fbxcore.spec import check_leaves
from fbxcore.types import Leaves
from fbxcore.vault.foreign import Foreign
from fbxcore.vault.rollover import newest_of
from fbxcore.vault.store import VaultWriter


@dataclass(frozen=True)
class Appended:
    """The answer to an append."""

    added: int  # timesteps over all rows
    length: int  # of the time axis, with what is still in the log
    vault_uid: str  # where it lies: a full vault goes on in another one
    duplicate: bool


class LiveVault:
    """A vault and the log before it; all methods belong to the event loop that opened it."""

    def __init__(self, journal: Journal):
        self._journal = journal
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: Path,
        log_directory: Path,
        *,
        durability: str = "fsync",
        max_log_bytes: int = MAX_LOG_BYTES,
    ) -> LiveVault:
        """Open the vault in a directory, or that in which it goes on, for appending; its log lies elsewhere.

        Raises:
            ConflictError: if another writer has it, or a foreign program wrote to it.
        """
        vault = await asyncio.to_thread(cls._open, path, log_directory, durability)
        try:
            await asyncio.to_thread(vault._replay, log_directory)
        except BaseException:
            vault.writer.close()
            raise
        vault._journal.start(Counters())
        vault._journal.room.max_bytes = max_log_bytes
        return vault

    def _replay(self, log_directory: Path) -> None:
        journal = self._journal
        checkpoint = Checkpoint.load(log_directory, journal.log.id)
        journal.ledger.load(checkpoint.ledger)
        for frame in journal.replay(checkpoint.counters.sequence):
            journal.ledger.restore(frame.meta, self._answer(frame))

    @classmethod
    def _open(cls, path: Path, log_directory: Path, durability: str) -> LiveVault:
        writer = VaultWriter.open(newest_of(path))
        try:
            vault = cls.__new__(cls)
            journal = Journal(
                log_directory, writer.spec, writer=writer, durability=durability, on_frame=vault._on_frame
            )
        except BaseException:
            writer.close()
            raise
        vault.__init__(journal)
        return vault

    @property
    def _persister(self) -> Persister:
        return self._journal.persister

    @property
    def log(self) -> Log:
        """The log before the vault."""
        return self._journal.log

    @property
    def writer(self) -> VaultWriter:
        """The vault itself; flush before reading from it."""
        return self._persister.writer

    @property
    def length(self) -> int:
        """Timesteps of the vault that is written now, those still in the log included."""
        return self._persister.length

    @property
    def pending(self) -> int:
        """Timesteps that are in the log and in no vault yet."""
        return self._persister.pending

    @property
    def writers(self) -> dict[str, int]:
        """Each writer's highest acknowledged sequence."""
        return self._journal.ledger.writers()

    async def add(
        self,
        leaves: Leaves,
        *,
        idempotency_key: str | None = None,
        writer: str | None = None,
        sequence: int | None = None,
        cast: str | None = None,
    ) -> Appended:
        """Append leaves `[B, K, ...]` exactly once.

        Raises:
            StructureError: if they are not what the vault's spec says.
        """
        if self._closed:
            raise UnavailableError("The vault must be open, got a closed one.", code="closing")
        checked = check_leaves(self._journal.spec, leaves, leading=2, cast=cast)
        name, first = next(iter(checked.items()))
        if first.shape[0] != self.writer.rows or first.shape[1] == 0:
            raise InvalidArgumentError(
                f"Leaf `{name}` must have {self.writer.rows} rows on axis 0 and at least one timestep on "
                f"axis 1, got {list(first.shape[:2])}.",
                code="structure_mismatch",
                loc=(name,),
            )
        answer = await self._journal.add(
            checked, first.shape[1], key=idempotency_key, writer=writer, sequence=sequence
        )
        last, room = self._persister.stretches.last, self._journal.room
        # Whoever is told of the next vault shall find it, and the log is to stay short.
        if last.path != self.writer.path or room.unsaved_bytes > min(SEGMENT_BYTES, room.max_bytes // 4):
            with contextlib.suppress(FbxError):
                await self.flush()
        return Appended(
            answer.get("added", 0),
            answer.get("length", last.base + self._persister.end),
            answer.get("vault_uid", last.path.name),
            answer["duplicate"],
        )

    async def flush(self) -> Applied:
        """Commit everything acknowledged to the vault, and let the log's old segments go."""
        written = self._journal.log.written_bytes
        applied = await self._journal.flush()
        self._journal.room.saved(written)
        if len(self._journal.log.segments) > 1:
            await self._drop_segments(applied)
        return applied

    async def adopt(self) -> Foreign | None:
        """Go on behind what another program wrote to the vault; returns what that was."""
        return await asyncio.wrap_future(self._persister.adopt())

    async def _drop_segments(self, applied: Applied) -> None:
        log = self._journal.log
        counters = Counters(sequence=applied.sequence, position=applied.position)
        checkpoint = Checkpoint(log.id, counters, ledger=self._journal.ledger.to_json())
        await asyncio.to_thread(checkpoint.save, log.directory)
        await asyncio.to_thread(
            log.drop, below_sequence=applied.sequence + 1, below_position=applied.position
        )

    async def close(self) -> None:
        """Commit what was taken and let go of the files."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(FbxError):  # what could not be committed stays in the log
            await self.flush()
        await asyncio.to_thread(self._journal.close)

    def _on_frame(self, frame: Frame) -> None:
        if frame.done is not None:
            frame.done(self._answer(frame))

    def _answer(self, frame: Frame) -> dict[str, Any]:
        if frame.kind is not Kind.ADD:
            return {}
        lies = self._persister.stretches.of(frame.position)
        added = frame.steps * self.writer.rows
        return {"added": added, "length": lies.base + frame.end, "vault_uid": lies.path.name}
