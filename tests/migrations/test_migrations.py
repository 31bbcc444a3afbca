"""The migrations, on SQLite and on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect
from sqlalchemy.pool import NullPool

from app import db
from app.paths import MIGRATIONS
from app.tables import Base
from tests.app.support import fresh_postgres


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'flashdeck.db'}"
    else:
        with fresh_postgres() as url:
            yield url


def differences(url: str) -> list:
    """Return how a database differs from `app.tables`."""
    engine = create_engine(db.sync_url(url), poolclass=NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, Base.metadata)


def tables(url: str) -> set[str]:
    """Return the tables of a database."""
    engine = create_engine(db.sync_url(url), poolclass=NullPool)
    with engine.connect() as connection:
        return set(inspect(connection).get_table_names())


def test_up_down_up_arrives_at_the_tables_of_the_code(url: str) -> None:
    """After up, down and up again the database has the tables, columns and indexes that `app.tables` says."""
    db.upgrade(url)
    assert differences(url) == []
    assert db.find_revision(url) == db.head()

    db.downgrade(url, "base")
    assert tables(url) == {"alembic_version"}
    assert db.find_revision(url) is None

    db.upgrade(url)
    assert differences(url) == []


def test_each_migration_can_be_undone_alone(url: str) -> None:
    """Down by one and up again, from the newest to the first, never fails."""
    db.upgrade(url)
    revisions = [
        script.revision for script in ScriptDirectory.from_config(db.config_of(url)).walk_revisions()
    ]
    for _ in revisions:
        db.downgrade(url, "-1")
    assert db.find_revision(url) is None

    db.upgrade(url)
    assert db.find_revision(url) == revisions[0]


def test_every_migration_is_in_the_readme() -> None:
    """Each file of migrations/versions has its line, so that two written at once meet in a merge."""
    readme = (MIGRATIONS / "README.md").read_text()

    for path in (MIGRATIONS / "versions").glob("*.py"):
        assert f"`{path.name}`" in readme


@pytest.mark.postgres
def test_a_database_that_is_behind_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    """The service refuses a PostgreSQL database without tables, and says what to run."""
    from app.main import create_app
    from fbxcore.errors import ConflictError
    from tests.app.support import Api, settings_of

    with fresh_postgres() as url:
        app = create_app(settings_of(tmp_path / "data", database_url=url))
        with pytest.raises(ConflictError, match="Run `flashdeck db upgrade`"), Api(app):
            pass


def test_a_database_that_does_not_answer_is_said_so(tmp_path: Path) -> None:
    """An address where nobody listens is a sentence with the address, without the password."""
    from fbxcore.errors import UnavailableError

    with pytest.raises(UnavailableError, match=r"postgresql\+psycopg://me:\*\*\*@127.0.0.1:1/x") as caught:
        db.find_revision("postgresql+psycopg://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)


def test_migrations_run_by_the_alembic_command_too(tmp_path: Path) -> None:
    """`alembic -c migrations/alembic.ini upgrade head` works on the database the settings name."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'by-hand.db'}"
    command = [sys.executable, "-m", "alembic", "-c", str(MIGRATIONS / "alembic.ini"), "upgrade", "head"]
    subprocess.run(command, check=True, env={"FLASHDECK_DATABASE_URL": url, "PATH": "/usr/bin"}, timeout=60)

    assert differences(url) == []
