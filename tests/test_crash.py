"""kill -9 under four writers: what was acknowledged is in the vault, once."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np

from fbxcore.client import Client, ClientError
from fbxcore.vault.store import VaultReader

KILLS = 5
WRITERS = 4
SPEC = {"writer": {"shape": [], "dtype": "int32"}, "number": {"shape": [], "dtype": "int32"}}


def free_port():
    """Return a port nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start_server(data, port):
    """Start Flashdeck on a data directory and wait until it answers."""
    command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--data", str(data)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return server
        except OSError:
            assert server.poll() is None, "the server ended"
            time.sleep(0.05)
    raise TimeoutError("the server did not start")


def write_until(stop, url, writer, acknowledged):
    """Send numbered steps as one writer, each again until it is acknowledged."""
    client = Client(url, timeout=10)
    number = 0
    while not stop.is_set():
        number += 1
        count = 1 + number % 3
        leaves = {
            "writer": np.full((1, count), writer, np.int32),
            "number": np.full((1, count), number, np.int32),
        }
        while not stop.is_set():
            try:
                client.buffer("b").add(leaves, writer=f"w{writer}", sequence=number)
            except (ClientError, OSError):
                time.sleep(0.05)
            else:
                acknowledged[writer] = number
                break


def test_every_acknowledged_step_is_in_the_vault_once(tmp_path):
    """Five kills at random moments lose nothing, repeat nothing and keep each writer's order."""
    port, random = free_port(), np.random.default_rng(0)
    url = f"http://127.0.0.1:{port}"
    server = start_server(tmp_path, port)
    Client(url).create_buffer(
        "b", "flat", SPEC, max_length=500, min_length=1, sample_batch_size=4, persist_to="run/1"
    )
    stop, acknowledged = threading.Event(), dict.fromkeys(range(WRITERS), 0)
    threads = [
        threading.Thread(target=write_until, args=(stop, url, w, acknowledged)) for w in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            time.sleep(0.3 + random.random())
            server.send_signal(signal.SIGKILL)
            server.wait()
            server = start_server(tmp_path, port)
        time.sleep(0.5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        server.send_signal(signal.SIGTERM)
        assert server.wait(15) is not None

    with VaultReader.open(tmp_path / "vaults" / "run" / "1") as reader:
        held = {name: x[0] for name, x in reader.read(0, reader.length).items()}
    assert min(acknowledged.values()) > KILLS
    for writer, last in acknowledged.items():
        numbers = held["number"][held["writer"] == writer]
        expected = np.concatenate([np.full(1 + n % 3, n) for n in range(1, last + 1)])
        assert (numbers[: len(expected)] == expected).all()
        assert len(numbers) - len(expected) in (0, 1 + (last + 1) % 3)  # one may be written and not told
    assert os.listdir(tmp_path / "buffers") == ["b"]
