"""What a vault's bytes are for, and what lies in the trash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.contexts import snippets, units
from app.contexts.shell import Fact, Snippet


@dataclass(frozen=True)
class TrashRow:
    """A deleted vault that can be brought back."""

    id: str
    name: str
    length: units.Quantity
    num_bytes: units.Quantity
    deleted: units.Moment | None
    until: str


def trash_row(trashed: Mapping[str, Any]) -> TrashRow:
    """One line of the trash."""
    return TrashRow(
        trashed["id"],
        f"{trashed['vault_name']}/{trashed['vault_uid']}",
        units.count(trashed["length"], "steps"),
        units.size(trashed["disk_bytes"]),
        units.moment(trashed["deleted_at"]),
        trashed["restore_until"][:16].replace("T", " "),
    )


@dataclass(frozen=True)
class Storage:
    """What a vault's bytes are for, and what a sweep would give back."""

    facts: list[Fact]
    preview_href: str
    error: str
    snippets: list[Snippet]


def storage(
    vault: Mapping[str, Any], swept: Mapping[str, Any] | None, *, base: str, has_token: bool, error: str = ""
) -> Storage | None:
    """The bytes of a vault of ours, with a sweep's dry run where one was asked for."""
    if vault["read_only"]:
        return None
    live_bytes, disk_bytes = int(vault["live_bytes"]), int(vault["disk_bytes"])
    address = quote(vault["url"], safe="/~%")
    facts = [
        _bytes("Live", live_bytes, "what it holds now"),
        _bytes("Besides", max(0, disk_bytes - live_bytes), "versions and former states"),
    ]
    if swept:
        facts += [
            _bytes("Reclaimable", swept["bytes"], "a sweep gives it back now"),
            _bytes("Waiting", swept["waiting_bytes"], "in use a moment ago; kept a while for readers"),
        ]
    give_back = [snippets.sweep_curl(base, address, has_token=has_token)] if swept and swept["bytes"] else []
    return Storage(facts, "" if swept else "?sweep=preview#storage", error, give_back)


def _bytes(name: str, number: int, note: str) -> Fact:
    size = units.size(number)
    return Fact(name, f"{size.text} {size.unit}", note)
