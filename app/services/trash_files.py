"""The trash on disk: directories `vault-<time>` with `record.json`, the vault, and what its catalog held.

The vault is moved by one rename, so a crash leaves it here or there, never half; what was to be moved
beside it is moved at the next start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from app.services.folders import Facts, Place, catalog_of
from fbxcore.errors import NotFoundError
from fbxcore.live.durable.files import replace_file
from fbxcore.vault.faults import disk_told
from fbxcore.vault.files import disk_bytes, lock_directory, make_parents, sync_directory

RECORD = "record.json"
_DAY_S = 86_400
_LEFT_S = 3600


@dataclass(frozen=True)
class Trashed:
    """A vault in the trash."""

    id: str
    vault_name: str
    vault_uid: str
    rows: int
    length: int
    versions: int
    disk_bytes: int
    deleted_at: float

    @property
    def key(self) -> str:
        """Its two names in one."""
        return f"{self.vault_name}/{self.vault_uid}"

    def ends_at(self, days: float) -> float:
        """Return the Unix time until which it can be restored."""
        return self.deleted_at + days * _DAY_S


def describe(place: Place, facts: Facts, length: int) -> Trashed:
    """Return what a vault will be in the trash."""
    now = time.time()
    return Trashed(
        f"vault-{int(now * 1e6)}", place.vault_name, place.vault_uid, facts.rows, length,
        len(facts.versions), disk_bytes(place.path), now,
    )  # fmt: skip


def put(data: Path, place: Place, described: Trashed) -> Trashed:
    """Move a vault while holding the lock that its writers hold."""
    here = data / "trash" / described.id
    lock = lock_directory(place.path)
    try:
        with disk_told(place.key):
            here.mkdir()
            replace_file(here / RECORD, msgspec.json.encode(described))
            os.rename(place.path, here / "vault")
            sync_directory(place.path.parent)
            sync_directory(here)
    finally:
        os.close(lock)
    _move(place.catalog, here / "catalog")
    return described


def _move(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rename(source, target)


def list_trash(data: Path) -> list[Trashed]:
    """Return what lies in the trash, the newest first."""
    found = []
    for here in (data / "trash").glob("vault-*"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if (here / "vault").is_dir():
                found.append(msgspec.json.decode((here / RECORD).read_bytes(), type=Trashed))
    return sorted(found, key=lambda trashed: -trashed.deleted_at)


def bring_back(data: Path, trashed: Trashed, place: Place) -> None:
    """Move a vault and its catalog to a place that is free.

    Raises:
        NotFoundError: if it was brought back or given up meanwhile.
    """
    here = data / "trash" / trashed.id
    make_parents(place.path.parent)
    make_parents(place.catalog.parent)
    if (here / "catalog").is_dir():
        _move(place.catalog, here / "catalog-of-another")
        _move(here / "catalog", place.catalog)
    try:
        os.rename(here / "vault", place.path)
    except FileNotFoundError as error:
        raise NotFoundError(f"No vault {place.key!r} in the trash any more.", loc=("vault_name",)) from error
    sync_directory(place.path.parent)
    shutil.rmtree(here, ignore_errors=True)


def tidy(data: Path, days: float) -> int:
    """Finish what a crash left half moved, and delete for good what is too old; returns how many went."""
    for left in (data / "trash").glob("reclaim-*"):
        shutil.rmtree(left, ignore_errors=True)
    known = {trashed.id: trashed for trashed in list_trash(data)}
    for here in (data / "trash").glob("vault-*"):
        is_left = here.stat().st_mtime < time.time() - _LEFT_S  # and not being put there right now
        if here.name not in known and not (here / "vault").exists() and is_left:
            shutil.rmtree(here, ignore_errors=True)
    for trashed in known.values():
        catalog = catalog_of(data, trashed.vault_name, trashed.vault_uid)
        place = data.joinpath("vaults", *trashed.vault_name.split("/"), trashed.vault_uid)
        if not (data / "trash" / trashed.id / "catalog").exists() and not place.exists():
            _move(catalog, data / "trash" / trashed.id / "catalog")
    expired = [t for t in known.values() if t.ends_at(days) < time.time()]
    for trashed in expired:
        reclaim(data / "trash" / trashed.id)
    return len(expired)


def reclaim(here: Path) -> None:
    """Delete a vault in the trash; renamed first, since what is half deleted must not be restored."""
    going = here.with_name(here.name.replace("vault-", "reclaim-", 1))
    _move(here, going)
    shutil.rmtree(going, ignore_errors=True)
