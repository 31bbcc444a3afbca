"""Compaction: what the log holds becomes rows of a vault, in whole commits.

One thread per vault. It commits when enough steps wait to fill chunks, and whatever waits when asked to
flush. Each commit carries, in the same atomic transaction, how far this log has been applied, so that a
crash between a commit and the dropping of log segments repeats nothing and loses nothing. A frame that
would overfill the vault begins the next uid of its name, and is never in both.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import numpy as np

from fbxcore.errors import DamagedError, FbxError, StorageError, UnavailableError
from fbxcore.live.durable.applied import APPLIED_KEY, Applied, Stretch, Stretches, adopt
from fbxcore.live.durable.frames import Frame, Kind, leaves_of
from fbxcore.spec import timestep_bytes
from fbxcore.vault.faults import foreign_writer
from fbxcore.vault.files import label_of
from fbxcore.vault.foreign import Foreign
from fbxcore.vault.rollover import go_on_in
from fbxcore.vault.store import VaultWriter

_log = logging.getLogger("flashdeck")
_CHUNK_STEPS = 1024
_COMMIT_BYTES = 32 << 20
_LOOK_S = 0.01


class Beside(Protocol):
    """Says what is stored with the timesteps, whose frames are then never divided."""

    def keys(self, frames: list[Frame], applied: Applied) -> dict[str, bytes]:
        """Return keys to store with a commit of frames, or alone; empty where there is nothing to say."""

    def stored(self, frames: list[Frame], keys: dict[str, bytes]) -> None:
        """Take note that a commit was made."""

    def carried(self) -> dict[str, bytes]:
        """Return what the next vault must know from its first moment."""


class Persister:
    """Commits a log's adds to a vault, in order."""

    kinds = (Kind.ADD,)

    def __init__(self, writer: VaultWriter, applied: Applied, *, beside: Beside | None = None):
        self.writer = writer
        self._beside = beside
        self.applied = applied
        self.error: FbxError | None = None
        self._align = _align(writer)
        self.stretches = Stretches(writer, applied)
        self._waiting: deque[Frame] = deque()
        self._noted = applied.position
        self.pending_bytes = 0
        self._committed: Callable[[], None] = lambda: None
        self._flushes: list[tuple[int, Future]] = []
        self._adoptions: list[Future] = []
        self._looked = 0.0
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"persist-{writer.path.name}", daemon=True)

    @property
    def length(self) -> int:
        """Timesteps of the vault that is written now, those still in the log included."""
        following = self.stretches.after(self.writer.path)
        return self.applied.base + (self._noted if following is None else following.start)

    @property
    def end(self) -> int:
        """The position in the log behind what was noted last."""
        return self._noted

    @property
    def pending(self) -> int:
        """Timesteps that are in the log and not yet in a vault."""
        return self._noted - self.applied.position

    def covered(self, sequence: int) -> int:
        """Return up to which frame a log may have gaps whose views are at a sequence."""
        return max(sequence, self.applied.sequence)

    def on_commit(self, call: Callable[[], None]) -> None:
        """Call back, from the persister's thread, after each commit."""
        self._committed = call

    def start(self) -> None:
        """Begin to commit."""
        self._thread.start()

    def note(self, frame: Frame) -> None:
        """Take a durable add frame; frames come in order. Those already applied are passed over."""
        if frame.end <= self.applied.position:
            return
        if frame.position > self._noted:
            raise DamagedError(
                f"Vault '{label_of(self.writer.path)}' must hold timesteps {self._noted} to {frame.position} "
                "of the log, got none of them. Restore it from the trash or a backup."
            )
        with self._wake:
            self.stretches.note(frame.position, frame.end)
            self._waiting.append(frame)
            self._noted = frame.end
            self.pending_bytes += frame.num_bytes
            if self._is_due():
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

    def check_alone(self) -> None:
        """Refuse to go on where another program has committed; costs a look at a file's time now and then.

        Raises:
            ConflictError: code `foreign_writer`.
        """
        now = time.monotonic()
        if now < self._looked + _LOOK_S:
            return
        self._looked = now
        if not self.writer.is_alone():
            self._looked = 0.0
            self.error = foreign_writer(label_of(self.writer.path))
            raise self.error

    def adopt(self) -> Future[Foreign | None]:
        """Go on behind what another program wrote; the future tells what that was."""
        future: Future[Foreign | None] = Future()
        with self._wake:
            if self._stopping:
                raise UnavailableError("The vault must be open, got a closing one.", code="closing")
            self._adoptions.append(future)
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
                stopping, flushes, adoptions = self._stopping, self._flushes, self._adoptions
                self._flushes, self._adoptions = [], []
            for future in adoptions:
                self._adopt(future)
            self._commit_until(max((at for at, _ in flushes), default=0), everything=stopping)
            for _, future in flushes:
                _resolve(future, self.applied, self.error)
            if stopping:
                return

    def _has_work(self) -> bool:
        is_asked = self._stopping or self._flushes or self._adoptions
        return bool(is_asked) or (self.error is None and self._is_due())

    def _is_due(self) -> bool:
        """Whether there are whole chunks, or the next vault is to be begun."""
        return self.pending >= self._align or self.stretches.last.path != self.writer.path

    def _adopt(self, future: Future) -> None:
        try:
            found = adopt(self.writer)
            applied = Applied.of(self.writer, self.applied.log)
        except FbxError as error:
            future.set_exception(error)
            return
        with self._wake:
            self.applied, self.stretches = applied, Stretches(self.writer, applied)
            for frame in self._waiting:
                self.stretches.note(frame.position, frame.end)
            self.error = None
        future.set_result(found)

    def _commit_until(self, position: int, *, everything: bool) -> None:
        """Commit up to `position`, or whole chunks beyond it."""
        self.error = None
        try:
            while True:
                with self._wake:
                    due = self._noted if everything else max(position, self._whole_chunks())
                    following = self.stretches.after(self.writer.path)
                    due = due if following is None else following.start
                    frames = self._take(due)
                if following is not None and following.start == self.applied.position:
                    self._go_on_in(following)
                elif frames and due > self.applied.position:
                    self._commit(frames, due)
                else:
                    return self._store_alone()
        except FbxError as error:
            self.error = error
        except Exception as error:  # told to whoever flushes, and on the page
            _log.exception("Vault %s could not take a commit.", self.writer.path.name)
            self.error = StorageError(f"The vault must take what is in the log, got {error!r:.300}.")

    def _whole_chunks(self) -> int:
        length = self.stretches.last.base + self._noted
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

    def _go_on_in(self, following: Stretch) -> None:
        """Begin the next vault: it knows from its first moment how far the log has been applied."""
        applied = replace(
            self.applied, base=following.base, start=following.start, earlier=(), position=following.start
        )
        full = self.writer
        carried = {} if self._beside is None else self._beside.carried()
        self.writer = go_on_in(full, following.path, {APPLIED_KEY: applied.to_bytes(), **carried})
        self.applied = applied
        self.stretches.made(self.writer)
        full.close()
        _log.info("Vault %s is full and goes on in %s.", label_of(full.path), following.path.name)

    def _commit(self, frames: list[Frame], due: int) -> None:
        start, end = self.applied.position, min(due, frames[-1].end)
        end = end if self._beside is None else frames[-1].end
        spec, rows = self.writer.spec, self.writer.rows
        blocks = [leaves_of(spec, frame, rows) for frame in frames]
        begin, stop = start - frames[0].position, end - frames[0].position
        leaves = {
            name: np.concatenate([block[name] for block in blocks], axis=1)[:, begin:stop] for name in spec
        }
        whole = [frame for frame in frames if frame.end <= end]
        sequence = whole[-1].sequence if whole else self.applied.sequence
        applied = replace(self.applied, position=end, sequence=sequence)
        beside = {} if self._beside is None else self._beside.keys(frames, self.applied)
        self.writer.append(leaves, keys={APPLIED_KEY: applied.to_bytes(), **beside})
        with self._wake:
            self.applied = applied
            for frame in whole:
                self._waiting.popleft()
                self.pending_bytes -= frame.num_bytes
        with contextlib.suppress(RuntimeError):  # the loop that would hear it has ended
            self._committed()
        if self._beside is not None:
            self._beside.stored(frames, beside)

    def _store_alone(self) -> None:
        if self._beside is not None and (keys := self._beside.keys([], self.applied)):
            self.writer.put(keys)
            self._beside.stored([], keys)


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
