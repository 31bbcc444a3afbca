"""A slice on the page of a vault: a few timesteps of one row as a table, and where to go from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from app.contexts import snippets, units
from app.contexts.cells import Cell, Column, cell, shape_text
from app.contexts.shell import Link

PAGE = 20  # steps of a slice on one page
MOST = 200  # steps somebody may ask a page for
FORMATS = {"npz": "npz", "safetensors": "safetensors", "json": "JSON"}


@dataclass(frozen=True)
class SliceRow:
    """One timestep."""

    step: str
    cells: list[Cell]


@dataclass(frozen=True)
class LeafChoice:
    """A leaf in the form that chooses columns."""

    name: str
    is_chosen: bool


@dataclass(frozen=True)
class SliceTable:
    """A few timesteps of one row of a vault."""

    columns: list[Column]
    steps: list[SliceRow]
    start: int
    stop: int
    row: int
    last_row: int
    ref: str
    leaves: list[LeafChoice]
    range_text: str
    previous_href: str
    next_href: str
    downloads: list[Link]
    query: str  # of `GET …/slice` for these steps
    error: str


@dataclass(frozen=True)
class Asked:
    """What the URL says about the slice."""

    ref: str = "head"
    start: int = 0
    stop: int = PAGE
    row: int = 0
    leaves: tuple[str, ...] = ()


def asked(
    vault: Mapping[str, Any],
    *,
    ref: str,
    start: int | None,
    stop: int | None,
    row: int,
    leaves: tuple[str, ...],
) -> Asked:
    """The slice of a URL, cut to what one page shows; it begins with the oldest step there is."""
    start = vault["first"] if start is None else start
    stop = start + PAGE if stop is None else min(stop, start + MOST)
    return Asked(ref, start, stop, row, leaves)


def slice_table(
    arrays: Mapping[str, np.ndarray], spec: Mapping[str, Any], asked: Asked, *,
    length: int, rows: int, api: str, first: int = 0, error: str = "",
) -> SliceTable:  # fmt: skip
    """The table of a slice `[1, t, …]` of one row, with where to go from here."""
    flat = snippets.spec_of(spec)
    steps = min((a.shape[1] for a in arrays.values()), default=0)
    columns = [
        Column(
            name, flat[name].dtype, shape_text(flat[name].shape), not flat[name].shape, flat[name].role or ""
        )
        for name in arrays
    ]
    lines = [
        SliceRow(units.grouped(asked.start + t), [cell(np.asarray(a[0, t])) for a in arrays.values()])
        for t in range(steps)
    ]
    stop = asked.start + steps
    text = f"steps {asked.start:,} to {stop - 1:,} of {length:,}" if steps else f"no steps of {length:,}"
    chosen = asked.leaves or tuple(flat)
    query = _slice_query(asked, stop)
    return SliceTable(
        columns, lines, asked.start, max(stop, asked.stop), asked.row, rows - 1, asked.ref,
        [LeafChoice(name, name in chosen) for name in flat], text,
        _page_href(asked, asked.start - PAGE, length, first),
        _page_href(asked, stop, length) if steps else "",
        _downloads(api, query) if steps else [], query, error,
    )  # fmt: skip


def _page_href(asked: Asked, start: int, length: int, first: int = 0) -> str:
    """Another page of the same slice; empty where there is none."""
    if start >= length or start <= first - PAGE:
        return ""
    start = max(start, first)
    query = {"ref": asked.ref, "start": start, "stop": start + PAGE, "row": asked.row, "leaf": asked.leaves}
    return f"?{urlencode(query, doseq=True)}#slice"


def _slice_query(asked: Asked, stop: int) -> str:
    query = {"ref": asked.ref, "start": asked.start, "stop": stop}
    return urlencode(query | ({"leaves": ",".join(asked.leaves)} if asked.leaves else {}))


def _downloads(api: str, query: str) -> list[Link]:
    return [
        Link(text, f"{api}/slice?{query}&format={key}", title=f"these steps of every row as {text}")
        for key, text in FORMATS.items()
    ]
