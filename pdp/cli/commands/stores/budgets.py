"""`pdp budgets`: what calls of unknown outcome hold of cumulative limits, and settling it."""

import time
from typing import Annotated, Literal

import typer

from pdp.audit.chain import AuditEvent, recordable
from pdp.cli.commands.stores.named import StepAudit, StoreUrl, recorded, step_audit, stores_named
from pdp.cli.options import AsJson, By, command_app, user_name
from pdp.cli.output import print_answer
from pdp.clock import to_milliseconds
from pdp.errors import UsageError

app = command_app("Amounts that calls hold of which nobody knows what came: look at the system, then settle them.")


@app.command("list")
def listing(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the amounts that are settled by nobody but a person; the id is that of the call's decision in the audit.

    Exit code: 0 shown, 2 bad usage, 1 the store cannot be reached.
    """
    with stores_named(store) as stores:
        held = [reservation.as_json() for reservation in stores.budgets.unknown(time.time())]
    lines = [
        f"{entry['id']}  {entry['amount']} of {entry['limit']}, {entry['per']} {' '.join(entry['holder'])}"
        for entry in held
    ]
    print_answer(held, lines or ["no call of unknown outcome holds anything"], as_json=as_json)


@app.command()
def settle(
    reservation_id: Annotated[str, typer.Argument(metavar="ID", help="The call, as `pdp budgets list` shows it.")],
    outcome: Annotated[
        Literal["spent", "released"],
        typer.Option("--outcome", help="Whether the call has spent what it holds; released gives it back."),
    ],
    by: By = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    as_json: AsJson = False,
) -> None:
    """Settle all that a call of unknown outcome holds, after somebody has looked what happened.

    Exit code: 0 settled, 2 bad usage or id, 1 the store cannot be reached.
    """
    with stores_named(store) as stores, step_audit(audit, stores) as log:
        now = time.time()
        held = [entry.as_json() for entry in stores.budgets.unknown(now) if entry.id == reservation_id]
        event: AuditEvent = {
            "time": to_milliseconds(now), "type": "budget.settled", "subject": recordable(user_name(by)),
            "decision_id": recordable(reservation_id), "status": outcome,
            "spent": [{"limit": entry["limit"], "used": entry["amount"], "window_ends": None} for entry in held],
        }  # fmt: skip
        nothing = UsageError(f"{reservation_id}: no call of unknown outcome has that id", hint="see: pdp budgets list")
        if not held:
            raise nothing
        with recorded(log, event):
            # Of several who settle it, one does: what is spent by then is given back by nobody else.
            if not stores.budgets.commit(reservation_id, unknown_at=now):
                raise nothing
            if outcome == "released":
                stores.budgets.release(reservation_id)
    line = f"settled as {outcome}: {', '.join('{amount} of {limit}'.format_map(entry) for entry in held)}"
    print_answer({"id": reservation_id, "outcome": outcome, "held": held}, [line], as_json=as_json)
