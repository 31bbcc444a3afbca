"""Values under keys of our own inside a vault: JSON, and damage if it is none."""

from __future__ import annotations

import functools
import json
from typing import Any, Protocol

from fbxcore.errors import DamagedError
from fbxcore.vault.files import label_of


class Keyed(Protocol):
    """A reader or a writer."""

    path: Any

    def get(self, key: str) -> bytes | None: ...


def json_value(vault: Keyed, key: str) -> Any:
    """Return the value of a key, which nobody may change, or None where there is none.

    Raises:
        DamagedError: if it is not JSON.
    """
    content = vault.get(key)
    try:
        return _kept(vault.path, key).value_of(content) if content is not None else None
    except ValueError as error:
        raise damaged_key(vault, key, "be JSON", content) from error


def damaged_key(vault: Keyed, key: str, rule: str, content: bytes) -> DamagedError:
    """Return the error for a value that is not what was written."""
    return DamagedError(
        f"Key `{key}` of vault '{label_of(vault.path)}' must {rule}, got {content[:40]!r}.",
        file="manifest.ocdbt",
    )


class _Kept:
    """What a key held when it was last asked for, and what that said."""

    def __init__(self) -> None:
        self._last: tuple[bytes, Any] = (b"", None)

    def value_of(self, content: bytes) -> Any:
        """Return what the content says, parsed once for as long as it stays."""
        held, value = self._last
        if held != content:
            value = json.loads(content)
            self._last = (content, value)
        return value


@functools.lru_cache(256)  # pages of versions; ten thousand of them have fewer
def _kept(path: Any, key: str) -> _Kept:  # noqa: ARG001
    return _Kept()
