"""Bodies of the buffer resources; `BufferConfig.parse` is what checks them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.schemas.common import Progress


class RateLimiter(BaseModel):
    """How many items may be sampled for each timestep inserted."""

    samples_per_insert: float
    min_size: int
    error_buffer: float


class BufferSource(BaseModel):
    """Timesteps of a vault, by a slice's words; the buffer's spec may then be left out. Or a snapshot of a
    buffer, alone: then all that is left out but `name` and `persist_to` is the snapshot's."""

    snapshot: str | None = Field(None, description="The `id` of a snapshot.")
    vault: str | None = Field(None, description="`vault_name/vault_uid`")
    ref: str | int = "head"
    start: int | None = None
    stop: int | None = None
    timesteps: int | None = None
    percentiles: list[float] | None = None


class BufferCreate(BaseModel):
    """A buffer to make: its kind's arguments go by Flashbax's names."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "name": "cartpole",
                "kind": "prioritised_flat",
                "spec": {
                    "obs": {"shape": [4], "dtype": "float32"},
                    "action": {"shape": [], "dtype": "int32"},
                },
                "max_length": 100000,
                "min_length": 1000,
                "sample_batch_size": 256,
                "add_batch_size": 8,
                "priority_exponent": 0.6,
                "persist_to": "cartpole/run1",
            }
        },
    )

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    kind: str
    spec: dict[str, Any] = Field(description="Nested; each leaf is `{shape, dtype}`.")
    persist_to: str | None = Field(
        None, description="`vault_name/vault_uid`: where experience is kept for good."
    )
    durability: str = Field("fsync", description="`fsync`, `os` or `none`: what acknowledged data survive.")
    writers: str = Field(
        "lockstep",
        description="`lockstep`: a request adds to all rows; `independent`: each writer to its own.",
    )
    idle_end_s: float | None = Field(
        None, description="How long an independent writer keeps its row without adding; 60 by default."
    )
    rate_limiter: RateLimiter | None = None
    from_: BufferSource | None = Field(None, alias="from", description="Timesteps to begin with.")


class BufferChange(BaseModel):
    """What can be changed while a buffer runs; what is left out stays."""

    rate_limiter: RateLimiter | None = Field(None, description="Counts from the last reset; null: none.")
    durability: str | None = Field(None, description="`fsync`, `os` or `none`.")
    retain_steps: int | None = Field(None, description="Timesteps that the vault keeps; null: all.")
    idle_end_s: float | None = Field(None, description="How long an idle writer keeps its row.")


class SnapshotPublic(BaseModel):
    """A buffer as of one moment; `sequence` is its log's, `size` counts timesteps over all rows."""

    model_config = ConfigDict(extra="allow")

    id: str
    buffer: str
    state: str = Field(description="`ready`, or `writing` with `progress`.")
    created_at: str | None = None
    sequence: int | None = None
    position: int | None = None
    size: int | None = None
    bytes: int | None = None
    kind: str | None = None
    config: dict[str, Any] | None = None
    progress: Progress | None = None


class BufferPublic(BaseModel):
    """A buffer. `capacity`, `size`, `added` count timesteps over all rows; `time_axis` is per row, and so are
    `position` and `needed` unless writers are independent; `sampled` counts items handed out."""

    model_config = ConfigDict(extra="allow")

    name: str
    kind: str
    spec: dict[str, Any]
    config: dict[str, Any]
    rows: int
    time_axis: int
    capacity: int
    size: int
    is_full: bool
    can_sample: bool
    needed: int
    position: int
    added: int
    sampled: int
    bytes: int
    persist_to: str | None
    durability: str
    limiter: dict[str, Any] | None
    warnings: list[str]
    created_at: str | None
    state: str = "open"
    progress: Progress | None = None


class Added(BaseModel):
    """The answer to an add; `position` is per row, of independent writers over all; `sequence` is the log's.

    An independent writer's has `row`, `episode` and its `steps` too."""

    model_config = ConfigDict(extra="allow")

    added: int
    size: int
    position: int
    sequence: int | None
    duplicate: bool
    durable: bool


class Updated(BaseModel):
    """The answer to new priorities."""

    updated: int
    stale: int


class BufferStats(BaseModel):
    """Counters, rates and sizes."""

    model_config = ConfigDict(extra="allow")

    name: str
    size: int
    added: int
    sampled: int


class Histogram(BaseModel):
    """Counts between edges."""

    model_config = ConfigDict(extra="allow")

    field: str
    edges: list[float]
    counts: list[int]
    count: int
    exact: bool


class Timeseries(BaseModel):
    """Times (Unix seconds) and values, oldest first."""

    model_config = ConfigDict(extra="allow")

    metric: str
    times: list[float]
    values: list[float]
    exact: bool
