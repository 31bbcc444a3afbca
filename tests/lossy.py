"""A line that breaks: a proxy that passes bytes on, and now and then hangs up instead of answering."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lossy(port: int, *, loss: float, seed: int) -> Iterator[str]:
    """Yield the address of a proxy to a local port that loses so large a share of the answers."""
    chance = random.Random(seed)
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(0.1)
        stop = threading.Event()
        accepting = threading.Thread(target=_accept, args=(door, port, chance, loss, stop), daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            stop.set()
            accepting.join()


def _accept(
    door: socket.socket, port: int, chance: random.Random, loss: float, stop: threading.Event
) -> None:
    while not stop.is_set():
        try:
            client, _ = door.accept()
        except TimeoutError:
            continue
        client.settimeout(60)
        try:
            server = socket.create_connection(("127.0.0.1", port), timeout=60)
        except OSError:
            client.close()
            continue
        for source, sink, share in ((client, server, 0.0), (server, client, loss)):
            threading.Thread(target=_pass_on, args=(source, sink, chance, share), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, chance: random.Random, loss: float) -> None:
    with contextlib.suppress(OSError):
        while (data := source.recv(65536)) and chance.random() >= loss:
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
