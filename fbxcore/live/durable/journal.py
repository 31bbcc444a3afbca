"""The durable half of a live buffer or vault: log, ledger and vault, opened and closed together."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fbxcore.errors import ConflictError, FbxError
from fbxcore.live.durable.applied import Applied
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.durable.frames import Frame, Kind, bytes_of
from fbxcore.live.durable.ledger import Ledger, check_identity, fingerprint
from fbxcore.live.durable.log import Log
from fbxcore.live.durable.persister import Persister
from fbxcore.live.durable.room import Room
from fbxcore.live.durable.rows import Planned
from fbxcore.live.durable.segmenter import SegmentPersister
from fbxcore.types import Leaves, Spec
from fbxcore.vault.store import VaultWriter

_OFF_LOOP_BYTES = 1 << 20

Identity = dict[str, Any]


class _Asked(NamedTuple):
    """A frame on its way, and who is told what came of it."""

    frame: Frame
    future: asyncio.Future[dict[str, Any]]
    ended: Callable[[dict[str, Any] | None], None] | None


class Journal:
    """Takes adds exactly once, makes them durable in order, and moves them into a vault.

    It belongs to the event loop that calls `start`.

    Args:
        on_frame: called in the log's thread with each durable frame; it must see to it that the frame's
            `done` is called with the answer.
        begins_at: the sequence and position behind which a new log begins.
        began: called on the loop with each frame that is handed in.
        settled: called on the loop with each frame that was applied or refused, also when nobody waits, and
            with the answer, None where it was refused.
        independent: the vault gets each writer's episodes in one piece.
    """

    def __init__(
        self,
        directory: Path,
        spec: Spec,
        *,
        writer: VaultWriter | None,
        durability: str,
        on_frame: Callable[[Frame], None],
        began: Callable[[Frame], None] = lambda _: None,
        settled: Callable[[Frame, dict[str, Any] | None], None] = lambda _, __: None,
        begins_at: tuple[int, int] = (0, 0),
        independent: bool = False,
    ):
        self.spec = spec
        self.ledger = Ledger()
        self.log = Log(directory, self._on_durable, durability=durability)
        self.persister: Persister | SegmentPersister | None = None
        if writer is not None:
            sequence, position = begins_at
            applied = Applied.of(writer, self.log.id, position=position, sequence=sequence)
            self.persister = (SegmentPersister if independent else Persister)(writer, applied)
        self.room = Room(self.log, self.persister)
        self._on_frame = on_frame
        self._began = began
        self._settled = settled
        self._loop: asyncio.AbstractEventLoop
        self._answers: deque[tuple[_Asked, dict[str, Any] | FbxError]] = deque()
        self._is_told = False  # that there are answers

    @property
    def next_episode(self) -> int:
        """The least number for an episode that its vault does not know."""
        return self.persister.next_episode if isinstance(self.persister, SegmentPersister) else 1

    def start(self, counters: Counters) -> None:
        """Begin to write and to persist, behind where the ring stands."""
        self._loop = loop = asyncio.get_running_loop()
        next_sequence, position = counters.sequence + 1, counters.position
        if self.persister is not None:
            self.persister.on_commit(lambda: loop.call_soon_threadsafe(self.room.wake))
            position = max(position, self.persister.applied.position)
            next_sequence = max(next_sequence, self.persister.applied.sequence + 1)
            self.persister.start()
        self.log.start(next_sequence=next_sequence, position=position)

    async def add(
        self,
        leaves: Leaves,
        steps: int,
        *,
        key: str | None,
        writer: str | None,
        sequence: int | None,
        admit: Callable[[], Any] | None = None,
        plan: Callable[[], Planned] | None = None,
        about: bytes = b"",
        deadline: float = 0.0,
    ) -> dict[str, Any]:
        """Take checked leaves `[B, K, ...]` once; return the answer, with `duplicate`.

        Args:
            admit: awaited before a new request is taken; raises to refuse it.
            plan: says, in log order, which row of an independent writer they go to.
            about: what else tells requests apart.
            deadline: until when to wait for vault and checkpoint, by the loop's clock.
        """
        check_identity(key, writer, sequence, is_named=plan is not None)
        self._check_vault()
        body = bytes_of(self.spec, leaves)
        identity: Identity = {
            "key": key,
            "body_fingerprint": await _fingerprint([*body, memoryview(about)])
            if key is not None or sequence is not None
            else "",
            "writer": writer,
            "sequence": sequence,
        }
        frame = Frame(Kind.ADD if steps else Kind.CUT, body=body, steps=steps)

        async def enter() -> bool:
            waited = await self.room.enter(deadline)
            return (admit is not None and await admit()) or waited

        return await self.once(frame, identity, enter, plan)

    async def once(
        self,
        frame: Frame,
        identity: Identity,
        admit: Callable[[], Any] | None = None,
        plan: Callable[[], Planned] | None = None,
    ) -> dict[str, Any]:
        """Hand in a frame unless its request was taken before; return the answer, with `duplicate`.

        Args:
            admit: awaited before a new request is taken, and returns whether that took waiting; raises to
                refuse it.
            plan: see `add`.
        """
        while (answer := await self.ledger.earlier(**identity)) is None:
            if admit is None or not await admit():
                break  # else somebody may have been first meanwhile, with this request or with its room
        else:
            return answer | {"duplicate": True}
        created = time.time()
        planned = plan() if plan is not None else Planned({}, lambda: None)
        frame.meta |= _meta(identity, created) | planned.meta
        end = self.ledger.begin(created, **identity)

        def ended(answer: dict[str, Any] | None) -> None:
            if answer is None:
                planned.undo()
            end(answer)

        return await self.put(frame, ended) | {"duplicate": False}

    def put(
        self, frame: Frame, ended: Callable[[dict[str, Any] | None], None] | None = None
    ) -> asyncio.Future[dict[str, Any]]:
        """Hand a frame to the log; the future resolves once it is durable and applied.

        Who does not wait any longer changes nothing of that.

        Args:
            ended: called with the answer before the future resolves, or with None if it was refused.
        """
        asked = _Asked(frame, self._loop.create_future(), ended)
        self.room.take(frame.num_bytes)
        frame.done = functools.partial(self._answer, asked)
        self._began(frame)
        self.log.append(frame, frame.done)
        return asked.future

    def _answer(self, asked: _Asked, answer: dict[str, Any] | FbxError) -> None:
        """Take an answer, in any thread; the loop is told once of all that wait for it."""
        self._answers.append((asked, answer))
        if not self._is_told:
            self._is_told = True
            self._loop.call_soon_threadsafe(self._settle_all)

    def _settle_all(self) -> None:
        self._is_told = False  # before looking: what comes now is told anew, or seen
        while self._answers:
            asked, answer = self._answers.popleft()
            self._finish(asked, None if isinstance(answer, FbxError) else answer)
            _settle(asked.future, answer)

    def _finish(self, asked: _Asked, answer: dict[str, Any] | None) -> None:
        if asked.ended is not None:
            asked.ended(answer)
        self.room.give_back(asked.frame.num_bytes)
        self._settled(asked.frame, answer)

    async def flush(self) -> Applied | None:
        """Commit everything acknowledged to the vault."""
        if self.persister is None:
            return None
        return await asyncio.wrap_future(self.persister.flush())

    def close(self) -> None:
        """Write and commit what was handed in; blocks."""
        self.log.close()
        if self.persister is not None:
            self.persister.close()

    def replay(
        self, covered: int, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> Iterator[Frame]:
        """Yield the frames of the log, giving the persister what the vault does not hold yet.

        Args:
            covered: the last frame that the checkpoint stands for.
        """
        if self.persister is not None:
            covered = self.persister.covered(covered)
        for frame in self.log.replay(covered=covered, progress=progress):
            if self.persister is not None and frame.kind in self.persister.kinds:
                self.persister.note(frame)
            yield frame

    def _on_durable(self, frame: Frame) -> None:
        if self.persister is not None and frame.kind in self.persister.kinds:
            self.persister.note(frame)
        self._on_frame(frame)

    def _check_vault(self) -> None:
        if self.persister is None:
            return
        error = self.persister.error
        if isinstance(error, ConflictError):
            raise error
        self.persister.check_alone()


async def _fingerprint(body: list[memoryview]) -> str:
    size = sum(len(part) for part in body)
    return fingerprint(body) if size < _OFF_LOOP_BYTES else await asyncio.to_thread(fingerprint, body)


def _meta(identity: Identity, created: float) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if identity["key"] is not None:
        meta |= {"key": identity["key"], "time": created}
    if identity["writer"] is not None:
        meta |= {"writer": identity["writer"], "writer_sequence": identity["sequence"]}
    return meta | {"fingerprint": identity["body_fingerprint"]} if meta else meta


def _settle(future: asyncio.Future, answer: dict[str, Any] | FbxError) -> None:
    if future.done():
        return
    if isinstance(answer, FbxError):
        future.set_exception(answer)
        future.exception()  # a client that went away is nobody to tell
    else:
        future.set_result(answer)
