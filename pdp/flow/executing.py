"""From ALLOW to a result: what stands between a decision and its tool, and between the tool and whoever called it.

    key and approval taken -> pattern -> action approved -> the tool -> action settled -> key finished -> pattern
        -> obligations -> state

Whatever has been taken stays taken: a run that is cut short leaves its key, and nothing runs for it a second time.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from pdp.decision import denied, new_id
from pdp.errors import PdpError, UsageError
from pdp.execution.action_memory import MemoryActions
from pdp.execution.events import RunIdentity
from pdp.execution.failures import ToolResultError, failure_of
from pdp.execution.idempotency import has_effects
from pdp.execution.idempotency_memory import MemoryIdempotency
from pdp.execution.running import Execution, cut_short, unavailable
from pdp.flow.acting import approved, needs_action, settle
from pdp.flow.claiming import claimed
from pdp.flow.drive import ToolRun, Work
from pdp.flow.keys import caller_of
from pdp.flow.recording import dispatch_of
from pdp.manifest.fields import Pattern
from pdp.obligations.obligation import Delivery
from pdp.patterns.circumstances import Circumstances
from pdp.patterns.current import within_run
from pdp.patterns.enforcement import HeldCall
from pdp.patterns.runs import Deployment, Runs
from pdp.proposal import Failure, FailureCode
from pdp.store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from pdp.approvals.approvals import Approvals
    from pdp.audit import AuditLog
    from pdp.execution.actions import ActionStore
    from pdp.execution.events import Observers, RunEvents
    from pdp.execution.idempotency import IdempotencyStore
    from pdp.execution.runner import ToolRunner
    from pdp.execution.telemetry import CallTelemetry, Telemetry
    from pdp.flow.call import Call
    from pdp.flow.claiming import Claim
    from pdp.flow.drive import Step
    from pdp.flow.tools import Tools
    from pdp.patterns.runs import Run

_log = logging.getLogger("pdp.pep")


@dataclass(frozen=True)
class Keeping:
    """Where an enforcement point keeps what outlives a call.

    Attributes:
        keys: idempotency keys; see `pdp.execution.idempotency`.
        actions: staged effects; see `pdp.execution.actions`.
        runs: what each run of an agent remembers; see `pdp.patterns.runs`.
    """

    keys: IdempotencyStore
    actions: ActionStore
    runs: Runs

    @classmethod
    def of(cls, keys: IdempotencyStore | None, actions: ActionStore | None, deployment: Deployment | None) -> Keeping:
        """Return it with what is not stated in memory; staging goes into the same store of actions."""
        kept = MemoryActions() if actions is None else actions
        told = replace(deployment or Deployment(), actions=kept)
        return cls(MemoryIdempotency() if keys is None else keys, kept, Runs(told))

    @property
    def blocking(self) -> bool:
        """Whether opening a run reads sources."""
        return bool(self.runs.deployment.sources)

    def replaced_by(self, keys: IdempotencyStore | None, actions: ActionStore | None) -> Keeping:
        """Return the same with other stores, and with runs of its own where actions go elsewhere."""
        if actions is None:
            return replace(self, keys=self.keys if keys is None else keys)
        return Keeping.of(self.keys if keys is None else keys, actions, self.runs.deployment)


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
    ) -> Executor:
        """Return one with other functions and stores; what is None stays as it is here."""
        keeping = self.keeping.replaced_by(keys, actions)
        return Executor(self.tools.replaced_by(functions), keeping, self.observers, self.telemetry)

    def dispatched(self, call: Call, log: AuditLog) -> CallTelemetry | None:
        """Begin the telemetry of a call that has been decided, where there is any."""
        return None if self.telemetry is None else self.telemetry.dispatched(dispatch_of(call, log))

    def executed(
        self, call: Call, approvals: Approvals | None, telemetry: CallTelemetry | None
    ) -> Generator[Step, Any, None]:
        """Run the tool of an allowed call, once, writing what comes of it into `call`, or deny it after all."""
        tool, session, keys = call.checked.tool, call.session, self.keeping.keys
        if tool is None or session is None:
            raise UsageError("a call without tool or session was allowed")
        entry = tool.entry
        runner = self.tools.runner(tool)
        if runner is None and entry.pattern is not Pattern.ACTION_STAGING:
            # Before anything is used up for it.
            call.execution = unavailable(entry.name)
            return
        try:
            claim = yield from claimed(call, keys, approvals)
        except StoreError as error:
            _log.exception("an idempotency key could not be taken, which is a DENY")
            call.deny(denied(error.code, error.message))
        if not call.allowed:
            return
        run: Run = yield Work(lambda: self.keeping.runs.open(session.run_id), blocking=self.keeping.blocking)
        held = HeldCall(entry, call.arguments(), run, _circumstances(call))
        execution = claim.instead
        if execution is None:
            call.execution = cut_short()
            events = self.observers.watch(_identity(call), entry.name, call.arguments(), entry.sensitive)
            try:
                execution = held.before()
                if execution is None:
                    execution = yield from self._run(call, runner, run, _Watch(events, telemetry))
            except BaseException:
                events.cancelled(call.execution.failure)
                _finish(call, claim, keys, call.execution)
                raise
            ended = execution
            yield Work(lambda: _finish(call, claim, keys, ended), blocking=keys.blocking)
        if call.allowed:
            _deliver(call, execution, held)

    def _run(self, call: Call, runner: ToolRunner | None, run: Run, watch: _Watch) -> Generator[Step, Any, Execution]:
        """Run the tool, with its action approved before and settled after."""
        if runner is None or call.session is None or call.checked.tool is None:
            return unavailable(call.tool_name)
        actions = self.keeping.actions
        if needs_action(call):
            try:
                call.action = yield Work(lambda: approved(call, actions, run), blocking=actions.blocking)
            except PdpError as error:
                _log.exception("an action could not be approved, which is a DENY")
                call.deny(denied(error.code, error.message))
                return Execution(failure=_not_run(error.message), started=False)
        given = call.arguments() | self.tools.inputs(call.checked.tool, call.session, call.checked.config)
        watch.started()
        with within_run(run):
            execution: Execution = yield ToolRun(runner, given)
        watch.ended(execution)
        self.tools.note(call.tool_name, execution)
        action = call.action
        if action is not None and needs_action(call):
            call.action = yield Work(lambda: settle(action, actions, execution), blocking=actions.blocking)
        return execution


class _Watch(NamedTuple):
    events: RunEvents
    telemetry: CallTelemetry | None

    def started(self) -> None:
        self.events.started()
        if self.telemetry is not None:
            self.telemetry.run_started()

    def ended(self, execution: Execution) -> None:
        if self.telemetry is not None:
            self.telemetry.run_ended(execution)
        self.events.ended(execution)


def _finish(call: Call, claim: Claim, keys: IdempotencyStore, execution: Execution) -> None:
    """Keep for the key what the run came to, which is over: what cannot be kept is logged, and the key stays taken."""
    tool = call.checked.tool
    if claim.token is None or tool is None:
        return
    try:
        keys.finish(claim.token, execution, now=time.time(), effects=has_effects(tool.entry))
    except Exception:  # noqa: BLE001 - whatever it was, the tool has run
        _log.critical("a tool ran and its idempotency key could not be finished: it stays taken", exc_info=True)


def _deliver(call: Call, execution: Execution, held: HeldCall) -> None:
    """Give the caller what pattern and obligations leave of a result, and what it makes of the state."""
    checked = held.after(execution)
    call.pins = checked.pins
    call.execution, delivery = call.duties.delivered(checked.execution)
    if call.execution.failure is not None:
        call.delivery = Delivery(None)
        return
    call.delivery = replace(
        delivery,
        markings=delivery.markings | checked.markings,
        retrieval_snapshot=delivery.retrieval_snapshot or checked.retrieval_snapshot,
    )
    tool, session = call.checked.tool, call.session
    if tool is not None and session is not None and tool.effects:
        try:
            call.state = tool.state_after(session.state, call.execution.result)
        except PdpError as error:
            failure = failure_of(ToolResultError(error.message))
            failure.details["effect"] = "done"
            call.execution, call.delivery = call.execution._replace(result=None, failure=failure), Delivery(None)


def _circumstances(call: Call) -> Circumstances:
    """What the call's pattern has to know: of session and decision, and nothing of the model."""
    session, decision = call.session, call.decision
    request = orjson.loads(call.body or b"{}")
    clearances = session.claims.get("clearances") if session is not None else None
    marked = (
        [each.parameters["markings"] for each in decision.obligations if each.id == "mark_result"] if decision else []
    )
    return Circumstances(
        caller=caller_of(session) if session is not None else "",
        idempotency_key=call.checked.idempotency_key,
        decision_id=decision.decision_id if decision else None,
        markings=frozenset(name for names in marked for name in names),
        clearances=frozenset(clearances or ()),
        resource=(request["resource"]["type"], request["resource"]["id"]) if request else None,
        approved=call.approval is not None,
        now=call.now,
    )


def _identity(call: Call) -> RunIdentity:
    return RunIdentity(new_id(), call.request_id, call.tool_call_id, call.step_name)


def _not_run(message: str) -> Failure:
    return Failure(FailureCode.TOOL_EXECUTION_FAILED, message, {"effect": "none"})
