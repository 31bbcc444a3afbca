"""Bodies in: read whole within a bound, decoded within another, arrays or JSON."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
from starlette.requests import ClientDisconnect, Request

from app.routes._decompress import ENCODINGS, PIECE_BYTES, BodyError, decompressed, too_large
from app.routes._query import Query
from app.settings import Settings
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import Spec
from fbxcore.wire import FORMATS, decode, format_for

OFF_LOOP_BYTES = 1 << 20  # longer work than the hop to a thread and back
MAX_JSON_BYTES = 1 << 20
SMALLER = "Send it in smaller parts."
NO_JSON = "As JSON, numbers take many times their memory: send safetensors or npz, or smaller parts."


async def read_body(request: Request, limit: int, remedy: str = SMALLER) -> bytes | memoryview:
    """Return the body as sent, or refuse it as soon as it is longer than the limit."""
    first, whole = b"", None
    async for chunk in _chunks(request, limit, remedy):
        if not first:
            first = chunk
        else:
            whole = bytearray(first) if whole is None else whole
            whole += chunk
    return first if whole is None else memoryview(whole).toreadonly()


async def _chunks(request: Request, limit: int, remedy: str) -> AsyncIterator[bytes]:
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) > limit:
        raise too_large(limit, declared, remedy)
    size, has_more = 0, True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > limit:
            raise too_large(limit, f"over {limit}", remedy)
        if chunk:
            yield chunk
    if declared is not None and size != int(declared):
        raise BodyError(
            f"`body` must have the {declared} bytes of its Content-Length, got {size}.", loc=("body",)
        )


async def read_decoded(request: Request, *, most: int, remedy: str) -> bytes | memoryview:
    """Return the body with its `Content-Encoding` undone, of at most so many bytes as sent and decoded."""
    limit = min(request.app.state.settings.max_body_bytes, most)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return await read_body(request, limit, remedy)
    if encoding not in ENCODINGS:
        raise InvalidArgumentError(
            f"`Content-Encoding` must be one of {', '.join(ENCODINGS)}, got {encoding!r:.80}.",
            code="unsupported_media_type",
            loc=("header", "content-encoding"),
        )
    pieces: deque[bytearray] = deque()
    async for chunk in _chunks(request, limit, remedy):
        if not pieces or len(pieces[-1]) >= PIECE_BYTES:
            pieces.append(bytearray())
        pieces[-1] += chunk
    return await asyncio.to_thread(decompressed, pieces, encoding, most, remedy)


async def read_arrays(
    request: Request, query: Query, settings: Settings, spec: Spec | None
) -> dict[str, np.ndarray]:
    """Return the arrays of the body, in the format that `?format=` or `Content-Type` names."""
    format = query.text("format") or _format_of(request)
    query.done()
    is_json = format == "json"
    most, remedy = (settings.max_json_bytes, NO_JSON) if is_json else (settings.max_decoded_bytes, SMALLER)
    body = await read_decoded(request, most=most, remedy=remedy)
    if len(body) > OFF_LOOP_BYTES or (is_json and len(body) > OFF_LOOP_BYTES // 16):
        return await asyncio.to_thread(decode, body, format, spec=spec, max_bytes=settings.max_decoded_bytes)
    return decode(body, format, spec=spec, max_bytes=settings.max_decoded_bytes)


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object of the body, which `StrictRoute` has read."""
    found = await request.json() if await request.body() else None
    if not isinstance(found, Mapping):
        raise InvalidArgumentError(f"`body` must be a JSON object, got {found!r:.80}.", loc=("body",))
    return found


async def refuse_body(request: Request) -> None:
    """Refuse a body where none is served."""
    if await read_body(request, MAX_JSON_BYTES):
        raise InvalidArgumentError(
            "`body` must be empty, got one. Give parameters in the query.",
            code="not_supported",
            loc=("body",),
        )


def _format_of(request: Request) -> str:
    media_type = request.headers.get("content-type")
    found = format_for(media_type) if media_type else None
    if found is None:
        raise InvalidArgumentError(
            f"`Content-Type` must be one of {', '.join(FORMATS.values())}, got {media_type!r:.80}.",
            code="unsupported_media_type",
            loc=("header", "content-type"),
        )
    return found
