"""`pdp db`: the database with idempotency keys, actions, approvals and runs of agents."""

import time

from pdp.cli.commands.stores.named import DatabaseUrl, stores_named
from pdp.cli.options import AsJson, command_app
from pdp.cli.output import print_answer
from pdp.stores.sql.tables import SCHEMA

app = command_app("The database with idempotency keys, actions, approvals and runs of agents.")


@app.command("upgrade")
def upgrade(url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Make the tables, or bring those of an older release up to date.

    Exit code: 0 up to date, 2 bad usage, 1 the database cannot be reached, or is of a newer release.
    """
    with stores_named(url, upgrade=True) as stores:
        answer = {"database": stores.name, "revision": SCHEMA}
        print_answer(answer, [f"{stores.name}: up to date"], as_json=as_json)


@app.command("prune")
def prune(url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Forget the results of calls whose time to live is over, runs in which nobody called for a day, and spent limits.

    Exit code: 0 forgotten, 2 bad usage, 1 the database cannot be reached, or is of another release.
    """
    with stores_named(url) as stores:
        now = time.time()
        counts = {
            "forgotten": stores.keys.prune(now), "runs": stores.ledger.prune(now), "budgets": stores.budgets.prune(now),
        }  # fmt: skip
        forgotten = f"results {counts['forgotten']}, runs {counts['runs']}, budgets {counts['budgets']}"
        line = f"{stores.name}: forgotten: {forgotten}"
        print_answer({"database": stores.name, **counts}, [line], as_json=as_json)
