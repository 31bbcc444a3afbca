"""A live buffer: experience in, samples out, nothing acknowledged lost.

An add is checked, written to the log, synced, applied to the ring in log order, and then acknowledged, so
that a learner never sees what a crash could undo. The ring, the vault and the counters are views of the
log; each remembers how far it has applied it (`recovery`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fbxcore.errors import FbxError, InvalidArgumentError, NotSupportedError
from fbxcore.live.answers import Added, RunAdded, Sample, Taken, Updated, WriterState
from fbxcore.live.calls.adder import Adder
from fbxcore.live.calls.checks import check_no_end, check_priorities, check_timeout
from fbxcore.live.calls.gate import Gate
from fbxcore.live.calls.sampler import Sampler
from fbxcore.live.calls.takes import Takes
from fbxcore.live.calls.writers import Writers, states_of
from fbxcore.live.config import BufferConfig, load_config, save_config
from fbxcore.live.describe import describe_buffer, describe_stats
from fbxcore.live.durable.applied import Applied
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.durable.frames import Frame, Kind
from fbxcore.live.durable.journal import Journal
from fbxcore.live.durable.log import Log
from fbxcore.live.durable.room import MAX_LOG_BYTES
from fbxcore.live.histograms import histogram_of
from fbxcore.live.housekeeping import Housekeeper
from fbxcore.live.restart.durability import change_config
from fbxcore.live.restart.opening import open_parts
from fbxcore.live.restart.whole import save_whole
from fbxcore.live.rings.engine import Engine, priorities_body
from fbxcore.live.rings.ring import Ring, Room, new_room
from fbxcore.live.timeseries import Timeseries
from fbxcore.live.vaults import filling
from fbxcore.types import Leaves
from fbxcore.vault.foreign import Foreign
from fbxcore.vault.store import VaultWriter

_log = logging.getLogger("flashdeck")


class LiveBuffer:
    """One buffer of the service; its methods belong to the event loop that opened it."""

    def __init__(self, directory: Path, config: BufferConfig):
        self.directory = directory
        self.config = config
        self.layout = config.layout
        self._ring: Ring
        self._engine: Engine
        self._journal: Journal
        self._gate: Gate
        self.sampler: Sampler
        self._adder: Adder
        self._takes: Takes | None = None  # of a queue
        self._housekeeper: Housekeeper
        self._writers: Writers | None = None
        self._changing = asyncio.Lock()  # one change or snapshot at a time
        self._closed = False

    @classmethod
    async def open(
        cls,
        directory: Path,
        config: BufferConfig | None = None,
        *,
        vaults: Path,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        first: Callable[[LiveBuffer], Awaitable[None]] | None = None,
        max_log_bytes: int = MAX_LOG_BYTES,
    ) -> LiveBuffer:
        """Make a buffer in a directory, or bring the one that lies there back to where it was.

        A new one begins as the snapshot that `adopt_whole` put into the directory, or empty.

        Args:
            config: of a new buffer; None opens what is there.
            vaults: the folder that `persist_to` is relative to.
            progress: told how many bytes of the log, of how many, were replayed.
            max_log_bytes: how far its log may be ahead of vault and checkpoint before adds wait.
            first: fills a new buffer; only when it has ended the buffer exists.

        Raises:
            ConflictError: if the vault is of another spec, in use, or was written to by another program.
            DamagedError: if what lies there cannot be brought back whole.
        """
        buffer = cls(directory, config if config is not None else load_config(directory))
        parts = await asyncio.to_thread(
            open_parts, directory, buffer.config, vaults, progress,
            is_new=config is not None, saves=first is None, began=buffer._began, settled=buffer._settled,
        )  # fmt: skip
        buffer._ring, buffer._engine, buffer._journal = parts.ring, parts.engine, parts.journal
        buffer._housekeeper = Housekeeper(directory, buffer.config, parts, buffer._changing)
        needed = 2 * buffer.config.num_bytes if buffer.layout.independent else 0  # between two bases
        buffer._journal.room.max_bytes = max(max_log_bytes, needed)
        buffer._gate = Gate(buffer._ring, buffer.config.rate_limiter)
        if buffer.layout.is_queue:
            buffer._takes = Takes(buffer.config, buffer._engine, buffer._journal, buffer._gate)
            buffer._takes.start()
        buffer.sampler = Sampler(buffer.config, buffer._ring, buffer._engine, buffer._gate)
        buffer._adder = Adder(buffer.config, buffer._ring, buffer._journal, buffer._gate, buffer._takes)
        buffer._engine.start()
        buffer._journal.start(buffer._ring.counters)
        buffer._housekeeper.start(is_warm=config is not None)
        if buffer.layout.independent:
            buffer._writers = Writers(buffer.config, buffer._ring, buffer._journal, buffer._gate)
        if first is not None:
            try:
                async with filling(buffer.vault_writer):
                    await first(buffer)
                    await asyncio.to_thread(save_config, directory, buffer.config)
            except BaseException:
                await buffer.close()
                raise
        return buffer

    async def close(self) -> None:
        """Finish what was taken, commit it, note where everything stands, and let go of the files."""
        if self._closed:
            return
        self._closed = True
        self._gate.close()
        self._journal.room.close()
        self._housekeeper.stop()
        if self._takes is not None:
            self._takes.close()
        if self._writers is not None:
            self._writers.stop()
        for finish in (self._housekeeper.log_sampled, self._journal.flush, self._housekeeper.checkpoint):
            try:
                await finish()
            except (FbxError, OSError) as error:
                _log.warning("Buffer %s: the log keeps what it could not finish: %s", self.config.name, error)
        await asyncio.to_thread(self._journal.close)
        await asyncio.to_thread(self._engine.close)

    def _began(self, frame: Frame) -> None:
        if self._takes is not None:
            self._takes.began(frame)

    def _settled(self, frame: Frame, answer: dict[str, Any] | None) -> None:
        if self._takes is not None:
            self._takes.settled(frame, answer)
        self._gate.wake()

    async def change(self, given: Mapping[str, Any]) -> None:
        """Change what can be changed while it runs (`CHANGEABLE`); whoever waits looks again.

        Raises:
            InvalidArgumentError: if a value is refused, or a field is kept for good; nothing changed.
        """
        self._gate.check_open()
        async with self._changing:
            config = self.config.changed(given)
            base = await change_config(self.directory, self.config, config, self._journal, self._engine)
            self._housekeeper.base = base or self._housekeeper.base
            self.config = self._housekeeper.config = config
            if self._writers is not None:
                self._writers.config = config
            self._gate.change(config.rate_limiter)

    async def snapshot(
        self, directory: Path, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> tuple[Counters, int]:
        """Write all of it, as of one moment, to a directory; adds and samples go on meanwhile.

        Args:
            progress: told how many bytes, of how many, are copied.

        Returns:
            The counters at that moment, and the timesteps it held, over all rows.
        """
        self._gate.check_open()
        async with self._changing:
            return await save_whole(directory, self._engine, self._journal.ledger, progress)

    @property
    def timeseries(self) -> Timeseries:
        """An hour of sizes and rates."""
        return self._housekeeper.timeseries

    @property
    def item_bytes(self) -> int:
        """Bytes of one sampled item."""
        return self.config.item_bytes

    @property
    def position(self) -> int:
        """Timesteps per row since the last reset."""
        return self._ring.position

    @property
    def unpersisted(self) -> int:
        """Timesteps over all rows that are in no vault."""
        persister = self._journal.persister
        return self._ring.size if persister is None else persister.pending * self.layout.rows_in_step

    @property
    def log(self) -> Log:
        """The log of everything that changed it."""
        return self._journal.log

    @property
    def vault_writer(self) -> VaultWriter | None:
        """The vault it persists to; flush before reading from it."""
        persister = self._journal.persister
        return None if persister is None else persister.writer

    @property
    def refilled_from(self) -> set[Path]:
        """The vaults that hold timesteps of the ring, for after a restart."""
        if self._journal.persister is None or self.layout.keeps_base:  # whose ring has its own image
            return set()
        return self._journal.persister.stretches.paths_since(self._ring.oldest_of(self._ring.counters))

    def describe(self) -> dict[str, Any]:
        """Return the members of the service's answer about a buffer; no I/O."""
        return describe_buffer(
            self.config,
            self._ring.counters,
            persister=self._journal.persister,
            limiter=self._gate.describe(),
            ring=self._ring if self.layout.keeps_base else None,
        )

    def stats(self) -> dict[str, Any]:
        """Return counters, rates and sizes; no I/O."""
        return describe_stats(self.describe(), self._journal, self.timeseries)

    async def histogram(self, field: str, bins: int = 40) -> dict[str, Any]:
        """Return bin edges and counts of `priority` or `age` over all items."""
        return await histogram_of(self.config, self._engine, field, bins)

    # Experience in

    async def add(
        self,
        leaves: Leaves,
        *,
        idempotency_key: str | None = None,
        writer: str | None = None,
        sequence: int | None = None,
        cast: str | None = None,
        timeout_ms: int = 0,
        end: str | None = None,
    ) -> Added | RunAdded:
        """Add leaves `[B, K, ...]`, or `[I, ...]` for item kinds, exactly once.

        An independent writer adds `[T, ...]`, and `final/<leaf>` `[...]` with `end` (see `Writers.add`).

        Raises:
            StructureError: if they are not what the spec says.
            UnavailableError: if the limiter still blocks after `timeout_ms`, or the vault falls behind.
        """
        self._gate.check_open()
        if self._writers is not None:
            answer = await self._writers.add(
                leaves, writer=writer, end=end, key=idempotency_key, sequence=sequence, cast=cast,
                timeout_ms=timeout_ms,
            )  # fmt: skip
            return RunAdded(**answer, durable=self.config.durability == "fsync")
        check_no_end(end)
        answer = await self._adder.add(
            leaves, key=idempotency_key, writer=writer, sequence=sequence, cast=cast, timeout_ms=timeout_ms
        )
        return Added(**answer, durable=self.config.durability == "fsync")

    @property
    def independent(self) -> Writers:
        """The writers of a buffer whose `writers` are independent.

        Raises:
            InvalidArgumentError: if they are not.
        """
        if self._writers is None:
            raise InvalidArgumentError(
                "`writers` must be 'independent' for episodes of their own, got 'lockstep'.",
                loc=("path", "writer"),
            )
        return self._writers

    def writers(self) -> list[WriterState]:
        """Return every writer that was heard of, by name; no I/O."""
        rows = self._ring.rows if self._writers is not None else []
        return states_of(rows, self._journal.ledger.writers())

    async def fill(self, leaves: Leaves) -> None:
        """Add leaves as `add` does, but past the limiter and waiting for the vault."""
        await self._adder.fill(leaves)

    async def reset(self) -> None:
        """Forget every item; what is in the vault stays there."""
        self._gate.check_open()
        await self._housekeeper.log_sampled()  # which the limiter counts from a reset on
        await self._journal.put(Frame(Kind.RESET))

    async def flush(self) -> Applied | None:
        """Commit everything acknowledged to the vault."""
        return await self._journal.flush()

    async def adopt(self) -> Foreign | None:
        """Go on behind what another program wrote to the vault; returns what that was."""
        return await asyncio.wrap_future(self._journal.persister.adopt())

    # Samples out

    async def sample(
        self,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
        beta: float | None = None,
        timeout_ms: int = 0,
        peek: bool = False,
        room: Room = new_room,
    ) -> Sample:
        """Draw a batch; the same seed on the same state gives the same arrays.

        Args:
            beta: exponent of the importance weights, returned as `weights`.
            peek: neither wait nor count.
            room: gives the arrays to fill; called once, by whichever thread draws.

        Raises:
            NotEnoughDataError: if there is nothing to draw after `timeout_ms`.
            UnavailableError: if the limiter still blocks after `timeout_ms`.
        """
        self._gate.check_open()
        if self._takes is not None:
            raise _not_for(self.config, "sample", "take")
        return await self.sampler.sample(
            batch_size, seed=seed, beta=beta, timeout_ms=timeout_ms, peek=peek, room=room
        )

    async def take(
        self,
        batch_size: int | None = None,
        *,
        idempotency_key: str | None = None,
        client: str | None = None,
        timeout_ms: int = 0,
        room: Room = new_room,
    ) -> Taken:
        """Take the oldest sequences of a queue, `[k·B, L, ...]`: each is handed out once.

        Args:
            batch_size: k·B, a multiple of the rows B; by default one sequence of each row.
            idempotency_key: keeps what is taken for a repeat, which gets the very same, until the client
                takes again and no longer than a minute.
            client: who takes.
            room: gives the arrays to fill; called once, by the engine's thread.

        Raises:
            NotEnoughDataError: if too little waits after `timeout_ms`.
            ConflictError: if the key was used for another request, or what it took is no longer kept.
        """
        self._gate.check_open()
        if self._takes is None:
            raise _not_for(self.config, "take", "sample")
        deadline = asyncio.get_running_loop().time() + check_timeout(timeout_ms)
        return await self._takes.take(
            batch_size, key=idempotency_key, client=client, deadline=deadline, room=room
        )

    async def next_in_line(self) -> dict[str, np.ndarray] | None:
        """Return what the next take of a queue gives, and leave it there; None if too little waits."""
        return None if self._takes is None else await self._takes.next_in_line()

    async def set_priorities(
        self, indices: np.ndarray, priorities: np.ndarray, generations: np.ndarray
    ) -> Updated:
        """Set priorities `[N]` of sampled items; those overwritten since are counted as stale."""
        self._gate.check_open()
        checked = check_priorities(self.config, indices, priorities, generations)
        if len(checked[0]) == 0:
            return Updated(0, 0)
        self._journal.room.check()
        answer = await self._journal.put(Frame(Kind.PRIORITIES, body=priorities_body(*checked)))
        return Updated(answer["updated"], answer["stale"])


def _not_for(config: BufferConfig, asked: str, instead: str) -> NotSupportedError:
    return NotSupportedError(
        f"`{asked}` must be asked of another kind, got kind {config.kind!r}. Use `{instead}`.",
        code="method_not_allowed",
    )
