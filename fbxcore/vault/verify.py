"""Verifying a vault: every chunk of the newest generation and of each version is read and hashed anew.

The store checks each node and value it decodes; what it cannot know, whether a version still has the
values it was recorded with, the digest says. Only what is certain is repaired: bytes behind the
manifest's own length, which a killed writer of another program leaves.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fbxcore.errors import DamagedError, FbxError, ReclaimedError
from fbxcore.vault.digest import digest
from fbxcore.vault.files import MANIFEST, lock_directory, read_manifest, repair_manifest
from fbxcore.vault.foreign import foreign_in
from fbxcore.vault.store import VaultReader
from fbxcore.vault.versions import Version, list_versions


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    where: str  # "head", "version 3", or a file
    problem: str
    repaired: bool = False


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what was found."""

    length: int
    versions: int
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        return all(finding.repaired for finding in self.findings)


def verify(
    path: Path,
    catalog: Path | None = None,
    *,
    repair: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Verified:
    """Read and hash everything that the head and the versions show.

    Args:
        catalog: where the versions of a read-only vault are recorded; its hashes are not trusted.
        repair: cut what stands behind the manifest, under the writer's lock.
        progress: called with how many states of how many are done.
    """
    findings = _manifest(path, repair)
    length, versions = 0, []
    try:
        versions = list_versions(path, catalog)
        with VaultReader.open(path) as reader:
            length = reader.length
            findings += _foreign(reader)
            digest(reader)
    except DamagedError as error:
        findings.append(Finding("head", str(error)))
    for done, version in enumerate(versions, 1):
        if (problem := _problem(path, version)) is not None:
            findings.append(Finding(f"version {version.number}", problem))
        progress(done, len(versions))
    return Verified(length, len(versions), tuple(findings))


def _manifest(path: Path, repair: bool) -> list[Finding]:
    try:
        extra = (path / MANIFEST).stat().st_size - len(read_manifest(path))
    except (DamagedError, OSError):
        return []  # opening it says what is wrong
    if not extra:
        return []
    problem = f"{extra} bytes stand behind its own length; what is before them is whole"
    if not repair:
        return [Finding(MANIFEST, problem)]
    descriptor = lock_directory(path)
    try:
        repair_manifest(path)
    finally:
        os.close(descriptor)
    return [Finding(MANIFEST, problem, repaired=True)]


def _foreign(reader: VaultReader) -> list[Finding]:
    """Say where another program has written over timesteps of ours."""
    found = foreign_in(reader)
    if found is None or not found.num_hidden:
        return []
    problem = (
        f"another program wrote over or hid timesteps {found.start} to {found.stop} of ours, which "
        f"generation {found.generation} still has; --adopt appends them again"
    )
    return [Finding("head", problem)]


def _problem(path: Path, version: Version) -> str | None:
    try:
        with VaultReader.open(path, generation=version.generation) as reader:
            if (reader.first, reader.length) != (version.first, version.length):
                return (
                    f"it shows timesteps {reader.first} to {reader.length}, and {version.first} to "
                    f"{version.length} were recorded"
                )
            found = digest(reader)
    except ReclaimedError:
        return "its bytes were given back"
    except FbxError as error:
        return str(error)
    return None if found == version.digest else f"its digest is {found}, and {version.digest} was recorded"
