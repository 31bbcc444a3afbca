"""The engine: one holder at a time of a ring, with a first-in-first-out queue of what is asked of it.

Durable frames and requests go through the same queue, so a sample sees every add that was acknowledged
before it was asked for. Adds that wait side by side are joined into one. The engine's thread holds the
ring while it works; when nothing waits and it is idle, a quick call may be made in its place, without
the two thread switches (docs/design/0003).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from fbxcore.errors import FbxError, NotEnoughDataError, UnavailableError
from fbxcore.live.durable.frames import Frame, Kind, leaves_of
from fbxcore.live.durable.rows import RUN_KINDS
from fbxcore.live.rings.queue_ring import QueueRing
from fbxcore.live.rings.ring import Ring
from fbxcore.live.rings.runs import apply_runs, note_metadata
from fbxcore.types import Leaves

T = TypeVar("T")
_log = logging.getLogger("flashdeck")
_STOP = object()
_JOIN_STEPS = 1024  # of each row

Ask = tuple[Callable[[Ring], Any], asyncio.Future, asyncio.AbstractEventLoop]


class Engine:
    """Runs a ring on a thread of its own."""

    def __init__(self, ring: Ring, name: str):
        self.ring = ring
        self.failure: UnavailableError | None = None
        self._closed = False
        self._held = threading.Lock()
        self._queue: queue.SimpleQueue[Frame | Ask | object] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)

    def start(self) -> None:
        """Begin to work; from now on nothing else may touch the ring."""
        self._thread.start()

    def apply(self, frame: Frame) -> None:
        """Queue a durable frame; its `done` is called with the answer."""
        self._queue.put(frame)

    def ask(self, call: Callable[[Ring], T]) -> asyncio.Future[T]:
        """Queue a call on the ring; the future resolves on the running loop."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if self._closed:
            raise UnavailableError("The buffer must be open, got a closed one.", code="closing")
        self._queue.put((call, future, loop))
        return future

    def now(self, call: Callable[[Ring], T]) -> tuple[T] | None:
        """Make a call in the caller's thread if the ring is free; None if it is not."""
        if self.failure is not None or not self._queue.empty() or not self._held.acquire(blocking=False):
            return None
        try:
            return (call(self.ring),)
        finally:
            self._held.release()

    def close(self) -> None:
        """Finish what was queued and stop."""
        self._closed = True
        self._queue.put(_STOP)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        entry = self._queue.get()
        while entry is not _STOP:
            following = None
            if isinstance(entry, Frame):
                frames, following = self._with_following(entry)
                self._apply(frames)
            else:
                self._answer(entry)
            entry = self._queue.get() if following is None else following

    def _with_following(self, frame: Frame) -> tuple[list[Frame], Frame | Ask | object | None]:
        """Return a frame with the adds that wait right behind it, and what was taken beyond them."""
        frames, steps = [frame], frame.steps
        most = _JOIN_STEPS * self.ring.layout.rows // self.ring.layout.rows_in_step
        while frame.kind is Kind.ADD and steps < most:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if not isinstance(following, Frame) or following.kind is not Kind.ADD:
                return frames, following
            frames.append(following)
            steps += following.steps
        return frames, None

    def _apply(self, frames: list[Frame]) -> None:
        try:
            if self.failure is None:
                with self._held:
                    apply_frames(self.ring, frames)
        except Exception as error:  # told to each writer, and to all who come later
            self.failure = UnavailableError(
                f"The engine must be able to apply what is in the log, got {error!r:.300}. "
                "What was acknowledged is in the log; restart the server.",
                code="engine_failed",
            )
            _log.exception("The engine failed on frame %d.", frames[0].sequence)
        if self.failure is not None:
            for frame in frames:
                _tell(frame, self.failure)

    def _answer(self, ask: Ask) -> None:
        call, future, loop = ask
        if future.cancelled():
            return
        try:
            if self.failure is not None:
                raise self.failure
            with self._held:
                result = call(self.ring)
        except Exception as error:  # told to whoever asked
            loop.call_soon_threadsafe(_reject, future, error)
        else:
            loop.call_soon_threadsafe(_resolve, future, result)


def apply_frames(ring: Ring, frames: list[Frame]) -> None:
    """Apply one frame, or several adds at once, and tell each what came of it."""
    if ring.layout.independent and frames[0].kind in RUN_KINDS:
        for frame, answer in zip(frames, apply_runs(ring, frames), strict=True):
            _tell(frame, answer)
    elif frames[0].kind is Kind.ADD:
        _apply_adds(ring, frames)
    else:
        answer = _APPLY[frames[0].kind](ring, frames[0])
        ring.counters = replace(ring.counters, sequence=frames[0].sequence)
        if not isinstance(answer, FbxError):
            answer |= {"sequence": frames[0].sequence}
        _tell(frames[0], answer)


def _apply_adds(ring: Ring, frames: list[Frame]) -> None:
    before = ring.position
    ring.add([add_leaves(ring, frame) for frame in frames])
    ring.counters = replace(ring.counters, sequence=frames[-1].sequence)
    for frame in frames:
        before += frame.steps
        _tell(frame, added_answer(ring, frame, before))


def add_leaves(ring: Ring, frame: Frame) -> Leaves:
    """Return the leaves `[B, K, ...]` of an add frame."""
    return leaves_of(ring.spec, frame, ring.layout.rows)


def added_answer(ring: Ring, frame: Frame, position: int) -> dict[str, Any]:
    """Return the answer to an add after which a row had `position` timesteps."""
    return {
        "added": frame.steps * ring.layout.rows,
        "size": ring.size_at(position),
        "position": position,
        "sequence": frame.sequence,
    }


def priorities_body(indices: np.ndarray, priorities: np.ndarray, generations: np.ndarray) -> list[bytes]:
    """Return the body of a priorities frame: int32, float32 and int64 of the same length."""
    dtypes = {"<i4": indices, "<f4": priorities, "<i8": generations}
    return [array.astype(dtype).tobytes() for dtype, array in dtypes.items()]


def _apply_priorities(ring: Ring, frame: Frame) -> dict[str, Any]:
    raw = b"".join(frame.body)
    count = len(raw) // 16
    indices = np.frombuffer(raw, "<i4", count)
    priorities = np.frombuffer(raw, "<f4", count, 4 * count)
    generations = np.frombuffer(raw, "<i8", count, 8 * count)
    return dict(ring.set_priorities(indices, priorities, generations))


def _apply_take(ring: QueueRing, frame: Frame) -> dict[str, Any] | FbxError:
    """Hand out what waits, or only let go of what was kept for a repeat."""
    meta = frame.meta
    if "released" in meta:
        return ring.release(meta["released"])
    try:
        return ring.take(meta["steps"], frame.sequence, meta.get("key"), meta.get("client"), frame.read)
    except NotEnoughDataError as error:  # a reset came between
        return error


def _apply_reset(ring: Ring, _: Frame) -> dict[str, Any]:
    ring.reset()
    return {}


def _apply_sampled(ring: Ring, frame: Frame) -> dict[str, Any]:
    ring.counters = replace(ring.counters, sampled=max(ring.counters.sampled, frame.meta["sampled"]))
    return {}


_APPLY = {
    Kind.PRIORITIES: _apply_priorities,
    Kind.TAKE: _apply_take,
    Kind.RESET: _apply_reset,
    Kind.SAMPLED: _apply_sampled,
    Kind.EPISODE: note_metadata,
}


def _tell(frame: Frame, answer: dict[str, Any] | FbxError) -> None:
    if frame.done is not None:
        frame.done(answer)
        frame.done = None


def _resolve(future: asyncio.Future, result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future, error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
