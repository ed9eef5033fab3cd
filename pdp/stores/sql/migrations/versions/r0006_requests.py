"""Add the table of recorded requests."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Create the table, empty."""
    op.create_table(
        "pdp_requests",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_pdp_requests_expires_at", "pdp_requests", ["expires_at"])
