"""Create the tables of the decision service: remote calls, audit stream, access tokens, webhooks."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "pdp_remote_calls",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("running_until", sa.Double, nullable=False),
        sa.Column("held_until", sa.Double, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_index("ix_pdp_remote_calls_running_until", "pdp_remote_calls", ["state", "running_until"])
    op.create_table(
        "pdp_audit",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("type", sa.Text, nullable=False),
        # The column is null if the event belongs to no approval.
        sa.Column("approval_id", sa.Text),
        sa.Column("line", sa.Text, nullable=False),
    )
    of_approvals = sa.text("approval_id IS NOT NULL")
    op.create_index(
        "ix_pdp_audit_approvals", "pdp_audit", ["seq"], sqlite_where=of_approvals, postgresql_where=of_approvals
    )
    op.create_table(
        "pdp_tokens",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("secret_digest", sa.Text, nullable=False),
        sa.Column("principal", sa.Text),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("revoked_at", sa.Double),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_table(
        "pdp_webhooks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("held_until", sa.Double, nullable=False),
    )
