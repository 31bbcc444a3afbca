"""How long a buffer takes to be back, beside reading its files: `python -m benchmarks.restart`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fbxcore.live import BufferConfig, LiveBuffer

SPEC = {
    "obs": {"shape": [4], "dtype": "float32"},
    "action": {"shape": [], "dtype": "int32"},
    "reward": {"shape": [], "dtype": "float32"},
    "done": {"shape": [], "dtype": "bool"},
}
STEP_BYTES = 25
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Restart:
    """One restart."""

    what: str
    steps: int
    seconds: float  # until the buffer answers
    file_bytes: int
    read_seconds: float  # of reading the same files

    def __str__(self) -> str:
        speed, plain = (self.file_bytes / 1e6 / max(s, 1e-9) for s in (self.seconds, self.read_seconds))
        return (
            f"| {self.what} | {self.steps:,} | {self.seconds:.2f} s | {self.file_bytes / 1e6:,.0f} MB | "
            f"{speed:,.0f} MB/s | {plain:,.0f} MB/s |"
        )


def restarts(steps: int, batch: int = 1000) -> list[Restart]:
    """Fill buffers of `steps` transitions, stop them, and measure how they come back."""
    found = []
    for kind in ("flat", "prioritised_flat"):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            asyncio.run(_fill(place, _config(kind, steps, None), steps, batch))
            found.append(asyncio.run(_measure(place, f"{kind}, checkpoint and log", steps)))
            (place / "b" / "checkpoint.safetensors").unlink()
            found.append(asyncio.run(_measure(place, f"{kind}, log only", steps)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        asyncio.run(_fill(place, _config("flat", steps, "run/1"), steps, batch))
        found.append(asyncio.run(_measure(place, "flat, from its vault", steps)))
    return found


def _config(kind: str, steps: int, persist_to: str | None) -> BufferConfig:
    sizes = {"max_length": steps, "min_length": 2, "sample_batch_size": 256}
    asked = {"name": "b", "kind": kind, "spec": SPEC, "durability": "os", "persist_to": persist_to}
    return BufferConfig.parse(asked | sizes)


async def _fill(place: Path, config: BufferConfig, steps: int, batch: int) -> None:
    buffer = await LiveBuffer.open(place / "b", config, vaults=place / "vaults")
    rng = np.random.default_rng(0)
    for at in range(0, steps, batch):
        count = min(batch, steps - at)
        leaves = {
            "obs": rng.random((1, count, 4), np.float32),
            "action": np.arange(at, at + count, dtype=np.int32)[None],
            "reward": np.ones((1, count), np.float32),
            "done": np.zeros((1, count), bool),
        }
        await buffer.add(leaves, timeout_ms=30_000)
    await buffer.close()


async def _measure(place: Path, what: str, steps: int) -> Restart:
    files = [path for path in place.rglob("*") if path.is_file()]
    num_bytes = sum(path.stat().st_size for path in files)
    started = time.perf_counter()
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.read(_BLOCK):
                pass
    read_seconds, started = time.perf_counter() - started, time.perf_counter()
    buffer = await LiveBuffer.open(place / "b", vaults=place / "vaults")
    seconds = time.perf_counter() - started
    size = buffer.describe()["size"]
    await buffer.close()
    if size != steps:
        raise RuntimeError(f"{what}: {size} steps came back, not {steps}.")
    return Restart(what, steps, seconds, num_bytes, read_seconds)


def main(arguments: Iterable[str] = ()) -> None:
    """Print a table; the first argument is how many steps."""
    steps = int(next(iter(arguments), 10_000_000))
    print(f"Transitions of {STEP_BYTES} bytes, added 1,000 at a time.\n")
    print("| restart | steps | seconds | files | speed | reading the files |")
    print("|---|---|---|---|---|---|")
    for one in restarts(steps):
        print(one, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
