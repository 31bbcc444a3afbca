"""The mirror in SQL: stored columns for lists and search; losing it loses nothing."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Select, delete, func, literal, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.services.folders import Facts, Place, iso, row_of
from app.tables import Buffer, Tag, Vault, Version
from fbxcore.errors import InvalidArgumentError

SORTS = ("name", "-name", "length", "-length", "updated_at", "-updated_at")


@dataclass(frozen=True)
class Listed:
    """One page of a list."""

    items: list[dict[str, Any]]
    next: str | None
    total: int


async def save_vaults(database: Database, found: Sequence[tuple[Place, Facts]]) -> None:
    """Write the columns, versions and tags of some vaults."""
    async with database.write() as session:
        for place, facts in found:
            await session.merge(Vault(**row_of(place, facts)))
            await session.flush()
            await _save_versions(session, place, facts)


async def save_lengths(database: Database, lengths: Mapping[tuple[str, str], int]) -> None:
    """Write the acknowledged lengths of vaults that are being written."""
    async with database.write() as session:
        for (name, uid), length in lengths.items():
            where = (Vault.vault_name == name, Vault.vault_uid == uid, Vault.length != length)
            await session.execute(update(Vault).where(*where).values(length=length))


async def keep_vaults(database: Database, keys: Iterable[tuple[str, str]]) -> int:
    """Forget all vaults but these; return how many went."""
    kept = set(keys)
    async with database.write() as session:
        known = (await session.execute(select(Vault.vault_name, Vault.vault_uid))).all()
        gone = [tuple(key) for key in known if tuple(key) not in kept]
        for name, uid in gone:
            await session.execute(delete(Vault).where(Vault.vault_name == name, Vault.vault_uid == uid))
    return len(gone)


async def forget_vault(database: Database, vault_name: str, vault_uid: str) -> None:
    """Forget one vault."""
    where = (Vault.vault_name == vault_name, Vault.vault_uid == vault_uid)
    async with database.write() as session:
        await session.execute(delete(Vault).where(*where))


async def fingerprints(database: Database) -> dict[tuple[str, str], str]:
    """Return the fingerprint under which each vault was last written."""
    async with database.session() as session:
        rows = (await session.execute(select(Vault.vault_name, Vault.vault_uid, Vault.fingerprint))).all()
    return {(name, uid): fingerprint for name, uid, fingerprint in rows}


async def version_numbers(database: Database, vault_name: str, vault_uid: str) -> set[int]:
    """Return the numbers of a vault's versions as last written."""
    where = (Version.vault_name == vault_name, Version.vault_uid == vault_uid)
    async with database.session() as session:
        return set((await session.scalars(select(Version.number).where(*where))).all())


async def list_vaults(
    database: Database, *, query: str | None, sort: str, limit: int, next: str | None
) -> Listed:
    """Return one page of the vaults whose name or tag holds the query."""
    where = _matches(query)
    key, descending = _sort_key(sort)
    statement = select(Vault).where(*where).limit(limit + 1)
    if next is not None:
        kinds = [column.type.python_type for column in key]
        place = tuple_(*(literal(value) for value in read_cursor(next, kinds)))
        statement = statement.where(tuple_(*key) < place if descending else tuple_(*key) > place)
    statement = _ordered(statement, key, descending)
    async with database.session() as session:
        total = await session.scalar(select(func.count()).select_from(Vault).where(*where))
        rows = (await session.scalars(statement)).all()
    items = [_columns(row) for row in rows[:limit]]
    following = None
    if len(rows) > limit:
        last = items[-1]
        following = write_cursor([last[column.key] for column in key])
    return Listed(items, following, total or 0)


async def save_buffers(
    database: Database, rows: Sequence[Mapping[str, Any]], *, others: Mapping[str, str]
) -> None:
    """Write the columns of open buffers, the state of others, and forget those that are no more."""
    async with database.write() as session:
        names = [*(row["name"] for row in rows), *others]
        await session.execute(delete(Buffer).where(Buffer.name.not_in(names)))
        for row in rows:
            await session.merge(Buffer(**row))
        for name, state in others.items():
            await session.execute(update(Buffer).where(Buffer.name == name).values(state=state))


async def _save_versions(session: AsyncSession, place: Place, facts: Facts) -> None:
    """Versions never change, so only those that came or went are written; tags are few."""
    own = {"vault_name": place.vault_name, "vault_uid": place.vault_uid}
    of_vault = (Version.vault_name == place.vault_name, Version.vault_uid == place.vault_uid)
    stored = set((await session.scalars(select(Version.number).where(*of_vault))).all())
    numbers = {version.number for version in facts.versions}
    if stored - numbers:
        await session.execute(delete(Version).where(*of_vault, Version.number.in_(stored - numbers)))
    session.add_all(
        Version(
            **own,
            number=version.number,
            generation=version.generation,
            length=version.length,
            digest=version.digest,
            message=version.message.replace("\0", ""),  # PostgreSQL has no null characters
            created_at=version.created_at,
        )
        for version in facts.versions
        if version.number not in stored
    )
    await session.execute(
        delete(Tag).where(Tag.vault_name == place.vault_name, Tag.vault_uid == place.vault_uid)
    )
    session.add_all(
        Tag(**own, tag=name, version=tag.version, protected=tag.protected) for name, tag in facts.tags.items()
    )


def _matches(query: str | None) -> list[ColumnElement[bool]]:
    if not query:
        return []
    text = query.lower()
    named = func.lower(Vault.vault_name + "/" + Vault.vault_uid).contains(text, autoescape=True)
    tagged = (
        select(Tag.tag)
        .where(Tag.vault_name == Vault.vault_name, Tag.vault_uid == Vault.vault_uid)
        .where(func.lower(Tag.tag).contains(text, autoescape=True))
        .exists()
    )
    return [named | tagged]


def _sort_key(sort: str) -> tuple[list[Any], bool]:
    names = [Vault.vault_name, Vault.vault_uid]
    first = {"length": [Vault.length], "updated_at": [Vault.updated_at]}.get(sort.removeprefix("-"), [])
    return [*first, *names], sort.startswith("-")


def _ordered(statement: Select, key: list[Any], descending: bool) -> Select:
    return statement.order_by(*(column.desc() if descending else column.asc() for column in key))


def _columns(row: Vault) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in Vault.__table__.columns}


def write_cursor(values: Sequence[Any]) -> str:
    """Return an opaque word for a place in a list."""
    return base64.urlsafe_b64encode(orjson.dumps(list(values))).decode().rstrip("=")


def read_cursor(text: str, kinds: Sequence[type]) -> list[Any]:
    """Return the place an opaque word means.

    Raises:
        InvalidArgumentError: if we did not write it.
    """
    try:
        values = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error):
        values = None
    if not isinstance(values, list) or [type(v) for v in values] != list(kinds) or "\0" in str(values):
        raise InvalidArgumentError(
            f"`next` must be the one of a former answer, got {text!r:.80}.", loc=("query", "next")
        )
    return values


def buffer_row(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored columns of a buffer."""
    return {
        "name": described["name"],
        "kind": described["kind"],
        "state": "open",
        "config": described["config"],
        "persist_to": described["persist_to"],
        "size": described["size"],
        "added": described["added"],
        "sampled": described["sampled"],
        "created_at": described["created_at"],
        "updated_at": iso(time.time()),
    }
