"""Versions and tags of vaults."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app.services import vaults
from app.services.deck import Deck, VaultEntry
from app.services.mirror import Listed, read_cursor, write_cursor
from app.services.provenance import provenance_of
from fbxcore.errors import ConflictError, NotFoundError
from fbxcore.spec import spec_to_json
from fbxcore.vault import versions as records
from fbxcore.vault.versions import Version


async def create(
    deck: Deck, entry: VaultEntry, *, message: str, tags: Sequence[str], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Commit everything acknowledged and note what the vault then holds as its next version."""
    if entry.facts.error is not None:
        raise entry.facts.error
    vaults.check_json(metadata)
    for tag in tags:
        records.check_tag_name(tag)
    given: dict[str, Any] = {"message": message, "tags": tuple(tags), "metadata": dict(metadata)}
    place = entry.place
    if place.read_only:
        async with entry.lock:
            made = await asyncio.to_thread(records.create_foreign_version, place.path, place.catalog, **given)
    else:
        given["provenance"] = provenance_of(deck, entry)
        made = await vaults.with_writer(
            deck, entry, lambda writer: records.create_version(writer, place.catalog, **given)
        )
    await deck.refresh(entry, anyway=True)
    return await show(entry, made)


def list_page(entry: VaultEntry, *, limit: int, next: str | None) -> Listed:
    """Return one page of the versions, the newest first."""
    below = read_cursor(next, [int])[0] if next is not None else None
    newest_first = sorted(entry.facts.versions, key=lambda version: -version.number)
    page = [version for version in newest_first if below is None or version.number < below]
    following = write_cursor([page[limit - 1].number]) if len(page) > limit else None
    return Listed([public(entry, version) for version in page[:limit]], following, len(newest_first))


async def delete(deck: Deck, entry: VaultEntry, ref: str, *, dry_run: bool) -> dict[str, Any]:
    """Take a version's number away, or only say which it would be; its bytes go with a later sweep."""
    async with deck.name_locks[f"tags:{entry.place.key}"]:
        version, place = find(entry, ref), entry.place
        described = await show(entry, version)
        records.check_untagged(version.number, entry.facts.tags)
        if dry_run:
            return described
        if place.read_only:
            async with entry.lock:
                await asyncio.to_thread(records.delete_version, place.path, place.catalog, version.number)
        else:
            await vaults.with_writer(
                deck, entry, lambda writer: records.delete_version(writer, place.catalog, version.number)
            )
        await deck.refresh(entry, anyway=True)
    return described


def find(entry: VaultEntry, ref: str) -> Version:
    """Return the version a ref names.

    Raises:
        NotFoundError: if there is none; `head` is no version.
    """
    version = entry.facts.resolve(ref)
    if version is None:
        raise NotFoundError(
            "`ref` must name a version, got 'head', which is none yet. POST one.", loc=("ref",)
        )
    return version


def public(entry: VaultEntry, version: Version) -> dict[str, Any]:
    """Return a version as it is answered."""
    tags = sorted(name for name, tag in entry.facts.tags.items() if tag.version == version.number)
    fields = asdict(version)
    del fields["provenance"]
    return {
        **fields,
        "version": version.number,
        "rows": entry.facts.rows,
        "tags": tags,
        "spec": spec_to_json(entry.facts.spec),
    }


async def show(entry: VaultEntry, version: Version) -> dict[str, Any]:
    """Return a version as it is answered alone, with what made it."""
    found = await asyncio.to_thread(records.read_provenance, entry.place.path, version)
    return public(entry, version) | {"provenance": found}


def list_tags(entry: VaultEntry) -> list[dict[str, Any]]:
    """Return the tags by name."""
    return [
        {"tag": name, "version": tag.version, "protected": tag.protected}
        for name, tag in sorted(entry.facts.tags.items())
    ]


async def put_tag(
    deck: Deck,
    entry: VaultEntry,
    tag: str,
    *,
    ref: str,
    protected: bool,
    must_be_new: bool,
    if_match: str | None,
) -> tuple[dict[str, Any], bool]:
    """Set a tag; return it and whether it is new."""
    records.check_tag_name(tag)
    async with deck.name_locks[f"tags:{entry.place.key}"]:
        version = find(entry, ref)
        former = entry.facts.tags.get(tag)
        if must_be_new and former is not None:
            raise ConflictError(
                f"`If-None-Match: *` must meet a new tag, got {tag!r}, which is at version {former.version}.",
                code="precondition_failed",
            )
        _check_match(entry, tag, if_match)
        await _change(deck, entry, tag, version.number, protected)
    return {"tag": tag, "version": version.number, "protected": protected}, former is None


async def delete_tag(deck: Deck, entry: VaultEntry, tag: str, *, if_match: str | None) -> None:
    """Take a tag away; its version stays."""
    async with deck.name_locks[f"tags:{entry.place.key}"]:
        if tag not in entry.facts.tags:
            known = ", ".join(repr(name) for name in sorted(entry.facts.tags)) or "none"
            raise NotFoundError(f"No tag named {tag[:200]!r}. Existing tags: {known}.", loc=("tag",))
        _check_match(entry, tag, if_match)
        await _change(deck, entry, tag, None, False)


def _check_match(entry: VaultEntry, tag: str, if_match: str | None) -> None:
    former = entry.facts.tags.get(tag)
    present = None if former is None else tag_etag(former.version)
    if if_match is None:
        if former is not None and former.protected:
            raise ConflictError(
                f"Tag {tag!r} is protected: `If-Match` must be {present}, got none.",
                code="precondition_required",
            )
    elif former is None or (if_match.strip() != "*" and present not in map(str.strip, if_match.split(","))):
        raise ConflictError(
            f"`If-Match` must be {present or 'left out for a new tag'}, got {if_match!r:.80}.",
            code="precondition_failed",
        )


async def _change(deck: Deck, entry: VaultEntry, tag: str, version: int | None, protected: bool) -> None:
    """Write one tag, or take it away where `version` is None."""
    place = entry.place

    def change(where: Any) -> None:
        if version is None:
            records.delete_tag(where, place.catalog, tag)
        else:
            records.set_tag(where, place.catalog, tag, version, protected=protected)

    if place.read_only:
        async with entry.lock:
            await asyncio.to_thread(change, place.path)
    else:
        await vaults.with_writer(deck, entry, change)
    await deck.refresh(entry, anyway=True)


def tag_etag(version: int) -> str:
    """Return the validator of a tag: where it points."""
    return f'"v{version}"'
