"""Bodies of the writers of a buffer."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class Episode(BaseModel):
    """An open episode."""

    index: int = Field(description="Counted over the whole buffer from 1.")
    steps: int
    since: str
    metadata: dict[str, Any] | None


class WriterPublic(BaseModel):
    """A writer of a buffer; only independent ones have rows and episodes."""

    writer: str
    sequence: int | None = Field(description="The highest acknowledged.")
    row: int | None = Field(description="Which it has, or had last.")
    episode: Episode | None
    last_seen: str | None
    idle_s: float | None
