"""A live buffer and vaults: the one it persists to, and one it is filled from."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from fbxcore.errors import ConflictError, InvalidArgumentError, NotFoundError
from fbxcore.live.config import BufferConfig
from fbxcore.spec import spec_to_json, timestep_bytes
from fbxcore.types import Leaves, Spec
from fbxcore.vault.files import label_of
from fbxcore.vault.keys import json_value
from fbxcore.vault.rollover import newest_of
from fbxcore.vault.segments import Segment, clipped
from fbxcore.vault.store import VaultReader, VaultWriter

FILLING_KEY = "_flashdeck/filling"
_BLOCK_STEPS = 1024
_BLOCK_BYTES = 32 << 20


def open_vault(config: BufferConfig, vaults: Path, *, is_new: bool) -> VaultWriter | None:
    """Open the vault a buffer persists to, where it goes on now, or make it.

    Args:
        is_new: whether the buffer does not exist yet.

    Raises:
        ConflictError: if it is of another spec or has other rows, or holds a part of what a new buffer was to
            begin with.
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
    try:
        _check_filled(writer) if is_new else _end_filling(writer)
    except BaseException:
        writer.close()
        raise
    return writer


@contextlib.asynccontextmanager
async def filling(writer: VaultWriter | None) -> AsyncIterator[None]:
    """Note in a vault that what comes meanwhile is of a buffer that does not exist yet, until it does."""
    if writer is not None:
        begun = json.dumps({"length": writer.length}).encode()
        await asyncio.to_thread(writer.put, {FILLING_KEY: begun})
    yield
    if writer is not None:
        await asyncio.to_thread(_end_filling, writer)


def _end_filling(writer: VaultWriter) -> None:
    if writer.get(FILLING_KEY) is not None:
        writer.put({FILLING_KEY: None})


def _check_filled(writer: VaultWriter) -> None:
    """Refuse a vault that was being filled when its buffer came to nothing: the same would be added again."""
    begun = json_value(writer, FILLING_KEY)
    if begun is not None and writer.length > begun["length"]:
        raise ConflictError(
            f"`persist_to` must name a vault without a part of another buffer's `from`, got "
            f"{label_of(writer.path)!r}, which holds {writer.length - begun['length']} such timesteps behind "
            f"its first {begun['length']}: that buffer was never finished. Name another vault, or delete it.",
            code="vault_half_filled",
            loc=("persist_to",),
        )


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
    if rows != layout.rows_in_step:
        raise InvalidArgumentError(
            f"`from` must name a vault of {layout.rows_in_step} rows (`add_batch_size`; 1 of independent "
            f"writers), got one of {rows}.",
            loc=("from", "vault"),
        )
    if len(steps) > layout.time_axis and not layout.independent:  # which `rows_for` tells
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


def rows_for(config: BufferConfig, segments: list[Segment], steps: range) -> list[Segment]:
    """Return what of a vault's segments lies in some timesteps, counted from the first, each in a new row.

    Each goes to the row with the most room, and has an end: what was open then is cut.

    Raises:
        InvalidArgumentError: if a timestep is in no segment, a segment finds no row that holds it whole, or
            a true last observation could be drawn as a step.
    """
    found = _with_ends(clipped(segments, steps.start, steps.stop))
    if config.layout.sequence_length == 1 and any(segment.final for segment in found):
        raise InvalidArgumentError(
            "`from` must mean episodes without a true last observation where sequences are of 1 timestep, "
            "got some with one. Ask for a longer `sample_sequence_length`.",
            loc=("from",),
        )
    if sum(segment.stop - segment.start for segment in found) != len(steps):
        raise InvalidArgumentError(
            "`from` must mean timesteps that independent writers added, got some that rows in lockstep did. "
            "Ask for a part with `start` and `stop`, or for `writers` 'lockstep'.",
            loc=("from",),
        )
    held, placed = [(0, row) for row in range(config.layout.rows)], []  # a heap
    for segment in found:
        steps_there, row = held[0]
        heapq.heapreplace(held, (steps_there + segment.stop - segment.start, row))
        placed.append(replace(segment, row=row))
    if max(held)[0] > config.layout.time_axis:
        raise InvalidArgumentError(
            f"`from` must mean segments that {config.layout.rows} rows of {config.layout.time_axis} "
            f"timesteps hold whole, got {len(placed)} of {len(steps)} timesteps in all. Ask for the last "
            "ones with `timesteps`, or for a longer buffer.",
            loc=("from",),
        )
    return placed


def _with_ends(segments: list[Segment]) -> list[Segment]:
    """Return those of some steps, each ended: by an end that came after its steps, or else by a cut."""
    pieces = [segment for segment in segments if segment.start < segment.stop]
    last = {segment.episode: place for place, segment in enumerate(pieces)}
    for later in segments:
        if later.start == later.stop and (place := last.get(later.episode)) is not None:
            pieces[place] = replace(pieces[place], end=later.end, metadata=later.metadata)
    return [replace(segment, end=segment.end or "cut") for segment in pieces]


async def load_runs(
    fill: Callable[[Leaves, list[Segment]], Awaitable[None]],
    reader: VaultReader,
    steps: range,
    segments: list[Segment],
) -> None:
    """Hand timesteps `[1, K, ...]` to `fill` block by block, with the segments in them (see `rows_for`)."""
    at = 0

    async def fill_next(leaves: Leaves) -> None:
        nonlocal at
        start, at = at, at + next(iter(leaves.values())).shape[1]
        await fill(leaves, clipped(segments, start, at))

    await load(fill_next, reader, steps, as_items=False)


def _plain(spec: Spec) -> Spec:
    """Return shapes and dtypes only; roles and units are words about them."""
    return {name: replace(leaf, role=None, unit=None, names=None) for name, leaf in spec.items()}
