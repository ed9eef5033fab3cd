"""From ALLOW to a result: reserve, run, settle, deliver.

Until the tool starts (`start`), an error is a DENY, and a refusal of the tool or its pattern a failure; nothing runs.
From its start on, whatever fails is a failure that says what is known of the effect.

However a call ends, one event more says so, also where its caller is cancelled or interrupted. A call that ends before
its tool starts frees its key; its approval stays used. A run that is cut short leaves its key taken, and nothing runs
for it a second time.
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
from pdp.flow.settle import GIVEN_UP, deliver, release, settle
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

if TYPE_CHECKING:  # only some calls load these
    from pdp.execution.events import CallEvents
    from pdp.execution.telemetry import CallTelemetry
    from pdp.patterns.enforcement import HeldCall

_log = logging.getLogger("pdp.pep")

_TRIES: Final = 3
_CONTENDED: Final = "others have spent of its limits each time that the call was decided; make it again"
_COMPENSABLE: Final = (ActionState.COMMITTED, ActionState.FAILED)

_OF_DISPATCH: Final = (
    "agent", "arguments_digest", "idempotency_key", "rejection", "request_id", "risk_tier", "step_name", "tool_call_id",
    "verdict",
)  # fmt: skip
_OF_RESULT: Final = ("error_code", "outcome", "replayed", "result_digest", "retrieval_snapshot")


class CallRunner(ABC):
    """Where the tool of an allowed call runs: here (`LocalRunner`), or elsewhere (`RemoteRunner`).

    Attributes:
        tool: what runs the tool here.
        token: the call's id, under which it goes on with what it reserved before a crash; None: it never does.
    """

    tool: ToolRunner | None = None
    token: str | None = None

    def refusal(self, _prepared: Prepared, /) -> Execution | None:
        """Return why the tool cannot run, before anything is reserved; None: it can."""
        return None

    def reserve_budgets(self, reserved: Reserved) -> Generator[Step, Any, Reserved]:
        """Reserve what a call takes of its budgets; OverspentError: others have spent it meanwhile."""
        yield from ()
        return reserved

    @abstractmethod
    def reserve(self, reserved: Reserved) -> Generator[Step, Any, Reserved | Known]:
        """Reserve the key of a call and use up its approval; errors as of `pdp.flow.reserve.reserve`."""

    def inputs(self, _prepared: Prepared, /) -> dict[str, Any]:
        """Return what the function gets beside the arguments, by parameter."""
        return {}

    def hand_over(self, _ready: Ready | Known, /) -> Generator[Step, Any, bool]:
        """Return whether another enforcement point runs the tool from here on."""
        yield from ()
        return False

    def may_release(self, _denied: Decided | None, /) -> Generator[Step, Any, bool]:
        """Return whether a call that ends here is released; `denied`: its end, None: its caller was cancelled."""
        yield from ()
        return True


class LocalRunner(CallRunner):
    """Runs the tool of a call in this process."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def refusal(self, prepared: Prepared) -> Execution | None:
        """Find what runs the tool, and return why it cannot run now."""
        tool, tools = prepared.checked.tool, self._parts.tools
        runner = self.tool = tools.runner(tool.entry)
        if runner is None and not tool.stages_actions:
            return unavailable(tool.entry.name)
        if lacking := tools.lacking(tool.entry.name):
            return unavailable(tool.entry.name, lacking)
        return None if runner is None else runner.refused(prepared.checked.proposal.arguments)

    def reserve_budgets(self, reserved: Reserved) -> Generator[Step, Any, Reserved]:
        """Reserve what the call takes of its budgets, if anything."""
        if not reserved.prepared.spendings:
            return reserved
        from pdp.flow.reserve import reserve_budgets  # noqa: PLC0415 - only tools with cumulative limits

        return (yield from reserve_budgets(reserved, self._parts))

    def reserve(self, reserved: Reserved) -> Generator[Step, Any, Reserved | Known]:
        """Reserve the call's key and use up its approval: both or neither."""
        prepared = reserved.prepared
        if not (prepared.checked.tool.reserves_key or prepared.approval or prepared.asked.received.compensates):
            return reserved
        from pdp.flow.reserve import reserve  # noqa: PLC0415 - only calls with a key or an approval

        return (yield from reserve(reserved, self._parts))

    def inputs(self, prepared: Prepared) -> dict[str, Any]:
        """Return what the registry binds of state and config."""
        return self._parts.tools.inputs(prepared.checked.tool, prepared.asked.session, prepared.checked.config)


def call(received: Received, proposal: Any, session: Any, parts: Parts) -> Generator[Step, Any, Evaluation]:
    """Decide a proposal and, on ALLOW alone, run its tool with exactly the decided arguments."""
    decided = yield from decide(received, proposal, session, parts)
    return Evaluation((yield from run_call(decided, parts, LocalRunner(parts))))


def run_call(
    decided: Decided | Ended, parts: Parts, runner: CallRunner
) -> Generator[Step, Any, Ended | Decided | Executed]:
    """Run the tool of a call that is allowed, and return how the call ends.

    Where another enforcement point runs it, the call comes back as it was decided. A call whose budgets others have
    spent meanwhile is decided again; a few times, then it is a DENY.
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
            if ready.reserved.held is not None and ready.reserved.held.staged is not None:
                result = yield from _ask_for_approval(result, ready.reserved.held.staged, ready.reserved.decided, parts)
        return result
    finally:
        watchers.ended(result)


def _started(
    decided: Decided | Ended, parts: Parts, runner: CallRunner
) -> Generator[Step, Any, Ready | Known | Ended | Decided | Executed]:
    """Start a call, deciding it again while others spend its budgets; then it is a DENY."""
    tries = 0
    while isinstance(decided, Decided) and decided.allowed:
        ready = yield from start(decided, parts, runner)
        if ready is not None:
            return ready
        if tries == _TRIES:
            contended = decided.denied("limits.cumulative_exceeded", _CONTENDED)
            return (yield from record_decision(contended, parts.audit))
        tries, asked = tries + 1, decided.asked
        session = asked.session.with_changes(request_id=asked.request_id)
        decided = yield from decide(asked.received, asked.proposal, session, parts)
    return decided


def start(
    decided: Decided, parts: Parts, runner: CallRunner
) -> Generator[Step, Any, Ready | Known | Decided | Executed | None]:
    """Take the steps of an allowed call until its tool starts; None: others have spent what it was allowed to.

    A call that ends here is recorded, and what it has reserved is released, also where its caller is cancelled.
    """
    prepared, stores = decided.prepared, parts.stores
    reserved, action = Reserved(decided), None
    try:
        refused = runner.refusal(prepared)
        if refused is not None:
            return (yield from record_result(Executed(decided, refused), parts.audit))
        held = yield from hold_to_pattern(decided, parts)
        reserved = yield from runner.reserve_budgets(Reserved(decided, held))
        taken = yield from runner.reserve(reserved)
        reserved = taken.reserved if isinstance(taken, Known) else taken
        ready = yield from _ready(taken, parts, runner)
        if isinstance(ready, Ready):
            action = ready.action
            yield CHECKPOINT
    except OverspentError:
        yield from release(reserved, action, stores)
        return None
    except Exception as error:  # noqa: BLE001 - whatever fails on the way is a DENY
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
            yield from record_result(Executed(reserved.decided, GIVEN_UP, action), parts.audit)
            yield from release(reserved, action, stores)
        raise
    return ready


def _ready(taken: Reserved | Known, parts: Parts, runner: CallRunner) -> Generator[Step, Any, Ready | Known]:
    """Do what comes between reserving and the tool: endorsements, obligations, the pattern's rule, the action."""
    reserved = taken.reserved if isinstance(taken, Known) else taken
    decided, held = reserved.decided, reserved.held
    prepared = decided.prepared
    if prepared.flow is not None and prepared.approval is not None:
        from pdp.flow.reserve import endorse  # noqa: PLC0415 - only where labels are in use

        yield from endorse(prepared, parts.stores)
    if isinstance(taken, Known):
        return taken
    yield CHECKPOINT
    _act_on_obligations(decided)
    if prepared.checked.tool.stages_actions:
        return Ready(reserved, {})  # the staging is the run: its pattern's rule acts on the store
    if held is not None:
        known: Execution | None = yield Work(held.before, held.blocking)
        if known is not None:
            return Known(reserved, known)
    arguments = arguments_of(prepared.checked.proposal) | runner.inputs(prepared)
    return Ready(reserved, arguments, (yield from _approved_action(reserved, parts.stores, runner.token)))


def hold_to_pattern(decided: Decided, parts: Parts) -> Generator[Step, Any, HeldCall | None]:
    """Return the rules that the call is held to, if any, before anything is used up: its run may be closed."""
    tool = decided.tool
    if not (parts.stores.reads_sources or tool.follows_pattern or _needs_action(decided) or decided.markings):
        return None
    from pdp.flow.reserve import hold  # noqa: PLC0415 - only calls that a pattern or a run has rules for

    return (yield from hold(decided, parts))


def _act_on_obligations(decided: Decided) -> None:
    """Let the handlers of obligations do what comes before the tool; CallDeniedError: one refuses."""
    if decided.duties is None:
        return
    prepared = decided.prepared
    if prepared.spendings and prepared.spendings[0].replayed:
        # It was to be a replay, and the outcome of the earlier call was forgotten: its tool would run.
        raise OverspentError
    try:
        decided.duties.before(prepared.body)
    except PdpError as error:
        raise CallDeniedError(error.code, error.message) from error


def _needs_action(decided: Decided) -> bool:
    tool = decided.tool
    return tool.commits or (tool.has_action and decided.prepared.approval is not None)


def _approved_action(reserved: Reserved, stores: Stores, token: str | None) -> Generator[Step, Any, Action | None]:
    if reserved.held is None or not _needs_action(reserved.decided):
        return None
    from pdp.flow.reserve import approved_action  # noqa: PLC0415 - only calls with effects

    approve = partial(approved_action, reserved.decided, stores.actions, reserved.held.run, token)
    action: Action = yield Work(approve, blocking=stores.actions.blocking)
    return action


def _executed(
    ready: Ready | Known, parts: Parts, runner: CallRunner, watchers: Watchers
) -> Generator[Step, Any, Executed]:
    """Run the tool of a call that is ready for it, and return its outcome, settled, delivered and recorded.

    From here on there may be an effect: a call that is cut short, or whose outcome cannot be stored, is recorded as
    unknown. Who is cancelled gets nothing.
    """
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
        _log.exception("a tool ran, and its outcome could not be stored")
    return executed


def complete(ready: Ready, execution: Execution, parts: Parts, fault: str | None) -> Generator[Step, Any, Executed]:
    """Return the outcome of a run elsewhere, settled and recorded; `fault`: why its result is withheld.

    It can be repeated. AuditError: it could not be recorded; what is settled stays so.
    """
    reserved = ready.reserved
    execution = execution if reserved.held is None else reserved.held.completed(execution)
    action = yield from settle(reserved, ready.action, execution, parts.stores)
    if fault is None:
        executed = yield from deliver(reserved, action, execution, parts.stores)
    else:
        executed = Executed(reserved.decided, withheld(execution, fault), action)
    yield from write_result(executed, parts.audit)
    return executed


def _run_tool(ready: Ready, runner: CallRunner, watchers: Watchers) -> Generator[Step, Any, Execution]:
    held, tool = ready.reserved.held, ready.reserved.decided.tool
    if tool.stages_actions and held is not None:
        # A function that the tool may have is not asked.
        staged: Execution | None = yield Work(held.before, held.blocking)
        if staged is not None:
            return staged
    if runner.tool is None:
        return unavailable(tool.entry.name)
    within: AbstractContextManager[object] = nullcontext()
    if held is not None:
        from pdp.patterns.run import within_run  # noqa: PLC0415 - only calls that belong to a run

        within = within_run(held.run)
    watchers.started()
    try:
        with within:
            execution: Execution = yield ToolRun(runner.tool, dict(ready.arguments))
    except Exception as error:  # noqa: BLE001 - a tool's own errors are executions; this is of what should have run it
        _log.error("a run failed: %s", place_of(error))
        execution = cut_short()
    execution = execution if held is None else held.completed(execution)
    watchers.stopped(execution)
    return execution


def _ask_for_approval(
    executed: Executed, staged: Action, decided: Decided, parts: Parts
) -> Generator[Step, Any, Executed]:
    """Return a staging with the approval that its action waits for, where the policy wants a person for the commit.

    The approval is for exactly the call that commits the action as this session would make it: with another purpose,
    fact or key it is another call. The key is the session's; where it has none and the tool derives none, the action's.
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
    """Call the tool that takes back what an action did.

    The idempotency key is the action's own: of all that compensate it, whoever they are, one does.

    UsageError: there is no such action, nothing to take back, no tool that does, or no session.
    """
    actions, manifest = parts.stores.actions, received.manifest
    action: Action | None = yield Work(lambda: actions.get(action_id), blocking=actions.blocking)
    shown = f"action {shown_name(action_id)}"
    if action is None:
        raise UsageError(f"{shown} is not there", hint="take the id from `Evaluation.action`")
    if action.state not in _COMPENSABLE:
        raise UsageError(f"{shown} is {action.state}", hint="only what was committed, or has failed, is compensated")
    entry = manifest.tools.get(action.kind)
    if entry is None:
        raise UsageError(
            f"{shown}: its kind {shown_name(action.kind)} is not a tool of manifest {manifest.version}",
            hint="compensate it with the manifest that it was committed with",
        )
    if entry.compensation is None:
        raise UsageError(f"{shown}: tool {entry.name} declares no compensation", hint="add `compensation: TOOL`")
    own = Session.read(session).with_changes(idempotency_key=f"compensation:{action.id}")
    proposal = {"tool": entry.compensation, "arguments": arguments}
    return (yield from call(received._replace(compensates=action), proposal, own, parts))


class Watchers:
    """Who watches a call from outside: the application's observers and its telemetry, where there are any."""

    def __init__(self, decided: Decided | Ended, parts: Parts) -> None:
        self._decided = decided
        self._audit = parts.audit
        self._ran = False
        self._events: CallEvents | None = None
        self._telemetry: CallTelemetry | None = None
        tool, received = decided.tool, decided.asked.received
        if parts.telemetry is not None:
            from pdp.execution.telemetry import CallTelemetry  # noqa: PLC0415 - only with the extra

            attributes = _telemetry_attributes(decided, parts.audit)
            entry = tool.entry if tool else None
            self._telemetry = CallTelemetry(parts.telemetry, entry, received.now, attributes)
        if parts.observers:
            from pdp.execution.events import CallEvents  # noqa: PLC0415 - only where somebody observes

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
        """Say that the tool is about to run."""
        self._ran = True
        if self._events is not None:
            self._events.started()
        if self._telemetry is not None:
            self._telemetry.run_started()

    def stopped(self, execution: Execution) -> None:
        """Say what the run came to."""
        if self._telemetry is not None:
            self._telemetry.run_ended(execution)
        if self._events is not None:
            self._events.stopped()

    def ended(self, result: Ended | Decided | Executed | None) -> None:
        """Say that the call has ended; None: its caller was cancelled or interrupted."""
        over = result or Executed(self._decided, cut_short() if self._ran else GIVEN_UP)
        execution = over.execution if isinstance(over, Executed) else None
        if self._telemetry is not None:
            self._telemetry.ended(execution, _telemetry_attributes(over, self._audit))
        if self._events is not None:
            evaluation = Evaluation(over)
            error = evaluation.answer.text if evaluation.pruned or evaluation.answer.is_error else None
            self._events.ended(error, execution, cancelled=result is None)


def _telemetry_attributes(result: Ended | Decided | Executed, log: AuditLog) -> dict[str, Any]:
    """Return the attributes of the dispatch span of a call that has been decided, or of the result's span."""
    if isinstance(result, Executed):
        event = result_event(result, log)
        return {f"pdp.{name}": event[name] for name in _OF_RESULT if event.get(name)}
    event = decision_event(result, log)
    scopes = tuple(result.tool.entry.scopes or ()) if result.tool else ()
    named = {"caller": event.get("subject"), "scopes": scopes, **{name: event.get(name) for name in _OF_DISPATCH}}
    return {f"pdp.{name}": value for name, value in named.items() if value is not None}
