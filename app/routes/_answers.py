"""Bodies out: JSON that is always valid, and arrays in the format asked for."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import zstandard
from starlette.requests import Request
from starlette.responses import Response

from app.routes._body import OFF_LOOP_BYTES
from app.routes._query import Query
from fbxcore.wire import FORMATS, encode, negotiate

MIN_COMPRESSED_BYTES = 4096
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class Json(Response):
    """JSON in which a number that is not finite is the text `"NaN"`, `"Infinity"` or `"-Infinity"`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return orjson.dumps(finite(content), option=_OPTIONS)


def finite(value: Any) -> Any:
    """Return plain values with texts for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: finite(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [finite(member) for member in value]
    if isinstance(value, np.ndarray | np.generic):
        return finite(value.tolist())
    return value


def format_asked(request: Request, query: Query) -> str:
    """Return the format to answer in; npz for those who say nothing."""
    return negotiate(request.headers.get("accept"), query.text("format"), "npz")


def encoding_asked(request: Request) -> str | None:
    """Return the encoding to answer in.

    Many clients list every encoding they know, and compressing for them costs more than a fast line
    takes: only somebody who asks for gzip or zstd alone gets it.
    """
    asked = request.headers.get("accept-encoding")
    if asked is None:
        return None
    named = asked.partition(";")[0].strip().lower()
    return named if named in ("gzip", "zstd") and "," not in asked else None


async def arrays_body(
    arrays: Mapping[str, np.ndarray], format: str, encoding: str | None
) -> tuple[bytes, dict[str, str]]:
    """Return the body of arrays and the headers that describe it."""
    size = sum(array.nbytes for array in arrays.values())
    if encoding is None and size <= (OFF_LOOP_BYTES // 16 if format in ("json", "npz") else OFF_LOOP_BYTES):
        return _encoded(arrays, format, None)
    return await asyncio.to_thread(_encoded, arrays, format, encoding)


def _encoded(
    arrays: Mapping[str, np.ndarray], format: str, encoding: str | None
) -> tuple[bytes, dict[str, str]]:
    body, converted = encode(arrays, format)
    headers = {"content-type": FORMATS[format], "vary": "accept, accept-encoding"}
    if converted:
        headers["x-converted"] = ", ".join(converted)
    if encoding is not None and len(body) >= MIN_COMPRESSED_BYTES:
        body = compressed(body, encoding)
        headers["content-encoding"] = encoding
    return body, headers


def compressed(body: bytes, encoding: str) -> bytes:
    """Return the body in gzip or zstd at their fastest level; equal bodies give equal bytes."""
    if encoding == "zstd":
        return zstandard.ZstdCompressor(level=1).compress(body)
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(body) + packer.flush()
