"""Taking from a queue: who may add, who may take, and how long what was taken is kept.

Adds and takes are admitted on the loop before they go to the log, so that no frame of a log ever asks for
room or items that are not there. Admission counts what is under way: an add takes its room, and a take its
items, when it is handed in, while what an add brings and a take frees counts once it was applied.

What was taken under a key is kept for a repeat until its client takes again, and no longer than a minute by
the clock of this process. The minute begins anew after a restart: no jump of a clock ends it early.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from fbxcore.errors import InvalidArgumentError, NotEnoughDataError, UnavailableError
from fbxcore.live.answers import Taken
from fbxcore.live.calls.gate import Gate
from fbxcore.live.config import BufferConfig
from fbxcore.live.durable.frames import Frame, Kind
from fbxcore.live.durable.journal import Identity, Journal
from fbxcore.live.durable.ledger import check_client, check_identity
from fbxcore.live.rings.engine import Engine
from fbxcore.live.rings.queue_ring import QueueRing, not_enough
from fbxcore.live.rings.ring import Room, new_room

KEEP_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_TICK = 0.001  # a timer may fire that much early


class Stock:
    """What of a queue is there and what is under way, in timesteps per row, as the loop knows it."""

    def __init__(self, ring: QueueRing):
        self._time_axis = ring.layout.time_axis
        self.position = ring.counters.position
        self.taken = ring.counters.taken
        self.reserved = ring.counters.reserved
        self._adding = 0
        self._taking = 0

    @property
    def room(self) -> int:
        """Timesteps that may be added."""
        return self._time_axis - (self.position - self.taken) - self.reserved - self._adding

    @property
    def waiting(self) -> int:
        """Timesteps that may be taken."""
        return self.position - self.taken - self._taking

    def began(self, frame: Frame) -> None:
        """Count a frame as under way."""
        self._adding += frame.steps
        self._taking += frame.meta.get("steps", 0) if frame.kind is Kind.TAKE else 0

    def settled(self, frame: Frame, answer: dict[str, Any] | None) -> None:
        """Count what a frame did; None if it was refused."""
        steps = frame.meta.get("steps", 0) if frame.kind is Kind.TAKE else 0
        self._adding -= frame.steps
        self._taking -= steps
        if answer is None:
            return
        self.position += frame.steps
        if frame.kind is Kind.RESET:
            self.taken, self.reserved = self.position, 0
        elif frame.kind is Kind.TAKE:
            self.taken += steps
            self.reserved = answer["reserved"]


class Takes:
    """Hands a queue's items out, each once; belongs to the event loop that calls `start`."""

    def __init__(self, config: BufferConfig, engine: Engine, journal: Journal, gate: Gate):
        self._config = config
        self._engine = engine
        self._journal = journal
        self._gate = gate
        self._stock = Stock(engine.ring)
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Let what is reserved now be kept for its time."""
        for sequence in self._engine.ring.reservations:
            self._keep(sequence, KEEP_SECONDS)

    def close(self) -> None:
        """End no more reservations."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def began(self, frame: Frame) -> None:
        """Note a frame that is handed to the log."""
        self._stock.began(frame)

    def settled(self, frame: Frame, answer: dict[str, Any] | None) -> None:
        """Note what became of a frame."""
        self._stock.settled(frame, answer)
        if frame.kind is not Kind.TAKE:
            return
        if answer is None:
            for sequence in frame.meta.get("released", ()):
                self._keep(sequence, _RETRY_SECONDS)
            return
        for sequence in answer["released"]:
            if (timer := self._timers.pop(sequence, None)) is not None:
                timer.cancel()
        if "key" in frame.meta:
            self._keep(frame.sequence, KEEP_SECONDS)

    def _keep(self, sequence: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[sequence] = loop.call_later(seconds, self._release, sequence)

    def _release(self, sequence: int) -> None:
        del self._timers[sequence]
        self._journal.put(Frame(Kind.TAKE, {"released": [sequence]}))

    async def admit_add(self, steps: int, deadline: float) -> bool:
        """Wait until there is room for so many timesteps a row; return whether it took waiting."""
        waited = False
        while self._stock.room < steps:
            await self._gate.wait(deadline, lambda: self._full(steps))
            waited = True
        return waited

    def _full(self, steps: int) -> UnavailableError:
        numbers = self.describe()
        return UnavailableError(
            f"The queue must have room for {steps} timesteps a row, got {numbers['room']} of "
            f"{numbers['time_axis']} slots, with {numbers['waiting']} timesteps that wait to be taken and "
            f"{numbers['reserved']} kept for a repeat. Take some, or pass a longer `timeout_ms`.",
            code="queue_full",
            retry_after_s=1,
            needed=steps - numbers["room"],
            queue=numbers,
        )

    def describe(self) -> dict[str, int]:
        """Return the numbers an answer shows to whoever is blocked, per row."""
        stock = self._stock
        return {
            "time_axis": self._config.layout.time_axis,
            "waiting": stock.position - stock.taken,
            "reserved": stock.reserved,
            "room": stock.room,
        }

    async def take(
        self, batch_size: int | None, *, key: str | None, client: str | None, deadline: float, room: Room
    ) -> Taken:
        """Take the oldest sequences, `[k·B, L, ...]`, or what the same key was given before."""
        steps = self._steps_of(batch_size)
        check_identity(key, None, None)
        check_client(client)
        asked = {
            "key": key,
            "body_fingerprint": f"take {steps}",
            "writer": None,
            "sequence": None,
        }
        given: Future[dict[str, np.ndarray]] = Future()
        meta = {"steps": steps} | ({} if client is None else {"client": client})
        answer = await self._once(meta, functools.partial(_read, given, room), asked, deadline)
        if answer["duplicate"]:
            arrays = await self._engine.ask(lambda ring: ring.read_again(answer["sequence"], room))
        else:
            arrays = given.result()
        return Taken(arrays, answer["position"], answer["sequence"], answer["duplicate"])

    async def _once(
        self, meta: dict[str, Any], read: Callable, asked: Identity, deadline: float
    ) -> dict[str, Any]:
        """Take, or return the answer of the request this one repeats."""
        while True:
            frame = Frame(Kind.TAKE, dict(meta), read=read)
            try:
                return await self._journal.once(frame, asked, lambda: self._admit(meta, deadline))
            except NotEnoughDataError:  # in time, it means that a reset came between
                if asyncio.get_running_loop().time() + _TICK >= deadline:
                    raise

    async def next_in_line(self) -> dict[str, np.ndarray] | None:
        """Return what the next take will give, and take nothing; None if too little waits."""
        length = self._config.layout.sequence_length

        def read(ring: QueueRing) -> dict[str, np.ndarray] | None:
            return ring.read(ring.next_in_line(length), new_room) if ring.held >= length else None

        return await self._engine.ask(read)

    async def _admit(self, meta: dict[str, Any], deadline: float) -> bool:
        """Wait until so much can be taken; return whether it took waiting.

        Who waits has the answer of its last take, and what was reserved for it may be in the way of what
        it waits for.
        """
        waited, steps, client = False, meta["steps"], meta.get("client")
        if self._stock.waiting < steps and client is not None and self._has_reserved(client):
            self._journal.put(Frame(Kind.TAKE, {"steps": 0, "client": client}))
        while self._stock.waiting < steps:
            await self._gate.wait(deadline, lambda: not_enough(steps, max(self._stock.waiting, 0)))
            waited = True
        return waited

    def _has_reserved(self, client: str) -> bool:
        return any(r.client == client for r in self._engine.ring.reservations.values())

    def _steps_of(self, batch_size: int | None) -> int:
        """Return how many timesteps of each row a batch takes."""
        layout = self._config.layout
        number = layout.rows if batch_size is None else batch_size
        most = min(layout.time_axis // layout.sequence_length * layout.rows, self._config.max_batch_size)
        if number % layout.rows or not 0 < number <= most:
            raise InvalidArgumentError(
                f"`batch_size` must be a multiple of the {layout.rows} rows (`add_batch_size`) and at most "
                f"{most // layout.rows * layout.rows}, got {number}.",
                loc=("query", "batch_size"),
            )
        return number // layout.rows * layout.sequence_length


def _read(given: Future, room: Room, ring: QueueRing, slots: np.ndarray) -> None:
    """Copy what was taken; an error is for who asked, and nothing that the engine has to stop for."""
    try:
        given.set_result(ring.read(slots, room))
    except Exception as error:
        given.set_exception(error)
