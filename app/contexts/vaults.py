"""The pages of vaults: the catalogue, and one vault with its versions and a slice of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from app.contexts import live, snippets, units
from app.contexts.cells import Column, schema_columns
from app.contexts.shell import Empty, Fact, Link, Page, Pill, Snippet
from app.contexts.slices import Asked, SliceTable
from app.contexts.storage import Storage, TrashRow, trash_row
from fbxcore.spec import timestep_bytes

SORTS = {"name": "Name", "-length": "Longest", "-updated_at": "Changed"}
TRASH_SHOWN = 20


@dataclass(frozen=True)
class VaultRow:
    """A vault in a list."""

    vault_name: str
    vault_uid: str
    name_in_url: str
    live_name: str
    length: units.Quantity
    rows: units.Quantity
    leaves: str
    versions: units.Quantity
    num_bytes: units.Quantity
    state: Pill | None
    changed: units.Moment | None


def vault_row(vault: Mapping[str, Any]) -> VaultRow:
    """One line of the list from the stored columns of a vault."""
    return VaultRow(
        vault_name=vault["vault_name"],
        vault_uid=vault["vault_uid"],
        name_in_url=vault["url"].rpartition("/")[0],
        live_name=live_name(vault),
        length=units.count(vault.get("length"), "steps"),
        rows=units.count(vault.get("rows"), "rows"),
        leaves=leaves_text(vault.get("spec") or {}),
        versions=units.count(vault["versions"], "versions"),
        num_bytes=units.size(vault.get("disk_bytes")),
        state=state_pill(vault),
        changed=units.moment(vault.get("updated_at")),
    )


def live_name(vault: Mapping[str, Any]) -> str:
    """The name events know a vault by."""
    return f"{vault['vault_name']}/{vault['vault_uid']}"


def leaves_text(spec: Mapping[str, Any]) -> str:
    """The first leaves of a spec in a line."""
    names = list(snippets.spec_of(spec))
    more = f" +{len(names) - 4}" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def state_pill(vault: Mapping[str, Any]) -> Pill | None:
    """What is special about a vault: something wrong, read only, written by a buffer now."""
    if vault.get("error"):
        return Pill(str(vault["state"]).replace("_", " "), "bad", str(vault["error"]))
    if vault.get("buffer"):
        return Pill("recording", "good", f"buffer {vault['buffer']} appends to it")
    if vault.get("read_only"):
        return Pill("read only", "quiet", "found in a folder of existing vaults; nothing is written into it")
    return None


@dataclass(frozen=True, kw_only=True)
class VaultsPage(Page):
    """All vaults."""

    template: ClassVar[str] = "vaults.html"
    rows: list[VaultRow]
    query: str
    sort: str
    sorts: list[Link]
    total: units.Quantity
    next_href: str
    empty: Empty | None
    trash: list[TrashRow]
    trash_note: str


def vaults_page(
    answer: Mapping[str, Any],
    trash: Sequence[Mapping[str, Any]] = (),
    *,
    query: str,
    sort: str,
    base: str,
    has_token: bool,
) -> VaultsPage:
    """The catalogue from an answer of `GET /vaults`."""
    rows = [vault_row(v) for v in answer["items"]]
    state = {"query": query, "sort": sort}
    following = f"?{urlencode(state | {'next': answer['next']})}" if answer.get("next") else ""
    return VaultsPage(
        title="Vaults", section="vaults", topics="vaults", json_href="vaults.json",
        rows=rows, query=query, sort=sort, next_href=following,
        sorts=[
            Link(text, f"?{urlencode(state | {'sort': key})}", key == sort) for key, text in SORTS.items()
        ],
        total=units.count(answer["total"]["value"], "vaults"),
        empty=None if rows else _empty(query, base, has_token),
        trash=[trash_row(t) for t in trash[:TRASH_SHOWN]],
        trash_note=f"the last {TRASH_SHOWN} of {len(trash)}" if len(trash) > TRASH_SHOWN else "",
        data=dict(answer) | {"trash": list(trash)},
    )  # fmt: skip


def _empty(query: str, base: str, has_token: bool) -> Empty:
    if query:
        return Empty(f"No vault has “{query}” in its name.", "Clear the filter to see the others.")
    return no_vaults(base, has_token)


def no_vaults(base: str, has_token: bool) -> Empty:
    """What to do when there is no vault yet."""
    return Empty(
        "No vaults yet.",
        "A buffer with a “persist_to” records every step into one. Vaults that Flashbax wrote are found too: "
        "set FLASHDECK_VAULTS to their folder.",
        [snippets.create_curl(base, has_token=has_token)],
    )


@dataclass(frozen=True)
class VersionRow:
    """A version in a table."""

    number: str
    tags: list[Pill]
    message: str
    length: units.Quantity
    digest: str
    short_digest: str
    created: units.Moment | None
    href: str
    is_current: bool


@dataclass(frozen=True, kw_only=True)
class VaultPage(Page):
    """One vault."""

    template: ClassVar[str] = "vault.html"
    vault_name: str
    vault_uid: str
    live_name: str
    state: Pill | None
    error: str
    length: units.Quantity
    pending: units.Quantity
    pending_note: str
    rows: units.Quantity
    num_bytes: units.Quantity
    timestep: units.Quantity
    columns: list[Column]
    facts: list[Fact]
    versions: list[VersionRow]
    head: VersionRow
    versions_empty: Empty | None
    older_href: str
    slice: SliceTable
    storage: Storage | None
    is_empty: bool
    snippets: list[Snippet] = field(default_factory=list)


def version_row(version: Mapping[str, Any], tags: Mapping[str, Any], asked: Asked) -> VersionRow:
    """One line of the versions table."""
    number, digest = version["version"], str(version.get("digest") or "")
    mine = [
        Pill(
            name, "good" if tag.get("protected") else "quiet", "protected" if tag.get("protected") else "tag"
        )
        for name, tag in tags.items()
        if tag.get("version") == number
    ]
    return VersionRow(
        f"v{number}", mine, version.get("message") or "", units.count(version["length"], "steps"),
        digest, digest.removeprefix("sha256-")[:10], units.moment(version.get("created_at")),
        f"?ref=v{number}#slice", asked.ref == f"v{number}",
    )  # fmt: skip


def vault_page(
    vault: Mapping[str, Any],
    versions: Sequence[Mapping[str, Any]],
    tags: Mapping[str, Any],
    older: str | None,
    table: SliceTable,
    asked: Asked,
    storage: Storage | None,
    *,
    base: str,
    has_token: bool,
    data: Mapping[str, Any],
) -> VaultPage:
    """The page of one vault from what the services said about it."""
    name, spec = live_name(vault), snippets.spec_of(vault["spec"])
    address = quote(vault["url"], safe="/~%")
    return VaultPage(
        title=name, section="vaults", topics=f"vault:{name}", json_href=f"{vault['vault_uid']}.json",
        crumbs=[Link("Vaults", "vaults")],
        vault_name=vault["vault_name"], vault_uid=vault["vault_uid"], live_name=name,
        state=state_pill(vault), error=vault.get("error") or "", length=units.count(vault["length"], "steps"),
        pending=units.count(vault["pending"], "steps"),
        pending_note=live.pending_note(vault["pending"], is_shut=vault["state"] != "ok"),
        rows=units.count(vault["rows"], "rows"), num_bytes=units.size(vault.get("disk_bytes")),
        timestep=units.size(timestep_bytes(spec)),
        columns=schema_columns(vault["spec"]), facts=_facts(vault),
        versions=[version_row(v, tags, asked) for v in versions],
        head=_head_row(vault, asked),
        versions_empty=None if versions else _no_versions(base, address, has_token),
        older_href=f"?{urlencode({'older': older})}#versions" if older else "",
        slice=table, storage=storage, is_empty=not vault["length"],
        snippets=[
            snippets.slice_python(
                base, name, asked.ref, table.start, table.stop, spec, has_token=has_token
            ),
            snippets.slice_curl(
                f"{base}/api/v1/vaults/{address}/slice?{table.query}&format=npz", has_token=has_token
            ),
        ],
        data=data,
    )  # fmt: skip


def _head_row(vault: Mapping[str, Any], asked: Asked) -> VersionRow:
    length = units.count(vault["length"], "steps")
    return VersionRow(
        "head", [], "what is acknowledged now", length, "", "", None, "?ref=head#slice", asked.ref == "head"
    )


def _no_versions(base: str, url: str, has_token: bool) -> Empty:
    return Empty(
        "No version yet.",
        "A version is a state that never changes: it has a number, a digest and tags. Make one of all that "
        "was acknowledged so far:",
        [snippets.version_curl(base, url, has_token=has_token)],
    )


def _neighbours(vault: Mapping[str, Any]) -> list[Fact | None]:
    """Where a vault comes from, and where it goes on."""
    origin, following = vault.get("lineage") or {}, vault.get("continued_in")
    is_next = "continues" in origin
    return [
        Fact("Continues", origin["vault"], "which is full", f"../{_sibling(origin['vault'])}") if is_next else
        Fact("Forked from", origin["vault"], f"timesteps {origin['start']:,} to {origin['stop']:,}") if origin
        else None,
        Fact("Goes on in", following, "it is full", f"../{_sibling(following)}") if following else None,
    ]  # fmt: skip


def _sibling(key: str) -> str:
    """The address of another vault as a page of one spells it."""
    name, _, uid = key.rpartition("/")
    return f"{quote(name.replace('~', '%7E').replace('/', '~'), safe='~')}/{quote(uid, safe='')}"


def _facts(vault: Mapping[str, Any]) -> list[Fact]:
    changed = units.moment(vault.get("updated_at"))
    found = [
        Fact("Recorded by", str(vault["buffer"]), "a live buffer") if vault.get("buffer") else None,
        Fact("Frames per second", f"{vault['fps']:g}") if vault.get("fps") else None,
        Fact("Oldest step", f"{vault['first']:,}", "older ones were freed") if vault.get("first") else None,
        Fact("Changed", changed.text, changed.ago) if changed else None,
        *_neighbours(vault),
    ]
    for name, value in (vault.get("metadata") or {}).items():
        found.append(Fact(str(name), str(value)[:200]))
    return [fact for fact in found if fact]
