"""The pages of live buffers: the list, and one buffer from its ring to its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlencode

from app.contexts import charts, live, snippets, units
from app.contexts.shell import Empty, Link, Page, Pill

SORTS = {"name": "Name", "size": "Held", "fill": "Fill", "add": "Added", "created": "Newest"}
KINDS = {
    "flat": "transitions, uniform",
    "item": "single items, uniform",
    "trajectory": "sequences, uniform",
    "prioritised_flat": "transitions, by priority",
    "prioritised_item": "single items, by priority",
    "prioritised_trajectory": "sequences, by priority",
    "trajectory_queue": "sequences, each once and in order",
    "clustered": "single items, each cluster as often as any other",
    "mixer": "samples of several buffers, joined",
}
FEW = 50  # buffers that one stream may tell about whole


@dataclass(frozen=True)
class BufferRow:
    """A buffer in a list."""

    name: str
    kind: str
    kind_title: str
    ready: Pill
    tape: charts.Tape
    spark: charts.Line
    size: units.Quantity
    capacity: units.Quantity
    fill: units.Quantity
    add_rate: units.Quantity
    sample_rate: units.Quantity
    num_bytes: units.Quantity
    persist_to: str
    created: units.Moment | None


def buffer_row(state: live.State, recent: Sequence[float | None] = ()) -> BufferRow:
    """One line of the list from a buffer's counters; `recent` are its last add rates."""
    short = live.short_unit_of(state)
    return BufferRow(
        name=state["name"],
        kind=state["kind"],
        kind_title=KINDS.get(state["kind"], ""),
        ready=live.ready_pill(state),
        tape=live.tape_of(state),
        spark=charts.line(recent, label=f"{short} added per second, lately"),
        size=units.count(state["size"], short),
        capacity=units.count(state["capacity"], short),
        fill=units.percent(live.fill_share(state)),
        add_rate=units.per_second(state.get("add_rate"), short),
        sample_rate=units.per_second(state.get("sample_rate"), "items"),
        num_bytes=units.size(state["bytes"]),
        persist_to=state.get("persist_to") or "",
        created=units.moment(state.get("created_at")),
    )


@dataclass(frozen=True, kw_only=True)
class BuffersPage(Page):
    """All live buffers."""

    template: ClassVar[str] = "buffers.html"
    rows: list[BufferRow]
    query: str
    sort: str
    sorts: list[Link]
    total: units.Quantity
    shown: units.Quantity
    next_href: str
    empty: Empty | None
    troubles: list[str]


def topics_of(states: Sequence[live.State], shown: Sequence[str]) -> str:
    """The event topics of a list: all buffers while they are few, else those it shows."""
    if len(states) <= FEW:
        return "buffers"
    return ",".join(["totals", *(f"buffer:{name}" for name in shown)])


def buffers_page(
    states: Sequence[live.State],
    recents: Mapping[str, Sequence[float | None]],
    *,
    base: str,
    has_token: bool,
    query: str = "",
    sort: str = "name",
    offset: int = 0,
    limit: int = 50,
    troubles: Sequence[str] = (),
) -> BuffersPage:
    """The list, filtered and sorted by what the URL says."""
    found = [s for s in states if query.lower() in s["name"].lower()]
    found.sort(key=_sort_key(sort))
    shown = found[offset : offset + limit]
    url = {"query": query, "sort": sort}
    sorts = [Link(text, f"?{urlencode(url | {'sort': key})}", key == sort) for key, text in SORTS.items()]
    following = f"?{urlencode(url | {'offset': offset + limit})}" if len(found) > offset + limit else ""
    return BuffersPage(
        title="Buffers", section="buffers", json_href="buffers.json",
        topics=topics_of(states, [s["name"] for s in shown]),
        rows=[buffer_row(s, recents.get(s["name"], ())) for s in shown],
        query=query, sort=sort, sorts=sorts, next_href=following,
        total=units.count(len(states), "buffers"), shown=units.count(len(found), "buffers"),
        empty=None if found else _empty(bool(states), query, base, has_token), troubles=list(troubles),
        data={"items": [dict(s) for s in shown], "total": {"value": len(found), "exact": True}},
    )  # fmt: skip


def _sort_key(sort: str) -> Any:
    return {
        "size": lambda s: (-s["size"], s["name"]),
        "fill": lambda s: (-live.fill_share(s), s["name"]),
        "add": lambda s: (-s["added"], s["name"]),
        "created": lambda s: (-(units.parse_time(s.get("created_at")) or units.EPOCH).timestamp(), s["name"]),
    }.get(sort, lambda s: s["name"])


def _empty(has_others: bool, query: str, base: str, has_token: bool) -> Empty:
    if has_others:
        return Empty(f"No buffer has “{query}” in its name.", "Clear the filter to see the others.")
    return no_buffers(base, has_token)


def no_buffers(base: str, has_token: bool) -> Empty:
    """What to do when there is no buffer yet."""
    return Empty(
        "No live buffers yet.",
        "Create one over HTTP; actors can add to it at once. Running this twice changes nothing.",
        [snippets.create_curl(base, has_token=has_token), snippets.demo_shell()],
    )
