"""What a vault's bytes are for, and what lies in the trash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.contexts import snippets, units
from app.contexts.shell import Snippet


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

    live: units.Quantity
    rest: units.Quantity  # versions, and what is left of commits between them
    reclaimable: units.Quantity | None  # None: not asked for
    waiting: units.Quantity | None
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
    return Storage(
        units.size(live_bytes), units.size(max(0, disk_bytes - live_bytes)),
        units.size(swept["bytes"]) if swept else None,
        units.size(swept["waiting_bytes"]) if swept else None,
        "" if swept else "?sweep=preview#storage", error,
        [snippets.sweep_curl(base, address, has_token=has_token)] if swept and swept["bytes"] else [],
    )  # fmt: skip
