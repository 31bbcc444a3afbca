"""Going on in another vault of the same name before a vault is full: 2^31 - 1 timesteps, an int32.

`run1` goes on in `run1-2`, that in `run1-3`; a number whose directory is taken is passed over. Each says
where it goes on, or what it continues. What is to follow is noted in the full vault first and made after
that, whole, under a hidden name: whoever is killed between the two finds the note and makes it then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fbxcore.errors import ConflictError
from fbxcore.vault.files import appearing, label_of
from fbxcore.vault.fork import LINEAGE_KEY, lineage_of
from fbxcore.vault.keys import json_value
from fbxcore.vault.retention import RETENTION_KEY
from fbxcore.vault.store import VaultReader, VaultWriter
from fbxcore.vault.store_arrays import BY_CONTENT_KEY

CONTINUED_KEY = "_flashdeck/continued"
_NUMBERED = re.compile(r"(.*)-(\d{1,9})")


def continued_in(vault: VaultReader | VaultWriter) -> str | None:
    """Return the uid in which a full vault goes on, or None."""
    found = json_value(vault, CONTINUED_KEY)
    return found["vault_uid"] if found else None


def continues(vault: VaultReader | VaultWriter) -> str | None:
    """Return the uid that a vault continues, or None."""
    origin = lineage_of(vault)
    return origin["continues"] if origin and "continues" in origin else None


def newest_of(path: Path) -> Path:
    """Return the vault in which the one at `path` goes on now: itself, or the last that there is."""
    return path.with_name(uids_of(path)[-1])


def uids_of(path: Path) -> list[str]:
    """Return the uids of the vault at `path` and of those in which it goes on, as far as they are there."""
    uids = [path.name]
    while True:
        with VaultReader.open(path.with_name(uids[-1])) as reader:
            following = continued_in(reader)
        if following is None or not path.with_name(following).is_dir():
            return uids
        uids.append(following)


def next_path(path: Path, *, is_next: bool) -> Path:
    """Return the free name under which a vault will go on.

    Args:
        is_next: whether it continues another one itself, so that the number at its end is counted up.
    """
    numbered = _NUMBERED.fullmatch(path.name) if is_next else None
    stem, number = (numbered[1], int(numbered[2])) if numbered else (path.name, 1)
    while True:
        number += 1
        following = path.with_name(f"{stem}-{number}")
        if not following.exists():
            return following


def planned_path(writer: VaultWriter) -> Path:
    """Return where a vault will go on: as it was noted, or under a free name."""
    uid = continued_in(writer)
    if uid is not None:
        return writer.path.with_name(uid)
    return next_path(writer.path, is_next=continues(writer) is not None)


def go_on_in(writer: VaultWriter, path: Path, keys: Mapping[str, bytes] | None = None) -> VaultWriter:
    """Make the vault in which a full one goes on and return its writer; the full one's stays open.

    It has the same structure, chunks, metadata and retention.

    Args:
        keys: values that lie in the new vault from its first moment.

    Raises:
        ConflictError: if something else lies at `path`.
    """
    if continued_in(writer) != path.name:
        note = {"vault_uid": path.name, "length": writer.length}
        writer.put({CONTINUED_KEY: json.dumps(note).encode()})
    if not path.exists():
        _make(writer, path, keys or {})
    _check_continues(path, writer.path)
    return VaultWriter.open(path, hold=writer.holds)


def _check_continues(path: Path, full: Path) -> None:
    with VaultReader.open(path) as reader:
        if continues(reader) != full.name:
            raise ConflictError(
                f"Vault '{label_of(full)}' must go on in '{path.name}', got another vault there. "
                "Move that one away.",
                code="exists",
            )


def _make(writer: VaultWriter, path: Path, keys: Mapping[str, bytes]) -> None:
    origin: dict[str, Any] = {
        "vault": label_of(writer.path),
        "continues": writer.path.name,
        "generation": writer.generation,
        "length": writer.length,
    }
    arrays = [f"{leaf.path}/.zarray".lstrip("/") for leaf in writer.structure.leaves]
    same = {key: writer.get(key) for key in (*arrays, RETENTION_KEY)}
    with appearing(path) as hidden, VaultWriter.create(hidden, writer.structure) as made:
        given = {name: value for name, value in same.items() if value is not None}
        chosen = {BY_CONTENT_KEY: writer.get(BY_CONTENT_KEY)}
        made.put({**given, **chosen, LINEAGE_KEY: json.dumps(origin).encode(), **keys})
