"""A lost connection is tried again where that is safe, and only there."""

import socket
import threading

import numpy as np
import pytest

from fbxcore.client import Client, _transport, errors
from fbxcore.client._requests import Request
from fbxcore.client._transport import Transport
from fbxcore.errors import InvalidArgumentError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
ADDED = b'{"added": 1, "size": 1, "position": 1, "sequence": 1, "duplicate": true, "durable": true, "x": 0}'
CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s" % (len(ADDED), ADDED)


class Script:
    """A server that answers each request with the next entry of a list; None breaks the line."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while self.answers:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with line:
                self._serve(line)

    def _serve(self, line):
        while self.answers:
            head, _, body = self._receive(line)
            if not head:
                return
            answer = self.answers.pop(0)
            self.heads.append(head)
            self.bodies.append(body)
            if answer is None:
                return
            line.sendall(answer)

    def _receive(self, line):
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = line.recv(65536)
            if not chunk:
                return b"", b"", b""
            data += chunk
        head, mid, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.startswith(b"Content-Length")), 0
        )
        while len(body) < length:
            body += line.recv(65536)
        return head, mid, body

    def close(self):
        self.answers.clear()
        self._socket.close()


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(_transport, "_PAUSE_S", 0.001)
    started = []

    def start(*answers):
        started.append(Script(answers))
        return started[-1]

    yield start
    for server in started:
        server.close()


def _keys(server):
    return [
        line.split(b": ")[1]
        for head in server.heads
        for line in head.split(b"\r\n")
        if b"Idempotency-Key" in line
    ]


def test_an_add_is_sent_again_under_the_same_key(script):
    """The line breaks before the answer: the same bytes go out again with the same key."""
    server = script(None, None, CREATED)
    with Client(server.url) as client:
        added = client.buffer("b").add({"x": np.zeros((1, 1))})

    assert added.duplicate
    assert len(set(_keys(server))) == 1
    assert len(_keys(server)) == 3
    assert server.bodies[0] == server.bodies[2]


def test_two_adds_have_two_keys(script):
    """Equal data added twice are two batches."""
    server = script(CREATED, CREATED)
    with Client(server.url) as client:
        client.buffer("b").add({"x": np.zeros((1, 1))})
        client.buffer("b").add({"x": np.zeros((1, 1))})

    assert len(set(_keys(server))) == 2


def test_a_writers_batch_needs_no_key(script):
    """Writer and sequence number name the batch already."""
    server = script(CREATED)
    with Client(server.url) as client:
        client.buffer("b").add({"x": np.zeros((1, 1))}, writer="w", sequence=3)

    assert _keys(server) == []
    assert b"experience?writer=w&sequence=3" in server.heads[0]


def test_a_post_without_key_is_sent_once(script):
    """A version might be made twice, so the caller is told instead."""
    server = script(None, OK)
    with Client(server.url) as client, pytest.raises(errors.UnreachableError):
        client.vault("v/1").create_version()

    assert len(server.heads) == 1


def test_a_post_without_key_takes_a_fresh_connection(script):
    """A kept-alive line may be closing just now, and nobody would know what became of the request."""
    server = script(OK, OK, OK)
    with Client(server.url) as client:
        client.buffer("b").describe()
        client.buffer("b").describe()
        assert server.connections == 1
        client._transport.send(Request("POST", "/x", can_repeat=False))

    assert server.connections == 2


def test_it_gives_up_after_a_few_attempts(script):
    """The error says where, and has the key for whoever wants to send again later."""
    server = script(*[None] * 9)
    with Client(server.url) as client, pytest.raises(errors.UnreachableError, match=server.url) as caught:
        client.buffer("b").add({"x": np.zeros((1, 1))})

    assert len(server.heads) == _transport.ATTEMPTS
    assert caught.value.details["idempotency_key"].encode() == _keys(server)[0]
    assert caught.value.status is None


def test_nobody_listening_is_said_at_once():
    """Without any server there is nothing to wait for."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(errors.UnreachableError, match="Is it running"):
        Client(f"http://127.0.0.1:{port}").buffers()


def test_a_late_answer_is_asked_for_once_more(script):
    """A time-out is tried twice, so that a retry by hand under a new key is not needed."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        transport = Transport(f"http://127.0.0.1:{silent.getsockname()[1]}", None, 0.05)
        with pytest.raises(errors.UnreachableError, match="timed out"):
            transport.send(Request("GET", "/x"))
        silent.settimeout(1)
        first, second = silent.accept()[0], silent.accept()[0]
        with pytest.raises(TimeoutError):
            silent.settimeout(0.05)
            silent.accept()
        first.close()
        second.close()


def test_an_answer_before_the_body_is_read_counts(script):
    """A server that refuses a large body early is understood, not taken for a broken line."""
    problem = b'{"detail": "`body` must be smaller.", "code": "body_too_large"}'
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse():
            line, _ = server.accept()
            line.recv(1000)
            line.sendall(
                b"HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                % (len(problem), problem)
            )
            line.shutdown(socket.SHUT_WR)
            while line.recv(1 << 16):
                pass
            line.close()

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        with pytest.raises(errors.InvalidArgumentError, match="must be smaller") as caught:
            Client(f"http://127.0.0.1:{server.getsockname()[1]}").buffer("b").add(
                {"x": np.zeros((1, 1 << 20))}
            )
        thread.join(5)

    assert caught.value.status == 413


def test_the_token_and_the_path_of_a_proxy_are_sent(script):
    """`Authorization` is a bearer token; the URL's own path comes first."""
    server = script(OK)
    with Client(server.url + "/deck/", token="s3cret") as client:
        client.buffer("b").describe()

    assert server.heads[0].startswith(b"GET /deck/api/v1/buffers/b ")
    assert b"Authorization: Bearer s3cret" in server.heads[0]


def test_the_token_of_the_environment_is_used(script, monkeypatch):
    """FLASHDECK_TOKEN saves passing it."""
    monkeypatch.setenv("FLASHDECK_TOKEN", "from-env")
    server = script(OK)
    with Client(server.url) as client:
        client.buffer("b").describe()

    assert b"Bearer from-env" in server.heads[0]


def test_threads_have_a_connection_each(script):
    """Two threads never read each other's answers."""
    server = script(OK, OK)
    with Client(server.url) as client:
        client.buffer("b").describe()
        connections = len(client._transport._all)
        thread = threading.Thread(target=lambda: client._transport._connection(Request("GET", "/")))
        thread.start()
        thread.join()
        assert connections == 1
        assert client._transport._local.connection is not None


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", ""])
def test_an_address_without_scheme_or_host_is_refused(url):
    """The error says how an address begins."""
    with pytest.raises(InvalidArgumentError, match="`url` must begin with http:// or https://"):
        Client(url)


def test_an_unknown_format_is_refused():
    """The error lists what there is."""
    with pytest.raises(InvalidArgumentError, match="`format` must be one of safetensors, npz"):
        Client(format="pickle")
