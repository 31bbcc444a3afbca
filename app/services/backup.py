"""A backup: the data directory as of one moment, made of links while a service runs on it.

For some milliseconds nothing is acknowledged: no log writes, and no segment goes. Meanwhile every file that
is replaced whole gets a second name in the backup, and of each log the length of its last segment is noted.
Then all goes on. What a vault's manifest names is never changed, so it is linked afterwards, as long as no
sweep runs; a last segment is copied up to its noted length; SQL, a mirror, is copied from a transaction that
began in that moment. So of two buffers that a program fills one after the other, no backup has the second
step without the first.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.services.folders import iso
from fbxcore.errors import ConflictError, FbxError, NotFoundError, StorageError
from fbxcore.live import Log
from fbxcore.live.config import FILE as CONFIG
from fbxcore.vault.files import HALF_MADE, MANIFEST, write_atomic

Step = Callable[[int, int], None]
RECORD = "backup.json"
_DATABASE = "flashdeck.db"
_TRIES = 50
_FOLDERS = ("catalog", "snapshots", "vaults")


@dataclass
class _Cut:
    """What was found in the moment of the backup."""

    vaults: list[Path] = field(default_factory=list)
    tails: dict[Path, int] = field(default_factory=dict)  # last segments, and their lengths
    database: sqlite3.Connection | None = None


def make(data: Path, target: Path, logs: Sequence[Log] = ()) -> dict[str, Any]:
    """Make a backup of a data directory on the same disk; a failed one leaves nothing.

    Args:
        logs: all that are being written; they are held still for the moment.

    Raises:
        NotFoundError: if there is no data directory.
    """
    if not (data / "buffers").is_dir():
        raise NotFoundError(f"No data directory of ours at '{data.name}'.")
    for left in target.parent.glob(f"{HALF_MADE}*"):  # of a killed process
        shutil.rmtree(left, ignore_errors=True)
    hidden = target.with_name(f"{HALF_MADE}{secrets.token_hex(4)}")
    try:
        hidden.mkdir(parents=True)
        cut, pause_s = _cut(data, hidden, logs)
        for path, length in cut.tails.items():
            _copy_start(data / path, hidden / path, length)
        kept = [vault for vault in cut.vaults if _link_data(data / vault, hidden / vault)]
        if cut.database is not None:
            _copy_database(cut.database, hidden / _DATABASE)
        record = _record(hidden, kept, pause_s)
        write_atomic(hidden / RECORD, json.dumps(record, indent=2).encode())
        os.rename(hidden, target)
    except OSError as error:
        if isinstance(error, FbxError):
            raise
        raise StorageError(f"The backup must be written whole, got {error.strerror!r}.") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return record


def copy_out(source: Path, target: Path, step: Step = lambda *_: None) -> dict[str, Any]:
    """Copy a backup to a new place, which is there when it is whole.

    Args:
        step: told how many bytes of how many are copied.

    Raises:
        ConflictError: if something lies there.
    """
    record = read_record(source)
    _copy_tree(source, target, "target", record, step)
    return record


def restore(source: Path, data: Path, step: Step = lambda *_: None) -> dict[str, Any]:
    """Make a data directory of a backup.

    Raises:
        NotFoundError: if the source is no backup.
        ConflictError: if there is a data directory already.
    """
    record = read_record(source)
    _copy_tree(source, data, "data", record, step, without=RECORD)
    return record


def check_free(place: Path, name: str) -> None:
    """Refuse a place where something lies."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConflictError(
            f"`{name}` must be a new or empty directory, got '{place.name}', which holds something.",
            code="exists",
            loc=(name,),
        )


def read_record(source: Path) -> dict[str, Any]:
    """Return what a backup says of itself."""
    try:
        return json.loads((source / RECORD).read_bytes())
    except (OSError, ValueError) as error:
        raise NotFoundError(f"No backup at '{source.name}': it must have a `{RECORD}`.") from error


def _cut(data: Path, target: Path, logs: Sequence[Log]) -> tuple[_Cut, float]:
    """Give every file of the moment its second name; returns what was found, and for how long all stood."""
    cut = _Cut()
    with contextlib.ExitStack() as held:
        began = time.monotonic()
        for log in logs:
            held.enter_context(log.still())
        if (data / _DATABASE).is_file():
            cut.database = _snapshot(data / _DATABASE)
        for here in _directories(data):
            with contextlib.suppress(FileNotFoundError):  # taken away right now
                _link_files(data, target, here, cut)
        return cut, time.monotonic() - began


def _directories(data: Path) -> Iterator[Path]:
    """Yield what belongs to a backup, relative to the data directory, without data files of vaults."""
    buffers = [here for here in (data / "buffers").iterdir() if (here / CONFIG).is_file()]  # else half made
    for root in (*sorted(buffers), *(data / name for name in _FOLDERS)):
        for directory, names, files in os.walk(root):
            is_vault, half_made = MANIFEST in files, "." if root.name == "snapshots" else HALF_MADE
            names[:] = [] if is_vault else [name for name in names if not name.startswith(half_made)]
            yield Path(directory).relative_to(data)


def _link_files(data: Path, target: Path, here: Path, cut: _Cut) -> None:
    """Link the files of a directory as of one moment; the last segment of a log is only noted.

    What stands beside a log is replaced file by file: where that happens meanwhile, all are linked again.
    """
    for _ in range(_TRIES):
        names = _stamped(data / here)
        segments = sorted(name for name in names if name.endswith(".log"))
        (target / here).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            for name in names:
                if name not in segments[-1:]:
                    _link(data / here / name, target / here / name)
            if _stamped(data / here) == names:
                break
        for linked in (target / here).iterdir():
            linked.unlink() if linked.is_file() else None
    else:
        raise StorageError(f"Directory '{here.name}' must stand still for a moment, got changes every time.")
    if segments:
        cut.tails[here / segments[-1]] = (data / here / segments[-1]).stat().st_size
    if MANIFEST in names:
        cut.vaults.append(here)


def _stamped(here: Path) -> dict[str, tuple[int, int]]:
    """Return the files of a directory that belong to a backup, and what changes when one is replaced."""
    found = {}
    for entry in os.scandir(here):
        is_part = entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
        if is_part and not entry.name.endswith((".tmp", ".__lock")):
            stat = entry.stat(follow_symlinks=False)
            found[entry.name] = (0, 0) if entry.name == MANIFEST else (stat.st_ino, stat.st_mtime_ns)
    return found


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except PermissionError:  # a file system without links
        shutil.copy2(source, target)


def _link_data(source: Path, target: Path) -> bool:
    """Link the data files of a vault; says whether it was still there."""
    (target / "d").mkdir(exist_ok=True)
    try:
        for path in (source / "d").iterdir():
            if not path.name.endswith(".__lock"):
                _link(path, target / "d" / path.name)
    except FileNotFoundError:  # it went to the trash meanwhile
        shutil.rmtree(target)
        return False
    return True


def _copy_start(source: Path, target: Path, length: int) -> None:
    """Copy the first bytes of a file, which are never changed."""
    with contextlib.suppress(FileNotFoundError), open(source, "rb") as file, open(target, "wb") as copy:
        while length and (piece := file.read(min(length, 1 << 20))):
            copy.write(piece)
            length -= len(piece)


def _snapshot(path: Path) -> sqlite3.Connection:
    """Begin to read a database as it is now."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("begin")
    connection.execute("select count(*) from sqlite_master").fetchone()
    return connection


def _copy_database(source: sqlite3.Connection, target: Path) -> None:
    with contextlib.closing(source), contextlib.closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def _record(made: Path, vaults: Sequence[Path], pause_s: float) -> dict[str, Any]:
    files = [path for path in made.rglob("*") if path.is_file()]
    return {
        "created_at": iso(time.time()),
        "pause_ms": round(pause_s * 1000, 1),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "buffers": sorted(path.parent.name for path in made.glob(f"buffers/*/{CONFIG}")),
        "vaults": sorted(str(path.relative_to("vaults")) for path in vaults),
    }


def _copy_tree(
    source: Path, target: Path, name: str, record: dict[str, Any], step: Step, without: str = ""
) -> None:
    check_free(target, name)
    hidden = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    done = 0

    def copy(one: str, other: str) -> None:
        nonlocal done
        shutil.copy2(one, other)
        done += os.stat(other).st_size
        step(done, record["bytes"])

    try:
        shutil.copytree(
            source, hidden, copy_function=copy, ignore=shutil.ignore_patterns(*([without] if without else []))
        )
        os.sync()
        if target.is_dir():
            target.rmdir()
        os.rename(hidden, target)
    except (OSError, shutil.Error) as error:
        raise StorageError(f"The backup must be copied whole, got {str(error)[:200]!r}.") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
