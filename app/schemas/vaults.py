"""Bodies of the vault, version and tag resources."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.schemas.common import Strict

Text = Annotated[str, Field(max_length=10_000)]
Name = Annotated[str, Field(max_length=255)]
State = Literal["ok", "damaged", "foreign_writer"]
PENDING = (
    "Timesteps of `length` that are in a log and not yet in the vault. In the state `foreign_writer` they "
    "stay there and are not part of `length`; null where the log could not be opened."
)


Compression = Literal["zstd", "lz4", "none"]


class VaultFields(Strict):
    """What a vault is made with."""

    spec: dict[str, Any] = Field(description="Nested; each leaf is `{shape, dtype}`.")
    rows: int = Field(1, ge=1, description="B, the number of rows.")
    fps: float | None = Field(None, gt=0, le=100_000, allow_inf_nan=False)
    metadata: dict[str, Any] = Field(default_factory=dict)
    chunk_steps: int | dict[str, int] | None = Field(
        None, description="Timesteps a chunk, of all leaves or of some by name; otherwise by their size."
    )
    compression: Compression | dict[str, Compression] | None = Field(
        None, description="Of all leaves or of some by name; otherwise zstd or lz4 by what they hold."
    )


class VaultCreate(VaultFields):
    """A vault to make; without a uid it gets the time."""

    vault_name: Name
    vault_uid: Name | None = None


class VaultPut(VaultFields):
    """A vault to make or to find; its names are those of the path, also where they are given."""

    vault_name: Name | None = None
    vault_uid: Name | None = None


class RetentionFields(Strict):
    """Which versions may go: those that all limits given allow, never tagged ones or the newest.

    And how many timesteps stay outside of versions."""

    keep: int | None = Field(None, ge=1, description="The newest so many versions stay.")
    older_than_days: float | None = Field(
        None, ge=0, le=36_500, allow_inf_nan=False, description="Versions younger than this stay."
    )
    retain_steps: int | None = Field(
        None,
        ge=1,
        description="The newest so many timesteps stay, at least; older ones are given back in blocks of "
        "1,024, save in versions.",
    )


class VaultChange(Strict):
    """Metadata to merge, where null takes a name away; and how long versions are kept."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    retention: RetentionFields | None = Field(
        None, description="Limits by which old versions go every hour; null keeps all."
    )


class VaultSummary(BaseModel):
    """A vault in a list: stored columns, read from no array."""

    model_config = ConfigDict(extra="forbid")

    vault_name: str
    vault_uid: str
    url: str = Field(description="The two names as an address spells them.")
    state: State
    error: str | None = Field(description="What is wrong with it, where it is not `ok`.")
    read_only: bool
    buffer: str | None = Field(description="The buffer that persists to it.")
    spec: dict[str, Any]
    rows: int
    length: int
    first: int = Field(description="The oldest timestep that is still there; older ones were freed.")
    pending: int | None = Field(description=PENDING)
    generation: int
    live_bytes: int
    disk_bytes: int
    versions: int
    latest_version: int | None
    continued_in: str | None = Field(description="The vault in which it goes on, being full.")
    tags: list[str]
    updated_at: str


class VaultPublic(BaseModel):
    """A vault."""

    model_config = ConfigDict(extra="forbid")

    vault_name: str
    vault_uid: str
    url: str
    state: State
    error: str | None = Field(description="What is wrong with it, where it is not `ok`.")
    read_only: bool
    buffer: str | None
    spec: dict[str, Any]
    rows: int
    length: int
    first: int = Field(description="The oldest timestep that is still there; older ones were freed.")
    pending: int | None = Field(description=PENDING)
    generation: int
    live_bytes: int
    disk_bytes: int
    fps: float | None
    metadata: dict[str, Any]
    versions: int
    latest_version: int | None
    tags: dict[str, int]
    lineage: dict[str, Any] | None = Field(description="What it was forked from, or continues.")
    continued_in: str | None = Field(description="The vault in which it goes on, being full.")
    retention: RetentionFields | None
    updated_at: str


class SliceFields(Strict):
    """Which timesteps of which version."""

    ref: Annotated[str | int | None, Field(description="Any ref; `head` by default.")] = None
    start: int | None = None
    stop: int | None = None
    step: int | None = None
    timesteps: int | None = Field(None, description="Instead: the last that many.")
    percentiles: list[float] | None = Field(None, description="Instead: from a to b, of 0 to 100.")


class VaultFork(SliceFields):
    """A new vault to make of timesteps of this one; without a uid it gets the time."""

    vault_name: Name
    vault_uid: Name | None = None


class VaultSweep(RetentionFields):
    """What may go; without limits here the vault's own count."""

    grace_s: float = Field(
        900, ge=0, le=1e9, allow_inf_nan=False, description="What was in use less than this ago stays."
    )


class Swept(BaseModel):
    """What a sweep gave back, or would."""

    vault: str
    deleted_versions: list[int]
    freed_steps: int = Field(description="Timesteps given back; a preview does not count their bytes.")
    files: int
    bytes: int = Field(description="Given back now.")
    waiting_bytes: int = Field(description="Needed by nothing, and kept until the grace time is over.")
    live_bytes: int = Field(description="Of what the vault holds now, without its versions.")
    disk_bytes: int = Field(description="Of all files, afterwards.")
    dry_run: bool


class TrashedVault(BaseModel):
    """A vault in the trash."""

    id: str
    vault_name: str
    vault_uid: str
    url: str
    rows: int
    length: int
    versions: int
    disk_bytes: int
    deleted_at: str
    restore_until: str


class Deleted(TrashedVault):
    """A vault that was moved to the trash, or would be."""

    dry_run: bool


class Appended(BaseModel):
    """The answer to an append."""

    added: int
    length: int
    vault_uid: str = Field(description="Where it lies: a full vault goes on in another one.")
    duplicate: bool


class Adopted(BaseModel):
    """What going on behind another program did."""

    vault: str
    adopted: bool = Field(description="Whether another program had written since our last commit.")
    appended_again: int = Field(description="Timesteps of ours that it had written over or hidden.")
    length: int


class VersionCreate(Strict):
    """A version to make of what the vault holds now."""

    message: Text = ""
    tags: list[Name] = Field(default_factory=list, max_length=64)
    metadata: dict[str, Any] = Field(default_factory=dict)


class VersionPublic(BaseModel):
    """A version: an immutable state of a vault."""

    model_config = ConfigDict(extra="allow")

    version: int
    generation: int
    length: int
    first: int = Field(description="The oldest timestep that was still there.")
    rows: int
    digest: str
    created_at: str
    message: str
    tags: list[str]
    provenance: dict[str, Any] | None = Field(
        None, description="What made it: buffer, writers, packages; not in lists."
    )


class TagPut(Strict):
    """Where a tag points."""

    version: int | str = Field("latest", description="A version's number, or any ref.")
    protected: bool = False


class TagPublic(BaseModel):
    """A name for a version."""

    tag: str
    version: int
    protected: bool
