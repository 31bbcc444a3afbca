"""Vaults: datasets of experience on disk that Flashbax reads and extends, and the other way round."""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "Vault": "vault",
    "VaultReader": "store",
    "VaultWriter": "store",
    "WindowStream": "stream",
    "find_vaults": "store",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
