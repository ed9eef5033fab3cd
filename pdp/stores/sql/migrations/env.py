"""What Alembic runs to upgrade: on the connection, and within the transaction, of whoever asks for it."""

from alembic import context

from pdp.stores.sql.tables import VERSIONS

context.configure(connection=context.config.attributes["connection"], version_table=VERSIONS)
with context.begin_transaction():
    context.run_migrations()
