"""Batches joined and padded to the few sizes that are compiled."""

from __future__ import annotations

import numpy as np

from fbxcore.spec import timestep_bytes
from fbxcore.types import Leaves, Spec


def join_blocks(blocks: list[Leaves]) -> Leaves:
    """Return blocks of leaves `[B, K, ...]` as one, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([block[name] for block in blocks], axis=1) for name in blocks[0]}


def pad_steps(x: np.ndarray, steps: int) -> np.ndarray:
    """Return `[B, K, ...]` with zeros behind it, so many steps long."""
    if x.shape[1] == steps:
        return x
    padded = np.zeros((x.shape[0], steps, *x.shape[2:]), x.dtype)
    padded[:, : x.shape[1]] = x
    return padded


def changed_ranges(before: np.ndarray, after: np.ndarray, length: int) -> list[tuple[int, int]]:
    """Return what was written as ranges counted over all rows, each a ring of so many slots.

    Args:
        before: how many steps each row had been given `[B]`.
        after: how many it has been given now.
    """
    ranges = []
    for row, (first, end) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
        begin, count = first % length, min(end - first, length)
        spans = [(begin, min(begin + count, length)), (0, begin + count - length)]
        ranges += [(row * length + a, row * length + b) for a, b in spans if a < b]
    return ranges


def pad_vector(x: np.ndarray, length: int) -> np.ndarray:
    """Return `[N]` with zeros behind it, so long."""
    padded = np.zeros(length, x.dtype)
    padded[: len(x)] = x
    return padded


def steps_within(limit: int, rows: int, spec: Spec) -> int:
    """Return the power of two of timesteps of some rows that take no more bytes than a limit, at least 1."""
    fitting = limit // max(1, timestep_bytes(spec) * rows)
    return 1 << max(fitting.bit_length() - 1, 0)


def buckets_to(most: int) -> list[int]:
    """Return the powers of two below a number, and that number."""
    return sorted({min(1 << power, most) for power in range(most.bit_length() + 1)})
