"""A small queue and experience whose every number tells its row and step."""

import numpy as np

from fbxcore.live import BufferConfig

SPEC = {"step": {"shape": [], "dtype": "int64"}, "frame": {"shape": [2], "dtype": "uint8"}}


def queue_config(**changes):
    """Return the configuration of a queue of 2 rows, 10 slots and sequences of 3; `changes` alter it."""
    asked = {
        "name": "q",
        "kind": "trajectory_queue",
        "spec": SPEC,
        "add_batch_size": 2,
        "add_sequence_length": 2,
        "sample_sequence_length": 3,
        "max_length_time_axis": 10,
    }
    return BufferConfig.parse({n: v for n, v in (asked | changes).items() if v is not None})


def numbers(start, count, rows=2):
    """Return the numbers of timesteps, `[B, K]`: row r begins at 1000 r."""
    return np.arange(start, start + count, dtype=np.int64) + 1000 * np.arange(rows)[:, None]


def leaves(start, count, rows=2):
    """Return leaves `[B, K, ...]` in which every number tells row and step."""
    step = numbers(start, count, rows)
    return {"step": step, "frame": np.repeat(step[..., None] % 251, 2, axis=2).astype(np.uint8)}


def sequences(start, number, rows=2, length=3):
    """Return what takes give from timestep `start` on, `[k·B, L]`: one sequence of each row, and so on."""
    each = [numbers(start + length * k, length, rows) for k in range(number)]
    return np.concatenate(each)
