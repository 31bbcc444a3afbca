"""What a live buffer answers; plain values."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fbxcore.live.durable.rows import Row


@dataclass(frozen=True)
class Added:
    """The answer to an add."""

    added: int  # timesteps over all rows
    size: int
    position: int  # timesteps per row since the last reset
    sequence: int | None  # of the log; None for a writer's old repeat
    duplicate: bool
    durable: bool


@dataclass(frozen=True)
class Sample:
    """Arrays named as on the wire, and how to draw them again."""

    arrays: dict[str, np.ndarray]
    seed: int
    position: int


@dataclass(frozen=True)
class Taken:
    """Arrays named as on the wire, handed out once."""

    arrays: dict[str, np.ndarray]
    position: int  # of their first timestep, per row since the last reset
    sequence: int  # of the log
    duplicate: bool  # the key was given the same before


@dataclass(frozen=True)
class Updated:
    """The answer to new priorities."""

    updated: int
    stale: int


@dataclass(frozen=True)
class RunAdded:
    """The answer to an independent writer's add; all counts are over all rows."""

    added: int  # the true last observation included
    size: int
    position: int
    sequence: int | None  # of the log; None for a writer's old repeat, as are the next three
    row: int | None
    episode: int | None
    steps: int | None  # timesteps of the episode so far
    duplicate: bool
    durable: bool


@dataclass(frozen=True)
class WriterState:
    """A writer, its row and its open episode."""

    writer: str
    sequence: int | None  # the highest acknowledged
    row: int | None  # which it has, or had last
    episode: dict[str, Any] | None  # index, steps, since, metadata; None where none is open
    last_seen: float | None  # Unix seconds
    idle_s: float | None

    @staticmethod
    def of(
        writer: str, sequence: int | None, index: int | None = None, row: Row | None = None
    ) -> WriterState:
        """Return the state of a writer that has, or had, a row."""
        if row is None:
            return WriterState(writer, sequence, None, None, None, None)
        episode = None
        if row.is_open:
            episode = {"index": row.episode, "steps": row.steps, "since": row.began, "metadata": row.metadata}
        return WriterState(writer, sequence, index, episode, row.seen, max(0.0, time.time() - row.seen))
