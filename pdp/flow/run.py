"""Run an allowed call: make reservations, run the tool, store the outcome, and build the result.

Before the tool starts (`start`), an error is a DENY, and a refusal by the tool or its pattern is a failure. Once the
tool has started, any error is a failure that tells whether the effect is known. Every call ends with one more audit
event, even if its caller is cancelled. A call that ends before its tool starts releases its idempotency key, but its
approval stays used. An interrupted run keeps its key, so that no other call with the key runs the tool.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pdp.audit.chain import AuditLog
from pdp.contract.sensitive import masked, place_of
from pdp.decision import new_id
from pdp.documents import shown_name
from pdp.errors import PdpError, UsageError
from pdp.execution.runner import ToolRunner, cut_short, unavailable
from pdp.flow.decide import decide, failed
from pdp.flow.drive import CHECKPOINT, Step, ToolRun, Work
from pdp.flow.evaluation import Evaluation
from pdp.flow.parts import Parts, Stores
from pdp.flow.record import decision_event, record_decision, record_result, result_event, write_result
from pdp.flow.settle import CANCELLED, deliver, release, settle
from pdp.flow.stages import (
    CallDeniedError,
    Decided,
    Ended,
    Executed,
    Known,
    OverspentError,
    Prepared,
    Ready,
    Received,
    Reserved,
    arguments_of,
    withheld,
)
from pdp.proposal import Execution
from pdp.session import Session
from pdp.stores.actions import Action, ActionState

if TYPE_CHECKING:  # Only some calls need these modules at run time.
    from pdp.execution.events import CallEvents
    from pdp.execution.telemetry import CallTelemetry
    from pdp.patterns.enforcement import EnforcedCall

_log = logging.getLogger("pdp.pep")

_MAX_RETRIES: Final = 3
_CONTENDED: Final = "after each decision, other calls used up the limit; try again"
_COMPENSABLE: Final = (ActionState.COMMITTED, ActionState.FAILED)

_DISPATCH_ATTRIBUTES: Final = (
    "agent", "arguments_digest", "idempotency_key", "rejection", "request_id", "risk_tier", "step_name", "tool_call_id",
    "verdict",
)  # fmt: skip
_RESULT_ATTRIBUTES: Final = ("error_code", "outcome", "replayed", "result_digest", "retrieval_snapshot")


class CallRunner(ABC):
    """Runs the tool of an allowed call: in this process (`LocalRunner`) or elsewhere (`RemoteRunner`)."""

    tool: ToolRunner | None = None
    token: str | None = None  # The call's id, if the call can continue after a crash with its reservations.

    def refusal(self, _prepared: Prepared, /) -> Execution | None:
        """Before anything is reserved, return a failure if the tool cannot run, else None."""
        return None

    def reserve_budgets(self, reserved: Reserved) -> Generator[Step, Any, Reserved]:
        """Reserve the amounts that the call spends. Raise `OverspentError` if other calls have spent the budgets."""
        yield from ()
        return reserved

    @abstractmethod
    def reserve(self, reserved: Reserved) -> Generator[Step, Any, Reserved | Known]:
        """Reserve the call's key and use up its approval. Raises the errors of `pdp.flow.reserve.reserve`."""

    def inputs(self, _prepared: Prepared, /) -> dict[str, Any]:
        """Return the values of the function's parameters that are not arguments of the call, by name."""
        return {}

    def hand_over(self, _ready: Ready | Known, /) -> Generator[Step, Any, bool]:
        """Return whether another enforcement point runs the tool, so that this process must not run the tool."""
        yield from ()
        return False

    def may_release(self, _denied: Decided | None, /) -> Generator[Step, Any, bool]:
        """Return whether the call's reservations may be released. `denied` is None if the caller was cancelled."""
        yield from ()
        return True


class LocalRunner(CallRunner):
    """Runs the tool of a call in this process."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def refusal(self, prepared: Prepared) -> Execution | None:
        """Find the runner of the tool. Return a failure if the tool cannot run now, else None."""
        tool, tools = prepared.checked.tool, self._parts.tools
        runner = self.tool = tools.runner(tool.entry)
        if runner is None and not tool.stages_actions:
            return unavailable(tool.entry.name)
        if lacking := tools.lacking(tool.entry.name):
            return unavailable(tool.entry.name, lacking)
        return None if runner is None else runner.refused(prepared.checked.proposal.arguments)

    def reserve_budgets(self, reserved: Reserved) -> Generator[Step, Any, Reserved]:
        """Reserve the amounts that the call spends, if any."""
        if not reserved.prepared.spendings:
            return reserved
        from pdp.flow.reserve import reserve_budgets  # noqa: PLC0415 - only for tools with cumulative limits

        return (yield from reserve_budgets(reserved, self._parts))

    def reserve(self, reserved: Reserved) -> Generator[Step, Any, Reserved | Known]:
        """Reserve the call's key and use up its approval, in one transaction."""
        prepared = reserved.prepared
        approval = prepared.approval or prepared.grant
        if not (prepared.checked.tool.reserves_key or approval or prepared.asked.received.compensates):
            return reserved
        from pdp.flow.reserve import reserve  # noqa: PLC0415 - only for calls with a key or an approval

        return (yield from reserve(reserved, self._parts))

    def inputs(self, prepared: Prepared) -> dict[str, Any]:
        """Return the values of the parameters that the registry fills from session state and config."""
        return self._parts.tools.inputs(prepared.checked.tool, prepared.asked.session, prepared.checked.config)


def call(received: Received, proposal: Any, session: Any, parts: Parts) -> Generator[Step, Any, Evaluation]:
    """Decide a proposal and, only on ALLOW, run its tool with exactly the decided arguments."""
    decided = yield from decide(received, proposal, session, parts)
    return Evaluation((yield from run_call(decided, parts, LocalRunner(parts))))


def run_call(
    decided: Decided | Ended, parts: Parts, runner: CallRunner
) -> Generator[Step, Any, Ended | Decided | Executed]:
    """Run the tool of an allowed call, and return the final record of the call.

    If another enforcement point runs the tool, return the decided call. If other calls have spent the call's budgets,
    decide the call again, at most three times, and then deny the call.
    """
    watchers = Watchers(decided, parts)
    result: Ended | Decided | Executed | None = None
    try:
        ready = yield from _started(decided, parts, runner)
        if not isinstance(ready, Ready | Known):
            result = ready
        elif (yield from runner.hand_over(ready)):
            result = ready.reserved.decided
        else:
            result = yield from _executed(ready, parts, runner, watchers)
            if ready.reserved.enforced is not None and ready.reserved.enforced.staged is not None:
                staged = ready.reserved.enforced.staged
                result = yield from _ask_for_approval(result, staged, ready.reserved.decided, parts)
        return result
    finally:
        watchers.ended(result)


def _started(
    decided: Decided | Ended, parts: Parts, runner: CallRunner
) -> Generator[Step, Any, Ready | Known | Ended | Decided | Executed]:
    tries = 0
    while isinstance(decided, Decided) and decided.allowed:
        ready = yield from start(decided, parts, runner)
        if ready is not None:
            return ready
        if tries == _MAX_RETRIES:
            contended = decided.denied("limits.cumulative_exceeded", _CONTENDED)
            return (yield from record_decision(contended, parts.audit))
        tries, asked = tries + 1, decided.asked
        session = asked.session.with_changes(request_id=asked.request_id)
        decided = yield from decide(asked.received, asked.proposal, session, parts)
    return decided


def start(
    decided: Decided, parts: Parts, runner: CallRunner
) -> Generator[Step, Any, Ready | Known | Decided | Executed | None]:
    """Prepare an allowed call, so that its tool can start. Return None if other calls have spent the call's budgets."""
    prepared, stores = decided.prepared, parts.stores
    reserved, action = Reserved(decided), None
    try:
        refused = runner.refusal(prepared)
        if refused is not None:
            return (yield from record_result(Executed(decided, refused), parts.audit))
        enforced = yield from pattern_call(decided, parts)
        reserved = yield from runner.reserve_budgets(Reserved(decided, enforced))
        taken = yield from runner.reserve(reserved)
        reserved = taken.reserved if isinstance(taken, Known) else taken
        ready = yield from _ready(taken, parts, runner)
        if isinstance(ready, Ready):
            action = ready.action
            yield CHECKPOINT
    except OverspentError:
        yield from release(reserved, action, stores)
        return None
    except Exception as error:  # noqa: BLE001 - any failure on the way is a DENY
        if isinstance(error, CallDeniedError):
            denied = reserved.decided.denied(error.code, error.message)
        else:
            denied = reserved.decided.denied(*failed(error))
        denied = yield from record_decision(denied, parts.audit)
        if (yield from runner.may_release(denied)):
            yield from release(reserved, action, stores)
        return denied
    except BaseException:
        if (yield from runner.may_release(None)):
            yield from record_result(Executed(reserved.decided, CANCELLED, action), parts.audit)
            yield from release(reserved, action, stores)
        raise
    return ready


def _ready(taken: Reserved | Known, parts: Parts, runner: CallRunner) -> Generator[Step, Any, Ready | Known]:
    """Prepare a reserved call: record approved values, apply obligations and pattern rules, and approve its action."""
    reserved = taken.reserved if isinstance(taken, Known) else taken
    decided, enforced = reserved.decided, reserved.enforced
    prepared = decided.prepared
    if prepared.flow is not None and prepared.approval is not None:
        from pdp.flow.reserve import endorse  # noqa: PLC0415 - only if the manifest tracks flow

        yield from endorse(prepared, parts.stores)
    if isinstance(taken, Known):
        return taken
    yield CHECKPOINT
    _act_on_obligations(decided)
    if prepared.checked.tool.stages_actions:
        # For a staging tool no function is called: the rule of its pattern writes the action to the store.
        return Ready(reserved, {})
    if enforced is not None:
        known: Execution | None = yield Work(enforced.before, enforced.blocking)
        if known is not None:
            return Known(reserved, known)
    arguments = arguments_of(prepared.checked.proposal) | runner.inputs(prepared)
    return Ready(reserved, arguments, (yield from _approved_action(reserved, parts.stores, runner.token)))


def pattern_call(decided: Decided, parts: Parts) -> Generator[Step, Any, EnforcedCall | None]:
    """Return the call with its run and the rules of its pattern; None if no rules apply. Nothing is reserved yet."""
    tool = decided.tool
    if not (parts.stores.reads_sources or tool.follows_pattern or _needs_action(decided) or decided.markings):
        return None
    from pdp.flow.reserve import open_pattern_call  # noqa: PLC0415 - only for calls with rules of a pattern or run

    return (yield from open_pattern_call(decided, parts))


def _act_on_obligations(decided: Decided) -> None:
    """Call the obligation handlers that act before the tool runs. Raise `CallDeniedError` if a handler refuses."""
    if decided.duties is None:
        return
    prepared = decided.prepared
    if prepared.spendings and prepared.spendings[0].replayed:
        # The policy allowed a replay of the stored outcome, but that outcome has expired, so the call is decided again.
        raise OverspentError
    try:
        decided.duties.before(prepared.body)
    except PdpError as error:
        raise CallDeniedError(error.code, error.message) from error


def _needs_action(decided: Decided) -> bool:
    tool = decided.tool
    return tool.commits or (tool.has_action and decided.prepared.approval is not None)


def _approved_action(reserved: Reserved, stores: Stores, token: str | None) -> Generator[Step, Any, Action | None]:
    if reserved.enforced is None or not _needs_action(reserved.decided):
        return None
    from pdp.flow.reserve import approved_action  # noqa: PLC0415 - only for calls with effects

    approve = partial(approved_action, reserved.decided, stores.actions, reserved.enforced.run, token)
    action: Action = yield Work(approve, blocking=stores.actions.blocking)
    return action


def _executed(
    ready: Ready | Known, parts: Parts, runner: CallRunner, watchers: Watchers
) -> Generator[Step, Any, Executed]:
    """Run the tool, and store, deliver and record the outcome. If the run is interrupted, its outcome is unknown."""
    reserved, action, stores = ready.reserved, ready.action, parts.stores
    try:
        execution = ready.execution if isinstance(ready, Known) else (yield from _run_tool(ready, runner, watchers))
        action = yield from settle(reserved, action, execution, stores)
        reserved = reserved._replace(key=None, budgets=None)
        executed = yield from deliver(reserved, action, execution, stores)
        executed = yield from record_result(executed, parts.audit)
    except BaseException as error:
        executed = yield from record_result(Executed(reserved.decided, cut_short(), action), parts.audit)
        yield from release(reserved, action, stores, executed.execution)
        if not isinstance(error, Exception):
            raise
        _log.exception("a tool ran, but its outcome could not be stored")
    return executed


def complete(ready: Ready, execution: Execution, parts: Parts, fault: str | None) -> Generator[Step, Any, Executed]:
    """Store and record the outcome of a run elsewhere; may be repeated. `fault` says why the result is withheld."""
    reserved = ready.reserved
    execution = execution if reserved.enforced is None else reserved.enforced.completed(execution)
    action = yield from settle(reserved, ready.action, execution, parts.stores)
    if fault is None:
        executed = yield from deliver(reserved, action, execution, parts.stores)
    else:
        executed = Executed(reserved.decided, withheld(execution, fault), action)
    yield from write_result(executed, parts.audit)
    return executed


def _run_tool(ready: Ready, runner: CallRunner, watchers: Watchers) -> Generator[Step, Any, Execution]:
    enforced, tool = ready.reserved.enforced, ready.reserved.decided.tool
    if tool.stages_actions and enforced is not None:
        # A staging tool's function is not called, even if one is registered.
        staged: Execution | None = yield Work(enforced.before, enforced.blocking)
        if staged is not None:
            return staged
    if runner.tool is None:
        return unavailable(tool.entry.name)
    within: AbstractContextManager[object] = nullcontext()
    if enforced is not None:
        from pdp.patterns.run import within_run  # noqa: PLC0415 - only for calls that belong to a run

        within = within_run(enforced.run)
    watchers.started()
    try:
        with within:
            execution: Execution = yield ToolRun(runner.tool, dict(ready.arguments))
    except Exception as error:  # noqa: BLE001 - an error outside the tool is an unknown outcome
        _log.error("a run failed: %s", place_of(error))
        execution = cut_short()
    execution = execution if enforced is None else enforced.completed(execution)
    watchers.stopped(execution)
    return execution


def _ask_for_approval(
    executed: Executed, staged: Action, decided: Decided, parts: Parts
) -> Generator[Step, Any, Executed]:
    """Add the approval that the policy requires to commit a staged action to the result of the staging.

    The approval is for exactly the call with which this session would commit the action.
    """
    tool = parts.manifest.tool(staged.kind)
    if parts.approvals is None or tool is None or not tool.has_action:
        return executed
    asked = decided.asked
    session = asked.session.with_changes(request_id=asked.request_id)
    if tool.entry.idempotency.required and not session.idempotency_key and not tool.derives_key:
        session = session.with_changes(idempotency_key=staged.idempotency_key)
    payload = arguments_of(decided.proposal)["action"]["payload"]
    received = asked.received._replace(staged=staged, transformed=False)
    commit = yield from decide(received, {"tool": staged.kind, "arguments": payload}, session, parts)
    if not isinstance(commit, Decided) or commit.action != staged:
        return executed
    return executed._replace(decided=decided._replace(approval=commit.approval))


def compensate(
    received: Received, action_id: str, arguments: Any, session: Any, parts: Parts
) -> Generator[Step, Any, Evaluation]:
    """Call the tool that undoes a committed or failed action. Each action is compensated only once, whoever calls.

    Raises `UsageError` if the action or its tool is unknown or has no compensation, or the session is malformed.
    """
    actions, manifest = parts.stores.actions, received.manifest
    action: Action | None = yield Work(lambda: actions.get(action_id), blocking=actions.blocking)
    shown = f"action {shown_name(action_id)}"
    if action is None:
        raise UsageError(f"{shown} does not exist", hint="take the id from `Evaluation.action`")
    if action.state not in _COMPENSABLE:
        raise UsageError(f"{shown} is {action.state}", hint="only committed or failed actions can be compensated")
    entry = manifest.tools.get(action.kind)
    if entry is None:
        raise UsageError(
            f"{shown}: its kind {shown_name(action.kind)} is not a tool of manifest {manifest.version}",
            hint="use the manifest with which the action was committed",
        )
    if entry.compensation is None:
        raise UsageError(f"{shown}: tool {entry.name} declares no compensation", hint="add `compensation: TOOL`")
    own = Session.read(session).with_changes(idempotency_key=f"compensation:{action.id}")
    proposal = {"tool": entry.compensation, "arguments": arguments}
    return (yield from call(received._replace(compensates=action), proposal, own, parts))


class Watchers:
    """Reports the start and the end of one call to the application's observers and to the telemetry."""

    def __init__(self, decided: Decided | Ended, parts: Parts) -> None:
        self._decided = decided
        self._audit = parts.audit
        self._ran = False
        self._events: CallEvents | None = None
        self._telemetry: CallTelemetry | None = None
        tool, received = decided.tool, decided.asked.received
        if parts.telemetry is not None:
            from pdp.execution.telemetry import CallTelemetry  # noqa: PLC0415 - only with telemetry

            attributes = _telemetry_attributes(decided, parts.audit)
            entry = tool.entry if tool else None
            self._telemetry = CallTelemetry(parts.telemetry, entry, received.now, attributes)
        if parts.observers:
            from pdp.execution.events import CallEvents  # noqa: PLC0415 - only with observers

            arguments = arguments_of(decided.proposal) if decided.proposal else {}
            data = {
                "call_id": received.tool_call_id or new_id(),
                "request_id": decided.asked.request_id,
                "tool_call_id": received.tool_call_id,
                "step_name": received.step_name,
                "name": decided.tool_name,
                "args": masked(arguments, tool.entry.sensitive if tool else arguments),
            }
            self._events = CallEvents(parts.observers, data)

    def started(self) -> None:
        """Report that the tool is about to run."""
        self._ran = True
        if self._events is not None:
            self._events.started()
        if self._telemetry is not None:
            self._telemetry.run_started()

    def stopped(self, execution: Execution) -> None:
        """Report that the tool has ended, with the outcome of its run."""
        if self._telemetry is not None:
            self._telemetry.run_ended(execution)
        if self._events is not None:
            self._events.stopped()

    def ended(self, result: Ended | Decided | Executed | None) -> None:
        """Report that the call has ended. `result` is None if its caller was cancelled or interrupted."""
        final = result or Executed(self._decided, cut_short() if self._ran else CANCELLED)
        execution = final.execution if isinstance(final, Executed) else None
        if self._telemetry is not None:
            self._telemetry.ended(execution, _telemetry_attributes(final, self._audit))
        if self._events is not None:
            evaluation = Evaluation(final)
            error = evaluation.answer.text if evaluation.pruned or evaluation.answer.is_error else None
            self._events.ended(error, execution, cancelled=result is None)


def _telemetry_attributes(result: Ended | Decided | Executed, log: AuditLog) -> dict[str, Any]:
    if isinstance(result, Executed):
        event = result_event(result, log)
        return {f"pdp.{name}": event[name] for name in _RESULT_ATTRIBUTES if event.get(name)}
    event = decision_event(result, log)
    scopes = tuple(result.tool.entry.scopes or ()) if result.tool else ()
    named = {
        "caller": event.get("subject"),
        "scopes": scopes,
        **{name: event.get(name) for name in _DISPATCH_ATTRIBUTES},
    }
    return {f"pdp.{name}": value for name, value in named.items() if value is not None}
