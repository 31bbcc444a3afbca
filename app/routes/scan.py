"""Look at the folders of vaults now."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.dependencies import DeckDep, StrictRoute
from app.routes._answers import Json

router = APIRouter(prefix="/api/v1", route_class=StrictRoute, tags=["service"])


@router.post("/scan")
async def scan(deck: DeckDep) -> Response:
    """Find new, changed and vanished vaults, and bring the lists up to date."""
    return Json(await deck.scan())
