"""A small buffer configuration and experience whose every number tells where it belongs."""

import numpy as np

from fbxcore.live import BufferConfig


def config(**changes):
    """Return a small prioritised flat buffer's configuration; `changes` alter or add fields."""
    asked = {
        "name": "cartpole",
        "kind": "prioritised_flat",
        "spec": {
            "obs": {"shape": [3], "dtype": "float32"},
            "step": {"shape": [], "dtype": "int32"},
        },
        "max_length": 128,
        "min_length": 8,
        "sample_batch_size": 16,
        "add_batch_size": 2,
        "priority_exponent": 0.6,
    }
    asked |= changes
    return BufferConfig.parse({name: value for name, value in asked.items() if value is not None})


def steps(start, count, rows=2):
    """Return leaves whose every number is the timestep's, so that any mix-up shows."""
    number = np.arange(start, start + count, dtype=np.int32)[None].repeat(rows, 0)
    return {"obs": np.broadcast_to(number[..., None], (rows, count, 3)).astype(np.float32), "step": number}


def independent(**changes):
    """Return the configuration of a uniform flat buffer of three rows of twenty timesteps."""
    fields = {"kind": "flat", "priority_exponent": None, "max_length": 60, "min_length": 1}
    return config(**({"writers": "independent", "add_batch_size": 3} | fields | changes))


def run(*numbers):
    """Return leaves `[T, ...]` of one writer whose numbers are the given ones."""
    step = np.array(numbers, np.int32).reshape(-1)
    return {"obs": np.repeat(step[:, None], 3, 1).astype(np.float32), "step": step}


def final(number):
    """Return a true last observation."""
    return {"final/obs": np.full(3, number, np.float32)}
