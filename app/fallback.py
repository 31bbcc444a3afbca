"""The layer that answers for an error nobody foresaw, so that the connection can be used again.

A server that is handed such an error closes the connection, and a client that keeps it alive learns of that
only by its next request.
"""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import unexpected

logger = logging.getLogger("flashdeck")


class Fallback:
    """Logs what the app raises, and answers 500 where nothing was answered yet."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_begun = is_whole = False

        async def noted(message: Message) -> None:
            nonlocal is_begun, is_whole
            is_begun = True
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self.app(scope, receive, noted)
        except Exception:
            if is_begun and not is_whole:
                raise  # only a connection that is cut tells that the answer is
            logger.exception("%s %s went wrong", scope["method"], scope["path"][:200])
            if not is_begun:
                await unexpected(Request(scope))(scope, receive, send)
