"""Create the mirror: buffers, vaults, versions, tags.

Why: lists and search read stored columns, not files.
If interrupted: nothing is lost, a scan fills the tables from the files again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "buffers",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("persist_to", sa.String(512)),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("added", sa.BigInteger(), nullable=False),
        sa.Column("sampled", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("updated_at", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_buffers"),
    )
    op.create_table(
        "vaults",
        *_vault_key(),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("read_only", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("error", sa.Text()),
        sa.Column("fingerprint", sa.String(128), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("live_bytes", sa.BigInteger(), nullable=False),
        sa.Column("disk_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_versions", sa.Integer(), nullable=False),
        sa.Column("latest_version", sa.Integer()),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("vault_name", "vault_uid", name="pk_vaults"),
    )
    op.create_index("ix_vaults_length", "vaults", ["length"])
    op.create_index("ix_vaults_updated_at", "vaults", ["updated_at"])
    op.create_table(
        "versions",
        *_vault_key(),
        sa.Column("number", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.PrimaryKeyConstraint("vault_name", "vault_uid", "number", name="pk_versions"),
        _to_vaults("fk_versions_vaults"),
    )
    op.create_index("ix_versions_digest", "versions", ["digest"])
    op.create_table(
        "tags",
        *_vault_key(),
        sa.Column("tag", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("protected", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("vault_name", "vault_uid", "tag", name="pk_tags"),
        _to_vaults("fk_tags_vaults"),
    )
    op.create_index("ix_tags_tag", "tags", ["tag"])


def downgrade() -> None:
    for table in ("tags", "versions", "vaults", "buffers"):
        op.drop_table(table)


def _vault_key() -> tuple[sa.Column, sa.Column]:
    return (
        sa.Column("vault_name", sa.String(512), nullable=False),
        sa.Column("vault_uid", sa.String(255), nullable=False),
    )


def _to_vaults(name: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["vault_name", "vault_uid"], ["vaults.vault_name", "vaults.vault_uid"], name=name, ondelete="CASCADE"
    )
