"""The hot paths: experience in, samples out, priorities back.

Plain Starlette routes, tried before all others: no model layer, no SQL, one response. Their
documentation is in `openapi`.
"""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.routes._answers import arrays_body, encoding_asked, format_asked
from app.routes._body import read_arrays, refuse_body
from app.routes._presence import while_there
from app.routes._query import Query, idempotency_key
from app.services import buffers
from fbxcore.live import Sample, new_room
from fbxcore.wire import FORMATS, SafetensorsBody

MAX_SEED = (1 << 63) - 1
BUFFER = "/api/v1/buffers/{name}"


async def add_experience(request: Request) -> Response:
    """Add a batch exactly once."""
    deck, name = request.app.state.deck, request.path_params["name"]
    buffer = deck.buffer(name)
    query = Query(request.scope["query_string"])
    identity = {
        "idempotency_key": idempotency_key(request),
        "writer": query.text("writer"),
        "sequence": query.integer("sequence", low=0, high=MAX_SEED),
    }
    cast = query.choice("cast", ("same_kind",))
    end = query.text("end")
    timeout_ms = query.integer("timeout_ms", low=0, high=deck.settings.max_wait_ms) or 0
    leaves = await read_arrays(request, query, deck.settings, buffer.config.body_spec)
    adding = buffer.add(leaves, cast=cast, timeout_ms=timeout_ms, end=end, **identity)
    added = await (while_there(request, adding) if timeout_ms else adding)
    headers = {}
    if cast is not None and (converted := buffers.converted(buffer.config.body_spec, leaves)):
        headers["x-converted"] = ", ".join(converted)
    return Response(orjson.dumps(added), 201, headers, "application/json")


async def sample(request: Request) -> Response:
    """Draw a batch; POST may be repeated under its `Idempotency-Key`."""
    deck, name = request.app.state.deck, request.path_params["name"]
    buffer = deck.sampler(name)
    query = Query(request.scope["query_string"])
    wanted = {
        "batch_size": query.integer("batch_size", low=1, high=1 << 20),
        "seed": query.integer("seed", low=0, high=MAX_SEED),
        "beta": query.number("beta", low=0, high=1),
        "timeout_ms": query.integer("timeout_ms", low=0, high=deck.settings.max_wait_ms) or 0,
        "peek": query.flag("peek"),
    }
    format, encoding = format_asked(request, query), encoding_asked(request)
    query.done()
    buffers.check_sample_bytes(deck, buffer, wanted["batch_size"])

    if request.method == "GET":
        body = SafetensorsBody() if format == "safetensors" and encoding is None else None
        drawing = buffer.sample(**wanted, room=body.room if body is not None else new_room)
        drawn = await (while_there(request, drawing) if wanted["timeout_ms"] else drawing)
        if body is not None:
            return Response(body.whole, headers=_how_drawn(drawn), media_type=FORMATS[format])
        encoded, headers = await _answer_of(drawn, format, encoding)
        return Response(encoded, headers=headers)
    await refuse_body(request)

    async def draw() -> tuple[bytes, dict[str, str]]:
        return await _answer_of(await buffer.sample(**wanted), format, encoding)

    key, asked = idempotency_key(request), (request.scope["query_string"], format, encoding)
    body, headers = await deck.replays.once(buffer, key, asked, draw)
    return Response(body, headers=headers)


async def _answer_of(drawn: Sample, format: str, encoding: str | None) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a sample."""
    body, headers = await arrays_body(drawn.arrays, format, encoding)
    del headers["vary"]  # nothing of it is ever stored
    return body, headers | _how_drawn(drawn)


def _how_drawn(drawn: Sample) -> dict[str, str]:
    """Return the headers that say how to draw it again."""
    return {"x-seed": str(drawn.seed), "x-position": str(drawn.position), "cache-control": "no-store"}


async def set_priorities(request: Request) -> Response:
    """Set priorities of sampled items."""
    deck, name = request.app.state.deck, request.path_params["name"]
    deck.buffer(name)
    query = Query(request.scope["query_string"])
    arrays = await read_arrays(request, query, deck.settings, buffers.PRIORITIES)
    return Response(
        orjson.dumps(await buffers.set_priorities(deck, name, arrays)), media_type="application/json"
    )


_SAMPLE = Route(f"{BUFFER}/sample", sample, methods=["GET", "POST"])
_SAMPLE.methods.discard("HEAD")  # it would draw and count, and show nothing
ROUTES = [
    _SAMPLE,
    Route(f"{BUFFER}/experience", add_experience, methods=["POST"]),
    Route(f"{BUFFER}/priorities", set_priorities, methods=["PATCH"]),
]
