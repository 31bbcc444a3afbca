"""Bodies in: read whole within a bound, decoded within another, arrays or JSON."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import zstandard
from starlette.requests import ClientDisconnect, Request

from app.routes._query import Query
from app.settings import Settings
from fbxcore.errors import FbxError, InvalidArgumentError
from fbxcore.types import Spec
from fbxcore.wire import FORMATS, decode, format_for

OFF_LOOP_BYTES = 1 << 20  # longer work than the hop to a thread and back
MAX_JSON_BYTES = 1 << 20
ENCODINGS = ("gzip", "zstd")


class BodyError(FbxError):
    """A body that is too large or not whole; the code says which."""

    code = "incomplete_body"


async def read_body(request: Request, limit: int) -> bytes | memoryview:
    """Return the body as sent, or refuse it as soon as it is longer than the limit."""
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) > limit:
        raise _too_large(limit, declared)
    first, message = b"", await request.receive()
    whole: bytearray | None = None
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit, f"over {limit}")
        if not first:
            first = chunk
        else:
            whole = bytearray(first) if whole is None else whole
            whole += chunk
        if not message.get("more_body", False):
            break
        message = await request.receive()
    if declared is not None and size != int(declared):
        raise BodyError(
            f"`body` must have the {declared} bytes of its Content-Length, got {size}.", loc=("body",)
        )
    return first if whole is None else memoryview(whole).toreadonly()


async def read_decoded(request: Request, settings: Settings) -> bytes | memoryview:
    """Return the body with its `Content-Encoding` undone."""
    body = await read_body(request, settings.max_body_bytes)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ENCODINGS:
        raise InvalidArgumentError(
            f"`Content-Encoding` must be one of {', '.join(ENCODINGS)}, got {encoding!r:.80}.",
            code="unsupported_media_type",
            loc=("header", "content-encoding"),
        )
    return await asyncio.to_thread(_decompressed, bytes(body), encoding, settings.max_decoded_bytes)


async def read_arrays(
    request: Request, query: Query, settings: Settings, spec: Spec | None
) -> dict[str, np.ndarray]:
    """Return the arrays of the body, in the format that `?format=` or `Content-Type` names."""
    format = query.text("format") or _format_of(request)
    query.done()
    body = await read_decoded(request, settings)
    if len(body) > OFF_LOOP_BYTES or (format == "json" and len(body) > OFF_LOOP_BYTES // 16):
        return await asyncio.to_thread(decode, body, format, spec=spec, max_bytes=settings.max_decoded_bytes)
    return decode(body, format, spec=spec, max_bytes=settings.max_decoded_bytes)


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object of the body, which the route has bounded."""
    body = await request.body()
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(
            f"`body` must be JSON, got something else at position {error.pos}: {error.msg}.",
            code="malformed_body",
            loc=("body",),
        ) from None
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


def _decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo one encoding, with at most `limit` bytes of result ever held."""
    try:
        found = _gunzipped(body, limit) if encoding == "gzip" else _unzstd(body, limit)
    except (zlib.error, zstandard.ZstdError, EOFError, gzip.BadGzipFile) as error:
        raise InvalidArgumentError(
            f"`body` must be whole {encoding} data, got something else: {str(error)[:200]}.",
            code="malformed_body",
            loc=("body",),
        ) from None
    if len(found) > limit:
        raise _too_large(limit, f"over {limit} once decoded")
    return found


def _gunzipped(body: bytes, limit: int) -> bytes:
    undo = zlib.decompressobj(wbits=31)
    found = undo.decompress(body, limit + 1)
    if len(found) <= limit and not undo.eof:
        raise EOFError("it ends early")
    return found


def _unzstd(body: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body) as reader:
        found = reader.read(limit + 1)
    if len(found) <= limit and zstandard.frame_content_size(body) not in (-1, len(found)):
        raise EOFError("it ends early")
    return found


def _too_large(limit: int, got: str) -> BodyError:
    return BodyError(
        f"`body` must have at most {limit} bytes, got {got}. Send it in smaller parts.",
        code="body_too_large",
        loc=("body",),
    )
