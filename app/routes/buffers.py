"""Buffers: making, listing, showing, removing. What carries arrays is in `experience`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from app.dependencies import DeckDep, Limit, Next, StrictRoute
from app.routes._answers import Json
from app.routes._body import read_object
from app.routes._lists import list_answer
from app.schemas.buffers import BufferChange, BufferCreate, BufferPublic, BufferStats, Histogram, Timeseries
from app.schemas.common import ListPage, body_of
from app.services import buffers

router = APIRouter(prefix="/api/v1/buffers", route_class=StrictRoute, tags=["buffers"])
DryRun = Annotated[bool, Query(description="Answer what would be, and make nothing.")]
Discard = Annotated[bool, Query(description="Lose what lies in no vault.")]


@router.post("", status_code=201, response_model=BufferPublic, openapi_extra=body_of(BufferCreate))
async def create_buffer(request: Request, deck: DeckDep, dry_run: DryRun = False) -> Response:
    """Make a buffer."""
    given = await read_object(request)
    if dry_run:
        return Json(await buffers.try_out(deck, given))
    made = await buffers.create(deck, given)
    return Json(made, 201, {"location": f"{request.url.path}/{made['name']}"})


@router.put("/{name}", response_model=BufferPublic, openapi_extra=body_of(BufferCreate))
async def put_buffer(request: Request, deck: DeckDep, name: str, dry_run: DryRun = False) -> Response:
    """Make a buffer, or find the one of equal configuration."""
    found, is_new = await buffers.ensure(deck, name, await read_object(request), dry_run=dry_run)
    return Json(found, 201 if is_new else 200)


@router.get("", response_model=ListPage[BufferPublic])
async def list_buffers(
    request: Request,
    deck: DeckDep,
    query: Annotated[str | None, Query(max_length=200, description="Part of a name.")] = None,
    limit: Limit = 50,
    next: Next = None,
) -> Response:
    """List the buffers by name."""
    return list_answer(request, buffers.list_page(deck, query=query, limit=limit, next=next))


@router.get("/{name}", response_model=BufferPublic)
async def show_buffer(deck: DeckDep, name: str) -> Response:
    """Show a buffer."""
    return Json(buffers.show(deck, name))


@router.patch("/{name}", response_model=BufferPublic, openapi_extra=body_of(BufferChange))
async def change_buffer(request: Request, deck: DeckDep, name: str) -> Response:
    """Change `rate_limiter`, `durability`, `retain_steps` or `idle_end_s` while the buffer runs."""
    return Json(await buffers.change(deck, name, await read_object(request)))


@router.delete("/{name}", status_code=204)
async def delete_buffer(deck: DeckDep, name: str, discard: Discard = False) -> Response:
    """Remove a buffer; the vault it persists to stays."""
    await buffers.delete(deck, name, discard=discard)
    return Response(status_code=204)


@router.post("/{name}/reset", response_model=BufferPublic)
async def reset_buffer(deck: DeckDep, name: str, discard: Discard = False) -> Response:
    """Forget every item; what is in the vault stays."""
    return Json(await buffers.reset(deck, name, discard=discard))


@router.get("/{name}/stats", response_model=BufferStats)
async def show_stats(deck: DeckDep, name: str) -> Response:
    """Show counters, rates and sizes."""
    return Json(buffers.stats(deck, name))


@router.get("/{name}/histogram", response_model=Histogram)
async def show_histogram(
    deck: DeckDep,
    name: str,
    field: Annotated[str, Query(description="`priority` or `age`.")],
    bins: Annotated[int, Query(ge=1, le=512)] = 40,
) -> Response:
    """Count a field over all items."""
    return Json(await buffers.histogram(deck, name, field, bins))


@router.get("/{name}/timeseries", response_model=Timeseries)
async def show_timeseries(
    deck: DeckDep,
    name: str,
    metric: Annotated[
        str, Query(description="`size`, `added`, `sampled`, `updated`, or `…_per_s` of these.")
    ],
    points: Annotated[int, Query(ge=1, le=3600)] = 300,
) -> Response:
    """Show a metric over the last hour."""
    return Json(buffers.timeseries(deck, name, metric, points))
