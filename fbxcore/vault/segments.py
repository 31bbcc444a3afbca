"""Segments: which timesteps of a vault are consecutive, and whose they are.

A vault that a buffer with independent writers persists to has one row. It is made of segments, each a run of
one writer's episode. They are told of under keys beside the arrays, one for each commit, written with the
timesteps in one transaction; the arrays themselves are as ever, and Flashbax reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from fbxcore.vault.keys import json_value

SEGMENTS_PREFIX = "_flashdeck/segments/"


class Listed(Protocol):
    """A reader or a writer."""

    path: Any
    length: int

    def get(self, key: str) -> bytes | None: ...

    def keys(self, prefix: str) -> list[str]: ...


@dataclass(frozen=True)
class Segment:
    """Consecutive timesteps `[start, stop)` of one episode.

    An episode lies in several segments if it had to be written before it ended: `first_step` says where each
    goes on, and the last has the `end`. An end that came after all steps were written is one of none.
    """

    writer: str
    episode: int  # counted over all buffers that persisted to the vault
    row: int  # of the buffer's ring
    start: int  # timesteps of the vault
    stop: int
    first_step: int  # steps of the episode before it
    end: str | None  # terminated, truncated, cut; None where the episode goes on, or was still open
    final: bool  # the last timestep is the true last observation, no step that was taken
    metadata: dict[str, Any] | None


def segments_of(vault: Listed) -> list[Segment]:
    """Return the segments of a vault in order; empty where no independent writers were."""
    found = (json_value(vault, key) for key in vault.keys(SEGMENTS_PREFIX))
    return [Segment(**fields) for commit in found for fields in commit]


def segments_key(start: int) -> str:
    """Return the key of a commit's segments, which begins at that timestep."""
    return f"{SEGMENTS_PREFIX}{start:012d}"


def moved_segments(vault: Listed, at: int, to: int) -> dict[str, bytes | None]:
    """Return the keys to store (None: delete) where timesteps from `at` on were written anew from `to`."""
    keys: dict[str, bytes | None] = {}
    moved: list[Segment] = []
    for key in vault.keys(SEGMENTS_PREFIX):
        segments = [Segment(**fields) for fields in json_value(vault, key)]
        if all(segment.stop <= at for segment in segments):
            continue
        stay = clipped(segments, 0, at)
        keys[key] = encode_segments(stay) if stay else None
        behind = clipped([segment for segment in segments if segment.stop > at], at, vault.length)
        moved += [replace(s, start=s.start + to, stop=s.stop + to) for s in behind]
    return {**keys, segments_key(to): encode_segments(moved)} if moved else keys


def encode_segments(segments: Iterable[Segment]) -> bytes:
    """Return the value of a commit's key."""
    return json.dumps([asdict(segment) for segment in segments]).encode()


def borders_of(segments: Sequence[Segment], first: int, length: int) -> np.ndarray:
    """Return where runs of consecutive timesteps in `[first, length)` begin and end, ascending.

    What lies between segments was written in lockstep, and is a run of its own.
    """
    edges = {edge for segment in segments for edge in (segment.start, segment.stop)}
    return np.array(sorted({edge for edge in edges if first < edge < length} | {first, length}), np.int64)


def clipped(segments: Iterable[Segment], start: int, stop: int) -> list[Segment]:
    """Return what of segments lies in `[start, stop)`, counted from its beginning."""
    found = []
    for segment in segments:
        first, last = max(segment.start, start), min(segment.stop, stop)
        if first > last or (first == last and segment.start < segment.stop):
            continue
        is_whole_end = last == segment.stop
        found.append(
            replace(
                segment,
                start=first - start,
                stop=last - start,
                first_step=segment.first_step + first - segment.start,
                end=segment.end if is_whole_end else None,
                final=segment.final and is_whole_end,
            )
        )
    return found
