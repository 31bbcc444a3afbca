"""Why a buffer that is asked for cannot be used now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fbxcore.errors import FbxError, NotFoundError, UnavailableError


def reason(
    name: str,
    *,
    starting: Mapping[str, tuple[int, int]],
    failed: Mapping[str, FbxError],
    known: Iterable[str],
) -> FbxError:
    """Return the error: its log is replayed, it could not be opened, or there is none."""
    if (progress := starting.get(name)) is not None:
        return UnavailableError(
            f"Buffer {name!r} must have replayed its log, got {progress[0]} of {progress[1]} bytes.",
            code="starting",
            retry_after_s=1,
            progress={"done": progress[0], "total": progress[1], "unit": "bytes"},
        )
    if (error := failed.get(name)) is not None:
        return error
    listed = ", ".join(repr(known) for known in sorted(known)[:20]) or "none"
    return NotFoundError(f"No buffer named {name[:200]!r}. Existing buffers: {listed}.", loc=("name",))
