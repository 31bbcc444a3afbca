"""Retention: which versions of a vault may go, by age and number.

A version goes only if every limit that is given says so. Those that a tag names, and the newest one,
always stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fbxcore.errors import InvalidArgumentError
from fbxcore.vault.refs import Tag, Version


@dataclass(frozen=True)
class Retention:
    """How many versions are kept, and for how long."""

    keep: int | None = None  # the newest so many stay
    older_than_days: float | None = None  # younger ones stay

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise InvalidArgumentError(f"`keep` must be at least 1, got {self.keep!r}.", loc=("keep",))
        if self.older_than_days is not None and not 0 <= self.older_than_days <= 36_500:
            raise InvalidArgumentError(
                f"`older_than_days` must be from 0 to 36500, got {self.older_than_days!r}.",
                loc=("older_than_days",),
            )

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
