"""`pdp keys`: idempotency keys whose outcome is unknown, and settling them."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from pdp.audit.chain import AuditEvent, recordable
from pdp.cli.commands.stores.named import StepAudit, StoreUrl, recorded, step_audit, stores_named
from pdp.cli.options import AsJson, By, command_app, file_option, user_name
from pdp.cli.output import print_answer
from pdp.clock import to_milliseconds
from pdp.documents import read_document
from pdp.errors import UsageError
from pdp.proposal import Execution, Failure, FailureCode
from pdp.stores.actions import ActionState
from pdp.stores.keys import KeyRecord
from pdp.stores.url import OpenStores

_WITHOUT_RESULT: Final = Execution(
    failure=Failure(
        FailureCode.TOOL_EXECUTION_FAILED,
        "the tool ran under this idempotency key before; a person settled it, without the result",
        {"effect": "done"},
    )
)

app = command_app("Calls that were started and of which nobody knows what came: look at the system, then settle them.")


@app.command("list")
def listing(store: StoreUrl = None, as_json: AsJson = False) -> None:
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


@app.command()
def settle(
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
