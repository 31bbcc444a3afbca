"""Back-pressure: adds wait while a log is too far ahead of its vault or its checkpoint."""

from __future__ import annotations

import asyncio
import contextlib

from fbxcore.errors import UnavailableError
from fbxcore.live.durable.log import Log
from fbxcore.live.durable.persister import Persister
from fbxcore.live.durable.segmenter import SegmentPersister

MAX_LOG_BYTES = 512 << 20


class Room:
    """How far a log may be ahead of its vault and its checkpoint; belongs to the event loop of its journal.

    What neither has taken over yet lies on the disk and, until it is in the vault, in memory.
    """

    def __init__(self, log: Log, persister: Persister | SegmentPersister | None):
        self.max_bytes = MAX_LOG_BYTES
        self._log = log
        self._persister = persister
        self._saved = 0  # of the log's written bytes, those that a checkpoint stands for
        self._under_way = 0
        self._changed = asyncio.Event()  # set, and replaced, whenever there may be room
        self._waiting = 0
        self._closed = False

    @property
    def unsaved_bytes(self) -> int:
        """Bytes of the log that no checkpoint stands for."""
        return self._log.written_bytes - self._saved

    @property
    def is_full(self) -> bool:
        """Whether the log is as far ahead as it may be."""
        return self._under_way + max(self._unpersisted, self.unsaved_bytes) > self.max_bytes

    @property
    def _unpersisted(self) -> int:
        return 0 if self._persister is None else self._persister.pending_bytes

    async def enter(self, deadline: float) -> bool:
        """Wait until there is room; return whether it took waiting.

        Raises:
            UnavailableError: if there is none at the deadline, with the numbers.
        """
        waited = False
        while self.is_full:
            remaining = deadline - asyncio.get_running_loop().time()
            if self._closed or remaining <= 0:
                raise self._refusal()
            self._waiting, waited = self._waiting + 1, True
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), remaining)
            finally:
                self._waiting -= 1
        return waited

    def check(self) -> None:
        """Refuse what cannot wait if there is no room."""
        if self.is_full:
            raise self._refusal()

    def take(self, num_bytes: int) -> None:
        """Count bytes that are handed to the log."""
        self._under_way += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Count bytes that are in the log now, or were refused."""
        self._under_way -= num_bytes
        if self._waiting:
            self.wake()

    def saved(self, written_bytes: int) -> None:
        """Note that a checkpoint stands for what had been written at a moment."""
        self._saved = written_bytes
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Let nobody wait any more."""
        self._closed = True
        self.wake()

    def _refusal(self) -> UnavailableError:
        vault, checkpoint = self._unpersisted, self.unsaved_bytes
        error = self._persister.error if self._persister is not None else None
        return UnavailableError(
            f"The log must be at most {self.max_bytes} bytes ahead, got {vault} that the vault and "
            f"{checkpoint} that the checkpoint has not taken over, and {self._under_way} on their way to it. "
            "Try again shortly, or pass a longer `timeout_ms`."
            + ("" if error is None else f" The vault said: {error}"),
            code="backpressure",
            retry_after_s=1,
            log={
                "max_bytes": self.max_bytes,
                "behind_vault_bytes": vault,
                "behind_checkpoint_bytes": checkpoint,
                "under_way_bytes": self._under_way,
            },
        )
