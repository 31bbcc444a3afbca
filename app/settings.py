"""Everything that can be set, read once from the environment (`FLASHDECK_…`) and passed down."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fbxcore.errors import InvalidArgumentError

MIB = 1 << 20
Names = Annotated[tuple[str, ...], NoDecode]


class Settings(BaseSettings):
    """The settings of one service; each is `FLASHDECK_<NAME>` in the environment."""

    model_config = SettingsConfigDict(env_prefix="FLASHDECK_", extra="ignore", frozen=True)

    data: Path = Field(
        Path("flashdeck-data"), description="The data directory; everything we own lies in it."
    )
    vaults: Path | None = Field(None, description="Another folder of vaults, shown and never written to.")
    database_url: str | None = Field(
        None, description="`sqlite+aiosqlite:///…` or `postgresql+psycopg://…`; by default SQLite in `data`."
    )
    host: str = Field("127.0.0.1", description="The address to listen on; any but loopback needs a token.")
    port: int = Field(8000, ge=0, le=65535, description="The port to listen on.")
    token: SecretStr | None = Field(None, description="Asked of every request as `Authorization: Bearer …`.")
    insecure: bool = Field(False, description="Listen on any address without a token.")
    allowed_hosts: Names = Field(
        (), description="Further `Host` names to answer to, comma-separated; `*` for all."
    )
    root_path: str = Field("", description="The path a proxy strips before it asks us, such as `/flashdeck`.")
    trusted_proxies: Names = Field((), description="Addresses whose `X-Forwarded-…` headers are believed.")
    device: Literal["cpu", "gpu"] = Field("cpu", description="Where the engine keeps buffers.")
    log_level: str = Field("info", description="How much `flashdeck serve` writes to its log.")

    max_body_bytes: int = Field(256 * MIB, ge=1, description="Bytes of a request's body, as sent.")
    max_decoded_bytes: int = Field(512 * MIB, ge=1, description="Bytes of a body after `Content-Encoding`.")
    max_json_bytes: int = Field(
        16 * MIB, ge=1, description="Bytes of arrays sent as JSON, after `Content-Encoding`."
    )
    max_response_bytes: int = Field(256 * MIB, ge=1, description="Bytes of arrays in one answer.")
    max_memory_bytes: int = Field(4096 * MIB, ge=1, description="Bytes of all buffers together.")
    max_log_bytes: int = Field(
        512 * MIB,
        ge=1,
        description="Bytes by which the log of a buffer or vault may be ahead of vault and checkpoint.",
    )
    max_snapshot_bytes: int = Field(
        16384 * MIB, ge=0, description="Bytes of all snapshots of buffers together."
    )
    max_rows: int = Field(4096, ge=1, description="Rows of one buffer or vault.")
    max_concurrent_reads: int = Field(8, ge=1, description="Reads of vaults at the same time.")
    max_wait_ms: int = Field(30_000, ge=0, description="The longest `timeout_ms` a request may ask for.")
    scan_interval_s: float = Field(60.0, gt=0, description="How often the folders of vaults are looked at.")
    sweep_interval_s: float = Field(
        3600.0, gt=0, description="How often vaults with a retention of their own are swept."
    )
    trash_days: float = Field(7.0, ge=0, description="How many days a deleted vault can be restored.")
    mirror_interval_s: float = Field(
        2.0, gt=0, description="How often the numbers of what is being written are copied for lists."
    )
    start_wait_s: float = Field(
        2.0, ge=0, description="How long start waits for logs before answering `starting`."
    )
    stop_wait_s: float = Field(8.0, gt=0, description="How long stop waits for buffers to flush.")

    @field_validator("allowed_hosts", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("root_path")
    @classmethod
    def _slashes(cls, value: str) -> str:
        return "/" + value.strip("/") if value.strip("/") else ""

    @field_validator("token")
    @classmethod
    def _no_empty_token(cls, value: SecretStr | None) -> SecretStr | None:
        return value if value is not None and value.get_secret_value() else None

    @property
    def url(self) -> str:
        """The database's address."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data.absolute() / 'flashdeck.db'}"

    @property
    def address(self) -> str:
        """Where the service answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.root_path}"

    def check(self) -> None:
        """Refuse to be open to others without a token."""
        if self.token is None and not self.insecure and not is_loopback(self.host):
            raise InvalidArgumentError(
                f"`host` must be a loopback address while there is no token, got {self.host!r}. "
                "Set FLASHDECK_TOKEN, or pass --insecure to serve anybody.",
                loc=("host",),
            )


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
