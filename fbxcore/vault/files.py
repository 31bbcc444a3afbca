"""Files of a vault directory below the array store: locks, atomic files, the manifest's bytes.

A manifest starts with four magic bytes and its own length (unsigned, 64 bits, little-endian). The
array store writes a new one into `manifest.ocdbt.__lock` and renames it, but opens that file without
truncating it: what a killed writer left there, if longer, ends up behind the next manifest, and then
nothing opens. Hence `clear_stale_lock` before each commit and `repair_manifest` when opening.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

from fbxcore._files import replace_file, sync_directory
from fbxcore.errors import ConflictError, DamagedError, NotFoundError, StorageError
from fbxcore.vault.faults import disk_told

MANIFEST = "manifest.ocdbt"
METADATA = "metadata.json"
MAGIC = bytes.fromhex("0cdb3a2a")
HALF_MADE = ".flashdeck-new-"
_HEADER = 12


def label_of(path: Path) -> str:
    """Return how error texts call the vault: its last two directory names, never a whole path."""
    return f"{path.parent.name}/{path.name}"


def check_new(path: Path) -> None:
    """Refuse a place where something lies."""
    if os.path.lexists(path):
        raise ConflictError(
            f"`vault_uid` must be new, got '{label_of(path)}', which exists.",
            code="exists",
            loc=("vault_uid",),
        )


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Give a hidden name beside a new directory's: what is made there appears when it is whole.

    On failure nothing is left, nor any parent made for it.
    """
    check_new(path)
    made = make_parents(path.parent)
    hidden = path.with_name(f"{HALF_MADE}{secrets.token_hex(8)}")
    try:
        yield hidden
        with disk_told(label_of(path)):
            os.rename(hidden, path)
            sync_directory(path.parent)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        remove_empty(made)
        raise


def lock_directory(path: Path) -> int:
    """Take the writer's lock of a vault: flock on the directory's own descriptor, which is returned."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"No vault named '{label_of(path)}'.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConflictError(
            f"Vault '{label_of(path)}' must have one writer, got a second. Close the first one.",
            code="vault_in_use",
        ) from error
    return descriptor


@contextlib.contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Hold the lock of a directory, waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def clear_stale_lock(path: Path) -> None:
    """Empty what a killed writer left in the manifest's lock file.

    The lock is taken without waiting: who holds it is alive and leaves nothing stale. It may be renamed
    to the manifest between open and lock, so the name must still lead to the file that is locked.
    """
    name = path / f"{MANIFEST}.__lock"
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if _is_left_behind(descriptor, name):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def clear_stale_data(path: Path) -> None:
    """Remove data files that a failed or killed commit began and nobody writes any more.

    On a full disk they would keep what room there is.
    """
    for name in (path / "d").glob("*.__lock"):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _is_left_behind(descriptor, name):
                    name.unlink()
            finally:
                os.close(descriptor)


def _is_left_behind(descriptor: int, name: Path) -> bool:
    """Lock an open file, and say whether it has content, was unlocked, and still has that name."""
    command = getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK)
    # struct flock: type, whence, start, length, pid
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(descriptor, command, whole)
        here, there = os.fstat(descriptor), os.stat(name)
    except (BlockingIOError, PermissionError, FileNotFoundError):
        return False
    return here.st_size > 0 and (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)


def read_manifest(path: Path) -> bytes:
    """Return the manifest without what stands behind its own length.

    Raises:
        DamagedError: if it is missing, cut short, or no manifest.
    """
    try:
        content = (path / MANIFEST).read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise _damaged(path, "must exist", "no such file") from error
    except OSError as error:
        raise StorageError(
            f"File `{MANIFEST}` of vault '{label_of(path)}' must be readable, got: {error.strerror}."
        ) from error
    return _own_bytes(path, content)


def _own_bytes(path: Path, content: bytes) -> bytes:
    """Return a manifest up to its own length."""
    if len(content) < _HEADER or content[:4] != MAGIC:
        raise _damaged(path, "must start with a manifest's magic bytes", content[:4])
    (length,) = struct.unpack_from("<Q", content, 4)
    if length > len(content):
        raise _damaged(path, f"must have the {length} bytes its header says", f"{len(content)} bytes")
    return content[:length]


def stamp_of(path: Path) -> object:
    """Return what changes with every commit to a vault, whoever makes it."""
    stat = os.stat(f"{path}/{MANIFEST}")
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def repair_manifest(path: Path) -> bool:
    """Cut what stands behind the manifest's own length; says whether there was something.

    It is cut where it was read, in one open file: another program may put a new manifest in its place
    meanwhile, which must not be cut to the length of the old one.
    """
    read_manifest(path)  # tells what cannot be read
    with open(path / MANIFEST, "r+b") as file:
        content = file.read()
        length = len(_own_bytes(path, content))
        if len(content) == length:
            return False
        file.truncate(length)
        os.fsync(file.fileno())
    return True


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file by one with that content, or leave it as it is; several may do so at once."""
    replace_file(path, content, mark=f".{secrets.token_hex(4)}")


def make_parents(path: Path) -> list[Path]:
    """Create the missing ones of a directory and its parents; returns them, outermost first."""
    missing = []
    here = path
    while not here.exists():
        missing.append(here)
        here = here.parent
    missing.reverse()
    made = []
    try:
        for directory in missing:
            directory.mkdir(exist_ok=True)
            made.append(directory)
    except OSError as error:
        remove_empty(made)
        raise StorageError(f"Directory '{path.name}' must be creatable, got {error.strerror!r}.") from error
    return made


def remove_empty(directories: list[Path]) -> None:
    """Remove directories, innermost last in the list, as far as they are empty."""
    for directory in reversed(directories):
        with contextlib.suppress(OSError):
            directory.rmdir()


def find_vaults(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield `(vault_name, vault_uid, path)` of each vault below a directory, sorted by name.

    A directory is a vault if it has a `metadata.json` or a manifest, so half-made and damaged ones are
    found too. Names may be nested (`smac/3m/Good`). Links are not followed. A vault that lies directly
    in `root` is called by the root's own name.
    """
    yield from _find(Path(root), Path(root), ())


def remove_half_made(root: Path) -> int:
    """Remove what a killed process began to make below a directory of ours; returns how many there were."""
    removed = 0
    for directory, names, files in os.walk(root):
        for name in [name for name in names if name.startswith(HALF_MADE)]:
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
            removed += 1
        is_vault = MANIFEST in files
        names[:] = [] if is_vault else [name for name in names if not name.startswith(HALF_MADE)]
    return removed


def _find(root: Path, here: Path, groups: tuple[str, ...]) -> Iterator[tuple[str, str, Path]]:
    try:
        with os.scandir(here) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:  # vanished or unreadable meanwhile: the next scan sees it
        return
    for name in names:
        path = here / name
        if name.startswith(HALF_MADE):
            continue
        has_manifest = (path / MANIFEST).is_file()
        if has_manifest or (path / METADATA).is_file():
            yield "/".join(groups) or root.name, name, path
        if not has_manifest:
            yield from _find(root, path, (*groups, name))


def disk_bytes(path: Path) -> int:
    """Return the bytes of all files of a vault directory."""
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(directory, name), follow_symlinks=False).st_size
    return total


def _damaged(path: Path, rule: str, got: object) -> DamagedError:
    return DamagedError(f"File `{MANIFEST}` of vault '{label_of(path)}' {rule}, got {got!r}.", file=MANIFEST)
