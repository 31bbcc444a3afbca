"""The pages, and the same data as JSON under the same address with `.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from app.contexts import buffers as buffers_context
from app.contexts import overview, shell
from app.contexts import slices as slice_contexts
from app.contexts import storage as storage_context
from app.contexts import vaults as vault_contexts
from app.dependencies import DeckDep, StrictRoute
from app.routes._answers import Json
from app.services import buffers, events, slices, sweeps, trash, vaults, versions
from app.services.deck import Deck, VaultEntry
from app.templating import render
from fbxcore.errors import FbxError

router = APIRouter(route_class=StrictRoute, include_in_schema=False)
JSON = ".json"
LISTED = 50
SPARK_S = 60
MAX_SEED = (1 << 63) - 1
MAX_STEP = (1 << 31) - 1
Text = Annotated[str, Query(max_length=200)]


def base_of(request: Request) -> str:
    """Return the address the page was opened at, for snippets."""
    return str(request.base_url).rstrip("/")


def has_token(request: Request) -> bool:
    """Say whether snippets must name a token."""
    return request.app.state.settings.token is not None


def answer(request: Request, page: shell.Page, as_json: bool) -> Response:
    """Return a page, or the data it shows."""
    return Json(page.data) if as_json else render(request, page)


def _recents(deck: Deck, names: list[str]) -> dict[str, list[float]]:
    return {name: events.recent_rates(deck.sampler(name), SPARK_S)["added"] for name in names}


@router.get("/", name="overview_page")
@router.get("/overview.json", name="overview_json")
async def show_overview(request: Request, deck: DeckDep) -> Response:
    """Show what is there and what moves."""
    states = events.states(deck)
    listed = await vaults.list_page(deck, query=None, sort="-updated_at", limit=overview.SHOWN, next=None)
    page = overview.overview_page(
        states,
        _recents(deck, [s["name"] for s in states[:LISTED]]),
        {"items": listed.items, "total": {"value": listed.total, "exact": True}},
        base=base_of(request),
        has_token=has_token(request),
        data_directory=str(deck.data),
        troubles=_troubles(deck),
    )
    return answer(request, page, request.url.path.endswith(JSON))


@router.get("/buffers", name="buffers_page")
@router.get("/buffers.json", name="buffers_json")
async def show_buffers(
    request: Request,
    deck: DeckDep,
    query: Text = "",
    sort: Text = "name",
    offset: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """List the live buffers."""
    states = events.states(deck)
    page = buffers_context.buffers_page(
        states,
        _recents(deck, [s["name"] for s in states]),
        base=base_of(request),
        has_token=has_token(request),
        query=query,
        sort=sort,
        offset=offset,
        limit=LISTED,
        troubles=_troubles(deck),
    )
    return answer(request, page, request.url.path.endswith(JSON))


def _troubles(deck: Deck) -> list[str]:
    """Buffers that are not open, or whose vault takes nothing, and why."""
    starting = [
        f"Buffer {name!r} is replaying its log: {done:,} of {total:,} bytes."
        for name, (done, total) in sorted(deck.starting.items())
    ]
    failed = [f"Buffer {name!r} cannot be opened: {error}" for name, error in sorted(deck.failed.items())]
    faults = [(name, buffers.fault_of(deck, buffer)) for name, buffer in sorted(deck.buffers.items())]
    stuck = [f"Buffer {name!r} keeps its steps in its log: {fault}" for name, fault in faults if fault]
    return starting + failed + stuck


@router.get("/vaults", name="vaults_page")
@router.get("/vaults.json", name="vaults_json")
async def show_vaults(
    request: Request,
    deck: DeckDep,
    query: Text = "",
    sort: Text = "name",
    next: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """List the vaults from stored columns."""
    listed = await vaults.list_page(deck, query=query or None, sort=sort, limit=LISTED, next=next)
    told = {"items": listed.items, "next": listed.next, "total": {"value": listed.total, "exact": True}}
    page = vault_contexts.vaults_page(
        told,
        await trash.list_all(deck),
        query=query,
        sort=sort,
        base=base_of(request),
        has_token=has_token(request),
    )
    return answer(request, page, request.url.path.endswith(JSON))


@router.get("/vaults/{vault_name}/{vault_uid}", name="vault_page")
async def show_vault(
    request: Request,
    deck: DeckDep,
    vault_name: str,
    vault_uid: str,
    ref: Text = "head",
    start: Annotated[int | None, Query(ge=0, le=MAX_STEP)] = None,
    stop: Annotated[int | None, Query(ge=0, le=MAX_STEP)] = None,
    row: Annotated[int, Query(ge=0)] = 0,
    leaf: Annotated[list[str] | None, Query(max_length=256)] = None,
    sweep: Text = "",
    older: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Show one vault, its versions, and a slice as a table."""
    entry, as_json = await _find_vault(deck, vault_name, vault_uid)
    shown = await vaults.show(deck, entry)
    asked = slice_contexts.asked(shown, ref=ref, start=start, stop=stop, row=row, leaves=tuple(leaf or ()))
    address = quote(shown["url"], safe="~%/").split("/")
    api = request.url_for("show_vault", vault_name=address[0], vault_uid=address[1]).path
    table = await _slice_table(deck, entry, shown, asked, api)
    listed = versions.list_page(entry, limit=LISTED, next=older)
    page = vault_contexts.vault_page(
        shown,
        listed.items,
        {tag["tag"]: tag for tag in versions.list_tags(entry)},
        listed.next,
        table,
        asked,
        await _storage(request, deck, entry, shown, sweep == "preview"),
        base=base_of(request),
        has_token=has_token(request),
        data={"vault": shown, "versions": listed.items},
    )
    return answer(request, page, as_json)


async def _storage(
    request: Request, deck: Deck, entry: VaultEntry, shown: Mapping[str, Any], is_asked: bool
) -> storage_context.Storage | None:
    """Say what the vault's bytes are for; where asked, also what a sweep would give back."""
    swept, error = None, ""
    if is_asked:
        try:
            swept = await sweeps.run(deck, entry, sweeps.Asked(dry_run=True))
        except FbxError as refused:
            error = str(refused)
    return storage_context.storage(
        shown, swept, base=base_of(request), has_token=has_token(request), error=error
    )


async def _find_vault(deck: Deck, vault_name: str, vault_uid: str) -> tuple[VaultEntry, bool]:
    """Return a vault and whether its JSON is asked for; a uid may itself end in `.json`."""
    if not vault_uid.endswith(JSON):
        return await deck.vault(vault_name, vault_uid), False
    for key in (f"{vault_name}/{vault_uid}", f"{vault_name.replace('~', '/')}/{vault_uid}"):
        if key in deck.vaults:
            return await deck.vault(vault_name, vault_uid), False
    return await deck.vault(vault_name, vault_uid.removesuffix(JSON)), True


async def _slice_table(
    deck: Deck, entry: VaultEntry, shown: Mapping[str, Any], asked: slice_contexts.Asked, api: str
) -> slice_contexts.SliceTable:
    """Read the few steps the table shows; a refusal is shown in its place."""
    query = slices.Asked(
        ref=asked.ref, start=asked.start, stop=asked.stop, step=None, timesteps=None, percentiles=None,
        rows=f"{asked.row}:{asked.row + 1}", leaves=",".join(asked.leaves) or None,
    )  # fmt: skip
    error, arrays, length, first = "", {}, shown["length"], shown["first"]
    try:
        found = await slices.resolve(deck, entry, query)
        arrays = await slices.read(deck, entry, found)
        of = found.version or entry.facts
        length, first = of.length, of.first
    except FbxError as refused:
        error = str(refused)
    return slice_contexts.slice_table(
        arrays, shown["spec"], asked, length=length, rows=shown["rows"], api=api, first=first, error=error
    )


def error_page(request: Request, problem: Mapping[str, Any]) -> Response:
    """Show a problem document as a page; `app.state.error_page` for the error handlers."""
    page = shell.error_page(problem)
    return render(request, page, status_code=page.status)


def login_page(request: Request, error: str | None, status: int) -> Response:
    """Show the sign-in form; `app.state.login_page` for the login route."""
    return render(request, shell.login_page(error=error or ""), status_code=status)
