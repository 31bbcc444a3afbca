"""Forms of pages: fields as a browser sends them, each once, and none that the form has not."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl

from starlette.requests import Request

from app.routes._body import SMALLER, read_body
from fbxcore.errors import InvalidArgumentError, NotSupportedError

MEDIA_TYPE = "application/x-www-form-urlencoded"
MAX_BYTES = 1 << 16
MAX_FIELDS = 64


async def read_form(request: Request, known: Collection[str]) -> dict[str, str]:
    """Return the fields of a form's body by name, without the blanks around them.

    Raises:
        InvalidArgumentError: if it is no form, or has a field twice.
        NotSupportedError: for a field that is not one of those known.
    """
    body = bytes(await read_body(request, MAX_BYTES, SMALLER))
    given = request.headers.get("content-type", MEDIA_TYPE)
    if given.partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise InvalidArgumentError(
            f"`Content-Type` must be {MEDIA_TYPE}, got {given!r:.80}. Programs use the API: /docs.",
            code="unsupported_media_type",
            loc=("header", "content-type"),
        )
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise InvalidArgumentError(
            f"`body` must be a form in UTF-8 of at most {MAX_FIELDS} fields, got another: {error!s:.80}.",
            code="malformed_body",
            loc=("body",),
        ) from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise NotSupportedError(f"`{name[:80]}` must be left out: this form has none.", loc=(name[:80],))
        if name in fields:
            raise InvalidArgumentError(f"`{name}` must be given once, got it again.", loc=(name,))
        fields[name] = value.strip()
    return fields
