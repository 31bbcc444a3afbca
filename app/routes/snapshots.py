"""Snapshots of buffers: made, listed, shown, deleted. A buffer is begun from one by `POST /buffers`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.dependencies import DeckDep, Limit, Next, StrictRoute
from app.routes._answers import Json
from app.routes._lists import list_answer
from app.schemas.buffers import SnapshotPublic
from app.schemas.common import ListPage
from app.services import snapshots

router = APIRouter(prefix="/api/v1/buffers/{name}", route_class=StrictRoute, tags=["buffers"])


@router.post("/snapshot", status_code=201, response_model=SnapshotPublic)
async def create_snapshot(request: Request, deck: DeckDep, name: str) -> Response:
    """Write the buffer down as of one moment; adds and samples go on meanwhile."""
    made = await snapshots.create(deck, name)
    return Json(made, 201, {"location": f"{request.url.path}s/{made['id']}"})


@router.get("/snapshots", response_model=ListPage[SnapshotPublic])
async def list_snapshots(
    request: Request, deck: DeckDep, name: str, limit: Limit = 50, next: Next = None
) -> Response:
    """List the buffer's snapshots, the newest first; they stay when the buffer is deleted."""
    return list_answer(request, await snapshots.list_page(deck, name, limit=limit, next=next))


@router.get("/snapshots/{snapshot}", response_model=SnapshotPublic)
async def show_snapshot(deck: DeckDep, name: str, snapshot: str) -> Response:
    """Show a snapshot; while it is written, how far that is."""
    return Json(await snapshots.show(deck, name, snapshot))


@router.delete("/snapshots/{snapshot}", status_code=204)
async def delete_snapshot(deck: DeckDep, name: str, snapshot: str) -> Response:
    """Delete a snapshot; buffers that began from it are not touched."""
    await snapshots.delete(deck, name, snapshot)
    return Response(status_code=204)
