"""Is it alive, is it ready, and what can it do."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.dependencies import DeckDep, SettingsDep, StrictRoute
from app.routes._answers import Json
from app.services import health

router = APIRouter(route_class=StrictRoute, tags=["service"])


@router.get("/livez")
async def livez() -> Response:
    """Say that the process answers."""
    return Json({"status": "ok"})


@router.get("/readyz", responses={503: {"description": "Logs are being replayed, or the database is down."}})
async def readyz(deck: DeckDep) -> Response:
    """Say whether every buffer is open and the database answers."""
    found = await health.check(deck)
    return Json(found, 200 if found["status"] == "ok" else 503)


@router.get("/api/v1/capabilities")
async def capabilities(settings: SettingsDep) -> Response:
    """Say which kinds, formats and limits are served."""
    return Json(health.capabilities(settings))
