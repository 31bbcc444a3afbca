"""Independent writers: who adds at their own pace, each into a row that it keeps for an episode.

A writer's first timesteps take a free row; the row is free again when the episode ends, when somebody ends
it for the writer, or when the writer adds nothing for `idle_end_s`. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fbxcore.errors import ConflictError, FbxError, InvalidArgumentError, UnavailableError
from fbxcore.live.answers import WriterState
from fbxcore.live.calls.checks import check_run, check_timeout
from fbxcore.live.calls.gate import Gate
from fbxcore.live.config import BufferConfig
from fbxcore.live.durable.frames import Frame, Kind, bytes_of
from fbxcore.live.durable.journal import Journal
from fbxcore.live.durable.rows import Planned, Row, Rows
from fbxcore.live.rings.ring import Ring
from fbxcore.types import Leaves
from fbxcore.vault.segments import Segment

MAX_METADATA_BYTES = 64 << 10
_FILL_SECONDS = 60.0  # within which vault and checkpoint catch up
_log = logging.getLogger("flashdeck")


class Writers:
    """The writers of one buffer and their rows."""

    def __init__(self, config: BufferConfig, ring: Ring, journal: Journal, gate: Gate):
        self.config = config
        self._ring = ring
        self._journal = journal
        self._gate = gate
        self._rows = Rows(ring.rows, next_episode=journal.next_episode)
        self._heard: dict[str, float] = {}
        self._asking: Counter[str] = Counter()  # requests under way, which may wait for the limiter
        self._sweeper = asyncio.create_task(self._sweep())

    def stop(self) -> None:
        """End no more episodes."""
        self._sweeper.cancel()

    async def add(
        self,
        leaves: Leaves,
        *,
        writer: str | None,
        end: str | None,
        key: str | None,
        sequence: int | None,
        cast: str | None,
        timeout_ms: int,
    ) -> dict[str, Any]:
        """Add leaves `[T, ...]`, and `final/<leaf>` `[...]` where the episode ends, exactly once.

        Raises:
            StructureError: if they are not what the spec says.
            ConflictError: if nothing is given but an end, and the writer has no episode (`no_episode`).
            UnavailableError: if no row is free after `timeout_ms`, or the limiter still blocks.
        """
        name = _checked(writer)
        checked, steps, has_final = check_run(self.config, leaves, end, cast)
        deadline = asyncio.get_running_loop().time() + check_timeout(timeout_ms)
        more = {} if end is None else {"end": end}
        if has_final:
            more["final"] = True
        about = more if key is None else more | {"writer": name}  # a sequence is a writer's own, a key is not
        self._asking[name] += 1  # present as long as its request is under way
        try:
            answer = await self._journal.add(
                checked,
                steps,
                key=key,
                writer=name,
                sequence=sequence,
                about=msgspec.json.encode(about) if about else b"",
                admit=lambda: self._admit(name, steps, deadline),
                deadline=deadline,
                plan=lambda: self._plan(name, steps, more),
            )
        finally:
            self._leave(name)
        if "size" not in answer:
            now = {"size": self._ring.size, "position": self._ring.position, "sequence": None}
            answer |= {"added": 0, **now, "row": None, "episode": None, "steps": None}
        return answer

    def _leave(self, writer: str) -> None:
        """Note that one of a writer's requests is over, however it ended."""
        self._heard[writer] = time.monotonic()
        self._asking[writer] -= 1
        if not self._asking[writer]:
            del self._asking[writer]

    async def _admit(self, writer: str, steps: int, deadline: float) -> bool:
        waited = await self._gate.admit_add(steps, deadline) if steps else False
        while steps and not self._rows.has_row(writer):
            await self._gate.wait(deadline, self._no_row)
            await self._gate.admit_add(steps, deadline)
            waited = True
        return waited

    def _plan(self, writer: str, steps: int, more: dict[str, Any]) -> Planned:
        if more and steps == ("final" in more) and self._rows.open_row(writer) is None:
            raise ConflictError(
                f"`end` must close an episode that is open, or come with timesteps, got writer {writer!r} "
                "without one.",
                code="no_episode",
                loc=("query", "end"),
            )
        if not self._rows.has_row(writer):
            raise self._no_row()
        return self._rows.plan(writer, steps, time.time(), more)

    def _no_row(self) -> UnavailableError:
        return UnavailableError(
            f"`writer` must find one of {self._ring.layout.rows} rows free, got all in use by other writers' "
            "episodes. Try again, end an episode, or make the buffer with a greater `add_batch_size`.",
            code="no_free_row",
            retry_after_s=1,
        )

    async def cut(self, writer: str) -> bool:
        """End a writer's open episode without its true end; return whether there was one."""
        self._gate.check_open()
        found = self._rows.open_row(_checked(writer))
        if found is None:
            return False
        planned = self._rows.plan(writer, 0, found[1].seen, {"end": "cut"})
        await self._journal.put(
            Frame(Kind.CUT, planned.meta), lambda answer: planned.undo() if answer is None else None
        )
        return True

    async def fill(self, leaves: Leaves, segments: Sequence[Segment]) -> None:
        """Add segments of a vault past the limiter, each as a run in the row it names.

        Args:
            leaves: `[1, K, ...]`, in which the segments lie.
        """
        await self._journal.room.enter(asyncio.get_running_loop().time() + _FILL_SECONDS)
        await asyncio.gather(*(put for segment in segments for put in self._put_segment(leaves, segment)))

    def _put_segment(self, leaves: Leaves, segment: Segment) -> Iterator[asyncio.Future]:
        part = {name: leaf[0, segment.start : segment.stop] for name, leaf in leaves.items()}
        checked, steps, _ = check_run(self.config, part, None, None)
        more = {"end": segment.end, "final": segment.final or None}
        more = {name: value for name, value in more.items() if value is not None}
        first = segment.row, segment.first_step, segment.writer
        meta = self._rows.plan_in(*first, steps, time.time(), more).meta
        if segment.metadata is not None:
            about = {name: meta[name] for name in ("row", "writer", "episode")}
            yield self._journal.put(Frame(Kind.EPISODE, about | {"metadata": segment.metadata}))
        yield self._journal.put(Frame(Kind.ADD, meta, bytes_of(self.config.spec, checked), steps))

    async def describe_episode(self, writer: str, metadata: Any) -> WriterState:
        """Set the metadata of a writer's open episode, a JSON object."""
        self._gate.check_open()
        if not isinstance(metadata, dict) or len(msgspec.json.encode(metadata)) > MAX_METADATA_BYTES:
            raise InvalidArgumentError(
                f"`body` must be a JSON object of at most {MAX_METADATA_BYTES} bytes, got {metadata!r:.80}.",
                loc=("body",),
            )
        found = self._rows.open_row(_checked(writer))
        if found is None:
            raise ConflictError(
                f"`writer` must have an open episode, got {writer!r} without one.",
                code="no_episode",
                loc=("path", "writer"),
            )
        index, row = found
        meta = {"row": index, "writer": writer, "episode": row.episode, "metadata": metadata}
        await self._journal.put(Frame(Kind.EPISODE, meta))
        states = states_of(self._ring.rows, self._journal.ledger.writers())
        return next(state for state in states if state.writer == writer)

    async def _sweep(self) -> None:
        """End the episodes of writers that were not heard for too long, since a restart at most."""
        while True:
            longest, now = self.config.idle_end_s, time.monotonic()
            self._heard = {name: self._heard.get(name, now) for name in self._rows.open_writers}
            await asyncio.sleep(min(1.0, longest / 4))
            now = time.monotonic()
            idle = [name for name, heard in self._heard.items() if now - heard > longest]
            for writer in [name for name in idle if name not in self._asking]:
                try:
                    await self.cut(writer)
                except FbxError as error:
                    _log.warning("Buffer %s: %r keeps its row: %s", self.config.name, writer, error)


def states_of(rows: Sequence[Row], sequences: Mapping[str, int]) -> list[WriterState]:
    """Return every writer that was heard of, by name.

    Args:
        sequences: the highest acknowledged one of each that counts.
    """
    of = {row.writer: (index, row) for index, row in enumerate(rows) if row.writer is not None}
    names = sorted(of.keys() | sequences.keys())
    return [WriterState.of(name, sequences.get(name), *of.get(name, ())) for name in names]


def _checked(writer: str | None) -> str:
    if not writer:
        raise InvalidArgumentError(
            "`writer` must name who sends these timesteps, since writers are independent, got none.",
            loc=("query", "writer"),
        )
    return writer
