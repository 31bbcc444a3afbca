"""Compaction of independent writers: a log's frames, put together again by episode.

The log has the frames of all writers mixed; the vault gets each episode in one piece. Frames wait until their
episode ends, or until it has to be written before that: when much waits, when the log would grow, at a flush.
The pieces go through a `Persister` as if they were the frames of a log.

A commit says in the same transaction which frames the vault then holds: all up to a sequence number, but for
those of some open episodes from a step on. So a crash repeats none and loses none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from fbxcore.errors import FbxError
from fbxcore.live.durable.applied import Applied, Stretches
from fbxcore.live.durable.frames import Frame, Kind, leaves_of
from fbxcore.live.durable.persister import Persister
from fbxcore.live.durable.rows import Row
from fbxcore.vault.foreign import Foreign
from fbxcore.vault.segments import Segment, encode_segments, segments_key
from fbxcore.vault.store import VaultWriter

MARKS_KEY = "_flashdeck/rows"
_MOST_STEPS = 4096
_MOST_BYTES = 8 << 20
_MOST_WAITING_BYTES = 64 << 20  # of all episodes together, well below what holds writers back


@dataclass(frozen=True)
class Marks:
    """Which frames of a log a vault holds."""

    log: str
    sequence: int = 0  # all frames up to this …
    open: dict[int, int] = field(default_factory=dict)  # … but those of an episode from a step on
    episodes: int = 0  # the highest number of an episode

    def hold(self, frame: Frame) -> bool:
        """Whether a frame is in the vault."""
        meta = frame.meta
        waits_from = self.open.get(meta["episode"])
        return frame.sequence <= self.sequence and (waits_from is None or meta["step"] < waits_from)


@dataclass
class _Run:
    """Frames of an episode that wait."""

    episode: int
    metadata: dict[str, Any] | None = None
    frames: list[Frame] = field(default_factory=list)
    steps: int = 0
    num_bytes: int = 0

    def add(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.steps += frame.steps
        self.num_bytes += frame.num_bytes


class SegmentPersister:
    """Commits a log's frames to a vault of one row, episode by episode."""

    kinds = (Kind.ADD, Kind.CUT, Kind.EPISODE)

    def __init__(self, writer: VaultWriter, applied: Applied):
        saved = writer.get(MARKS_KEY)
        marks = msgspec.json.decode(saved, type=Marks) if saved else Marks("")
        if marks.log != applied.log:
            marks = Marks(applied.log, applied.sequence, episodes=marks.episodes)
        self._marks = marks
        self._noted = self._marks
        self._runs: dict[int, _Run] = {}  # by row
        self._steps = self._bytes = 0  # of what waits in them
        self._made: list[Frame] = []  # pieces that are still to be given to the persister …
        self._pieces: deque[Frame] = deque()  # … and those given that are not in the vault yet
        self._ends: list[Frame] = []  # of episodes whose steps are all written
        self._lock = threading.RLock()
        self._persister = Persister(writer, applied, beside=self)
        self._position = applied.position

    @property
    def next_episode(self) -> int:
        """The least number for an episode that the vault does not know."""
        return self._noted.episodes + 1

    def on_commit(self, call: Callable[[], None]) -> None:
        """Call back, from the persister's thread, after each commit."""
        self._persister.on_commit(call)

    # What a persister tells

    @property
    def writer(self) -> VaultWriter:
        return self._persister.writer

    @property
    def applied(self) -> Applied:
        return self._persister.applied

    @property
    def error(self) -> FbxError | None:
        return self._persister.error

    @property
    def length(self) -> int:
        """Timesteps of the vault, those still in the log included."""
        return self._persister.length + self._steps

    @property
    def pending(self) -> int:
        """Timesteps that are in the log and not yet in the vault."""
        return self._persister.pending + self._steps

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait in memory."""
        return self._persister.pending_bytes + self._bytes

    @property
    def low_sequence(self) -> int:
        """The first frame that the vault does not hold."""
        with self._lock:
            waiting = [run.frames[0].sequence for run in self._runs.values() if run.frames]
            waiting += [piece.meta["first"] for piece in self._pieces]
            waiting += [frame.sequence for frame in self._ends]
            return min(waiting, default=self._noted.sequence + 1)

    def covered(self, sequence: int) -> int:
        """Return up to which frame a log may have gaps: as far as the ring's image holds what it had."""
        return sequence

    @property
    def stretches(self) -> Stretches:
        return self._persister.stretches

    def check_alone(self) -> None:
        """Refuse to go on where another program has committed."""
        self._persister.check_alone()

    def adopt(self) -> Future[Foreign | None]:
        """Go on behind what another program wrote; the future tells what that was."""
        return self._persister.adopt()

    def start(self) -> None:
        """Begin to commit."""
        self._persister.start()

    def note(self, frame: Frame) -> None:
        """Take a durable frame; frames come in order. Those already applied are passed over."""
        with self._lock:
            row, episode = frame.meta["row"], frame.meta["episode"]
            run = self._runs.get(row)
            if run is None or run.episode != episode:
                if run is not None:
                    self._emit(row)
                run = self._runs[row] = _Run(episode)
            if frame.kind is Kind.EPISODE:
                run.metadata = frame.meta["metadata"]
            elif not self._noted.hold(frame):
                self._take(row, run, frame)
            self._note_mark(frame)
            if "end" in frame.meta:
                self._emit(row)
                del self._runs[row]
            elif run.steps >= _MOST_STEPS or run.num_bytes >= _MOST_BYTES:
                self._emit(row)
            if self._bytes > _MOST_WAITING_BYTES:
                self._emit_before(1 << 63)
            self._give()

    def _take(self, row: int, run: _Run, frame: Frame) -> None:
        if run.frames and run.frames[-1].meta["step"] + run.frames[-1].steps != frame.meta["step"]:
            self._emit(row)  # something in between was refused
        run = self._runs[row]
        if frame.steps or run.frames:
            run.add(frame)
            self._steps, self._bytes = self._steps + frame.steps, self._bytes + frame.num_bytes
        else:
            self._ends.append(replace(frame, meta=frame.meta | {"metadata": run.metadata}))

    def _note_mark(self, frame: Frame) -> None:
        episodes = max(self._noted.episodes, frame.meta["episode"])
        sequence = max(self._noted.sequence, frame.sequence)
        self._noted = replace(self._noted, sequence=sequence, episodes=episodes)

    def _emit(self, row: int) -> None:
        """Make a piece of what a row's episode has waiting."""
        run = self._runs[row]
        if not run.frames:
            return
        first, last = run.frames[0], run.frames[-1]
        spec = self.writer.spec
        blocks = [leaves_of(spec, frame, 1) for frame in run.frames if frame.steps]
        body = [np.concatenate([block[name] for block in blocks], axis=1).tobytes() for name in spec]
        segment = Segment(
            writer=first.meta["writer"], episode=run.episode, row=row, start=0, stop=0,
            first_step=first.meta["step"], end=last.meta.get("end"), final="final" in last.meta,
            metadata=run.metadata,
        )  # fmt: skip
        meta = {"segment": segment, "first": first.sequence}
        self._made.append(Frame(Kind.ADD, meta, body, run.steps, position=self._position))
        self._position += run.steps
        self._steps, self._bytes = self._steps - run.steps, self._bytes - run.num_bytes
        self._runs[row] = _Run(run.episode, run.metadata)

    def _give(self) -> None:
        """Hand new pieces to the persister, with the marks that hold once they are in the vault."""
        marks = self._marks_now(self._ends)
        for piece in reversed(self._made):  # the last one first: it leaves least waiting
            piece.meta["marks"], piece.sequence = marks, self._noted.sequence
            segment = piece.meta["segment"]
            marks = replace(marks, open=marks.open | {segment.episode: segment.first_step})
        for piece in self._made:
            self._pieces.append(piece)
            self._persister.note(piece)
        self._made.clear()

    def _marks_now(self, ends: list[Frame]) -> Marks:
        """Return what the vault holds once all but what waits, and some ends, is in it."""
        waits = {run.episode: run.frames[0].meta["step"] for run in self._runs.values() if run.frames}
        return replace(self._noted, open=waits | {f.meta["episode"]: f.meta["step"] for f in ends})

    def expect(self, rows: list[Row]) -> None:
        """Know the open episodes of rows, whose metadata may lie before what is noted next."""
        self._runs = {index: _Run(row.episode, row.metadata) for index, row in enumerate(rows) if row.is_open}

    def flush(self) -> Future[Applied]:
        """Commit all that was noted so far, open episodes as far as they are."""
        return self.flush_before(1 << 63)

    def flush_before(self, sequence: int) -> Future[Applied]:
        """Commit all whose episode has ended, and what waits since before a frame."""
        self._emit_before(sequence)
        return self._persister.flush()

    def _emit_before(self, sequence: int) -> None:
        with self._lock:
            for row, run in list(self._runs.items()):
                if run.frames and run.frames[0].sequence < sequence:
                    self._emit(row)
            self._give()

    def close(self) -> None:
        """Commit what waits, stop the thread and release the vault."""
        self._emit_before(1 << 63)
        self._persister.close()

    # What the persister's thread stores beside the timesteps

    def keys(self, pieces: list[Frame], applied: Applied) -> dict[str, bytes]:
        """Return keys to store with a commit of pieces, or alone; empty where there is nothing to say."""
        with self._lock:
            is_all = not self._pieces if not pieces else pieces[-1] is self._pieces[-1]
            ends = list(self._ends) if is_all else []
            if not pieces and not ends:
                return {}
            marks = self._marks_now([]) if is_all else pieces[-1].meta["marks"]
        start = applied.base + (pieces[0].position if pieces else applied.position)
        segments = [_placed(piece, applied) for piece in pieces]
        stop = segments[-1].stop if segments else start
        segments += [_end_alone(frame, stop) for frame in ends]
        key = segments_key(start)
        before = self.writer.get(key)  # ends that were written when nothing else was
        known = msgspec.json.decode(before, type=list[Segment]) if before else []
        return {key: encode_segments([*known, *segments]), MARKS_KEY: msgspec.json.encode(marks)}

    def stored(self, pieces: list[Frame], keys: dict[str, bytes]) -> None:
        """Forget what was committed."""
        with self._lock:
            for _ in pieces:
                self._pieces.popleft()
            if MARKS_KEY in keys:
                self._marks = msgspec.json.decode(keys[MARKS_KEY], type=Marks)
            self._ends = [frame for frame in self._ends if not self._marks.hold(frame)]

    def carried(self) -> dict[str, bytes]:
        """Return what the next vault must know from its first moment."""
        with self._lock:
            return {MARKS_KEY: msgspec.json.encode(self._marks)}


def _placed(piece: Frame, applied: Applied) -> Segment:
    start = applied.base + piece.position
    return replace(piece.meta["segment"], start=start, stop=start + piece.steps)


def _end_alone(frame: Frame, at: int) -> Segment:
    """Return the segment that tells how an episode ended whose steps were written before."""
    meta = frame.meta
    return Segment(
        writer=meta["writer"], episode=meta["episode"], row=meta["row"], start=at, stop=at,
        first_step=meta["step"], end=meta["end"], final=False, metadata=meta["metadata"],
    )  # fmt: skip
