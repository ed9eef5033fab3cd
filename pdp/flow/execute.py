"""From ALLOW to a result: what stands between a decision and its tool, and between the tool and whoever called it.

    hold      the agent's run that the call belongs to, and the rules of its pattern   -> HeldCall
    reserve   key and approval, where the entry has a key or the call an approval      -> Reservation
    before    the pattern's rule before the tool
    approve   the action of a commit                                                   -> Action
    run       the tool (execution/)                                                    -> Execution
    settle    the action, as the run leaves it; then the key, stored with what the run came to, or freed
    deliver   the pattern's rule after the tool, obligations, state                    -> Executed

What an entry does not ask for is not in its way: `CompiledTool` says which of these steps a call takes. Whatever has
been reserved stays so: a run that is cut short leaves its key, and nothing runs for it a second time. A call that ends
before its tool began frees its key.
"""

from __future__ import annotations

import logging
from traceback import format_tb
from typing import TYPE_CHECKING, Any

from pdp.decision import new_id
from pdp.errors import PdpError
from pdp.evaluation import Evaluation
from pdp.execution.failures import ToolResultError, failure_of, masked
from pdp.execution.runner import cut_short, unavailable
from pdp.flow.call import Executed, Reservation, arguments_of, not_run
from pdp.flow.decide import decide, failed
from pdp.flow.drive import CHECKPOINT, ToolRun, Work
from pdp.flow.record import record_decision, record_result, result_digest, telemetry_attributes
from pdp.proposal import Execution, Failure, FailureCode

if TYPE_CHECKING:
    from collections.abc import Generator

    from pdp.contract.compiled import CompiledTool
    from pdp.execution.runner import ToolRunner
    from pdp.execution.telemetry import CallTelemetry
    from pdp.flow.call import Decided, Prepared, Received
    from pdp.flow.drive import Step
    from pdp.flow.parts import Parts, Stores
    from pdp.patterns.enforcement import HeldCall
    from pdp.stores.actions import Action

_log = logging.getLogger("pdp.pep")


def call(received: Received, proposal: Any, session: Any, parts: Parts) -> Generator[Step, Any, Evaluation]:
    """Decide a proposal and, on ALLOW alone, run its tool with exactly the decided arguments."""
    decided = yield from decide(received, proposal, session, parts)
    telemetry = None
    if parts.telemetry is not None:
        name = decided.tool.entry.name if decided.tool else "unknown"
        telemetry = parts.telemetry.dispatched(name, received.now, telemetry_attributes(decided, parts.audit))
    try:
        if not decided.allowed or decided.prepared is None:
            return Evaluation(decided)
        result = yield from execute(decided, decided.prepared, parts, _Observed(decided.prepared, parts, telemetry))
        if isinstance(result, Executed):
            result = record_result(result, parts.audit)
            return Evaluation(result.decided, result)
        return Evaluation(record_decision(result, parts.audit))
    finally:
        if telemetry is not None:
            telemetry.ended()


def execute(
    decided: Decided, prepared: Prepared, parts: Parts, observed: _Observed
) -> Generator[Step, Any, Decided | Executed]:
    """Run the tool of an allowed call, and return what it comes to.

    If what the run needs cannot be reserved, it does not run: a DENY takes the place of the ALLOW, and is returned. Who
    was cancelled gets nothing, and the audit what is known of the run.
    """
    tool, tools, stores = prepared.checked.tool, parts.tools, parts.stores
    reserved, action, may_have_effect = Reservation(), None, False
    try:
        runner = tools.runner(tool)
        # Before anything is used up for it.
        refused = tools.refused(tool, runner, prepared.checked.proposal.arguments)
        if refused is not None:
            return Executed(decided, refused)
        held = yield from _hold(decided, prepared, stores)
        reserved = yield from _reserve(decided, prepared, parts)
        decided = decided._replace(approval=reserved.approval)
        execution = reserved.instead
        if execution is None:
            yield CHECKPOINT
            may_have_effect = tool.stages_actions
            execution = yield from _before(tool, held, stores)
        if execution is None:
            action = yield from _approve(decided, prepared, held, stores)
            arguments = arguments_of(prepared.checked.proposal)
            arguments |= tools.inputs(tool, prepared.session, prepared.checked.config)
            yield CHECKPOINT
            may_have_effect = True
            execution = yield from _run(tool, runner, arguments, held, observed)
    except BaseException as error:
        execution = cut_short() if may_have_effect else not_run("the call was given up before its tool was started")
        action = yield from _settle(action, execution, stores)
        yield from _release(reserved, prepared, execution, stores)
        if isinstance(error, Exception) and not may_have_effect:
            return failed(decided, error)
        observed.cancelled(execution)
        executed = Executed(decided, execution, action)
        if not isinstance(error, Exception):
            record_result(executed, parts.audit)
            raise
        _log.exception("a run failed")
        return executed
    action = yield from _settle(action, execution, stores)
    yield from _release(reserved, prepared, execution, stores)
    yield from _compensate(prepared, execution, stores)
    return deliver(Executed(decided, execution, action), prepared, held)


class _Observed:
    """Who watches a run from outside: the application's observers and its telemetry, where there are any."""

    def __init__(self, prepared: Prepared, parts: Parts, telemetry: CallTelemetry | None) -> None:
        self._telemetry = telemetry
        self._audit = parts.audit
        self._events = None
        if parts.observers:
            from pdp.execution.events import RunEvents  # noqa: PLC0415 - only where somebody observes

            received, entry = prepared.asked.received, prepared.checked.tool.entry
            data = {
                "call_id": new_id(),
                "request_id": prepared.asked.request_id,
                "tool_call_id": received.tool_call_id,
                "step_name": received.step_name,
                "tool": entry.name,
                "arguments": masked(arguments_of(prepared.checked.proposal), entry.sensitive),
            }
            self._events = RunEvents(parts.observers, data)

    def started(self) -> None:
        if self._events is not None:
            self._events.started()
        if self._telemetry is not None:
            self._telemetry.run_started()

    def ended(self, execution: Execution) -> None:
        if self._telemetry is not None:
            digest = result_digest(execution.result, self._audit) if execution.failure is None else None
            self._telemetry.run_ended(execution, digest)
        if self._events is not None:
            self._events.ended(execution)

    def cancelled(self, execution: Execution) -> None:
        if self._events is not None:
            self._events.cancelled(execution.failure)


def _hold(decided: Decided, prepared: Prepared, stores: Stores) -> Generator[Step, Any, HeldCall | None]:
    """Hold the call to its pattern, before anything is used up: the agent's run may be closed. None: to nothing."""
    obligations = decided.decision.obligations if decided.decision else ()
    marks = any(duty.id == "mark_result" for duty in obligations)
    if not (marks or stores.deployment or prepared.checked.tool.follows_pattern or _needs_action(prepared)):
        return None
    from pdp.flow.hold import hold  # noqa: PLC0415 - only calls that a pattern or a run has rules for

    return (yield from hold(decided, prepared, stores))


def _reserve(decided: Decided, prepared: Prepared, parts: Parts) -> Generator[Step, Any, Reservation]:
    if not (prepared.checked.tool.reserves_key or prepared.approval or prepared.asked.received.compensates):
        return Reservation()
    from pdp.flow.reserve import reserve  # noqa: PLC0415 - only calls with a key or an approval

    return (yield from reserve(decided, prepared, parts))


def _before(tool: CompiledTool, held: HeldCall | None, stores: Stores) -> Generator[Step, Any, Execution | None]:
    """Return what the call comes to by the rule of its pattern, without its tool; None: run it."""
    if held is None:
        return None
    # The store of actions is what a staging acts on; a function that it may have is not asked.
    execution: Execution | None = yield Work(held.before, blocking=tool.stages_actions and stores.actions.blocking)
    return execution


def _needs_action(prepared: Prepared) -> bool:
    tool = prepared.checked.tool
    return tool.commits or (tool.has_action and prepared.approval is not None)


def _approve(
    decided: Decided, prepared: Prepared, held: HeldCall | None, stores: Stores
) -> Generator[Step, Any, Action | None]:
    """Return the action of a call that needs one, approved."""
    if held is None or not _needs_action(prepared):
        return None
    from pdp.flow.approve import approved_action  # noqa: PLC0415 - only calls with effects

    actions, run = stores.actions, held.run
    action: Action = yield Work(lambda: approved_action(decided, prepared, actions, run), blocking=actions.blocking)
    return action


def _run(
    tool: CompiledTool,
    runner: ToolRunner | None,
    arguments: dict[str, Any],
    held: HeldCall | None,
    observed: _Observed,
) -> Generator[Step, Any, Execution]:
    if runner is None:
        return unavailable(tool.entry.name)
    observed.started()
    if held is None:
        execution: Execution = yield ToolRun(runner, arguments)
    else:
        from pdp.patterns.run import within_run  # noqa: PLC0415 - only calls that belong to a run

        with within_run(held.run):
            execution = yield ToolRun(runner, arguments)
    observed.ended(execution)
    return execution


def _settle(action: Action | None, execution: Execution, stores: Stores) -> Generator[Step, Any, Action | None]:
    """Return the action of a run that is over as the run leaves it."""
    if action is None:
        return None
    from pdp.flow.approve import settle  # noqa: PLC0415 - only calls with effects

    actions, approved = stores.actions, action
    settled: Action = yield Work(lambda: settle(approved, actions, execution), blocking=actions.blocking)
    return settled


def _release(
    reserved: Reservation, prepared: Prepared, execution: Execution, stores: Stores
) -> Generator[Step, Any, None]:
    """Store for the reserved key what the run came to, or free it."""
    if reserved.token is not None:
        from pdp.flow.reserve import release  # noqa: PLC0415 - only calls with a key

        yield from release(reserved.token, prepared.checked.tool, stores.keys, execution)


def _compensate(prepared: Prepared, execution: Execution, stores: Stores) -> Generator[Step, Any, None]:
    """Let the action that the call took back be compensated."""
    action = prepared.asked.received.compensates
    if action is not None and execution.failure is None:
        from pdp.flow.approve import compensated  # noqa: PLC0415 - only compensations

        actions = stores.actions
        yield Work(lambda: compensated(action, actions), blocking=actions.blocking)


def deliver(executed: Executed, prepared: Prepared, held: HeldCall | None) -> Executed:
    """Return what the caller gets of a run: what pattern and obligations leave of its result, and the state after it.

    It never raises: the tool has run by now, and its key is finished. Whatever fails here withholds the result.
    """
    try:
        delivered = _deliver(executed, prepared, held)
    except Exception as error:  # noqa: BLE001 - whatever it was, the result does not go out
        # Where it was raised, and not its text, which could quote what an obligation hides.
        where = "".join(format_tb(error.__traceback__))
        _log.error("a result could not be delivered: %s\n%s", type(error).__name__, where)
        return executed._replace(execution=_undelivered(executed.execution))
    if delivered.execution.failure is not None:
        return delivered._replace(markings=frozenset(), retrieval_snapshot=None)
    return delivered


def _deliver(executed: Executed, prepared: Prepared, held: HeldCall | None) -> Executed:
    if held is not None:
        after = held.after(executed.execution)
        executed = executed._replace(
            execution=after.execution,
            markings=after.markings,
            retrieval_snapshot=after.retrieval_snapshot,
            pins=after.pins,
        )
    duties = executed.decided.duties
    if duties is not None:
        before = executed.execution
        execution, delivery = duties.delivered(before)
        if execution.failure is not None and before.failure is None:  # an obligation withholds what is there
            execution.failure.details["effect"] = "done"
        executed = executed._replace(
            execution=execution,
            markings=delivery.markings | executed.markings,
            retrieval_snapshot=delivery.retrieval_snapshot or executed.retrieval_snapshot,
        )
    if executed.execution.failure is not None or not prepared.checked.tool.state_effects:
        return executed
    try:
        state = prepared.checked.tool.state_after(prepared.session.state, executed.execution.result)
        return executed._replace(state=state)
    except PdpError as error:
        fault = ToolResultError(error.message)
        failure = failure_of(fault)
        failure.details["effect"] = "done"
        return executed._replace(execution=executed.execution._replace(result=None, failure=failure, error=fault))


def _undelivered(execution: Execution) -> Execution:
    """Return what a run came to whose result or failure cannot go out: of it all, only what became of its effect."""
    effect = "done" if execution.failure is None else execution.failure.details.get("effect", "unknown")
    message = "the tool ran, and its result could not be delivered"
    failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": effect})
    return execution._replace(result=None, failure=failure, error=None)
