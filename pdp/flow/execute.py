"""From ALLOW to a result: what stands between a decision and its tool, and between the tool and whoever called it.

Until the tool starts (`make_ready`), an error is a DENY, and a refusal of the tool or its pattern a failure; nothing
runs. From its start (`execute`), whatever fails is a failure that says what is known of the effect.

However a call ends, one event more says so, also where its caller is cancelled or interrupted. A call that ends before
its tool starts frees its key; its approval stays used. A run that is cut short leaves its key taken, and nothing runs
for it a second time.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pdp.contract.sensitive import masked, place_of
from pdp.decision import new_id
from pdp.errors import PdpError
from pdp.evaluation import Evaluation
from pdp.execution.failures import ToolResultError, failure_of
from pdp.execution.runner import cut_short, unavailable
from pdp.flow.decide import decide, failed
from pdp.flow.drive import CHECKPOINT, Step, ToolRun, Work
from pdp.flow.parts import Parts, Stores
from pdp.flow.record import record_decision, record_result, telemetry_attributes, write_result
from pdp.flow.stages import (
    Decided,
    Executed,
    OverspentError,
    Prepared,
    Ready,
    Received,
    StoppedError,
    arguments_of,
    not_run,
    result_markings,
    withheld,
)
from pdp.proposal import Execution

if TYPE_CHECKING:
    from pdp.execution.events import CallEvents
    from pdp.execution.telemetry import CallTelemetry
    from pdp.flow.remote.calls import RemoteRun
    from pdp.patterns.enforcement import HeldCall
    from pdp.stores.actions import Action

_log = logging.getLogger("pdp.pep")

_TRIES: Final = 3
_CONTENDED: Final = "others have spent of its limits each time that the call was decided; make it again"
_UNDELIVERED: Final = "the tool ran, and its result could not be delivered"
_GIVEN_UP: Final = not_run("the call was given up before its tool was started")


def call(received: Received, proposal: Any, session: Any, parts: Parts) -> Generator[Step, Any, Evaluation]:
    """Decide a proposal and, on ALLOW alone, run its tool with exactly the decided arguments."""
    decided = yield from decide(received, proposal, session, parts)
    return evaluation_of((yield from call_decided(decided, parts)))


def call_decided(
    decided: Decided, parts: Parts, remote: RemoteRun | None = None
) -> Generator[Step, Any, Decided | Executed]:
    """Run the tool of a call that is allowed; `remote`: another enforcement point does, unless there is nothing to run.

    Then what comes back is the call as it was decided.
    """
    watchers = _Watchers(decided, parts)
    result: Decided | Executed | None = None
    try:
        prepared = decided.prepared if decided.allowed else None
        try:
            ready = decided if prepared is None else (yield from make_ready(decided, prepared, parts, remote))
        except OverspentError as error:
            ready = yield from _decided_again(error.prepared, parts, remote)
        if not isinstance(ready, Ready):
            result = ready
        elif remote is not None and (yield from remote.runs(ready)):
            result = ready.decided
        else:
            result = yield from execute(ready, parts, watchers)
            if ready.held is not None and ready.held.staged is not None:
                result = yield from _ask_for_approval(result, ready.held.staged, ready.prepared, parts)
        return result
    finally:
        watchers.ended(result)


def make_ready(
    decided: Decided, prepared: Prepared, parts: Parts, remote: RemoteRun | None = None
) -> Generator[Step, Any, Ready | Decided | Executed]:
    """Take the steps of an allowed call until its tool starts.

    What ends here is recorded and returned, and what the call has reserved is given back, also where its caller is
    cancelled; but for a remote run, which goes on from there when its caller tries again.

    OverspentError: others have spent meanwhile what it was allowed to; nothing is reserved for it any more.
    """
    tool, tools, stores = prepared.checked.tool, parts.tools, parts.stores
    ready = Ready(decided, prepared)
    try:
        if remote is None:
            ready = ready._replace(runner=tools.runner(tool.entry))
            # Before anything is used up for it.
            refused = tools.refused(tool, ready.runner, prepared.checked.proposal.arguments)
            if refused is not None:
                return (yield from record_result(Executed(decided, refused), parts.audit))
        ready = ready._replace(held=(yield from hold_to_pattern(decided, prepared, parts)))
        if remote is not None:
            ready = yield from remote.reserve(ready)
        else:
            ready = (yield from _reserve_budgets(ready, parts)) if prepared.spendings else ready
            ready = yield from _reserve(ready, parts)
        ready = yield from _until_start(ready, parts, remote)
        if ready.known is None:
            yield CHECKPOINT
    except OverspentError:
        yield from _give_back(ready, _GIVEN_UP, stores)
        raise
    except Exception as error:  # noqa: BLE001 - whatever fails on the way is a DENY
        denied = error.decided if isinstance(error, StoppedError) else failed(ready.decided, error)
        denied = yield from record_decision(denied, parts.audit)
        if remote is None or (yield from remote.gives_back(denied)):
            yield from _give_back(ready, _GIVEN_UP, stores)
        return denied
    except BaseException:
        if remote is not None and remote.row is not None:
            raise
        yield from record_result(Executed(ready.decided, _GIVEN_UP, ready.action), parts.audit)
        yield from _give_back(ready, _GIVEN_UP, stores)
        raise
    return ready


def _until_start(ready: Ready, parts: Parts, remote: RemoteRun | None) -> Generator[Step, Any, Ready]:
    prepared, stores, tool = ready.prepared, parts.stores, ready.prepared.checked.tool
    if prepared.flow is not None and prepared.approval is not None:
        from pdp.flow.follow import endorse  # noqa: PLC0415 - only where labels are in use

        yield from endorse(prepared, stores)
    if ready.known is not None:
        return ready
    yield CHECKPOINT
    _act_on_obligations(ready.decided, prepared)
    if tool.stages_actions:
        # The staging is the run: its pattern's rule acts on the store.
        return ready
    if ready.held is not None:
        ready = ready._replace(known=(yield Work(ready.held.before, ready.held.blocking)))
        if ready.known is not None:
            return ready
    inputs = {} if remote else parts.tools.inputs(tool, prepared.asked.session, prepared.checked.config)
    ready = ready._replace(arguments=arguments_of(prepared.checked.proposal) | inputs)
    return ready._replace(action=(yield from _approve(ready, stores, remote)))


def _decided_again(
    prepared: Prepared, parts: Parts, remote: RemoteRun | None
) -> Generator[Step, Any, Ready | Decided | Executed]:
    """Decide a call with what is spent now, until it is ready or not allowed; a few times, then it is a DENY."""
    asked = prepared.asked
    session = asked.session.with_changes(request_id=asked.request_id)
    for _ in range(_TRIES):
        decided = yield from decide(asked.received, asked.proposal, session, parts)
        if decided.prepared is None or not decided.allowed:
            return decided
        with suppress(OverspentError):
            return (yield from make_ready(decided, decided.prepared, parts, remote))
    return (yield from record_decision(decided.denied("limits.cumulative_exceeded", _CONTENDED), parts.audit))


def execute(ready: Ready, parts: Parts, watchers: _Watchers) -> Generator[Step, Any, Executed]:
    """Run the tool of a call that is ready for it, and return what it comes to, recorded.

    From here on there may be an effect: a call that is cut short, or whose outcome cannot be stored, is recorded as
    unknown. Who is cancelled gets nothing.
    """
    stores = parts.stores
    try:
        execution = ready.known
        if execution is None:
            execution = yield from _run(ready, watchers)
        ready = ready._replace(action=(yield from _settle(ready, execution, stores)))
        yield from _free(ready, execution, stores)
        ready = ready._replace(key=None, reservation=None)
        return (yield from record_result((yield from _delivered(ready, execution, stores)), parts.audit))
    except BaseException as error:
        executed = yield from record_result(Executed(ready.decided, cut_short(), ready.action), parts.audit)
        yield from _give_back(ready, executed.execution, stores)
        if not isinstance(error, Exception):
            raise
        _log.exception("a run is over, and what it came to could not be stored")
        return executed


def complete(ready: Ready, execution: Execution, parts: Parts, fault: str | None) -> Generator[Step, Any, Executed]:
    """Return what a run elsewhere comes to, settled and recorded; `fault`: why its result is withheld.

    It can be repeated. AuditError: it could not be recorded; what is settled stays so.
    """
    execution = execution if ready.held is None else ready.held.completed(execution)
    ready = ready._replace(action=(yield from _settle(ready, execution, parts.stores)))
    yield from _free(ready, execution, parts.stores)
    if fault is None:
        delivered = yield from _delivered(ready, execution, parts.stores)
    else:
        delivered = Executed(ready.decided, withheld(execution, fault), ready.action)
    yield from write_result(delivered, parts.audit)
    return delivered


def _delivered(ready: Ready, execution: Execution, stores: Stores) -> Generator[Step, Any, Executed]:
    delivered = deliver(Executed(ready.decided, execution, ready.action), ready)
    if ready.prepared.flow is not None:
        from pdp.flow.follow import follow  # noqa: PLC0415 - only where labels are in use

        delivered = yield from follow(delivered, ready.prepared, stores)
    return delivered


class _Watchers:
    """Who watches a call from outside: the application's observers and its telemetry, where there are any."""

    def __init__(self, decided: Decided, parts: Parts) -> None:
        self._decided = decided
        self._audit = parts.audit
        self._ran = False
        self._events: CallEvents | None = None
        self._telemetry: CallTelemetry | None = None
        tool, received = decided.tool, decided.asked.received
        if parts.telemetry is not None:
            from pdp.execution.telemetry import CallTelemetry  # noqa: PLC0415 - only with the extra

            attributes = telemetry_attributes(decided, parts.audit)
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
        self._ran = True
        if self._events is not None:
            self._events.started()
        if self._telemetry is not None:
            self._telemetry.run_started()

    def stopped(self, execution: Execution) -> None:
        if self._telemetry is not None:
            self._telemetry.run_ended(execution)
        if self._events is not None:
            self._events.stopped()

    def ended(self, result: Decided | Executed | None) -> None:
        """The call is over; None: its caller was cancelled or interrupted."""
        over = result or Executed(self._decided, cut_short() if self._ran else _GIVEN_UP)
        execution = over.execution if isinstance(over, Executed) else None
        if self._telemetry is not None:
            self._telemetry.ended(execution, telemetry_attributes(over, self._audit))
        if self._events is not None:
            evaluation = evaluation_of(over)
            error = evaluation.answer.text if evaluation.pruned or evaluation.answer.is_error else None
            self._events.ended(error, execution, cancelled=result is None)


def evaluation_of(result: Decided | Executed) -> Evaluation:
    """Return what the caller gets of a call."""
    return Evaluation(result.decided, result) if isinstance(result, Executed) else Evaluation(result)


def hold_to_pattern(decided: Decided, prepared: Prepared, parts: Parts) -> Generator[Step, Any, HeldCall | None]:
    """Return the call with the rules that it is held to, if any, before anything is used up: its run may be closed."""
    needs_run = parts.stores.reads_sources or prepared.checked.tool.follows_pattern or _needs_action(prepared)
    if not (needs_run or result_markings(decided)):
        return None
    from pdp.flow.action import hold  # noqa: PLC0415 - only calls that a pattern or a run has rules for

    return (yield from hold(decided, prepared, parts))


def _ask_for_approval(
    executed: Executed, staged: Action, prepared: Prepared, parts: Parts
) -> Generator[Step, Any, Executed]:
    """Return a staging with the approval that its action waits for, where the policy wants a person for the commit."""
    if parts.approvals is None:
        return executed
    from pdp.flow.action import decide_commit  # noqa: PLC0415 - only calls that stage an action

    commit = yield from decide_commit(prepared, staged, parts)
    if commit is None or commit.action != staged:
        return executed
    return executed._replace(decided=executed.decided._replace(approval=commit.approval))


def _reserve(ready: Ready, parts: Parts) -> Generator[Step, Any, Ready]:
    prepared = ready.prepared
    if not (prepared.checked.tool.reserves_key or prepared.approval or prepared.asked.received.compensates):
        return ready
    from pdp.flow.reserve import reserve  # noqa: PLC0415 - only calls with a key or an approval

    return (yield from reserve(ready, parts))


def _reserve_budgets(ready: Ready, parts: Parts) -> Generator[Step, Any, Ready]:
    from pdp.flow.reserve import reserve_budgets  # noqa: PLC0415 - only tools with cumulative limits

    return (yield from reserve_budgets(ready, parts))


def _act_on_obligations(decided: Decided, prepared: Prepared) -> None:
    """Let the handlers of obligations do what comes before the tool.

    StoppedError: one refuses; OverspentError: the call was to be a replay, and what an earlier one came to was
    forgotten: its tool would run.
    """
    if decided.duties is None:
        return
    if prepared.spendings and prepared.spendings[0].replayed:
        raise OverspentError(prepared)
    try:
        decided.duties.before(prepared.body)
    except PdpError as error:
        raise StoppedError(decided.denied(error.code, error.message)) from error


def _needs_action(prepared: Prepared) -> bool:
    tool = prepared.checked.tool
    return tool.commits or (tool.has_action and prepared.approval is not None)


def _approve(ready: Ready, stores: Stores, remote: RemoteRun | None) -> Generator[Step, Action, Action | None]:
    decided, prepared, held = ready.decided, ready.prepared, ready.held
    if held is None or not _needs_action(prepared):
        return None
    from pdp.flow.action import approved_action  # noqa: PLC0415 - only calls with effects

    call_id = None if remote is None else remote.call_id
    approve = partial(approved_action, decided, prepared, stores.actions, held.run, call_id)
    return (yield Work(approve, blocking=stores.actions.blocking))


def _run(ready: Ready, watchers: _Watchers) -> Generator[Step, Any, Execution]:
    tool, held, runner = ready.prepared.checked.tool, ready.held, ready.runner
    if tool.stages_actions and held is not None:
        # A function that the tool may have is not asked.
        staged: Execution | None = yield Work(held.before, held.blocking)
        if staged is not None:
            return staged
    if runner is None:
        return unavailable(tool.entry.name)
    run: AbstractContextManager[object] = nullcontext()
    if held is not None:
        from pdp.patterns.run import within_run  # noqa: PLC0415 - only calls that belong to a run

        run = within_run(held.run)
    watchers.started()
    try:
        with run:
            execution: Execution = yield ToolRun(runner, dict(ready.arguments))
    except Exception as error:  # noqa: BLE001 - a tool's own errors are executions; this is of what should have run it
        _log.error("a run failed: %s", place_of(error))
        execution = cut_short()
    execution = execution if held is None else held.completed(execution)
    watchers.stopped(execution)
    return execution


def _settle(ready: Ready, execution: Execution, stores: Stores) -> Generator[Step, Action | None, Action | None]:
    action, compensates = ready.action, ready.prepared.asked.received.compensates
    if action is None and compensates is None:
        return None
    from pdp.flow.action import settle  # noqa: PLC0415 - only calls with effects

    actions = stores.actions
    return (yield Work(lambda: settle(action, compensates, actions, execution), blocking=actions.blocking))


def _free(ready: Ready, execution: Execution, stores: Stores) -> Generator[Step, Any, None]:
    if ready.key is not None or ready.reservation is not None:
        from pdp.flow.reserve import free  # noqa: PLC0415 - only calls with a key or cumulative limits

        yield from free(ready, stores, execution)


def _give_back(ready: Ready, execution: Execution, stores: Stores) -> Generator[Step, Any, None]:
    """Settle what a call has taken that was recorded already; what cannot be stored is logged, and stays taken."""
    for settle in (_settle, _free):
        try:
            yield from settle(ready, execution, stores)
        except Exception:  # noqa: BLE001 - the call has come to what is recorded
            _log.critical("what a call has taken that is over could not be settled", exc_info=True)


def deliver(executed: Executed, ready: Ready) -> Executed:
    """Return what the caller gets of a run: what pattern and obligations leave of its result, and the state after it.

    It never raises: the tool has run by now, and its key is finished. Whatever fails here withholds the result.
    """
    try:
        delivered = _deliver(executed, ready)
    except Exception as error:  # noqa: BLE001 - whatever it was, the result does not go out
        _log.error("a result could not be delivered: %s", place_of(error))
        return executed._replace(execution=withheld(executed.execution, _UNDELIVERED))
    if delivered.execution.failure is not None:
        return delivered._replace(markings=frozenset(), retrieval_snapshot=None)
    return delivered


def _deliver(executed: Executed, ready: Ready) -> Executed:
    tool, held = ready.prepared.checked.tool, ready.held
    if held is not None:
        executed = executed._replace(**held.after(executed.execution)._asdict())
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
    if executed.execution.failure is not None or not tool.state_effects:
        return executed
    try:
        state = tool.state_after(ready.prepared.asked.session.state, executed.execution.result)
        return executed._replace(state=state)
    except PdpError as error:
        fault = ToolResultError(error.message)
        failure = failure_of(fault)
        failure.details["effect"] = "done"
        return executed._replace(execution=executed.execution._replace(result=None, failure=failure, error=fault))
