"""The service as one ASGI app: `create_app(settings)`; `flashdeck serve` runs it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from fastapi import APIRouter, FastAPI
from starlette.routing import Route

from app import errors
from app.lifespan import lifespan
from app.paths import STATIC
from app.routes import buffers, experience, health, login, not_served, openapi, scan, slices, vaults, versions
from app.security import Guard
from app.settings import Settings
from app.templating import StaticAssets

PLAIN_ROUTES = [  # tried first: they carry arrays
    *experience.ROUTES,
    Route("/api/v1/vaults/{vault_name}/{vault_uid}/experience", vaults.append_experience, methods=["POST"]),
    *slices.ROUTES,
]
ROUTERS = (
    buffers.router,
    vaults.router,
    versions.router,
    scan.router,
    health.router,
    login.router,
    not_served.router,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the service; nothing is opened before it starts, and nothing global is set."""
    settings = settings or Settings()
    settings.check()
    app = FastAPI(
        title="Flashdeck",
        version=_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        root_path=settings.root_path,
    )
    app.state.settings = settings
    app.router.routes[:0] = PLAIN_ROUTES
    for router in (*ROUTERS, *_page_routers()):
        app.include_router(router)
    app.mount("/static", StaticAssets(directory=STATIC), name="static")
    app.add_middleware(Guard, settings=settings)
    errors.install(app)
    openapi.install(app)
    return app


def _page_routers() -> list[APIRouter]:
    from importlib import import_module

    names = [name for name in ("events", "pages") if find_spec(f"app.routes.{name}")]
    return [import_module(f"app.routes.{name}").router for name in names]


def _version() -> str:
    try:
        return version("flashdeck")
    except PackageNotFoundError:
        return "0"
