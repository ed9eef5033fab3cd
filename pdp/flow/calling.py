"""The flow on one page: one proposal on its way through the enforcement point.

    proposal -> contract -> request -> engine -> decision -> obligations -> audit -> execution -> audit

Whatever fails on the way is a DENY with a stable code, and whatever happens is in the audit stream: no way through
this module leaves one of them out.

The flow stands once, as a generator: what takes time, it hands out to whoever drives it, waiting or asynchronously.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdp.decision import Verdict, denied
from pdp.errors import AuditError
from pdp.flow.approving import find_approval, open_approval
from pdp.flow.compensating import compensation
from pdp.flow.drive import Work
from pdp.flow.preparing import build, prepare
from pdp.flow.recording import log_decision, record_dispatch, record_result
from pdp.obligations.fulfilment import transformed
from pdp.obligations.obligation import ObligationError
from pdp.patterns.runs import RunClosedError, RunsFullError
from pdp.stores.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Generator

    from pdp.approvals.approvals import Approvals
    from pdp.audit.file import AuditLog
    from pdp.contract.compiled import CompiledManifest
    from pdp.execution.telemetry import CallTelemetry
    from pdp.flow.call import Call
    from pdp.flow.drive import Flow, Step
    from pdp.flow.executing import Executor
    from pdp.flow.release import NewestRelease
    from pdp.obligations.obligations import Obligations

_log = logging.getLogger("pdp.pep")

INTERNAL_ERROR = "pep.internal_error"
STALE = "bundle.stale"


@dataclass(frozen=True)
class CallFlow:
    """The flow of one enforcement point, with all that it needs. Shared between threads and tasks.

    Attributes:
        manifest: the tools, ready for calls.
        audit: where events go.
        approvals: who may approve; None: nobody.
        executor: runs the tools.
        obligations: the handlers of duties.
        newest: the newest release that has decided.
    """

    manifest: CompiledManifest
    audit: AuditLog
    approvals: Approvals | None
    executor: Executor
    obligations: Obligations
    newest: NewestRelease

    def __post_init__(self) -> None:
        if self.approvals is not None:
            self.approvals.record_in(self.audit)
            self.approvals.act_on(self.executor.keeping.actions)

    def called(self, call: Call, proposal: Any, session: Any) -> Flow:
        """Decide, and run the tool if that is allowed."""
        yield from self.decided(call, proposal, session)
        telemetry = self.executor.dispatched(call, self.audit)
        try:
            if call.allowed:
                yield from self._executed(call, telemetry)
        finally:
            if telemetry is not None:
                telemetry.ended()

    def compensated(self, call: Call, action_id: str, arguments: Any, session: Any) -> Flow:
        """Call the tool that takes back what an action did; see `pdp.flow.compensating`."""
        actions = self.executor.keeping.actions
        action = yield Work(lambda: actions.get(action_id), blocking=actions.blocking)
        proposal, own_session = compensation(action_id, action, arguments, session, self.manifest.manifest)
        call.compensates = action
        yield from self.called(call, proposal, own_session)

    def decided(self, call: Call, proposal: Any, session: Any) -> Flow:
        """Decide, and record that."""
        try:
            body = yield from self._prepared(call, proposal, session)
            if body is not None:
                call.decision = yield body
                instead = self._conclude(call)
                if instead is not None:
                    yield from self._decided_again(call, instead)
                if call.runs and self.approvals is not None:
                    yield from self._asked_for(call, self.approvals)
        except Exception as error:  # noqa: BLE001 - whatever fails on the way is a DENY
            _fail(call, error)
        except BaseException:
            # The caller was cancelled or interrupted before it was decided; the attempt is recorded.
            call.deny(denied(INTERNAL_ERROR, "the caller was cancelled or interrupted"))
            record_dispatch(call, self.audit)
            raise
        record_dispatch(call, self.audit)
        if call.duties.log_level is not None:
            log_decision(call)

    def _executed(self, call: Call, telemetry: CallTelemetry | None) -> Flow:
        """Run the tool. If what it needs cannot be had, it does not run, and a DENY follows the ALLOW in the audit."""
        try:
            yield from self.executor.executed(call, self.approvals, self.audit, telemetry)
        except Exception as error:  # noqa: BLE001 - whatever fails on the way is a DENY, or the outcome is unknown
            if call.execution is None:
                _fail(call, error)
            else:
                _log.exception("a run failed")
        finally:
            if call.execution is not None and call.allowed:
                record_result(call, self.audit)
        if not call.allowed:
            record_dispatch(call, self.audit)

    def _prepared(self, call: Call, proposal: Any, session: Any) -> Generator[Step, Any, bytes | None]:
        """Return the request to ask the engine with, the call's approval in it; None when there is nothing to ask."""
        request = prepare(call, proposal, session, self.manifest)
        if request is None:
            return None
        approvals, keeping = self.approvals, self.executor.keeping
        if approvals is not None:
            found = Work(lambda: find_approval(call, approvals, keeping, request.context), keeping.blocks(approvals))
            yield found
        return build(call, request)

    def _asked_for(self, call: Call, approvals: Approvals) -> Generator[Step, Any, None]:
        """Open the approval of a call that the policy wants a person for."""
        if call.decision is not None and call.decision.verdict is Verdict.STEP_UP:
            keeping = self.executor.keeping
            blocking = keeping.blocks(approvals) or keeping.reads_sources
            yield Work(lambda: open_approval(call, approvals, keeping), blocking)

    def _decided_again(self, call: Call, instead: Any) -> Flow:
        """Decide on the proposal that the policy puts in the place of the one made: by all checks, and once only."""
        record_dispatch(call, self.audit, superseded=True)
        if not call.allowed:
            raise AuditError("the decision on the proposal that was made could not be recorded")
        call.restart()
        call.transformed = True
        body = yield from self._prepared(call, instead, call.session)
        if body is not None:
            call.decision = yield body
            self._conclude(call)

    def _conclude(self, call: Call) -> dict[str, Any] | None:
        """Hold the decision against what only the enforcement point knows; return a proposal to decide on instead."""
        decision = call.decision
        if decision is None:
            return None
        if self.newest.is_stale(decision):
            call.deny(denied(STALE, f"release {decision.release} decided, and a later one has decided before"))
            return None
        if decision.obligations:
            try:
                call.duties = self.obligations.duties(decision, transformed=call.transformed)
                if call.duties.transform is not None and call.proposal is not None:
                    return transformed(call.proposal, call.duties.transform)
                if call.allowed and call.runs and call.body is not None:
                    call.duties.before(call.body)
            except ObligationError as error:
                call.deny(denied(error.code, error.message))
        return None


def _fail(call: Call, error: Exception) -> None:
    _log.error("a decision failed, which is a DENY", exc_info=error)
    if isinstance(error, AuditError | StoreError | RunClosedError | RunsFullError):
        call.deny(denied(error.code, str(error)))
    else:
        call.deny(denied(INTERNAL_ERROR, "the enforcement point failed; its log says how"))
