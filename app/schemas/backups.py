"""Bodies of the backup resources."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class BackupPublic(BaseModel):
    """A backup in the data directory."""

    model_config = ConfigDict(extra="forbid")

    id: str
    created_at: str
    pause_ms: float = Field(description="For how long nothing was acknowledged.")
    files: int
    bytes: int = Field(description="Of its files, most of which it shares with what it is a backup of.")
    buffers: list[str]
    vaults: list[str]
