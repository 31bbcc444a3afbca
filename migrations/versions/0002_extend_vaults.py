"""Extend the vaults: the oldest timestep that is still there, and the vault in which a full one goes on.

Why: lists show both without opening a vault.
If interrupted: nothing is lost; every vault is looked into again and written anew by the next scan.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("vaults", sa.Column("first", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("vaults", sa.Column("continued_in", sa.String(768)))
    op.execute("UPDATE vaults SET fingerprint = ''")  # so that the next scan looks into each


def downgrade() -> None:
    with op.batch_alter_table("vaults") as vaults:
        vaults.drop_column("continued_in")
        vaults.drop_column("first")
