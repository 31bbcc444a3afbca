"""The writers of a buffer whose rows advance on their own, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.contexts import units

SHOWN = 50


@dataclass(frozen=True)
class WriterRow:
    """One writer."""

    name: str
    row: str
    episode: str
    steps: str
    seen: units.Moment | None
    sequence: str


@dataclass(frozen=True)
class WritersPanel:
    """Those seen last, and how many there are."""

    rows: list[WriterRow]
    summary: str


def writers_panel(states: Sequence[Mapping[str, Any]], num_rows: int) -> WritersPanel:
    """The table of what `GET …/writers` answers; open episodes first, then who was seen last."""
    num_open = sum(state["episode"] is not None for state in states)
    by_use = sorted(
        states, key=lambda s: (s["episode"] is None, s["idle_s"] is None, s["idle_s"] or 0, s["writer"])
    )
    in_use = f"{units.grouped(num_open)} of {units.grouped(num_rows)} rows in an episode"
    summary = f"{in_use}, {_writers(len(states))}"
    if len(states) > SHOWN:
        summary += f", {SHOWN} shown"
    return WritersPanel([_row(state) for state in by_use[:SHOWN]], summary)


def _row(state: Mapping[str, Any]) -> WriterRow:
    episode = state["episode"] or {}
    return WriterRow(
        name=state["writer"],
        row=_number(state["row"]),
        episode=_number(episode.get("index")),
        steps=_number(episode.get("steps")),
        seen=units.moment(state["last_seen"]),
        sequence=_number(state["sequence"]),
    )


def _number(value: int | None) -> str:
    return "–" if value is None else units.grouped(value)


def _writers(count: int) -> str:
    return f"{units.grouped(count)} writer{'' if count == 1 else 's'}"
