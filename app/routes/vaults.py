"""Vaults: making, listing, showing, changing, appending."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from app.dependencies import DeckDep, DryRun, Limit, Next, StrictRoute, VaultDep
from app.routes._answers import Json
from app.routes._body import read_arrays
from app.routes._lists import list_answer
from app.routes._query import Query as QueryString
from app.routes._query import idempotency_key
from app.schemas.common import ListPage
from app.schemas.vaults import (
    Adopted,
    Appended,
    Swept,
    VaultChange,
    VaultCreate,
    VaultFork,
    VaultPublic,
    VaultPut,
    VaultSummary,
    VaultSweep,
)
from app.services import adoption, buffers, forks, new_vaults, slices, sweeps, vaults
from app.services.new_vaults import Wanted
from fbxcore.errors import InvalidArgumentError
from fbxcore.vault.retention import Retention

router = APIRouter(prefix="/api/v1/vaults", route_class=StrictRoute, tags=["vaults"])
PATH = "/{vault_name}/{vault_uid}"


@router.post("", status_code=201, response_model=VaultPublic)
async def create_vault(request: Request, deck: DeckDep, given: VaultCreate) -> Response:
    """Make an empty vault."""
    made = await new_vaults.create(deck, Wanted(**given.model_dump()))
    return Json(made, 201, {"location": f"{request.url.path}/{made['url']}"})


@router.put(PATH, response_model=VaultPublic)
async def put_vault(deck: DeckDep, vault_name: str, vault_uid: str, given: VaultPut) -> Response:
    """Make an empty vault, or find the one of equal structure."""
    names = {"vault_name": vault_name, "vault_uid": vault_uid}
    fields = given.model_dump()
    for name, value in names.items():
        if fields[name] not in (None, value):
            raise InvalidArgumentError(
                f"`{name}` must be the one in the path, {value!r}, got {fields[name]!r}.", loc=(name,)
            )
    found, is_new = await new_vaults.ensure(deck, Wanted(**{**fields, **names}))
    return Json(found, 201 if is_new else 200)


@router.get("", response_model=ListPage[VaultSummary])
async def list_vaults(
    request: Request,
    deck: DeckDep,
    query: Annotated[str | None, Query(max_length=200, description="Part of a name or a tag.")] = None,
    sort: Annotated[
        str, Query(description="`name`, `length` or `updated_at`; with `-` the greatest first.")
    ] = "name",
    limit: Limit = 50,
    next: Next = None,
) -> Response:
    """List the vaults: stored columns only, no array is read."""
    return list_answer(request, await vaults.list_page(deck, query=query, sort=sort, limit=limit, next=next))


@router.get(PATH, response_model=VaultPublic)
async def show_vault(deck: DeckDep, vault: VaultDep) -> Response:
    """Show a vault."""
    return Json(await vaults.show(deck, vault))


@router.patch(PATH, response_model=VaultPublic)
async def change_vault(deck: DeckDep, vault: VaultDep, given: VaultChange) -> Response:
    """Merge metadata into a vault's, and say how long its versions are kept."""
    retention = None
    if "retention" in given.model_fields_set:
        retention = Retention(**given.retention.model_dump()) if given.retention else Retention()
    return Json(await vaults.change(deck, vault, given.metadata, retention))


@router.post(PATH + "/fork", status_code=201, response_model=VaultPublic)
async def fork_vault(request: Request, deck: DeckDep, vault: VaultDep, given: VaultFork) -> Response:
    """Copy timesteps of a version into a new vault, which says where it comes from."""
    fields = given.model_dump()
    names = {name: fields.pop(name) for name in ("vault_name", "vault_uid")}
    fields["ref"] = None if given.ref is None else str(given.ref)
    made = await forks.fork(deck, vault, **names, asked=slices.Asked(**fields))
    root = request.url.path.removesuffix("/fork").rpartition("/")[0].rpartition("/")[0]
    return Json(made, 201, {"location": f"{root}/{made['url']}"})


@router.post(PATH + "/gc", response_model=Swept)
async def sweep_vault(
    deck: DeckDep, vault: VaultDep, given: VaultSweep | None = None, dry_run: DryRun = False
) -> Response:
    """Delete what no version and no reader needs any more, or only say how many bytes that is."""
    given = given or VaultSweep()
    retention = Retention(given.keep, given.older_than_days, given.retain_steps)
    return Json(await sweeps.run(deck, vault, sweeps.Asked(retention, given.grace_s, dry_run)))


@router.post(PATH + "/adopt", response_model=Adopted)
async def adopt_vault(deck: DeckDep, vault: VaultDep) -> Response:
    """Go on behind what another program wrote; ours that it wrote over, and what waits, are appended."""
    return Json(await adoption.adopt(deck, vault))


async def append_experience(request: Request) -> Response:
    """Append a batch exactly once; a plain route, documented in `openapi`."""
    deck, names = request.app.state.deck, request.path_params
    vault = await deck.vault(names["vault_name"], names["vault_uid"])
    deck.check_writable(vault)
    query = QueryString(request.scope["query_string"])
    identity = {
        "idempotency_key": idempotency_key(request),
        "writer": query.text("writer"),
        "sequence": query.integer("sequence", low=0, high=(1 << 63) - 1),
        "cast": query.choice("cast", ("same_kind",)),
    }
    leaves = await read_arrays(request, query, deck.settings, vault.facts.spec)
    appended = await vaults.append(deck, vault, leaves, **identity)
    headers = {}
    if identity["cast"] is not None and (converted := buffers.converted(vault.facts.spec, leaves)):
        headers["x-converted"] = ", ".join(converted)
    return Json(Appended(**vars(appended)).model_dump(), 201, headers)
