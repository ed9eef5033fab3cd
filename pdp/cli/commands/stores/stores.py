"""`pdp db`, `pdp keys`, `pdp budgets`; and the stores that a command names, with its step recorded in a stream."""

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from pdp.audit.chain import AuditEvent, AuditLog, recordable
from pdp.cli.files import key_of_environment, open_audit, project_with
from pdp.cli.options import AsJson, By, command_app, file_option, user_name
from pdp.cli.output import complain, print_answer
from pdp.clock import to_milliseconds
from pdp.documents import read_document
from pdp.errors import PdpError, StoreError, UsageError
from pdp.project.file import PROJECT_FILE
from pdp.proposal import Execution, Failure, FailureCode
from pdp.stores.actions import ActionState
from pdp.stores.keys import KeyRecord
from pdp.stores.url import OpenStores

URL_VARIABLE: Final = "PDP_DATABASE_URL"
"""Where the URL may stand instead of on the command line, which other users of the machine can read."""

_URL: Final = f"sqlite:///agent.db or postgresql://...; else the variable {URL_VARIABLE}, else the project's."
DatabaseUrl = Annotated[str | None, typer.Argument(metavar="[URL]", help=_URL)]
StoreUrl = Annotated[str | None, typer.Option("--store", metavar="URL", help=_URL)]
StepAudit = Annotated[
    Path | None,
    file_option(
        "--audit",
        help="The application's audit stream; its head in PDP_AUDIT_HEAD. The database's, if it has one, if absent.",
    ),
]


def stores_named(url: str | None, *, upgrade: bool = False) -> AbstractContextManager[OpenStores]:
    """Open the stores of the URL that the line, the variable or the project file states, in this order."""
    stated = url or os.environ.get(URL_VARIABLE) or project_with().store
    if stated is None:
        hint = f"name one, as sqlite:///agent.db, set {URL_VARIABLE}, or state `store:` in {PROJECT_FILE}"
        raise UsageError("no database is named", hint=hint)
    return closing(OpenStores(stated, upgrade=upgrade))


def step_audit(audit: Path | None, stores: OpenStores) -> AbstractContextManager[AuditLog]:
    """Open the stream of events of a step: the file that is named, else the database's, if a service writes one there.

    Without one, it is said that no stream has it.
    """
    if audit is None:
        own = stores.open_audit(key_of_environment())
        if own.last_seq() >= 0:
            return closing(own)
        complain("note: no audit stream records this step; name the application's with --audit")
    return closing(open_audit(audit))


@contextmanager
def recorded(log: AuditLog, event: AuditEvent) -> Iterator[None]:
    """Record a step and then make it, as every step: what cannot be recorded does not happen."""
    log.append(event)
    try:
        yield
    except PdpError as error:
        log.append({**event, "outcome": "unknown" if isinstance(error, StoreError) else "failed"})
        raise


db_app = command_app("The database with idempotency keys, actions, approvals and runs of agents.")


@db_app.command("upgrade")
def upgrade(url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Make the tables, or bring those of an older release up to date.

    Exit code: 0 up to date, 2 bad usage, 1 the database cannot be reached, or is of a newer release.
    """
    from pdp.stores.sql.tables import SCHEMA  # noqa: PLC0415 - an optional extra; `pdp audit` imports this module

    with stores_named(url, upgrade=True) as stores:
        answer = {"database": stores.name, "revision": SCHEMA}
        print_answer(answer, [f"{stores.name}: up to date"], as_json=as_json)


@db_app.command("prune")
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


_WITHOUT_RESULT: Final = Execution(
    failure=Failure(
        FailureCode.TOOL_EXECUTION_FAILED,
        "the tool ran under this idempotency key before; a person settled it, without the result",
        {"effect": "done"},
    )
)

keys_app = command_app(
    "Calls that were started and of which nobody knows what came: look at the system, then settle them."
)


@keys_app.command("list")
def list_keys(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the keys that are settled by nobody but a person, in the order of being begun.

    Exit code: 0 shown, 2 bad usage, 1 the store cannot be reached.
    """
    with stores_named(store) as stores:
        records = stores.keys.unknown(time.time())
    keys = [_as_json(record) for record in records]
    lines = [
        f"{key['id']}  {key['tool']}  key {key['key']} of {key['subject']}, begun {key['started_at']}"
        + (f": {key['failure']['message']}" if key["failure"] else "")
        for key in keys
    ]
    print_answer(keys, lines or ["no key has an unknown outcome"], as_json=as_json)


@keys_app.command("settle")
def settle_key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key, as `pdp keys list` shows it.")],
    outcome: Annotated[
        Literal["done", "not-done"],
        typer.Option("--outcome", help="Whether the effect happened; not-done frees the key for another call."),
    ],
    result: Annotated[
        Path | None,
        file_option("--result", help="With done: the tool's result, JSON, for whoever makes the call again."),
    ] = None,
    by: By = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    as_json: AsJson = False,
) -> None:
    """Settle a key of unknown outcome, and the action of its approval, after somebody has looked what happened.

    Exit code: 0 settled, 2 bad usage, file or key, 1 the store cannot be reached, or somebody else was quicker.
    """
    done = outcome == "done"
    execution = _WITHOUT_RESULT if done else None
    if result is not None:
        if not done:
            raise UsageError("--result says nothing with --outcome not-done", hint="leave one of them out")
        execution = Execution(result=read_document(result).value)
    with stores_named(store) as stores, step_audit(audit, stores) as log:
        now = time.time()
        record = next((record for record in stores.keys.unknown(now) if record.id == key_id), None)
        if record is None:
            raise UsageError(f"{key_id}: no key of unknown outcome has that id", hint="see: pdp keys list")
        event: AuditEvent = {
            "time": to_milliseconds(now), "type": "key.settled", "subject": recordable(user_name(by)),
            "tool_name": recordable(record.key.tool), "idempotency_key": recordable(record.key.key),
            "approval_id": record.approval_id, "status": outcome,
        }  # fmt: skip
        with recorded(log, event):
            stores.keys.settle(record.key, execution, now=now)
        _settle_action(stores, record, ActionState.COMMITTED if done else ActionState.FAILED)
    line = f"settled as {outcome}; {'a call with it gets this outcome' if done else 'it is free again'}"
    print_answer({**_as_json(record), "outcome": outcome}, [line], as_json=as_json)


def _settle_action(stores: OpenStores, record: KeyRecord, state: ActionState) -> None:
    approval = None if record.approval_id is None else stores.approvals.get(record.approval_id)
    action = None if approval is None or approval.action_id is None else stores.actions.get(approval.action_id)
    if action is not None and action.state is ActionState.APPROVED:
        stores.actions.move(action, state)


def _as_json(record: KeyRecord) -> dict[str, Any]:
    failure = record.execution().failure if record.outcome else None
    return {
        "id": record.id, **record.key._asdict(), "state": record.state, "approval_id": record.approval_id,
        "started_at": to_milliseconds(record.started_at), "failure": failure and asdict(failure),
    }  # fmt: skip


budgets_app = command_app(
    "Amounts that calls hold of which nobody knows what came: look at the system, then settle them."
)


@budgets_app.command("list")
def list_budgets(store: StoreUrl = None, as_json: AsJson = False) -> None:
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


@budgets_app.command("settle")
def settle_budget(
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
