"""The page of one live buffer: its ring, rates, distribution, a sample, and what it is made of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from app.contexts import charts, live, snippets, units
from app.contexts.buffers import KINDS
from app.contexts.cells import Column, schema_columns
from app.contexts.controls import Controls
from app.contexts.samples import SampleTable
from app.contexts.shell import Fact, Link, Page, Pill, Snippet
from app.contexts.snapshots import SnapshotsPanel
from app.contexts.writers import WritersPanel
from fbxcore.live import DURABILITIES
from fbxcore.spec import timestep_bytes

FIELDS = {"priority": "Priority", "age": "Age", "cluster": "Cluster"}


@dataclass(frozen=True)
class Tile:
    """One large number."""

    label: str
    value: units.Quantity
    live: str  # the event field
    note: str
    note_live: str = ""
    note_value: str = ""
    tone: str = ""


@dataclass(frozen=True)
class HistogramPanel:
    """A distribution over the buffer's items, with what it was counted from."""

    fields: list[Link]
    field: str
    chart: charts.Histogram | None
    quality: Pill
    why_empty: str
    counted: units.Moment | None = None  # the page's other numbers move on


@dataclass(frozen=True)
class VaultLink:
    """The vault a buffer persists to."""

    text: str
    name_in_url: str
    uid: str


def vault_link(persist_to: str | None) -> VaultLink | None:
    """Where a buffer's steps are kept."""
    if not persist_to:
        return None
    name, _, uid = persist_to.rpartition("/")
    return VaultLink(persist_to, name.replace("/", "~"), uid)


@dataclass(frozen=True, kw_only=True)
class BufferPage(Page):
    """One live buffer."""

    template: ClassVar[str] = "buffer.html"
    name: str
    kind: str
    kind_title: str
    ready: Pill
    why_not: str
    tape: charts.Tape
    fill: units.Quantity
    size: units.Quantity
    capacity: units.Quantity
    head: str
    time_axis: str
    laps: str
    tiles: list[Tile]
    chart: charts.TimeChart
    windows: list[Link]
    histogram: HistogramPanel
    sample: SampleTable | None
    sample_href: str
    sample_error: str
    is_queue: bool
    columns: list[Column]
    timestep: units.Quantity
    facts: list[Fact]
    safety: list[Fact]
    risk: Pill
    warnings: list[str]
    fault: str
    vault: VaultLink | None
    controls: Controls
    snapshots: SnapshotsPanel
    snippets: list[Snippet] = field(default_factory=list)
    writers: WritersPanel | None = None  # of independent ones


def tiles(state: live.State) -> list[Tile]:
    """The large numbers of a buffer."""
    short, text = live.short_unit_of(state), live.texts(state)
    adding = Tile(
        "Adding", units.per_second(state.get("add_rate"), short), "add_rate",
        f"{short} added in all", "added", text["added"], "add",
    )  # fmt: skip
    if live.is_queue(state):
        return [adding, *_queue_tiles(state, text)]
    return [
        adding,
        Tile(
            "Sampling", units.per_second(state.get("sample_rate"), "items"), "sample_rate",
            "items handed out in all", "sampled", text["sampled"], "sample",
        ),
        Tile(
            "Sampled per added", units.ratio(state["sampled"], state["added"]), "ratio",
            f"items for each of the {short} added",
        ),
        Tile("Memory", units.size(state["bytes"]), "", "for the ring, reserved when it was created"),
    ]  # fmt: skip


def _queue_tiles(state: live.State, text: Mapping[str, str]) -> list[Tile]:
    return [
        Tile(
            "Taking", units.per_second(state.get("sample_rate"), "items"), "sample_rate",
            "steps taken in all", "taken", text["taken"], "sample",
        ),
        Tile(
            "Waiting", units.count(state["waiting"], "steps"), "waiting",
            "steps reserved for a repeat", "reserved", text["reserved"],
        ),
        Tile("Memory", units.size(state["bytes"]), "", "for the queue, reserved when it was created"),
    ]  # fmt: skip


def facts(state: live.State) -> list[Fact]:
    """Configuration as it took effect."""
    unit = live.unit_of(state)
    found = [
        Fact("Kind", state["kind"], KINDS.get(state["kind"], "")),
        Fact("Capacity", f"{units.grouped(state['capacity'])} {unit}", "over all rows"),
        Fact("Rows", units.grouped(state["rows"])),
        Fact("Time axis", f"{units.grouped(state['time_axis'])} slots", "per row"),
    ]
    hidden = {
        "name", "kind", "spec", "persist_to", "durability", "writers", "rate_limiter", "add_batch_size",
        "from",
    }  # fmt: skip
    config = state.get("config") or {}
    for name, value in config.items():
        if name not in hidden and value is not None:
            found.append(Fact(name, value if isinstance(value, str) else f"{value:,}"))
    found.append(Fact("Rate limiter", _limiter_text(state.get("limiter"))))
    if source := config.get("from"):
        found.append(Fact("Began with", _source_text(source)))
    created = units.moment(state.get("created_at"))
    if created:
        found.append(Fact("Created", created.text, created.ago))
    return found


def _source_text(source: Mapping[str, Any]) -> str:
    """Return a source in the words it was given in: `vault a/b, ref v3`."""
    return ", ".join(f"{name} {value}" for name, value in source.items())


def _limiter_text(limiter: Any) -> str:
    if not isinstance(limiter, Mapping):
        return "none"
    per_insert, least, error = (limiter.get(n, 0) for n in ("samples_per_insert", "min_size", "error_buffer"))
    return f"{per_insert:g} samples per insert, from {least:,} on, ± {error:,g}"


def safety(state: live.State) -> list[Fact]:
    """What becomes of the data, and what could be lost."""
    found = [Fact("Durability", state["durability"], DURABILITIES.get(state["durability"], ""))]
    found.append(_kept_in(state))
    if (persisted := state.get("persisted")) is not None:
        length, pending = units.grouped(persisted["length"]), units.grouped(persisted["pending"])
        note = persisted.get("error") or f"in each row, {pending} of them still only in the log"
        found.append(Fact("Vault holds", f"{length} steps", note))
    writers = (state.get("config") or {}).get("writers", "lockstep")
    note = "all rows advance together" if writers == "lockstep" else "each has a row for an episode"
    return [*found, Fact("Writers", writers, note)]


def _kept_in(state: live.State) -> Fact:
    queue = live.is_queue(state)
    if state.get("persist_to"):
        when = "it was taken" if queue else "the ring has overwritten it"
        return Fact("Kept in", state["persist_to"], f"every step, also after {when}")
    if queue:
        return Fact("Kept in", "the queue only", "taken steps are gone; persist_to would keep them")
    return Fact("Kept in", "the ring only", "overwritten steps are gone; persist_to would keep them")


def risk_pill(state: live.State) -> Pill:
    """Durability in a word."""
    tone = {"fsync": "good", "os": "warn"}.get(state["durability"], "bad")
    text = {"fsync": "survives power loss", "os": "survives a crash"}.get(state["durability"], "memory only")
    return Pill(text, tone, DURABILITIES.get(state["durability"], ""))


def fields_of(state: live.State) -> list[str]:
    """What a histogram can be of, the most telling first."""
    if state["kind"] == "clustered":
        return ["cluster"]
    return ["priority", "age"] if str(state["kind"]).startswith("prioritised") else ["age"]


def histogram_panel(
    state: live.State, answer: Mapping[str, Any] | None, field: str, why_empty: str = ""
) -> HistogramPanel:
    """The drawn histogram of an answer of `GET …/histogram`."""
    names = {name: FIELDS[name] for name in fields_of(state)}
    links = [Link(text, f"?field={key}#distribution", key == field) for key, text in names.items()]
    if answer is None:
        return HistogramPanel(links, field, None, Pill("nothing to count"), why_empty or "No items yet.")
    extent = (answer["min"], answer["max"]) if answer["count"] else None
    chart = charts.histogram(answer["edges"], answer["counts"], extent, "items")
    counted = units.moment(datetime.now(UTC))
    return HistogramPanel(links, field, chart, quality_pill(answer), why_empty or "No items yet.", counted)


def quality_pill(answer: Mapping[str, Any]) -> Pill:
    """How far a statistic can be trusted: exact, sampled or stale."""
    if answer.get("stale_since"):
        since = units.moment(answer["stale_since"])
        return Pill(f"stale since {since.ago if since else '?'}", "warn")
    if answer.get("exact", True) is False:
        of = units.grouped(answer.get("of") or answer.get("total"))
        return Pill(f"sampled ({units.grouped(answer.get('count'))} of {of})", "warn")
    return Pill("exact", "quiet", "counted over everything the buffer holds")


Timed = tuple[str, str, str, Sequence[float], Sequence[float | None]]


def time_chart(series: Sequence[Timed]) -> charts.TimeChart:
    """A chart of (name, label, unit, seconds, values), all over the seconds of the first."""
    seconds = list(series[0][3]) if series else []
    values = [[_finite(v) for v in s[4]] for s in series]
    known = [v for vs in values for v in vs if v is not None]
    top = max(known, default=0.0)
    lines = [
        charts.Series(name, label, unit, charts.line(vs, width=720, height=200, label=label, top=top))
        for (name, label, unit, _, _), vs in zip(series, values, strict=True)
    ]
    span = seconds[-1] - seconds[0] if len(seconds) > 1 else 0.0
    return charts.TimeChart(
        json.dumps([seconds, *values]), lines, units.per_second(top, "").text, units.duration(span), not known
    )


def rates_chart(state: live.State, rates: Mapping[str, Sequence[float]]) -> charts.TimeChart:
    """Added and sampled a second over time."""
    short, out = live.short_unit_of(state), "taken" if live.is_queue(state) else "sampled"
    return time_chart(
        [
            ("added", "added", f"{short}/s", rates["times"], rates["added"]),
            ("sampled", out, "items/s", rates["times"], rates["sampled"]),
        ]
    )


def windows(names: Mapping[str, str], current: str) -> list[Link]:
    """Links to the times a chart can show."""
    chosen = current if current in names else next(iter(names))
    return [Link(text, f"?window={key}", key == chosen) for key, text in names.items()]


def _finite(v: float | None) -> float | None:
    return None if v is None or not math.isfinite(v) else round(v, 4)


def buffer_page(
    state: live.State,
    *,
    chart: charts.TimeChart,
    windows: list[Link],
    histogram: HistogramPanel,
    sample: SampleTable | None,
    sample_error: str,
    next_seed: int,
    base: str,
    has_token: bool,
    data: Mapping[str, Any],
    controls: Controls,
    snapshots: SnapshotsPanel,
    fault: str = "",
    writers: WritersPanel | None = None,
) -> BufferPage:
    """The page of one buffer from what the services said about it; `fault` keeps steps out of its vault."""
    name, text = state["name"], live.texts(state)
    spec = snippets.spec_of(state["spec"])
    return BufferPage(
        title=name, section="buffers", topics=f"buffer:{name}", json_href=f"{name}.json",
        crumbs=[Link("Buffers", "buffers")],
        name=name, kind=state["kind"], kind_title=KINDS.get(state["kind"], ""),
        ready=live.ready_pill(state), why_not=live.why_not(state), tape=live.tape_of(state),
        fill=units.percent(live.fill_share(state)), size=units.count(state["size"], live.unit_of(state)),
        capacity=units.count(state["capacity"], live.unit_of(state)),
        head=text["head"], time_axis=units.grouped(state["time_axis"]), laps=text["laps"],
        tiles=tiles(state), chart=chart, windows=windows, histogram=histogram,
        is_queue=live.is_queue(state),
        sample=sample, sample_error=sample_error, sample_href=f"?seed={next_seed}#sample",
        columns=schema_columns(state["spec"]), timestep=units.size(timestep_bytes(spec)),
        facts=facts(state), safety=safety(state), risk=risk_pill(state),
        warnings=[str(w) for w in state.get("warnings") or ()], fault=fault,
        vault=vault_link(state.get("persist_to")), snippets=_snippets(state, base, has_token),
        data=data, controls=controls, snapshots=snapshots, writers=writers,
    )  # fmt: skip


def _snippets(state: live.State, base: str, has_token: bool) -> list[Snippet]:
    name, rows, spec = state["name"], int(state["rows"]), snippets.spec_of(state["spec"])
    as_what = "run" if live.is_independent(state) else live.unit_of(state)
    if live.is_queue(state):
        out = [
            snippets.take_python(base, name, spec, has_token=has_token),
            snippets.take_curl(base, name, has_token=has_token),
        ]
    else:
        out = [
            snippets.sample_python(base, name, spec, flat="flat" in state["kind"], has_token=has_token),
            snippets.sample_curl(base, name, has_token=has_token),
        ]
    found = [
        *out,
        snippets.add_python(base, name, spec, rows, as_what=as_what, has_token=has_token),
        snippets.add_curl(base, name, spec, rows, as_what=as_what, has_token=has_token),
    ]
    return [s for s in found if s is not None]
