"""Writers of a buffer. What they add goes through `experience`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from app.dependencies import DeckDep, Limit, Next, StrictRoute
from app.routes._answers import Json
from app.routes._body import read_object
from app.routes._lists import list_answer
from app.schemas.common import ListPage
from app.schemas.writers import WriterPublic
from app.services import writers

router = APIRouter(prefix="/api/v1/buffers/{name}/writers", route_class=StrictRoute, tags=["buffers"])


@router.get("", response_model=ListPage[WriterPublic])
async def list_writers(
    request: Request,
    deck: DeckDep,
    name: str,
    query: Annotated[str | None, Query(max_length=200, description="Part of a writer's name.")] = None,
    limit: Limit = 50,
    next: Next = None,
) -> Response:
    """List the writers of a buffer by name."""
    return list_answer(request, writers.list_page(deck, name, query=query, limit=limit, next=next))


@router.put(
    "/{writer:path}/episode",
    response_model=WriterPublic,
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    },
)
async def describe_episode(request: Request, deck: DeckDep, name: str, writer: str) -> Response:
    """Set the metadata of a writer's open episode, a JSON object of at most 64 KiB."""
    return Json(await writers.describe_episode(deck, name, writer, await read_object(request)))


@router.delete("/{writer:path}", status_code=204)
async def end_episode(deck: DeckDep, name: str, writer: str) -> Response:
    """End a writer's open episode as a cut, so that it can begin anew; right also where none is open."""
    await writers.end_episode(deck, name, writer)
    return Response(status_code=204)
