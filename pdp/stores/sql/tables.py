"""The tables and their revision. What a query asks for has a column of its own; the rest of a record is JSON.

Texts that a model or a user chose stand in JSON alone: there PostgreSQL takes every character, and in a column it does
not take NUL. The names begin with `pdp_`, as others may have tables in the same database.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

from pdp.errors import StoreSchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

SCHEMA: Final = "0001"
"""The revision of the tables below."""

_LOCK: Final = 0x7064705F64620001
"""A number that no other program takes a lock of PostgreSQL with."""

metadata = MetaData()

revisions = Table("pdp_schema", metadata, Column("version_num", String(32), primary_key=True))
"""One row: the revision of the tables."""

idempotency = Table(
    "pdp_idempotency",
    metadata,
    # The digest of `names`, since five texts of any length make no key in PostgreSQL.
    Column("id", Text, primary_key=True),
    Column("names", Text, nullable=False),
    Column("arguments_digest", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("token", Text, nullable=False, unique=True),
    Column("started_at", Double, nullable=False),
    Column("running_until", Double, nullable=False),
    Column("ttl", Double),
    Column("expires_at", Double, index=True),
    Column("approval_id", Text),
    Column("outcome", Text),
    CheckConstraint("state IN ('started', 'finished', 'unknown')", name="pdp_idempotency_state"),
)
"""One row for each key under which a tool was started."""

actions = Table(
    "pdp_actions",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    # The digest of owner and idempotency key.
    Column("key_id", Text, nullable=False, unique=True),
    Column("state", Text, nullable=False, index=True),
    Column("record", Text, nullable=False),
    CheckConstraint(
        "state IN ('staged', 'approved', 'denied', 'committed', 'failed', 'compensated')", name="pdp_actions_state"
    ),
)
"""One row for each staged action."""

approvals = Table(
    "pdp_approvals",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("call_digest", Text, nullable=False, index=True),
    Column("state", Text, nullable=False, index=True),
    Column("record", Text, nullable=False),
    CheckConstraint(
        "state IN ('pending', 'granted', 'denied', 'withdrawn', 'expired', 'consumed')", name="pdp_approvals_state"
    ),
)
"""One row for each approval."""

Index(
    "pdp_approvals_one_pending",
    approvals.c.call_digest,
    unique=True,
    sqlite_where=approvals.c.state == "pending",
    postgresql_where=approvals.c.state == "pending",
)


_INSERTS: Final[dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


def insert_if_absent(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row unless a unique column of it is there already, and return whether it was inserted.

    An error would end the transaction in PostgreSQL. Of several that insert the same at once, the others wait for the
    first to commit.
    """
    statement = _INSERTS[connection.dialect.name](table).on_conflict_do_nothing()
    # Without `preserve_rowcount` the count of an INSERT is -1 with psycopg, whatever happened.
    result = connection.execute(statement, values, execution_options={"preserve_rowcount": True})
    return result.rowcount == 1


def may_be_id(text: str) -> bool:
    """Return whether a text that came from outside can be an id of ours; others no database can be asked for."""
    return text.isascii() and "\x00" not in text


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the tables, such as `0001`; None when there are none of ours."""
    if not inspect(connection).has_table(revisions.name):
        return None
    revision: str | None = connection.execute(select(revisions.c.version_num)).scalar()
    return revision


def check_schema(connection: Connection, name: str) -> None:
    """Check that the tables of the database `name` are those of this release.

    Raises:
        StoreSchemaError: there are none, or they are older or newer.
    """
    revision = revision_of(connection)
    if revision == SCHEMA:
        return
    if revision is None:
        raise StoreSchemaError(f"database {name}: it has no tables yet", hint="run `pdp db upgrade`")
    newer = "use a newer release of tool-pdp; going back is not supported"
    raise StoreSchemaError(
        f"database {name}: its tables are of revision {revision}, and this release works with {SCHEMA}",
        hint="run `pdp db upgrade`" if revision < SCHEMA else newer,
    )


def upgrade_schema(connection: Connection, name: str) -> None:
    """Make the tables where there are none of ours, within the transaction of `connection`. Several may try at once.

    Those of another revision stay as they are, for `check_schema` to refuse.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    if revision_of(connection) is not None:
        return
    logging.getLogger(__name__).info("database %s: tables of revision %s are made", name, SCHEMA)
    metadata.create_all(connection, checkfirst=False)
    connection.execute(revisions.insert().values(version_num=SCHEMA))
