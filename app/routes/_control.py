"""Control bodies: JSON, bounded, decoded, and read by the same strict rules for every route."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from starlette.requests import Request

from app.routes._body import OFF_LOOP_BYTES, SMALLER, read_decoded
from fbxcore.errors import InvalidArgumentError
from fbxcore.wire import parse_json

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1

Loc = tuple[str | int, ...]


async def read_control(request: Request) -> bytes:
    """Return the body with its `Content-Encoding` undone, kept with what it says where routes look for it.

    Raises:
        BodyError: if it is longer than a control body may be.
        InvalidArgumentError: if it is not JSON, or holds what cannot be kept exactly; naming the field.
    """
    body = bytes(await read_decoded(request, most=MAX_BYTES, remedy=SMALLER))
    request._body = body  # where `body()` keeps it
    if body:
        _check_media_type(request.headers.get("content-type"))
        is_long = len(body) > OFF_LOOP_BYTES // 16
        request._json = await asyncio.to_thread(_read, body) if is_long else _read(body)  # as for `json()`
    return body


def _check_media_type(given: str | None) -> None:
    """Refuse what says that it is something else; who says nothing sends JSON, as nothing else is read."""
    media_type = (given or "application/json").partition(";")[0].strip().lower()
    if media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        return
    raise InvalidArgumentError(
        f"`Content-Type` must be application/json, got {given!r:.80}. Send it with that header.",
        code="unsupported_media_type",
        loc=("header", "content-type"),
    )


def _read(body: bytes) -> Any:
    value = parse_json(body)
    _check(value, ())
    return value


def _check(value: Any, loc: Loc) -> None:
    """Refuse what would not be kept as it was sent, or could not be answered again."""
    if isinstance(value, dict | list):
        if len(loc) >= MAX_DEPTH:
            raise _refused(loc[:1], f"be nested at most {MAX_DEPTH} deep", "a deeper one")
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            _check(member, (*loc, _text(name, loc) if isinstance(name, str) else name))
    elif isinstance(value, str):
        _text(value, loc)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _refused(loc, "fit a number of 64 bits", "a greater one")
    elif isinstance(value, int) and not _LEAST <= value <= _MOST:
        raise _refused(loc, f"be from {_LEAST} to {_MOST} where it is an integer", f"{str(value)[:40]}")


def _text(text: str, loc: Loc) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refused(loc, "be whole characters", ascii(text[:40])) from None
    return text


def _refused(loc: Loc, rule: str, got: str) -> InvalidArgumentError:
    name = ".".join(map(str, loc)) or "body"
    return InvalidArgumentError(f"`{name}` must {rule}, got {got}.", loc=loc or ("body",))
