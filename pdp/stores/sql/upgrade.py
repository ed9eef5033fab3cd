"""The revision of a database's tables: what it is, and making it this release's."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import column, inspect, select, table, text

from pdp.stores.errors import SchemaError
from pdp.stores.sql.tables import SCHEMA, VERSIONS

if TYPE_CHECKING:
    from sqlalchemy import Connection

_MIGRATIONS: Final = Path(__file__).with_name("migrations")
_LOCK: Final = 0x7064705F64620001
"""A number that no other program takes a lock of PostgreSQL with."""


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the tables, such as `0001`; None when there are none of ours."""
    if not inspect(connection).has_table(VERSIONS):
        return None
    revision: str | None = connection.execute(select(column("version_num")).select_from(table(VERSIONS))).scalar()
    return revision


def check_schema(connection: Connection, name: str) -> None:
    """Check that the tables of the database `name` are those of this release.

    Raises:
        SchemaError: there are none, or they are older or newer.
    """
    revision = revision_of(connection)
    if revision == SCHEMA:
        return
    if revision is None:
        raise SchemaError(f"database {name}: it has no tables yet", hint="run `pdp db upgrade`")
    if revision < SCHEMA:
        raise SchemaError(
            f"database {name}: its tables are of revision {revision}, and this release works with {SCHEMA}",
            hint="run `pdp db upgrade`",
        )
    raise _newer(name, revision)


def upgrade_schema(connection: Connection, name: str) -> None:
    """Bring the tables to this release's revision, within the transaction of `connection`. Several may try at once.

    Raises:
        SchemaError: they are of a newer release.
    """
    from alembic import command  # noqa: PLC0415 - a quarter of a second, and seldom needed
    from alembic.config import Config  # noqa: PLC0415

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    revision = revision_of(connection)
    if revision is not None and revision > SCHEMA:
        raise _newer(name, revision)
    if revision == SCHEMA:
        return
    logging.getLogger(__name__).info("database %s: from revision %s to %s", name, revision or "none", SCHEMA)
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, SCHEMA)


def _newer(name: str, revision: str) -> SchemaError:
    return SchemaError(
        f"database {name}: its tables are of revision {revision}, and this release knows them up to {SCHEMA}",
        hint="use a newer release of tool-pdp; going back is not supported",
    )
