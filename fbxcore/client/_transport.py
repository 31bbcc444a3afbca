"""Requests over kept-alive connections, one a thread, repeated where that is safe."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import threading
import time
import uuid
import weakref
from urllib.parse import urlsplit

from fbxcore.client._requests import Answer, Request
from fbxcore.client.errors import UnreachableError
from fbxcore.errors import InvalidArgumentError

ATTEMPTS = 4
_PAUSE_S = 0.1


class _Connection(http.client.HTTPConnection):
    """A connection that is closed when its thread ends or its client is forgotten."""

    def __del__(self) -> None:
        self.close()


class _SecureConnection(http.client.HTTPSConnection):
    """The same with TLS."""

    def __del__(self) -> None:
        self.close()


class Transport:
    """Sends requests to one server. Threads may share it: each has a connection of its own."""

    def __init__(self, url: str, token: str | None, timeout: float):
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidArgumentError(
                f"`url` must begin with http:// or https://, got {url!r}.", loc=("url",)
            )
        self.url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._kind = _SecureConnection if parts.scheme == "https" else _Connection
        self._host, self._port = parts.hostname, parts.port
        self._timeout = timeout
        self._headers = {"User-Agent": "flashdeck-client"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._local = threading.local()
        self._all: weakref.WeakSet[http.client.HTTPConnection] = weakref.WeakSet()

    @property
    def client(self) -> str:
        """A name for whoever sends from this thread: no two of its requests are under way at once."""
        if not hasattr(self._local, "client"):
            self._local.client = uuid.uuid4().hex
        return self._local.client

    def send(self, request: Request) -> Answer:
        """Return the answer, sending again where the line broke and the request can be repeated.

        Raises:
            UnreachableError: if nobody answers, or not in time; with the `idempotency_key` to send again.
        """
        attempt = 1
        while True:
            try:
                return self._exchange(request)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if not request.can_repeat or attempt >= _attempts_after(error, attempt):
                    raise self._unreachable(request, error) from error
            time.sleep(_PAUSE_S * 3 ** (attempt - 1) * random.uniform(0.5, 1.0))
            attempt += 1

    def _unreachable(self, request: Request, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"The server at {self.url} must answer, got {error or type(error).__name__}. Is it running?",
            idempotency_key=request.headers.get("Idempotency-Key"),
        )

    def close(self) -> None:
        """Close the connections of all threads; a later request opens a new one."""
        for connection in list(self._all):
            connection.close()

    def close_mine(self) -> None:
        """Close the connection of this thread, before it ends."""
        self._drop()

    def _exchange(self, request: Request) -> Answer:
        connection = self._connection(request)
        is_sent = False
        # A server may answer before it has read all, "too large" for one: then its answer counts.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(
                request.method,
                self._prefix + request.path,
                request.body,
                {**self._headers, **request.headers},
            )
            is_sent = True
        response = connection.getresponse()
        body = response.read()
        if not is_sent:
            self._drop()
        return Answer(response.status, response.headers, body)

    def _connection(self, request: Request) -> http.client.HTTPConnection:
        """Return this thread's connection, a new one for what must not be sent twice.

        A server closes connections that were idle, and a request that meets the close on its way is
        lost without anybody knowing whether it was read.
        """
        if not request.can_repeat:
            self._drop()
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._kind(self._host, self._port, timeout=self._timeout)
            self._local.connection = connection
            self._all.add(connection)
        connection.timeout = self._timeout + request.wait_s
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        return connection

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def _attempts_after(error: Exception, attempt: int) -> int:
    """Return how often to try: once where nobody listens from the start, twice where it takes too long."""
    if isinstance(error, ConnectionRefusedError | socket.gaierror) and attempt == 1:
        return 1
    return 2 if isinstance(error, TimeoutError) else ATTEMPTS
