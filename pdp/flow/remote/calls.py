"""Calls whose tool another enforcement point runs: begun and finished here, by any process that has the stores.

All that a call uses up (budgets, key, approval) is reserved in one transaction with its record, where the stores are
one database. So a process that is killed leaves a call that was not begun, or one that the next try with the same id
goes on with. Whoever tries again has not started the tool: the id is all that tells one enforcement point from two.
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
from pdp.flow.reserve import PATIENCE, Consume, Together, lasting, reserve, taking
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

HELD: Final = 10.0  # seconds for which a process has a call that it works on, before another one goes on with it
KEPT: Final = 7 * 86_400.0  # seconds for which a call that is over is known
_SHOWN: Final = (
    "action", "codes", "executed", "failed_check", "markings", "replayed", "result", "retrieval_snapshot", "state",
    "trips",
)  # fmt: skip
_WAIT: Final = 0.05
_NOT_HERE: Final = "what the run remembers is in another process, or gone with it: go on under another run_id"
_UNREPORTED: Final = "nobody knows whether the tool has run: no result was reported in time"


class UnknownCallError(StateError):
    """The caller has begun no such call."""

    code: ClassVar[str] = "calls.unknown"


def begin(
    call: CallName, received: Received, proposal: Any, session: Any, parts: Parts
) -> Generator[Step, Any, dict[str, Any]]:
    """Decide a proposal and, on ALLOW alone, reserve all that its run needs; return the answer, as plain JSON.

    The same call again has the same answer until its result is there, and reserves nothing again.

    CallConflictError: the id stands for another call; StoreError: a store cannot be used.
    """
    runner, end = RemoteRunner(call, parts), time.monotonic() + PATIENCE
    while True:
        row = yield from runner.look()
        if row is not None and call != (row.id, row.owner, row.request_digest):
            raise CallConflictError(f"the id {call.id} stands for another call", hint="take a new id")
        if row is None:
            decided = yield from decide(received, proposal, session, parts)
        elif row.state is not CallState.BEGUN:
            return (yield from _standing(row, parts))
        elif not (yield from runner.holds(row)):
            yield _pause(end)
            continue
        else:
            decided = (yield from restored(row, parts)).reserved.decided
        result = yield from run_call(decided, parts, runner)
        if runner.row is None:
            # Another request with this id may have been quicker.
            if not decided.allowed or (yield from runner.look()) is None:
                return ended(call.id, result)
        elif runner.ready is not None:
            return begun(runner.row, runner.ready)
        elif runner.row.answer is not None or (
            yield from runner.moves(state=CallState.FINISHED, answer=ended(call.id, result))
        ):
            return ended(call.id, result)


def finish(call: CallName, execution: Execution, parts: Parts) -> Generator[Step, Any, dict[str, Any]]:
    """Take what a run came to, check it as if the tool had run here, and return the answer, as plain JSON.

    The same result again has the same answer. UnknownCallError: this owner has begun no such call; CallConflictError:
    it has another result, or was not begun; StoreError, AuditError: it is not stored yet, and has to be sent again.
    """
    reported = digest(canonical([execution.result, execution.failure and asdict(execution.failure), execution.started]))
    runner, end = RemoteRunner(call, parts), time.monotonic() + PATIENCE
    while True:
        row = yield from runner.look()
        if row is None or row.owner != call.owner:
            raise UnknownCallError(f"the caller has begun no call {call.id:.128}")
        if row.state is CallState.BEGUN or row.result_digest not in (None, reported):
            raise CallConflictError(f"call {call.id} was not begun, or has another result")
        if row.state is CallState.FINISHED:
            if row.answer is None or row.result_digest is None:
                raise CallConflictError(f"call {call.id} ended before its tool could run")
            return row.answer
        if (yield from runner.holds(row, state=CallState.REPORTED, result_digest=reported)):
            break
        yield _pause(end)
    try:
        ready, fault = yield from ready_to_complete(runner.held_row, parts)
        decided = ready.reserved.decided
        believed = ToolRunner(decided.tool.entry, _elsewhere).believed(execution, decided.proposal.arguments)
        executed = yield from complete(ready, believed, parts, fault)
    except BaseException:
        yield from runner.moves(held_until=0.0)
        raise
    answer = ended(call.id, executed)
    yield from runner.moves(state=CallState.FINISHED, answer=answer)
    return answer


def sweep(now: float, parts: Parts) -> Generator[Step, Any, int]:
    """Record that nobody knows what became of the calls that were not finished in time, and return how many.

    Their keys and budgets stay taken, for a person to settle; a result that is reported later still counts.
    """
    calls, count = _calls_of(parts), 0
    for row in (yield Work(lambda: calls.overdue(now), blocking=True)):
        runner = RemoteRunner(CallName(row.id, row.owner, row.request_digest), parts)
        if not (yield from runner.holds(row)):
            continue
        try:
            decided: Decided | Ended = (yield from restored(row, parts)).reserved.decided
        except CallConflictError:
            decided = Ended(asked_of(row, parts))
        yield from write_result(Executed(decided, unknown(_UNREPORTED)), parts.audit)
        yield from runner.moves(state=CallState.UNKNOWN, held_until=0.0, result_digest=None)
        count += 1
    yield Work(lambda: calls.prune(now - KEPT), blocking=True)
    return count


class RemoteRunner(CallRunner):
    """The run of one call elsewhere, as this process holds it.

    `row` is what this process has stored of it last; None: it holds nothing. `ready`: the caller may run it.
    """

    token: str

    def __init__(self, call: CallName, parts: Parts) -> None:
        self.token = call.id
        self.row: RemoteCall | None = None
        self.ready: Ready | None = None
        self._call, self._parts = call, parts
        self._calls = _calls_of(parts)

    @property
    def held_row(self) -> RemoteCall:
        """What this process holds; StoreError where another one has taken it."""
        if self.row is None:
            raise StoreError(f"call {self.token}: another process goes on with it", hint="try again")
        return self.row

    def look(self) -> Generator[Step, Any, RemoteCall | None]:
        """Return the call as it is stored."""
        self.row = self.ready = None
        row: RemoteCall | None = yield Work(partial(self._calls.get, self.token), blocking=True)
        return row

    def holds(self, row: RemoteCall, **changes: Any) -> Generator[Step, Any, bool]:
        """Take the call, unless another process has it; return whether it is this one's."""
        now = time.time()
        if row.held_until > now:
            return False
        self.row = row
        return (yield from self.moves(held_until=now + HELD, **changes))

    def moves(self, **changes: Any) -> Generator[Step, Any, bool]:
        """Store a change of the call that this process holds, and return whether it still did."""
        old = self.held_row
        new = replace(old, **changes)
        done: bool = yield Work(lambda: self._calls.replace(old, new), blocking=True)
        self.row = new if done else None
        return done

    def reserve(self, reserved: Reserved) -> Generator[Step, Any, Reserved | Known]:
        """Reserve what the call needs, and store it, in one step; or go on with what was reserved before."""
        if self.row is not None:
            return (yield from with_reserved(reserved, self.row, self._parts))
        yield from self._check_run(reserved)
        decided, stores = reserved.decided, self._parts.stores
        take_budgets = taking(decided, stores, self.token)
        record = RECORD.dump_python(record_of(decided, has_reserved=take_budgets is not None), mode="json")
        now = time.time()
        row = RemoteCall(
            *self._call,
            state=CallState.BEGUN,
            running_until=now + lasting(decided.tool),
            held_until=now + HELD,
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

        together = Together(self.token, check, self._calls.transaction, take)
        result = yield from reserve(reserved, self._parts, together)
        if isinstance(result, Known):
            return result
        self.row = row
        return result if take_budgets is None else result._replace(budgets=self.token)

    def _check_run(self, reserved: Reserved) -> Generator[Step, Any, None]:
        """Check that what the call's run remembers is here, where its pattern needs it; CallDeniedError: it is not."""
        held = reserved.held
        if held is None or held.run.run_id is None or not (held.entry.pattern or held.facts.markings):
            return
        name = digest(canonical([held.facts.caller, held.run.run_id]))
        # The first process that makes such a call in a run has it, and nobody has it when that process has ended.
        first = RemoteCall(f"run:{name}", PROCESS, "", CallState.FINISHED, time.time() + LIFETIME, 0, {})

        def is_here() -> bool:
            if self._calls.add(first):
                return True
            stored = self._calls.get(first.id)
            return stored is not None and stored.owner == PROCESS

        if not (yield Work(is_here, blocking=True)):
            raise CallDeniedError(RunClosedError.code, _NOT_HERE)

    def may_release(self, denied: Decided | None) -> Generator[Step, Any, bool]:
        """Store that the call ends here, before others can take what it has reserved; a cancelled one may go on."""
        if self.row is None:
            return True
        if denied is None:
            return False
        return (yield from self.moves(state=CallState.FINISHED, answer=ended(self.token, denied)))

    def hand_over(self, ready: Ready | Known) -> Generator[Step, Any, bool]:
        """Let the caller run the call, unless there is nothing to run."""
        if isinstance(ready, Known) or ready.reserved.decided.tool.stages_actions:
            return False
        held = ready.reserved.held
        record = RECORD.validate_python(self.held_row.record)
        record = replace(record, action=ready.action, task=None if held is None else held.task)
        yield from self.moves(state=CallState.READY, held_until=0.0, record=RECORD.dump_python(record, mode="json"))
        self.ready = ready
        return True


def ended(call_id: str, result: Ended | Decided | Executed) -> dict[str, Any]:
    """Return the answer to a call that the other one does not run, or has run."""
    return as_answer(Evaluation(result)) | {"id": call_id}


def begun(row: RemoteCall, ready: Ready) -> dict[str, Any]:
    """Return the answer to a call that the other one runs now."""
    decided = ready.reserved.decided
    return ended(row.id, decided._replace(action=ready.action)) | {
        "begun": True,
        "answer": None,  # there is nothing yet for the model to see
        "arguments": orjson.loads(decided.proposal.text),
        "running_until": row.running_until,
        "manifest_digest": decided.asked.received.manifest.digest,
    }


def as_answer(evaluation: Evaluation) -> dict[str, Any]:
    """Return what a remote enforcement point is told of a call, plain JSON."""
    approval, answer = evaluation.approval, evaluation.answer
    shown = {
        **evaluation.as_json(),
        **{name: getattr(evaluation, name) for name in _SHOWN},
        "begun": False,
        "approval": approval and approval.as_json(),
        "answer": {"text": answer.text, "is_error": answer.is_error},
    }
    return dict(orjson.loads(orjson.dumps(shown)))


def _calls_of(parts: Parts) -> SqlRemoteCalls:
    if parts.remote_calls is None:
        raise UsageError("no database for remote calls", hint="pass remote_calls")
    return parts.remote_calls


def _elsewhere() -> None:
    """Stand for a function that is not here."""


def _pause(end: float) -> Pause:
    if time.monotonic() > end:
        raise StoreError("another request works on the call with this id", hint="try again")
    return Pause(_WAIT)


def _standing(row: RemoteCall, parts: Parts) -> Generator[Step, Any, dict[str, Any]]:
    """Return the answer to a call that was begun before."""
    if row.answer is not None:
        return row.answer
    ready = yield from restored(row, parts)
    if row.state is CallState.READY and time.time() < row.running_until:
        return begun(row, ready)
    return ended(row.id, Executed(ready.reserved.decided, not_run(_UNREPORTED, "unknown"), ready.action))
