"""`GET /events`: one stream of server-sent events, or what it would have said as a JSON list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import unquote

import orjson
from fastapi import APIRouter, FastAPI, Header, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app.contexts import live
from app.dependencies import DeckDep, StrictRoute
from app.routes._answers import Json, finite
from app.services import events
from app.services.deck import Deck
from app.services.events import Streams, Topics
from fbxcore.errors import InvalidArgumentError

router = APIRouter(prefix="/api/v1", route_class=StrictRoute, tags=["events"])
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
RETRY = b"retry: 1000\n\n"
NEW_S = 2.0  # how far back the points of a first message go


def streams_of(app: FastAPI) -> Streams:
    """The listeners of an app, made with the first of them."""
    if not hasattr(app.state, "streams"):
        app.state.streams = Streams()
    return app.state.streams


@router.get(
    "/events",
    name="events_stream",
    summary="Follow events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}, "application/json": {}}}},
)
async def show_events(
    request: Request,
    deck: DeckDep,
    topics: Annotated[
        str,
        Query(max_length=32_768, description="Comma-separated: buffers, totals, buffer:<name>, vaults, …"),
    ] = "",
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> Response:
    """Follow counters and rates, once a second; with `Accept: application/json`, the last of them."""
    asked = events.parse_topics(deck, [unquote(name) for name in topics.split(",") if name])
    streams, since = streams_of(request.app), _since(last_event_id)
    if "application/json" in request.headers.get("accept", ""):
        return Json(
            {"items": events.history(deck, asked, since or 0.0), "next": None, "streams": streams.active}
        )
    streams.close_on_signals()
    body = _stream(deck, streams, asked, since)
    return StreamingResponse(body, media_type="text/event-stream", headers=HEADERS)


def _since(last_event_id: str | None) -> float | None:
    if not last_event_id:
        return None
    if not (last_event_id.isascii() and last_event_id.isdigit()):
        raise InvalidArgumentError(
            f"`Last-Event-ID` must be one of ours, a number, got {last_event_id!r}.", loc=("Last-Event-ID",)
        )
    return int(last_event_id) / 1000


async def _stream(deck: Deck, streams: Streams, topics: Topics, since: float | None) -> AsyncIterator[bytes]:
    """Send the full state at once and again each second; it ends with the service or the listener."""
    with streams.listener():
        yield RETRY
        async for at in streams.ticks():
            yield b"".join(_messages(deck, topics, at, at - NEW_S if since is None else since))
            since = at


def _messages(deck: Deck, topics: Topics, at: float, since: float) -> list[bytes]:
    found = []
    if topics.has_buffers:
        sums = events.sums(deck) if topics.totals or topics.all_buffers else None
        body = live.message(events.states(deck, topics), sums, at)
        if topics.buffers:
            body["points"] = events.points_since(deck, topics, since)
        found.append(_event("buffers", at, body))
    if topics.has_vaults:
        found.append(_event("vaults", at, live.vaults_message(events.vault_states(deck, topics), at)))
    return found


def _event(name: str, at: float, body: dict[str, Any]) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), int(at * 1000), orjson.dumps(finite(body)))
