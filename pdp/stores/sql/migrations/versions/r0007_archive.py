"""Add an index of the events that anchor files with older events. It costs other events nothing."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Create the index."""
    only = sa.text("type = 'audit.archived'")
    op.create_index("ix_pdp_audit_archived", "pdp_audit", ["seq"], sqlite_where=only, postgresql_where=only)
