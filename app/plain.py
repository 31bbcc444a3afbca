"""The shortest way to the routes that carry arrays: right behind the guard, past the framework's layers.

The routes stand in the app's own router too, which answers what does not match here (another method).
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import answer_of


class PlainRoutes:
    """Calls the endpoint of the first route that matches whole, and passes everything else on."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route]):
        self.app = app
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for route in self.routes:
                match, child_scope = route.matches(scope)
                if match is Match.FULL:
                    scope.update(child_scope)
                    await _answer(route, Request(scope, receive, send))
                    return
        await self.app(scope, receive, send)


async def _answer(route: Route, request: Request) -> None:
    try:
        response = await route.endpoint(request)
    except Exception as error:
        response = await answer_of(request, error)
    await response(request.scope, request.receive, request._send)
