"""The service behind a real socket: connections that end, long work, and the end of the service."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import uvicorn

from app import protocol
from app.main import create_app
from app.protocol import Protocol
from app.services.deck import Deck
from fbxcore import wire
from tests.app.support import buffer_body, settings_of, steps

URL = "/api/v1/buffers"
HEADERS = {"content-type": wire.FORMATS["safetensors"]}


class Running:
    """A service on a free port, in a thread."""

    def __init__(self, data: Path):
        self.app = create_app(settings_of(data))
        config = uvicorn.Config(
            self.app, http=Protocol, port=0, log_level="critical", lifespan="on", timeout_graceful_shutdown=2
        )
        self.server = uvicorn.Server(config)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True
        )
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
            assert self.thread.is_alive()

    def stop(self) -> float:
        """Stop and return how many seconds that took."""
        begun = time.monotonic()
        self.server.should_exit = True
        self.thread.join(timeout=30)
        self.listener.close()
        return time.monotonic() - begun

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict | None = None
    ) -> tuple[int, bytes]:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a filled buffer."""
    running = Running(tmp_path_factory.mktemp("data"))
    body = json.dumps(buffer_body("live")).encode()
    assert running.ask("POST", URL, body, {"content-type": "application/json"})[0] == 201
    experience = wire.encode(steps(2, 20), "safetensors")[0]
    assert running.ask("POST", f"{URL}/live/experience", experience, HEADERS)[0] == 201
    yield running
    assert running.stop() < 10


def test_a_connection_that_ends_within_a_body_adds_nothing(running: Running) -> None:
    """Half a body and a closed socket leave the buffer as it is, and the service goes on."""
    body = wire.encode(steps(2, 20), "safetensors")[0]
    kind = HEADERS["content-type"]
    head = f"POST {URL}/live/experience HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
    for framing in (f"Content-Length: {len(body)}\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n400\r\n"):
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall((head + framing).encode() + body[: len(body) // 2])
            connection.shutdown(socket.SHUT_WR)
            time.sleep(0.05)

    status, answer = running.ask("GET", f"{URL}/live")
    assert (status, json.loads(answer)["size"]) == (200, 40)


def test_a_client_that_leaves_while_it_waits_is_no_fault(running: Running) -> None:
    """A waiting sample whose client closes leaves nothing counted."""
    body = json.dumps(buffer_body("patient")).encode()
    running.ask("POST", URL, body, {"content-type": "application/json"})
    with socket.create_connection(("127.0.0.1", running.port)) as connection:
        path = f"{URL}/patient/sample?timeout_ms=300"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        time.sleep(0.05)
    time.sleep(0.4)

    assert json.loads(running.ask("GET", f"{URL}/patient")[1])["sampled"] == 0


def test_health_answers_while_large_samples_and_slices_run(running: Running) -> None:
    """The 99th percentile of /livez stays below 500 ms under large samples and compiling, WB-04."""
    spec = {"image": {"shape": [32, 32, 3], "dtype": "uint8"}}
    body = buffer_body("heavy", kind="item", spec=spec, max_length=4000, min_length=1, sample_batch_size=1000)
    del body["add_batch_size"]
    running.ask("POST", URL, json.dumps(body).encode(), {"content-type": "application/json"})
    images = {"image": np.random.default_rng(0).integers(0, 255, (1000, 32, 32, 3), dtype=np.uint8)}
    running.ask("POST", f"{URL}/heavy/experience", wire.encode(images, "safetensors")[0], HEADERS)
    paths = [
        f"{URL}/heavy/sample?batch_size={n}&format={f}" for n in (300, 700) for f in ("npz", "safetensors")
    ]
    work = threading.Thread(target=lambda: [running.ask("GET", path) for path in paths])
    work.start()
    waits = []
    while work.is_alive():
        begun = time.monotonic()
        assert running.ask("GET", "/livez")[0] == 200
        waits.append(time.monotonic() - begun)
        time.sleep(0.02)

    assert statistics.quantiles(waits, n=100)[98] < 0.5


def test_a_stop_ends_open_streams_and_keeps_what_was_taken(tmp_path: Path) -> None:
    """With a stream and a waiting sample open, stopping takes under 10 s, WB-02; all is there after."""
    running = Running(tmp_path / "data")
    running.ask("POST", URL, json.dumps(buffer_body("last")).encode(), {"content-type": "application/json"})
    running.ask("POST", f"{URL}/last/experience", wire.encode(steps(2, 3), "safetensors")[0], HEADERS)
    open_ones = []
    for path in ("/api/v1/events", f"{URL}/last/sample?timeout_ms=30000"):
        connection = socket.create_connection(("127.0.0.1", running.port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        open_ones.append(connection)
    time.sleep(0.2)
    took = running.stop()
    [connection.close() for connection in open_ones]

    assert took < 10
    again = Running(tmp_path / "data")
    assert json.loads(again.ask("GET", f"{URL}/last")[1])["size"] == 6
    again.stop()


@pytest.mark.parametrize(
    "head",
    [b"NONSENSE / HTTP/1.1", b"GET / HTTP/1.1\r\nContent-Length: x", b"\x16\x03\x01", b"GET /a b HTTP/9.9"],
)
def test_what_is_no_http_gets_a_problem_too(running: Running, head: bytes) -> None:
    """400 with a sentence and an id, and the connection ends."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
        connection.sendall(head + b"\r\nHost: 127.0.0.1\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        problem = json.loads(answer.read())

        assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
        assert (problem["code"], problem["request_id"]) == ("bad_request", answer.headers["x-request-id"])
        assert problem["detail"].startswith("`request` must be one that HTTP/1.1 allows, got: ")
        assert connection.recv(1) == b""


def read_problem(connection: socket.socket) -> tuple[int, dict]:
    """Read a problem and the end of the connection behind it."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    problem = json.loads(answer.read())
    assert answer.headers["content-type"] == "application/problem+json"
    with contextlib.suppress(ConnectionResetError):  # where more was sent than it read
        assert connection.recv(1) == b""
    return answer.status, problem


@pytest.mark.parametrize("path", ["/" + "a" * 100_000, "a:80"])
def test_an_address_that_cannot_be_read_says_why(running: Running, path: str) -> None:
    """Too long, or none at all: the sentence is about the address, not about what looked at it."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
        connection.sendall(f"CONNECT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        status, problem = read_problem(connection)

    assert (status, "url" in problem["detail"], "callback" in problem["detail"]) == (400, True, False)


def test_a_head_without_end_is_refused(running: Running) -> None:
    """431 after 64 KiB and a little, also within one header; a long head that ends is served."""
    for line in (b"X-A: b\r\n" * 100, b"a" * 1000):
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
            sent = _send_until_answered(connection, line)
            assert sent < 1 << 20
            status, problem = read_problem(connection)
        assert (status, problem["code"], "65536" in problem["detail"]) == (431, "head_too_large", True)
    assert running.ask("GET", "/livez", headers={"x": "a" * 50_000})[0] == 200


def _send_until_answered(connection: socket.socket, line: bytes) -> int:
    """Send a line again and again until there is something to read; return the bytes sent."""
    sent = 0
    while not select.select([connection], [], [], 0.002)[0]:
        sent += connection.send(line)
    return sent


@pytest.mark.parametrize("path", [f"{URL}/live/experience", URL, f"{URL}/live/snapshot"])
def test_a_body_that_stops_is_given_up(running: Running, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """408 for arrays, control bodies and where none is taken; pieces that come slowly are waited for."""
    monkeypatch.setattr(protocol, "IDLE_S", 0.5)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n"
    head += "Content-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
        connection.sendall(head.encode() + b"\r\n{")
        for _ in range(4):
            time.sleep(0.2)
            connection.sendall(b" ")
        status, problem = read_problem(connection)

    assert (status, problem["code"], problem["errors"][0]["loc"]) == (408, "body_timeout", ["body"])


@pytest.mark.parametrize("path", ["/api/v1/buffers/live", "/api/v1/buffers/live/sample", "/buffers/live"])
def test_an_error_nobody_foresaw_leaves_the_connection_open(
    running: Running, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """500 as a problem without its cause, and the next request on the same connection is served."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with monkeypatch.context() as patch:
        patch.setattr(Deck, "sampler", lambda deck, name: 1 / 0)
        connection.request("GET", path)
        answer = connection.getresponse()
        problem = json.loads(answer.read())
    port = connection.sock.getsockname()[1]

    assert (answer.status, problem["code"], "division" in str(problem)) == (500, "internal", False)
    assert answer.headers["x-request-id"] == problem["request_id"]
    connection.request("GET", "/livez")
    assert (connection.getresponse().status, connection.sock.getsockname()[1]) == (200, port)
    connection.close()
