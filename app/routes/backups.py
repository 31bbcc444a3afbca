"""Backups inside the data directory."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.dependencies import DeckDep, StrictRoute
from app.routes._answers import Json
from app.schemas.backups import BackupPublic
from app.services import backups

router = APIRouter(prefix="/api/v1/backups", route_class=StrictRoute, tags=["service"])


@router.post("", status_code=201, response_model=BackupPublic)
async def create_backup(request: Request, deck: DeckDep) -> Response:
    """Make a backup of buffers, vaults and lists as of one moment, in `backups/` of the data directory."""
    made = await backups.create(deck)
    return Json(made, 201, {"location": f"{request.url.path}/{made['id']}"})


@router.get("", response_model=list[BackupPublic])
async def list_backups(deck: DeckDep) -> Response:
    """List the backups, the newest first."""
    return Json(await backups.list_all(deck))


@router.delete("/{id}", status_code=204)
async def delete_backup(deck: DeckDep, id: str) -> Response:
    """Delete a backup."""
    await backups.delete(deck, id)
    return Response(status_code=204)
