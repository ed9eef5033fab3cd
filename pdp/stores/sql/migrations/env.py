"""Alembic's entry point. It upgrades within the caller's connection and transaction."""

from alembic import context

from pdp.stores.sql.tables import VERSIONS

context.configure(connection=context.config.attributes["connection"], version_table=VERSIONS)
with context.begin_transaction():
    context.run_migrations()
