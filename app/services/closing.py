"""Ending everything that is open, within a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from fbxcore.live import LiveBuffer, LiveVault

logger = logging.getLogger("flashdeck")


async def close_all(live: Sequence[LiveBuffer | LiveVault], within_s: float) -> None:
    """Flush and close buffers and vaults together; what takes longer has its log."""
    if not live:
        return
    closing = [asyncio.ensure_future(one.close()) for one in live]
    done, late = await asyncio.wait(closing, timeout=within_s)
    for task in done:
        if task.exception() is not None:
            logger.error("closing failed: %s", task.exception())
    if late:
        logger.error("%d buffers did not flush in time; their logs have what they took", len(late))
