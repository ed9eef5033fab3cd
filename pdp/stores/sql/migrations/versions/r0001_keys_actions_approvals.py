"""Create the first tables: idempotency keys, staged actions, approvals."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "pdp_idempotency",
        # `id` is the digest of `names`, because PostgreSQL cannot index five texts without a length limit.
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
    # `key_id` is the digest of the owner and the idempotency key.
    states = "'staged', 'approved', 'denied', 'committed', 'failed', 'compensated'"
    _make_records("pdp_actions", "key_id", states, unique=True)
    states = "'pending', 'granted', 'denied', 'withdrawn', 'expired', 'consumed'"
    _make_records("pdp_approvals", "call_digest", states, unique=False)
    op.create_index("ix_pdp_approvals_call_digest", "pdp_approvals", ["call_digest"])
    pending = sa.text("state = 'pending'")
    op.create_index(
        "pdp_approvals_one_pending",
        "pdp_approvals",
        ["call_digest"],
        unique=True,
        sqlite_where=pending,
        postgresql_where=pending,
    )


def _make_records(name: str, key: str, states: str, *, unique: bool) -> None:
    op.create_table(
        name,
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column(key, sa.Text, nullable=False, unique=unique),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.CheckConstraint(f"state IN ({states})", name=f"{name}_state"),
    )
    op.create_index(f"ix_{name}_state", name, ["state"])
