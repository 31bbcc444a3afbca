"""The snapshots of a buffer, as a table in which each can be restored or deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.contexts import live, units
from app.contexts.controls import Outcome


@dataclass(frozen=True)
class SnapshotRow:
    """One snapshot; `progress` says how far one is that is being written."""

    id: str
    taken: units.Moment | None
    size: units.Quantity
    num_bytes: units.Quantity
    progress: str


@dataclass(frozen=True)
class SnapshotsPanel:
    """Those shown, how many there are, and a name that a restored buffer may have."""

    rows: list[SnapshotRow]
    summary: str
    new_name: str
    outcome: Outcome


def snapshots_panel(
    state: live.State, listed: list[Mapping[str, Any]], total: int, outcome: Outcome
) -> SnapshotsPanel:
    """The table of what `GET …/snapshots` answers."""
    summary = f"{units.grouped(total)} in all" if total else ""
    if total > len(listed):
        summary += f", the last {units.grouped(len(listed))} shown"
    rows = [_row(snapshot, live.unit_of(state)) for snapshot in listed]
    name = outcome.typed.get("name") or f"{state['name'][:120]}-again"
    return SnapshotsPanel(rows, summary, name, outcome)


def _row(snapshot: Mapping[str, Any], unit: str) -> SnapshotRow:
    done = snapshot.get("progress")
    progress = f"{100 * done['done'] // max(done['total'], 1)} % written" if done else ""
    return SnapshotRow(
        snapshot["id"],
        units.moment(snapshot.get("created_at")),
        units.count(snapshot.get("size"), unit),
        units.size(snapshot.get("bytes")),
        progress,
    )
