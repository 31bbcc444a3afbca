"""Compaction: what the log holds becomes rows of a vault, in whole commits.

One thread per vault. It commits when enough steps wait to fill chunks, and whatever waits when asked to
flush. Each commit carries, in the same atomic transaction, how far this log has been applied, so that a
crash between a commit and the dropping of log segments repeats nothing and loses nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec
import numpy as np

from fbxcore.errors import ConflictError, FbxError, StorageError, UnavailableError
from fbxcore.live.frames import Frame, leaves_of
from fbxcore.spec import timestep_bytes
from fbxcore.vault.files import label_of
from fbxcore.vault.store import VaultWriter

_log = logging.getLogger("flashdeck")
APPLIED_KEY = "_flashdeck/applied"
_CHUNK_STEPS = 1024
_COMMIT_BYTES = 32 << 20


@dataclass(frozen=True)
class Applied:
    """How far a log has been applied to a vault."""

    log: str  # the log's id
    base: int  # the vault's length when the log began
    position: int = 0  # timesteps of the log that the vault holds
    sequence: int = 0  # the last frame that is wholly in the vault

    @property
    def length(self) -> int:
        """The vault's length if nobody else wrote."""
        return self.base + self.position

    def to_bytes(self) -> bytes:
        """Return the record as it lies in the vault."""
        return msgspec.json.encode(self)

    @staticmethod
    def of(writer: VaultWriter, log_id: str) -> Applied:
        """Return the vault's record of this log, making it if the log is new to the vault.

        Raises:
            ConflictError: if somebody else wrote to the vault since.
        """
        saved = writer.get(APPLIED_KEY)
        applied = msgspec.json.decode(saved, type=Applied) if saved else None
        if applied is None or applied.log != log_id:
            applied = Applied(log_id, writer.length)
            writer.put({APPLIED_KEY: applied.to_bytes()})
        if applied.length != writer.length:
            raise ConflictError(
                f"Vault '{label_of(writer.path)}' must hold {applied.length} timesteps, got {writer.length}: "
                "another program wrote to it. Fork it or persist to a new vault.",
                code="foreign_writer",
            )
        return applied


class Persister:
    """Commits a log's adds to a vault, in order."""

    def __init__(self, writer: VaultWriter, applied: Applied):
        self.writer = writer
        self.applied = applied
        self.error: FbxError | None = None
        self._align = _align(writer)
        self._waiting: deque[Frame] = deque()
        self._noted = applied.position
        self.pending_bytes = 0
        self._flushes: list[tuple[int, Future]] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"persist-{writer.path.name}", daemon=True)

    @property
    def length(self) -> int:
        """Timesteps of the vault, those still in the log included."""
        return self.applied.base + self._noted

    @property
    def pending(self) -> int:
        """Timesteps that are in the log and not yet in the vault."""
        return self._noted - self.applied.position

    def start(self) -> None:
        """Begin to commit."""
        self._thread.start()

    def note(self, frame: Frame) -> None:
        """Take a durable add frame; frames come in order. Those already applied are passed over."""
        if frame.end <= self.applied.position:
            return
        with self._wake:
            self._waiting.append(frame)
            self._noted = frame.end
            self.pending_bytes += frame.num_bytes
            if self.pending >= self._align:
                self._wake.notify()

    def flush(self) -> Future[Applied]:
        """Commit all that was noted so far; the future resolves to how far the vault is then."""
        future: Future[Applied] = Future()
        with self._wake:
            if self._stopping:
                raise UnavailableError("The vault must be open, got a closing one.", code="closing")
            self._flushes.append((self._noted, future))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Commit what waits, stop the thread and release the vault."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        self.writer.close()

    # The persister's thread

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._has_work)
                stopping, flushes = self._stopping, self._flushes
                self._flushes = []
            self._commit_until(max((at for at, _ in flushes), default=0), everything=stopping)
            for _, future in flushes:
                _resolve(future, self.applied, self.error)
            if stopping:
                return

    def _has_work(self) -> bool:
        return self._stopping or bool(self._flushes) or (self.pending >= self._align and self.error is None)

    def _commit_until(self, position: int, *, everything: bool) -> None:
        """Commit up to `position`, or whole chunks beyond it."""
        self.error = None
        try:
            while True:
                with self._wake:
                    due = self._noted if everything else max(position, self._whole_chunks())
                    frames = self._take(due)
                if not frames or due <= self.applied.position:
                    return
                self._commit(frames, due)
        except FbxError as error:
            self.error = error
        except Exception as error:  # told to whoever flushes, and on the page
            _log.exception("Vault %s could not take a commit.", self.writer.path.name)
            self.error = StorageError(f"The vault must take what is in the log, got {error!r:.300}.")

    def _whole_chunks(self) -> int:
        length = self.length
        return self._noted - length % self._align if self.pending >= self._align else 0

    def _take(self, due: int) -> list[Frame]:
        """Return the waiting frames that begin before `due`, bounded in bytes."""
        frames: list[Frame] = []
        size = 0
        for frame in self._waiting:
            if frame.position >= due or (frames and size + frame.num_bytes > _COMMIT_BYTES):
                break
            frames.append(frame)
            size += frame.num_bytes
        return frames

    def _commit(self, frames: list[Frame], due: int) -> None:
        start, end = self.applied.position, min(due, frames[-1].end)
        spec, rows = self.writer.spec, self.writer.rows
        blocks = [leaves_of(spec, frame, rows) for frame in frames]
        begin, stop = start - frames[0].position, end - frames[0].position
        leaves = {
            name: np.concatenate([block[name] for block in blocks], axis=1)[:, begin:stop] for name in spec
        }
        whole = [frame for frame in frames if frame.end <= end]
        sequence = whole[-1].sequence if whole else self.applied.sequence
        applied = Applied(self.applied.log, self.applied.base, end, sequence)
        self.writer.append(leaves, keys={APPLIED_KEY: applied.to_bytes()})
        with self._wake:
            self.applied = applied
            for frame in whole:
                self._waiting.popleft()
                self.pending_bytes -= frame.num_bytes


def _resolve(future: Future, applied: Applied, error: FbxError | None) -> None:
    if error is None:
        future.set_result(applied)
    else:
        future.set_exception(error)


def _align(writer: VaultWriter) -> int:
    """Steps that make a worthwhile commit: whole chunks, unless those would be very large."""
    step = max(1, timestep_bytes(writer.spec) * writer.rows)
    steps = _CHUNK_STEPS
    while steps > 16 and steps * step > _COMMIT_BYTES:
        steps //= 2
    return steps
