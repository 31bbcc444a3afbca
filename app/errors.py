"""Every error as `application/problem+json` (RFC 9457); one table says which status a class has."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from app.paths import PROBLEMS
from fbxcore import errors as fbx

logger = logging.getLogger("flashdeck")

STATUS_OF_CODE = {
    "not_acceptable": 406,
    "unsupported_media_type": 415,
    "body_too_large": 413,
    "incomplete_body": 400,
    "unauthorized": 401,
    "cross_site": 403,
    "unknown_host": 421,
    "precondition_failed": 412,
    "precondition_required": 428,
    "method_not_allowed": 405,
}
STATUS_OF_CLASS: tuple[tuple[type[Exception], int], ...] = (  # the first that fits
    (fbx.ReclaimedError, 410),
    (fbx.NotFoundError, 404),
    (fbx.ConflictError, 409),
    (fbx.InvalidArgumentError, 422),
    (fbx.UnavailableError, 503),
    (fbx.DiskFullError, 507),
    (fbx.DamagedError, 409),
    (fbx.StorageError, 503),
    (fbx.FbxError, 500),
)
CODE_OF_STATUS = {
    400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
    413: "body_too_large", 422: "invalid_argument", 500: "internal", 503: "unavailable",
}  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
HINTS = {
    "foreign_writer": "Stop the other program. Then POST …/adopt leaves what it wrote, and appends what it "
    "wrote over and what waits; or POST …/fork copies what the files hold into a new vault, and what was "
    "acknowledged and is not in them stays in the log.",
}
_LONG_WORD = re.compile(r"(\S{200})\S+")


def status_of(error: fbx.FbxError) -> int:
    """Return the status of an error raised on purpose."""
    if error.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[error.code]
    return next(status for kind, status in STATUS_OF_CLASS if isinstance(error, kind))


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> Response:
    """Return one problem document; members that are None are left out."""
    if (faults := members.get("errors")) is not None:
        members["errors"] = [
            fault | {"loc": [_cut(part) for part in fault["loc"]], "msg": _cut(fault["msg"])}
            for fault in faults
        ]
    body = {
        "type": f"{PROBLEMS}/{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": _cut(detail),
        "code": code,
        "request_id": request_id,
    }
    body |= {name: value for name, value in members.items() if value is not None and name not in body}
    content = orjson.dumps(body, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    extra = {"cache-control": "no-store", **(headers or {})}
    return Response(content, status, extra, media_type="application/problem+json")


def _cut(text: Any) -> Any:
    """Return a text of ours with long words, which are names somebody sent, cut short."""
    return _LONG_WORD.sub(r"\1…", text) if isinstance(text, str) else text


def problem_of(error: fbx.FbxError, request_id: str | None = None) -> Response:
    """Return the problem document of an error raised on purpose."""
    details = dict(error.details)
    headers = dict(details.pop("headers", {}))
    if (wait := details.get("retry_after_s")) is not None:
        headers["retry-after"] = str(max(1, round(wait)))
    if error.code == "method_not_allowed":  # of a kind that has no such resource, whatever the method
        headers.setdefault("allow", "")
    if error.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    if error.loc and "errors" not in details:
        details["errors"] = [{"loc": list(error.loc), "msg": str(error), "type": error.code}]
    return problem(
        status_of(error),
        error.code,
        str(error),
        request_id=request_id,
        headers=headers,
        hint=error.hint or HINTS.get(error.code),
        **details,
    )


def install(app: FastAPI) -> None:
    """Make every error of the app a problem document."""
    for kind, handler in _handlers().items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, _on_unexpected)


async def answer_of(request: Request, error: Exception) -> Response:
    """Return the problem document of an error, or raise one that nobody foresaw."""
    for kind, handler in _handlers().items():
        if isinstance(error, kind):
            return await handler(request, error)
    raise error


def _handlers() -> dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]]:
    return {
        fbx.FbxError: _on_fbx,
        HTTPException: _on_http,
        RequestValidationError: _on_validation,
        ClientDisconnect: _on_disconnect,
        OperationalError: _on_database,
        InterfaceError: _on_database,
        PoolTimeoutError: _on_database,
        OSError: _on_os,
    }


def request_id_of(request: Request) -> str | None:
    """Return the name of this request in logs and problems."""
    return request.scope.get("state", {}).get("request_id")


async def _on_fbx(request: Request, error: fbx.FbxError) -> Response:
    if status_of(error) >= 500 and not isinstance(error, fbx.UnavailableError):
        logger.error("%s: %s", error.code, error)
    return _shown(request, problem_of(error, request_id_of(request)))


async def _on_http(request: Request, error: HTTPException) -> Response:
    code = CODE_OF_STATUS.get(
        error.status_code, HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    )
    path, headers = request.url.path, error.headers
    if error.status_code == 405:  # the router names the methods of the first route that has the path
        headers = {"Allow": ", ".join(_methods_of(request))}
    detail = {
        404: f"No resource at {path!r:.200}.",
        405: f"`method` must be one of {(headers or {}).get('Allow')}, got {request.method!r:.20}.",
        413: "`body` must be smaller than the service's limit.",
    }.get(error.status_code, str(error.detail))
    found = problem(error.status_code, code, detail, request_id=request_id_of(request), headers=headers)
    return _shown(request, found)


def _methods_of(request: Request) -> list[str]:
    """Return the methods that are served at a request's path."""
    routes = request.app.router.routes
    tried = [(method, {**request.scope, "method": method}) for method in METHODS]
    return [method for method, scope in tried if any(r.matches(scope)[0] is Match.FULL for r in routes)]


async def _on_validation(request: Request, error: RequestValidationError) -> Response:
    faults = [_fault(entry) for entry in error.errors()]
    unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
    code = "not_supported" if unknown else "invalid_argument"
    detail = (unknown or faults)[0]["msg"]
    found = problem(422, code, detail, request_id=request_id_of(request), errors=faults)
    return _shown(request, found)


def _fault(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return field, rule and value of one of pydantic's errors."""
    loc = [part for part in entry["loc"][1:] or entry["loc"] if not _is_choice(part)]
    name = ".".join(str(part) for part in loc)
    if entry["type"] == "extra_forbidden":
        msg = f"`{name}` must be left out: it is not served."
    elif loc == ["body"] and entry["type"] in ("model_attributes_type", "dict_type"):
        given = f"{entry.get('input')!r:.40}"
        msg = f"`body` must be a JSON object, got {given}."
    elif entry["type"] == "missing":
        msg = f"`{name}` must be given."
    else:
        msg = f"`{name}` must {rule_of(entry['msg'])}, got {entry.get('input')!r:.80}."
    return {"loc": loc, "msg": msg, "type": entry["type"]}


def _is_choice(part: str | int) -> bool:
    """Whether a part of a place names one of several types, and no field."""
    return isinstance(part, str) and (part == "int" or part.startswith(("literal[", "dict[")))


def rule_of(message: str) -> str:
    """Return what follows `must` in one of pydantic's messages: `Input should be …, unable to …`."""
    subject, should, rule = message.partition(" should ")
    rule = rule if should else f"be {subject.removeprefix('Value error, ')}"
    return rule.split(", unable to ")[0].split(" after validation")[0]


async def _on_disconnect(request: Request, error: ClientDisconnect) -> Response:  # noqa: ARG001
    return problem(
        400, "incomplete_body", "`body` must arrive whole, got a connection that ended before.",
        request_id=request_id_of(request),
    )  # fmt: skip


async def _on_database(request: Request, error: Exception) -> Response:
    logger.error("the database does not answer: %s", error)
    down = fbx.UnavailableError(
        "The database must answer for lists, and does not. What lies in files is still served.",
        code="database_down",
        retry_after_s=5,
    )
    return problem_of(down, request_id_of(request))


async def _on_os(request: Request, error: OSError) -> Response:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = fbx.DiskFullError("The disk must have room, got none. Nothing was added. Free some space.")
        return problem_of(full, request_id_of(request))
    raise error


async def _on_unexpected(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return _shown(request, unexpected(request))


def unexpected(request: Request) -> Response:
    """Return the problem document of an error that nobody foresaw."""
    detail = "Something went wrong on our side; the log has it."
    return problem(500, "internal", detail, request_id=request_id_of(request))


def _shown(request: Request, response: Response) -> Response:
    """Let the pages show a problem as a page to somebody who looks with a browser."""
    page = getattr(request.app.state, "error_page", None)
    wants_html = request.headers.get("accept", "").startswith("text/html")
    if page is None or not wants_html or request.url.path.startswith("/api/"):
        return response
    return page(request, orjson.loads(response.body))
