"""The first tables: idempotency keys, staged actions, approvals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "pdp_idempotency",
        # The digest of `names`, since five texts of any length make no key in PostgreSQL.
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("names", sa.Text, nullable=False),
        sa.Column("arguments_digest", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("token", sa.Text, nullable=False, unique=True),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("running_until", sa.Double, nullable=False),
        sa.Column("ttl", sa.Double),
        sa.Column("expires_at", sa.Double),
        sa.Column("approval_id", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.CheckConstraint("state IN ('started', 'finished', 'unknown')", name="pdp_idempotency_state"),
    )
    op.create_index("ix_pdp_idempotency_expires_at", "pdp_idempotency", ["expires_at"])
    op.create_table(
        "pdp_actions",
        sa.Column("seq", _SEQUENCE, sa.Identity(), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        # The digest of owner and idempotency key.
        sa.Column("key_id", sa.Text, nullable=False, unique=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.CheckConstraint(
            "state IN ('staged', 'approved', 'denied', 'committed', 'failed', 'compensated')", name="pdp_actions_state"
        ),
    )
    op.create_index("ix_pdp_actions_state", "pdp_actions", ["state"])
    op.create_table(
        "pdp_approvals",
        sa.Column("seq", _SEQUENCE, sa.Identity(), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("call_digest", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'granted', 'denied', 'withdrawn', 'expired', 'consumed')", name="pdp_approvals_state"
        ),
    )
    op.create_index("ix_pdp_approvals_call_digest", "pdp_approvals", ["call_digest"])
    op.create_index("ix_pdp_approvals_state", "pdp_approvals", ["state"])
    pending = sa.text("state = 'pending'")
    op.create_index(
        "pdp_approvals_one_pending",
        "pdp_approvals",
        ["call_digest"],
        unique=True,
        sqlite_where=pending,
        postgresql_where=pending,
    )
