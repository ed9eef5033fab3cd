"""What is stored of a call that was allowed, and the call made of that again, in whatever process."""

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
from pdp.flow.run import hold_to_pattern
from pdp.flow.stages import Asked, CallDeniedError, Decided, Prepared, Ready, Received, Reserved
from pdp.json import canonical
from pdp.proposal import Proposal
from pdp.request import Entity, Request, RequestedAction
from pdp.session import Session
from pdp.stores.actions import Action
from pdp.stores.keys import KeyState
from pdp.stores.remote_calls import RemoteCall

PROCESS: Final = new_id()  # what runs of patterns remember is in its memory
_OF_RECEIVED: Final = ("tool_call_id", "step_name", "now", "transformed")
_GIVEN_BACK: Final = "what was reserved for the call was given back"
OTHER_PROCESS: Final = "the tool ran, and its result is withheld: what its run remembers is in another process"


class CallConflictError(StateError):
    """The id stands for another call, or for one with another result, or one that was not begun."""

    code: ClassVar[str] = "calls.conflict"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What is stored of a call that was allowed, so that any process goes on with it."""

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
    """Return what is stored of an allowed call; `has_reserved`: of budgets, under the call's id."""
    prepared = decided.prepared
    asked, checked = prepared.asked, prepared.checked
    return CallRecord(
        process=PROCESS,
        proposal=checked.proposal.as_proposed(),
        session=orjson.loads(canonical(asked.session.model_dump())),
        request_id=asked.request_id,
        received={name: getattr(asked.received, name) for name in _OF_RECEIVED},
        idempotency_key=checked.idempotency_key,
        config=orjson.loads(canonical(dict(checked.config))),
        trips=checked.trips,
        body=prepared.body.decode(),
        decision=decided.decision,
        approval=None if prepared.approval is None else prepared.approval.id,
        has_reserved=has_reserved,
    )


def asked_of(row: RemoteCall, parts: Parts) -> Asked:
    """Return what was asked for."""
    record: CallRecord = RECORD.validate_python(row.record)
    started = time.perf_counter() - (time.time() - record.received["now"])
    received = Received(parts.manifest.manifest, to_run=True, started=started, **record.received)
    return Asked(received, Session.read(record.session), record.request_id, Proposal.read(record.proposal))


def restored(row: RemoteCall, parts: Parts) -> Generator[Step, Any, Ready]:
    """Return the call as it was when it was decided; CallConflictError: its tool is not in the manifest any more."""
    record: CallRecord = RECORD.validate_python(row.record)
    asked = asked_of(row, parts)
    proposal = asked.proposal
    tool = parts.manifest.tool(proposal.tool)
    if tool is None:
        raise CallConflictError(f"call {row.id}: its tool is not in the manifest any more")
    approvals, approval_id = parts.approvals, record.approval
    approval = None
    if approvals is not None and approval_id is not None:
        approval = yield Work(lambda: approvals.store.get(approval_id), approvals.store.blocking)
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
    """Return a call with the key and budgets that were reserved for it before; CallDeniedError: no longer."""
    key, keys = key_of(reserved.prepared.asked, reserved.prepared.checked), parts.stores.keys
    reserved = with_budgets(reserved, row)
    if key is None:
        return reserved
    record = yield Work(partial(keys.read, key.id), keys.blocking)
    if record is None or record.token != row.id or record.state is not KeyState.STARTED:
        raise CallDeniedError("calls.given_back", _GIVEN_BACK)
    return reserved._replace(key=record)


def with_budgets(reserved: Reserved, row: RemoteCall) -> Reserved:
    """Return a call with the budgets that were reserved for it before, under the call's id."""
    return reserved._replace(budgets=row.id if row.record["has_reserved"] else None)


def ready_to_complete(row: RemoteCall, parts: Parts) -> Generator[Step, Any, tuple[Ready, str | None]]:
    """Return a call with all that its completion needs, and why its result is withheld, if it is."""
    ready = yield from restored(row, parts)
    decided, fault = ready.reserved.decided, None
    try:
        reserved = yield from with_reserved(ready.reserved, row, parts)
    except CallDeniedError:
        reserved = with_budgets(ready.reserved, row)
    try:
        held = yield from hold_to_pattern(decided, parts)
        if parts.manifest.manifest.tracks_flow:
            flow = yield from call_flow(decided.asked, decided.checked, parts.stores)
            reserved = reserved._replace(decided=decided._replace(prepared=decided.prepared._replace(flow=flow)))
    except StoreError:
        raise
    except StateError as error:
        return ready._replace(reserved=reserved), f"the tool ran, and its result is withheld: {error.message}"
    if held is not None:
        held.task = row.record["task"] or {}
        if held.entry.pattern is not None and held.run.run_id is not None and row.record["process"] != PROCESS:
            fault = OTHER_PROCESS
    return ready._replace(reserved=reserved._replace(held=held)), fault
