"""kill -9 under four writers: what was acknowledged is in the vault, once."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fbxcore.client import Client, ClientError
from fbxcore.vault.store import VaultReader

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
    with open(data / "server.log", "ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return server
        except OSError:
            assert server.poll() is None, (data / "server.log").read_text()[-2000:]
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


def learn_until(stop, url):
    """Sample, set priorities and make versions, whatever answers."""
    client = Client(url, timeout=10)
    while not stop.is_set():
        try:
            drawn = client.buffer("b").sample(8)
            client.buffer("b").set_priorities(drawn, np.linspace(0.1, 2.0, 8))
            if drawn.seed % 16 == 0:
                client.vault("run/1").create_version("under fire")
        except (ClientError, OSError):
            time.sleep(0.02)


def survive(tmp_path, *, kills, seed, pause):
    """Kill a server again and again under writers and a learner; return what it acknowledged."""
    port, random = free_port(), np.random.default_rng(seed)
    url = f"http://127.0.0.1:{port}"
    server = start_server(tmp_path, port)
    sizes = {"max_length": 500, "min_length": 2, "sample_batch_size": 8}
    Client(url).create_buffer("b", "prioritised_flat", SPEC, persist_to="run/1", **sizes)
    stop, acknowledged = threading.Event(), dict.fromkeys(range(WRITERS), 0)
    threads = [
        threading.Thread(target=write_until, args=(stop, url, w, acknowledged)) for w in range(WRITERS)
    ]
    threads.append(threading.Thread(target=learn_until, args=(stop, url)))
    for thread in threads:
        thread.start()
    try:
        for _ in range(kills):
            time.sleep(pause * random.random())
            server.send_signal(signal.SIGKILL)
            server.wait()
            server = start_server(tmp_path, port)
        time.sleep(1.0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        server.send_signal(signal.SIGTERM)
        assert server.wait(15) in (0, -signal.SIGTERM)
    return acknowledged


def check_vault(tmp_path, acknowledged):
    """Check that the vault holds each writer's acknowledged steps once, in order, and at most one more."""
    with VaultReader.open(tmp_path / "vaults" / "run" / "1") as reader:
        held = {name: x[0] for name, x in reader.read(0, reader.length).items()}
    for writer, last in acknowledged.items():
        numbers = held["number"][held["writer"] == writer]
        expected = np.concatenate([np.full(1 + n % 3, n) for n in range(1, last + 1)])
        assert (numbers[: len(expected)] == expected).all()
        assert len(numbers) - len(expected) in (0, 1 + (last + 1) % 3)  # one may be written and not told


def test_every_acknowledged_step_is_in_the_vault_once(tmp_path):
    """Five kills at random moments lose nothing, repeat nothing and keep each writer's order."""
    acknowledged = survive(tmp_path, kills=5, seed=0, pause=1.3)

    assert min(acknowledged.values()) > 5
    check_vault(tmp_path, acknowledged)
    assert os.listdir(tmp_path / "buffers") == ["b"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_kills_lose_nothing(tmp_path, seed):
    """Four times fifty kills, many of them while the server starts or commits, lose and repeat nothing."""
    acknowledged = survive(tmp_path, kills=50, seed=seed + 1, pause=2.0)

    check_vault(tmp_path, acknowledged)
