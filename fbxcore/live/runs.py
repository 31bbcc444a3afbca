"""Applying the frames of independent writers to a ring: runs of several rows in one call.

Frames that wait side by side are joined, those of one row into one run, so that many small adds cost no
more calls than adds of all rows in step. What does not go on where its row stands begins a run anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fbxcore.buffers.layout import bucket_of
from fbxcore.live.frames import Frame, leaves_of
from fbxcore.live.ring import Ring
from fbxcore.types import Leaves

_CALL_BYTES = 400_000
"""What may be copied as padding to spare a call: both take some 80 µs."""


@dataclass
class _Run:
    """Timesteps of one row, one after the other."""

    begins: bool
    blocks: list[Leaves] = field(default_factory=list)  # [1, K, ...] each

    def joined(self) -> Leaves:
        """Return its timesteps `[1, K, ...]`."""
        if len(self.blocks) == 1:
            return self.blocks[0]
        return {
            name: np.concatenate([block[name] for block in self.blocks], axis=1) for name in self.blocks[0]
        }


def apply_runs(ring: Ring, frames: list[Frame]) -> list[dict[str, Any]]:
    """Apply frames of runs and of ends in order, and return the answer to each."""
    runs: dict[int, _Run] = {}
    answers, position, held = [], ring.position, ring.row_sizes()
    for frame in frames:
        index = frame.meta["row"]
        goes_on = ring.rows[index].goes_on(frame)
        if frame.steps:
            if index in runs and not goes_on:
                _add(ring, runs)
                runs = {}
            run = runs.setdefault(index, _Run(not goes_on))
            run.blocks.append(leaves_of(ring.spec, frame, 1))
            position += frame.steps
            held[index] = min(held[index] + frame.steps, ring.layout.time_axis)
        ring.rows[index] = ring.rows[index].after(frame)
        answers.append(_answer(frame, size=int(held.sum()), position=position))
    _add(ring, runs)
    ring.counters = replace(
        ring.counters, sequence=frames[-1].sequence, position=ring.counters.ring_start + position
    )
    return answers


def note_metadata(ring: Ring, frame: Frame) -> dict[str, Any]:
    """Apply a frame that describes an episode."""
    index = frame.meta["row"]
    ring.rows[index] = ring.rows[index].after(frame)
    return {"episode": frame.meta["episode"]}


def _answer(frame: Frame, **now: int) -> dict[str, Any]:
    meta = frame.meta
    where = {"row": meta["row"], "episode": meta["episode"], "steps": meta["step"] + frame.steps}
    return {"added": frame.steps, **now, "sequence": frame.sequence, **where}


def _add(ring: Ring, runs: dict[int, _Run]) -> None:
    waiting = {index: (run.joined(), run.begins) for index, run in runs.items()}
    while waiting:
        longest = max(_steps(leaves) for leaves, _ in waiting.values())
        steps = min(bucket_of(longest), ring.max_joint)
        padding = ring.layout.rows * steps * ring.timestep_bytes
        if len(waiting) == 1 or padding > len(waiting) * _CALL_BYTES:
            waiting = _add_one(ring, waiting)
        else:
            waiting = _add_joint(ring, waiting, steps)


def _add_one(ring: Ring, waiting: dict[int, tuple[Leaves, bool]]) -> dict[int, tuple[Leaves, bool]]:
    """Add a part of one run in a call of its own; return what is left."""
    index, (leaves, begins) = next(iter(waiting.items()))
    steps = min(_steps(leaves), ring.max_bucket)
    bucket = min(bucket_of(steps), ring.max_bucket)
    padded = {name: _padded(leaf[:, :steps], bucket) for name, leaf in leaves.items()}
    ring.add_runs(padded, np.array([index]), np.array([steps]), np.array([begins]))
    return _left(waiting, {index: steps})


def _add_joint(
    ring: Ring, waiting: dict[int, tuple[Leaves, bool]], steps: int
) -> dict[int, tuple[Leaves, bool]]:
    """Add at most so many steps of every run in one call over all rows; return what is left."""
    rows = ring.layout.rows
    lengths, begins = np.zeros(rows, np.int32), np.zeros(rows, bool)
    first = next(iter(waiting.values()))[0]
    joint = {name: np.zeros((rows, steps, *leaf.shape[2:]), leaf.dtype) for name, leaf in first.items()}
    for index, (leaves, is_new) in waiting.items():
        lengths[index], begins[index] = min(_steps(leaves), steps), is_new
        for name, leaf in leaves.items():
            joint[name][index, : lengths[index]] = leaf[0, : lengths[index]]
    ring.add_runs(joint, np.arange(rows), lengths, begins)
    return _left(waiting, {index: int(lengths[index]) for index in waiting})


def _left(waiting: dict[int, tuple[Leaves, bool]], added: dict[int, int]) -> dict[int, tuple[Leaves, bool]]:
    left = {}
    for index, (leaves, begins) in waiting.items():
        steps = added.get(index, 0)
        if steps < _steps(leaves):
            rest = {name: leaf[:, steps:] for name, leaf in leaves.items()}
            left[index] = (rest, begins and not steps)
    return left


def _steps(leaves: Leaves) -> int:
    return next(iter(leaves.values())).shape[1]


def _padded(leaf: np.ndarray, steps: int) -> np.ndarray:
    if leaf.shape[1] == steps:
        return leaf
    padded = np.zeros((1, steps, *leaf.shape[2:]), leaf.dtype)
    padded[:, : leaf.shape[1]] = leaf
    return padded
