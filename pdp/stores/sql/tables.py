"""The database tables as queries use them, their revision, and the upgrade to it. `migrations/` creates the tables.

A field that queries use has a column; the rest of a record is JSON. The column of a text that a model or a user chose
only finds the text (`searchable`); the JSON contains it. Table names begin with `pdp_`, since other programs may use
the same database.
"""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Double, TableClause, Text, column, inspect, select, table, text
from sqlalchemy.dialects import postgresql, sqlite

from pdp.audit.chain import recordable
from pdp.errors import StoreSchemaError
from pdp.installed import extra
from pdp.json import digest

SCHEMA: Final = "0007"  # The revision of the tables below. It equals the newest revision under `migrations/versions`.
VERSIONS: Final = "pdp_schema"  # The table in which Alembic stores the database's revision.
versions = table(VERSIONS, column("version_num"))
_MIGRATIONS: Final = Path(__file__).with_name("migrations")
_LOCK: Final = 0x7064705F64620001  # The number of the PostgreSQL lock for upgrades. No other program uses this number.

idempotency = table(
    "pdp_idempotency",
    *(column(name, Text) for name in ("id", "names", "arguments_digest", "state", "token", "approval_id", "outcome")),
    *(column(name, Double) for name in ("started_at", "running_until", "ttl", "expires_at")),
)
"""A row for each key under which a tool was started."""

actions = table("pdp_actions", column("seq"), *(column(name, Text) for name in ("id", "key_id", "state", "record")))

approvals = table(
    "pdp_approvals",
    column("seq", BigInteger),
    *(column(name, Text) for name in ("id", "call_digest", "state", "record")),
    *(column(name, Text) for name in ("tool", "subject", "run_id", "opened_at", "expires_at")),
)

grants = table("pdp_grants", column("seq"), *(column(name, Text) for name in ("id", "scope", "state", "record")))
"""A row for each lasting grant."""

runs = table(
    "pdp_runs", column("seq", BigInteger), column("id", Text), column("state", Text), column("used_at", Double),
    column("labels", Text), column("values_count", BigInteger),
)  # fmt: skip
"""A row for each run of an agent. Its state is `open`, or `over` once it has expired and its data is deleted."""

run_values = table("pdp_run_values", column("run", BigInteger), column("id", Text), column("origin", Text))

ledger_key = table("pdp_ledger_key", column("id"), column("secret", Text))
"""A single row with the key that hashes values."""
budgets = table(
    "pdp_budgets",
    column("id", Text), column("used", BigInteger), column("currency", Text),
    column("latest", Double), column("ends", Double),
)  # fmt: skip
"""A row for each sum of a cumulative limit. `latest` is its clock, `ends` the end of its last amount."""

reservations = table(
    "pdp_reservations",
    *(column(name, Text) for name in ("id", "budget", "names")),
    column("amount", BigInteger),
    *(column(name, Double) for name in ("ends", "running_until")),
)
"""A row for each amount that counts in a budget. `running_until` is null once the amount is committed."""

remote_calls = table(
    "pdp_remote_calls",
    *(column(name, Text) for name in ("id", "state", "record")),
    *(column(name, Double) for name in ("running_until", "held_until")),
)
"""A row for each call that a remote enforcement point has begun."""

audit = table(
    "pdp_audit",
    column("seq", BigInteger),
    *(column(name, Text) for name in ("type", "approval_id", "line")),
    *(column(name, Text) for name in ("time", "verdict", "tool", "codes", "subject", "run_id")),
)
"""A row for each event. `verdict` and `codes` are null if the event is not a decision; `verdict` may be `REJECTED`."""

requests = table("pdp_requests", column("seq", BigInteger), column("expires_at", Double), column("sealed"))
"""A row for each recorded request, encrypted, with the number of its event."""

tokens = table(
    "pdp_tokens",
    *(column(name, Text) for name in ("id", "tenant", "secret_digest", "principal", "record")),
    *(column(name, Double) for name in ("expires_at", "revoked_at")),
)
"""A row for each access token of the service, without the token. `principal` is the owner of a browser session."""

webhooks = table("pdp_webhooks", column("id", Text), column("seq", BigInteger), column("held_until", Double))
"""A row for each webhook: the number of the last sent event, and the time until which a process holds it."""


@lru_cache(maxsize=1024)  # The same texts are searched for and recorded again and again.
def searchable(text: str) -> str:
    """Return the value of a column for a text that a model or a user chose. Different texts have different values."""
    # PostgreSQL rejects NUL, and long texts in an index. `recordable` returns no other text that ends in a space.
    whole = recordable(text) if "\0" not in text else f"~{digest(text.encode(errors='surrogatepass'))}".ljust(256)
    return str(whole)


def dialect_insert(connection: Connection) -> Any:
    """Return SQLAlchemy's INSERT for the database's dialect, which supports ON CONFLICT."""
    return sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert


def insert_if_absent(connection: Connection, into: TableClause, values: dict[str, Any]) -> bool:
    """Insert a row unless a stored row has the same value in a unique column. Return whether the row was inserted.

    A plain INSERT would fail, and any error would end the transaction in PostgreSQL.
    """
    statement = dialect_insert(connection)(into).on_conflict_do_nothing()
    # Without `preserve_rowcount`, psycopg always reports -1 for an INSERT.
    result = connection.execute(statement, values, execution_options={"preserve_rowcount": True})
    return result.rowcount == 1


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the database's tables, such as `0007`, or None if there are no tables."""
    if not inspect(connection).has_table(VERSIONS):
        return None
    revision: str | None = connection.execute(select(versions)).scalar()
    return revision


def check_schema(connection: Connection, name: str) -> None:
    """Raise `StoreSchemaError` if the tables of the database `name` are not of this release's revision."""
    revision = revision_of(connection)
    if revision == SCHEMA:
        return
    if revision is None:
        raise StoreSchemaError(f"database {name}: it has no tables yet", hint="run `pdp db upgrade URL`")
    newer_hint = "use a newer release of tool-pdp; a downgrade is not supported"
    raise StoreSchemaError(
        f"database {name}: its tables have revision {revision}, but this release needs {SCHEMA}",
        hint="make a backup, then run `pdp db upgrade URL`" if revision < SCHEMA else newer_hint,
    )


def upgrade_schema(connection: Connection, name: str) -> None:
    """Upgrade older tables to this release, in the caller's transaction. Several processes may upgrade at once."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    revision = revision_of(connection)
    if revision is not None and revision >= SCHEMA:
        return
    with extra("sql"):
        from alembic import command  # noqa: PLC0415 - takes 0.25 s and is seldom needed
        from alembic.config import Config  # noqa: PLC0415

    logging.getLogger(__name__).info("database %s: upgrading from revision %s to %s", name, revision or "none", SCHEMA)
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, SCHEMA)
