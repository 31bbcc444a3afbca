"""One service per data directory; the file says which, so that commands can talk to it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from fbxcore.errors import ConflictError


class DataLock:
    """The file `LOCK`, held for as long as the service runs."""

    def __init__(self, data: Path):
        self.path = data / "LOCK"
        self._descriptor: int | None = None

    def take(self, address: str) -> None:
        """Hold the lock and write down who does.

        Raises:
            ConflictError: if another service holds it.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            holder = read_holder(self.path.parent) or {}
            raise ConflictError(
                f"The data directory must be free, got one that process {holder.get('pid', 'unknown')} "
                f"serves at {holder.get('address', 'an unknown address')}. Stop it, or choose another.",
                code="data_in_use",
                loc=("data",),
            ) from None
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "address": address}).encode(), 0)

    def release(self) -> None:
        """Let go; the file stays, empty."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def read_holder(data: Path) -> dict[str, Any] | None:
    """Return `{pid, address}` of the service that runs on a data directory, or None."""
    try:
        found = json.loads((data / "LOCK").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and is_alive(found.get("pid")) else None


def is_alive(pid: Any) -> bool:
    """Say whether a process of that number runs."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
