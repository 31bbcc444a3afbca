"""The page of one mixer: its members and what each gives, rates, a sample to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from app.contexts import charts, live, snippets, units
from app.contexts.buffers import KINDS
from app.contexts.cells import Column, schema_columns
from app.contexts.samples import SampleTable
from app.contexts.shell import Fact, Link, Page, Pill, Snippet


@dataclass(frozen=True)
class MemberRow:
    """A buffer that is mixed."""

    name: str
    kind: str
    ready: Pill
    proportion: str
    items: units.Quantity
    size: units.Quantity


@dataclass(frozen=True, kw_only=True)
class MixerPage(Page):
    """One mixer."""

    template: ClassVar[str] = "mixer.html"
    name: str
    kind: str
    kind_title: str
    ready: Pill
    why_not: str
    members: list[MemberRow]
    sample_rate: units.Quantity
    sampled: str
    chart: charts.TimeChart
    windows: list[Link]
    sample: SampleTable | None
    sample_href: str
    sample_error: str
    columns: list[Column]
    facts: list[Fact]
    snippets: list[Snippet]


def mixer_page(
    state: live.State,
    *,
    chart: charts.TimeChart,
    windows: list[Link],
    sample: SampleTable | None,
    sample_error: str,
    next_seed: int,
    base: str,
    has_token: bool,
    data: Mapping[str, Any],
) -> MixerPage:
    """The page of one mixer from what the services said about it."""
    name, text = state["name"], live.texts(state)
    return MixerPage(
        title=name, section="buffers", topics=f"buffer:{name}", json_href=f"{name}.json",
        crumbs=[Link("Buffers", "buffers")],
        name=name, kind=state["kind"], kind_title=KINDS[state["kind"]],
        ready=live.ready_pill(state), why_not=live.why_not(state),
        members=[_member(told) for told in state["members"]],
        sample_rate=units.per_second(state.get("sample_rate"), "items"), sampled=text["sampled"],
        chart=chart, windows=windows,
        sample=sample, sample_error=sample_error, sample_href=f"?seed={next_seed}#sample",
        columns=schema_columns(state["spec"]), facts=_facts(state),
        snippets=_snippets(state, base, has_token), data=data,
    )  # fmt: skip


def _member(told: Mapping[str, Any]) -> MemberRow:
    ready = Pill("ready", "good", "can be sampled") if told["can_sample"] else Pill("filling", "warn")
    return MemberRow(
        told["name"], told["kind"], ready, f"{told['proportion']:g}", units.count(told["items"], "items"),
        units.count(told["size"], live.short_unit_of(told)),
    )  # fmt: skip


def _facts(state: live.State) -> list[Fact]:
    found = [
        Fact("Kind", state["kind"], KINDS[state["kind"]]),
        Fact("sample_batch_size", f"{state['config']['sample_batch_size']:,}"),
    ]
    created = units.moment(state.get("created_at"))
    return [*found, Fact("Created", created.text, created.ago)] if created else found


def _snippets(state: live.State, base: str, has_token: bool) -> list[Snippet]:
    name, spec = state["name"], snippets.spec_of(state["spec"])
    flat = "flat" in state["members"][0]["kind"]
    return [
        snippets.sample_python(base, name, spec, flat=flat, has_token=has_token),
        snippets.sample_curl(base, name, has_token=has_token),
    ]
