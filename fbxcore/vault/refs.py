"""Versions, tags, and the refs that name them.

A `ref` names a version: `3` or `v3`, `latest`, a tag, or `sha256-` and eight digits or more of the
digest. `head` is what the vault holds now, no version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fbxcore.errors import InvalidArgumentError, NotFoundError, ReclaimedError

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NUMBER = re.compile(r"v?([1-9][0-9]{0,9})")
_DIGEST = re.compile(r"sha256-([0-9a-f]{8,64})")
_LIKE_ANOTHER = re.compile(r"v?[0-9]+|sha256-.*|latest|head", re.IGNORECASE)


@dataclass(frozen=True)
class Version:
    """An immutable state of a vault that has a number."""

    number: int
    generation: int
    length: int
    digest: str  # "sha256-<hex>"
    created_at: str  # ISO 8601, UTC
    message: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    first: int = 0  # the oldest timestep that was still there
    provenance: str = ""  # the name of the key that says what made it; equal ones are stored once


@dataclass(frozen=True)
class Tag:
    """A name for a version; a protected one is not moved by mistake."""

    version: int
    protected: bool = False


@dataclass(frozen=True)
class History:
    """The versions of a vault, the oldest first, its tags by name, and the versions that were deleted."""

    versions: tuple[Version, ...] = ()
    tags: Mapping[str, Tag] = field(default_factory=dict)
    deleted: tuple[Version, ...] = ()

    def resolve(self, ref: str | None) -> Version | None:
        """Return the version a ref names; see `resolve_ref`."""
        return resolve_ref(ref, self.versions, self.tags, self.deleted)


def resolve_ref(
    ref: str | None,
    versions: Sequence[Version],
    tags: Mapping[str, Tag],
    deleted: Sequence[Version] = (),
) -> Version | None:
    """Return the version a ref names, or None for the head.

    Raises:
        NotFoundError: if nothing is called so; `ReclaimedError` if it was deleted.
        InvalidArgumentError: if a digest's first digits fit several versions.
    """
    if ref is None or ref == "head":
        return None
    by_number = {version.number: version for version in versions}
    if ref == "latest":
        if by_number:
            return by_number[max(by_number)]
        raise NotFoundError("`ref` must name a version, got 'latest', but there is none yet.", loc=("ref",))
    if found := _NUMBER.fullmatch(ref):
        return _by_number(int(found[1]), by_number, deleted)
    if found := _DIGEST.fullmatch(ref):
        return _by_digest(found[0], versions, deleted)
    if ref in tags:
        return _by_number(tags[ref].version, by_number, deleted)
    raise NotFoundError(
        f"No version or tag named {ref!r:.130}. Existing tags: {few(tags)}; versions: {few(by_number)}.",
        loc=("ref",),
    )


def check_tag_name(tag: str) -> str:
    """Return a tag, or refuse a name that is none or looks like another kind of ref."""
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise InvalidArgumentError(
            f"`tag` must be letters, digits, `.`, `_`, `-`, at most 128, got {tag!r:.150}.", loc=("tag",)
        )
    if _LIKE_ANOTHER.fullmatch(tag):
        raise InvalidArgumentError(
            f"`tag` must not look like a number, a digest, `latest` or `head`, got {tag!r}.", loc=("tag",)
        )
    return tag


def _by_number(number: int, by_number: Mapping[int, Version], deleted: Sequence[Version]) -> Version:
    if number in by_number:
        return by_number[number]
    if number < max(by_number, default=0) or any(version.number == number for version in deleted):
        raise ReclaimedError(f"Version {number} was deleted. Versions: {few(by_number)}.", loc=("ref",))
    raise NotFoundError(f"No version {number}. Versions: {few(by_number)}.", loc=("ref",))


def _by_digest(text: str, versions: Sequence[Version], deleted: Sequence[Version]) -> Version:
    found = [version for version in versions if version.digest.startswith(text)]
    if not found and any(version.digest.startswith(text) for version in deleted):
        raise ReclaimedError(f"The versions with digest {text!r} were deleted.", loc=("ref",))
    if not found:
        raise NotFoundError(f"No version with digest {text!r}.", loc=("ref",))
    if len({version.digest for version in found}) > 1:
        raise InvalidArgumentError(
            f"`ref` must name one digest, got {text!r}, which several start with. Say more of it.",
            loc=("ref",),
        )
    return found[-1]


def few(names: Any) -> str:
    """Return the last twenty of some names, and how many more there are."""
    names = sorted(names)
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(map(repr, names[-20:])) + more or "none"
