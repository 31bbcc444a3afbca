"""HTTP: sampling through Flashdeck against servers that do less.

`bare` is a Starlette endpoint that returns the same bytes each time; `in line` is a FastAPI handler that
draws, gathers and encodes as the service does, in the handler itself. All three run under the same
uvicorn, each in a process of its own, and are asked in turns by one client on one kept connection.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.report import Ratio, interleaved, print_table
from fbxcore.client import Client

VECTOR = {
    "obs": {"shape": [17], "dtype": "float32"},
    "action": {"shape": [6], "dtype": "float32"},
    "reward": {"shape": [], "dtype": "float32"},
    "done": {"shape": [], "dtype": "bool"},
    "next_obs": {"shape": [17], "dtype": "float32"},
}
FRAMES = {
    "obs": {"shape": [32, 32, 3], "dtype": "uint8"},
    "action": {"shape": [], "dtype": "int32"},
    "reward": {"shape": [], "dtype": "float32"},
    "done": {"shape": [], "dtype": "bool"},
}
WORKS = {"256 MuJoCo transitions": ("vector", VECTOR), "256 frames of 32×32×3": ("frames", FRAMES)}
LENGTH = 20_000
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # as `make serve` has it
TARGETS = {"bare": 0.5, "inline": 0.75}
PEERS = {"bare": "bare Starlette, same bytes", "inline": "FastAPI, same work in line"}


def http_ratios(*, repeats: int = 9, calls: int = 300) -> list[Ratio]:
    """Measure requests per second against both peers; the ratio is ours over theirs."""
    rows = []
    with tempfile.TemporaryDirectory() as data, ExitStack() as stack:
        ours = stack.enter_context(serving("app.cli", "serve", "--data", data))
        for name, spec in WORKS.values():
            _fill(ours, name, spec)
        for work, (name, _) in WORKS.items():
            path = f"/api/v1/buffers/{name}/sample?batch_size=256&format=safetensors"
            sample = stack.enter_context(_getting(ours, path))
            body = Path(data) / "body"
            body.write_bytes(sample())
            for kind, peer in PEERS.items():
                argument = str(body) if kind == "bare" else name
                with serving("benchmarks.peers", kind, argument) as port, _getting(port, "/") as theirs:
                    rows.append(
                        interleaved(
                            f"sample {work}",
                            peer,
                            sample,
                            theirs,
                            calls=calls,
                            repeats=repeats,
                            target=TARGETS[kind],
                        )  # fmt: skip
                    )
    return rows


def batch(spec: dict, count: int) -> dict[str, np.ndarray]:
    """Return `[I, ...]` random experience of a spec."""
    random = np.random.default_rng(0)
    return {
        name: (random.random((count, *leaf["shape"])) * 200).astype(leaf["dtype"])
        for name, leaf in spec.items()
    }


def _fill(port: int, name: str, spec: dict) -> None:
    sizes = {"max_length": LENGTH, "min_length": 256, "sample_batch_size": 256}
    with Client(f"http://127.0.0.1:{port}") as client:
        buffer = client.create_buffer(name, "item", spec, durability="os", **sizes)
        for _ in range(LENGTH // 1000):
            buffer.add(batch(spec, 1000))


@contextmanager
def _getting(port: int, path: str) -> Iterator[Callable[[], bytes]]:
    """Give a call that asks for a path on one kept connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def get() -> bytes:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {body[:300]!r}")
        return body

    with closing(connection):
        yield get


@contextmanager
def serving(module: str, *arguments: str):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", module, *arguments, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | ENVIRONMENT)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(port: int, process: subprocess.Popen) -> None:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None:
                raise RuntimeError(f"A server ended with {process.returncode}.") from None
            time.sleep(0.1)
    raise TimeoutError("A server did not start within a minute.")


if __name__ == "__main__":
    print_table("HTTP", http_ratios())
