"""A thin client of a running Flashdeck: NumPy and the standard library, no JAX.

    from fbxcore.client import Client

    client = Client("http://127.0.0.1:8000")
    spec = {"obs": {"shape": [4], "dtype": "float32"}, "reward": {"shape": [], "dtype": "float32"}}
    sizes = {"max_length": 10_000, "min_length": 64, "sample_batch_size": 32}
    buffer = client.create_buffer("cartpole", "flat", spec, **sizes)
    buffer.add({"obs": obs, "reward": reward})      # [B, T, ...]; stored once, however often it is sent
    sample = buffer.sample()                        # sample.experience["first"]["obs"] is [N, ...]

Experience goes in nested or flat, and comes out nested. Calls are blocking, and a client may be shared
between threads. Errors are those of `fbxcore.errors`, with the `status` of the answer; `ClientError`
is the base of them all.
"""

from fbxcore.client import errors
from fbxcore.client._buffer import Buffer, Samples
from fbxcore.client._requests import Added, Appended, Sample, Taken, Updated
from fbxcore.client._vault import Vault
from fbxcore.client._writer import Writer
from fbxcore.client.client import Client
from fbxcore.client.errors import ClientError

__all__ = [
    "Added",
    "Appended",
    "Buffer",
    "Client",
    "ClientError",
    "Sample",
    "Samples",
    "Taken",
    "Updated",
    "Vault",
    "Writer",
    "errors",
]
