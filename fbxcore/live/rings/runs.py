"""Applying the frames of independent writers to a ring: runs of several rows in one call.

Frames that wait side by side are joined, those of one row into one run, so that many small adds cost no
more calls than adds of all rows in step. What does not go on where its row stands begins a run anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fbxcore.buffers.layout import bucket_of
from fbxcore.live.durable.frames import Frame, leaves_of, stacked_leaves
from fbxcore.live.rings.padding import join_blocks, pad_steps
from fbxcore.live.rings.ring import Ring
from fbxcore.spec import dtype_of

_CALL_BYTES = 400_000
"""What may be copied as padding to spare a call: both take some 80 µs."""


class _Run:
    """Frames of one row, one after the other."""

    __slots__ = ("begins", "frames", "steps")

    def __init__(self, frame: Frame, *, begins: bool):
        self.begins = begins
        self.frames = [frame]
        self.steps = frame.steps

    def add(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.steps += frame.steps


def apply_runs(ring: Ring, frames: list[Frame]) -> list[dict[str, Any]]:
    """Apply frames of runs and of ends in order, and return the answer to each."""
    runs: dict[int, _Run] = {}
    answers, position, size, held = [], ring.position, ring.held, ring.row_sizes().tolist()
    for frame in frames:
        meta, steps = frame.meta, frame.steps
        index = meta["row"]
        row = ring.rows[index]
        if steps:
            runs = _with(ring, runs, frame, index, goes_on=row.goes_on(frame))
            now = min(held[index] + steps, ring.layout.time_axis)
            position, size, held[index] = position + steps, size + now - held[index], now
        ring.rows[index] = row.after(steps, meta)
        answers.append({
            "added": steps, "size": size, "position": position, "sequence": frame.sequence,
            "row": index, "episode": meta["episode"], "steps": meta["step"] + steps,
        })  # fmt: skip
    _add(ring, runs)
    ring.counters = replace(
        ring.counters, sequence=frames[-1].sequence, position=ring.counters.ring_start + position
    )
    return answers


def note_metadata(ring: Ring, frame: Frame) -> dict[str, Any]:
    """Apply a frame that describes an episode."""
    index = frame.meta["row"]
    ring.rows[index] = ring.rows[index].after(0, frame.meta)
    return {"episode": frame.meta["episode"]}


def _with(ring: Ring, runs: dict[int, _Run], frame: Frame, index: int, *, goes_on: bool) -> dict[int, _Run]:
    """Return the runs with a frame; those before are added first if it does not go on in its row."""
    run = runs.get(index)
    if run is not None and goes_on:
        run.add(frame)
        return runs
    if run is not None:
        _add(ring, runs)
        runs = {}
    runs[index] = _Run(frame, begins=not goes_on)
    return runs


def _add(ring: Ring, runs: dict[int, _Run]) -> None:
    short = {index: run for index, run in runs.items() if run.steps <= ring.max_joint}
    steps = min(bucket_of(max((run.steps for run in short.values()), default=1)), ring.max_joint)
    padding = ring.layout.rows * steps * ring.timestep_bytes
    if len(short) > 1 and padding <= len(short) * _CALL_BYTES:
        _add_joint(ring, short, steps)
    else:
        short = {}
    for index, run in runs.items():
        if index not in short:
            _add_alone(ring, index, run)


def _add_joint(ring: Ring, runs: dict[int, _Run], steps: int) -> None:
    """Add runs of at most so many steps in one call over all rows."""
    rows = ring.layout.rows
    lengths, begins = np.zeros(rows, np.int32), np.zeros(rows, bool)
    alike: dict[tuple[int, int], dict[int, Frame]] = {}  # those of as many steps, at the same place of a run
    for index, run in runs.items():
        lengths[index], begins[index] = run.steps, run.begins
        at = 0
        for frame in run.frames:
            alike.setdefault((at, at + frame.steps), {})[index] = frame
            at += frame.steps
    joint = {
        name: np.empty((rows, steps, *leaf.shape), dtype_of(leaf.dtype)) for name, leaf in ring.spec.items()
    }
    for (start, stop), frames in alike.items():
        indices = np.array(list(frames))
        for name, leaf in stacked_leaves(ring.spec, list(frames.values())).items():
            joint[name][indices, start:stop] = leaf
    ring.add_runs(joint, np.arange(rows, dtype=np.int32), lengths, begins)


def _add_alone(ring: Ring, index: int, run: _Run) -> None:
    """Add one run in calls of its own."""
    leaves = join_blocks([leaves_of(ring.spec, frame, 1) for frame in run.frames])
    rows, most = np.array([index], np.int32), ring.max_bucket
    for start in range(0, run.steps, most):
        steps = min(run.steps - start, most)
        bucket = min(bucket_of(steps), most)
        padded = {name: pad_steps(leaf[:, start : start + steps], bucket) for name, leaf in leaves.items()}
        ring.add_runs(padded, rows, np.array([steps], np.int32), np.array([run.begins and not start]))
