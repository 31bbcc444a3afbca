"""The database: an async engine for the service, Alembic for its tables."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from app.paths import MIGRATIONS
from fbxcore.errors import ConflictError, InvalidArgumentError, UnavailableError

logger = logging.getLogger("flashdeck")
_alembic = threading.Lock()  # Alembic keeps its context in module globals


class Database:
    """The engine and its sessions; one per service."""

    def __init__(self, url: str):
        self.url = checked_url(url)
        self.engine = make_engine(self.url)
        self._writing = asyncio.Lock()
        self.session: async_sessionmaker[AsyncSession] = async_sessionmaker(
            self.engine, expire_on_commit=False
        )

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """Begin a transaction that writes, one at a time.

        SQLite refuses a transaction that read before it writes if another wrote in between, however long
        it may wait.
        """
        async with self._writing, self.session.begin() as session:
            yield session

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    async def open(self) -> None:
        """Bring the tables up to date (SQLite), or refuse tables that are not (PostgreSQL)."""
        if self.dialect == "sqlite":
            await asyncio.to_thread(_upgrade_or_begin_anew, self.url)
            return
        if (behind := await asyncio.to_thread(find_revision, self.url)) != head():
            raise ConflictError(
                f"The database must be at migration {head()}, got {behind or 'an empty one'}. "
                "Run `flashdeck db upgrade`.",
                code="database_behind",
            )

    async def is_up(self) -> bool:
        """Say whether the database answers."""
        try:
            async with self.engine.connect() as connection:
                await connection.execute(text("select 1"))
        except SQLAlchemyError:
            return False
        return True

    async def close(self) -> None:
        """Give all connections back."""
        await self.engine.dispose()


def make_engine(url: str) -> AsyncEngine:
    """Return an async engine; SQLite in WAL mode, with foreign keys on and patience for locks."""
    if not url.startswith("sqlite"):
        return create_async_engine(url, pool_pre_ping=True)
    engine = create_async_engine(url)
    event.listen(engine.sync_engine, "connect", _set_pragmas)
    return engine


def upgrade(url: str, revision: str = "head") -> None:
    """Run the migrations up to a revision."""
    _run(command.upgrade, url, revision)


def downgrade(url: str, revision: str) -> None:
    """Run the migrations down to a revision."""
    _run(command.downgrade, url, revision)


def head() -> str | None:
    """Return the newest migration's name."""
    return ScriptDirectory.from_config(config_of("")).get_current_head()


def find_revision(url: str) -> str | None:
    """Return the migration a database is at."""
    engine = create_engine(sync_url(url), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except OperationalError as error:
        raise UnavailableError(
            f"The database must answer at {make_url(url).render_as_string()!r}, "
            f"got {str(error.orig)[:200]!r}.",
            code="database_down",
        ) from error
    finally:
        engine.dispose()


def config_of(url: str) -> Config:
    """Return Alembic's configuration without a file, so that it works from a wheel."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = sync_url(url) if url else ""
    return config


def sync_url(url: str) -> str:
    """Return the same address for a plain engine, as Alembic wants it."""
    return checked_url(url).replace("sqlite+aiosqlite", "sqlite", 1)


def checked_url(url: str) -> str:
    """Return the address with the drivers we have, or refuse another kind of database."""
    name, _, rest = url.partition("://")
    drivers = {
        "sqlite": "sqlite+aiosqlite",
        "sqlite+aiosqlite": "sqlite+aiosqlite",
        "postgres": "postgresql+psycopg",
        "postgresql": "postgresql+psycopg",
        "postgresql+psycopg": "postgresql+psycopg",
    }
    if name not in drivers or not rest:
        raise InvalidArgumentError(
            "`database_url` must begin with `sqlite+aiosqlite://` or `postgresql+psycopg://`, "
            f"got {name!r:.40}.",
            loc=("database_url",),
        )
    return f"{drivers[name]}://{rest}"


def _run(step, url: str, revision: str) -> None:
    try:
        with _alembic:
            step(config_of(url), revision)
    except NoSuchModuleError as error:
        raise InvalidArgumentError(
            f"`database_url` must name a driver that is installed: {error}."
        ) from error


def _upgrade_or_begin_anew(url: str) -> None:
    """The database is a mirror: one that cannot be read is set aside, not an outage."""
    try:
        upgrade(url)
    except DatabaseError as error:
        path = Path(make_url(url).database or "")
        if isinstance(error, OperationalError) or not path.is_file():
            raise
        logger.warning("%s cannot be read (%s): it is set aside and built anew", path.name, error.orig)
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            if file.exists():
                os.replace(file, f"{file}.damaged")
        upgrade(url)


def _set_pragmas(connection, record) -> None:  # noqa: ARG001
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=10000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
