"""Which databases there are: a SQLite file, or PostgreSQL."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pdp.errors import UsageError

_HINT: Final = "write sqlite:///path/to/file.db or postgresql://user@host/database"
_POSTGRESQL: Final = ("postgresql", "postgres", "postgresql+psycopg")
_SQLITE: Final = ("sqlite", "sqlite+pysqlite")

BUSY_SECONDS: Final = 10
"""How long one step waits for another process that holds the database, before it fails."""


def read_url(text: str) -> URL:
    """Return the database that a URL names, with the driver that is used for it.

    Raises:
        UsageError: not such a URL, a SQLite database in memory, or PostgreSQL without its driver.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        # The text itself may hold a password.
        raise UsageError("the database URL cannot be read", hint=_HINT) from None
    if url.drivername in _SQLITE:
        if not url.database or url.database == ":memory:" or url.query:
            raise UsageError("the database URL cannot be used: SQLite is a file here, without options", hint=_HINT)
        return url.set(drivername="sqlite+pysqlite", database=os.path.abspath(url.database))  # noqa: PTH100 - no file yet
    if url.drivername in _POSTGRESQL:
        if find_spec("psycopg") is None:
            raise UsageError(
                f"database {shown(url)}: the driver of PostgreSQL is not installed",
                hint="pip install 'tool-pdp[postgres]'",
            )
        return url.set(drivername="postgresql+psycopg")
    raise UsageError(f"database {shown(url)}: {url.drivername} is none that is supported", hint=_HINT)


def shown(url: URL) -> str:
    """Return the URL for people: its password hidden, and without the driver."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def connect_options(url: URL) -> dict[str, Any]:
    """Return the driver's options: bounded waits, so that a database that hangs is a failure and not a pause."""
    if url.get_backend_name() == "sqlite":
        return {"timeout": BUSY_SECONDS, "check_same_thread": False}
    milliseconds = BUSY_SECONDS * 1000
    bounds = {
        "connect_timeout": BUSY_SECONDS,
        "options": f"-c lock_timeout={milliseconds} -c statement_timeout={2 * milliseconds}",
    }
    return {name: value for name, value in bounds.items() if name not in url.query}
