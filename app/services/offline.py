"""What a command does with the files themselves, without a service."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.services.adoption import adopt_files, describe
from app.services.backup import make
from app.services.files import find_buffers
from app.services.folders import Place, find_places
from app.services.lock import DataLock
from app.services.sweeps import Asked, sweep_vault
from fbxcore.errors import FbxError, NotFoundError
from fbxcore.vault.rollover import uids_of
from fbxcore.vault.store import VaultWriter
from fbxcore.vault.verify import verify

Step = Callable[[str, int, int], None]
"""Told a vault's key, how much of it is done, of how much."""


def choose(data: Path, foreign: Path | None, names: Sequence[str]) -> list[Place]:
    """Return the vaults of the given names, or all there are.

    Raises:
        NotFoundError: for a name that none has, and a data directory that does not exist.
    """
    if foreign is None:
        _check_there(data)
    places = {place.key: place for place in find_places(data, foreign)}
    for name in names:
        if name not in places:
            known = ", ".join(map(repr, list(places)[:20])) or "none"
            raise NotFoundError(f"No vault named {name!r:.300}. Existing vaults: {known}.")
    return [places[name] for name in names] if names else list(places.values())


def _check_there(data: Path) -> None:
    if not data.is_dir():
        raise NotFoundError(f"`data` must be the data directory, got {str(data)!r:.300}, which is none.")


@contextmanager
def held(data: Path) -> Iterator[None]:
    """Hold the data directory, so that no service starts meanwhile."""
    _check_there(data)
    lock = DataLock(data)
    lock.take("no address: a command works on the files")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def made_backup(data: Path) -> Iterator[Path]:
    """Give a backup of a data directory that nobody serves; it goes at the end."""
    with held(data):
        place = data / "backups" / f"offline-{time.time_ns()}"
        make(data, place)
        try:
            yield place
        finally:
            shutil.rmtree(place)


def sweep_all(data: Path, names: Sequence[str], asked: Asked, step: Step) -> list[dict[str, Any]]:
    """Sweep vaults of ours on a data directory that nobody serves; one that cannot be swept says why."""
    swept = []
    with held(data):
        needed = dict(_needed(data))
        for place in choose(data, None, names):
            try:
                with VaultWriter.open(place.path) as writer:
                    found = sweep_vault(
                        writer,
                        place.catalog,
                        asked,
                        needed=needed.get(place.path, 0),
                        progress=lambda *at, key=place.key: step(key, *at),
                    )
            except FbxError as error:
                found = {"error": str(error)}
            swept.append({"vault": place.key, **found})
    return swept


def _needed(data: Path) -> Iterator[tuple[Path, int]]:
    """Yield the vaults that buffers are refilled from, and how many timesteps of each they may need."""
    for _, config in find_buffers(data) if (data / "buffers").is_dir() else ():
        if isinstance(config, FbxError) or config.persist_to is None:
            continue
        path = data / "vaults" / config.persist_to
        for uid in uids_of(path):
            yield path.with_name(uid), config.layout.time_axis


def adopt_all(data: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Go on behind what other programs wrote to vaults of ours that nobody serves; see `adoption`."""
    adopted = []
    with held(data):
        for place in choose(data, None, names):
            try:
                adopted.append(describe(place.key, adopt_files(place.path)))
            except FbxError as error:
                adopted.append({"vault": place.key, "error": str(error)})
    return adopted


def verify_all(
    data: Path, foreign: Path | None, names: Sequence[str], *, repair: bool, step: Step
) -> list[dict[str, Any]]:
    """Read and hash every vault anew, whether or not it is served."""
    return [_verify(place, repair, step) for place in choose(data, foreign, names)]


def _verify(place: Place, repair: bool, step: Step) -> dict[str, Any]:
    found = verify(
        place.path,
        place.catalog,
        repair=repair and not place.read_only,
        progress=lambda *at: step(place.key, *at),
    )
    return {"vault": place.key, "is_whole": found.is_whole, **asdict(found)}
