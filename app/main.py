"""The service as one ASGI app: `create_app(settings)`; `flashdeck serve` runs it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from app import errors
from app.fallback import Fallback
from app.lifespan import lifespan
from app.paths import STATIC
from app.plain import PlainRoutes
from app.routes import (
    backups,
    buffer_pages,
    buffers,
    docs,
    events,
    experience,
    health,
    login,
    not_served,
    openapi,
    pages,
    scan,
    slices,
    snapshots,
    takes,
    trash,
    vaults,
    versions,
    writers,
)
from app.security import Guard
from app.settings import Settings
from app.templating import StaticAssets

PLAIN_ROUTES = [  # tried first: they carry arrays
    *experience.ROUTES,
    *takes.ROUTES,
    Route("/api/v1/vaults/{vault_name}/{vault_uid}/experience", vaults.append_experience, methods=["POST"]),
    *slices.ROUTES,
]
ROUTERS = (
    buffers, snapshots, writers, vaults, versions, trash, backups,
    events, scan, health, login, docs, pages, buffer_pages, not_served,
)  # fmt: skip


class Service(FastAPI):
    """FastAPI with guard, fallback, and the way to the plain routes in front of all its layers."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return the layers, the guard outermost."""
        plain = PlainRoutes(super().build_middleware_stack(), PLAIN_ROUTES)
        return Guard(Fallback(plain), self.state.settings)


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the service; nothing is opened before it starts, and nothing global is set."""
    settings = settings or Settings()
    settings.check()
    app = Service(
        title="Flashdeck",
        version=_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        strict_content_type=False,  # `StrictRoute` reads bodies, and says what they must be
        telemetry={"tracing": False, "metrics": False, "logs": False},  # it is looked up at every request
    )
    app.state.settings = settings
    app.router.routes[:0] = PLAIN_ROUTES
    for module in ROUTERS:
        app.include_router(module.router)
    app.mount("/static", StaticAssets(directory=STATIC), name="static")
    app.state.error_page, app.state.login_page = pages.error_page, pages.login_page
    errors.install(app)
    openapi.install(app)
    return app


def _version() -> str:
    try:
        return version("flashdeck")
    except PackageNotFoundError:
        return "0"
