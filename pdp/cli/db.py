"""`pdp db`: the database with idempotency keys, actions and approvals."""

from __future__ import annotations

import os
import time
from typing import Final

from pdp.cli import Exit
from pdp.cli.output import tell
from pdp.errors import UsageError
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency

URL_VARIABLE: Final = "PDP_DATABASE_URL"
"""Where the URL may stand instead of on the command line, which other users of the machine can read."""


def upgrade(url: str | None) -> int:
    """Make the tables, or bring them up to date, and say where.

    Raises:
        UsageError: no URL, one that cannot be used, or tables of a newer release.
        StoreError: the database cannot be reached.
    """
    with Database.open(_stated(url), upgrade=True) as store:
        tell(f"{store.name}: up to date")
    return Exit.OK


def prune(url: str | None) -> int:
    """Forget the results whose time to live is over, and say how many.

    Raises:
        UsageError: no URL, one that cannot be used, or tables of another release.
        StoreError: the database cannot be reached.
    """
    with Database.open(_stated(url)) as store:
        count = SqlIdempotency(store).prune(time.time())
        tell(f"{store.name}: {count} {'result' if count == 1 else 'results'} forgotten")
    return Exit.OK


def _stated(url: str | None) -> str:
    found = url or os.environ.get(URL_VARIABLE)
    if not found:
        raise UsageError("no database is named", hint=f"name one, as sqlite:///pdp.db, or set {URL_VARIABLE}")
    return found
