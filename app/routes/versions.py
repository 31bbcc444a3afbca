"""Versions and tags of a vault."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response

from app.dependencies import DeckDep, DryRun, Limit, Next, StrictRoute, VaultDep
from app.routes._answers import Json
from app.routes._lists import list_answer
from app.schemas.common import ListPage
from app.schemas.vaults import TagPublic, TagPut, VersionCreate, VersionPublic
from app.services import versions
from fbxcore.errors import InvalidArgumentError

router = APIRouter(
    prefix="/api/v1/vaults/{vault_name}/{vault_uid}", route_class=StrictRoute, tags=["versions"]
)
IfMatch = Annotated[str | None, Header(description="The tag's `ETag`; needed to move a protected one.")]


@router.post("/versions", status_code=201, response_model=VersionPublic)
async def create_version(
    request: Request, deck: DeckDep, vault: VaultDep, given: VersionCreate | None = None
) -> Response:
    """Commit everything acknowledged before, and make it a version."""
    given = given or VersionCreate()
    made = await versions.create(deck, vault, **given.model_dump())
    headers = {"location": f"{request.url.path}/{made['version']}", "x-version": str(made["version"])}
    return Json(made, 201, headers)


@router.get("/versions", response_model=ListPage[VersionPublic])
async def list_versions(request: Request, vault: VaultDep, limit: Limit = 50, next: Next = None) -> Response:
    """List the versions, the newest first."""
    return list_answer(request, versions.list_page(vault, limit=limit, next=next))


@router.get("/versions/{ref}", response_model=VersionPublic)
async def show_version(vault: VaultDep, ref: str) -> Response:
    """Show the version a ref names."""
    found = versions.find(vault, ref)
    return Json(await versions.show(vault, found), headers={"x-version": str(found.number)})


@router.delete("/versions/{ref}", status_code=204, responses={200: {"model": VersionPublic}})
async def delete_version(deck: DeckDep, vault: VaultDep, ref: str, dry_run: DryRun = False) -> Response:
    """Take a version's number away; its bytes go with a later sweep. Refused while a tag names it."""
    deleted = await versions.delete(deck, vault, ref, dry_run=dry_run)
    return Json(deleted) if dry_run else Response(status_code=204)


@router.get("/tags", response_model=list[TagPublic])
async def list_tags(vault: VaultDep) -> Response:
    """List the tags by name."""
    return Json(versions.list_tags(vault))


@router.put("/tags/{tag}", response_model=TagPublic)
async def put_tag(
    deck: DeckDep,
    vault: VaultDep,
    tag: str,
    given: TagPut | None = None,
    if_match: IfMatch = None,
    if_none_match: Annotated[str | None, Header(description="`*`: only if the tag is new.")] = None,
) -> Response:
    """Set a tag to a version."""
    if if_none_match not in (None, "*"):
        raise InvalidArgumentError(
            f"`If-None-Match` must be `*`, got {if_none_match!r:.80}.", loc=("header", "if-none-match")
        )
    given = given or TagPut()
    made, is_new = await versions.put_tag(
        deck,
        vault,
        tag,
        ref=str(given.version),
        protected=given.protected,
        must_be_new=if_none_match == "*",
        if_match=if_match,
    )
    return Json(made, 201 if is_new else 200, {"etag": versions.tag_etag(made["version"])})


@router.delete("/tags/{tag}", status_code=204)
async def delete_tag(deck: DeckDep, vault: VaultDep, tag: str, if_match: IfMatch = None) -> Response:
    """Take a tag away; its version stays."""
    await versions.delete_tag(deck, vault, tag, if_match=if_match)
    return Response(status_code=204)
