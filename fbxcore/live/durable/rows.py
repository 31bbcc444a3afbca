"""Which writer has which row of a buffer whose writers are independent.

Every frame of an episode says whose it is: row, writer, the episode's number (counted over the whole
buffer), how many timesteps of it came before, and what ends it. A row's state follows from its last frame
alone, so that replay gives the same rows, and a frame that does not go on where the row stands begins a
run of its own: what was not consecutive is never joined, whatever was refused in between.

`Rows` is the plan of the event loop, which hands frames to the log; the ring has the rows as applied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fbxcore.live.durable.frames import Frame, Kind

RUN_KINDS = (Kind.ADD, Kind.CUT)
ENDS = ("terminated", "truncated", "cut")


class Row(NamedTuple):
    """What a row holds at its write index."""

    writer: str | None = None  # who has it, or had it last
    episode: int = 0  # the number of its episode, from 1; 0: never used
    steps: int = 0  # timesteps of the episode, its true last observation included
    is_open: bool = False
    began: float = 0.0  # Unix seconds
    seen: float = 0.0
    metadata: dict[str, Any] | None = None

    def goes_on(self, frame: Frame) -> bool:
        """Whether a frame's timesteps are the next ones of what the row holds."""
        return (self.episode, self.steps) == (frame.meta["episode"], frame.meta["step"])

    def after(self, steps: int, meta: dict[str, Any]) -> Row:
        """Return the row once a frame of so many timesteps is applied."""
        is_same = self.episode == meta["episode"]
        if "metadata" in meta:
            return self._replace(metadata=meta["metadata"]) if is_same else self
        began, metadata = (self.began, self.metadata) if is_same else (meta["at"], None)
        is_open = "end" not in meta
        return Row(
            meta["writer"], meta["episode"], meta["step"] + steps, is_open, began, meta["at"], metadata
        )


def as_array(rows: Sequence[Row]) -> np.ndarray:
    """Return rows as uint8 `[n]`, as a checkpoint keeps them beside its arrays."""
    return np.frombuffer(msgspec.msgpack.encode(rows), np.uint8)


def rows_of(array: np.ndarray) -> list[Row]:
    """Return the rows that `as_array` gave."""
    return msgspec.msgpack.decode(array.tobytes(), type=list[Row])


class Planned(NamedTuple):
    """A frame's part about rows; `undo` if the frame was refused."""

    meta: dict[str, Any]
    undo: Callable[[], None]


class Rows:
    """The plan: rows as they will be once everything that was handed to the log is applied."""

    def __init__(self, rows: Sequence[Row], *, next_episode: int = 1):
        self.rows = list(rows)
        self._next_episode = max(next_episode, 1 + max(row.episode for row in self.rows))
        self._open = {row.writer: index for index, row in enumerate(self.rows) if row.is_open}
        longest_free = sorted(range(len(self.rows)), key=lambda index: self.rows[index].seen)
        self._free = OrderedDict((index, None) for index in longest_free if not self.rows[index].is_open)
        self._last = {row.writer: index for index, row in enumerate(self.rows)}

    def open_row(self, writer: str) -> tuple[int, Row] | None:
        """Return number and state of the row of a writer's open episode."""
        index = self._open.get(writer)
        return None if index is None else (index, self.rows[index])

    @property
    def open_writers(self) -> list[str]:
        """Who has an open episode."""
        return list(self._open)

    def has_row(self, writer: str) -> bool:
        """Whether a writer has a row, or could have one."""
        return writer in self._open or bool(self._free)

    def plan(self, writer: str, steps: int, at: float, more: dict[str, Any]) -> Planned:
        """Return what a frame of a writer says about its row, which it takes if it has none.

        A free row that was the writer's own is taken first, then the one longest not used.
        """
        index = self._open.get(writer)
        if index is None:
            index = self._last.get(writer)
            index = index if index in self._free else next(iter(self._free))
        return self.plan_in(index, 0, writer, steps, at, more)

    def plan_in(
        self, index: int, first_step: int, writer: str, steps: int, at: float, more: dict[str, Any]
    ) -> Planned:
        """Return what a frame says that goes on in a row, or begins there at some step of its episode."""
        if self.rows[index].is_open:
            episode, step = self.rows[index].episode, self.rows[index].steps
        else:
            episode, step = self._next_episode, first_step
            self._next_episode += 1
        meta = {"row": index, "writer": writer, "episode": episode, "step": step, "at": at} | more
        before = self.rows[index]
        after = before.after(steps, meta)
        self._put(index, after)

        def undo() -> None:
            if self.rows[index] is after:  # else later frames rely on it, and will begin a run of their own
                self._put(index, before)

        return Planned(meta, undo)

    def _put(self, index: int, row: Row) -> None:
        before = self.rows[index]
        if before.is_open and row.is_open and before.writer == row.writer:
            self.rows[index] = row  # an episode that goes on, as nearly always
            return
        if before.is_open:
            self._open.pop(before.writer)
        if self._last.get(before.writer) == index:
            del self._last[before.writer]
        self.rows[index] = row
        self._last[row.writer] = index
        if row.is_open:
            self._open[row.writer] = index
            self._free.pop(index, None)
        else:
            self._free[index] = None
            self._free.move_to_end(index)
