"""Create the tables of the run ledger (runs, their values, the hash key) and of budgets."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables and the hash key."""
    op.create_table(
        "pdp_runs",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), sa.Identity(), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("used_at", sa.Double, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("values_count", sa.BigInteger, nullable=False),
        sa.CheckConstraint("state IN ('open', 'over')", name="pdp_runs_state"),
    )
    op.create_index("ix_pdp_runs_state_used_at", "pdp_runs", ["state", "used_at"])
    op.create_table(
        "pdp_run_values",
        sa.Column("run", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("origin", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    key = op.create_table(
        "pdp_ledger_key",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("secret", sa.Text, nullable=False),
        sa.CheckConstraint("id = 1", name="pdp_ledger_key_one"),
    )
    op.bulk_insert(key, [{"id": 1, "secret": secrets.token_hex(32)}])
    op.create_table(
        "pdp_budgets",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("currency", sa.Text),
        sa.Column("latest", sa.Double, nullable=False),
        sa.Column("ends", sa.Double, nullable=False, index=True),
    )
    op.create_table(
        "pdp_reservations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("budget", sa.Text, primary_key=True),
        sa.Column("names", sa.Text, nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("ends", sa.Double, nullable=False),
        # The column is null after the amount is committed.
        sa.Column("running_until", sa.Double, index=True),
    )
    op.create_index("ix_pdp_reservations_budget_ends", "pdp_reservations", ["budget", "ends"])
