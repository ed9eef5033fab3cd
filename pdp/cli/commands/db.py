"""`pdp db`: the database with idempotency keys, actions and approvals."""

from __future__ import annotations

import os
import time
from typing import Annotated, Final

import typer

from pdp.cli.options import AsJson, command_app
from pdp.cli.output import print_json, tell
from pdp.errors import UsageError
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency
from pdp.stores.sql.tables import SCHEMA

URL_VARIABLE: Final = "PDP_DATABASE_URL"
"""Where the URL may stand instead of on the command line, which other users of the machine can read."""


DatabaseUrl = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="sqlite:///pdp.db or postgresql://...; else the variable PDP_DATABASE_URL."),
]

app = command_app("The database with idempotency keys, actions and approvals.")


@app.command("upgrade")
def upgrade(url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Make the tables, or bring those of an older release up to date.

    Exit code: 0 up to date, 2 bad usage, 1 the database cannot be reached, or is of a newer release.
    """
    with Database.open(_stated(url), upgrade=True) as store:
        name = store.name
    if as_json:
        print_json({"database": name, "revision": SCHEMA})
    else:
        tell(f"{name}: up to date")


@app.command("prune")
def prune(url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Forget the results of calls whose time to live is over.

    Exit code: 0 forgotten, 2 bad usage, 1 the database cannot be reached, or is of another release.
    """
    with Database.open(_stated(url)) as store:
        count = SqlIdempotency(store).prune(time.time())
        name = store.name
    if as_json:
        print_json({"database": name, "forgotten": count})
    else:
        tell(f"{name}: {count} {'result' if count == 1 else 'results'} forgotten")


def _stated(url: str | None) -> str:
    stated = url or os.environ.get(URL_VARIABLE)
    if not stated:
        raise UsageError("no database is named", hint=f"name one, as sqlite:///pdp.db, or set {URL_VARIABLE}")
    return stated
