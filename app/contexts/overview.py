"""The first page: what is there, what moves, what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from app.contexts import live, units
from app.contexts.buffers import BufferRow, buffer_row, no_buffers, topics_of
from app.contexts.shell import Empty, Page
from app.contexts.vaults import VaultRow, no_vaults, vault_row

SHOWN = 6


@dataclass(frozen=True)
class Figure:
    """A number of the headline."""

    label: str
    value: units.Quantity
    live: str = ""
    tone: str = ""


@dataclass(frozen=True, kw_only=True)
class OverviewPage(Page):
    """The deck at a glance."""

    template: ClassVar[str] = "overview.html"
    figures: list[Figure]
    buffers: list[BufferRow]
    more_buffers: str
    vaults: list[VaultRow]
    more_vaults: str
    no_buffers: Empty | None
    no_vaults: Empty | None
    data_directory: str
    troubles: list[str]


def overview_page(
    states: Sequence[live.State],
    recents: Mapping[str, Sequence[float | None]],
    vaults: Mapping[str, Any],
    *,
    base: str,
    has_token: bool,
    data_directory: str,
    troubles: Sequence[str] = (),
) -> OverviewPage:
    """The overview from counters and the first vaults of the catalogue."""
    busiest = sorted(states, key=lambda s: (-(s.get("add_rate") or 0), -s["added"], s["name"]))[:SHOWN]
    total, rows = vaults["total"]["value"], vaults["items"][:SHOWN]
    return OverviewPage(
        title="Overview", section="overview", json_href="overview.json",
        topics=topics_of(states, [s["name"] for s in busiest]),
        figures=_figures(states, total),
        buffers=[buffer_row(s, recents.get(s["name"], ())) for s in busiest],
        more_buffers=_more(len(states), "buffers"),
        vaults=[vault_row(v) for v in rows], more_vaults=_more(total, "vaults"),
        no_buffers=None if states else no_buffers(base, has_token),
        no_vaults=None if rows else no_vaults(base, has_token),
        data_directory=data_directory, troubles=list(troubles),
        data={"buffers": [dict(s) for s in busiest], "vaults": rows, "totals": _totals(states, total)},
    )  # fmt: skip


def _figures(states: Sequence[live.State], vaults: int) -> list[Figure]:
    states = [state for state in states if state["kind"] != "mixer"]  # which count with their members
    return [
        Figure("Live buffers", units.count(len(states))),
        Figure("Held now", units.count(sum(s["size"] for s in states), "steps"), "size"),
        Figure(
            "Adding",
            units.per_second(sum(s.get("add_rate") or 0 for s in states), "steps"),
            "add_rate",
            "add",
        ),
        Figure(
            "Sampling",
            units.per_second(sum(s.get("sample_rate") or 0 for s in states), "items"),
            "sample_rate",
            "sample",
        ),
        Figure("Memory", units.size(sum(s["bytes"] for s in states))),
        Figure("Vaults", units.count(vaults)),
    ]


def _totals(states: Sequence[live.State], vaults: int) -> dict[str, Any]:
    names = ("size", "added", "sampled", "bytes")
    states = [state for state in states if state["kind"] != "mixer"]
    return {"buffers": len(states), "vaults": vaults} | {n: sum(s[n] for s in states) for n in names}


def _more(total: int, what: str) -> str:
    return f"All {total:,} {what}" if total > SHOWN else f"All {what}"
