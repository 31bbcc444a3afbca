"""A live buffer and vaults: the one it persists to, and one it is filled from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from fbxcore.errors import ConflictError, InvalidArgumentError, NotFoundError
from fbxcore.live.config import BufferConfig
from fbxcore.spec import spec_to_json, timestep_bytes
from fbxcore.types import Leaves, Spec
from fbxcore.vault.rollover import newest_of
from fbxcore.vault.store import VaultReader, VaultWriter

_BLOCK_STEPS = 1024
_BLOCK_BYTES = 32 << 20


def open_vault(config: BufferConfig, vaults: Path) -> VaultWriter | None:
    """Open the vault a buffer persists to, where it goes on now, or make it.

    Raises:
        ConflictError: if it is of another spec or has other rows.
    """
    if config.persist_to is None:
        return None
    rows = config.layout.rows_in_step
    try:
        writer = VaultWriter.open(newest_of(vaults / config.persist_to))
    except NotFoundError:
        writer = VaultWriter.create(vaults / config.persist_to, config.spec, rows=rows)
    if _plain(writer.spec) != _plain(config.spec) or writer.rows != rows:
        writer.close()
        raise ConflictError(
            f"`persist_to` must name a vault of equal spec and {rows} rows, got `{config.persist_to}` with "
            f"{writer.rows} rows and {spec_to_json(writer.spec)!r:.200}.",
            code="vault_differs",
            loc=("persist_to",),
        )
    return writer


def check_source(config: BufferConfig, spec: Spec, rows: int, steps: range) -> None:
    """Refuse timesteps of a vault that a buffer could not hold as they are.

    Raises:
        InvalidArgumentError: if spec or rows differ, or there are more than its time axis holds.
    """
    layout = config.layout
    if _plain(spec) != _plain(config.spec):
        raise InvalidArgumentError(
            f"`spec` must be that of the vault in `from`, {spec_to_json(spec)!r:.200}, got another.",
            loc=("spec",),
        )
    if rows != layout.rows:
        raise InvalidArgumentError(
            f"`from` must name a vault of {layout.rows} rows (`add_batch_size`), got one of {rows}.",
            loc=("from", "vault"),
        )
    if len(steps) > layout.time_axis:
        raise InvalidArgumentError(
            f"`from` must mean at most {layout.time_axis} timesteps, which the buffer holds in each row, got "
            f"{len(steps)}. Ask for the last ones with `timesteps`, or for a longer buffer.",
            loc=("from",),
        )


async def load(
    fill: Callable[[Leaves], Awaitable[None]], reader: VaultReader, steps: range, *, as_items: bool
) -> None:
    """Hand timesteps `[B, K, ...]` to `fill` block by block; items are `[K, ...]` of the one row."""
    size = max(1, timestep_bytes(reader.spec) * reader.rows)
    block = max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // size))
    for at in range(0, len(steps), block):
        piece = steps[at : at + block]
        leaves = await asyncio.to_thread(reader.read, piece.start, piece.stop)
        await fill({name: leaf[0] for name, leaf in leaves.items()} if as_items else leaves)


def _plain(spec: Spec) -> Spec:
    """Return shapes and dtypes only; roles and units are words about them."""
    return {name: replace(leaf, role=None, unit=None, names=None) for name, leaf in spec.items()}
