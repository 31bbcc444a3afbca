"""Sampled items as a table: a line per item for transitions, a line per step for sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.contexts import units
from app.contexts.cells import Cell, Column, cell, shape_text

ITEMS = 5  # shown of a sampled batch
SEQUENCES, STEPS = 3, 5  # shown where an item has many steps


@dataclass(frozen=True)
class SampleRow:
    """One line: an item, or one step of it."""

    item: str  # empty on all but the first line of an item
    step: str
    probability: str
    cells: list[Cell]
    begins: bool


@dataclass(frozen=True)
class SampleTable:
    """A few sampled items, with what it takes to draw them again."""

    columns: list[Column]
    rows: list[SampleRow]
    has_steps: bool
    has_probabilities: bool
    seed: str
    position: str
    note: str


def sample_table(
    arrays: Mapping[str, np.ndarray], *, items: bool, flat: bool, seed: int, position: int
) -> SampleTable:
    """The table of a sample's arrays, named as on the wire.

    Args:
        arrays: `experience/<leaf>` `[N, …]` (items), `[N, L, …]` (sequences), or
            `experience/first/<leaf>` and `experience/second/<leaf>` `[N, …]` (transitions).
    """
    experience = {k.removeprefix("experience/"): v for k, v in arrays.items() if k.startswith("experience/")}
    has_steps = not (items or flat)
    leading = 2 if has_steps else 1
    columns = [
        Column(name, a.dtype.name, shape_text(a.shape[leading:]), a.ndim == leading)
        for name, a in experience.items()
    ]
    drawn = len(next(iter(experience.values())))
    length = next(iter(experience.values())).shape[1] if has_steps else 1
    shown = min(drawn, SEQUENCES if has_steps else ITEMS)
    rows = [
        _row(arrays, experience, n, t if has_steps else None)
        for n in range(shown)
        for t in range(min(length, STEPS))
    ]
    return SampleTable(
        columns, rows, has_steps, "probabilities" in arrays, str(seed), units.grouped(position),
        _note(drawn, shown, length if has_steps else None),
    )  # fmt: skip


def _row(arrays: Mapping[str, np.ndarray], experience: Mapping, n: int, t: int | None) -> SampleRow:
    begins = not t
    at = (n,) if t is None else (n, t)
    item = str(arrays["indices"][n]) if "indices" in arrays else str(n)
    probability = units.value(float(arrays["probabilities"][n])) if "probabilities" in arrays else ""
    cells = [cell(np.asarray(a[at])) for a in experience.values()]
    item, probability = (item, probability) if begins else ("", "")
    return SampleRow(item, "" if t is None else str(t), probability, cells, begins)


def _note(drawn: int, shown: int, length: int | None) -> str:
    parts = [] if drawn <= shown else [f"{shown} of {drawn} items"]
    if length is not None and length > STEPS:
        parts.append(f"{STEPS} of {length} steps each")
    return f"Shown: {', '.join(parts)}." if parts else ""
