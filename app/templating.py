"""Jinja2 set up once: autoescape, strict names, paths by route name, assets by content hash."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.paths import STATIC, TEMPLATES

HASH = "h"
CSP = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": CSP, "Cache-Control": "no-cache", "Vary": "Cookie, Accept"}


@lru_cache(maxsize=256)
def _hash_of(path: str, modified_ns: int) -> str:
    del modified_ns  # part of the key: an edited file gets another address
    return hashlib.sha256((STATIC / path).read_bytes()).hexdigest()[:12]


def static_hash(path: str) -> str:
    """The first 12 digits of the SHA-256 of a static file."""
    return _hash_of(path, (STATIC / path).stat().st_mtime_ns)


class StaticAssets(StaticFiles):
    """Static files; what is asked for by its content hash may be kept for ever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer a file, whole, with `immutable` when the hash in the address is its own."""
        scope["headers"] = [header for header in scope["headers"] if header[0] != b"range"]
        response = await super().get_response(path, scope)
        response.headers["Accept-Ranges"] = "none"
        asked = parse_qs(scope["query_string"].decode("latin-1")).get(HASH, [""])[0]
        if asked and response.status_code == 200 and asked == static_hash(path):
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        else:
            response.headers.setdefault("Cache-Control", "no-cache")
        return response


@pass_context
def _url_for(context: Any, name: str, /, **params: Any) -> str:
    """The path of a route, behind the root path, without a host."""
    quoted = {key: value if key == "path" else quote(str(value), safe="~") for key, value in params.items()}
    return context["request"].url_for(name, **quoted).path


@pass_context
def _static(context: Any, path: str) -> str:
    """The address of a static file, with its content hash."""
    return f"{context['request'].url_for('static', path=path).path}?{HASH}={static_hash(path)}"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The one Jinja2 environment."""
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(url_for=_url_for, static=_static)
    return env


def render(request: Request, page: Any, *, status_code: int = 200) -> HTMLResponse:
    """Answer a page: its dataclass names the template and is all the template sees."""
    html = environment().get_template(page.template).render(request=request, page=page)
    return HTMLResponse(html, status_code=status_code, headers=HEADERS)
