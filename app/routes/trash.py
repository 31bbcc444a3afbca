"""Deleting vaults, and bringing them back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.dependencies import DeckDep, DryRun, StrictRoute, VaultDep
from app.routes._answers import Json
from app.schemas.vaults import Deleted, TrashedVault, VaultPublic
from app.services import trash
from app.services.entries import names_of

router = APIRouter(route_class=StrictRoute, tags=["trash"])
_VAULT = "/api/v1/vaults/{vault_name}/{vault_uid}"


@router.delete(_VAULT, response_model=Deleted)
async def delete_vault(deck: DeckDep, vault: VaultDep, dry_run: DryRun = False) -> Response:
    """Move a vault to the trash, from where it can be restored for a week, or only say what would go."""
    return Json(await trash.delete(deck, vault, dry_run=dry_run))


@router.post(_VAULT + "/restore", response_model=VaultPublic)
async def restore_vault(
    deck: DeckDep,
    vault_name: str,
    vault_uid: str,
    id: Annotated[str | None, Query(description="Of several of that name; by default the last.")] = None,
) -> Response:
    """Bring a vault back from the trash."""
    found = await trash.find(deck, names_of(vault_name), vault_uid, id)
    return Json(await trash.restore(deck, found))


@router.get("/api/v1/trash", response_model=list[TrashedVault])
async def list_trash(deck: DeckDep) -> Response:
    """List the vaults in the trash, the last deleted first."""
    return Json(await trash.list_all(deck))


@router.delete("/api/v1/trash/{id}", status_code=204)
async def give_up(deck: DeckDep, id: str) -> Response:
    """Delete a vault in the trash for good, before its time."""
    await trash.give_up(deck, await trash.find(deck, (), id=id))
    return Response(status_code=204)


@router.post("/trash/{id}/restore", name="restore_page", include_in_schema=False)
async def restore_from_page(request: Request, deck: DeckDep, id: str) -> Response:
    """Bring a vault back by a button, and show it."""
    made = await trash.restore(deck, await trash.find(deck, (), id=id))
    name, uid = made["url"].rsplit("/", 1)
    return RedirectResponse(request.url_for("vault_page", vault_name=name, vault_uid=uid), 303)
