"""From ALLOW to a result: what stands between a decision and its tool, and between the tool and whoever called it.

    hold      the agent's run that the call belongs to, and the rules of its pattern
    reserve   key and approval, where the entry has a key or the call an approval
    run       the pattern's rule before; the action approved; the tool (execution/); the action settled   -> Execution
    release   a key that stands for nothing
    deliver   the pattern's rule after, obligations, state                                               -> Executed

What an entry does not ask for is not in its way: `CompiledTool` says which of these steps a call takes. Whatever has
been reserved stays so: a run that is cut short leaves its key, and nothing runs for it a second time. A call that ends
before its tool began frees its key.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from traceback import format_tb
from typing import TYPE_CHECKING, Any

from pdp.decision import new_id
from pdp.errors import PdpError
from pdp.evaluation import Evaluation
from pdp.execution.failures import ToolResultError, failure_of
from pdp.execution.runner import cut_short, unavailable
from pdp.flow.call import Executed, arguments_of, caller_of
from pdp.flow.decide import decide, failed
from pdp.flow.drive import CHECKPOINT, ToolRun, Work
from pdp.flow.record import record_dispatch, record_result, result_digest, telemetry_attributes
from pdp.json import JsonValueError, canonical
from pdp.proposal import Execution, Failure, FailureCode

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from contextlib import AbstractContextManager

    from pdp.execution.events import RunEvents
    from pdp.execution.runner import ToolRunner
    from pdp.execution.telemetry import CallTelemetry
    from pdp.flow.call import Decided, Prepared, Received
    from pdp.flow.drive import Step
    from pdp.flow.parts import Parts
    from pdp.flow.reserve import Reservation
    from pdp.patterns.enforcement import HeldCall
    from pdp.patterns.rule import CallFacts
    from pdp.patterns.run import Run
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
        executed = yield from execute(decided, decided.prepared, parts, telemetry)
    finally:
        if telemetry is not None:
            telemetry.ended()
    return Evaluation(executed.decided, executed) if isinstance(executed, Executed) else Evaluation(executed)


def execute(
    decided: Decided, prepared: Prepared, parts: Parts, telemetry: CallTelemetry | None
) -> Generator[Step, Any, Decided | Executed]:
    """Run the tool of an allowed call, and record what it comes to.

    If what the run needs cannot be reserved, it does not run: a DENY follows the ALLOW in the audit, and is returned.
    """
    run = _Run(decided, prepared, parts, telemetry)
    try:
        result = yield from run.steps()
    except Exception as error:  # noqa: BLE001 - whatever fails on the way is a DENY, or the outcome is unknown
        if run.if_cut_short is None:
            result = failed(run.decided, error)
        else:
            _log.exception("a run failed")
            result = Executed(run.decided, run.if_cut_short, run.action)
    except BaseException:
        if run.if_cut_short is not None:
            record_result(Executed(run.decided, run.if_cut_short, run.action), parts.audit)
        raise
    if isinstance(result, Executed):
        return record_result(result, parts.audit)
    return record_dispatch(result, parts.audit)


class _Run:
    """The run of one allowed call. Its public attributes are what is known of it if it is cut short.

    Attributes:
        decided: the call, with its approval as the run has used it.
        if_cut_short: what is reported if the run is cut short; None as long as nothing can have had an effect.
        action: the action that the run is for.
    """

    def __init__(self, decided: Decided, prepared: Prepared, parts: Parts, telemetry: CallTelemetry | None) -> None:
        self.decided = decided
        self.if_cut_short: Execution | None = None
        self.action: Action | None = decided.action
        self._prepared = prepared
        self._tool = prepared.checked.tool
        self._parts = parts
        self._telemetry = telemetry
        self._events: RunEvents | None = None
        self._reservation: Reservation | None = None

    def steps(self) -> Generator[Step, Any, Decided | Executed]:
        """Take the steps that the call's entry asks for."""
        tool, tools, proposal = self._tool, self._parts.tools, self._prepared.checked.proposal
        runner = tools.runner(tool)
        # Before anything is used up for it.
        if runner is None and not tool.stages:
            return Executed(self.decided, unavailable(tool.entry.name))
        refused = tools.refused(tool, runner, proposal.arguments)
        if refused is not None:
            return Executed(self.decided, refused)
        self._watch()
        try:
            held = yield from self._hold()
            denied = yield from self._reserve()
            if denied:
                return self.decided
            execution = self._reservation.instead if self._reservation is not None else None
            if execution is None:
                execution = yield from self._run(runner, held)
        except BaseException as error:
            ended = self.if_cut_short or _not_begun("the call was given up before its tool was started")
            # Of an exception the caller gets a DENY; who was cancelled gets nothing, and the record says so.
            if not isinstance(error, Exception):
                self.if_cut_short = ended
            if self._events is not None:
                self._events.cancelled(ended.failure)
            yield from self._settle(ended)
            yield from self._release(ended)
            raise
        yield from self._release(execution)
        if not self.decided.allowed:
            return self.decided
        yield from self._compensate(execution)
        return deliver(Executed(self.decided, execution, self.action), self._prepared, held)

    def _watch(self) -> None:
        observers, asked, entry = self._parts.observers, self._prepared.asked, self._tool.entry
        if observers:
            from pdp.execution.events import RunEvents  # noqa: PLC0415 - only where somebody observes
            from pdp.execution.masking import masked  # noqa: PLC0415 - likewise

            data = {
                "call_id": new_id(),
                "request_id": asked.request_id,
                "tool_call_id": asked.received.tool_call_id,
                "step_name": asked.received.step_name,
                "tool": entry.name,
                "arguments": masked(arguments_of(self._prepared.checked.proposal), entry.sensitive),
            }
            self._events = RunEvents(observers, data)

    def _hold(self) -> Generator[Step, Any, HeldCall | None]:
        """Open the agent's run that the call belongs to, before anything is used up: it may be closed."""
        stores, session = self._parts.stores, self._prepared.session
        markings = _markings(self.decided)
        if not (markings or stores.has_deployment or self._tool.follows_pattern or self._needs_action):
            return None
        from pdp.patterns.enforcement import HeldCall  # noqa: PLC0415 - only calls that a pattern or a run has rules for

        run: Run = yield Work(lambda: stores.run_of(session), blocking=stores.reads_sources)
        arguments = arguments_of(self._prepared.checked.proposal)
        return HeldCall(self._tool.entry, arguments, run, _facts(self.decided, self._prepared, markings))

    def _reserve(self) -> Generator[Step, Any, bool]:
        """Reserve key and approval, where there is one; return whether the call is denied after all."""
        prepared = self._prepared
        if not (self._tool.reserves_key or prepared.approval or prepared.asked.received.compensates):
            return False
        from pdp.flow.reserve import reserve  # noqa: PLC0415 - only calls with a key or an approval

        self._reservation = reservation = yield from reserve(prepared, self._parts)
        self.decided = self.decided._replace(approval=reservation.approval)
        if reservation.denial is not None:
            self.decided = self.decided._replace(decision=reservation.denial)
        return reservation.denial is not None

    @property
    def _needs_action(self) -> bool:
        return self._tool.commits or (self._tool.has_action and self._prepared.approval is not None)

    def _run(self, runner: ToolRunner | None, held: HeldCall | None) -> Generator[Step, Any, Execution]:
        """Run the tool, with its action approved before and settled after.

        From the moment on that something may have an effect, `if_cut_short` says so.
        """
        yield CHECKPOINT
        parts, tool = self._parts, self._tool
        if tool.stages and held is not None:
            # The store of actions is what it acts on; a function that it may have is not asked.
            self.if_cut_short = cut_short()
            instead: Execution | None = yield Work(held.before, blocking=parts.stores.actions.blocking)
        else:
            instead = held.before() if held is not None else None
        if instead is not None or runner is None:
            return instead or unavailable(tool.entry.name)
        if held is not None and self._needs_action:
            try:
                yield from self._approve_action(held.run)
            except PdpError as error:
                _log.exception("an action could not be approved, which is a DENY")
                self.decided = self.decided.denied(error.code, error.message)
                return _not_begun(error.message)
        checked = self._prepared.checked
        given = arguments_of(checked.proposal) | parts.tools.inputs(tool, self._prepared.session, checked.config)
        yield CHECKPOINT
        self.if_cut_short = cut_short()
        if self._events is not None:
            self._events.started()
        if self._telemetry is not None:
            self._telemetry.run_started()
        with nullcontext() if held is None else _within(held.run):
            execution: Execution = yield ToolRun(runner, given)
        self._ended(execution)
        parts.tools.note_run(tool.entry.name, execution)
        yield from self._settle(execution)
        return execution

    def _ended(self, execution: Execution) -> None:
        if self._telemetry is not None:
            succeeded = execution.failure is None
            digest = result_digest(execution.result, self._parts.audit) if succeeded else None
            self._telemetry.run_ended(execution, digest)
        if self._events is not None:
            self._events.ended(execution)

    def _approve_action(self, run: Run) -> Generator[Step, Any, None]:
        from pdp.flow.stage import approved_action  # noqa: PLC0415 - only calls with effects

        actions, decided, prepared = self._parts.stores.actions, self.decided, self._prepared
        self.action = yield Work(lambda: approved_action(decided, prepared, actions, run), blocking=actions.blocking)

    def _settle(self, execution: Execution) -> Generator[Step, Any, None]:
        """Let the action of a run that is over be what became of it."""
        action = self.action
        if action is not None:
            from pdp.flow.stage import settle  # noqa: PLC0415 - only calls with effects

            actions = self._parts.stores.actions
            self.action = yield Work(lambda: settle(action, actions, execution), blocking=actions.blocking)

    def _release(self, execution: Execution) -> Generator[Step, Any, None]:
        """Store for the reserved key what the run came to."""
        if self._reservation is not None and self._reservation.token is not None:
            from pdp.flow.reserve import release  # noqa: PLC0415 - only calls with a key

            yield from release(self._reservation.token, self._tool, self._parts.stores.keys, execution)

    def _compensate(self, execution: Execution) -> Generator[Step, Any, None]:
        """Let the action that the call took back be compensated."""
        action = self._prepared.asked.received.compensates
        if action is not None and execution.failure is None:
            from pdp.flow.stage import compensated  # noqa: PLC0415 - only compensations

            actions = self._parts.stores.actions
            yield Work(lambda: compensated(action, actions), blocking=actions.blocking)


def _within(run: Run) -> AbstractContextManager[None]:
    from pdp.patterns.run import within_run  # noqa: PLC0415 - only calls that belong to a run

    return within_run(run)


def _facts(decided: Decided, prepared: Prepared, markings: frozenset[str]) -> CallFacts:
    """What the call's pattern has to know: of session and decision, and nothing of the model."""
    from pdp.patterns.rule import CallFacts  # noqa: PLC0415 - only calls that a pattern or a run has rules for

    return CallFacts(
        caller=caller_of(prepared.session),
        idempotency_key=prepared.checked.idempotency_key,
        decision_id=decided.decision.decision_id if decided.decision else None,
        markings=markings,
        clearances=_clearances(prepared.session.claims),
        resource=prepared.resource,
        approved=prepared.approval is not None,
        now=prepared.asked.received.now,
        inputs=_inputs(prepared),
    )


def _markings(decided: Decided) -> frozenset[str]:
    """Return the markings that the result carries by the policy (obligation `mark_result`)."""
    obligations = decided.decision.obligations if decided.decision else ()
    return frozenset(name for duty in obligations if duty.id == "mark_result" for name in duty.parameters["markings"])


def _clearances(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return what subject and acting agents are all cleared for. An agent that states no clearances narrows nothing.

    The policy has checked the shape of the claims: it allowed the call.
    """
    held = frozenset(claims.get("clearances") or ())
    agent = claims.get("act")
    while isinstance(agent, dict):
        if "clearances" in agent:
            held &= frozenset(agent["clearances"] or ())
        agent = agent.get("act")
    return held


def _inputs(prepared: Prepared) -> bytes:
    tool, session = prepared.checked.tool, prepared.session
    if tool.entry.pattern is None:
        return b""
    state = {key: session.state[key] for key in tool.reads if key in session.state}
    try:
        return canonical({"config": dict(prepared.checked.config), "state": state})
    except JsonValueError:
        # A normalizer may make any object of a config: what cannot be compared is like nothing else.
        return new_id().encode()


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
    if executed.execution.failure is not None or not prepared.checked.tool.effects:
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


def _not_begun(message: str) -> Execution:
    failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": "none"})
    return Execution(failure=failure, started=False)
