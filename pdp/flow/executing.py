"""From ALLOW to a result: what stands between a decision and its tool, and between the tool and whoever called it.

    key and approval taken -> pattern -> action approved -> the tool -> action settled -> key finished -> pattern
        -> obligations -> state

Whatever has been taken stays taken: a run that is cut short leaves its key, and nothing runs for it a second time. A
call that ends before its tool began frees its key.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from pdp.decision import denied, new_id
from pdp.errors import PdpError, UsageError
from pdp.execution.events import RunIdentity
from pdp.execution.run import Execution, cut_short, unavailable
from pdp.flow.acting import approved, compensate, needs_action, settle
from pdp.flow.claiming import Claim, claimed
from pdp.flow.delivering import deliver, without_room
from pdp.flow.drive import CHECKPOINT, ToolRun, Work
from pdp.flow.keys import caller_of
from pdp.flow.recording import dispatch_of, result_digest
from pdp.json import JsonValueError, canonical
from pdp.manifest.fields import Pattern
from pdp.patterns.circumstances import Circumstances
from pdp.patterns.current import within_run
from pdp.patterns.enforcement import HeldCall
from pdp.proposal import Failure, FailureCode
from pdp.stores.errors import StoreError
from pdp.stores.key import has_effects

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from pdp.approvals.approvals import Approvals
    from pdp.audit.file import AuditLog
    from pdp.execution.events import Observers, RunEvents
    from pdp.execution.runner import ToolRunner
    from pdp.execution.telemetry import CallTelemetry, Telemetry
    from pdp.flow.call import Call
    from pdp.flow.drive import Step
    from pdp.flow.keeping import Keeping
    from pdp.flow.tools import Tools
    from pdp.patterns.deployment import Deployment
    from pdp.patterns.run import Run
    from pdp.stores.action import ActionStore
    from pdp.stores.key import IdempotencyStore

_log = logging.getLogger("pdp.pep")


class Executor:
    """Runs the tools of one enforcement point. Shared between threads and tasks.

    Args:
        tools: what runs them.
        keeping: where keys, actions and runs are kept.
        observers: who is told when a tool begins and ends.
        telemetry: makes spans and metrics; None: nobody does.
    """

    def __init__(self, tools: Tools, keeping: Keeping, observers: Observers, telemetry: Telemetry | None) -> None:
        self.tools = tools
        self.keeping = keeping
        self.observers = observers
        self.telemetry = telemetry

    def replaced_by(
        self,
        functions: Mapping[str, Callable[..., Any]] | None,
        keys: IdempotencyStore | None,
        actions: ActionStore | None,
        deployment: Deployment | None,
    ) -> Executor:
        """Return one with other functions, stores and deployment; what is None stays as it is here."""
        keeping = self.keeping.replaced_by(keys, actions, deployment)
        return Executor(self.tools.replaced_by(functions), keeping, self.observers, self.telemetry)

    def dispatched(self, call: Call, log: AuditLog) -> CallTelemetry | None:
        """Begin the telemetry of a call that has been decided, where there is any."""
        return None if self.telemetry is None else self.telemetry.dispatched(dispatch_of(call, log))

    def executed(
        self, call: Call, approvals: Approvals | None, log: AuditLog, telemetry: CallTelemetry | None
    ) -> Generator[Step, Any, None]:
        """Run the tool of an allowed call, once, writing what comes of it into `call`, or deny it after all."""
        tool = call.checked.tool
        if tool is None or call.session is None:
            raise UsageError("a call without tool or session was allowed")
        entry, keys = tool.entry, self.keeping.keys
        runner = self.tools.runner(tool)
        if runner is None and entry.pattern is not Pattern.ACTION_STAGING:
            # Before anything is used up for it.
            call.execution = unavailable(entry.name)
            return
        refused = self.tools.refused(tool, runner, call.arguments())
        if refused is not None:
            call.execution = refused
            return
        watch = _Watch(
            self.observers.watch(_identity(call), entry.name, call.arguments(), entry.sensitive), telemetry, log
        )
        claim = Claim()
        try:
            # Before anything is used up for it: a run may be closed.
            run: Run = yield Work(lambda: self.keeping.run_of(call), blocking=self.keeping.reads_sources)
            claim = yield from self._claimed(call, approvals)
            if not call.allowed:
                return
            about = _circumstances(call)
            held = HeldCall(entry, call.arguments(), run, about)
            execution = claim.instead or without_room(run, about)
            if execution is None:
                execution = yield from self._run(call, runner, held, run, watch)
        except BaseException as error:
            ended = call.execution
            if ended is None:
                ended = _not_begun("the call was given up before its tool was started")
                # Of an exception the caller gets a DENY; who was cancelled gets nothing, and the record says so.
                call.execution = None if isinstance(error, Exception) else ended
            watch.events.cancelled(ended.failure)
            yield from self._settled(call, ended)
            yield from _finished(call, claim, keys, ended)
            raise
        yield from _finished(call, claim, keys, execution)
        if not call.allowed:
            return
        action = call.compensates
        if action is not None and execution.failure is None:
            actions = self.keeping.actions
            yield Work(lambda: compensate(action, actions), blocking=actions.blocking)
        deliver(call, execution, held)

    def _claimed(self, call: Call, approvals: Approvals | None) -> Generator[Step, Any, Claim]:
        try:
            return (yield from claimed(call, self.keeping.keys, approvals))
        except StoreError as error:
            _log.exception("an idempotency key or approval could not be taken, which is a DENY")
            call.deny(denied(error.code, error.message))
            return Claim()

    def _run(
        self, call: Call, runner: ToolRunner | None, held: HeldCall, run: Run, watch: _Watch
    ) -> Generator[Step, Any, Execution]:
        """Run the tool, with its action approved before and settled after.

        From the moment on that something may have an effect, `call.execution` says that it was cut short.
        """
        yield CHECKPOINT
        actions = self.keeping.actions
        if call.checked.tool is not None and call.checked.tool.entry.pattern is Pattern.ACTION_STAGING:
            # The store of actions is what it acts on; a function that it may have is not asked.
            call.execution = cut_short()
            instead: Execution | None = yield Work(held.before, blocking=actions.blocking)
        else:
            instead = held.before()
        if instead is not None or runner is None:
            return instead or unavailable(call.tool_name)
        if needs_action(call):
            try:
                call.action = yield Work(lambda: approved(call, actions, run), blocking=actions.blocking)
            except PdpError as error:
                _log.exception("an action could not be approved, which is a DENY")
                call.deny(denied(error.code, error.message))
                return _not_begun(error.message)
        given = self._given(call)
        yield CHECKPOINT
        call.execution = cut_short()
        watch.started()
        with within_run(run):
            execution: Execution = yield ToolRun(runner, given)
        watch.ended(execution)
        self.tools.note(call.tool_name, execution)
        yield from self._settled(call, execution)
        return execution

    def _settled(self, call: Call, execution: Execution) -> Generator[Step, Any, None]:
        """Let the action of a call that is over be what became of it."""
        action, actions = call.action, self.keeping.actions
        if action is not None:
            call.action = yield Work(lambda: settle(action, actions, execution), blocking=actions.blocking)

    def _given(self, call: Call) -> dict[str, Any]:
        tool, session = call.checked.tool, call.session
        if tool is None or session is None:
            return call.arguments()
        return call.arguments() | self.tools.inputs(tool, session, call.checked.config)


@dataclass(frozen=True, slots=True)
class _Watch:
    events: RunEvents
    telemetry: CallTelemetry | None
    log: AuditLog

    def started(self) -> None:
        self.events.started()
        if self.telemetry is not None:
            self.telemetry.run_started()

    def ended(self, execution: Execution) -> None:
        if self.telemetry is not None:
            digest = result_digest(execution.result, self.log) if execution.failure is None else None
            self.telemetry.run_ended(execution, digest)
        self.events.ended(execution)


def _finished(call: Call, claim: Claim, keys: IdempotencyStore, execution: Execution) -> Generator[Step, Any, None]:
    """Keep for the key what the run came to."""
    if claim.token is not None:
        yield Work(lambda: _finish(call, claim, keys, execution), blocking=keys.blocking)


def _finish(call: Call, claim: Claim, keys: IdempotencyStore, execution: Execution) -> None:
    """Do so; the run is over: what cannot be kept is logged, and the key stays taken."""
    tool = call.checked.tool
    if claim.token is None or tool is None:
        return
    try:
        keys.finish(claim.token, execution, now=time.time(), effects=has_effects(tool.entry))
    except Exception:  # noqa: BLE001 - whatever it was, the tool has run
        _log.critical("a tool ran and its idempotency key could not be finished: it stays taken", exc_info=True)


def _circumstances(call: Call) -> Circumstances:
    """What the call's pattern has to know: of session and decision, and nothing of the model."""
    session, decision = call.session, call.decision
    request = orjson.loads(call.body or b"{}")
    marked = (
        [each.parameters["markings"] for each in decision.obligations if each.id == "mark_result"] if decision else []
    )
    return Circumstances(
        caller=caller_of(session) if session is not None else "",
        idempotency_key=call.checked.idempotency_key,
        decision_id=decision.decision_id if decision else None,
        markings=frozenset(name for names in marked for name in names),
        clearances=_clearances(session.claims) if session is not None else frozenset(),
        resource=(request["resource"]["type"], request["resource"]["id"]) if request else None,
        approved=call.approval is not None,
        now=call.now,
        inputs=_inputs(call),
    )


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


def _inputs(call: Call) -> bytes:
    tool, session = call.checked.tool, call.session
    if tool is None or session is None or tool.entry.pattern is None:
        return b""
    reads = tool.entry.state.reads if tool.entry.state else ()
    state = {key: session.state[key] for key in reads if key in session.state}
    try:
        return canonical({"config": dict(call.checked.config or {}), "state": state})
    except JsonValueError:
        # A normalizer may make any object of a config: what cannot be compared is like nothing else.
        return new_id().encode()


def _identity(call: Call) -> RunIdentity:
    return RunIdentity(new_id(), call.request_id, call.tool_call_id, call.step_name)


def _not_begun(message: str) -> Execution:
    failure = Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": "none"})
    return Execution(failure=failure, started=False)
