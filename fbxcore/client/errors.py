"""The errors of a client: the tree of `fbxcore.errors` again, each with what the server said.

    ClientError (FbxError)
    ├── InvalidArgumentError       400, 406, 413, 415, 422
    │   ├── StructureError         422 `structure_mismatch`
    │   └── NotSupportedError      422 `not_supported`
    ├── RefusedError               401, 403, 421: who asks, or from where
    ├── NotFoundError              404
    │   └── ReclaimedError         410
    ├── ConflictError              409, 412, 428
    │   └── NotEnoughDataError     409 `not_enough_data`
    ├── UnavailableError           503; `details["retry_after_s"]` says when to try again
    │   └── UnreachableError       no answer at all, or not in time
    └── StorageError               500, 507

Each is also the class of the same name in `fbxcore.errors`, so one `except` serves both sides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fbxcore import errors as fbx

__all__ = [
    "ClientError",
    "ConflictError",
    "InvalidArgumentError",
    "NotEnoughDataError",
    "NotFoundError",
    "NotSupportedError",
    "ReclaimedError",
    "RefusedError",
    "StorageError",
    "StructureError",
    "UnavailableError",
    "UnreachableError",
]


class ClientError(fbx.FbxError):
    """Base of all errors of a client; `status` is None where there was no answer."""

    status: int | None = None
    request_id: str | None = None


class InvalidArgumentError(ClientError, fbx.InvalidArgumentError):
    """What was sent breaks a rule."""


class StructureError(InvalidArgumentError, fbx.StructureError):
    """Other leaves, shapes or dtypes than the spec asks for."""


class NotSupportedError(InvalidArgumentError, fbx.NotSupportedError):
    """Not served yet."""


class RefusedError(ClientError, PermissionError):
    """The token is missing or wrong, or the request came by a way that is not allowed."""


class NotFoundError(ClientError, fbx.NotFoundError):
    """No buffer, vault, version or tag of that name."""


class ReclaimedError(NotFoundError, fbx.ReclaimedError):
    """A version whose bytes were given back."""


class ConflictError(ClientError, fbx.ConflictError):
    """Refused in the present state."""


class NotEnoughDataError(ConflictError, fbx.NotEnoughDataError):
    """Too few timesteps to sample."""


class UnavailableError(ClientError, fbx.UnavailableError):
    """Refused for now."""


class UnreachableError(UnavailableError, ConnectionError):
    """Nobody answered, or not in time."""

    code = "unreachable"


class StorageError(ClientError, fbx.StorageError):
    """The server could not do it; nothing was added."""


_BY_CODE = {
    "structure_mismatch": StructureError,
    "not_supported": NotSupportedError,
    "not_enough_data": NotEnoughDataError,
}
_BY_STATUS = {
    401: RefusedError, 403: RefusedError, 421: RefusedError, 404: NotFoundError, 410: ReclaimedError,
    409: ConflictError, 412: ConflictError, 428: ConflictError, 503: UnavailableError,
}  # fmt: skip
_MEMBERS = {"type", "title", "status", "detail", "code", "request_id", "hint"}


def error_of(status: int, body: bytes, headers: Mapping[str, str]) -> ClientError:
    """Return the error that an answer of 400 and more means."""
    problem = _problem(body)
    code = str(problem.get("code", f"http_{status}"))
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = InvalidArgumentError if status < 500 else StorageError
    details = {name: value for name, value in problem.items() if name not in _MEMBERS}
    if (wait := headers.get("Retry-After", "")).isdigit():
        details.setdefault("retry_after_s", float(wait))
    message = str(problem.get("detail") or f"The server answered with status {status}.")
    error = kind(message)
    error.code, error.hint, error.loc, error.details = code, problem.get("hint"), _loc(problem), details
    error.status, error.request_id = status, problem.get("request_id")
    return error


def _problem(body: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _loc(problem: Mapping[str, Any]) -> tuple[str | int, ...]:
    faults = problem.get("errors") or [{}]
    return tuple(faults[0].get("loc", ()))
