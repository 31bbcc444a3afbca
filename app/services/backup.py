"""A copy of the data directory from which everything acknowledged comes back, made while a service runs.

It needs no help from the service, since its files are made for being cut off anywhere. Log segments are
opened first and last: between the two, checkpoint and vault are copied, so the log holds whatever these
have not applied yet, also if the service drops segments meanwhile. Of a vault the manifest is read first;
the files it names are never changed, and a sweep spares them for a quarter of an hour. What SQL holds is a
mirror, and copied for convenience.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from app.services.folders import find_places, iso
from fbxcore.errors import ConflictError, DamagedError, FbxError, NotFoundError, StorageError
from fbxcore.live import load_config
from fbxcore.vault.files import MANIFEST, read_manifest, write_atomic

Step = Callable[[str, int, int], None]
RECORD = "backup.json"
_TRIES = 5


@dataclass(frozen=True)
class _Unit:
    """What must fit together: a log with its checkpoint, and the vault that follows it."""

    name: str
    log: Path | None  # the directory of the segments, below the data directory
    beside: tuple[Path, ...]  # directories of small files that go with it
    vault: Path | None


def backup(data: Path, target: Path, step: Step = lambda *_: None) -> dict[str, Any]:
    """Copy a data directory to a new place; a failed copy leaves nothing there.

    Raises:
        ConflictError: if something lies there.
        NotFoundError: if there is no data directory.
    """
    if not (data / "buffers").is_dir():
        raise NotFoundError(f"No data directory of ours at '{data.name}'.")
    _check_free(target, "target")
    half_made = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        half_made.mkdir(parents=True)
        units = list(_units(data))
        for done, unit in enumerate(units, 1):
            _copy_unit(data, half_made, unit)
            step(unit.name, done, len(units))
        record = {
            "created_at": iso(time.time()),
            "buffers": sorted(u.name for u in units if u.log and u.log.parts[0] == "buffers"),
            "vaults": sorted(str(u.vault.relative_to("vaults")) for u in units if u.vault),
        }
        _copy_snapshots(data / "snapshots", half_made / "snapshots")
        _copy_database(data, half_made)
        write_atomic(half_made / RECORD, json.dumps(record, indent=2).encode())
        os.sync()
        if target.is_dir():
            target.rmdir()
        os.rename(half_made, target)
    except OSError as error:
        if isinstance(error, FbxError):
            raise
        raise StorageError(f"The backup must be written whole, got {error.strerror!r}.") from error
    finally:
        shutil.rmtree(half_made, ignore_errors=True)
    return record


def restore(source: Path, data: Path) -> dict[str, Any]:
    """Make a data directory of a backup.

    Raises:
        NotFoundError: if the source is no backup.
        ConflictError: if there is a data directory already.
    """
    try:
        record = json.loads((source / RECORD).read_bytes())
    except (OSError, ValueError) as error:
        raise NotFoundError(f"No backup at '{source.name}': it must have a `{RECORD}`.") from error
    _check_free(data, "data")
    half_made = data.with_name(f".{data.name}.{secrets.token_hex(4)}")
    try:
        shutil.copytree(source, half_made, ignore=shutil.ignore_patterns(RECORD))
        os.sync()
        if data.is_dir():
            data.rmdir()
        os.rename(half_made, data)
    finally:
        shutil.rmtree(half_made, ignore_errors=True)
    return record


def _check_free(place: Path, name: str) -> None:
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConflictError(
            f"`{name}` must be a new or empty directory, got '{place.name}', which holds something.",
            code="exists",
            loc=(name,),
        )


def _units(data: Path) -> Iterator[_Unit]:
    """Yield everything there is, each vault with the log that is ahead of it."""
    taken: set[Path] = set()
    for directory in sorted((data / "buffers").iterdir()):
        try:
            config = load_config(directory)
        except FbxError:  # half made, or damaged: nothing was acknowledged, or nothing can be said of it
            continue
        vault = Path("vaults", config.persist_to) if config.persist_to else None
        taken |= {vault} if vault else set()
        here = Path("buffers", directory.name)
        yield _Unit(directory.name, here / "log", (here,), vault)
    for place in find_places(data, None):
        vault = place.path.relative_to(data)
        catalog = place.catalog.relative_to(data)
        log = catalog / "log" if (data / catalog / "log").is_dir() else None
        if vault not in taken:
            yield _Unit(place.key, log, (catalog,), vault)


def _copy_unit(data: Path, target: Path, unit: _Unit) -> None:
    with contextlib.ExitStack() as stack:
        segments: dict[str, BinaryIO] = {}
        _open_segments(data, unit, segments, stack)
        for beside in (*unit.beside, *([unit.log] if unit.log else [])):
            _copy_small(data / beside, target / beside)
        if unit.vault is not None and (data / unit.vault).is_dir():
            _copy_vault(data / unit.vault, target / unit.vault)
        _open_segments(data, unit, segments, stack)
        for name, file in segments.items():
            with open(target / unit.log / name, "wb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)


def _open_segments(
    data: Path, unit: _Unit, segments: dict[str, BinaryIO], stack: contextlib.ExitStack
) -> None:
    """Open the segments there are: an open one can be read even if it is dropped."""
    for path in sorted((data / unit.log).glob("*.log")) if unit.log else ():
        if path.name not in segments:
            with contextlib.suppress(FileNotFoundError):
                segments[path.name] = stack.enter_context(path.open("rb"))


def _copy_small(source: Path, target: Path) -> None:
    """Copy the files of a directory that are replaced whole, without segments and what is half written."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir() if source.is_dir() else ():
        if path.is_file() and path.suffix not in (".log", ".tmp") and not path.name.startswith("."):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(path, target / path.name)


def _copy_vault(source: Path, target: Path) -> None:
    """Copy a vault as one of its manifests says; again if a sweep took a file away meanwhile."""
    (target / "d").mkdir(parents=True)
    for _ in range(_TRIES):
        manifest = read_manifest(source)
        try:
            for path in (*source.glob("*"), *(source / "d").glob("*")):
                copy = target / path.relative_to(source)
                is_stored = path.name == MANIFEST or path.name.endswith(".__lock") or path.is_dir()
                if not is_stored and not copy.exists():
                    shutil.copy2(path, copy)
        except FileNotFoundError:
            continue
        write_atomic(target / MANIFEST, manifest)
        return
    raise DamagedError(
        f"Vault '{source.parent.name}/{source.name}' must stand still for a moment, got swept every time.",
        file=MANIFEST,
    )


def _copy_snapshots(source: Path, target: Path) -> None:
    """Copy what never changes, without what is being written; one that is deleted meanwhile is left out."""
    for path in sorted(source.glob("*/*")):
        if path.is_dir() and not path.name.startswith("."):
            try:
                shutil.copytree(path, target / path.relative_to(source))
            except (FileNotFoundError, shutil.Error):
                shutil.rmtree(target / path.relative_to(source), ignore_errors=True)


def _copy_database(data: Path, target: Path) -> None:
    path = data / "flashdeck.db"
    if path.is_file():
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(target / path.name)) as copy,
        ):
            source.backup(copy)
