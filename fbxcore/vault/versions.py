"""Versions and tags of a vault: which generations have a number, and how they are called.

A version is a generation of the store with a number (1, 2, …), a length and a digest. The records lie
under keys of our own inside the vault, so they travel with its directory: pages of 64 versions, and one
key for the tags. Into a vault that is read only nothing is written; its records lie in the catalog, in
`versions.json`, and are read together with those the vault may have.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fbxcore.errors import ConflictError, DamagedError, NotFoundError
from fbxcore.vault.digest import digest
from fbxcore.vault.files import label_of, locked_directory, write_atomic
from fbxcore.vault.keys import json_value
from fbxcore.vault.refs import History, Tag, Version, check_tag_name, few, resolve_ref
from fbxcore.vault.store import VaultReader, VaultWriter

__all__ = [
    "History",
    "Tag",
    "Version",
    "check_tag_name",
    "check_untagged",
    "create_foreign_version",
    "create_version",
    "delete_tag",
    "delete_version",
    "delete_versions",
    "deleted_since",
    "digest",
    "list_tags",
    "list_versions",
    "read_history",
    "read_provenance",
    "resolve_ref",
    "set_tag",
]

VERSIONS_KEY = "_flashdeck/versions/"
TAGS_KEY = "_flashdeck/tags"
PROVENANCE_KEY = "_flashdeck/provenance/"
PAGE = 64
_FILE = "versions.json"

Records = dict[int, dict[str, Any]]
"""Records by number, as JSON; a deleted one says so, that its number is not given again."""


def create_version(
    writer: VaultWriter,
    catalog: Path,
    *,
    message: str = "",
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Version:
    """Give what the vault holds now the next number; record and tags are one atomic commit.

    The digest is computed without the writer's lock: appending goes on meanwhile.

    Args:
        provenance: what made the data: buffer, writers, packages.

    Raises:
        ConflictError: if a tag is protected and names another version (code `tag_protected`).
    """
    keys = {}
    if provenance:
        name = hashlib.sha256(_json(provenance)).hexdigest()[:16]
        keys[PROVENANCE_KEY + name] = _json(provenance)
    with writer.pinned() as generation:
        with VaultReader.open(writer.path, generation=generation) as reader:
            facts = _facts(reader, catalog, message, metadata)
        if provenance:
            facts["provenance"] = name
        return _record(writer, catalog, facts, tags, keys)


def read_provenance(path: Path, version: Version) -> dict[str, Any] | None:
    """Return what a version was made with, or None where nobody noted it."""
    if not version.provenance:
        return None
    with VaultReader.open(path) as reader:
        return json_value(reader, PROVENANCE_KEY + version.provenance)


def create_foreign_version(
    path: Path,
    catalog: Path,
    *,
    message: str = "",
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Version:
    """Give the present state of a vault that is not ours the next number; only the catalog is written."""
    with VaultReader.open(path) as reader:
        facts = _facts(reader, catalog, message, metadata)
        inside, inside_tags = _vault_records(reader), _vault_tags(reader)

    def change(records: Records, overlay: dict[str, Any]) -> Version:
        version = Version(_next_number(inside, records), **facts)
        named = _tagged(_merged_tags(inside_tags, overlay), tags, version.number)
        records[version.number] = asdict(version)
        overlay.update({tag: named[tag] for tag in tags})
        return version

    return _update(catalog, change)


def read_history(vault: VaultReader, catalog: Path | None = None) -> History:
    """Return the versions, tags and deleted versions of a vault."""
    foreign, overlay = _load(catalog)
    records = foreign | _vault_records(vault)
    tags = _merged_tags(_vault_tags(vault), overlay)
    versions, deleted = [], []
    for number in sorted(records):
        (deleted if records[number].get("deleted") else versions).append(_version(records[number]))
    by_name = {name: Tag(tags[name]["version"], tags[name]["protected"]) for name in sorted(tags)}
    return History(tuple(versions), by_name, tuple(deleted))


def list_versions(path: Path, catalog: Path | None = None) -> list[Version]:
    """Return the versions of a vault, the oldest first, without the deleted ones."""
    with VaultReader.open(path) as reader:
        return list(read_history(reader, catalog).versions)


def list_tags(path: Path, catalog: Path | None = None) -> dict[str, Tag]:
    """Return the tags of a vault, by name."""
    with VaultReader.open(path) as reader:
        return dict(read_history(reader, catalog).tags)


def deleted_since(path: Path, catalog: Path | None, seconds: float) -> set[int]:
    """Return the generations of versions that were deleted after a Unix time."""
    after = _iso(seconds)
    with VaultReader.open(path) as reader:
        records = _load(catalog)[0] | _vault_records(reader)
    return {record["generation"] for record in records.values() if record.get("deleted_at", "") >= after}


def check_untagged(number: int, tags: Mapping[str, Tag]) -> None:
    """Refuse a version that a tag names."""
    naming = {name: tag for name, tag in tags.items() if tag.version == number}
    if naming:
        is_protected = any(tag.protected for tag in naming.values())
        raise ConflictError(
            f"Version {number} must have no tag, got {few(naming)}. Move or delete it first.",
            code="tag_protected" if is_protected else "version_tagged",
        )


def set_tag(
    where: VaultWriter | Path, catalog: Path, tag: str, version: int, *, protected: bool = False
) -> Tag:
    """Let a tag name a version, whatever it named before.

    Args:
        where: the vault's writer, or the path of a read-only vault.

    Raises:
        NotFoundError: if there is no such version.
    """
    check_tag_name(tag)
    path = where.path if isinstance(where, VaultWriter) else where
    numbers = [known.number for known in list_versions(path, catalog)]
    if version not in numbers:
        raise NotFoundError(
            f"No version {version!r} of vault '{label_of(path)}' to tag. Versions: {few(numbers)}.",
            loc=("version",),
        )
    _change_tag(where, catalog, tag, {"version": version, "protected": protected})
    return Tag(version, protected)


def delete_tag(where: VaultWriter | Path, catalog: Path, tag: str) -> None:
    """Take a tag away; its version stays.

    Raises:
        NotFoundError: if there is no such tag.
    """
    path = where.path if isinstance(where, VaultWriter) else where
    known = list_tags(path, catalog)
    if tag not in known:
        raise NotFoundError(f"No tag named {tag!r:.130}. Existing tags: {few(known)}.", loc=("tag",))
    _change_tag(where, catalog, tag, None)


def delete_version(where: VaultWriter | Path, catalog: Path, number: int) -> None:
    """Take a version's number away; its bytes go with a later sweep.

    Raises:
        NotFoundError: if there is no such version.
        ConflictError: if a tag names it (code `version_tagged`, or `tag_protected`).
    """
    delete_versions(where, catalog, [number])


def delete_versions(where: VaultWriter | Path, catalog: Path, numbers: Sequence[int]) -> None:
    """Take the numbers of several versions away in one commit; see `delete_version`."""
    path = where.path if isinstance(where, VaultWriter) else where
    with where.lock if isinstance(where, VaultWriter) else contextlib.nullcontext():
        with VaultReader.open(path) as reader:
            tags, inside = read_history(reader, catalog).tags, _vault_records(reader)
        for number in sorted({tag.version for tag in tags.values()} & set(numbers)):
            check_untagged(number, tags)
        mine = [number for number in numbers if number in inside]
        if mine and not isinstance(where, VaultWriter):
            raise ConflictError(
                f"Version {mine[0]} is recorded in a vault that is read only. Delete it there.",
                code="read_only",
            )
        if mine:
            for number in mine:
                _mark_deleted(inside, number, path)
            one_a_page = {(number - 1) // PAGE: number for number in mine}.values()
            where.put({key: page for n in one_a_page for key, page in _page_of(inside, n).items()})
        if others := [number for number in numbers if number not in inside]:
            _update(catalog, lambda records, _: [_mark_deleted(records, n, path) for n in others])


def _record(
    writer: VaultWriter, catalog: Path, facts: dict[str, Any], tags: Sequence[str], keys: dict[str, bytes]
) -> Version:
    with writer.lock:
        records, foreign = _vault_records(writer), _load(catalog)
        version = Version(_next_number(records, foreign[0]), **facts)
        named = _tagged(_merged_tags(_vault_tags(writer), foreign[1]), tags, version.number)
        records[version.number] = asdict(version)
        writer.put(keys | _page_of(records, version.number) | ({TAGS_KEY: _json(named)} if tags else {}))
        if tags:
            _forget(catalog, tags)
    return version


def _facts(reader: VaultReader, catalog: Path, message: str, metadata: Mapping | None) -> dict[str, Any]:
    return {
        "generation": reader.generation,
        "length": reader.length,
        "first": reader.first,
        "digest": digest(reader, catalog),
        "created_at": _iso(time.time()),
        "message": message,
        "metadata": dict(metadata or {}),
    }


def _tagged(known: Mapping[str, Any], tags: Sequence[str], number: int) -> dict[str, Any]:
    """Return the tags with the given ones at a version, or refuse to move a protected one."""
    for tag in tags:
        check_tag_name(tag)
        if tag in known and known[tag]["protected"]:
            raise ConflictError(
                f"Tag {tag!r} is protected and must stay at version {known[tag]['version']}. Use another.",
                code="tag_protected",
            )
    return {**known, **{tag: {"version": number, "protected": False} for tag in tags}}


def _change_tag(where: VaultWriter | Path, catalog: Path, tag: str, value: dict | None) -> None:
    if not isinstance(where, VaultWriter):
        _update(catalog, lambda _, overlay: overlay.update({tag: value}))
        return
    with where.lock:
        known = {**_vault_tags(where), tag: value}
        where.put({TAGS_KEY: _json({name: found for name, found in known.items() if found is not None})})
        _forget(catalog, [tag])


def _vault_records(vault: VaultReader | VaultWriter) -> Records:
    records: Records = {}
    for key in vault.keys(VERSIONS_KEY):
        for record in json_value(vault, key):
            records[record["number"]] = record
    return records


def _vault_tags(vault: VaultReader | VaultWriter) -> dict[str, Any]:
    return json_value(vault, TAGS_KEY) or {}


def _page_of(records: Records, number: int) -> dict[str, bytes]:
    page = (number - 1) // PAGE
    numbers = [n for n in sorted(records) if (n - 1) // PAGE == page]
    return {f"{VERSIONS_KEY}{page:06}": _json([records[n] for n in numbers])}


def _version(record: Mapping[str, Any]) -> Version:
    return Version(**{name: record[name] for name in Version.__dataclass_fields__ if name in record})


def _mark_deleted(records: Records, number: int, path: Path) -> None:
    if number not in records or records[number].get("deleted"):
        raise NotFoundError(f"No version {number!r} of vault '{label_of(path)}'.", loc=("ref",))
    records[number] = {**records[number], "deleted": True, "deleted_at": _iso(time.time())}


def _next_number(*known: Records) -> int:
    return max([0, *(number for records in known for number in records)]) + 1


def _merged_tags(inside: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Tags of the catalog go before those of the vault; an empty one hides."""
    return {name: found for name, found in {**inside, **overlay}.items() if found is not None}


def _load(catalog: Path | None) -> tuple[Records, dict[str, Any]]:
    """Return the records and tags of the catalog."""
    try:
        content = json.loads((catalog / _FILE).read_bytes()) if catalog is not None else {}
        return {r["number"]: r for r in content.get("versions", [])}, dict(content.get("tags", {}))
    except (FileNotFoundError, NotADirectoryError):
        return {}, {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(
            f"File `{_FILE}` in the catalog of '{label_of(catalog)}' must be what was written, "
            f"got {error!r:.80}.",
            file=_FILE,
        ) from error


def _update(catalog: Path, change: Callable[[Records, dict[str, Any]], Any]) -> Any:
    """Change the catalog's records under its lock and replace the file."""
    catalog.mkdir(parents=True, exist_ok=True)
    with locked_directory(catalog):
        records, overlay = _load(catalog)
        result = change(records, overlay)
        content = {"versions": [records[number] for number in sorted(records)], "tags": overlay}
        write_atomic(catalog / _FILE, _json(content))
    return result


def _forget(catalog: Path, tags: Sequence[str]) -> None:
    """Drop the catalog's say on tags that the vault itself now holds."""
    if any(tag in _load(catalog)[1] for tag in tags):
        _update(catalog, lambda _, overlay: [overlay.pop(tag, None) for tag in tags])


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
