"""The database record of an allowed call whose tool runs elsewhere. Any process can restore a call from its record."""

import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import orjson
from pydantic import TypeAdapter

from pdp.contract.checks import Checked
from pdp.contract.invariants import Trip
from pdp.decision import Decision, new_id
from pdp.errors import StateError, StoreError
from pdp.flow.decide import call_flow
from pdp.flow.drive import Step, Work
from pdp.flow.parts import Parts
from pdp.flow.reserve import key_of
from pdp.flow.run import pattern_call
from pdp.flow.stages import Asked, CallDeniedError, Decided, Prepared, Ready, Received, Reserved
from pdp.json import canonical
from pdp.proposal import Proposal
from pdp.request import Entity, Request, RequestedAction
from pdp.session import Session
from pdp.stores.actions import Action
from pdp.stores.keys import KeyState
from pdp.stores.remote_calls import RemoteCall

PROCESS: Final = new_id()  # The data of a run that patterns use is only in the memory of one process.
_RECEIVED_FIELDS: Final = ("tool_call_id", "step_name", "now", "transformed")
_RELEASED: Final = "the call's reservation was released"
OTHER_PROCESS: Final = (
    "the tool ran, but its result is withheld, because the run's data is in the memory of another process"
)


class CallConflictError(StateError):
    """The id belongs to another call, or the call was not begun, has ended, or has another result."""

    code: ClassVar[str] = "calls.conflict"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The fields of an allowed call that are stored, so that any process can continue the call."""

    process: str
    proposal: dict[str, Any]
    session: dict[str, Any]
    request_id: str
    received: dict[str, Any]
    idempotency_key: str | None
    config: dict[str, Any]
    trips: tuple[Trip, ...]
    body: str
    decision: Decision
    approval: str | None
    has_reserved: bool
    action: Action | None = None
    task: dict[str, Any] | None = None


RECORD: Final = TypeAdapter(CallRecord)


def record_of(decided: Decided, *, has_reserved: bool) -> CallRecord:
    """Return the record to store for an allowed call. `has_reserved` tells whether the call has reserved budgets."""
    prepared = decided.prepared
    asked, checked = prepared.asked, prepared.checked
    return CallRecord(
        process=PROCESS,
        proposal=checked.proposal.as_proposed(),
        session=orjson.loads(canonical(asked.session.model_dump())),
        request_id=asked.request_id,
        received={name: getattr(asked.received, name) for name in _RECEIVED_FIELDS},
        idempotency_key=checked.idempotency_key,
        config=orjson.loads(canonical(dict(checked.config))),
        trips=checked.trips,
        body=prepared.body.decode(),
        decision=decided.decision,
        approval=None if prepared.approval is None else prepared.approval.id,
        has_reserved=has_reserved,
    )


def asked_of(row: RemoteCall, parts: Parts) -> Asked:
    """Return the parsed session and proposal of a stored call."""
    record: CallRecord = RECORD.validate_python(row.record)
    started = time.perf_counter() - (time.time() - record.received["now"])
    received = Received(parts.manifest.manifest, to_run=True, started=started, **record.received)
    return Asked(received, Session.read(record.session), record.request_id, Proposal.read(record.proposal))


def restored(row: RemoteCall, parts: Parts) -> Generator[Step, Any, Ready]:
    """Return a stored call with its decision. Raise `CallConflictError` if the manifest lacks the call's tool."""
    record: CallRecord = RECORD.validate_python(row.record)
    asked = asked_of(row, parts)
    proposal = asked.proposal
    tool = parts.manifest.tool(proposal.tool)
    if tool is None:
        raise CallConflictError(f"call {row.id}: the called tool is no longer in the manifest")
    approvals, approval_id = parts.approvals, record.approval
    approval = None
    if approvals is not None and approval_id is not None:
        approval = yield Work(lambda: approvals.find(approval_id), approvals.store.blocking)
    checked = Checked(tool, proposal, record.idempotency_key, record.config, record.trips)
    whole = orjson.loads(record.body)
    request = Request(
        Entity(**whole["subject"]), RequestedAction(**whole["action"]), Entity(**whole["resource"]), whole["context"]
    )
    prepared = Prepared(asked, checked, request, record.body.encode(), approval)
    decision = record.decision
    duties = (
        parts.obligations().duties(decision, transformed=asked.received.transformed) if decision.obligations else None
    )
    return Ready(Reserved(Decided(prepared, decision, duties, approval)), proposal.arguments, record.action)


def with_reserved(reserved: Reserved, row: RemoteCall, parts: Parts) -> Generator[Step, Any, Reserved]:
    """Return the call with the reservations of its earlier attempt. Raise `CallDeniedError` if the key was released."""
    key, keys = key_of(reserved.prepared.asked, reserved.prepared.checked), parts.stores.keys
    reserved = with_budgets(reserved, row)
    if key is None:
        return reserved
    record = yield Work(partial(keys.read, key.id), keys.blocking)
    if record is None or record.token != row.id or record.state is not KeyState.STARTED:
        raise CallDeniedError("calls.given_back", _RELEASED)
    return reserved._replace(key=record)


def with_budgets(reserved: Reserved, row: RemoteCall) -> Reserved:
    """Return the call with its reserved budgets, whose reservation has the id of the call."""
    return reserved._replace(budgets=row.id if row.record["has_reserved"] else None)


def ready_to_complete(row: RemoteCall, parts: Parts) -> Generator[Step, Any, tuple[Ready, str | None]]:
    """Restore a call, so that its outcome can be stored. Also return why its result must be withheld, or None."""
    ready = yield from restored(row, parts)
    decided, fault = ready.reserved.decided, None
    try:
        reserved = yield from with_reserved(ready.reserved, row, parts)
    except CallDeniedError:
        reserved = with_budgets(ready.reserved, row)
    try:
        enforced = yield from pattern_call(decided, parts)
        if parts.manifest.manifest.tracks_flow:
            flow = yield from call_flow(decided.asked, decided.checked, parts.stores)
            reserved = reserved._replace(decided=decided._replace(prepared=decided.prepared._replace(flow=flow)))
    except StoreError:
        raise
    except StateError as error:
        return ready._replace(reserved=reserved), f"the tool ran, but its result is withheld: {error.message}"
    if enforced is not None:
        enforced.task = row.record["task"] or {}
        if enforced.entry.pattern is not None and enforced.run.run_id is not None and row.record["process"] != PROCESS:
            fault = OTHER_PROCESS
    return ready._replace(reserved=reserved._replace(enforced=enforced)), fault
