"""`/docs`: the API reference, drawn by the vendored Swagger UI from `/openapi.json`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from app.contexts.shell import DocsPage
from app.templating import render

router = APIRouter(include_in_schema=False)


@router.get("/docs", name="docs_page")
async def show_docs(request: Request) -> Response:
    """Show the reference."""
    href = request.scope.get("root_path", "") + (request.app.openapi_url or "/openapi.json")
    return render(request, DocsPage(title="API reference", section="docs", openapi_href=href))
