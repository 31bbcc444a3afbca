"""The two buffers of the demo, and their timesteps."""

from __future__ import annotations

from fbxcore.client import Buffer, Client

ROWS = 8
CARTPOLE, PONG = "cartpole", "pong"
VAULTS = {CARTPOLE: "cartpole/run1", PONG: "pong/run1"}

_ENDS = {
    "reward": {"shape": [], "dtype": "float32", "role": "reward"},
    "terminated": {"shape": [], "dtype": "bool", "role": "terminated"},
    "truncated": {"shape": [], "dtype": "bool", "role": "truncated"},
}
_CARTPOLE_SPEC = {
    "obs": {
        "shape": [4],
        "dtype": "float32",
        "names": ["cart position", "cart velocity", "pole angle", "pole velocity"],
    },
    "action": {"shape": [], "dtype": "int32"},
    **_ENDS,
}
_PONG_SPEC = {
    "frame": {"shape": [84, 84], "dtype": "uint8"},
    "action": {"shape": [], "dtype": "int32"},
    **_ENDS,
}


_KINDS = {CARTPOLE: "prioritised_flat", PONG: "trajectory"}
_SPECS = {CARTPOLE: _CARTPOLE_SPEC, PONG: _PONG_SPEC}
_ARGUMENTS = {
    CARTPOLE: {
        "max_length": 100_000,
        "min_length": 1_024,
        "sample_batch_size": 256,
        "add_batch_size": ROWS,
        "priority_exponent": 0.6,
    },
    PONG: {
        "add_batch_size": 1,
        "sample_batch_size": 8,
        "sample_sequence_length": 16,
        "period": 8,
        "min_length_time_axis": 64,
        "max_length_time_axis": 4_096,
    },
}


def create_buffer(client: Client, name: str) -> Buffer:
    """Create a buffer of the demo, or find that of an earlier one."""
    return client.create_buffer(name, _KINDS[name], _SPECS[name], persist_to=VAULTS[name], **_ARGUMENTS[name])
