"""What cannot be read as HTTP never reaches the app: here it gets a problem document too."""

from __future__ import annotations

import secrets
import sys

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.errors import problem


class Protocol(HttpToolsProtocol):
    """Uvicorn's protocol, which refuses what it cannot read with plain text."""

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be read, and close the connection behind it."""
        reason = str(sys.exc_info()[1] or msg).rstrip(".")[:200]
        request_id = secrets.token_hex(8)
        answer = problem(
            400,
            "bad_request",
            f"`request` must be one that HTTP/1.1 allows, got: {reason}.",
            request_id=request_id,
            headers={"x-request-id": request_id, "connection": "close"},
        )
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + answer.body)
        self.transport.close()
