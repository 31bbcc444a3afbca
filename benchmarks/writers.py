"""Independent writers beside rows in lockstep: `python -m benchmarks.writers [--quick]`.

64 requests are under way at once, each with n timesteps, as many bytes, a writer's name and a sequence, and
each is answered once it is on disk (`fsync`). Independent: a request is n steps of one actor, whose episode
ends after 256; 64 rows. Lockstep: a request is one step of each of n rows, as a client sends it that steps n
environments together; as much capacity in all. The second peer is a client that gathers from all 64 and sends
the same timesteps in one request.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import jax
import numpy as np

from benchmarks.http import VECTOR, serving
from benchmarks.report import Ratio, interleaved, print_table
from fbxcore.client import Client
from fbxcore.live import BufferConfig, LiveBuffer
from fbxcore.wire import encode

ACTORS = 64
CAPACITY = 64_000
EPISODE = 256
STEPS = (1, 16, 64)
KINDS = ("trajectory", "flat", "prioritised_trajectory")
PEER = "rows in lockstep"
GATHERED = "one request for all 64"


def writer_ratios(
    *,
    repeats: int = 9,
    calls: int = 20,
    kinds: Sequence[str] = KINDS,
    steps: Sequence[int] = STEPS,
) -> list[Ratio]:
    """Measure 64 adds in process and over HTTP; the ratio is lockstep's time over that of independent."""
    works, rows = list(itertools.product(kinds, steps)), []
    measured = {"repeats": repeats, "calls": calls}
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        for kind, n in works:
            with ExitStack() as stack:
                ours, theirs = (
                    stack.enter_context(_in_process(runner, Path(folder), kind, leading))
                    for leading in ((n,), (n, 1))
                )
                work = f"{kind}, in process: 64 × {n}"
                rows.append(interleaved(work, PEER, ours, theirs, target=1.0, **measured))
    with tempfile.TemporaryDirectory() as folder, serving("app.cli", "serve", "--data", folder) as port:
        for kind, n in works:
            with ExitStack() as stack:
                ours = stack.enter_context(_over_http(port, kind, (n,), ACTORS))
                theirs = stack.enter_context(_over_http(port, kind, (n, 1), ACTORS))
                gathered = stack.enter_context(_over_http(port, kind, (ACTORS, n), 1))
                work = f"{kind}, HTTP: 64 × {n}"
                rows.append(interleaved(work, PEER, ours, theirs, target=1.0, **measured))
                rows.append(interleaved(work, GATHERED, ours, gathered, **measured))
    return rows


def _asked(kind: str, leading: tuple[int, ...]) -> dict:
    """Return what a buffer is made of for requests of `[n]` timesteps of an actor, or of `[B, n]`."""
    rows, writers = (ACTORS, "independent") if len(leading) == 1 else (leading[0], "lockstep")
    sizes = {"add_batch_size": rows, "sample_batch_size": 32}
    if "flat" in kind:
        return sizes | {"max_length": CAPACITY, "min_length": 2, "writers": writers}
    sizes |= {"max_length_time_axis": CAPACITY // rows, "min_length_time_axis": 16}
    return sizes | {"sample_sequence_length": 16, "period": 1, "writers": writers}


def _leaves(leading: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return random experience with leading axes."""
    random = np.random.default_rng(0)
    return {
        name: (random.random((*leading, *leaf["shape"])) * 200).astype(leaf["dtype"])
        for name, leaf in VECTOR.items()
    }


def _end(number: int, leading: tuple[int, ...]) -> str | None:
    """Return what a writer's request of that number ends."""
    return "terminated" if len(leading) == 1 and number % (EPISODE // leading[0]) == 0 else None


@contextmanager
def _in_process(
    runner: asyncio.Runner, folder: Path, kind: str, leading: tuple[int, ...]
) -> Iterator[Callable[[], None]]:
    """Give a call that adds 64 times, to a buffer that is open meanwhile."""
    name = _name_of(kind, leading)
    config = BufferConfig.parse({"name": name, "kind": kind, "spec": VECTOR, **_asked(kind, leading)})
    buffer = runner.run(LiveBuffer.open(folder / name, config, vaults=folder / "vaults"))
    leaves, numbers = _leaves(leading), itertools.count(1)
    for leaf in leaves.values():
        leaf.flags.writeable = False  # as what came by the wire

    async def add_all() -> None:
        number = next(numbers)
        await asyncio.gather(*(
            buffer.add(
                leaves, writer=f"actor-{actor}", sequence=number, end=_end(number + actor, leading),
                timeout_ms=30_000,
            )
            for actor in range(ACTORS)
        ))  # fmt: skip

    try:
        yield lambda: runner.run(add_all())
    finally:
        runner.run(buffer.close())


@contextmanager
def _over_http(port: int, kind: str, leading: tuple[int, ...], requests: int) -> Iterator[Callable[[], None]]:
    """Give a call that sends so many requests, each on a kept connection, and then reads the answers."""
    name = f"{_name_of(kind, leading)}-{requests}"
    with Client(f"http://127.0.0.1:{port}") as client, ExitStack() as stack:
        buffer = client.create_buffer(name, kind, VECTOR, **_asked(kind, leading))
        body, _ = encode(_leaves(leading), "safetensors")
        lines = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(requests)]
        numbers = itertools.count(1)

        def add_all() -> None:
            number = next(numbers)
            for actor, line in enumerate(lines):
                end = _end(number + actor, leading)
                query = f"writer=actor-{actor}&sequence={number}&timeout_ms=30000"
                query += f"&end={end}" if end else ""
                line.sendall(_request(f"/api/v1/buffers/{name}/experience?{query}", body))
            for line in lines:
                _check_answer(line)

        yield add_all
        buffer.delete(discard=True)


def _name_of(kind: str, leading: tuple[int, ...]) -> str:
    return "-".join([kind, *map(str, leading)])


def _request(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-safetensors\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _check_answer(line: socket.socket) -> None:
    """Read one answer, whose body is one JSON object without others in it."""
    answer = line.recv(65536)
    while not answer.endswith(b"}") and (more := line.recv(65536)):
        answer += more
    if not answer.startswith(b"HTTP/1.1 201"):
        raise RuntimeError(f"An add was answered {answer!r:.500}.")


def main(arguments: list[str]) -> None:
    """Print the table; `--quick` takes fewer calls."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as the service does
    calls = 5 if "--quick" in arguments else 20
    print_table("Independent writers", writer_ratios(calls=calls))


if __name__ == "__main__":
    main(sys.argv[1:])
