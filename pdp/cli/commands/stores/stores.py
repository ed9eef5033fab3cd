"""`pdp db`, `pdp keys` and `pdp budgets`; opens stores for commands and records their changes."""

import os
import shlex
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
from pdp.cli.output import print_answer, print_error
from pdp.clock import to_milliseconds
from pdp.documents import read_document
from pdp.errors import AuditError, PdpError, StoreError, UsageError
from pdp.project.file import PROJECT_FILE, chosen_project
from pdp.proposal import Execution, Failure, FailureCode
from pdp.stores.actions import ActionState
from pdp.stores.keys import KeyRecord
from pdp.stores.url import OpenStores

URL_VARIABLE: Final = "PDP_DATABASE_URL"
"""The environment variable for the database's URL, because other users can read a URL on the command line."""

_SERVICE_STORE: Final = "pdp.db"
"""The file that `pdp serve` creates beside a project without a store."""

_URL: Final = f"sqlite:///agent.db or postgresql://... Default: the variable {URL_VARIABLE}, else the project's store."
DatabaseUrl = Annotated[str | None, typer.Argument(metavar="[URL]", help=_URL)]
StoreUrl = Annotated[str | None, typer.Option("--store", metavar="URL", help=_URL)]
StepAudit = Annotated[
    Path | None,
    file_option(
        "--audit",
        help="The application's audit stream, with its head in PDP_AUDIT_HEAD. Default: the database's stream, if any.",
    ),
]


def stores_named(url: str | None, *, upgrade: bool = False) -> AbstractContextManager[OpenStores]:
    """Open the stores at the URL from the command line, else from PDP_DATABASE_URL, else from the project file."""
    return closing(OpenStores(store_named(url)[0], upgrade=upgrade))


def store_named(url: str | None) -> tuple[str, str | None]:
    """Return the URL of the stores, as `stores_named` finds it, and the `public_url` of the project that names it."""
    if stated := url or os.environ.get(URL_VARIABLE):
        return stated, None
    project = project_with()
    if project.store is None:
        from pdp.hooks.home import default_home  # noqa: PLC0415 - loads the engine

        hint = (
            f"change to the project's folder, give a URL such as sqlite:///agent.db, set {URL_VARIABLE}, or write "
            f"`store:` in {PROJECT_FILE}"
        )
        hook = default_home()
        if chosen_project() is None and (hook / PROJECT_FILE).is_file():
            hint = f"for the coding agent's calls: cd {shlex.quote(str(hook))}. Otherwise, {hint}"
        if Path(_SERVICE_STORE).is_file():
            hint = f"for the database of `pdp serve` in this folder: export {URL_VARIABLE}=sqlite:///{_SERVICE_STORE}"
        raise UsageError("no database is given", hint=hint)
    return project.store, project.public_url


def step_audit(audit: Path | None, stores: OpenStores, *, begin: bool = False) -> AbstractContextManager[AuditLog]:
    """Open the given audit file, else the database's stream if it has events, or `begin`. Else print a note."""
    if audit is None:
        own = stores.open_audit(key_of_environment())
        last = own.last_seq()
        if last >= 0 and (fault := own.link_fault(last)):
            hint = "if the service has `audit_key_file`, set PDP_AUDIT_KEY: export PDP_AUDIT_KEY=$(cat FILE)"
            raise AuditError(f"audit stream of {stores.name} cannot be continued: {fault}", hint=hint)
        if begin or last >= 0:
            return closing(own)
        print_error("note: this change is not recorded; give the application's audit stream with --audit")
    return closing(open_audit(audit))


@contextmanager
def recorded(log: AuditLog, event: AuditEvent) -> Iterator[None]:
    """Record a change before the `with` block makes the change, so that no change is unrecorded."""
    log.append(event)
    try:
        yield
    except PdpError as error:
        log.append({**event, "outcome": "unknown" if isinstance(error, StoreError) else "failed"})
        raise


db_app = command_app(
    "Create, upgrade and prune the database with idempotency keys, actions, approvals and runs of agents."
)


@db_app.command("upgrade")
def upgrade(url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Create the tables of the database, or upgrade the tables of an older release.

    Exit code: 0 up to date, 2 bad usage, 1 the database cannot be reached, or is of a newer release.
    """
    from pdp.stores.sql.tables import SCHEMA  # noqa: PLC0415 - an optional extra; `pdp audit` imports this module

    with stores_named(url, upgrade=True) as stores:
        answer = {"database": stores.name, "revision": SCHEMA}
        print_answer(answer, [f"{stores.name}: up to date"], as_json=as_json)


@db_app.command("prune")
def prune(url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Delete expired results and recorded requests, runs without a call for a day, and budget windows that have ended.

    Exit code: 0 deleted, 2 bad usage, 1 the database cannot be reached, or is of another release.
    """
    with stores_named(url) as stores:
        now = time.time()
        counts = {
            "forgotten": stores.keys.prune(now), "runs": stores.ledger.prune(now), "budgets": stores.budgets.prune(now),
            "requests": stores.requests.prune(now),
        }  # fmt: skip
        forgotten = "results {forgotten}, runs {runs}, budgets {budgets}, requests {requests}".format_map(counts)
        line = f"{stores.name}: deleted: {forgotten}"
        print_answer({"database": stores.name, **counts}, [line], as_json=as_json)


_WITHOUT_RESULT: Final = Execution(
    failure=Failure(
        FailureCode.TOOL_EXECUTION_FAILED,
        "the tool already ran with this idempotency key, and a person recorded the outcome without the tool's result",
        {"effect": "done"},
    )
)

keys_app = command_app(
    "Settle calls with an unknown outcome: check in the tool's system whether the tool took effect, then record "
    "the outcome."
)


@keys_app.command("list")
def list_keys(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List the calls with an unknown outcome, which only a person can settle, the oldest first.

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
    print_answer(keys, lines or ["no calls with an unknown outcome"], as_json=as_json)


@keys_app.command("settle")
def settle_key(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id from `pdp keys list`.")],
    outcome: Annotated[
        Literal["done", "not-done"],
        typer.Option("--outcome", help="Whether the tool took effect; not-done allows another call with the key."),
    ],
    result: Annotated[
        Path | None,
        file_option("--result", help="With done: the tool's result as JSON, returned if the call is repeated."),
    ] = None,
    by: By = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    as_json: AsJson = False,
) -> None:
    """Settle a call with an unknown outcome, and its approved action, after you have checked what happened.

    Exit code: 0 settled, 2 bad usage, file or key, 1 the store cannot be reached, or another person settled it first.
    """
    done = outcome == "done"
    execution = _WITHOUT_RESULT if done else None
    if result is not None:
        if not done:
            raise UsageError("--result has no effect with --outcome not-done", hint="remove one of them")
        execution = Execution(result=read_document(result).value)
    with stores_named(store) as stores, step_audit(audit, stores) as log:
        now = time.time()
        record = next((record for record in stores.keys.unknown(now) if record.id == key_id), None)
        if record is None:
            raise UsageError(f"{key_id}: no call with an unknown outcome has this id", hint="see: pdp keys list")
        event: AuditEvent = {
            "time": to_milliseconds(now), "type": "key.settled", "subject": recordable(user_name(by)),
            "tool_name": recordable(record.key.tool), "idempotency_key": recordable(record.key.key),
            "approval_id": record.approval_id, "status": outcome,
        }  # fmt: skip
        with recorded(log, event):
            stores.keys.settle(record.key, execution, now=now)
        _settle_action(stores, record, ActionState.COMMITTED if done else ActionState.FAILED)
    line = f"settled as {outcome}; {'a repeated call gets this outcome' if done else 'the key can be used again'}"
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


budgets_app = command_app("Settle amounts reserved by calls with an unknown outcome: check the tool's system first.")


@budgets_app.command("list")
def list_budgets(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List the amounts that calls with an unknown outcome reserve. An id is a `decision_id` of the audit stream.

    Exit code: 0 shown, 2 bad usage, 1 the store cannot be reached.
    """
    with stores_named(store) as stores:
        reservations = [reservation.as_json() for reservation in stores.budgets.unknown(time.time())]
    lines = [
        f"{entry['id']}  {entry['amount']} of {entry['limit']}, {entry['per']} {' '.join(entry['holder'])}"
        for entry in reservations
    ]
    print_answer(reservations, lines or ["no amounts are reserved by calls with an unknown outcome"], as_json=as_json)


@budgets_app.command("settle")
def settle_budget(
    reservation_id: Annotated[str, typer.Argument(metavar="ID", help="The id from `pdp budgets list`.")],
    outcome: Annotated[
        Literal["spent", "released"],
        typer.Option("--outcome", help="Whether the call spent the amounts; released returns them to the budget."),
    ],
    by: By = None,
    store: StoreUrl = None,
    audit: StepAudit = None,
    as_json: AsJson = False,
) -> None:
    """Settle all amounts that a call with an unknown outcome reserves, after you have checked what happened.

    Exit code: 0 settled, 2 bad usage or id, 1 the store cannot be reached.
    """
    with stores_named(store) as stores, step_audit(audit, stores) as log:
        now = time.time()
        settled = [entry.as_json() for entry in stores.budgets.unknown(now) if entry.id == reservation_id]
        event: AuditEvent = {
            "time": to_milliseconds(now), "type": "budget.settled", "subject": recordable(user_name(by)),
            "decision_id": recordable(reservation_id), "status": outcome,
            "spent": [{"limit": entry["limit"], "used": entry["amount"], "window_ends": None} for entry in settled],
        }  # fmt: skip
        nothing = UsageError(
            f"{reservation_id}: no call with an unknown outcome has this id", hint="see: pdp budgets list"
        )
        if not settled:
            raise nothing
        with recorded(log, event):
            # If several people settle the same reservation at once, only the first succeeds, so a spent amount is never
            # released.
            if not stores.budgets.commit(reservation_id, unknown_at=now):
                raise nothing
            if outcome == "released":
                stores.budgets.release(reservation_id)
    line = f"settled as {outcome}: {', '.join('{amount} of {limit}'.format_map(entry) for entry in settled)}"
    print_answer({"id": reservation_id, "outcome": outcome, "held": settled}, [line], as_json=as_json)
