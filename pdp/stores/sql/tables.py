"""The tables as queries name them, their revision, and the upgrade to it; how they are made stands in `migrations/`.

What a query asks for has a column of its own; the rest of a record is JSON. Texts that a model or a user chose stand in
JSON alone: there PostgreSQL takes every character, and in a column it does not take NUL. The names begin with `pdp_`,
as others may have tables in the same database.
"""

import logging
from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Double, TableClause, Text, column, inspect, select, table, text
from sqlalchemy.dialects import postgresql, sqlite

from pdp.errors import StoreSchemaError
from pdp.installed import extra

SCHEMA: Final = "0003"  # the revision of the tables below: the newest under `migrations/versions`
VERSIONS: Final = "pdp_schema"  # the table in which Alembic stores the revision
versions = table(VERSIONS, column("version_num"))
_MIGRATIONS: Final = Path(__file__).with_name("migrations")
_LOCK: Final = 0x7064705F64620001  # a number that no other program takes a lock of PostgreSQL with

idempotency = table(
    "pdp_idempotency",
    *(column(name, Text) for name in ("id", "names", "arguments_digest", "state", "token", "approval_id", "outcome")),
    *(column(name, Double) for name in ("started_at", "running_until", "ttl", "expires_at")),
)
"""One row for each key under which a tool was started."""

actions = table("pdp_actions", column("seq"), *(column(name, Text) for name in ("id", "key_id", "state", "record")))
"""One row for each staged action."""

approvals = table(
    "pdp_approvals", column("seq"), *(column(name, Text) for name in ("id", "call_digest", "state", "record"))
)
"""One row for each approval."""

runs = table(
    "pdp_runs", column("seq", BigInteger), column("id", Text), column("state", Text), column("used_at", Double),
    column("labels", Text), column("values_count", BigInteger),
)  # fmt: skip
"""One row for each run of an agent: `open`, or `over`, when it knows nothing any more."""

run_values = table("pdp_run_values", column("run", BigInteger), column("id", Text), column("origin", Text))
"""One row for each value that a result brought into a run."""

ledger_key = table("pdp_ledger_key", column("id"), column("secret", Text))
"""The one row with the key by which values are hashed."""
budgets = table(
    "pdp_budgets",
    column("id", Text), column("used", BigInteger), column("currency", Text),
    column("latest", Double), column("ends", Double),
)  # fmt: skip
"""One row for each sum of a cumulative limit: `latest` is its time, `ends` when all of it counts no more."""

reservations = table(
    "pdp_reservations",
    *(column(name, Text) for name in ("id", "budget", "names")),
    column("amount", BigInteger),
    *(column(name, Double) for name in ("ends", "running_until")),
)
"""One row for each amount that counts in a budget; committed: nothing is running."""

remote_calls = table(
    "pdp_remote_calls",
    *(column(name, Text) for name in ("id", "state", "record")),
    *(column(name, Double) for name in ("running_until", "held_until")),
)
"""One row for each call that a remote enforcement point has begun."""

audit = table("pdp_audit", column("seq", BigInteger), *(column(name, Text) for name in ("type", "approval_id", "line")))
"""One row for each event of the stream."""

tokens = table(
    "pdp_tokens",
    *(column(name, Text) for name in ("id", "tenant", "secret_digest", "principal", "record")),
    *(column(name, Double) for name in ("expires_at", "revoked_at")),
)
"""One row for each access token of the service, itself not stored. `principal`: whose browser session it is."""

webhooks = table("pdp_webhooks", column("id", Text), column("seq", BigInteger), column("held_until", Double))
"""One row for each webhook: the last event that was sent, and until when a process holds it."""


def dialect_insert(connection: Connection) -> Any:
    """Return the INSERT that knows what to do where a row is there already; SQLite and PostgreSQL have one each."""
    return sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert


def insert_if_absent(connection: Connection, into: TableClause, values: dict[str, Any]) -> bool:
    """Insert a row unless a unique column of it is there already, and return whether it was inserted.

    An error would end the transaction in PostgreSQL. Of several that insert the same at once, the others wait for the
    first to commit.
    """
    statement = dialect_insert(connection)(into).on_conflict_do_nothing()
    # Without `preserve_rowcount` the count of an INSERT is -1 with psycopg, whatever happened.
    result = connection.execute(statement, values, execution_options={"preserve_rowcount": True})
    return result.rowcount == 1


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the tables, such as `0003`; None when there are none of ours."""
    if not inspect(connection).has_table(VERSIONS):
        return None
    revision: str | None = connection.execute(select(versions)).scalar()
    return revision


def check_schema(connection: Connection, name: str) -> None:
    """Check that the tables of the database `name` are those of this release.

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
    """Bring older tables to this release's revision, within the transaction of `connection`. Several may try at once.

    Newer ones stay as they are, for `check_schema` to refuse.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    revision = revision_of(connection)
    if revision is not None and revision >= SCHEMA:
        return
    with extra("sql"):
        from alembic import command  # noqa: PLC0415 - a quarter of a second, and seldom needed
        from alembic.config import Config  # noqa: PLC0415

    logging.getLogger(__name__).info("database %s: from revision %s to %s", name, revision or "none", SCHEMA)
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, SCHEMA)
