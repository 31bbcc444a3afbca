"""Every error Flashdeck raises on purpose, in one tree.

    FbxError
    ├── InvalidArgumentError (ValueError)      what was given breaks a rule
    │   ├── StructureError (AssertionError)    other leaves, shapes or dtypes than the spec
    │   └── NotSupportedError                  a known word that is not served yet
    ├── NotFoundError (LookupError)            no such buffer, vault, version, tag
    │   └── ReclaimedError                     it existed; its bytes were given back
    ├── ConflictError (RuntimeError)           right in itself, but not in the present state
    │   └── NotEnoughDataError                 nothing to sample yet
    ├── UnavailableError (RuntimeError)        try again later: limiter, back-pressure, start
    └── StorageError (OSError)                 the disk, or what lies on it
        ├── DamagedError                       bytes that are not what was written
        └── DiskFullError                      no room; nothing was added

An error is one sentence, `` `argument` must <rule>, got <value>. <What to do.> ``, with a stable
`code` that the service answers with. `details` are extra members of that answer.
"""

from __future__ import annotations

from typing import Any


class FbxError(Exception):
    """Base of all errors raised on purpose."""

    code = "error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        loc: tuple[str | int, ...] = (),
        hint: str | None = None,
        **details: Any,
    ):
        super().__init__(message)
        self.code = code or type(self).code
        self.loc = loc
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidArgumentError(FbxError, ValueError):
    """What was given breaks a rule; `loc` names the argument."""

    code = "invalid_argument"


class StructureError(InvalidArgumentError, AssertionError):
    """Other leaves, shapes or dtypes than the spec asks for; `loc` names the leaf."""

    code = "structure_mismatch"


class NotSupportedError(InvalidArgumentError):
    """A field, kind or option of the contract that is not served yet."""

    code = "not_supported"


class NotFoundError(FbxError, LookupError):
    """No buffer, vault, version or tag of that name."""

    code = "not_found"


class ReclaimedError(NotFoundError):
    """A version whose bytes were given back."""

    code = "reclaimed"


class ConflictError(FbxError, RuntimeError):
    """Right in itself, but refused in the present state."""

    code = "conflict"


class NotEnoughDataError(ConflictError):
    """Too few timesteps to sample; `details["needed"]` says how many more per row."""

    code = "not_enough_data"


class UnavailableError(FbxError, RuntimeError):
    """Refused for now; `details["retry_after_s"]` says when to try again."""

    code = "unavailable"


class StorageError(FbxError, OSError):
    """The disk refused, or what lies on it cannot be used."""

    code = "storage"


class DamagedError(StorageError):
    """Bytes on disk are not what was written; names the file and the offset."""

    code = "damaged"


class DiskFullError(StorageError):
    """No room on the disk; nothing was added."""

    code = "disk_full"
