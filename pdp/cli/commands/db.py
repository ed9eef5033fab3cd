"""`pdp db`: the database with idempotency keys, actions and approvals."""

from __future__ import annotations

import os
import time
from typing import Annotated, Final

import typer

from pdp.cli.options import command_app
from pdp.cli.output import tell
from pdp.errors import UsageError
from pdp.stores.sql.database import Database
from pdp.stores.sql.keys import SqlIdempotency

URL_VARIABLE: Final = "PDP_DATABASE_URL"
"""Where the URL may stand instead of on the command line, which other users of the machine can read."""


DatabaseUrl = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="sqlite:///pdp.db or postgresql://...; else the variable PDP_DATABASE_URL."),
]

app = command_app("The database with idempotency keys, actions and approvals.")


@app.command("upgrade")
def upgrade(url: DatabaseUrl = None) -> None:
    """Make the tables, or bring those of an older release up to date."""
    with Database.open(_stated(url), upgrade=True) as store:
        tell(f"{store.name}: up to date")


@app.command("prune")
def prune(url: DatabaseUrl = None) -> None:
    """Forget the results of calls whose time to live is over."""
    with Database.open(_stated(url)) as store:
        count = SqlIdempotency(store).prune(time.time())
        tell(f"{store.name}: {count} {'result' if count == 1 else 'results'} forgotten")


def _stated(url: str | None) -> str:
    stated = url or os.environ.get(URL_VARIABLE)
    if not stated:
        raise UsageError("no database is named", hint=f"name one, as sqlite:///pdp.db, or set {URL_VARIABLE}")
    return stated
