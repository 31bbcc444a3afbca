"""What lies in the folders of vaults: found, looked into, and never written to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fbxcore.errors import FbxError
from fbxcore.spec import spec_to_json
from fbxcore.types import Spec
from fbxcore.vault.fork import lineage_of
from fbxcore.vault.retention import Retention, retention_of
from fbxcore.vault.rollover import continued_in
from fbxcore.vault.store import COMMIT_KEY, VaultReader, find_vaults
from fbxcore.vault.versions import History, Tag, Version, read_history

logger = logging.getLogger("flashdeck")
_EDGES = ("manifest.ocdbt", "metadata.json")


@dataclass(frozen=True)
class Place:
    """Where a vault lies."""

    vault_name: str
    vault_uid: str
    path: Path
    catalog: Path
    read_only: bool

    @property
    def key(self) -> str:
        """Its two names in one."""
        return f"{self.vault_name}/{self.vault_uid}"


@dataclass(frozen=True)
class Facts:
    """What was seen in a vault, or why nothing could be."""

    fingerprint: str
    updated_at: str
    spec: Spec = field(default_factory=dict)
    rows: int = 0
    length: int = 0
    generation: int = 0
    live_bytes: int = 0
    disk_bytes: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    versions: tuple[Version, ...] = ()
    tags: Mapping[str, Tag] = field(default_factory=dict)
    error: FbxError | None = None
    deleted: tuple[Version, ...] = ()
    lineage: Mapping[str, Any] | None = None
    retention: Retention = Retention()
    is_ours: bool = True  # whether the newest commit is one of ours
    first: int = 0  # the oldest timestep that is still there
    continued_in: str | None = None  # the uid in which it goes on, being full

    def resolve(self, ref: str | None) -> Version | None:
        """Return the version a ref names, or None for the head."""
        return History(self.versions, self.tags, self.deleted).resolve(ref)


def find_places(data: Path, foreign: Path | None) -> Iterator[Place]:
    """Yield every vault of our own folder, then of the other one; the first of a name counts."""
    seen: dict[str, Path] = {}
    roots = [(data / "vaults", False)]
    if foreign is not None and foreign.resolve() != (data / "vaults").resolve():
        roots.append((foreign, True))
    for root, read_only in roots:
        if not root.is_dir():
            continue
        for name, uid, path in find_vaults(root):
            place = Place(name, uid, path, catalog_of(data, name, uid), read_only)
            if place.key in seen:
                logger.warning("vault %r is hidden by another of its name", str(path))
            elif is_sayable(place.key):
                seen[place.key] = path
                yield place
            else:
                logger.warning("vault %r has a name that is no text: rename it", str(path))


def look_into(place: Place) -> Facts:
    """Return what a vault holds; one that cannot be read says why."""
    fingerprint = fingerprint_of(place.path)
    try:
        with VaultReader.open(place.path) as reader:
            history = read_history(reader, place.catalog)
            return Facts(
                fingerprint,
                _updated_at(place.path),
                reader.spec,
                reader.rows,
                reader.length,
                reader.generation,
                reader.live_bytes,
                reader.disk_bytes,
                dict(reader.metadata or {}),
                history.versions,
                history.tags,
                deleted=history.deleted,
                lineage=_lineage(place, reader),
                retention=retention_of(reader),
                is_ours=reader.get(COMMIT_KEY) == b"%d" % reader.generation,
                continued_in=continued_in(reader),
                first=reader.first,
            )
    except FbxError as error:
        return Facts(fingerprint, _updated_at(place.path), error=error)


def _lineage(place: Place, reader: VaultReader) -> Mapping[str, Any] | None:
    """Return where a vault comes from, by whole names where it is the next one of the same name."""
    found = lineage_of(reader)
    if found is None or "continues" not in found:
        return found
    return {**found, "vault": f"{place.vault_name}/{found['continues']}"}


def fingerprint_of(path: Path) -> str:
    """Return what changes whenever a vault does, without opening it."""
    parts = []
    for name in _EDGES:
        try:
            stat = (path / name).stat()
        except OSError:
            parts.append("-")
        else:
            parts.append(f"{stat.st_ino}.{stat.st_size}.{stat.st_mtime_ns}")
    return "|".join(parts)


def catalog_of(data: Path, vault_name: str, vault_uid: str) -> Path:
    """Return where we keep what we worked out about a vault."""
    return data.joinpath("catalog", *vault_name.split("/"), vault_uid)


def is_sayable(name: str) -> bool:
    """Say whether a name read from the disk is text that JSON and the database can hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in name


def row_of(place: Place, facts: Facts) -> dict[str, Any]:
    """Return the stored columns of a vault."""
    return {
        "vault_name": place.vault_name,
        "vault_uid": place.vault_uid,
        "path": str(place.path),
        "read_only": place.read_only,
        "state": "ok" if facts.error is None else "damaged",
        "error": None if facts.error is None else str(facts.error),
        "fingerprint": facts.fingerprint,
        "spec": spec_to_json(facts.spec),
        "rows": facts.rows,
        "length": facts.length,
        "first": facts.first,
        "generation": facts.generation,
        "live_bytes": facts.live_bytes,
        "disk_bytes": facts.disk_bytes,
        "num_versions": len(facts.versions),
        "latest_version": facts.versions[-1].number if facts.versions else None,
        "continued_in": continued_key(place, facts),
        "tags": sorted(facts.tags),
        "updated_at": facts.updated_at,
    }


def continued_key(place: Place, facts: Facts) -> str | None:
    """Return the names of the vault in which a full one goes on."""
    return None if facts.continued_in is None else f"{place.vault_name}/{facts.continued_in}"


def _updated_at(path: Path) -> str:
    try:
        seconds = (path / _EDGES[0]).stat().st_mtime
    except OSError:
        seconds = path.stat().st_mtime if path.exists() else 0.0
    return iso(seconds)


def iso(seconds: float) -> str:
    """Return a time as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
