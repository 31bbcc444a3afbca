"""Sweeping a vault: give back the bytes of generations that nobody names any more.

The store never deletes, so every commit leaves the former tail chunks behind. A sweep marks all files
that the newest generation, the versions, generations being read, and every generation younger than a
grace time need, and deletes the others. Before it deletes anything it commits, under a key of our own,
which older generations are kept: asking for another one then says that its bytes were given back.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fbxcore.errors import DamagedError, DiskFullError
from fbxcore.vault.files import clear_stale_data, disk_bytes, label_of, sync_directory
from fbxcore.vault.store import VaultWriter
from fbxcore.vault.store_dump import Dump
from fbxcore.vault.store_reader import SWEEP_KEY, was_swept
from fbxcore.vault.versions import deleted_since, list_versions

GRACE_S = 900.0
_DATA = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Swept:
    """What a sweep gave back, or would."""

    files: int
    bytes: int
    waiting_bytes: int  # of no use any more, and kept until the grace time is over
    kept_generations: tuple[int, ...]
    disk_bytes: int  # afterwards
    dry_run: bool


def sweep(
    writer: VaultWriter,
    catalog: Path | None = None,
    *,
    keep: Iterable[int] = (),
    without: Iterable[int] = (),
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Swept:
    """Delete the files that no kept generation needs.

    Args:
        catalog: where versions of a vault that was read only are recorded.
        keep: further generations to keep.
        without: generations of versions that a dry run takes as deleted just now.
        grace_s: what was the newest generation, a version, or a new file less than this ago is kept, so
            that open readers go on.
        dry_run: delete nothing, only say what would go.
        progress: called with how many files of how many are done.

    Raises:
        ConflictError: if another program committed meanwhile (code `foreign_writer`).
        DamagedError: if the bytes of a version are missing already; nothing is deleted.
    """
    with writer.alone():
        before = time.time() - grace_s
        named = {version.generation for version in list_versions(writer.path, catalog)} | set(keep)
        generations = _generations(Dump(writer.path))
        _check_there(writer, named, generations)
        going = set(without) if dry_run else set()
        needed = (named - going) | set(keep) | writer.pins | {writer.generation}
        going |= deleted_since(writer.path, catalog, before)
        young = _newest_since(generations, before) | (going & set(generations) if grace_s else set())
        kept = needed | {number for number in young if not was_swept(writer, number)}
        record = {SWEEP_KEY: json.dumps({"generation": writer.generation, "kept": sorted(kept)}).encode()}
        is_noted = False
        if not dry_run:
            clear_stale_data(writer.path)
            with contextlib.suppress(DiskFullError):  # then it is noted after room was made
                kept.add(writer.put(record))
                needed.add(writer.generation)
                is_noted = True
        unused = list(_unused(writer.path / "d", _used_files(Dump(writer.path), kept), before))
        idle = _unused(writer.path / "d", _used_files(Dump(writer.path), needed), math.inf)
        waiting = sum(size for _, size in idle) - sum(size for _, size in unused)
        if not dry_run:
            _delete(writer.path / "d", unused, progress)
            if not is_noted:
                writer.put(record)
        total = sum(size for _, size in unused)
        left = disk_bytes(writer.path) - (total if dry_run else 0)
        return Swept(len(unused), total, waiting, tuple(sorted(kept)), left, dry_run)


def _newest_since(generations: dict[int, int], before: float) -> set[int]:
    """Return the generations that were the newest at some moment since a Unix time."""
    young = {number for number, commit_time in generations.items() if commit_time / 1e9 >= before}
    older = set(generations) - young
    return young | ({max(older)} if older else set())


def _check_there(writer: VaultWriter, named: set[int], generations: dict[int, int]) -> None:
    if missing := sorted(named - set(generations)):
        raise DamagedError(
            f"Vault '{label_of(writer.path)}' must have all generations of its versions, "
            f"got none of {missing[:10]}. Delete those versions first.",
            file="manifest.ocdbt",
        )


def _generations(dump: Dump) -> dict[int, int]:
    """Return the commit time (ns) of every generation that can still be found."""
    manifest = dump.manifest()
    found = {version["generation_number"]: version["commit_time"] for version in manifest["versions"]}
    pending = [node["location"] for node in manifest["version_tree_nodes"]]
    while pending:
        try:
            node = dump.node(pending.pop())
        except DamagedError:  # swept before: what it listed is gone
            continue
        for entry in node["entries"]:
            if "location" in entry:
                pending.append(entry["location"])
            else:
                found[entry["generation_number"]] = entry["commit_time"]
    return found


def _used_files(dump: Dump, kept: set[int]) -> set[str]:
    """Return the names of the files that the kept generations need, and the next commit."""
    manifest = dump.manifest()
    roots = [version for version in manifest["versions"] if version["generation_number"] in kept]
    used: set[str] = set()
    # The next commit extends the nodes that the manifest lists, whether or not they list what is kept.
    pending = list(manifest["version_tree_nodes"])
    while pending:
        entry = pending.pop()
        used.add(_file_of(entry["location"]))
        with contextlib.suppress(DamagedError):
            for inner in dump.node(entry["location"])["entries"]:
                if "root" in inner and inner["generation_number"] in kept:
                    roots.append(inner)
                elif "location" in inner and _lists(inner, kept):
                    pending.append(inner)
    seen: set[str] = set()
    for root in roots:
        _mark(dump, root["root"], used, seen)
    return used


def _lists(entry: dict[str, Any], kept: set[int]) -> bool:
    last = entry["generation_number"]
    return any(last - entry["num_generations"] < number <= last for number in kept)


def _mark(dump: Dump, node: Any, used: set[str], seen: set[str]) -> None:
    """Mark the files of a tree of keys; subtrees shared by generations are walked once."""
    pending = list(_locations(node))
    while pending:
        location = pending.pop()
        used.add(_file_of(location))
        if location.startswith("btreenode::") and location not in seen:
            seen.add(location)
            pending.extend(_locations(dump.node(location)))


def _locations(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("location", "indirect_value") and isinstance(value, str):
                yield value
            else:
                yield from _locations(value)
    elif isinstance(node, list):
        for item in node:
            yield from _locations(item)


def _file_of(location: str) -> str:
    """`btreenode::d/<hex>:<offset>:<length>` lies in file `<hex>`."""
    return location.split("::", 1)[1].split(":", 1)[0].removeprefix("d/")


def _unused(directory: Path, used: set[str], before: float) -> Iterator[tuple[str, int]]:
    """Yield name and size of files of the store that are not used and not young."""
    with os.scandir(directory) as entries:
        for entry in entries:
            stat = entry.stat(follow_symlinks=False)
            if _DATA.fullmatch(entry.name) and entry.name not in used and stat.st_mtime < before:
                yield entry.name, stat.st_size


def _delete(directory: Path, files: list[tuple[str, int]], progress: Callable[[int, int], None]) -> None:
    for done, (name, _) in enumerate(files, 1):
        (directory / name).unlink(missing_ok=True)
        progress(done, len(files))
    sync_directory(directory)
