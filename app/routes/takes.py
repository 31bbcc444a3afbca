"""Taking from a queue: a hot path like those of `experience`, and beside them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.routes._answers import arrays_body, encoding_asked, format_asked
from app.routes._body import refuse_body
from app.routes._presence import while_there
from app.routes._query import Query, idempotency_key
from app.routes.experience import BUFFER
from app.services import buffers
from fbxcore.live import Taken, new_room
from fbxcore.wire import FORMATS, SafetensorsBody


async def take(request: Request) -> Response:
    """Take the oldest sequences, each once; a repeat under its key gets the very same."""
    deck, name = request.app.state.deck, request.path_params["name"]
    buffer = deck.buffer(name)
    query = Query(request.scope["query_string"])
    wanted = {
        "batch_size": query.integer("batch_size", low=1, high=1 << 20),
        "timeout_ms": query.integer("timeout_ms", low=0, high=deck.settings.max_wait_ms) or 0,
        "client": query.text("client"),
        "idempotency_key": idempotency_key(request),
    }
    format, encoding = format_asked(request, query), encoding_asked(request)
    query.done()
    buffers.check_sample_bytes(deck, buffer, wanted["batch_size"])
    await refuse_body(request)

    body = SafetensorsBody() if format == "safetensors" and encoding is None else None
    taking = buffer.take(**wanted, room=body.room if body is not None else new_room)
    taken = await (while_there(request, taking) if wanted["timeout_ms"] else taking)
    if body is not None:
        return Response(body.whole, headers=_how_taken(taken), media_type=FORMATS[format])
    encoded, headers = await arrays_body(taken.arrays, format, encoding)
    del headers["vary"]  # nothing of it is ever stored
    return Response(encoded, headers=headers | _how_taken(taken))


def _how_taken(taken: Taken) -> dict[str, str]:
    return {
        "x-position": str(taken.position),
        "x-sequence": str(taken.sequence),
        "x-duplicate": str(taken.duplicate).lower(),
        "cache-control": "no-store",
    }


ROUTES = [Route(f"{BUFFER}/take", take, methods=["POST"])]
