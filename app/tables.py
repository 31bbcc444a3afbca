"""The tables of the mirror: stored columns for lists and search, rebuilt from the files by a scan."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, ForeignKeyConstraint, Index, Integer, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(referred_table_name)s",
}


class Base(DeclarativeBase):
    """The base of all tables; constraints have names, so that migrations can drop them."""

    metadata = MetaData(naming_convention=NAMES)


class Buffer(Base):
    """One buffer and its counters as they were last copied."""

    __tablename__ = "buffers"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    kind: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    persist_to: Mapped[str | None] = mapped_column(String(512))
    size: Mapped[int] = mapped_column(BigInteger)
    added: Mapped[int] = mapped_column(BigInteger)
    sampled: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[str] = mapped_column(String(40))
    updated_at: Mapped[str] = mapped_column(String(40))


class Vault(Base):
    """One vault: what a list shows of it."""

    __tablename__ = "vaults"
    __table_args__ = (Index(None, "length"), Index(None, "updated_at"))

    vault_name: Mapped[str] = mapped_column(String(512), primary_key=True)
    vault_uid: Mapped[str] = mapped_column(String(255), primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    read_only: Mapped[bool] = mapped_column(Boolean)
    state: Mapped[str] = mapped_column(String(16))
    error: Mapped[str | None] = mapped_column(Text)
    fingerprint: Mapped[str] = mapped_column(String(128))
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    rows: Mapped[int] = mapped_column(Integer)
    length: Mapped[int] = mapped_column(BigInteger)
    generation: Mapped[int] = mapped_column(BigInteger)
    live_bytes: Mapped[int] = mapped_column(BigInteger)
    disk_bytes: Mapped[int] = mapped_column(BigInteger)
    num_versions: Mapped[int] = mapped_column(Integer)
    latest_version: Mapped[int | None] = mapped_column(Integer)
    first: Mapped[int] = mapped_column(BigInteger)
    continued_in: Mapped[str | None] = mapped_column(String(768))
    tags: Mapped[list[str]] = mapped_column(JSON)
    updated_at: Mapped[str] = mapped_column(String(40))


class Version(Base):
    """One version of a vault."""

    __tablename__ = "versions"
    __table_args__ = (
        ForeignKeyConstraint(
            ["vault_name", "vault_uid"], ["vaults.vault_name", "vaults.vault_uid"], ondelete="CASCADE"
        ),
        Index(None, "digest"),
    )

    vault_name: Mapped[str] = mapped_column(String(512), primary_key=True)
    vault_uid: Mapped[str] = mapped_column(String(255), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    generation: Mapped[int] = mapped_column(BigInteger)
    length: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(80))
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(String(40))


class Tag(Base):
    """A name for a version."""

    __tablename__ = "tags"
    __table_args__ = (
        ForeignKeyConstraint(
            ["vault_name", "vault_uid"], ["vaults.vault_name", "vaults.vault_uid"], ondelete="CASCADE"
        ),
        Index(None, "tag"),
    )

    vault_name: Mapped[str] = mapped_column(String(512), primary_key=True)
    vault_uid: Mapped[str] = mapped_column(String(255), primary_key=True)
    tag: Mapped[str] = mapped_column(String(128), primary_key=True)
    version: Mapped[int] = mapped_column(Integer)
    protected: Mapped[bool] = mapped_column(Boolean)
