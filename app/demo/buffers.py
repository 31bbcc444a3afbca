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


def create_buffers(client: Client) -> dict[str, Buffer]:
    """Create both buffers, or find those of an earlier demo."""
    return {
        CARTPOLE: client.create_buffer(
            CARTPOLE, "prioritised_flat", _CARTPOLE_SPEC,
            max_length=100_000, min_length=1_024, sample_batch_size=256, add_batch_size=ROWS,
            priority_exponent=0.6, persist_to=VAULTS[CARTPOLE],
        ),
        PONG: client.create_buffer(
            PONG, "trajectory", _PONG_SPEC,
            add_batch_size=1, sample_batch_size=8, sample_sequence_length=16, period=8,
            min_length_time_axis=64, max_length_time_axis=4_096, persist_to=VAULTS[PONG],
        ),
    }  # fmt: skip
