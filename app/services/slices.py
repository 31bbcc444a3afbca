"""Slices of vaults: what is asked for, what it is called, and its arrays."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.services import vaults
from app.services.deck import Deck, VaultEntry
from app.services.entries import read as read_vault
from fbxcore.errors import InvalidArgumentError
from fbxcore.spec import leaf_bytes
from fbxcore.vault.slices import resolve_slice
from fbxcore.vault.store import VaultReader
from fbxcore.vault.versions import Version

_ROWS = re.compile(r"(-?\d{1,18})?:(-?\d{1,18})?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Asked:
    """A slice as the query says it."""

    ref: str | None = None
    start: int | None = None
    stop: int | None = None
    step: int | None = None
    timesteps: int | None = None
    percentiles: str | Sequence[float] | None = None
    rows: str | None = None
    leaves: str | None = None


@dataclass(frozen=True)
class Slice:
    """A slice resolved on one version: which arrays, and how to name them."""

    version: Version | None  # None: what is acknowledged now
    generation: int | None
    steps: range
    rows: range
    leaves: tuple[str, ...]
    is_fixed: bool  # the ref can never mean other bytes

    @property
    def version_name(self) -> str:
        """`3`, or `head`."""
        return str(self.version.number) if self.version else "head"


async def resolve(deck: Deck, entry: VaultEntry, asked: Asked) -> Slice:
    """Return the slice that is asked for, if one answer can hold it."""
    found = await find(deck, entry, asked)
    _check_size(deck, entry, found)
    return found


async def find(deck: Deck, entry: VaultEntry, asked: Asked, *, commits: bool = True) -> Slice:
    """Return the slice that is asked for, of any size; nothing of the arrays is read yet.

    Args:
        commits: whether the head is what is acknowledged; else it is what the files hold.
    """
    if entry.facts.error is not None:
        raise entry.facts.error
    version = entry.facts.resolve(asked.ref)
    if version is None:
        if commits:
            await vaults.commit(deck, entry)
        await deck.refresh(entry)
    facts = entry.facts
    steps = resolve_slice(
        version.length if version else facts.length,
        first=version.first if version else facts.first,
        start=asked.start,
        stop=asked.stop,
        step=asked.step,
        timesteps=asked.timesteps,
        percentiles=asked.percentiles,
    )
    return Slice(
        version,
        version.generation if version else facts.generation,
        steps,
        _rows(asked.rows, facts.rows),
        _leaves(asked.leaves, tuple(facts.spec)),
        version is not None and re.fullmatch(r"v?\d+|sha256-.*", asked.ref or "") is not None,
    )


async def read(deck: Deck, entry: VaultEntry, found: Slice) -> dict[str, np.ndarray]:
    """Return the arrays `[B, t, ...]`."""

    steps = found.steps if found.steps.step > 0 else found.steps[::-1]

    def run(reader: VaultReader) -> dict[str, np.ndarray]:
        rows = slice(found.rows.start, found.rows.stop)
        arrays = reader.read(steps.start, steps.stop, step=steps.step, rows=rows, leaves=found.leaves)
        if found.steps.step > 0:
            return arrays
        return {name: np.ascontiguousarray(array[:, ::-1]) for name, array in arrays.items()}

    return await read_vault(deck.reads, run, entry, found.generation)


def etag(entry: VaultEntry, found: Slice, format: str, encoding: str | None) -> str:
    """Return a strong validator: equal for equal bytes, and known before they are read."""
    made = entry.facts.fingerprint.split("|")[1]  # another vault of the same name is another vault
    what = (
        entry.place.key, made, found.generation, found.version.digest if found.version else "", found.steps,
        found.rows, found.leaves, format, encoding,
    )  # fmt: skip
    return f'"{hashlib.sha256(repr(what).encode()).hexdigest()[:32]}"'


def file_name(entry: VaultEntry, found: Slice, format: str) -> str:
    """Return a name such as `cartpole-run1-v3-0-1000.npz`."""
    version = f"v{found.version.number}" if found.version else "head"
    steps = found.steps
    parts = [entry.place.vault_name, entry.place.vault_uid, version, str(steps.start), str(steps.stop)]
    parts += [str(steps.step)] if steps.step != 1 else []
    return f"{_UNSAFE.sub('_', '-'.join(parts))}.{format}"


def _rows(text: str | None, rows: int) -> range:
    if text is None:
        return range(rows)
    if (match := _ROWS.fullmatch(text)) is None:
        raise InvalidArgumentError(f"`rows` must be `a:b`, got {text!r:.80}.", loc=("query", "rows"))
    start, stop = (int(part) if part else None for part in match.groups())
    chosen = range(rows)[start:stop]
    if len(chosen) == 0:
        raise InvalidArgumentError(
            f"`rows` must hold at least one of the {rows} rows, got {text!r:.80}.", loc=("query", "rows")
        )
    return chosen


def _leaves(text: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return known
    chosen = tuple(text.split(","))
    for name in chosen:
        if name not in known:
            raise InvalidArgumentError(
                f"`leaves` must name leaves of the vault, which has {', '.join(f'`{n}`' for n in known)}, "
                f"got {name!r:.80}.",
                loc=("query", "leaves"),
            )
    return tuple(name for name in known if name in chosen)


def _check_size(deck: Deck, entry: VaultEntry, found: Slice) -> None:
    spec: Any = entry.facts.spec
    size = sum(leaf_bytes(spec[name]) for name in found.leaves) * len(found.rows) * len(found.steps)
    if size > deck.settings.max_response_bytes:
        each = max(1, deck.settings.max_response_bytes * max(1, len(found.steps)) // size)
        raise InvalidArgumentError(
            f"`stop` must ask for at most {deck.settings.max_response_bytes} bytes, got {len(found.steps)} "
            f"timesteps of {size} bytes together. Ask for {each} timesteps at a time.",
            code="limit_exceeded",
            loc=("query", "stop"),
            export={"vault": entry.place.key, "ref": found.version_name, "format": "npz"},
        )
