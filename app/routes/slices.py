"""Slices of a vault, as files one can cache for ever."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.routes._answers import arrays_body, encoding_asked, format_asked
from app.routes._query import Query
from app.services import slices

LARGE = (1 << 62) - 1


async def read_slice(request: Request) -> Response:
    """Return the arrays of a slice, each `[B, t, ...]`."""
    deck, names = request.app.state.deck, request.path_params
    query = Query(request.scope["query_string"])
    asked = slices.Asked(
        ref=query.text("ref"),
        start=query.integer("start", low=-LARGE, high=LARGE),
        stop=query.integer("stop", low=-LARGE, high=LARGE),
        step=query.integer("step", low=-LARGE, high=LARGE),
        timesteps=query.integer("timesteps", low=0, high=LARGE),
        percentiles=query.text("percentiles"),
        rows=query.text("rows"),
        leaves=query.text("leaves"),
    )
    format, encoding = format_asked(request, query), encoding_asked(request)
    query.done()
    vault = await deck.vault(names["vault_name"], names["vault_uid"])
    found = await slices.resolve(deck, vault, asked)
    etag = slices.etag(vault, found, format, encoding)
    headers = {"etag": etag, "cache-control": _cache_control(deck.settings.token is not None, found)}
    known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
    if any(tag in (etag, "*") for tag in known):
        return Response(status_code=304, headers=headers)
    body, described = await arrays_body(await slices.read(deck, vault, found), format, encoding)
    return Response(body, headers=headers | described | {
        "x-version": found.version_name,
        "x-rows": str(len(found.rows)),
        "x-timesteps": str(len(found.steps)),
        "content-disposition": f'attachment; filename="{slices.file_name(vault, found, format)}"',
    })  # fmt: skip


def _cache_control(is_private: bool, found: slices.Slice) -> str:
    if not found.is_fixed:
        return "no-cache"
    return f"{'private' if is_private else 'public'}, max-age=31536000, immutable"


ROUTES = [Route("/api/v1/vaults/{vault_name}/{vault_uid}/slice", read_slice, methods=["GET"])]
