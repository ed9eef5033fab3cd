"""Begin and finish calls whose tool runs at another enforcement point.

If one database holds all stores, a call's record, budgets, key and approval are stored in one transaction. So after a
crash, a repeated request with the same id continues the call. Callers must not repeat it once the tool has started.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson

from pdp.errors import StateError, StoreError, UsageError
from pdp.execution.runner import ToolRunner, unknown
from pdp.flow.decide import decide
from pdp.flow.drive import Pause, Step, Work
from pdp.flow.evaluation import Evaluation
from pdp.flow.parts import Parts
from pdp.flow.record import write_result
from pdp.flow.remote.stored import (
    PROCESS,
    RECORD,
    CallConflictError,
    asked_of,
    ready_to_complete,
    record_of,
    restored,
    with_reserved,
)
from pdp.flow.reserve import PATIENCE, Consume, RemoteTransaction, budget_reservation, max_run_seconds, reserve
from pdp.flow.run import CallRunner, complete, run_call
from pdp.flow.stages import (
    CallDeniedError,
    Decided,
    Ended,
    Executed,
    Known,
    Ready,
    Received,
    Reserved,
    not_run,
)
from pdp.json import canonical, digest
from pdp.patterns.run import LIFETIME, RunClosedError
from pdp.proposal import Execution
from pdp.stores.approvals import Transaction
from pdp.stores.remote_calls import CallName, CallState, RemoteCall

if TYPE_CHECKING:
    from pdp.stores.sql.records import SqlRemoteCalls

# A process that works on a call owns it for this many seconds. Afterwards another process may continue the call.
OWNED_SECONDS: Final = 10.0
KEPT_SECONDS: Final = 7 * 86_400.0  # A finished call is kept for this many seconds.
_ANSWER_FIELDS: Final = (
    "action", "codes", "executed", "failed_check", "markings", "replayed", "result", "retrieval_snapshot", "state",
    "trips",
)  # fmt: skip
_WAIT: Final = 0.05
_RUN_ELSEWHERE: Final = "the run's data is in the memory of another process, or lost: use another run_id"
_UNREPORTED: Final = "no result was reported in time, so the outcome is unknown: the tool may have run"


class UnknownCallError(StateError):
    """The caller has not begun a call with this id."""

    code: ClassVar[str] = "calls.unknown"


def begin(
    call: CallName, received: Received, proposal: Any, session: Any, parts: Parts
) -> Generator[Step, Any, dict[str, Any]]:
    """Decide a proposal and, only on ALLOW, reserve what the run of the tool needs. Return the answer as plain JSON.

    Until the call has a result, a repeated request gets the same answer without a second reservation. Raises
    `CallConflictError` if the id belongs to another call, and `StoreError` if a store is unavailable.
    """
    runner, end = RemoteRunner(call, parts), time.monotonic() + PATIENCE
    while True:
        row = yield from runner.look()
        if row is not None and call != (row.id, row.owner, row.request_digest):
            raise CallConflictError(f"the id {call.id} belongs to another call", hint="use a new id")
        if row is None:
            decided = yield from decide(received, proposal, session, parts)
        elif row.state is not CallState.BEGUN:
            return (yield from _stored_answer(row, parts))
        elif not (yield from runner.acquire(row)):
            yield _pause(end)
            continue
        else:
            decided = (yield from restored(row, parts)).reserved.decided
        result = yield from run_call(decided, parts, runner)
        if runner.row is None:
            # Another request with the same id may have begun the call in the meantime.
            if not decided.allowed or (yield from runner.look()) is None:
                return ended(call.id, result)
        elif runner.ready is not None:
            return begun(runner.row, runner.ready)
        elif runner.row.answer is not None or (
            yield from runner.update(state=CallState.FINISHED, answer=ended(call.id, result))
        ):
            return ended(call.id, result)


def finish(call: CallName, execution: Execution, parts: Parts) -> Generator[Step, Any, dict[str, Any]]:
    """Check a reported outcome as if the tool had run here, settle the call, and return the answer as plain JSON.

    Reporting the same outcome again returns the same answer. Raises `UnknownCallError` if this caller did not begin the
    call, `CallConflictError` for a different outcome, and `StoreError` or `AuditError` if the report must be repeated.
    """
    reported = digest(canonical([execution.result, execution.failure and asdict(execution.failure), execution.started]))
    runner, end = RemoteRunner(call, parts), time.monotonic() + PATIENCE
    while True:
        row = yield from runner.look()
        if row is None or row.owner != call.owner:
            raise UnknownCallError(f"the caller has not begun call {call.id:.128}")
        if row.state is CallState.BEGUN or row.result_digest not in (None, reported):
            raise CallConflictError(f"call {call.id} was not begun, or was already reported with another result")
        if row.state is CallState.FINISHED:
            if row.answer is None or row.result_digest is None:
                raise CallConflictError(f"call {call.id} ended before its tool could run")
            return row.answer
        if (yield from runner.acquire(row, state=CallState.REPORTED, result_digest=reported)):
            break
        yield _pause(end)
    try:
        ready, fault = yield from ready_to_complete(runner.owned_row, parts)
        decided = ready.reserved.decided
        verified = ToolRunner(decided.tool.entry, _runs_elsewhere).verified(execution, decided.proposal.arguments)
        executed = yield from complete(ready, verified, parts, fault)
    except BaseException:
        yield from runner.update(held_until=0.0)
        raise
    answer = ended(call.id, executed)
    yield from runner.update(state=CallState.FINISHED, answer=answer)
    return answer


def sweep(now: float, parts: Parts) -> Generator[Step, Any, int]:
    """Record overdue calls without a reported result as unknown, and return how many there were.

    Such a call keeps its key and budgets until a person settles the call. The caller may still report a result later.
    """
    calls, count = _calls_of(parts), 0
    for row in (yield Work(lambda: calls.overdue(now), blocking=True)):
        runner = RemoteRunner(CallName(row.id, row.owner, row.request_digest), parts)
        if not (yield from runner.acquire(row)):
            continue
        try:
            decided: Decided | Ended = (yield from restored(row, parts)).reserved.decided
        except CallConflictError:
            decided = Ended(asked_of(row, parts))
        yield from write_result(Executed(decided, unknown(_UNREPORTED)), parts.audit)
        yield from runner.update(state=CallState.UNKNOWN, held_until=0.0, result_digest=None)
        count += 1
    yield Work(lambda: calls.prune(now - KEPT_SECONDS), blocking=True)
    return count


class RemoteRunner(CallRunner):
    """Processes one call whose tool runs at another enforcement point."""

    token: str

    def __init__(self, call: CallName, parts: Parts) -> None:
        self.token = call.id
        self.row: RemoteCall | None = None  # The stored record, if this process owns the call.
        self.ready: Ready | None = None  # Set once the caller may run the tool.
        self._call, self._parts = call, parts
        self._calls = _calls_of(parts)

    @property
    def owned_row(self) -> RemoteCall:
        """The stored record of the call. Raise `StoreError` if another process now works on the call."""
        if self.row is None:
            raise StoreError(f"call {self.token}: another process has continued it", hint="try again")
        return self.row

    def look(self) -> Generator[Step, Any, RemoteCall | None]:
        """Return the stored record of the call; None if the call has not begun."""
        self.row = self.ready = None
        row: RemoteCall | None = yield Work(partial(self._calls.get, self.token), blocking=True)
        return row

    def acquire(self, row: RemoteCall, **changes: Any) -> Generator[Step, Any, bool]:
        """Reserve the call for this process and return True. Return False if another process works on the call."""
        now = time.time()
        if row.held_until > now:
            return False
        self.row = row
        return (yield from self.update(held_until=now + OWNED_SECONDS, **changes))

    def update(self, **changes: Any) -> Generator[Step, Any, bool]:
        """Change the stored record of the call. Return False if another process has changed the record meanwhile."""
        old = self.owned_row
        new = replace(old, **changes)
        done: bool = yield Work(lambda: self._calls.replace(old, new), blocking=True)
        self.row = new if done else None
        return done

    def reserve(self, reserved: Reserved) -> Generator[Step, Any, Reserved | Known]:
        """Make the call's reservations and store its record in one step, or use an earlier attempt's reservations."""
        if self.row is not None:
            return (yield from with_reserved(reserved, self.row, self._parts))
        yield from self._check_run(reserved)
        decided, stores = reserved.decided, self._parts.stores
        take_budgets = budget_reservation(decided, stores, self.token)
        record = RECORD.dump_python(record_of(decided, has_reserved=take_budgets is not None), mode="json")
        now = time.time()
        row = RemoteCall(
            *self._call,
            state=CallState.BEGUN,
            running_until=now + max_run_seconds(decided.tool),
            held_until=now + OWNED_SECONDS,
            record=record,
        )
        taken = CallDeniedError("calls.begun", "another request has begun the call with this id")

        def check() -> None:
            if self._calls.get(self.token) is not None:
                raise taken

        def take(consume: Consume, transaction: Transaction | None) -> None:
            if take_budgets is not None:
                take_budgets(transaction)
            consume(transaction)
            if not self._calls.add(row, within=transaction):
                raise taken

        remote = RemoteTransaction(self.token, check, self._calls.transaction, take)
        result = yield from reserve(reserved, self._parts, remote)
        if isinstance(result, Known):
            return result
        self.row = row
        return result if take_budgets is None else result._replace(budgets=self.token)

    def _check_run(self, reserved: Reserved) -> Generator[Step, Any, None]:
        """Raise `CallDeniedError` if the tool's pattern needs the memory of a run that another process holds."""
        enforced = reserved.enforced
        if enforced is None or enforced.run.run_id is None or not (enforced.entry.pattern or enforced.facts.markings):
            return
        name = digest(canonical([enforced.facts.caller, enforced.run.run_id]))
        # The first process that needs the memory of a run owns the run. No other process can continue it.
        first = RemoteCall(f"run:{name}", PROCESS, "", CallState.FINISHED, time.time() + LIFETIME, 0, {})

        def is_here() -> bool:
            if self._calls.add(first):
                return True
            stored = self._calls.get(first.id)
            return stored is not None and stored.owner == PROCESS

        if not (yield Work(is_here, blocking=True)):
            raise CallDeniedError(RunClosedError.code, _RUN_ELSEWHERE)

    def may_release(self, denied: Decided | None) -> Generator[Step, Any, bool]:
        """Store that the call was denied and return True, or False if a cancelled call must keep its reservations."""
        if self.row is None:
            return True
        if denied is None:
            return False
        return (yield from self.update(state=CallState.FINISHED, answer=ended(self.token, denied)))

    def hand_over(self, ready: Ready | Known) -> Generator[Step, Any, bool]:
        """Store that the caller may run the tool. Return False if the tool need not run."""
        if isinstance(ready, Known) or ready.reserved.decided.tool.stages_actions:
            return False
        enforced = ready.reserved.enforced
        record = RECORD.validate_python(self.owned_row.record)
        record = replace(record, action=ready.action, task=None if enforced is None else enforced.task)
        yield from self.update(state=CallState.READY, held_until=0.0, record=RECORD.dump_python(record, mode="json"))
        self.ready = ready
        return True


def ended(call_id: str, result: Ended | Decided | Executed) -> dict[str, Any]:
    """Return the answer for a call whose tool must not run, or has already run."""
    return as_answer(Evaluation(result)) | {"id": call_id}


def begun(row: RemoteCall, ready: Ready) -> dict[str, Any]:
    """Return the answer that lets the caller run the tool."""
    decided = ready.reserved.decided
    return ended(row.id, decided._replace(action=ready.action)) | {
        "begun": True,
        "answer": None,
        "arguments": orjson.loads(decided.proposal.text),
        "running_until": row.running_until,
        "manifest_digest": decided.asked.received.manifest.digest,
    }


def as_answer(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as plain JSON, as it is sent to the remote enforcement point."""
    approval, answer = evaluation.approval, evaluation.answer
    shown = {
        **evaluation.as_json(),
        **{name: getattr(evaluation, name) for name in _ANSWER_FIELDS},
        "begun": False,
        "approval": approval and approval.as_json(),
        "answer": {"text": answer.text, "is_error": answer.is_error},
    }
    return dict(orjson.loads(orjson.dumps(shown)))


def _calls_of(parts: Parts) -> SqlRemoteCalls:
    if parts.remote_calls is None:
        raise UsageError("no database for remote calls", hint="pass remote_calls")
    return parts.remote_calls


def _runs_elsewhere() -> None:
    """Do nothing: a placeholder for the tool's function, which runs at another enforcement point."""


def _pause(end: float) -> Pause:
    if time.monotonic() > end:
        raise StoreError("another request is working on the call with this id", hint="try again")
    return Pause(_WAIT)


def _stored_answer(row: RemoteCall, parts: Parts) -> Generator[Step, Any, dict[str, Any]]:
    if row.answer is not None:
        return row.answer
    ready = yield from restored(row, parts)
    if row.state is CallState.READY and time.time() < row.running_until:
        return begun(row, ready)
    return ended(row.id, Executed(ready.reserved.decided, not_run(_UNREPORTED, "unknown"), ready.action))
