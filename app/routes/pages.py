"""The pages, and the same data as JSON under the same address with `.json`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from app.contexts import buffer as buffer_context
from app.contexts import buffers as buffers_context
from app.contexts import mixer as mixer_context
from app.contexts import overview, shell
from app.contexts import slices as slice_contexts
from app.contexts import storage as storage_context
from app.contexts import vaults as vault_contexts
from app.contexts import writers as writers_context
from app.contexts.samples import SampleTable, sample_table
from app.dependencies import DeckDep, StrictRoute
from app.routes._answers import Json
from app.services import buffers, events, slices, sweeps, trash, vaults, versions, writers
from app.services.deck import Deck, VaultEntry
from app.templating import render
from fbxcore.errors import ConflictError, FbxError, UnavailableError
from fbxcore.live import LiveBuffer, LiveMixer

router = APIRouter(route_class=StrictRoute, include_in_schema=False)
JSON = ".json"
LISTED = 50
ITEMS = 5  # of a tried sample
MAX_SHOWN_BYTES = 16 << 20  # of what waits in a queue
SPARK_S = 60
BINS = 40
WINDOWS = {"5m": ("5 min", 300), "1h": ("1 h", 3600)}
MAX_SEED = (1 << 63) - 1
MAX_STEP = (1 << 31) - 1
Text = Annotated[str, Query(max_length=200)]


def _base(request: Request) -> str:
    """The address the page was opened at, for snippets."""
    return str(request.base_url).rstrip("/")


def _has_token(request: Request) -> bool:
    return request.app.state.settings.token is not None


def _answer(request: Request, page: shell.Page, as_json: bool) -> Response:
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
        base=_base(request),
        has_token=_has_token(request),
        data_directory=str(deck.data),
        troubles=_troubles(deck),
    )
    return _answer(request, page, request.url.path.endswith(JSON))


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
        base=_base(request),
        has_token=_has_token(request),
        query=query,
        sort=sort,
        offset=offset,
        limit=LISTED,
        troubles=_troubles(deck),
    )
    return _answer(request, page, request.url.path.endswith(JSON))


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


@router.get("/buffers/{name}", name="buffer_page")
async def show_buffer(
    request: Request,
    deck: DeckDep,
    name: str,
    window: Text = "5m",
    field: Text = "",
    seed: Annotated[int | None, Query(ge=0, le=MAX_SEED)] = None,
) -> Response:
    """Show one buffer; with a seed, also a sample drawn by it."""
    as_json = name.endswith(JSON) and name not in deck.samplers
    buffer = deck.sampler(name.removesuffix(JSON) if as_json else name)
    state = events.state_of(buffer)
    rates = events.recent_rates(buffer, WINDOWS.get(window, WINDOWS["5m"])[1])
    if isinstance(buffer, LiveMixer):
        return _answer(request, await _mixer_page(request, deck, state, rates, window, seed), as_json)
    field = field or buffer_context.fields_of(state)[0]
    most = buffer.layout.num_clusters or state["size"] // state["rows"]
    bins = BINS if field == "priority" else max(1, min(BINS, most))
    histogram = await buffer.histogram(field, bins) if state["size"] else None
    sample, refusal = await _try_sample(deck, state, seed)
    page = buffer_context.buffer_page(
        state,
        chart=buffer_context.rates_chart(state, rates),
        windows=buffer_context.windows({key: text for key, (text, _) in WINDOWS.items()}, window),
        histogram=buffer_context.histogram_panel(state, histogram, field),
        sample=sample,
        sample_error=refusal,
        next_seed=secrets.randbits(31),
        base=_base(request),
        has_token=_has_token(request),
        fault=buffers.fault_of(deck, buffer),
        data={"buffer": buffer.describe(), "stats": buffer.stats(), "histogram": histogram, "rates": rates},
        writers=_writers_of(buffer),
    )
    return _answer(request, page, as_json)


async def _mixer_page(
    request: Request, deck: Deck, state: Mapping[str, Any], rates: dict, window: str, seed: int | None
) -> shell.Page:
    """Show a mixer; with a seed, also a sample drawn by it."""
    sample, refusal = await _try_sample(deck, state, seed)
    return mixer_context.mixer_page(
        state,
        chart=buffer_context.rates_chart(state, rates),
        windows=buffer_context.windows({key: text for key, (text, _) in WINDOWS.items()}, window),
        sample=sample,
        sample_error=refusal,
        next_seed=secrets.randbits(31),
        base=_base(request),
        has_token=_has_token(request),
        data={"buffer": state, "stats": deck.sampler(state["name"]).stats(), "rates": rates},
    )


def _writers_of(buffer: LiveBuffer) -> writers_context.WritersPanel | None:
    if not buffer.layout.independent:
        return None
    states = [writers.public(state) for state in buffer.writers()]
    return writers_context.writers_panel(states, buffer.layout.rows)


async def _try_sample(
    deck: Deck, state: Mapping[str, Any], seed: int | None
) -> tuple[SampleTable | None, str]:
    """Draw a few items without counting them; say why where that is refused."""
    buffer = deck.sampler(state["name"])
    if buffer.layout.is_queue:
        return await _next_in_line(buffer), ""
    if seed is None or not state["can_sample"]:
        return None, ""
    buffers.check_sample_bytes(deck, buffer, ITEMS)
    try:
        drawn = await buffer.sample(ITEMS, seed=seed, peek=True)
    except (ConflictError, UnavailableError) as error:
        return None, str(error)
    layout = buffer.layout
    table = sample_table(
        drawn.arrays, items=layout.items, flat=layout.flat, seed=drawn.seed, position=drawn.position
    )
    return table, ""


async def _next_in_line(buffer: LiveBuffer) -> SampleTable | None:
    """Show what waits first in a queue, and take nothing."""
    if buffer.layout.rows * buffer.config.item_bytes > MAX_SHOWN_BYTES:
        return None
    arrays = await buffer.next_in_line()
    return None if arrays is None else sample_table(arrays, items=False, flat=False, seed=0, position=0)


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
    answer = {"items": listed.items, "next": listed.next, "total": {"value": listed.total, "exact": True}}
    page = vault_contexts.vaults_page(
        answer,
        await trash.list_all(deck),
        query=query,
        sort=sort,
        base=_base(request),
        has_token=_has_token(request),
    )
    return _answer(request, page, request.url.path.endswith(JSON))


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
        base=_base(request),
        has_token=_has_token(request),
        data={"vault": shown, "versions": listed.items},
    )
    return _answer(request, page, as_json)


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
        shown, swept, base=_base(request), has_token=_has_token(request), error=error
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
