"""What cannot be read as HTTP never reaches the app: here it gets a problem document too."""

from __future__ import annotations

import asyncio
import secrets
import sys
from typing import Any

from httptools import HttpParserCallbackError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.errors import problem

MAX_HEAD_BYTES = 1 << 16  # of a head that comes in pieces; the first of them is as long as one read


IDLE_S = 60  # between two pieces of a body, which holds memory until it is whole


class Protocol(HttpToolsProtocol):
    """Uvicorn's protocol, which refuses what it cannot read with plain text, takes heads without end, and
    waits for bodies for ever."""

    _head_bytes: int | None = None  # read of a head since the piece it began in; None: none is being read
    _waiting: asyncio.TimerHandle | None = None  # for the next piece of a body

    def data_received(self, data: bytes) -> None:
        """Read a piece, refuse a head that goes on and on, and wait for the rest of a body only so long."""
        goes_on = self._head_bytes is not None
        super().data_received(data)
        self._wait_for_body()
        if goes_on and self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                rule = f"have a head of at most {MAX_HEAD_BYTES} bytes, got more"
                self._refuse(431, "head_too_large", f"`request` must {rule}. Send fewer or shorter headers.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait_for_body(self) -> None:
        self._stop_waiting()
        if self.cycle is not None and self.cycle.more_body and not self.transport.is_closing():
            self._waiting = self.loop.call_later(IDLE_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        if self.flow.read_paused:  # by us: more than enough has come
            self._wait_for_body()
        elif self.cycle.response_started:
            self.transport.close()
        else:
            detail = f"`body` must go on within {IDLE_S} s, got nothing for longer. Send it again."
            fault = {"loc": ["body"], "msg": detail, "type": "body_timeout"}
            self._refuse(408, "body_timeout", detail, errors=[fault])

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End a head."""
        self._head_bytes = None
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be read, and close the connection behind it."""
        error = sys.exc_info()[1]
        if isinstance(error, HttpParserCallbackError):  # says only that ours failed
            error = error.__context__
        reason = str(error or msg).rstrip(".")[:200]
        self._refuse(400, "bad_request", f"`request` must be one that HTTP/1.1 allows, got: {reason}.")

    def _refuse(self, status: int, code: str, detail: str, **members: Any) -> None:
        request_id = secrets.token_hex(8)
        headers = {"x-request-id": request_id, "connection": "close"}
        answer = problem(status, code, detail, request_id=request_id, headers=headers, **members)
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + answer.body)
        self.transport.close()
