"""The page of one buffer or mixer, and the forms on it: what can be changed, and snapshots."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.contexts import buffer as buffer_context
from app.contexts import mixer as mixer_context
from app.contexts import shell
from app.contexts import writers as writers_context
from app.contexts.controls import LIMITER, Outcome, controls
from app.contexts.samples import SampleTable, sample_table
from app.contexts.snapshots import snapshots_panel
from app.dependencies import DeckDep, FormRoute
from app.errors import status_of
from app.routes._form import read_form
from app.routes.pages import JSON, MAX_SEED, Text, answer, base_of, has_token
from app.services import buffers, events, snapshots, writers
from app.services.deck import Deck
from app.templating import render
from fbxcore.errors import ConflictError, FbxError, InvalidArgumentError, UnavailableError
from fbxcore.live import LiveBuffer, LiveMixer

router = APIRouter(route_class=FormRoute, include_in_schema=False)
ITEMS = 5  # of a tried sample
SNAPSHOTS = 20
MAX_SHOWN_BYTES = 16 << 20  # of what waits in a queue
BINS = 40
NUMBERS = ("retain_steps", "idle_end_s")  # of the form, beside the limiter's
WINDOWS = {"5m": ("5 min", 300), "1h": ("1 h", 3600)}


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
    if isinstance(buffer, LiveMixer):
        return answer(request, await _mixer_page(request, deck, buffer, window, seed), as_json)
    page = await _buffer_page(request, deck, buffer, Outcome(), window=window, field=field, seed=seed)
    return answer(request, page, as_json)


async def _buffer_page(
    request: Request,
    deck: Deck,
    buffer: LiveBuffer,
    outcome: Outcome,
    *,
    window: str = "5m",
    field: str = "",
    seed: int | None = None,
) -> shell.Page:
    """Return the page of a buffer with what a form of it came to."""
    state = events.state_of(buffer)
    rates = events.recent_rates(buffer, WINDOWS.get(window, WINDOWS["5m"])[1])
    field = field or buffer_context.fields_of(state)[0]
    most = buffer.layout.num_clusters or state["size"] // state["rows"]
    bins = BINS if field == "priority" else max(1, min(BINS, most))
    histogram = await buffer.histogram(field, bins) if state["size"] else None
    sample, refusal = await _try_sample(deck, state, seed)
    kept = await snapshots.list_page(deck, state["name"], limit=SNAPSHOTS, next=None)
    return buffer_context.buffer_page(
        state,
        chart=buffer_context.rates_chart(state, rates),
        windows=buffer_context.windows({key: text for key, (text, _) in WINDOWS.items()}, window),
        histogram=buffer_context.histogram_panel(state, histogram, field),
        sample=sample,
        sample_error=refusal,
        next_seed=secrets.randbits(31),
        base=base_of(request),
        has_token=has_token(request),
        fault=buffers.fault_of(deck, buffer),
        data={
            "buffer": buffer.describe(), "stats": buffer.stats(), "histogram": histogram, "rates": rates,
            "snapshots": kept.items,
        },
        controls=controls(state, outcome.of("controls")),
        snapshots=snapshots_panel(state, kept.items, kept.total, outcome.of("snapshots")),
        writers=_writers_of(buffer),
    )  # fmt: skip


async def _mixer_page(
    request: Request, deck: Deck, mixer: LiveMixer, window: str, seed: int | None
) -> shell.Page:
    """Return the page of a mixer; with a seed, also a sample drawn by it."""
    state = events.state_of(mixer)
    rates = events.recent_rates(mixer, WINDOWS.get(window, WINDOWS["5m"])[1])
    sample, refusal = await _try_sample(deck, state, seed)
    return mixer_context.mixer_page(
        state,
        chart=buffer_context.rates_chart(state, rates),
        windows=buffer_context.windows({key: text for key, (text, _) in WINDOWS.items()}, window),
        sample=sample,
        sample_error=refusal,
        next_seed=secrets.randbits(31),
        base=base_of(request),
        has_token=has_token(request),
        data={"buffer": state, "stats": mixer.stats(), "rates": rates},
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


@router.post("/buffers/{name}/controls", name="change_page")
async def change_from_page(request: Request, deck: DeckDep, name: str) -> Response:
    """Change a buffer while it runs, by its form."""
    typed = await read_form(request, ("durability", *NUMBERS, *LIMITER))

    async def change() -> None:
        await buffers.change(deck, name, _changes(typed))

    return await _answer_form(request, deck, name, change(), Outcome("controls", note="Saved.", typed=typed))


def _changes(typed: Mapping[str, str]) -> dict[str, Any]:
    """Return what `PATCH` takes; a number left blank is none."""
    given: dict[str, Any] = {}
    if "durability" in typed:
        given["durability"] = typed["durability"]
    given |= {name: _number(name, typed[name]) if typed[name] else None for name in NUMBERS if name in typed}
    if any(name in typed for name in LIMITER):
        numbers = {name: _number(name, typed[name]) for name in LIMITER if typed.get(name)}
        if missing := [name for name in LIMITER if numbers and name not in numbers]:
            raise InvalidArgumentError(
                f"`{missing[0]}` must be given beside `{next(iter(numbers))}`, got nothing. Fill in all "
                "three, or leave all blank for no limiter.",
                loc=("rate_limiter", missing[0]),
            )
        given["rate_limiter"] = numbers or None
    return given


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InvalidArgumentError(f"`{name}` must be a number, got {text!r:.80}.", loc=(name,)) from None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


@router.post("/buffers/{name}/snapshots", name="snapshot_page")
async def snapshot_from_page(request: Request, deck: DeckDep, name: str) -> Response:
    """Take a snapshot by its button."""
    await read_form(request, ())
    return await _answer_form(request, deck, name, snapshots.create(deck, name), Outcome("snapshots"))


@router.post("/buffers/{name}/snapshots/{snapshot}/delete", name="delete_snapshot_page")
async def delete_from_page(request: Request, deck: DeckDep, name: str, snapshot: str) -> Response:
    """Delete a snapshot by its button."""
    await read_form(request, ())
    work = snapshots.delete(deck, name, snapshot)
    return await _answer_form(request, deck, name, work, Outcome("snapshots"))


@router.post("/buffers/{name}/snapshots/{snapshot}/restore", name="restore_snapshot_page")
async def restore_from_page(request: Request, deck: DeckDep, name: str, snapshot: str) -> Response:
    """Make a new buffer of a snapshot by its button, and show it."""
    typed = await read_form(request, ("name",))
    new = typed.get("name", "")
    work = buffers.create(deck, {"name": new, "from": {"snapshot": snapshot}})
    return await _answer_form(request, deck, name, work, Outcome("snapshots", typed=typed), leads_to=new)


async def _answer_form(
    request: Request, deck: Deck, name: str, work: Awaitable[Any], outcome: Outcome, *, leads_to: str = ""
) -> Response:
    """Do what a form asks; answer the page with the refusal in its place, or lead back to it.

    A form that htmx sent is answered with the page itself, of which it takes the part around the form.
    """
    is_in_place = "hx-request" in request.headers
    try:
        await work
    except FbxError as error:
        error_text = f"{error} {error.hint or ''}".strip()
        refused = Outcome(outcome.form, error=error_text, typed=outcome.typed)
        page = await _buffer_page(request, deck, deck.buffer(name), refused)
        return render(request, page, status_code=status_of(error))
    if leads_to:
        target = request.url_for("buffer_page", name=leads_to).path
        return Response(headers={"hx-redirect": target}) if is_in_place else RedirectResponse(target, 303)
    if is_in_place:
        done = Outcome(outcome.form, note=outcome.note)
        return render(request, await _buffer_page(request, deck, deck.buffer(name), done))
    return RedirectResponse(f"{request.url_for('buffer_page', name=name).path}#{outcome.form}", 303)
