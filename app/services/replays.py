"""Answers kept for a while, so that a sample asked for twice under one key is drawn once.

A sample counts, and its answer may be lost on the way: the same key gets the same bytes again. Kept in
memory only: after a restart the count stands, and the key is new.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

from fbxcore.errors import ConflictError, InvalidArgumentError

KEEP_SECONDS = 60.0
KEEP_ANSWERS = 64
KEEP_BYTES = 64 << 20
MAX_KEY = 255

Answer = tuple[bytes, dict[str, str]]


@dataclass
class _Kept:
    asked: Hashable
    answer: asyncio.Future[Answer]
    since: float


class Replays:
    """The answers kept, by buffer and key."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Any, OrderedDict[str, _Kept]] = weakref.WeakKeyDictionary()

    async def once(
        self, owner: Any, key: str | None, asked: Hashable, draw: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Return the answer kept under a key, or draw and keep one.

        Raises:
            ConflictError: if the key was used to ask for something else.
        """
        if key is None:
            return await draw()
        _check_key(key)
        kept = self._kept.setdefault(owner, OrderedDict())
        _forget_old(kept)
        if (former := kept.get(key)) is None:
            task = asyncio.ensure_future(draw())  # goes on if this client leaves: a repeat will ask for it
            former = kept[key] = _Kept(asked, task, time.monotonic())
        elif former.asked != asked:
            raise ConflictError(
                f"`Idempotency-Key` must be new for another request, got {key!r} again. Use a fresh key.",
                code="idempotency_conflict",
                loc=("header", "idempotency-key"),
            )
        try:
            body, headers = await asyncio.shield(former.answer)
        except BaseException:
            if former.answer.done() and kept.get(key) is former:
                del kept[key]  # nothing was drawn: the key is free again
            raise
        return body, dict(headers)


def _check_key(key: str) -> None:
    if not 0 < len(key) <= MAX_KEY:
        raise InvalidArgumentError(
            f"`Idempotency-Key` must have 1 to {MAX_KEY} characters, got {len(key)}.",
            loc=("header", "idempotency-key"),
        )


def _forget_old(kept: OrderedDict[str, _Kept]) -> None:
    oldest = time.monotonic() - KEEP_SECONDS
    size = sum(_size(entry) for entry in kept.values())
    for key, entry in list(kept.items()):
        if entry.since >= oldest and len(kept) < KEEP_ANSWERS and size <= KEEP_BYTES:
            break
        if entry.answer.done():
            size -= _size(entry)
            del kept[key]


def _size(entry: _Kept) -> int:
    if not entry.answer.done() or entry.answer.cancelled() or entry.answer.exception() is not None:
        return 0
    return len(entry.answer.result()[0])
