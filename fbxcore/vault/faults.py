"""What the array store's error texts mean, as errors of our own tree.

The array store raises built-in errors whose text starts with a status (`DATA_LOSS: …`), often with
absolute paths in it: only the file's name within the vault is told on.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from fbxcore.errors import ConflictError, DamagedError, DiskFullError, FbxError, StorageError

FOREIGN_WRITER = "foreign_writer"
_FILE = re.compile(r"(d/[0-9a-f]{32}|manifest\.ocdbt)")
_FULL = ("No space left", "Disk quota exceeded", "os_error_code='28'", "os_error_code='122'")
_FOREIGN = ("Generation mismatch", "ABORTED")
_STATE = ("UNAVAILABLE", "PERMISSION_DENIED", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED")


@contextlib.contextmanager
def told(label: str) -> Iterator[None]:
    """Raise the array store's errors as ours; `label` is the vault's name in their texts."""
    try:
        yield
    except FbxError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, NotImplementedError) as error:
        raise fault(label, str(error)) from error


def fault(label: str, text: str) -> FbxError:
    """Return the error for a text of the array store."""
    text = text.split(" [tensorstore_spec=", 1)[0]
    if any(sign in text for sign in _FULL):
        return DiskFullError(f"Vault '{label}' must have room on its disk, got none. Free some space.")
    if any(sign in text for sign in _FOREIGN):
        return foreign_writer(label)
    status = text.split(":", 1)[0]
    found = _FILE.findall(text)
    file = found[-1] if found else "manifest.ocdbt"
    if status in _STATE:
        return StorageError(f"File `{file}` of vault '{label}' must be usable, got {status}.", file=file)
    reason = "it is missing" if status == "NOT_FOUND" else f"{status} ({_reason(text)})"
    return DamagedError(
        f"File `{file}` of vault '{label}' must be what was written, got: {reason}.", file=file
    )


def foreign_writer(label: str) -> ConflictError:
    """Return the error for a commit that was not ours."""
    return ConflictError(
        f"Vault '{label}' must have one writer, got a commit of another program. "
        "Stop that program; then `flashdeck verify --adopt` goes on behind it, or fork the vault.",
        code=FOREIGN_WRITER,
    )


def _reason(text: str) -> str:
    """The innermost clause, without paths."""
    last = text.rsplit(": ", 1)[-1]
    return re.sub(r'"[^"]*"', "…", last)[:120]


@contextlib.contextmanager
def disk_told(label: str) -> Iterator[None]:
    """Raise the operating system's errors as ours."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise fault(label, f"UNAVAILABLE: {error.strerror} [os_error_code='{error.errno}']") from error
