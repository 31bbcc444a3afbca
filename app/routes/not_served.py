"""Resources of the contract that are known and not served yet: 422, never a silent 404."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from fbxcore.errors import NotSupportedError

router = APIRouter(prefix="/api/v1", include_in_schema=False)
_VAULT = "/vaults/{vault_name}/{vault_uid}"
RESOURCES: tuple[tuple[str, str], ...] = (
    ("GET", _VAULT + "/episodes"),
    ("GET", _VAULT + "/episodes/{index}"),
    ("GET", _VAULT + "/stats"),
    ("GET", _VAULT + "/diff"),
    ("POST", _VAULT + "/edits"),
    ("POST", "/uploads"),
    ("PATCH", "/uploads/{upload}"),
    ("POST", "/imports"),
    ("POST", "/exports"),
    ("GET", "/exports/{export}/files/{path:path}"),
    ("GET", "/jobs/{job}"),
    ("DELETE", "/jobs/{job}"),
)


async def refuse(request: Request) -> None:
    """Say that this comes later."""
    raise NotSupportedError(
        f"`path` must be a resource served today, got {request.method} {request.url.path!r:.200}.",
        loc=("path",),
        hint="GET /api/v1/capabilities says what is served.",
    )


for _method, _path in RESOURCES:
    router.add_api_route(_path, refuse, methods=[_method], response_model=None)
