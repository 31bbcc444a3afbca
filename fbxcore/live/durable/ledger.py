"""Exactly once: which requests were already taken, by idempotency key and by writer sequence.

A repeat of a key gets the first answer and adds nothing; a repeat that comes while the first is still
being written waits for it; another body under the same key is refused. A writer's sequence must grow.
Keys are kept for 24 hours, at most 100,000 of them; a writer's last sequence is kept for good. Answers under
keys are kept packed: there may be a hundred thousand, of which hardly one is asked for again.

The ledger belongs to one event loop. It is rebuilt from log and checkpoint at start.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fbxcore.errors import ConflictError, InvalidArgumentError

KEEP_SECONDS = 24 * 3600
KEEP_KEYS = 100_000
MAX_KEY = 255
MAX_WRITERS = 100_000


def fingerprint(body: Sequence[bytes | memoryview]) -> str:
    """Return a digest that tells two bodies apart."""
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    return digest.hexdigest()[:32]


@dataclass(slots=True)
class Entry:
    """One request that was taken: still being written, or answered."""

    fingerprint: str
    created: float
    future: asyncio.Future | None = None
    packed: bytes | None = None  # the answer, as JSON

    def answer(self, result: dict[str, Any]) -> Entry:
        """Keep the answer; nobody needs to wait any more."""
        self.packed, self.future = msgspec.json.encode(result), None
        return self

    @property
    def result(self) -> dict[str, Any]:
        """The answer, once there is one."""
        return msgspec.json.decode(self.packed)


@dataclass
class WriterEntry:
    """The highest acknowledged sequence of a writer with its body and answer, and those under way."""

    last: int = -1
    fingerprint: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    pending: dict[int, asyncio.Future] = field(default_factory=dict)


class Ledger:
    """Remembers keys and writers, and says whether a request is new."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, Entry] = OrderedDict()
        self._writers: dict[str, WriterEntry] = {}
        self._noted: list[tuple[str, list[Any]]] | None = None  # writers' answers since `begin_moment`

    async def earlier(
        self, *, key: str | None, body_fingerprint: str, writer: str | None, sequence: int | None
    ) -> dict[str, Any] | None:
        """Return the answer of the request this one repeats, or None if it is new.

        For a sequence below a writer's last the answer is empty: only that it is a duplicate is known.

        Raises:
            ConflictError: if the key, or the writer's last sequence, was used for another body, or if there
                are too many writers for a new one.
        """
        if key is not None:
            return await self._earlier_key(key, body_fingerprint)
        if writer is not None and sequence is not None:
            return await self._earlier_sequence(writer, sequence, body_fingerprint)
        return None

    async def _earlier_key(self, key: str, body_fingerprint: str) -> dict[str, Any] | None:
        while (entry := self._keys.get(key)) is not None:
            if entry.fingerprint != body_fingerprint:
                raise _conflict("Idempotency-Key", repr(key), "key", ("header", "idempotency-key"))
            if entry.packed is not None:
                return entry.result
            await asyncio.shield(entry.future)  # after a failure the key is free again
        return None

    async def _earlier_sequence(
        self, writer: str, sequence: int, body_fingerprint: str
    ) -> dict[str, Any] | None:
        entry = self._writers.get(writer, _NOBODY)
        while sequence > entry.last and entry.pending and sequence <= max(entry.pending):
            await asyncio.shield(entry.pending.get(sequence) or entry.pending[max(entry.pending)])
            entry = self._writers.get(writer, _NOBODY)
        if sequence > entry.last:
            self._check_writers(writer)
            return None
        if sequence < entry.last:
            return {}
        if entry.fingerprint not in (None, body_fingerprint):
            raise _conflict("sequence", str(sequence), "number", ("query", "sequence"))
        return entry.result

    def _check_writers(self, writer: str) -> None:
        if writer not in self._writers and len(self._writers) >= MAX_WRITERS:
            raise ConflictError(
                f"`writer` must be one of at most {MAX_WRITERS}, got a new one, {writer!r}. Reuse names.",
                loc=("query", "writer"),
            )

    def begin(
        self,
        created: float,
        *,
        key: str | None,
        body_fingerprint: str,
        writer: str | None,
        sequence: int | None,
    ) -> Callable[[dict[str, Any] | None], None]:
        """Note a new request, made at a time; return what to call with its answer, None if it was refused."""
        future = asyncio.get_running_loop().create_future()
        if key is not None:
            self._keys[key] = Entry(body_fingerprint, created, future)
        if writer is not None and sequence is not None:
            self._writers.setdefault(writer, WriterEntry()).pending[sequence] = future

        def end(result: dict[str, Any] | None) -> None:
            self._end(result, key, body_fingerprint, writer, sequence)
            future.set_result(None)

        return end

    def _end(
        self,
        result: dict[str, Any] | None,
        key: str | None,
        body_fingerprint: str,
        writer: str | None,
        sequence: int | None,
    ) -> None:
        if key is not None and result is None:
            self._keys.pop(key, None)
        elif key is not None:
            self._keys[key].answer(result)
            self._forget_old()
        if writer is not None and sequence is not None:
            self._writers[writer].pending.pop(sequence, None)
            if result is not None:
                self._note_sequence(writer, sequence, body_fingerprint, result)

    def _note_sequence(
        self, writer: str, sequence: int, body_fingerprint: str | None, result: dict[str, Any]
    ) -> None:
        entry = self._writers.setdefault(writer, WriterEntry())
        if sequence > entry.last:
            entry.last, entry.fingerprint, entry.result = sequence, body_fingerprint, result
            if self._noted is not None:
                self._noted.append((writer, [sequence, body_fingerprint, result]))

    def restore(self, meta: dict[str, Any], result: dict[str, Any]) -> None:
        """Note an add that was read back from the log."""
        if (key := meta.get("key")) is not None:
            self._keys[key] = Entry(meta["fingerprint"], meta["time"]).answer(result)
        if (writer := meta.get("writer")) is not None and meta.get("writer_sequence") is not None:
            self._note_sequence(writer, meta["writer_sequence"], meta.get("fingerprint"), result)

    def last_sequence(self, writer: str) -> int | None:
        """Return the highest acknowledged sequence of a writer."""
        entry = self._writers.get(writer)
        return entry.last if entry is not None and entry.last >= 0 else None

    def writers(self) -> dict[str, int]:
        """Return each writer's highest acknowledged sequence."""
        return {name: entry.last for name, entry in sorted(self._writers.items()) if entry.last >= 0}

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: answered keys, their answers as JSON already, and writers."""
        return self.freeze()()

    def freeze(self) -> Callable[[], dict[str, Any]]:
        """Return a call, to be made in any thread, that gives what a checkpoint keeps as of now."""
        self._forget_old()
        entries = self._answered()
        writers = {
            name: [entry.last, entry.fingerprint, entry.result]
            for name, entry in self._writers.items()
            if entry.last >= 0
        }

        def to_json() -> dict[str, Any]:
            keys = {k: [e.fingerprint, e.created, msgspec.Raw(e.packed)] for k, e in entries}
            return {"keys": keys, "writers": writers}

        return to_json

    def _answered(self) -> list[tuple[str, Entry]]:
        return [(key, entry) for key, entry in self._keys.items() if entry.packed is not None]

    def begin_moment(self) -> dict[str, Any]:
        """Return what `end_moment` needs to tell what was answered up to a moment that comes."""
        self._noted = []
        return self.to_json()["writers"]

    def end_moment(self, writers: dict[str, Any], sequence: int) -> dict[str, Any]:
        """Return what a checkpoint keeps of the answers up to a sequence number of the log."""
        noted, self._noted = self._noted, None
        answered = {k: [e.fingerprint, e.created, e.result] for k, e in self._answered()}
        keys = {k: e for k, e in answered.items() if e[2].get("sequence", 0) <= sequence}
        last = {name: e for name, e in noted or () if e[2].get("sequence", 0) <= sequence}
        return {"keys": keys, "writers": writers | last}

    def load(self, saved: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""
        for key, (print_, created, result) in saved.get("keys", {}).items():
            self._keys[key] = Entry(print_, created).answer(result)
        for writer, (last, print_, result) in saved.get("writers", {}).items():
            self._writers[writer] = WriterEntry(last, print_, result)

    def _forget_old(self) -> None:
        oldest = time.time() - KEEP_SECONDS
        while self._keys:
            key, entry = next(iter(self._keys.items()))
            if entry.packed is None or (len(self._keys) <= KEEP_KEYS and entry.created >= oldest):
                break
            del self._keys[key]


_NOBODY = WriterEntry()


def _conflict(field: str, value: str, kind: str, loc: tuple[str, ...]) -> ConflictError:
    return ConflictError(
        f"`{field}` must be new for another body, got {value} again. Use a fresh {kind}.",
        code="idempotency_conflict",
        loc=loc,
    )


def check_identity(
    key: str | None, writer: str | None, sequence: int | None, *, is_named: bool = False
) -> None:
    """Refuse keys, writers and sequences that cannot be kept.

    Args:
        is_named: the writer says whose timesteps these are, and needs no sequence for that.
    """
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise InvalidArgumentError(
            f"`Idempotency-Key` must have 1 to {MAX_KEY} characters, got {len(key)}.",
            loc=("header", "idempotency-key"),
        )
    if writer is not None and not 0 < len(writer) <= MAX_KEY:
        raise InvalidArgumentError(
            f"`writer` must have 1 to {MAX_KEY} characters, got {len(writer)}.", loc=("query", "writer")
        )
    if writer is not None and (writer in (".", "..") or not writer.isprintable()):
        raise InvalidArgumentError(
            "`writer` must be of printable characters and neither `.` nor `..`, being part of addresses, got "
            f"{writer!r:.80}.",
            loc=("query", "writer"),
        )
    if sequence is not None and (writer is None or not 0 <= sequence < 1 << 63):
        raise InvalidArgumentError(
            f"`sequence` must be from 0 to {(1 << 63) - 1} and come with a `writer`, got {sequence}.",
            loc=("query", "sequence"),
        )
    if writer is not None and sequence is None and key is None and not is_named:
        raise InvalidArgumentError(
            "`writer` must come with a `sequence`, got none. Count your requests from 1.",
            loc=("query", "sequence"),
        )


def check_client(client: str | None) -> None:
    """Refuse a client's name that cannot be kept."""
    if client is not None and not 0 < len(client) <= MAX_KEY:
        raise InvalidArgumentError(
            f"`client` must have 1 to {MAX_KEY} characters, got {len(client)}.", loc=("query", "client")
        )
