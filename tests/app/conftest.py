"""Fixtures of the service's tests: one app a module, on SQLite or on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from app.db import upgrade
from tests.app.support import Api, fresh_postgres, serve


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service on SQLite with an empty data directory."""
    with serve(tmp_path_factory.mktemp("data")) as api:
        yield api


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """None for SQLite in the data directory, or a fresh PostgreSQL database at its newest migration."""
    with nullcontext() if request.param == "sqlite" else fresh_postgres() as url:
        if url is not None:
            upgrade(url)
        yield url


@pytest.fixture(scope="module")
def mirrored(database_url: str | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with an empty data directory, on each database in turn."""
    with serve(tmp_path_factory.mktemp("data"), database_url=database_url) as api:
        yield api
