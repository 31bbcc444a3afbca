"""Readiness and abilities, as plain values."""

from __future__ import annotations

from typing import Any

from app.services.deck import Deck
from app.settings import Settings
from fbxcore.buffers.layout import ARGUMENTS
from fbxcore.live import MIXER, MIXER_FIELDS, WRITERS
from fbxcore.spec import DTYPES, MAX_LEAVES, MAX_RANK
from fbxcore.wire import FORMATS


async def check(deck: Deck) -> dict[str, Any]:
    """Return the state of each part; the whole is `ok`, `starting` or `down`."""
    database = await deck.database.is_up()
    status = "starting" if deck.starting else "ok" if database else "down"
    return {
        "status": status,
        "checks": {
            "database": "ok" if database else "down",
            "buffers": {
                "open": len(deck.buffers),
                "starting": len(deck.starting),
                "damaged": len(deck.failed),
            },
            "vaults": len(deck.vaults),
        },
        "progress": deck.progress,
    }


def capabilities(settings: Settings) -> dict[str, Any]:
    """Return what this service can do, so that clients need not try."""
    return {
        "kinds": {kind: sorted(arguments) for kind, arguments in (ARGUMENTS | {MIXER: MIXER_FIELDS}).items()},
        "formats": FORMATS,
        "content_encodings": ["gzip", "zstd"],
        "dtypes": list(DTYPES),
        "writers": list(WRITERS),
        "limits": {
            "body_bytes": settings.max_body_bytes,
            "decoded_bytes": settings.max_decoded_bytes,
            "json_bytes": settings.max_json_bytes,
            "response_bytes": settings.max_response_bytes,
            "memory_bytes": settings.max_memory_bytes,
            "rows": settings.max_rows,
            "leaves": MAX_LEAVES,
            "rank": MAX_RANK,
            "timeout_ms": settings.max_wait_ms,
            "list_limit": 500,
        },
        "authentication": "bearer" if settings.token else "none",
    }
