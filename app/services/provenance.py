"""What made the data of a version: the buffer, its writers, and the packages of this service."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from app.services.deck import Deck, VaultEntry

_PACKAGES = ("flashdeck", "jax", "ml_dtypes", "numpy", "tensorstore")
_MOST_WRITERS = 256


def provenance_of(deck: Deck, entry: VaultEntry) -> dict[str, Any]:
    """Return what is known of who fills a vault now; no I/O."""
    buffer = deck.buffers.get(deck.owners.get(entry.place.key, ""))
    writers: dict[str, int] = {}
    if buffer is not None:
        writers = buffer.stats()["writers"]
    elif entry.live is not None:
        writers = entry.live.writers
    return {
        "buffer": None if buffer is None else buffer.config.to_json(),
        "writers": dict(list(writers.items())[:_MOST_WRITERS]),
        "num_writers": len(writers),
        "packages": packages(),
    }


@functools.cache
def packages() -> dict[str, str]:
    """Return the versions of what writes vaults."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a checkout
            found[name] = "0"
    return found
