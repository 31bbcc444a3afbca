"""Lists: items, where the next page begins, and how many there are."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from app.routes._answers import Json
from app.services.mirror import Listed


def list_answer(request: Request, listed: Listed) -> Response:
    """Return one page, with the link to the next."""
    headers = {}
    if listed.next is not None:
        query = urlencode({**request.query_params, "next": listed.next})
        headers["link"] = f'<{request.url.path}?{query}>; rel="next"'
    total = {"value": listed.total, "exact": True}
    return Json({"items": listed.items, "next": listed.next, "total": total}, headers=headers)
