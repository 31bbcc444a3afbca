"""Who may ask for what: host names, sites, tokens; one pure ASGI layer in front of every route.

A browser is any site's tool, so a request must say a host name we know (else a name that points at us
could read us) and, if it samples or changes something, must not come from another site's page.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import itertools
import re
import secrets
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import problem_of
from app.settings import Settings
from fbxcore.errors import FbxError, InvalidArgumentError

COOKIE = "flashdeck_session"
OPEN_PATHS = frozenset({"/livez", "/readyz", "/login"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PAGE_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
ARRAYS = (b"application/x-safetensors", b"application/x-npz", b"application/msgpack")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RefusedError(FbxError):
    """Not for this asker; the code says why."""

    code = "unauthorized"


class Guard:
    """Checks host, site and token, and gives every request its id."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self.app = app
        self.token = settings.token.get_secret_value() if settings.token else None
        self.bearer = f"Bearer {self.token}".encode()
        self.session = session_of(self.token) if self.token else ""
        self.proxies = frozenset(settings.trusted_proxies)
        self.hosts = frozenset(
            {"localhost", settings.host.lower(), *(h.lower() for h in settings.allowed_hosts)}
        )
        self.root_path = settings.root_path
        self.known_hosts: set[bytes] = set()
        self.prefix = secrets.token_hex(4)
        self.counter = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.root_path:
            scope["root_path"] = self.root_path
        headers = dict(scope["headers"])
        request_id = self._request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        if (refusal := self._refusal(scope, headers, request_id)) is not None:
            await refusal(scope, receive, _signed(send, request_id))
            return
        await self.app(scope, receive, _signed(send, request_id))

    def _request_id(self, headers: Mapping[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
        return f"{self.prefix}{next(self.counter):08x}"

    def _refusal(self, scope: Scope, headers: Mapping[bytes, bytes], request_id: str) -> Response | None:
        try:
            host = self._check_host(scope, headers)
            _check_site(scope, headers, host)
            if self.token is not None:
                self._check_token(scope, headers)
        except FbxError as error:
            if error.code == "unauthorized" and _is_navigation(scope, headers):
                return RedirectResponse(f"{self.root_path}/login?next={quote(_path(scope))}", status_code=303)
            return problem_of(error, request_id)
        return None

    def _check_host(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bytes:
        host = headers.get(b"host", b"")
        if self.proxies and (scope.get("client") or ("",))[0] in self.proxies:
            host = headers.get(b"x-forwarded-host", host)
        if host in self.known_hosts or "*" in self.hosts:
            return host
        name = _host_name(host)
        if name not in self.hosts and not name.endswith(".localhost") and not _is_address(name):
            raise RefusedError(
                f"`Host` must be a name this service knows, got {name!r:.80}. "
                "Add it to FLASHDECK_ALLOWED_HOSTS.",
                code="unknown_host",
            )
        if len(self.known_hosts) < 256:
            self.known_hosts.add(host)
        return host

    def _check_token(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        path = _path(scope)
        if path in OPEN_PATHS or path.startswith("/static/"):
            return
        given = headers.get(b"authorization")
        if given is not None and hmac.compare_digest(given, self.bearer):
            return
        if hmac.compare_digest(_cookie(headers.get(b"cookie", b"")), self.session.encode()):
            return
        raise RefusedError(
            "`Authorization` must be `Bearer` and this service's token, got "
            f"{'another one' if given else 'none'}. Browsers log in at /login."
        )


def session_of(token: str) -> str:
    """Return the cookie's value: it proves the token and does not tell it."""
    return hmac.new(token.encode(), b"flashdeck session", hashlib.sha256).hexdigest()


def _signed(send: Send, request_id: str) -> Send:
    """Put the request's id and the rules for browsers on the answer."""
    signature = (b"x-request-id", request_id.encode())

    async def signed(message: Message) -> None:
        if message["type"] == "http.response.start":
            raw = message.setdefault("headers", [])
            raw.append(signature)
            kind = next((value for name, value in raw if name == b"content-type"), b"")
            if not kind.startswith(ARRAYS):  # which no browser takes for something it runs
                raw.append((b"x-content-type-options", b"nosniff"))
            if kind.startswith(b"text/html"):
                headers = MutableHeaders(raw=raw)
                headers.setdefault("content-security-policy", PAGE_POLICY)
                headers.setdefault("referrer-policy", "same-origin")
                headers.setdefault("x-frame-options", "DENY")
        await send(message)

    return signed


def _check_site(scope: Scope, headers: Mapping[bytes, bytes], host: bytes) -> None:
    """Refuse another site's page, save that a link or a typed address may open what only reads."""
    site = headers.get(b"sec-fetch-site")
    if site in (b"same-origin", b"none"):
        return
    origin = headers.get(b"origin")
    if site is None and (origin is None or _is_own(origin, host)):
        return  # no browser, or an old one at home
    opens = headers.get(b"sec-fetch-mode") == b"navigate" and scope["method"] in SAFE_METHODS
    if (
        opens
        and not _path(scope).endswith("/sample")
        and headers.get(b"sec-fetch-dest") in (None, b"document")
    ):
        return
    raise RefusedError(
        f"`Origin` must be this service's own for {scope['method']} {_path(scope)[:200]!r}, "
        f"got {(origin or site or b'').decode('latin-1')[:80]!r}.",
        code="cross_site",
    )


def _is_own(origin: bytes, host: bytes) -> bool:
    try:
        return urlsplit(origin.decode("latin-1")).netloc.lower() == host.decode("latin-1").lower()
    except ValueError:  # no address at all
        return False


def _is_navigation(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    wants_page = headers.get(b"accept", b"").startswith(b"text/html")
    return wants_page and scope["method"] in SAFE_METHODS and not _path(scope).startswith("/api/")


def _path(scope: Scope) -> str:
    return scope["path"].removeprefix(scope.get("root_path", ""))


def _host_name(host: bytes) -> str:
    try:
        return (urlsplit(f"//{host.decode('ascii')}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """A literal address cannot be pointed elsewhere, as a name can."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie(header: bytes) -> bytes:
    for part in header.split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == COOKIE.encode():
            return value
    return b""


def check_next(target: str | None) -> str:
    """Return where to go after login: a path of ours, never another site."""
    if target and target.startswith("/") and not target.startswith(("//", "/\\")):
        return target
    return "/"


def check_token(given: str, settings: Settings) -> str:
    """Return the cookie's value for the right token."""
    if settings.token is None:
        raise InvalidArgumentError("`token` must be left out: this service asks for none.", loc=("token",))
    if not hmac.compare_digest(given.encode(), settings.token.get_secret_value().encode()):
        raise RefusedError("`token` must be this service's, got another one.")
    return session_of(settings.token.get_secret_value())
