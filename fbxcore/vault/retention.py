"""Retention: which versions of a vault may go, by age and number, and how many timesteps stay.

A version goes only if every limit that is given says so. Those that a tag names, and the newest one,
always stay. A version that stays shows all its timesteps, whatever of them was given back since. A vault
may have limits of its own, under a key of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from fbxcore.errors import DamagedError, InvalidArgumentError
from fbxcore.vault.files import label_of
from fbxcore.vault.refs import Tag, Version
from fbxcore.vault.store import VaultReader, VaultWriter

RETENTION_KEY = "_flashdeck/retention"


@dataclass(frozen=True)
class Retention:
    """How many versions are kept, for how long, and how many timesteps outside of versions."""

    keep: int | None = None  # the newest so many stay
    older_than_days: float | None = None  # younger ones stay
    retain_steps: int | None = None  # the newest so many timesteps of each row stay, at least

    def __post_init__(self) -> None:
        for name in ("keep", "retain_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InvalidArgumentError(f"`{name}` must be at least 1, got {value!r}.", loc=(name,))
        if self.older_than_days is not None and not 0 <= self.older_than_days <= 36_500:
            raise InvalidArgumentError(
                f"`older_than_days` must be from 0 to 36500, got {self.older_than_days!r}.",
                loc=("older_than_days",),
            )

    def __bool__(self) -> bool:
        """Whether there is a limit at all."""
        return self != Retention()

    def expired(
        self, versions: Sequence[Version], tags: Mapping[str, Tag], now: float
    ) -> tuple[Version, ...]:
        """Return the versions that may go at a Unix time, the oldest first; without a limit none may."""
        if self.keep is None and self.older_than_days is None:
            return ()
        tagged = {tag.version for tag in tags.values()}
        oldest_first = sorted(versions, key=lambda version: version.number)
        candidates = oldest_first[: -(self.keep or 1)]
        if self.older_than_days is not None:
            before = datetime.fromtimestamp(now, UTC) - timedelta(days=self.older_than_days)
            candidates = [v for v in candidates if datetime.fromisoformat(v.created_at) < before]
        return tuple(version for version in candidates if version.number not in tagged)


def retention_of(vault: VaultReader | VaultWriter) -> Retention:
    """Return a vault's own limits; none where nobody set any."""
    content = vault.get(RETENTION_KEY)
    try:
        return Retention(**json.loads(content)) if content else Retention()
    except (ValueError, TypeError) as error:
        raise DamagedError(
            f"Key `{RETENTION_KEY}` of vault '{label_of(vault.path)}' must be what was written, got "
            f"{content[:40]!r}.",
            file="manifest.ocdbt",
        ) from error


def set_retention(writer: VaultWriter, retention: Retention) -> None:
    """Give a vault limits of its own, or none."""
    content = json.dumps(asdict(retention), separators=(",", ":")).encode()
    writer.put({RETENTION_KEY: content if retention else None})


def retain_steps(writer: VaultWriter, number: int | None) -> None:
    """Let a vault keep the newest so many timesteps, or all; its other limits stay as they are."""
    former = retention_of(writer)
    if former.retain_steps != number:
        set_retention(writer, replace(former, retain_steps=number))
