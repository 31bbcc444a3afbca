"""Another durability while a buffer runs: at no moment is anything acknowledged kept less than it was told.

With `none` there is no log. To go on with one, the whole buffer is written down first, as the base that the
log begins from; to do without, the configuration says so before the log goes.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from fbxcore.errors import FbxError
from fbxcore.live.config import BufferConfig, save_config
from fbxcore.live.durable import checkpoint
from fbxcore.live.durable.checkpoint import Counters
from fbxcore.live.durable.journal import Journal
from fbxcore.live.restart.whole import remove_whole, save_whole
from fbxcore.live.rings.engine import Engine
from fbxcore.vault.retention import retain_steps


async def change_config(
    directory: Path, before: BufferConfig, after: BufferConfig, journal: Journal, engine: Engine
) -> Counters | None:
    """Go on with another configuration, and save it; return where the base is, if one was written.

    Raises:
        FbxError: if that failed; then everything is as before.
    """
    if after.retain_steps != before.retain_steps:
        await asyncio.to_thread(retain_steps, journal.persister.writer, after.retain_steps)
    if after.durability != before.durability:
        return await _change_durability(directory, before, after, journal, engine)
    await asyncio.to_thread(save_config, directory, after)
    return None


async def _change_durability(
    directory: Path, before: BufferConfig, after: BufferConfig, journal: Journal, engine: Engine
) -> Counters | None:
    if after.durability == "none":
        await asyncio.to_thread(save_config, directory, after)
        await _set(journal, "none")
        with contextlib.suppress(FbxError):  # else the log stays for the next start
            await journal.flush()
            await asyncio.to_thread(forget, directory, journal)
        return None
    if before.durability == "none":
        return await _begin_log(directory, after, journal, engine)
    await asyncio.to_thread(save_config, directory, after)
    try:
        await _set(journal, after.durability)
    except FbxError:
        await asyncio.to_thread(save_config, directory, before)
        raise
    return None


async def _begin_log(directory: Path, after: BufferConfig, journal: Journal, engine: Engine) -> Counters:
    await _set(journal, after.durability)
    try:
        await journal.flush()
        counters, _ = await save_whole(directory, engine, journal.ledger)
        await asyncio.to_thread(save_config, directory, after)
    except BaseException:
        await _set(journal, "none")
        await asyncio.to_thread(forget, directory, journal)
        raise
    return counters


def forget(directory: Path, journal: Journal) -> None:
    """Remove what a buffer without durability does not keep."""
    journal.log.remove_segments()
    remove_whole(directory)
    if journal.persister is None:
        (directory / checkpoint.FILE).unlink(missing_ok=True)


async def _set(journal: Journal, durability: str) -> None:
    await asyncio.wrap_future(journal.log.set_durability(durability))
