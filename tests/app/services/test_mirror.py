"""The mirror with thousands of rows, and its cursors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.db import Database
from app.services import mirror
from app.services.folders import Facts, Place
from fbxcore.errors import InvalidArgumentError
from fbxcore.types import LeafSpec
from fbxcore.vault.versions import Tag, Version

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(database_url: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    """A database with its tables, without rows."""
    database = Database(database_url or f"sqlite+aiosqlite:///{tmp_path / 'mirror.db'}")
    await database.open()
    await mirror.keep_vaults(database, [])
    yield database
    await database.close()


def vault(number: int, versions: int = 0, **given) -> tuple[Place, Facts]:
    """Return a vault that is nowhere on a disk."""
    made = tuple(Version(n, n, n, f"sha256-{n:064x}", "2026-01-01T00:00:00Z") for n in range(1, versions + 1))
    tags = {f"tag{n}": Tag(n) for n in range(1, min(versions, 3) + 1)}
    place = Place(f"vault{number:04}", "run1", Path("/nowhere"), Path("/nowhere"), False)
    facts = {
        "spec": {"x": LeafSpec((), "int32")},
        "length": number % 7,
        "versions": made,
        "tags": tags,
    } | given
    return place, Facts("print", "2026-01-01T00:00:00Z", **facts)


async def test_ten_thousand_versions_are_written_once(database: Database) -> None:
    """Writing them again with one more adds one; taking all but one away leaves one."""
    for count in (10_000, 10_001, 1):
        await mirror.save_vaults(database, [vault(1, count)])
        async with database.session() as session:
            rows = (
                await session.execute(mirror.select(mirror.func.count()).select_from(mirror.Version))
            ).scalar()
        assert rows == count


async def test_pages_of_equal_lengths_hold_each_once(database: Database) -> None:
    """200 vaults with seven lengths, 13 at a time, both ways: every one once, sorted."""
    await mirror.save_vaults(database, [vault(n) for n in range(200)])
    for sort in ("length", "-length"):
        seen, cursor = [], None
        while True:
            page = await mirror.list_vaults(database, query=None, sort=sort, limit=13, next=cursor)
            seen += [(item["length"], item["vault_name"]) for item in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == page.total == 200
        assert seen == sorted(seen, reverse=sort == "-length")


async def test_a_vault_takes_its_versions_and_tags_with_it(database: Database) -> None:
    """Forgetting a vault leaves no row of it in any table."""
    await mirror.save_vaults(database, [vault(1, 3), vault(2, 3)])

    assert await mirror.keep_vaults(database, [("vault0002", "run1")]) == 1
    async with database.session() as session:
        for table in (mirror.Version, mirror.Tag):
            names = (await session.execute(mirror.select(table.vault_name).distinct())).scalars().all()
            assert names == ["vault0002"]


async def test_cursors_are_read_as_written() -> None:
    """What was written comes back; anything else is refused."""
    assert mirror.read_cursor(mirror.write_cursor(["ü", 3]), [str, int]) == ["ü", 3]
    for text in ("", "x", "W10", mirror.write_cursor([1]), mirror.write_cursor(["a", "b"]), "ÿ", "a" * 5000):
        with pytest.raises(InvalidArgumentError, match="`next`"):
            mirror.read_cursor(text, [str, int])
